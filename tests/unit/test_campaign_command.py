"""``seatctl campaign``: every verb as an operator types it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from campaign_fake import MODEL, Behaviour, FakeVllm
from campaign_raw import World, make_raw
from ports import unused_port

from seatfleet.campaign.definition import load_definition
from seatfleet.campaign.plan import DESIGNS, duration, make_plan
from seatfleet.campaign.rawdata import directory_for
from seatfleet.campaign.stats import design_power
from seatfleet.cli import main
from seatfleet.commands import campaign as campaign_command

DEFINITION: dict[str, Any] = {
    "seat": "s",
    "question": "Does it help?",
    "studied_keys": ["speculative-config"],
    "arms": {"off": {}, "k2": {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}},
    "shapes": {"count": {"max_tokens": 12}},
    "concurrency": [1, 2],
    "requests": 2,
    "reps": 1,
    "mode": "screen",
    "warmup_boots": False,
    "idle_s": 0,
    "planted_delay": None,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "campaigns.yml"
    path.write_text(yaml.safe_dump({"campaigns": {"mtp": DEFINITION}}))
    return path


def seatctl(*argv: object) -> int:
    return main(["campaign", *map(str, argv)])


# --- plan


def test_a_plan_says_what_it_takes(file: Path, capsys: pytest.CaptureFixture[str]):
    assert seatctl("plan", "--definition", file, "--name", "mtp") == 0
    text = capsys.readouterr().out
    for words in (
        "boots         off k2 off",
        "count c=1 (2)",
        "11.0 times |off_A - off_B|",
        "takes about   10 min, if READY takes 120 s",
    ):
        assert words in text
    assert seatctl("plan", "--definition", file, "--name", "mtp", "--json") == 0
    assert json.loads(capsys.readouterr().out)["order"] == ["off", "k2", "off"]


def test_a_plan_shows_each_arms_changes_of_a_live_seat(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "live.yml").write_text(yaml.safe_dump({"executable": ["x"], "config": {"model": str(tmp_path)}}))
    assert seatctl("plan", "--definition", file, "--name", "mtp", "--local", tmp_path / "live.yml") == 0
    assert "speculative-config: None -> {'method': 'mtp'" in capsys.readouterr().out


def test_a_duration_counts_every_request_that_is_sent(file: Path):
    """Answers that are not streamed and the planted cells are sent one at a time: half as long again."""
    from seatfleet.campaign.definition import load_definition
    from seatfleet.campaign.plan import estimate_seconds

    written = yaml.safe_load(file.read_text())["campaigns"]["mtp"]

    def seconds(**changes: object) -> float:
        return estimate_seconds(load_definition({**written, **changes}, name="mtp", where="test"), 0.0, 1.0)

    base = {"mode": "palindrome", "reps": 2, "requests": 12, "planted_delay": None, "concurrency": [1], "idle_s": 0}
    controls, boots, shapes = 3, 5, len(load_definition(written, name="mtp", where="test").shapes)
    assert seconds(**base, end_to_end=True) - seconds(**base) == boots * 2 * 10 * shapes
    assert seconds(**{**base, "planted_delay": 0.1}) - seconds(**base) == controls * 3 * 12


def test_designs_known_without_scipy_are_what_scipy_says():
    for (control, arm, arms), (floor, mde) in DESIGNS.items():
        power = design_power(control, arm, arms)
        assert (floor, mde) == (pytest.approx(power.floor, abs=0.006), pytest.approx(power.mde80, abs=0.006))


@pytest.mark.parametrize(("seconds", "text"), [(59, "1 min"), (3600, "1 h 00 min"), (9000, "2 h 30 min")])
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected YAML with a mapping `campaigns`"),
        ("campaigns: {other: {}}", "campaigns.mtp: expected a campaign of that name, seen only other"),
        ("seats: {}", "seen only nothing"),
        ("campaigns: {mtp: {seat: s}}", "problems, nothing was changed"),
    ],
)
def test_a_wrong_definition_is_input_not_a_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
):
    (tmp_path / "c.yml").write_text(content)
    assert seatctl("plan", "--definition", tmp_path / "c.yml", "--name", "mtp") == 2
    assert message in capsys.readouterr().err
    assert seatctl("plan", "--definition", tmp_path / "nowhere.yml", "--name", "mtp") == 2


# --- run: a real process, killed in the middle

SERVER = """
import pathlib, signal, sys, time
sys.path.insert(0, {tests!r})
import yaml
from campaign_fake import Behaviour, FakeVllm
config = yaml.safe_load(open(sys.argv[sys.argv.index("--config") + 1]))
k = (config.get("speculative-config") or {{}}).get("num_speculative_tokens", 0)
print("non-default args", flush=True)
here = pathlib.Path({here!r})
class Server(FakeVllm):
    def post(self, handler, body):
        while k and (here / "hang").exists() and any(here.glob("raw/boots/.partial-*/scrapes/*")):
            time.sleep(0.02)
        super().post(handler, body)
