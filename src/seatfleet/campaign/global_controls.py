"""Global controls GC1 to GC4 and the positive controls: one failure and the campaign has no verdict."""

from __future__ import annotations

import math
from collections import Counter
from statistics import fmean, median

from . import observe, parity, stats
from .controls import ACCEPTANCE_RULES, BootView, Check, Status
from .measured import CellKey, Measured, boots_of, values_of
from .stats import NotEstimable


def global_checks(measured: Measured) -> list[Check]:
    """Return GC1 to GC4 and the positive controls; one FAIL and there is no verdict."""
    return [
        every_boot_was_made(measured),
        null_control(measured),
        drift_control(measured),
        *uniform_controls(measured),
        planted_delay_control(measured),
        *broken_arm_controls(measured),
        control_is_valid(measured),
    ]


def every_boot_was_made(measured: Measured) -> Check:
    """GC5: the order that was fixed beforehand was measured to its end; who may stop early stops when it suits."""
    detail = f"{measured.left} of {measured.left + len(measured.boots)} boots are still to be measured"
    status = Status.FAIL if measured.left else Status.PASS
    return Check("GC5", "every planned boot was measured", "campaign", status, detail if measured.left else "")


def _primary_cells(measured: Measured) -> list[CellKey]:
    primary = measured.definition.primary
    return [(shape, c) for shape in primary.shapes for c in primary.concurrency]


def null_control(measured: Measured) -> Check:
    """GC1: no control boot is unlike the others in a primary cell.

    It fails when the distance is certain (Holm over boots and cells) and exceeds the margin that the campaign itself
    calls irrelevant.
    """
    title = "control boots agree with each other"
    found: list[tuple[stats.Distance, str]] = []
    unknown: list[str] = []
    for key in _primary_cells(measured):
        values = values_of(measured, key, measured.definition.primary.metric)
        names = [boot.name for boot, value in values if value.control]
        try:
            distances = stats.outlying_boots([value for _, value in values])
        except NotEstimable as error:
            unknown.append(f"{_cell(key)}: {error}")
            continue
        found += [(distance, f"{name} in {_cell(key)}") for distance, name in zip(distances, names, strict=True)]
    adjusted = stats.holm([distance.p for distance, _ in found])
    margin = math.log1p(measured.definition.margin)
    odd = [
        f"{name}: {math.expm1(distance.difference):+.1%} from the others (p {p:.2g})"
        for p, (distance, name) in zip(adjusted, found, strict=True)
        if p < 0.05 and abs(distance.difference) > margin
    ]
    most = max((abs(distance.difference) for distance, _ in found), default=0.0)
    return _of_cells("GC1", title, odd, unknown, [f"at most {math.expm1(most):.1%} apart"])


def _of_cells(rule: str, title: str, bad: list[str], unknown: list[str], seen: list[str]) -> Check:
    """Sum up a control of several cells: one that cannot be judged hides no failure, and is never a pass."""
    if bad or not unknown:
        return Check(rule, title, "campaign", Status.FAIL if bad else Status.PASS, "; ".join(bad or seen))
    reasons = dict.fromkeys(text.partition(": ")[2] for text in unknown)
    return Check(rule, title, "campaign", Status.NOT_CHECKED, "; ".join(unknown if len(reasons) > 1 else reasons))


def drift_control(measured: Measured) -> Check:
    """GC2: no drift over the campaign that matters.

    It fails when the slope is certain (over the primary cells together), exceeds the floor that would hold without it,
    and exceeds the margin that the campaign itself calls irrelevant. A linear drift cancels in the schedule; one this
    large is a sign of something that need not be linear.
    """
    title = "no drift over the campaign"
    cells = _primary_cells(measured)
    bad: list[str] = []
    seen: list[str] = []
    unknown: list[str] = []
    for key in cells:
        values = values_of(measured, key, measured.definition.primary.metric)
        counts = Counter(value.arm for _, value in values)
        control = counts.get(measured.definition.control, 0)
        positions = [float(boot.slot) for boot, _ in values]
        try:
            if not control:
                raise NotEstimable("no control boot")
            found = stats.drift([value for _, value in values], positions, control, min(counts.values()))
        except NotEstimable as error:
            unknown.append(f"{_cell(key)}: {error}")
            continue
        text = f"{_cell(key)}: {math.expm1(found.total):+.1%} over the campaign"
        seen.append(text)
        limit = max(found.floor, math.log1p(measured.definition.margin))
        if found.p < 0.05 / len(cells) and abs(found.total) > limit:
            bad.append(f"{text} (p {found.p:.2g}, limit {math.expm1(limit):.1%})")
    return _of_cells("GC2", title, bad, unknown, seen)


