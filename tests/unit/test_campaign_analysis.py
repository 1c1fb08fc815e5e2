"""What the analysis says about campaigns whose truth is known, rule by rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_raw import MTP, WRITTEN, World, make_raw, page

from seatfleet.campaign.analysis import analyse
from seatfleet.campaign.controls import BOOT_RULES, BootView, Check, Context, Status, the_control_does_not_speculate
from seatfleet.campaign.definition import Arm, load_definition
from seatfleet.campaign.global_controls import _of_cells
from seatfleet.campaign.load import Request
from seatfleet.campaign.observe import Cell, read_counters
from seatfleet.core.health.metrics import parse

#: Step rate of an arm relative to the control; k drafts make steps longer.
SPEED = {"k1": 0.62, "k2": 0.40, "k3": 0.20}


def result_of(path: Path, world: World | None = None, **changes: Any) -> dict[str, Any]:
    result = analyse(make_raw(path / "c", world or World(speed=SPEED), **changes))
    json.dumps(result, allow_nan=False)
    return result


def verdicts(
    result: dict[str, Any], metric: str = "aggregate_output_tok_s", shape: str = "tool"
) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for f in result["findings"]:
        if f["metric"] == metric and f["shape"] == shape:
            found.setdefault(f["contrast"], set()).add(f["verdict"])
    return found


def check(result: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [c for c in result["checks"] if c["rule"] == rule]


def test_a_campaign_without_accidents(tmp_path: Path):
    """k1: 2 tokens per step at 0.62 of the rate; k2: 3 at 0.40; k3: 4 at 0.20. So +20 %, +17 %, -18 % on decode."""
    result = result_of(tmp_path)
    assert result["no_verdict"] == [] and result["void_arms"] == {} and result["void_boots"] == {}
    assert verdicts(result) == {"k1-vs-off": {"WIN"}, "k2-vs-off": {"WIN"}, "k3-vs-off": {"LOSS"}}
    family = [f for f in result["findings"] if f["family"] == "primary"]
    assert len(family) == 6 and {f["metric"] for f in family} == {"aggregate_output_tok_s"}
    k1 = next(
        f
        for f in result["findings"]
        if (f["contrast"], f["metric"], f["concurrency"]) == ("k1-vs-off", "decode_only_tok_s", 1)
    )
    assert k1["effect"] == pytest.approx(0.24, abs=0.02) and k1["interval_95"][0] < 0.24 < k1["interval_95"][1]
    steps = {s["arm"]: s for s in result["steps"] if (s["shape"], s["concurrency"]) == ("tool", 1)}
    assert steps["k1"]["break_even"] == pytest.approx(1 / 0.62, rel=0.02) and steps["k1"]["acceptance_length"] == 2.0
    assert steps["k3"]["break_even"] == pytest.approx(5.0, rel=0.02) and steps["k3"]["acceptance_length"] == 4.0
    assert "k1 against off: better at tool c=1" in result["answer"] and "k3 against off: worse" in result["answer"]
    assert {c["status"] for rule in ("GC1", "GC2", "GC3", "GC4", "PC1", "PC2") for c in check(result, rule)} == {"pass"}


def test_nothing_but_noise_is_never_called_an_effect(tmp_path: Path):
    """Off against off: three arms that draft nothing and change nothing."""
    arms = {name: ({"max-num-seqs": i} if i else {}) for i, name in enumerate(("off", "a", "b", "c"))}
    result = result_of(tmp_path, World(), arms=arms, studied_keys=["max-num-seqs"])
    assert {v for found in verdicts(result).values() for v in found} <= {"EQUIVALENT", "CANNOT_RESOLVE"}


def test_cannot_resolve_states_its_floor_and_is_never_called_no_effect(tmp_path: Path):
    result = result_of(tmp_path, World(speed={"k1": 0.51, "k2": 0.34, "k3": 0.254}, wobble=8.0))
    assert "CANNOT_RESOLVE" in verdicts(result)["k1-vs-off"]
    found = next(f for f in result["findings"] if f["verdict"] == "CANNOT_RESOLVE")
    assert found["floor"] > 0.02 and f"{found['floor']:.1%}" in found["reason"]
    assert "not resolved" in result["answer"] and "no effect" not in json.dumps(result)


# --- rules that void --------------------------------------------------------------------------------------------------


def wrong_answers(slot: Any, info: dict[str, Any]) -> None:
    if slot.arm == "k2":
        info["canary_after"] = {"problems": ["canary.golden: differs"], "warnings": []}


def no_drafts(slot: Any, key: Any, counters: dict[str, float]) -> None:
    if slot.arm == "k2":
        counters.update(drafts=0.0, draft_tokens=0.0)


def out_of_memory(slot: Any) -> list[str]:
    hit = slot.directory == "02_k2_1"
    return ["OOM on device 0 while trying to allocate 488636416 bytes (free: 422117376)"] if hit else []


def shared_cache(slot: Any, info: dict[str, Any]) -> None:
    if slot.arm == "k2":
        info["compile_cache"] = {"policy": "persist", "root": "/cache/k1"}


def set_counter(name: str, value: float) -> Any:
    def change(slot: Any, key: Any, counters: dict[str, float]) -> None:
        if slot.arm == "k2" and slot.occurrence == 1:
            counters[name] = counters.get(name, 0.0) + value

    return change


def break_first(**changes: Any) -> Any:
    def change(slot: Any, key: Any, requests: list[Request]) -> list[Request]:
        hit = slot.arm == "k2" and slot.occurrence == 1
        return [replace(requests[0], **changes), *requests[1:]] if hit else requests

    return change


def mute_chunks(slot: Any, key: Any, requests: list[Request]) -> list[Request]:
    if slot.arm != "k2":
        return requests
    return [replace(r, chunks=tuple((t, 1, kind) for t, _, kind in r.chunks)) for r in requests]


def merged(rate: float, *arms: str) -> Any:
    """A server that sends some steps two at a time, in these arms."""

    def change(slot: Any, key: Any, requests: list[Request]) -> list[Request]:
        if slot.arm not in arms:
            return requests
        return [
            replace(r, chunks=tuple((t, None if n is None else round(n * rate), kind) for t, n, kind in r.chunks))
            for r in requests
        ]

    return change


def hot(slot: Any) -> list[str]:
    mask = "0x0000000000000040" if slot.directory == "02_k2_1" else "0x0000000000000000"
    return [f"{i},0,1000,2600,9000,60,,300,99,{mask},," for i in range(20)]


def slow_clock(slot: Any) -> list[str]:
    mhz = 2400 if slot.directory == "02_k2_1" else 2600
    return [f"{i},0,1000,{mhz},9000,60,,300,99,0x0000000000000000,," for i in range(20)]


ACCIDENTS = [
    ("V4", "boot", World(counters=set_counter("generation_tokens", -1e6))),
    ("V4", "boot", World(counters=set_counter("start", 77.0))),
    ("V5", "boot", World(counters=set_counter("request_success", 1.0))),
    ("V5", "boot", World(counters=set_counter("generation_tokens", 50.0))),
    ("V8", "boot", World(requests=break_first(http_status=500, error="HTTP 500"))),
    ("V8", "boot", World(requests=break_first(finish_reason=None))),
    ("V9", "boot", World(counters=set_counter("prefix_cache_hits", 10.0))),
    ("V10", "boot", World(telemetry=hot)),
    ("V10", "boot", World(telemetry=slow_clock)),
    ("V12", "boot", World(log=out_of_memory)),
    ("V1", "arm", World(accepted={"k2": 0}, counters=no_drafts)),
    ("V2", "arm", World(accepted={"k2": 0})),
    ("V2", "arm", World(accepted={"k2": 1})),
    ("V6", "arm", World(counters=set_counter("accepted_tokens", 40.0))),
    ("V6", "arm", World(counters=set_counter("draft_tokens", 1000.0))),
    ("V7", "arm", World(boot=wrong_answers)),
    ("V11", "arm", World(counters=set_counter("num_preemptions", 1.0))),
    ("V13", "arm", World(factor=lambda slot, key: 0.3 if slot.arm == "k2" and key[1] == 4 else 1.0)),
    ("V15", "arm", World(requests=mute_chunks)),
    ("V16", "arm", World(boot=shared_cache)),
]


@pytest.mark.parametrize(
    ("rule", "scope", "world"), ACCIDENTS, ids=[f"{rule}-{i}" for i, (rule, _, _) in enumerate(ACCIDENTS)]
)
def test_what_disqualifies_k2_and_only_k2(tmp_path: Path, rule: str, scope: str, world: World):
    result = result_of(tmp_path, replace(world, speed=SPEED))
    reasons = result["void_boots"].get("02_k2_1", "") if scope == "boot" else result["void_arms"].get("k2", "")
    assert f"{rule} " in reasons
    assert verdicts(result)["k2-vs-off"] == {"VOID"}
    assert set(result["void_arms"]) <= {"k2", *({"k1"} if rule == "V16" else set())}
    if rule != "V16":
        assert verdicts(result)["k1-vs-off"] == {"WIN"} and result["no_verdict"] == []


def test_flat_acceptance_on_prose_is_a_corruption_unless_declared(tmp_path: Path):
    changes = {"shapes": ["prose"], "primary": {"shapes": ["prose"], "concurrency": [1]}}
    assert "V3" in result_of(tmp_path / "a", **changes)["void_arms"]["k2"]
    bands = {arm: {"prose": k + 1.0} for arm, k in (("k1", 1), ("k2", 2), ("k3", 3))}
    assert result_of(tmp_path / "b", bands=bands, **changes)["void_arms"] == {}


def test_a_declared_band_decides(tmp_path: Path):
    result = result_of(tmp_path, World(speed=SPEED, accepted={"k3": 2}), bands={"k3": {"count": 2.5}})
    assert "k3" not in result["void_arms"]
    result = result_of(tmp_path / "b", World(speed=SPEED, accepted={"k3": 2}), bands={"k3": {"count": 3.5}})
    assert "V2" in result["void_arms"]["k3"]


def test_preemptions_everywhere_are_flagged_only(tmp_path: Path):
    world = World(speed=SPEED, counters=lambda slot, key, c: c.update(num_preemptions=c.get("num_preemptions", 0) + 1))
    result = result_of(tmp_path, world)
    assert result["void_arms"] == {} and {c["status"] for c in check(result, "V11")} == {"flag"}


def test_a_control_that_drafts_is_no_control():
    after = page({"drafts": 3.0, "draft_tokens": 3.0, "accepted_tokens": 0.0}, 1, 0)
    counters = read_counters(parse(page({}, 1, 0)), parse(after))
    boot = BootView("00_off_1", 0, Arm("off", {}), True, (Cell(0, "off", 0, "code", 1, "stream", 0, (), counters),))
    definition = load_definition(WRITTEN, name="mtp", where="t")
    assert the_control_does_not_speculate(boot, Context(definition)) == (Status.VOID, "3 drafts were made")


def test_without_telemetry_clocks_are_not_checked_and_never_passed(tmp_path: Path):
    assert {c["status"] for c in check(result_of(tmp_path), "V10")} == {"not checked"}


def test_steps_that_the_server_merges_void_nothing_where_that_can_be_told(tmp_path: Path):
    """Two steps of three tokens are six in one chunk, which no step has; two steps of two could be one of four."""
    proven = result_of(tmp_path / "a", World(speed=SPEED, requests=merged(2, "k2")))
    assert proven["void_arms"] == {} and {c["status"] for c in check(proven, "V15")} == {"pass"}
    low: dict[str, Any] = {"bands": {"k3": {"count": 1.5}}}
    world = World(speed=SPEED, accepted={"k3": 1}, requests=merged(2, "off", "k3"))
    told = result_of(tmp_path / "b", world, **low)
    assert told["void_arms"] == {} and {c["status"] for c in check(told, "V15")} == {"pass", "flag"}
    assert any("2.00 tokens per chunk in the control" in c["detail"] for c in check(told, "V15"))
    unexplained = result_of(tmp_path / "c", replace(world, requests=merged(2, "k3")), **low)
    assert "V15" in unexplained["void_arms"]["k3"]
    too_few = World(speed=SPEED, requests=lambda *a: mute_chunks(a[0], a[1], merged(2, "off")(*a)))
    assert "V15" in result_of(tmp_path / "d", too_few)["void_arms"]["k2"]


@pytest.mark.parametrize(
    ("passes", "status"),
    [([9.0, 8.9], "pass"), ([9.0, 7.0, 5.0, 4.0, 3.0], "flag"), ([5.0, 9.0], "pass"), ([], "not checked")],
)
def test_a_server_that_still_gets_faster_is_flagged(tmp_path: Path, passes: list[float], status: str):
    world = World(speed=SPEED, boot=lambda slot, info: info.update(warm_up_s=passes))
    result = result_of(tmp_path, world)
    assert {c["status"] for c in check(result, "V17")} == {status} and result["void_boots"] == {}


def test_a_drift_inside_a_boot_does_not_hide_the_planted_delay(tmp_path: Path):
    """Servers that have become a third faster since the repetitions: against these the delay would look like a gain."""

    def faster(slot: Any, key: Any, requests: list[Request]) -> list[Request]:
        late[slot.index] = late.get(slot.index, 0) + 1
        if slot.arm != "off" or late[slot.index] <= repetitions:
            return requests
        return [
            replace(r, t_send_ns=int(r.t_send_ns * 0.75), t_last_ns=int((r.t_last_ns or 0) * 0.75)) for r in requests
        ]

    definition = load_definition(WRITTEN, name="mtp", where="t")
    late: dict[int, int] = {}
    repetitions = definition.reps * len(definition.cells())
    result = result_of(tmp_path, World(speed=SPEED, requests=faster))
    assert {c["status"] for c in check(result, "PC2")} == {"pass"}, check(result, "PC2")


def test_every_rule_of_the_table_was_seen_to_fire():
    fired = {rule for rule, _, _ in ACCIDENTS} | {"V3", "V14", "V17"}
    assert {rule.id for rule in BOOT_RULES} <= fired


# --- global controls --------------------------------------------------------------------------------------------------


GLOBAL = [
    ("GC1", World(factor=lambda slot, key: 1.10 if slot.directory == "00_off_1" else 1.0)),
    ("GC2", World(factor=lambda slot, key: 1 + 0.02 * slot.index)),
    ("GC3", World(boot=lambda slot, info: info.update(client_sha256="d" * 64) if slot.index == 3 else None)),
    ("GC3", World(boot=lambda slot, info: info.update(sampling={"temperature": 1.0}) if slot.index == 3 else None)),
    ("GC3", World(boot=lambda slot, info: info.update(base_hash="other") if slot.index == 3 else None)),
    (
        "GC3",
        World(requests=lambda slot, key, rs: [replace(r, prompt_sha256="x") for r in rs] if slot.index == 3 else rs),
    ),
    (
        "GC4",
        World(
            boot=lambda slot, info: info.update(provenance={"kernel": "6.2", "gpus": []}) if slot.index == 3 else None
        ),
    ),
    (
        "PC1",
        World(
            requests=lambda slot, key, rs: (
                [replace(rs[0], http_status=500, error="x"), *rs[1:]] if slot.index in (0, 4) else rs
            )
        ),
    ),
    ("PC2", World(planted_share=0.0)),
    ("PC2", World(planted_share=3.0)),
]


@pytest.mark.parametrize(("rule", "world"), GLOBAL, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(GLOBAL)])
def test_a_failed_global_control_takes_every_verdict(tmp_path: Path, rule: str, world: World):
    result = result_of(tmp_path, replace(world, speed=SPEED))
    assert any(text.startswith(rule) for text in result["no_verdict"])
    assert {v for found in verdicts(result).values() for v in found} == {"NO_VERDICT"}
    assert result["answer"].startswith("No verdict: ")


def test_a_small_certain_drift_is_no_reason_to_refuse_a_verdict(tmp_path: Path):
    world = World(speed=SPEED, wobble=0.05, factor=lambda slot, key: 1 + 0.001 * slot.index)
    result = result_of(tmp_path, world)
    assert result["no_verdict"] == [] and "+0.8%" in check(result, "GC2")[0]["detail"]


# --- other parts ------------------------------------------------------------------------------------------------------


def test_answers_of_different_length_are_named(tmp_path: Path):
    result = result_of(tmp_path, World(speed=SPEED, tokens={"k2": 28}))
    notes = {f["contrast"]: f["notes"] for f in result["findings"] if f["shape"] == "tool"}
    assert notes["k1-vs-off"] == [] and "length_confounded" in notes["k2-vs-off"][0]


def test_a_dense_lever_is_compared_with_what_formulas_predict(tmp_path: Path):
    """Golden of the seed: 28.2 -> 36.0 tok/s without drafts, 53.7 -> 59.0 with acceptance length 6.4."""
    spec = {"method": "dflash", "num_speculative_tokens": 6}
    arms = {"off": {}, "off-l": {"quantization": "x"}, "k": {"speculative-config": spec}}
    arms["k-l"] = {"speculative-config": spec, "quantization": "x"}
    speed = {"off": 1.0, "off-l": 36.0 / 28.2, "k": 53.7 / 28.2 / 7, "k-l": 59.0 / 28.2 / 7}
    result = result_of(
        tmp_path,
        World(speed=speed, steps_per_s=28.2),
        arms=arms,
        studied_keys=["speculative-config", "quantization"],
        amortization={"off": "off", "off_lever": "off-l", "spec": "k", "spec_lever": "k-l"},
    )
    row = next(r for r in result["amortization"] if r["shape"] == "tool")
    assert row["measured"] == pytest.approx(0.099, abs=0.02)
    saving, step = 1000 / 28.2 - 1000 / 36.0, 1000 * 7 / 53.7
    assert row["mechanistic"] == pytest.approx(saving / (step - saving), abs=0.01)
    assert row["label"] in ("under", "consistent")


def test_an_interaction_of_two_factors(tmp_path: Path):
    """Two by two: does speculation gain more when the table is resident?"""
    arms = {"off": {}, "off-r": {"engram": False}, "k2": {"speculative-config": MTP}}
    arms["k2-r"] = {"speculative-config": MTP, "engram": False}
    weights = {"k2-r": 1, "off-r": -1, "k2": -1, "off": 1}
    result = result_of(
        tmp_path,
        World(speed={"off": 1.0, "off-r": 1.1, "k2": 0.4, "k2-r": 0.6}),
        arms=arms,
        studied_keys=["speculative-config", "engram"],
        contrasts={"interaction": weights, "k2-vs-off": {"k2": 1, "off": -1}},
    )
    found = next(f for f in result["findings"] if f["contrast"] == "interaction" and f["metric"] == "decode_only_tok_s")
    assert found["verdict"] == "WIN" and found["effect"] == pytest.approx(0.6 / 1.1 / 0.4 - 1, abs=0.03)


def test_expert_reads_are_explained_when_the_model_is_known(tmp_path: Path):
    facts = {"experts": 512, "active_experts": 10, "host_table": True}
    sentences = result_of(tmp_path, model_facts=facts)["sentences"]
    assert len(sentences) == 3 and "3.9 times the expert weights" in sentences[2]


def test_the_analysis_is_a_function_of_the_raw_data(tmp_path: Path):
    raw = make_raw(tmp_path / "c", World(speed=SPEED))
    assert analyse(raw) == analyse(raw)


def test_who_stops_early_has_no_verdict(tmp_path: Path):
    """Two boots per arm are there, and a WIN would be: whoever looks in between stops when it suits."""
    raw = make_raw(tmp_path / "c", World(speed=SPEED))
    raw.redo("08_off_3", "somebody used the seat")
    result = analyse(raw)
    assert result["no_verdict"][0].startswith("GC5") and "1 of 9 boots" in result["no_verdict"][0]
    assert result["campaign"]["redone"] == [{"boot": "08_off_3", "reason": "somebody used the seat"}]


def in_one_chunk(slot: Any, key: Any, requests: list[Request]) -> list[Request]:
    """Answers of one piece say nothing about decoding."""
    if slot.directory != "04_off_2" or key != ("tool", 4):
        return requests
    return [replace(r, chunks=((r.t_last_ns or 0, r.completion_tokens, "content"),)) for r in requests]


def test_global_controls_see_the_boots_that_have_the_metric(tmp_path: Path):
    """A boot without the declared metric must not switch off the controls over all the others."""
    primary = {"metric": "decode_only_tok_s", "shapes": ["tool"], "concurrency": [4]}
    world = World(
        speed=SPEED, requests=in_one_chunk, factor=lambda slot, key: 1.10 if slot.directory == "00_off_1" else 1.0
    )
    result = result_of(tmp_path, world, primary=primary)
    (null,), (drift,) = check(result, "GC1"), check(result, "GC2")
    assert null["status"] == "fail" and "00_off_1" in null["detail"] and "04_off_2" not in null["detail"]
    assert drift["status"] != "not checked"


def test_concurrency_is_judged_up_to_what_each_arm_serves_at_once(tmp_path: Path):
    arms = {"off": {"max-num-seqs": 8}, "a": {"max-num-seqs": 1}}
    flat = World(factor=lambda slot, key: 1.0 if slot.arm == "off" else 1 / key[1] ** 0.8)
    result = result_of(tmp_path, flat, arms=arms, studied_keys=["max-num-seqs"])
    assert {c["subject"]: c["status"] for c in check(result, "V13")} == {"off": "pass", "a": "not checked"}


def test_concurrency_is_judged_between_the_levels_of_each_shape(tmp_path: Path):
    """With levels 1 and 8 for tool, 1, 4 and 8 for count, nothing of tool was looked at."""
    flat = World(factor=lambda slot, key: 1 / key[1] if key[0] == "tool" and slot.arm == "k2" else 1.0)
    shapes = {"count": {}, "tool": {"concurrency": [1, 8]}}
    primary = {"shapes": ["tool"], "concurrency": [1, 8]}
    result = result_of(tmp_path, flat, shapes=shapes, concurrency=[1, 4, 8], primary=primary, requests=8)
    (found,) = (c for c in check(result, "V13") if c["subject"] == "k2")
    assert found["status"] == "void" and "tool: " in found["detail"] and "from c=1 to c=8" in found["detail"]


def test_a_cell_that_cannot_be_judged_hides_no_control_boot_that_is_odd():
    odd, unknown = ["00_off_1 in tool c=1: +10.0% from the others"], ["tool c=8: no control boot"]
    assert _of_cells("GC1", "t", odd, unknown, []).status is Status.FAIL
    assert _of_cells("GC1", "t", [], unknown, ["fine"]).status is Status.NOT_CHECKED
    assert _of_cells("GC1", "t", [], [], ["fine"]) == Check("GC1", "t", "campaign", Status.PASS, "fine")


def test_the_answer_says_that_a_control_failed_and_not_what_should_have_been(tmp_path: Path):
    result = result_of(tmp_path, World(speed=SPEED, accepted={"k2": 0}))
    assert "k2 against off: void at tool c=1 (V2 not met, counting is accepted as it should be)" in result["answer"]


def test_without_look_ups_the_prefix_cache_is_not_checked(tmp_path: Path):
    world = World(speed=SPEED, counters=lambda slot, key, counters: counters.update(prefix_cache_queries=0.0))
    assert {c["status"] for c in check(result_of(tmp_path, world), "V9")} == {"not checked"}


def test_fabricated_acceptance_is_claimed_nowhere(tmp_path: Path):
    result = result_of(tmp_path, synthetic=True)
    assert result["acceptance"] == [] and result["steps"] == [] and "fabricated" in result["sentences"][0]


def test_a_void_arm_explains_no_lever(tmp_path: Path):
    arms = {name: ({"speculative-config": {**MTP, "num_speculative_tokens": i}} if i else {})
            for i, name in enumerate(("off", "a", "b", "k2"))}  # fmt: skip
    four = dict(zip(("off", "off_lever", "spec", "spec_lever"), arms, strict=True))
    result = result_of(tmp_path, World(boot=wrong_answers), arms=arms, amortization=four)
    assert {row["refused"] for row in result["amortization"]} == {"void: k2"}


def test_the_design_counts_the_boots_of_the_control_arm(tmp_path: Path):
    """Other arms without speculation share its noise and not its mean: they make no comparison sharper."""
    arms = {"off": {}, "off-r": {"engram": False}, "k2": {"speculative-config": MTP}}
    result = result_of(tmp_path, World(), arms=arms, studied_keys=["speculative-config", "engram"])
    assert result["campaign"]["design"]["floor"] == pytest.approx(2.53, abs=0.01)
