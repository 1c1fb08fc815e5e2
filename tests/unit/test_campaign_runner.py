"""Whole campaigns against fake servers: order, accidents, resume, and what the analysis makes of them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_fake import LIVE, Behaviour, FakeSeat

from seatfleet.campaign import controls, host
from seatfleet.campaign import runner as runner_module
from seatfleet.campaign.analysis import analyse
from seatfleet.campaign.canary import Answers, check_answers
from seatfleet.campaign.definition import load_definition
from seatfleet.campaign.host import Calm
from seatfleet.campaign.load import CellRun, LoadClient
from seatfleet.campaign.parity import Refusal
from seatfleet.campaign.rawdata import BootWriter, RawCampaign, RawError
from seatfleet.campaign.runner import WARM_UP_PASSES, Interrupted, Runner
from seatfleet.campaign.seats import SeatFailed

MTP = {"method": "mtp", "num_speculative_tokens": 2}
WRITTEN: dict[str, Any] = {
    "seat": "s",
    "question": "Does it help?",
    "studied_keys": ["speculative-config"],
    "arms": {"off": {}, "k2": {"speculative-config": MTP}},
    "shapes": {"count": {"max_tokens": 12}},
    "concurrency": [1, 2],
    "primary": {"shapes": ["count"], "concurrency": [1, 2]},
    "requests": 2,
    "reps": 1,
    "mode": "screen",
    "warmup_boots": False,
    "idle_s": 0,
    "planted_delay": None,
}
OFF = Behaviour()
K2 = Behaviour(k=2, accepted=(2,))
BROKEN = Behaviour(k=2, accepted=(0,))


def no_questions(*_: object) -> Answers:
    return Answers()


def make(path: Path, seat: FakeSeat | None = None, answers: Any = no_questions, **changes: Any) -> Runner:
    written = {**WRITTEN, **changes}
    definition = load_definition(written, name="mtp", where="test")
    seat = seat or FakeSeat({"off": OFF, "k2": K2, "bad": BROKEN})
    said: list[str] = []
    return Runner(definition, written, seat, RawCampaign(path / "c"), say=said.append, answers=answers)


def finding(result: dict[str, Any], concurrency: int = 1, metric: str = "aggregate_output_tok_s") -> dict[str, Any]:
    return next(f for f in result["findings"] if f["metric"] == metric and f["concurrency"] == concurrency)


def status(result: dict[str, Any], rule: str, subject: str | None = None) -> set[str]:
    return {c["status"] for c in result["checks"] if c["rule"] == rule and subject in (None, c["subject"])}


def test_what_runs_on_a_host_needs_no_statistics():
    """The toolbox of a host has httpx, yaml and jinja2; reports are made on the controller."""
    code = (
        "import sys\n"
        "for name in ('numpy', 'scipy', 'statsmodels', 'matplotlib', 'ansible'): sys.modules[name] = None\n"
        "import seatfleet.cli, seatfleet.commands.campaign, seatfleet.campaign.bench, seatfleet.campaign.rawdata\n"
        "import seatfleet.campaign.runner, seatfleet.campaign.plan, seatfleet.campaign.systemd\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_campaign_from_first_boot_to_analysis(tmp_path: Path):
    """The one with canary, repetitions and planted delay. Times of a busy machine prove nothing: none is asserted."""
    runner = make(tmp_path, reps=2, planted_delay=0.5, mode="palindrome", answers=check_answers)
    runner.run()
    raw = runner.raw
    raw.verify()
    assert raw.boots() == ("00_off_1", "01_k2_1", "02_off_2", "03_k2_2", "04_off_3")
    assert runner.control.restored == 1 and runner.control.server is None
    result = analyse(raw)
    assert result["void_boots"] == {} and status(result, "V7") == {"pass"} and status(result, "V10") == {"not checked"}
    assert {status(result, rule).pop() for rule in ("V1", "V2", "V4", "V5", "V6", "V8", "V9", "V12", "V14", "V15")} == {
        "pass"
    }
    (row,) = result["acceptance"]
    assert row["acceptance_length"] == 3.0 and row["rates"] == [1.0, 1.0]
    assert row["tokens_per_chunk_mean"] == pytest.approx(3.0)
    assert next(a for a in result["arms"] if a["id"] == "k2")["induced"]["block_size"] == ["16", "18"]
    planted = [cell for cell in raw.cells("00_off_1") if cell.kind == "planted"]
    assert len(planted) == 1 and planted[0].requests[0].planted_delay_ns > 1e6
    order = [cell.kind for cell in raw.cells("00_off_1")]
    assert order[-3:] == ["beside", "planted", "beside"] and set(order[:-3]) == {"stream"}
    assert 2 <= len(raw.boot("01_k2_1")["warm_up_s"]) <= WARM_UP_PASSES
    assert [cell for cell in raw.cells("01_k2_1") if cell.kind == "planted"] == []
    json.dumps(result, allow_nan=False)


def test_a_broken_head_is_voided_and_proves_that_the_rule_sees(tmp_path: Path):
    arms = {"off": {}, "k2": {"speculative-config": MTP}, "bad": {"speculative-config": {**MTP, "model": "/bad"}}}
    runner = make(tmp_path, arms=arms, positive_controls=["bad"])
    runner.run()
    result = analyse(runner.raw)
    assert "V2 not met, counting is accepted as it should be" in result["void_arms"]["bad"]
    assert status(result, "PC3") == {"pass"} and {f["contrast"] for f in result["findings"]} == {"k2-vs-off"}


def test_a_broken_arm_that_is_not_recognised_takes_the_verdict(tmp_path: Path):
    arms = {"off": {}, "k2": {"speculative-config": MTP}, "bad": {"speculative-config": {**MTP, "model": "/bad"}}}
    seat = FakeSeat({"off": OFF, "k2": K2, "bad": K2})
    runner = make(tmp_path, seat, arms=arms, positive_controls=["bad"])
    runner.run()
    result = analyse(runner.raw)
    assert status(result, "PC3") == {"fail"} and {f["verdict"] for f in result["findings"]} == {"NO_VERDICT"}


@pytest.mark.parametrize(
    ("behaviour", "rule", "scope"),
    [
        (replace(K2, extra_successes=1), "V5", "void_boots"),
        (replace(K2, prefix_hit_rate=0.2), "V9", "void_boots"),
        (replace(K2, restart_after=6), "V4", "void_boots"),
        (replace(K2, k=3), "V6", "void_arms"),
        (replace(K2, preemptions=1), "V11", "void_arms"),
        (replace(K2, accepted=(0,)), "V2", "void_arms"),
        (replace(K2, k=0), "V1", "void_arms"),
    ],
    ids=["foreign requests", "prefix hits", "restart", "wrong k", "preemptions", "broken head", "no drafts"],
)
def test_accidents_and_impostors_are_seen_through_the_real_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, rule: str, scope: str
):
    monkeypatch.setattr(runner_module, "WARM_UP_PASSES", 1)  # the restart comes after a number of requests
    runner = make(tmp_path, FakeSeat({"off": OFF, "k2": behaviour}))
    runner.run()
    result = analyse(runner.raw)
    assert rule in " ".join(result[scope].values())
    assert {f["verdict"] for f in result["findings"]} <= {"VOID", "NO_VERDICT"}


# --- accidents of the run itself --------------------------------------------------------------------------------------


def test_a_failed_boot_is_tried_once_more_and_kept_apart(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})
    failed = itertools.count()

    def before(arm: str, number: int) -> None:
        if arm == "k2" and next(failed) == 0:
            raise SeatFailed("CUDA out of memory")

    seat.before_start = before
    runner = make(tmp_path, seat)
    runner.run()
    assert [p.name for p in (runner.raw.path / "aborted").iterdir()] == ["01_k2_1.0"]
    assert runner.raw.boots() == ("00_off_1", "01_k2_1", "02_off_2")
    runner.raw.verify()


def test_an_arm_that_fails_twice_ends_the_campaign_and_production_is_restored(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})

    def before(arm: str, number: int) -> None:
        if arm == "k2":
            raise SeatFailed("CUDA out of memory")

    seat.before_start = before
    runner = make(tmp_path, seat)
    with pytest.raises(SeatFailed, match=r"01_k2_1 failed 2 times.*CUDA out of memory"):
        runner.run()
    assert seat.restored == 1 and runner.raw.boots() == ("00_off_1",)
    seat.before_start = lambda arm, number: None
    runner.run()
    assert runner.raw.boots() == ("00_off_1", "01_k2_1", "02_off_2") and seat.restored == 2


def test_an_interrupted_campaign_resumes_after_the_last_complete_boot(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})

    def before(arm: str, number: int) -> None:
        if number == 2:
            raise Interrupted("SIGTERM")

    seat.before_start = before
    runner = make(tmp_path, seat)
    with pytest.raises(Interrupted):
        runner.run()
    assert seat.restored == 1 and runner.raw.boots() == ("00_off_1",)
    first = (runner.raw.path / "boots/00_off_1/boot.json").read_bytes()
    seat.before_start = lambda arm, number: None
    again = make(tmp_path, seat)
    again.run()
    assert (runner.raw.path / "boots/00_off_1/boot.json").read_bytes() == first
    assert [arm for arm, _ in seat.starts] == ["off", "k2", "k2", "off"]
    found = analyse(again.raw)["campaign"]
    assert found["gaps"] == []
    # who ends boots that he does not like chooses his boots, so the report names them
    assert found["aborted"] == [{"boot": "01_k2_1", "reason": "interrupted by SIGTERM"}]


@pytest.mark.parametrize("when", ["in a callback", "while waiting", "before the loop", "in a boot's start"])
def test_a_signal_ends_the_campaign_wherever_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str):
    seat = FakeSeat({"off": OFF, "k2": K2})
    runner = make(tmp_path, seat)
    original = LoadClient.cell

    async def cell(self: LoadClient, prompts: Any, concurrency: int, **options: Any) -> CellRun:
        if when == "in a callback":
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGALRM)
            await asyncio.sleep(120)
        if when == "while waiting":
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            await asyncio.sleep(120)
        return await original(self, prompts, concurrency, **options)

    monkeypatch.setattr(LoadClient, "cell", cell)
    if when == "before the loop":
        monkeypatch.setattr(runner, "interrupted", "SIGALRM")
    if when == "in a boot's start":
        seat.before_start = lambda arm, number: signal.raise_signal(signal.SIGALRM)
    before = signal.signal(signal.SIGALRM, lambda number, frame: runner.interrupt("SIGALRM"))
    began = time.monotonic()
    try:
        with pytest.raises(Interrupted, match="SIGALRM"):
            runner.run()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 100
    assert runner.raw.boots() == () and seat.restored == 1 and seat.server is None


def test_nothing_interrupts_the_way_back(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})
    runner = make(tmp_path, seat)
    restore = seat.restore

    def restoring() -> None:
        runner.interrupt("SIGTERM")
        restore()

    seat.restore = restoring
    runner.run()
    assert seat.restored == 1 and len(runner.raw.boots()) == 3


def test_after_a_long_pause_there_is_an_extra_control_boot_and_a_block(tmp_path: Path):
    runner = make(tmp_path)
    runner.control.before_start = lambda arm, number: (_ for _ in ()).throw(Interrupted()) if number == 2 else None
    with pytest.raises(Interrupted):
        runner.run()
    runner.control.before_start = lambda arm, number: None
    runner.clock = lambda: 1e11
    runner.run()
    assert runner.raw.boots() == ("00_off_1", "01_off_2", "02_k2_1", "03_off_3")
    infos = [runner.raw.boot(name) for name in runner.raw.boots()]
    assert [(i["block"], i["extra"]) for i in infos] == [(0, False), (1, True), (1, False), (1, False)]
    assert runner.raw.manifest()["gaps"][0]["before_slot"] == 1


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda seat: seat.identity.update(release="2-def"), "R4 provenance"),
        (lambda seat: seat.config.update({"max-num-seqs": 4}), "R3 base"),
    ],
)
def test_a_campaign_is_not_continued_on_another_seat(tmp_path: Path, change: object, rule: str):
    runner = make(tmp_path)
    runner.run()
    change(runner.control)
    with pytest.raises(Refusal, match=rule):
        runner.run()
    assert runner.control.restored == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": {"off": {}, "k2": {"speculative-config": {**MTP, "num_speculative_tokens": 4}}}}, "arms: expected"),
        ({"requests": 4}, "requests: expected 2, seen 4"),
        ({"margin": 0.1}, "margin: expected None, seen 0.1"),
        ({"ready_timeout_s": 3600}, None),
    ],
    ids=["another arm of the same name", "cells", "what decides", "patience"],
)
def test_an_edited_definition_is_another_campaign(tmp_path: Path, changes: dict[str, Any], words: str | None):
    """The base of the arms is the same in all of these, so that only the definition tells."""
    runner = make(tmp_path)
    runner.control.before_start = lambda arm, number: (_ for _ in ()).throw(Interrupted()) if number == 2 else None
    with pytest.raises(Interrupted):
        runner.run()
    runner.control.before_start = lambda arm, number: None
    again = make(tmp_path, runner.control, **changes)
    if words is None:
        again.run()
        assert len(again.raw.boots()) == 3
        return
    with pytest.raises(Refusal, match="R5 definition") as refused:
        again.run()
    assert words in str(refused.value) and again.raw.boots() == ("00_off_1",)


def test_a_shadow_campaign_goes_on_on_the_cards_of_its_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A new process knows the cards of the live seat only, and would see another machine."""
    monkeypatch.setattr(host, "facts", lambda gpus: {"gpus": list(gpus)})
    shadow: dict[str, Any] = {"shadow": {"gpus": [3], "port": 8099}}
    runner = make(tmp_path, FakeSeat({"off": OFF, "k2": K2}, gpus=("0",)), **shadow)
    runner.control.before_start = lambda arm, number: (_ for _ in ()).throw(Interrupted()) if number == 2 else None
    with pytest.raises(Interrupted):
        runner.run()
    again = make(tmp_path, FakeSeat({"off": OFF, "k2": K2}, gpus=("0",)), **shadow)
    again.run()
    assert len(again.raw.boots()) == 3


