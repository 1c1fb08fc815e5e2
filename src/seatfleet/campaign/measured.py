"""All boots of a campaign with their metrics, what the rules disqualified, and the questions that may be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from . import controls, observe, telemetry
from .controls import BootView, Voids
from .definition import Arm, Definition, load_definition
from .observe import Cell
from .rawdata import RawCampaign
from .stats import Boot
from .verdicts import Question

#: Metrics that get a contrast; the declared one is primary, the others are exploratory.
STREAM_METRICS = ("aggregate_output_tok_s", "steady_output_tok_s", "decode_only_tok_s", "ttft_ms", "tpot_ms")
END_TO_END_METRIC = "end_to_end_tok_s"
LENGTH_CONFOUNDED = 0.05
CellKey = tuple[str, int]


@dataclass(frozen=True)
class Measured:
    """All of a campaign's boots with their metrics, and what the rules disqualified; ``left`` are still to be made."""

    definition: Definition
    manifest: Mapping[str, Any]
    infos: Mapping[str, Mapping[str, Any]]
    boots: tuple[BootView, ...]
    voids: Voids
    left: int = 0

    @property
    def valid(self) -> list[BootView]:
        """Boots that count and are compared: positive controls are not."""
        return [b for b in self.voids.valid(self.boots) if b.arm.id not in self.definition.positive_controls]

    def cell_keys(self) -> list[CellKey]:
        """All streamed cells, in the order of the definition."""
        return list(self.definition.cells())


def load(raw: RawCampaign) -> Measured:
    """Read all complete boots and apply the void rules.

    Raises:
        RawError, ProblemsError: the directory is damaged, or its definition is not one.
    """
    manifest = raw.manifest()
    definition = load_definition(manifest["definition"], name=manifest["campaign"], where="campaign.json")
    infos = {name: raw.boot(name) for name in raw.boots()}
    definition = with_live_speculation(definition, infos)
    quiet = {arm.id for arm in definition.arms if is_control(definition, arm.id)}
    boots = tuple(
        BootView(
            name=name,
            slot=info["slot"],
            arm=definition.arm(info["arm"]),
            control=info["arm"] in quiet,
            cells=tuple(raw.cells(name)),
            block=info["block"],
            log=tuple(raw.text(name, "log_after_ready.txt.gz").splitlines()) if info["log_kept"] else None,
            canary=tuple(info["canary_before"]["problems"] + info["canary_after"]["problems"]),
            telemetry=telemetry.summarize(raw.text(name, "telemetry.csv")),
            cache_root=info["compile_cache"]["root"],
            warm_up_s=tuple(info.get("warm_up_s", ())),
        )
        for name, info in infos.items()
    )
    voids = controls.apply_rules(boots, definition, manifest.get("max_num_seqs"))
    return Measured(definition, manifest, infos, boots, voids, len(raw.progress().schedule) - len(boots))


def with_live_speculation(definition: Definition, infos: Mapping[str, Mapping[str, Any]]) -> Definition:
    """Return the definition with the speculation that all arms inherit from a live seat that is asked something else.

    Without it the drafts of every arm, the control's too, would look like those of an impostor.
    """
    key = "speculative-config"
    live = next((info["settings"].get(key) for info in infos.values()), None)
    if live is None or key in definition.studied_keys:
        return definition
    return replace(definition, arms=tuple(Arm(arm.id, {**arm.values, key: live}) for arm in definition.arms))


def is_control(definition: Definition, arm: str) -> bool:
    """Tell which group of the variance an arm belongs to.

    Without speculation or with it, where speculation is what differs; else the control against all others.
    """
    drafts = {one.id: one.draft_tokens for one in definition.arms}
    if len({count > 0 for count in drafts.values()}) > 1:
        return (drafts[arm] > 0) == (drafts[definition.control] > 0)
    return arm == definition.control


def repetitions(boot: BootView, key: CellKey, metric: str, kind: str = "stream") -> list[float]:
    """Return a boot's values of one metric in one cell, one per repetition."""
    return [
        value
        for cell in boot.cells
        if cell.key == key and cell.kind == kind and (value := cell.metrics.get(metric)) is not None
    ]


def boots_of(measured: Measured, key: CellKey, metric: str) -> tuple[Boot, ...]:
    """Return the boots of one cell on the log scale, in the order they were measured."""
    return tuple(value for _, value in values_of(measured, key, metric))


def values_of(measured: Measured, key: CellKey, metric: str) -> list[tuple[BootView, Boot]]:
    """Return the boots that have a value in a cell, beside it; a metric may be missing in one of them."""
    kind = "end_to_end" if metric == END_TO_END_METRIC else "stream"
    return [
        (boot, Boot(boot.arm.id, observe.boot_value(reps), boot.control, boot.block))
        for boot in measured.valid
        if (reps := repetitions(boot, key, metric, kind))
    ]


def questions(measured: Measured) -> list[Question]:
    """Return every contrast of every metric in every cell, the primary family marked."""
    definition, primary = measured.definition, measured.definition.primary
    metrics = [(metric, key) for metric in STREAM_METRICS for key in measured.cell_keys()]
    if definition.end_to_end:
        metrics += [(END_TO_END_METRIC, (use.name, 1)) for use in definition.shapes]
    asked = []
    for metric, key in metrics:
        boots = boots_of(measured, key, metric)
        for contrast in definition.contrasts:
            arms = [arm for arm, weight in contrast.weights.items() if weight]
            void = next((f"arm {arm}: {measured.voids.arms[arm]}" for arm in arms if arm in measured.voids.arms), None)
            is_primary = metric == primary.metric and key[0] in primary.shapes and key[1] in primary.concurrency
            notes = length_notes(measured, arms, key)
            asked.append(Question(contrast.id, contrast.weights, metric, *key, is_primary, boots, void, notes))
    return asked


def length_notes(measured: Measured, arms: Sequence[str], key: CellKey) -> tuple[str, ...]:
    """Return a note when the arms' answers differ in mean length by more than 5 %: natural ends are not forced."""
    lengths = {
        arm: fmean(tokens)
        for arm in arms
        if (tokens := [r.completion_tokens or 0 for c in cells_of(measured, arm, key) for r in c.completed])
    }
    if len(lengths) < 2 or max(lengths.values()) <= (1 + LENGTH_CONFOUNDED) * min(lengths.values()):
        return ()
    text = ", ".join(f"{arm} {length:.0f}" for arm, length in lengths.items())
    return (f"length_confounded: mean output tokens {text}",)


def cells_of(measured: Measured, arm: str, key: CellKey | None = None, kind: str = "stream") -> list[Cell]:
    """Return the streamed cells of an arm, boots with an accident left out."""
    return [
        cell
        for boot in measured.boots
        if boot.arm.id == arm and boot.name not in measured.voids.boots
        for cell in boot.cells
        if cell.kind == kind and (key is None or cell.key == key)
    ]