_UNIFORM = (
    ("GC3", "one harness: client", "client_sha256"),
    ("GC3", "one harness: sampling", "sampling"),
    ("GC3", "one harness: texts", "shapes"),
    ("GC3", "arms differ in the studied keys only", "base_hash"),
    ("GC4", "one machine: GPU, driver, kernel, release, model", "provenance"),
)


def uniform_controls(measured: Measured) -> list[Check]:
    """GC3 and GC4: what must be the same in every boot is."""
    checks = []
    for rule, title, key in _UNIFORM:
        values: dict[str, list[str]] = {}
        for name, info in measured.infos.items():
            values.setdefault(parity.canonical_json(info[key]), []).append(name)
        detail = (
            "" if len(values) == 1 else "; ".join(f"{', '.join(names)}: {text[:120]}" for text, names in values.items())
        )
        checks.append(Check(rule, title, "campaign", Status.PASS if len(values) <= 1 else Status.FAIL, detail))
    prompts: dict[tuple[str, int, str], set[tuple[str, ...]]] = {}
    for boot in measured.boots:
        for cell, hashes in observe.prompt_hashes(boot.cells).items():
            prompts.setdefault(cell, set()).add(hashes)
    mixed = sorted(f"{shape} c={c} {kind}" for (shape, c, kind), sets in prompts.items() if len(sets) > 1)
    status = Status.FAIL if mixed else Status.PASS
    checks.append(Check("GC3", "the same prompts in every cell of every boot", "campaign", status, ", ".join(mixed)))
    return checks


def planted_delay_control(measured: Measured) -> Check:
    """PC2: a slowness of known size, planted by the client in the control boots, is seen at its size."""
    title = "a planted delay is seen"
    if measured.definition.planted_delay is None:
        return Check("PC2", title, "campaign", Status.NOT_CHECKED, "switched off in the definition")
    pairs = [pair for boot in measured.valid if boot.control and (pair := _planted_pair(boot)) is not None]
    if not pairs:
        return Check("PC2", title, "campaign", Status.NOT_CHECKED, "no pair of cells with and without it")
    seen, expected = fmean(pair[0] for pair in pairs), fmean(pair[1] for pair in pairs)
    detail = f"expected {math.expm1(expected):+.1%}, seen {math.expm1(seen):+.1%} in {len(pairs)} boots"
    visible = seen <= expected / 2 and abs(seen - expected) <= max(abs(expected) / 2, _noise(measured))
    return Check("PC2", title, "campaign", Status.PASS if visible else Status.FAIL, detail)


def _planted_pair(boot: BootView) -> tuple[float, float] | None:
    """Return (seen, expected) change of ln throughput by the planted delay of one boot, against the cells beside it."""
    planted = next((cell for cell in boot.cells if cell.kind == "planted"), None)
    if planted is None or not planted.completed:
        return None
    plain = [c for c in boot.cells if c.kind == "beside" and c.key == planted.key and c.completed]
    rates = [rate for c in plain if (rate := observe.aggregate_output_tok_s(c.completed))]
    slow = observe.aggregate_output_tok_s(planted.completed)
    if not rates or not slow:
        return None
    busy = median(sum((r.t_last_ns or 0) - r.t_send_ns for r in c.completed) / len(c.completed) for c in plain)
    delay = fmean(request.planted_delay_ns for request in planted.completed)
    return math.log(slow / median(rates)), -math.log1p(delay / busy)


def _noise(measured: Measured) -> float:
    key = _primary_cells(measured)[0]
    boots = boots_of(measured, key, measured.definition.primary.metric)
    try:
        return max(stats.estimate(boots, c.weights).floor for c in measured.definition.contrasts)
    except NotEstimable:
        return 0.0


def broken_arm_controls(measured: Measured) -> list[Check]:
    """PC3: arms that are broken on purpose were recognised by their acceptance, not by some other accident."""
    checks = []
    for arm in measured.definition.positive_controls:
        names = {boot.name for boot in measured.boots if boot.arm.id == arm}
        found = [
            check
            for check in measured.voids.checks
            if check.rule in ACCEPTANCE_RULES and check.status is Status.VOID and check.subject in names
        ]
        status = Status.PASS if found else Status.FAIL
        detail = (
            f"void, as it must be: {found[0].detail}" if found else "it was built to be void and was not recognised"
        )
        checks.append(Check("PC3", "a broken drafter is recognised", arm, status, detail))
    return checks


def control_is_valid(measured: Measured) -> Check:
    """PC1: without a valid control, booted twice, there is nothing to compare with."""
    control = measured.definition.control
    reason = measured.voids.arms.get(control)
    count = sum(boot.arm.id == control for boot in measured.valid)
    if reason is None and count < 2:
        reason = f"{count} valid boots of at least 2"
    return Check("PC1", "the control arm is valid", control, Status.FAIL if reason else Status.PASS, reason or "")


def _cell(key: CellKey) -> str:
    return f"{key[0]} c={key[1]}"
