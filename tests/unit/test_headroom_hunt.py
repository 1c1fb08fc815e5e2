"""The headroom probe at work, against a server that loads its extension: boots, windows, load, search, evidence."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ports import unused_port
from probe_stub import KEY

from seatfleet.campaign.canary import Answers
from seatfleet.campaign.seats import LocalSeat, SeatFailed
from seatfleet.cli import main
from seatfleet.core.health.headroom import FULL, MIXED, RAMP, margin_for, unclean
from seatfleet.core.inventory.pins import proposed
from seatfleet.core.units import GIB, MIB
from seatfleet.headroom import sampler
from seatfleet.headroom.hunt import Hunt
from seatfleet.headroom.oracle import oracle
from seatfleet.headroom.prober import Plan, Prober
from seatfleet.headroom.prompts import TOLERANCE, sized, text_of

SERVER = Path(__file__).with_name("headroom_server.py")
CAPTURE = {
    "captured": "2026-11-30",
    "driver": "made up",
    "torch": "made up",
    "total": 24 * GIB,
    "other": GIB,
    "weights": 8 * GIB,
    "points": [[512, GIB], [1024, 3 * GIB // 2], [2048, 2 * GIB]],
    "fragments": 128 * MIB,
}
#: 2,048 less answer and reserve are 1,856 tokens.
NEED = int(1.5 * GIB + 0.5 * GIB * (1856 - 1024) / 1024)
EDGE = 24 * GIB - GIB - 8 * GIB - NEED


class Watched(LocalSeat):
    """A local seat that remembers being restored."""

    restored = 0

    def restore(self) -> None:
        self.restored += 1
        super().restore()


@pytest.fixture
def seat(tmp_path: Path) -> Watched:
    (tmp_path / "model").mkdir()
    content = {
        "executable": [sys.executable, str(SERVER)],
        "config": {
            "model": str(tmp_path / "model"),
            "served-model-name": ["tiny"],
            "port": unused_port(),
            "max-model-len": 2048,
            "max-num-batched-tokens": 2048,
            "max-num-seqs": 4,
            "kv-cache-memory-bytes": 4 * GIB,
        },
        "env": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        "identity": {"release": "0.0-stub"},
    }
    file = tmp_path / "seat.yml"
    file.write_text(yaml.safe_dump(content))
    return Watched(file, tmp_path / "work", api_key=KEY, ready_timeout_s=120)


def prober_for(seat: LocalSeat, tmp_path: Path, capture: dict[str, Any] | None = CAPTURE, **plan: Any) -> Prober:
    replay = None
    if capture is not None:
        replay = tmp_path / "capture.json"
        replay.write_text(json.dumps(capture))
    (tmp_path / "out").mkdir(exist_ok=True)
    made = Plan(idle_s=0.1, ready_timeout_s=120, replay=replay, **plan)
    return Prober(seat, made, tmp_path / "out", say=lambda text: None, answers=lambda *_: Answers())


def test_a_pin_is_found_confirmed_and_proposed(seat: Watched, tmp_path: Path) -> None:
    hunt = Hunt(prober_for(seat, tmp_path), "s", tmp_path / "out", say=print)
    result = hunt.run()
    assert result["confirmed"]
    assert EDGE - margin_for(24 * GIB) - 0.75 * GIB <= result["pin"] <= EDGE - margin_for(24 * GIB)
    assert len(hunt.trials) <= 7
    assert seat.restored == 1
    clean = next(trial for trial in hunt.trials if unclean(trial) is None)
    assert [step.phase for step in clean.steps] == [RAMP] * 5 + [MIXED, FULL]
    assert [step.requests for step in clean.steps] == [1] * 5 + [4, 4]
    # a prompt may be 8 tokens shorter, which is 4 MiB on this card
    assert abs(clean.steps[4].needed - (9 * GIB + clean.pin + NEED)) <= 4 * MIB
    assert all(1856 - TOLERANCE <= step.depth <= 1856 for step in clean.steps[4:])
    assert all(row["recalled"] == 3 for row in hunt.boots[0]["needles"])
    evidence = (tmp_path / "out" / result["evidence"]).read_bytes()
    assert hashlib.sha256(evidence).hexdigest()[:12] + ".json" == result["evidence"]
    kept = json.loads(evidence)
    assert kept["subject"]["release_id"] == "0.0-stub"
    assert kept["subject"]["max_num_seqs"] == 4
    assert proposed(evidence) == (kept["subject"], result["pin"])
    assert result["evidence"] in yaml.safe_load(result["snippet"])["s"]["kv_cache_why"]["reference"]
    # what the command says of the same boots
    assert main(["headroom", "judge", str(tmp_path / "out" / result["evidence"])]) == 0


def test_a_probe_that_was_cut_off_goes_on(seat: Watched, tmp_path: Path) -> None:
    """Each boot is minutes out of service: those of the same subject are not made again, others count for nothing."""
    said: list[str] = []
    unfinished = tmp_path / "out/evidence.json"

    def hunt(boots: int) -> Hunt:
        made = Hunt(prober_for(seat, tmp_path), "s", unfinished.parent, say=said.append, limit_s=0.5)
        made.clock = lambda: len(made.trials) // boots
        return made

    before = hunt(2).run()
    assert (before["pin"], len(before["boots"])) == (0, 2)
    second = hunt(99)
    result = second.run()
    assert "going on after 2 boots of " in "\n".join(said)
    assert result["boots"][:2] == before["boots"]
    assert (result["confirmed"], second.prober.started) == (True, len(result["boots"]))
    assert not unfinished.exists()

    hunt(1).run()
    seat._content["identity"]["release"] = "0.1-other"  # type: ignore[index]
    seat.file.write_text(yaml.safe_dump(dict(seat._content)))
    assert len(hunt(1).run()["boots"]) == 1
    assert "begun anew: release_id: probed with '0.0-stub', now '0.1-other'" in "\n".join(said)
    quick = hunt(1)
    quick.prober.plan = replace(quick.prober.plan, phases=(RAMP,))
    assert len(quick.run()["boots"]) == 1
    assert "begun anew: probed with {" in "\n".join(said)
    unfinished.write_text("{")
    assert len(hunt(1).run()["boots"]) == 1
    assert "cannot be read and is begun anew" in "\n".join(said)


def test_a_blind_pin_crosses(seat: Watched, tmp_path: Path) -> None:
    """Straight to full depth, as traffic does: it starts, answers a greeting, and dies of the first long prompt."""
    prober = prober_for(seat, tmp_path, fractions=(1.0,), phases=(RAMP,))
    result = prober.boot(seat.live(), EDGE + GIB)
    assert result.beside["ready_s"] is not None
    assert "CUDA out of memory" in str(unclean(result.trial))


def test_the_next_step_is_foreseen_and_not_made(seat: Watched, tmp_path: Path) -> None:
    capture = {**CAPTURE, "points": [[512, GIB], [1024, 2 * GIB], [2048, 4 * GIB]]}
    edge = 24 * GIB - GIB - 8 * GIB - int(4 * GIB * 1856 / 2048)
    result = prober_for(seat, tmp_path, capture).boot(seat.live(), edge + GIB // 4)
    assert result.trial.failure is None
    assert len(result.trial.steps) == 4
    assert "are predicted to need" in result.beside["refused"]
    assert str(unclean(result.trial)).startswith("stopped at 1,6")


def test_a_retry_ends_the_load(seat: Watched, tmp_path: Path) -> None:
    """Between room and room plus fragments torch gives blocks back and goes on, and the request is answered."""
    capture = {**CAPTURE, "points": [[512, GIB], [1792, GIB], [2048, 2 * GIB]], "fragments": 2 * GIB}
    pin = 24 * GIB - GIB - 8 * GIB - GIB - 100 * MIB
    result = prober_for(seat, tmp_path, capture, fractions=(0.5, 1.0)).boot(seat.live(), pin)
    assert result.trial.failure is None
    assert result.trial.steps[-1].retries == 1
    assert "retried 1 times" in str(unclean(result.trial))


def test_code_words_lost_at_depth(seat: Watched, tmp_path: Path) -> None:
    seat._content["env"]["STUB_FORGETS_AT"] = "1700"  # type: ignore[index]
    seat.file.write_text(yaml.safe_dump(dict(seat._content)))
    result = prober_for(seat, tmp_path, phases=(RAMP,)).boot(seat.live(), 4 * GIB)
    assert "code words were lost" in str(unclean(result.trial))


def test_a_torch_without_cuda_is_refused_in_words(seat: Watched, tmp_path: Path) -> None:
    hunt = Hunt(prober_for(seat, tmp_path, None), "s", tmp_path / "out", say=lambda text: None)
    with pytest.raises(SeatFailed, match="the allocator cannot be asked"):
        hunt.run()
    assert seat.restored == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"captured": None}, "says when and with which driver"),
        ({"points": [[512, GIB]]}, "the capture ends at 512 tokens"),
    ],
)
def test_a_capture_that_cannot_answer(seat: Watched, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    result = prober_for(seat, tmp_path, {**CAPTURE, **change}).boot(seat.live(), 4 * GIB)
    assert words in str(result.trial.failure)


def test_a_seat_that_does_not_come_up(seat: Watched, tmp_path: Path) -> None:
    seat._content["executable"] = [sys.executable, "-c", "raise ValueError('no such flag')"]  # type: ignore[index]
    seat.file.write_text(yaml.safe_dump(dict(seat._content)))
    hunt = Hunt(prober_for(seat, tmp_path), "s", tmp_path / "out", say=lambda text: None)
    with pytest.raises(SeatFailed, match="the first boot gave nothing to go by: not READY"):
        hunt.run()
    assert seat.restored == 1


# -- unified memory

MEMORY = {"MemTotal": 122 * GIB, "MemFree": 4 * GIB, "Cached": 0, "SwapFree": 0, "SwapTotal": 0}


def memory_replay(tmp_path: Path, *available: int) -> Path:
    file = tmp_path / "memory.json"
    samples = [{**MEMORY, "MemAvailable": size} for size in available]
    file.write_text(json.dumps({"captured": "2026-11-30", "driver": "made up", "samples": samples}))
    return file


def test_unified_memory_is_not_loaded_deep_without_a_word(seat: Watched, tmp_path: Path) -> None:
    replay = memory_replay(tmp_path, 40 * GIB)
    result = prober_for(seat, tmp_path, unified=True, memory_replay=replay).boot(seat.live(), 4 * GIB)
    assert [round(step.depth / 1856, 2) for step in result.trial.steps] == [0.25, 0.5]
    assert "allow_host_risk" in result.beside["refused"]
    assert result.trial.total == 122 * GIB - int(0.07 * 122 * GIB)
    assert result.trial.steps[0].used_peak == 82 * GIB


def test_the_floor_of_unified_memory_stops_the_seat(seat: Watched, tmp_path: Path) -> None:
    replay = memory_replay(tmp_path, 5 * GIB)
    result = prober_for(seat, tmp_path, unified=True, memory_replay=replay).boot(seat.live(), 4 * GIB)
    assert "5.00 GiB of host memory were left, the floor is 8.54" in str(unclean(result.trial))


# -- prompts


@pytest.mark.parametrize("wanted", [40, 64, 500, 20_000])
def test_prompts_have_the_wanted_length(wanted: int) -> None:
    def count(messages: Any) -> int:
        return 8 + len(messages[0]["content"].split())

    prompt = sized(wanted, count)
    assert wanted - TOLERANCE <= prompt.tokens <= wanted
    assert all(needle in prompt.messages[0]["content"] for needle in prompt.needles)
    assert prompt.recalled(" ".join(prompt.needles)) == 3
    assert prompt.recalled("") == 0


def test_prompts_repeat_nothing() -> None:
    import random

    words = text_of(random.Random(1), 2000, ("a1", "b2", "c3")).split()
    windows = [" ".join(words[start : start + 16]) for start in range(0, len(words) - 16, 16)]
    assert len(set(windows)) == len(windows)


def test_a_prompt_that_cannot_be_that_short() -> None:
    with pytest.raises(ValueError, match="hold no prompt"):
        sized(5, lambda messages: len(messages[0]["content"].split()))


# -- the sampler

MEMINFO = "MemTotal: 100 kB\nMemFree: 5 kB\nMemAvailable: 60 kB\nCached: 1 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"


def test_the_sampler_samples_in_its_own_process(tmp_path: Path) -> None:
    from seatfleet.headroom.prober import Sampling

    began = time.monotonic_ns()
    sampling = Sampling.start(tmp_path / "samples", [], memory_replay(tmp_path, 9 * GIB, 3 * GIB, 7 * GIB))
    deadline = time.monotonic() + 60
    while len(sampling.lines()) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sampling.available() == 7 * GIB
    sampling.stop()
    found = sampler.least(sampling.lines(), 0, time.monotonic_ns())
    assert found["MemAvailable"]["least"] == 3 * GIB
    assert sampler.least(sampling.lines()[1:], 0, began)["samples"] == 0
    assert "everything is a replay" in sampling.lines()[0]["missing"][0]


def test_what_the_kernel_shows() -> None:
    assert sampler.parse_meminfo(MEMINFO)["MemAvailable"] == 60 * 1024
    with pytest.raises(sampler.Unanswered, match="MemAvailable"):
        sampler.parse_meminfo(MEMINFO.replace("MemAvailable", "Other"))
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
    assert sampler.parse_pressure(text) == {"psi_some_us": 12, "psi_full_us": 3}


def test_a_capture_without_the_question(tmp_path: Path) -> None:
    file = memory_replay(tmp_path, 1)
    with pytest.raises(sampler.Unanswered, match="no gpu0_free"):
        sampler.Replay(file, ["gpu0_free"])
    file.write_text(json.dumps({"samples": []}))
    with pytest.raises(sampler.Unanswered, match="when and with which driver"):
        sampler.Replay(file)


# -- whether the warning can fire

TORCH = """
class _Cuda:
    @staticmethod
    def get_device_properties(index):
        return type("Card", (), {{"total_memory": 10}})
    @staticmethod
    def memory_stats():
        return {{"num_ooms": 1, "num_alloc_retries": 1}}
