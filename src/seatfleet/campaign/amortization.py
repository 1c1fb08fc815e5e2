"""Arithmetic that explains why speculation wins or loses on a seat: step time, break-even, amortization."""

from __future__ import annotations

from dataclasses import dataclass


def step_ms(acceptance_length: float, tokens_per_second: float) -> float:
    """Return milliseconds per engine step of one stream: AL tokens come out of every step (AL is 1 without drafts)."""
    return 1000 * acceptance_length / tokens_per_second


def break_even(step_ms_arm: float, step_ms_off: float) -> float:
    """Return the acceptance length above which a step this much longer pays."""
    return step_ms_arm / step_ms_off


@dataclass(frozen=True)
class Amortization:
    """Uplift of a dense lever under speculation: as the rule of thumb, as the exact identity, as measured.

    ``label`` compares the identity with the measured interval: ``consistent``, ``under`` (it predicts less than was
    measured) or ``over``.
    """

    naive: float
    mechanistic: float
    measured: float
    label: str


def amortization(
    *,
    off_tok_s: float,
    off_lever_tok_s: float,
    spec_tok_s: float,
    spec_lever_tok_s: float,
    acceptance_length: float,
    measured_interval: tuple[float, float],
) -> Amortization:
    """Compare three accounts of what a lever that shortens every step is worth once drafts are accepted.

    Rates are tokens per second of one stream, all four from one harness and one shape. The rule of thumb divides the
    uplift without speculation by the acceptance length; it is the special case "speculation gave no speed-up". The
    identity: the lever saves S milliseconds per step, so the uplift is S / (T - S) with T the speculative step.

    Raises:
        ValueError: the saving is as long as the step itself.
    """
    saving = step_ms(1.0, off_tok_s) - step_ms(1.0, off_lever_tok_s)
    step = step_ms(acceptance_length, spec_tok_s)
    if saving >= step:
        raise ValueError(f"a saving of {saving:.1f} ms cannot come out of a step of {step:.1f} ms")
    mechanistic = saving / (step - saving)
    low, high = measured_interval
    label = "consistent" if low <= mechanistic <= high else "under" if mechanistic < low else "over"
    return Amortization(
        naive=(off_lever_tok_s / off_tok_s - 1) / acceptance_length,
        mechanistic=mechanistic,
        measured=spec_lever_tok_s / spec_tok_s - 1,
        label=label,
    )


def experts_read(experts: int, active: int, positions: int) -> float:
    """Return the expected number of different experts that ``positions`` tokens route to, routing independently."""
    return experts * (1 - (1 - active / experts) ** positions)


def amplification_sentence(experts: int, active: int, k: int, table_in_host_memory: bool) -> str:
    """Say what verifying k drafts costs a sparse model at one request at a time, beside what it saves."""
    positions = k + 1
    read = experts_read(experts, active, positions)
    text = (
        f"Verifying {k} draft{'s' if k > 1 else ''} routes {positions} positions to about {read:.0f} of {experts} "
        f"experts instead of {active}: {read / active:.1f} times the expert weights per step when routes are "
        "independent (an upper bound; neighbouring tokens share experts)"
    )
    if table_in_host_memory:
        text += f", and {positions} times the rows fetched over PCIe from the table in host memory"
    return text + "."
