"""Raw directories of campaigns that never ran: exact times and counters, to show every rule at its edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from seatfleet.campaign.definition import Definition, load_definition
from seatfleet.campaign.load import CellRun, Request
from seatfleet.campaign.parity import digest
from seatfleet.campaign.rawdata import RawCampaign, pack
from seatfleet.campaign.schedule import Slot, make_schedule, rep_order
from seatfleet.campaign.telemetry import COLUMNS

MS = 1_000_000
MTP = {"method": "mtp", "num_speculative_tokens": 2}
WRITTEN: dict[str, Any] = {
    "seat": "flash-next",
    "question": "Does MTP make it faster?",
    "studied_keys": ["speculative-config"],
    "arms": {
        "off": {},
        "k1": {"speculative-config": {**MTP, "num_speculative_tokens": 1}},
        "k2": {"speculative-config": MTP},
        "k3": {"speculative-config": {**MTP, "num_speculative_tokens": 3}},
    },
    "shapes": ["count", "tool"],
    "concurrency": [1, 4],
    "primary": {"shapes": ["tool"], "concurrency": [1, 4]},
    "requests": 4,
    "reps": 1,
}
#: Small deterministic differences between boots and repetitions, as a factor's logarithm.
WOBBLE = (0.0, 0.004, -0.004, 0.002, -0.002, 0.003, -0.003, 0.001, -0.001, 0.0, 0.002, -0.003, 0.004)
Key = tuple[str, int]


@dataclass
class World:
    """What the machine is like. ``speed`` is a factor on the arm's step rate; hooks change one boot or one cell."""

    speed: dict[str, float] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    steps_per_s: float = 30.0
    scaling: float = 0.8
    wobble: float = 1.0
    factor: Callable[[Slot, Key], float] = lambda slot, key: 1.0
    boot: Callable[[Slot, dict[str, Any]], None] = lambda slot, info: None
    requests: Callable[[Slot, Key, list[Request]], list[Request]] = lambda slot, key, requests: requests
    counters: Callable[[Slot, Key, dict[str, float]], None] = lambda slot, key, counters: None
    telemetry: Callable[[Slot], list[str]] = lambda slot: []
    log: Callable[[Slot], list[str]] = lambda slot: ["all well"]
    planted_share: float = 1.0
    tokens: dict[str, int] = field(default_factory=dict)


def page(counters: dict[str, float], k: int, start: float) -> str:
    lines = [f"process_start_time_seconds {start}"]
    for name in (
        "request_success",
        "generation_tokens",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
    ):
        lines.append(f'vllm:{name}_total{{engine="0"}} {counters.get(name, 0.0)}')
    if k:
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            lines.append(f'vllm:spec_decode_num_{name}_total{{engine="0"}} {counters.get(name, 0.0)}')
        for i in range(k):
            name = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}}'
            lines.append(f"{name} {counters.get(f'pos{i}', 0.0)}")
    return "\n".join(lines) + "\n"


def stream(start_ns: int, step_ns: int, ttft_ns: int, tokens: int, per_step: int, name: str) -> Request:
    chunks = [(start_ns + ttft_ns, 1, "content")]
    made = 1
    while made < tokens:
        count = min(per_step, tokens - made)
        made += count
        chunks.append((chunks[-1][0] + step_ns, count, "content"))
    return Request(
        req_id=name, prompt_id=name, prompt_sha256=f"sha-{name}", cache_salt=f"{start_ns}-{name}", streaming=True,
        planted_delay_ns=0, t_send_ns=start_ns, t_headers_ns=start_ns, t_first_delta_ns=chunks[0][0],
        first_delta_kind="content", t_last_ns=chunks[-1][0], chunks=tuple(chunks), prompt_tokens=50,
        completion_tokens=tokens, cached_tokens=0, finish_reason="length", http_status=200, text_sha256="t",
    )  # fmt: skip


def simulate(world: World, definition: Definition, slot: Slot, rep: int, key: Key) -> list[Request]:
    """Streams of one cell: ``c`` workers, each with its own timeline."""
    arm = definition.arm(slot.arm)
    shape, c = key
    noise = 1 + world.wobble * (WOBBLE[slot.index] + WOBBLE[(rep + slot.index + c) % len(WOBBLE)] / 4)
    rate = (
        world.steps_per_s * world.speed.get(slot.arm, 1.0) * noise * world.factor(slot, key) * c ** (world.scaling - 1)
    )
    per_step = world.accepted.get(slot.arm, arm.draft_tokens) + 1
    step_ns, clock = int(1e9 / rate), [0] * c
    found = []
    for i in range(definition.requests_of(shape, c)):
        request = stream(clock[i % c], step_ns, 40 * MS, world.tokens.get(slot.arm, 25), per_step, f"{shape}-{i}")
        clock[i % c] = (request.t_last_ns or 0) + MS
        found.append(request)
    return found