class OutOfMemoryError(RuntimeError):
    pass
cuda, uint8, __version__ = _Cuda, 1, "2.13.0"
version = type("V", (), {{"cuda": {cuda!r}}})
def zeros(*a, **k):
    pass
def empty(*a, **k):
    import sys
    print({line!r}, file=sys.stderr)
    raise OutOfMemoryError
"""


@pytest.mark.parametrize(
    ("cuda", "line", "counters", "journal"),
    [
        ("13.0", "OOM on device 0 while trying to allocate 20 bytes (free: 5)", "proven", "proven"),
        ("13.0", "", "proven", "silent"),
        (None, "", "not checked", "not checked"),
    ],
)
def test_whether_the_warning_can_fire(tmp_path: Path, cuda: str | None, line: str, counters: str, journal: str) -> None:
    (tmp_path / "torch.py").write_text(TORCH.format(cuda=cuda, line=line))
    found = oracle(Path(sys.executable), {"PYTHONPATH": str(tmp_path)})
    assert (found["counters"], found["journal"]) == (counters, journal)


def test_an_oracle_that_cannot_be_asked(tmp_path: Path) -> None:
    assert oracle(tmp_path / "no-python", {})["counters"] == "not checked"


def test_a_pin_is_needed_to_start_from(seat: Watched, tmp_path: Path) -> None:
    live = seat.live()
    hunt = Hunt(prober_for(seat, tmp_path), "s", tmp_path / "out")
    config = {key: value for key, value in live.config.items() if key != "kv-cache-memory-bytes"}
    with pytest.raises(SeatFailed, match="give --start"):
        hunt._live_pin(replace(live, config=config))


def test_a_sampler_that_cannot_sample_is_said(seat: Watched, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    file.write_text(json.dumps({"captured": "2026-11-30", "driver": "made up", "samples": [{"MemTotal": 1}]}))
    with pytest.raises(SeatFailed, match="the capture has no MemAvailable"):
        prober_for(seat, tmp_path, memory_replay=file).boot(seat.live(), 4 * GIB)
