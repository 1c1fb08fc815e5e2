"""What a campaign will take, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from statistics import fmean
from typing import Any

from .definition import Definition
from .parity import Deployment, derive_arm, refuse_base_mismatch, refuse_startup_plan, refuse_unproven
from .rawdata import RawCampaign
from .schedule import make_schedule

#: Floor and MDE80 in standard deviations between boots, for (control boots, boots per arm, arms): what scipy gives for
#: equal noise. Kept as a table because the hosts' toolbox, where plans may be made, has no scipy.
DESIGNS: Mapping[tuple[int, int, int], tuple[float, float]] = {
    (2, 1, 1): (15.56, 17.25),
    (2, 1, 2): (15.56, 17.25),
    (2, 1, 3): (15.56, 17.25),
    (2, 1, 4): (15.56, 17.25),
    (3, 2, 1): (2.91, 3.80),
    (3, 2, 2): (2.53, 3.39),
    (3, 2, 3): (2.35, 3.19),
    (3, 2, 4): (2.23, 3.06),
    (4, 3, 1): (1.96, 2.67),
    (4, 3, 3): (1.73, 2.40),
    (5, 4, 2): (1.49, 2.08),
    (5, 4, 4): (1.42, 2.00),
}


#: The cell with the planted delay and its two neighbours.
PLANTED_CELLS = 3
#: Prompts per shape of the harness without streams, each sent twice; one request at a time.
END_TO_END_PROMPTS = 5


def make_plan(
    definition: Definition, live: Deployment | None = None, *, ready_s: float = 120.0, request_s: float = 10.0
) -> dict[str, Any]:
    """Return order, cells, sensitivity and a rough duration of a campaign; with ``live`` each arm's changes.

    Raises:
        Refusal: arms would differ in more than the studied keys.
    """
    slots = make_schedule(definition)
    boots = {arm: sum(slot.arm == arm for slot in slots) for arm in definition.arm_ids}
    studied = [arm for arm in definition.studied_arms if arm not in definition.positive_controls]
    design = DESIGNS.get((boots[definition.control], boots[studied[0]], len(studied)))
    changes: dict[str, Any] = {}
    if live is not None:
        refuse_unproven(live)
        configs = {arm.id: derive_arm(live, arm, definition.studied_keys) for arm in definition.arms}
        refuse_base_mismatch(configs.values())
        refuse_startup_plan(configs.values())
        changes = {name: {k: list(pair) for k, pair in config.changes.items()} for name, config in configs.items()}
    cells = [
        {"shape": shape, "concurrency": c, "requests": definition.requests_of(shape, c)}
        for shape, c in definition.cells()
    ]
    return {
        "campaign": definition.name,
        "seat": definition.seat,
        "question": definition.question,
        "mode": definition.mode,
        "placement": "shadow" if definition.shadow else "in place",
        "order": [slot.arm for slot in slots],
        "warmup_boots": warmup_boots(definition),
        "arms": {arm.id: dict(arm.values) for arm in definition.arms},
        "changes": changes,
        "cells": cells,
        "reps": definition.reps,
        "primary": {
            "metric": definition.primary.metric,
            "cells": [f"{s} c={c}" for s in definition.primary.shapes for c in definition.primary.concurrency],
        },
        "floor_sd": design[0] if design else None,
        "mde80_sd": design[1] if design else None,
        "seconds": estimate_seconds(definition, ready_s, request_s),
        "assumed": {"ready_s": ready_s, "request_s": request_s},
    }


def warmup_boots(definition: Definition) -> int:
    """Return the boots that only warm caches; caches that are fresh in every boot cannot be warmed."""
    return len(definition.arms) if definition.warmup_boots and definition.compile_cache == "persist" else 0


def estimate_seconds(definition: Definition, ready_s: float, request_s: float) -> float:
    """Return a rough duration: every boot with its warm-up, and the waves of requests of every repetition."""
    waves = sum(definition.requests_of(shape, c) / c for shape, c in definition.cells())
    if definition.end_to_end:
        waves += 2 * END_TO_END_PROMPTS * len(definition.shapes)
    warm_up = 2 * len(definition.cells()) * request_s  # one pass more shows that the first was enough
    boots = len(make_schedule(definition))
    warmed = warmup_boots(definition)
    start = definition.idle_s + ready_s + warm_up
    rest = PLANTED_CELLS * planted_requests(definition) * request_s
    controls = sum(slot.arm == definition.control for slot in make_schedule(definition))
    return (boots + warmed) * start + boots * definition.reps * waves * request_s + controls * rest


def planted_requests(definition: Definition) -> int:
    """Return the requests, one at a time, of a cell with the planted delay; 0 where there is none."""
    key = (definition.primary.shapes[0], 1)
    measured = definition.planted_delay is not None and key in definition.cells()
    return definition.requests_of(*key) if measured else 0


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a plan for people."""
    lines = [
        f"campaign {plan['campaign']} of seat {plan['seat']} ({plan['mode']}, {plan['placement']})",
        f"question      {plan['question']}",
        f"boots         {' '.join(plan['order'])}"
        + (f"  (and {plan['warmup_boots']} unmeasured to warm caches)" if plan["warmup_boots"] else ""),
    ]
    for name, values in plan["arms"].items():
        text = ", ".join(f"{key}={value}" for key, value in values.items() if value is not None) or "as live, without"
        lines.append(f"arm {name:<10}{text}")
        lines += [
            f"              {key}: {old!r} -> {new!r}" for key, (old, new) in plan["changes"].get(name, {}).items()
        ]
    cells = ", ".join(f"{c['shape']} c={c['concurrency']} ({c['requests']})" for c in plan["cells"])
    lines += [
        f"cells         {cells}; {plan['reps']} repetitions",
        f"decided by    {plan['primary']['metric']} in {', '.join(plan['primary']['cells'])}",
    ]
    if plan["mode"] == "screen":
        lines.append("can see       a screen decides nothing; its floor is 11.0 times |off_A - off_B|")
    elif plan["floor_sd"] is not None:
        lines.append(
            f"can see       effects of {plan['floor_sd']:.2f} standard deviations between boots, "
            f"{plan['mde80_sd']:.2f} with 80 % chance: {plan['floor_sd']:.1f} % where boots differ by 1 %"
        )
    assumed = plan["assumed"]
    lines.append(
        f"takes about   {duration(plan['seconds'])}, if READY takes {assumed['ready_s']:.0f} s and a request "
        f"{assumed['request_s']:.0f} s"
    )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Return hours and minutes."""
    whole = timedelta(minutes=round(seconds / 60))
    hours, minutes = divmod(int(whole.total_seconds()) // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def progress(raw: RawCampaign, now: float | None = None) -> dict[str, Any]:
    """Return how far a campaign is and about how long the rest takes."""
    state = raw.progress()
    costs = [raw.boot(name)["cost"] for name in state.done]
    reps = int(raw.manifest()["definition"].get("reps", 3))
    each = fmean(cost["boot_s"] + reps * cost["rep_s"] for cost in costs) if costs else None
    left = len(state.schedule) - len(state.done)
    current = state.next_slot
    partial = next((raw.path / "boots").glob(".partial-*"), None) if raw.running else None
    began = partial.stat().st_ctime if partial else None
    return {
        "campaign": state.campaign_id,
        "done": list(state.done),
        "boots": len(state.schedule),
        "left": left,
        "next": current.directory if current else None,
        "running": raw.running,
        "running_s": round((now or time.time()) - began, 1) if began else None,
        "seconds_per_boot": each,
        "seconds_left": each * left if each is not None else None,
        "block": state.block + 1,
        "aborted": sorted(path.name for path in (raw.path / "aborted").iterdir()),
    }


def progress_text(found: Mapping[str, Any]) -> str:
    """Return the progress for people, one line."""
    if not found["left"]:
        return f"campaign {found['campaign']}: complete, {found['boots']} boots"
    eta = f", about {duration(found['seconds_left'])} left" if found["seconds_left"] is not None else ""
    aborted = f", {len(found['aborted'])} aborted" if found["aborted"] else ""
    state = "measuring" if found["running"] else "stopped before"
    done = f"{len(found['done'])} of {found['boots']} boots"
    return f"campaign {found['campaign']}: {done}, {state} {found['next']}{eta}{aborted}"