def count(counters: dict[str, float], requests: list[Request], k: int, accepted: int) -> None:
    for request in requests:
        counters["request_success"] = counters.get("request_success", 0.0) + 1
        counters["generation_tokens"] = counters.get("generation_tokens", 0.0) + (request.completion_tokens or 0)
        counters["prefix_cache_queries"] = counters.get("prefix_cache_queries", 0.0) + 50
        steps = len(request.chunks) - 1
        for name, value in (("drafts", steps), ("draft_tokens", k * steps), ("accepted_tokens", accepted * steps)):
            counters[name] = counters.get(name, 0.0) + value
        for i in range(accepted):
            counters[f"pos{i}"] = counters.get(f"pos{i}", 0.0) + steps


def make_raw(path: Path, world: World | None = None, **changes: Any) -> RawCampaign:
    """Write the raw directory of a whole campaign."""
    world = world or World()
    written = {**WRITTEN, **changes}
    definition = load_definition(written, name="mtp", where="test")
    slots = make_schedule(definition)
    manifest = {
        "campaign_id": path.name,
        "campaign": "mtp",
        "created_utc": "2026-03-01T00:00:00+00:00",
        "host": "fv-ml1",
        "definition": written,
        "source": "vllm.yaml sha256:0",
        "identity": {},
        "overrides": {},
        "max_num_seqs": 8,
        "client": {"sha256": "c" * 64},
        "gaps": [],
        "shapes": {use.name: {"sha256": "s", "prompts": 24} for use in definition.shapes},
    }
    raw = RawCampaign.create(path, manifest, [slot.arm for slot in slots])
    with patch("os.fsync"):
        for slot in slots:
            _boot(raw, world, definition, slot)
        raw.seal()
    return raw


def _boot(raw: RawCampaign, world: World, definition: Definition, slot: Slot) -> None:
    arm = definition.arm(slot.arm)
    accepted = world.accepted.get(slot.arm, arm.draft_tokens)
    writer = raw.begin(slot.directory)
    counters: dict[str, float] = {}
    before = writer.scrape(page(counters, arm.draft_tokens, slot.index))
    order = 0
    plan = [
        (rep, key, "stream")
        for rep in range(definition.reps)
        for key in rep_order("c", slot.index, rep, definition.cells())
    ]
    if slot.arm == definition.control and definition.planted_delay:
        key = (definition.primary.shapes[0], 1)
        plan += [(0, key, "beside"), (0, key, "planted"), (1, key, "beside")]
    for rep, key, kind in plan:
        requests = simulate(world, definition, slot, rep, key)
        if kind == "planted":
            requests = _delayed(requests, definition.planted_delay or 0.0, world.planted_share)
        requests = world.requests(slot, key, requests)
        count(counters, requests, arm.draft_tokens, accepted)
        world.counters(slot, key, counters)
        after = writer.scrape(page(counters, arm.draft_tokens, counters.get("start", slot.index)))
        header = {"rep": rep, "shape": key[0], "concurrency": key[1], "kind": kind, "order_index": order}
        writer.cell(CellRun(0, 1, "t", tuple(requests)), {**header, "prom_before": before, "prom_after": after})
        before, order = after, order + 1
    info: dict[str, Any] = {
        "slot": slot.index, "arm": slot.arm, "occurrence": slot.occurrence, "extra": False, "block": 0,
        "started_utc": f"2026-03-01T0{slot.index % 10}:00:00+00:00", "host_boot_id": "b",
        "argv_hash": digest(dict(arm.values)), "base_hash": "base", "settings": {}, "env": {}, "changes": {},
        "provenance": {"kernel": "6.1", "gpus": []}, "client_sha256": "c" * 64, "sampling": dict(definition.sampling),
        "shapes": {use.name: "s" for use in definition.shapes},
        "resolved": {
            "block_size": str(16 + arm.draft_tokens), "kv_cache_size_tokens": str(16000 - 800 * arm.draft_tokens),
        },
        "ready_s": 30.0, "warm_up_s": [9.0, 5.0, 5.0],
        "boot_identity": str(slot.index), "cooldown": {}, "load_average": 0.1,
        "compile_cache": {"policy": "persist", "root": f"/cache/{slot.arm}"},
        "canary_before": {"problems": [], "warnings": []}, "canary_after": {"problems": [], "warnings": []},
        "log_kept": True, "cost": {"rep_s": 30.0, "boot_s": 300.0},
    }  # fmt: skip
    world.boot(slot, info)
    rows = [",".join(COLUMNS), *world.telemetry(slot)]
    writer.file("telemetry.csv", ("\n".join(rows) + "\n").encode())

    writer.file("log_after_ready.txt.gz", pack("\n".join(world.log(slot)).encode()))
    raw.complete(writer, info, raw.progress(), slot, 0.0)


def _delayed(requests: list[Request], share: float, seen: float) -> list[Request]:
    """Every request ``share`` slower, of which the times show the fraction ``seen``."""
    clock, found = 0, []
    for request in requests:
        delay = int(share * ((request.t_last_ns or 0) - request.t_send_ns))
        shift = clock - request.t_send_ns + int(seen * delay)
        chunks = tuple((t + shift, n, kind) for t, n, kind in request.chunks)
        moved = replace(
            request,
            t_send_ns=clock,
            t_first_delta_ns=chunks[0][0],
            t_last_ns=chunks[-1][0],
            chunks=chunks,
            planted_delay_ns=delay,
        )
        clock = chunks[-1][0] + MS
        found.append(moved)
    return found