def test_step_0_tries_every_arm_with_the_most_drafts(tmp_path: Path):
    """Which of them needs more memory is not known: one may keep on the card what the other keeps in the host."""
    arms = {name: {"max-num-seqs": count} for name, count in (("off", 8), ("k2", 4))}
    runner = make(
        tmp_path,
        FakeSeat({"off": OFF, "k2": OFF}),
        arms=arms,
        studied_keys=["max-num-seqs"],
        kv_pin={"minimum": "2GiB", "step": "512MiB", "margin": "1GiB"},
    )
    runner.run()
    assert [tried["arm"] for tried in runner.raw.manifest()["kv_pin_search"]] == ["off", "k2"]


def test_another_setting_of_a_seat_that_speculates_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Drafts in every arm are the seat's own, not an impostor's."""
    # A rule about times (V13), which a busy machine breaks.
    monkeypatch.setattr(controls, "throughput_rises", lambda *given, **more: [])
    seat = FakeSeat({"off": K2, "k2": K2}, config={**LIVE, "speculative-config": MTP})
    runner = make(tmp_path, seat, arms={"off": {}, "k2": {"async-scheduling": True}}, studied_keys=["async-scheduling"])
    runner.run()
    result = analyse(runner.raw)
    assert result["void_arms"] == {} and status(result, "V1") | status(result, "V14") | status(result, "V15") == {
        "pass"
    }
    assert [row["arm"] for row in result["acceptance"]] == ["off", "k2"]
    assert [arm["values"] for arm in result["arms"]] == [{"async-scheduling": None}, {"async-scheduling": True}]


def test_a_full_disk_keeps_what_is_complete_and_restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runner = make(tmp_path)
    original = BootWriter.cell

    def cell(self: BootWriter, *given: Any) -> None:
        if "01_k2_1" in self.path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, *given)

    monkeypatch.setattr(BootWriter, "cell", cell)
    with pytest.raises(OSError, match="No space left"):
        runner.run()
    assert runner.raw.boots() == ("00_off_1",) and runner.control.restored == 1
    monkeypatch.setattr(BootWriter, "cell", original)
    runner.run()
    assert len(runner.raw.boots()) == 3 and [p.name for p in (runner.raw.path / "aborted").iterdir()] == ["01_k2_1.0"]


def test_another_client_does_not_continue_a_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runner = make(tmp_path)
    runner.run()
    monkeypatch.setattr(runner_module, "client_sha256", lambda: "0" * 64)
    with pytest.raises(Refusal, match="R1 harness"):
        runner.run()


def test_a_seat_that_serves_others_is_refused(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})
    runner = make(tmp_path, seat)
    original = seat.manifest

    def busy(config: Any) -> Any:
        seat.server.add("running", 1)
        return original(config)

    seat.manifest = busy
    with pytest.raises(Refusal, match="R11 foreign traffic"):
        runner.run()
    assert runner.raw.boots() == () and seat.restored == 1


def test_tool_calls_need_a_parser(tmp_path: Path):
    changes = {"shapes": {"tool": {"max_tokens": 12}}, "primary": {"shapes": ["tool"], "concurrency": [1]}}
    with pytest.raises(Refusal, match="R17 no parser"):
        make(tmp_path, **changes).run()
    seat = FakeSeat({"off": OFF, "k2": K2})
    seat.config["tool-call-parser"] = "qwen3_xml"
    runner = make(tmp_path / "with", seat, **changes)
    runner.run()
    assert analyse(runner.raw)["tool_calls"][0] == {"arm": "off", "n": 8, "ok": 0.0}


def test_two_runs_of_one_campaign_exclude_each_other(tmp_path: Path):
    runner = make(tmp_path)
    runner.raw.path.mkdir()
    with runner.raw.locked(), pytest.raises(RawError, match="another process"):
        runner.run()


@pytest.mark.parametrize(
    ("policy", "caches"), [("persist", ["c/off", "c/k2", "c/off"]), ("fresh", ["c/off-0", "c/k2-1", "c/off-2"])]
)
def test_every_arm_has_compile_caches_of_its_own(tmp_path: Path, policy: str, caches: list[str]):
    runner = make(tmp_path, compile_cache=policy)
    runner.run()
    assert [cache for _, cache in runner.control.starts] == caches


def test_caches_are_warmed_by_one_unmeasured_boot_per_arm(tmp_path: Path):
    runner = make(tmp_path, warmup_boots=True)
    runner.run()
    assert [arm for arm, _ in runner.control.starts] == ["off", "k2", "off", "k2", "off"]
    assert len(runner.raw.boots()) == 3


def test_a_boot_measured_again_after_the_end_is_not_the_only_cold_one(tmp_path: Path):
    """A complete campaign has removed its compile caches; going on before the end must not warm anything again."""

    class Seat(FakeSeat):
        def cache_root(self, cache: str) -> str:
            return str(tmp_path / "caches" / cache)

        def start(self, config: Any, cache: str) -> None:
            Path(self.cache_root(cache)).mkdir(parents=True, exist_ok=True)
            super().start(config, cache)

        def discard(self, campaign: str) -> None:
            shutil.rmtree(self.cache_root(campaign))

    seat = Seat({"off": OFF, "k2": K2})
    seat.before_start = lambda arm, number: (_ for _ in ()).throw(Interrupted("SIGTERM")) if number == 4 else None
    with pytest.raises(Interrupted):
        make(tmp_path, seat, warmup_boots=True).run()
    seat.before_start = lambda arm, number: None
    runner = make(tmp_path, seat, warmup_boots=True)
    runner.run()
    assert [arm for arm, _ in seat.starts] == ["off", "k2", "off", "k2", "k2", "off"]
    runner.raw.redo("02_off_2", "a test")
    make(tmp_path, seat, warmup_boots=True).run()
    assert [arm for arm, _ in seat.starts[6:]] == ["off", "off"] and len(runner.raw.boots()) == 3


def test_step_0_lowers_the_pin_for_all_arms_until_the_heaviest_serves(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})
    pins: list[int] = []
    original = seat.start

    def start(config: Any, cache: str) -> None:
        pins.append(config.settings["kv-cache-memory-bytes"])
        if config.arm == "k2" and pins[-1] > 3 << 30:
            raise SeatFailed("CUDA out of memory")
        original(config, cache)

    seat.start = start
    pin = {"minimum": "2GiB", "step": "512MiB", "margin": "1GiB"}
    runner = make(tmp_path, seat, kv_pin=pin)
    runner.run()
    assert pins == [p << 29 for p in (8, 7, 6)] + [3 << 30] * 3
    manifest = runner.raw.manifest()
    assert manifest["overrides"] == {"kv-cache-memory-bytes": 3 << 30}
    assert [t["problem"] for t in manifest["kv_pin_search"]] == ["CUDA out of memory", "CUDA out of memory", None]
    base = {runner.raw.boot(b)["base_hash"] for b in runner.raw.boots()}
    assert len(base) == 1


def test_step_0_gives_up_at_the_minimum(tmp_path: Path):
    seat = FakeSeat({"off": OFF, "k2": K2})
    seat.before_start = lambda arm, number: (_ for _ in ()).throw(SeatFailed("no memory"))
    runner = make(tmp_path, seat, kv_pin={"minimum": "3GiB", "step": "512MiB", "margin": "1GiB"})
    with pytest.raises(Refusal, match="R15 no pin"):
        runner.run()


def test_a_shadow_seat_has_its_own_port_and_gpus_in_every_arm(tmp_path: Path):
    runner = make(tmp_path, shadow={"gpus": [3], "port": 8099})
    configs = runner.configs(runner.control.live(), runner._shadow_overrides())
    assert {(c.settings["port"], c.env["CUDA_VISIBLE_DEVICES"]) for c in configs.values()} == {(8099, "3")}


def test_the_cards_that_are_watched_are_those_of_the_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(host, "look", lambda gpus: asked.append(tuple(gpus)) or Calm(None, None, None))
    seat = FakeSeat({"off": OFF, "k2": K2}, gpus=("2",))
    cards = "env:CUDA_VISIBLE_DEVICES"
    arms = {"off": {cards: "2"}, "k2": {cards: "2,3", "speculative-config": MTP}}
    make(tmp_path, seat, arms=arms, studied_keys=["speculative-config", cards]).run()
    assert asked[0] == ("2", "3") and seat.gpus == ("2", "3")


def test_a_shadow_seat_on_a_card_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "gpu_processes", lambda gpus: [f"77 python on {gpus[0]}"])
    seat = FakeSeat({"off": OFF, "k2": K2}, gpus=("2",))
    with pytest.raises(Refusal, match=r"R19 GPU in use.* on 3 run: 77 python on 3"):
        make(tmp_path, seat, shadow={"gpus": [3], "port": 8099}).run()
    assert seat.starts == [] and seat.restored == 1


def test_the_end_to_end_harness_is_a_metric_of_its_own(tmp_path: Path):
    runner = make(tmp_path, end_to_end=True, reps=1)
    runner.run()
    result = analyse(runner.raw)
    assert finding(result, metric="end_to_end_tok_s")["family"] == "exploratory"
    kinds = {(row["kind"], name) for row in result["cells"] for name in row["metrics"]}
    assert ("end_to_end", "end_to_end_tok_s") in kinds and ("stream", "end_to_end_tok_s") not in kinds
    assert not any(kind == "end_to_end" and name != "end_to_end_tok_s" for kind, name in kinds)


def test_long_documents_are_sized_by_the_seat_and_the_same_in_every_arm(tmp_path: Path):
    shapes = {"longctx": {"tokens": 600, "max_tokens": 12}}
    changes = {"shapes": shapes, "primary": {"shapes": ["longctx"], "concurrency": [1]}, "planted_delay": None}
    runner = make(tmp_path, reps=1, **changes)
    runner.run()
    infos = [runner.raw.boot(name) for name in runner.raw.boots()]
    assert len({info["shapes"]["longctx"] for info in infos}) == 1
    sizes = {r.prompt_tokens for cell in runner.raw.cells("00_off_1") for r in cell.requests}
    assert max(sizes) <= 600 and min(sizes) > 560