with Server(Behaviour(k=k, accepted=(k,)), config["port"]):
    signal.sigwait([signal.SIGTERM])
"""


@pytest.fixture
def live(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "server.py").write_text(SERVER.format(tests=str(Path(__file__).parent), here=str(tmp_path)))
    content = {
        "executable": [sys.executable, str(tmp_path / "server.py")],
        "config": {"model": str(tmp_path / "model"), "served-model-name": [MODEL], "port": unused_port()},
        "env": {"PYTHONPATH": os.pathsep.join(sys.path)},
    }
    path = tmp_path / "live.yml"
    path.write_text(yaml.safe_dump(content))
    return path


def start(raw: Path, file: Path, live: Path) -> subprocess.Popen[str]:
    argv = ["campaign", "run", str(raw), "--definition", str(file), "--name", "mtp", "--local", str(live)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "seatfleet.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def lines_until(child: subprocess.Popen[str], text: str) -> list[str]:
    seen = []
    assert child.stdout is not None
    for line in child.stdout:
        seen.append(line)
        if text in line:
            return seen
    pytest.fail(f"no {text!r} in {''.join(seen)}")


def servers(live: Path) -> list[int]:
    needle = str(live.with_name("server.py")).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile, which others do all the time
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_campaign_leaves_whole_boots_and_goes_on(
    tmp_path: Path, file: Path, live: Path, capsys: pytest.CaptureFixture[str], how: signal.Signals
):
    raw = tmp_path / "raw"
    (tmp_path / "hang").touch()  # in the middle of the second boot, which might else be complete before the signal
    child = start(raw, file, live)
    lines_until(child, "boot 2 of 3: k2")
    deadline = time.monotonic() + 60
    while not list((raw / "boots").glob(".partial-*/scrapes/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first = {p: p.read_bytes() for p in (raw / "boots/00_off_1").rglob("*") if p.is_file()}
    child.send_signal(how)
    output, _ = child.communicate(timeout=60)
    if how is signal.SIGTERM:
        assert child.returncode == 4 and "stopped by SIGTERM" in output and servers(live) == []
    for pid in servers(live):  # what SIGKILL leaves is cleaned up by the unit that runs a campaign; here there is none
        os.kill(pid, signal.SIGKILL)
    assert sorted(p.name for p in (raw / "boots").iterdir() if not p.name.startswith(".")) == ["00_off_1"]
    assert seatctl("status", raw) == 0
    assert "1 of 3 boots, stopped before 01_k2_1" in capsys.readouterr().out

    (tmp_path / "hang").unlink()
    again = start(raw, file, live)
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert "is complete: 3 boots" in output and servers(live) == []
    assert {p: p.read_bytes() for p in first} == first
    assert [p.name for p in (raw / "aborted").iterdir()] == ["01_k2_1.0"]
    assert seatctl("report", raw) == 0 and seatctl("report", raw, "--verify") == 0
    assert "every number follows from the raw data" in capsys.readouterr().out
    assert seatctl("status", raw, "--json") == 0
    assert json.loads(capsys.readouterr().out)["left"] == 0


def test_a_campaign_is_found_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert seatctl("status", "--base", tmp_path, "--name", "mtp", "--json") == 0
    assert json.loads(capsys.readouterr().out) is None
    for name in ("20260301-100000-mtp", "20260302-100000-mtp", "20260303-100000-other", "20260303-100000-table-mtp"):
        make_raw(tmp_path / name, World())
    assert seatctl("status", "--base", tmp_path, "--name", "mtp", "--json") == 0
    assert json.loads(capsys.readouterr().out)["campaign"] == "20260302-100000-mtp"
    now = datetime(2026, 3, 4, tzinfo=UTC)
    assert directory_for(tmp_path, "mtp", now).name == "20260302-100000-mtp"
    assert directory_for(tmp_path, "mtp", now, new=True).name == "20260304-000000-mtp"
    assert directory_for(tmp_path, "fresh", now).name == "20260304-000000-fresh"
    assert seatctl("wait", "--base", tmp_path, "--name", "mtp", "--boots", 9) == 0
    assert "complete, 9 boots" in capsys.readouterr().out
    assert seatctl("status", "--base", tmp_path) == 2
    found = ("status", "--base", tmp_path, "--name", "mtp", "--other-than", "20260302-100000-mtp", "--json")
    assert seatctl(*found) == 0
    assert json.loads(capsys.readouterr().out) is None


def test_the_status_names_what_was_edited_since(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    raw = make_raw(
        tmp_path / "c",
        World(),
        **DEFINITION | {"reps": 2, "ready_timeout_s": 60, "primary": {"shapes": ["count"], "concurrency": [1]}},
    )
    assert seatctl("status", raw.path, "--name", "mtp", "--definition", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] == ["primary", "reps"]


def test_a_full_disk_is_a_stop_with_its_reason(
    file: Path, live: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    argv = ["run", tmp_path / "file/raw", "--definition", file, "--name", "mtp", "--local", live]
    assert seatctl(*argv) == 4
    assert "Not a directory" in capsys.readouterr().err


def test_a_campaign_of_another_seat_is_not_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert seatctl("run", tmp_path / "raw", "--definition", file, "--name", "mtp", "--seat", "other") == 2
    assert "seat: expected other, as asked, seen s" in capsys.readouterr().err


def test_fresh_caches_are_not_warmed_in_the_plan():
    definition = {**DEFINITION, "warmup_boots": True, "compile_cache": "fresh"}
    assert make_plan(load_definition(definition, name="mtp", where="t"))["warmup_boots"] == 0


def test_waiting_ends_when_nothing_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(campaign_command, "_LOOK_S", 0.0)
    assert seatctl("wait", "--base", tmp_path, "--name", "mtp", "--boots", 1) == 0
    assert "no campaign of that name" in capsys.readouterr().out
    raw = make_raw(tmp_path / "20260301-100000-mtp", World())
    raw.redo("08_off_3", "x")
    assert seatctl("wait", raw.path, "--boots", 9) == 0
    assert "8 of 9 boots, stopped before 08_off_3" in capsys.readouterr().out


def test_an_arm_that_does_not_start_stops_the_campaign_with_its_reason(
    tmp_path: Path, file: Path, live: Path, capsys: pytest.CaptureFixture[str]
):
    content = yaml.safe_load(live.read_text())
    content["executable"] = [sys.executable, "-c", "print('ValueError: no such flag'); raise SystemExit(2)"]
    live.write_text(yaml.safe_dump(content))
    child = start(tmp_path / "raw", file, live)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 4 and "ValueError: no such flag" in output and "run it again to go on" in output


# --- report, redo, restore, bench


def test_a_changed_number_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    raw = make_raw(tmp_path / "c", World())
    assert seatctl("report", raw.path, "--out", tmp_path / "out") == 0
    path = tmp_path / "out/report.json"
    content = json.loads(path.read_text())
    content["findings"][0]["df"] += 1
    path.write_text(json.dumps(content))
    assert seatctl("report", raw.path, "--out", tmp_path / "out", "--verify") == 3
    assert "differences between the stored report and its raw data" in capsys.readouterr().err
    shutil.rmtree(raw.path / "boots/03_k3_1")
    assert seatctl("report", raw.path, "--out", tmp_path / "out", "--verify") == 3
    assert seatctl("report", tmp_path / "nowhere") == 3
    assert "is this the directory of a campaign" in capsys.readouterr().err


def test_a_report_without_its_libraries_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "seatfleet.campaign.report", None)
    assert seatctl("report", tmp_path) == 2
    assert "install seatfleet[report]" in capsys.readouterr().err


def test_the_last_boot_can_be_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    raw = make_raw(tmp_path / "c", World())
    assert seatctl("redo", raw.path, "00_off_1", "--reason", "x") == 5
    assert "only the last boot" in capsys.readouterr().err
    assert seatctl("redo", raw.path, "08_off_3", "--reason", "somebody used the seat") == 0
    assert "next boot: 08_off_3" in capsys.readouterr().out
    assert "somebody used the seat" in (raw.path / "aborted/08_off_3.0/aborted.json").read_text()


def test_a_quick_look_has_numbers_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "key.env").write_text("VLLM_API_KEY=sk-1\n")
    with FakeVllm(Behaviour(k=2, accepted=(2,), api_key="sk-1")) as fake:
        options = ["--base-url", fake.url, "--shapes", "count", "--concurrency", "1,2", "--max-tokens", "12"]
        assert seatctl("bench", *options, "--api-key-file", tmp_path / "key.env") == 0
        text = capsys.readouterr().out
        assert text.splitlines()[2].split()[:2] == ["count", "1"] and text.splitlines()[2].split()[-1] == "3.00"
        assert "no floor, no verdict" in text
        assert seatctl("bench", *options, "--json", "--api-key-file", tmp_path / "key.env") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["verdict"] is None and all(cell["problem"] is None for cell in found["cells"])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--base-url", "http://10.0.0.1:1"], 5, "R10 remote client"),
        (["--base-url", "http://127.0.0.1:1", "--shapes", "random"], 2, "--shapes: expected names out of"),
        (["--base-url", "http://127.0.0.1:1", "--concurrency", "0"], 2, "--concurrency: expected positive integers"),
        (["--base-url", "http://127.0.0.1:1", "--concurrency", "x"], 2, "--concurrency: expected positive integers"),
        (["--base-url", "http://127.0.0.1:1"], 4, "connection refused"),
    ],
)
def test_a_look_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
):
    assert seatctl("bench", *options) == code
    assert message in capsys.readouterr().err


def test_a_busy_seat_or_another_one_is_not_looked_at(capsys: pytest.CaptureFixture[str]):
    with FakeVllm(Behaviour()) as fake:
        assert seatctl("bench", "--base-url", fake.url, "--model", "other") == 5
        fake.add("running", 1)
        assert seatctl("bench", "--base-url", fake.url) == 5
    text = capsys.readouterr().err
    assert "R16 other seat" in text and "R11 foreign traffic" in text
