from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seatfleet.campaign import rawdata
from seatfleet.campaign.load import CellRun, Request
from seatfleet.campaign.rawdata import Planned, Progress, RawCampaign, RawError, cell_name, progress_from_json
from seatfleet.campaign.schedule import Slot

PAGE = 'process_start_time_seconds 5\nvllm:request_success_total{engine="0"} %d\nvllm:generation_tokens_total %d\n'
REQUEST = Request(
    "r",
    "p",
    "sha",
    "salt",
    True,
    0,
    10,
    11,
    12,
    "content",
    20,
    ((12, 1, "content"), (20, 3, None)),
    5,
    4,
    0,
    "stop",
    200,
)
HEADER = {"rep": 0, "shape": "prose", "concurrency": 1, "kind": "stream", "order_index": 0}


def campaign(path: Path) -> RawCampaign:
    return RawCampaign.create(path / "c", {"campaign_id": "c"}, ["off", "k1", "off"])


def measure(raw: RawCampaign, value: int = 1) -> Slot:
    progress = raw.progress()
    slot = progress.next_slot
    assert slot is not None
    writer = raw.begin(slot.directory)
    before, after = writer.scrape(PAGE % (0, 0)), writer.scrape(PAGE % (value, 4))
    writer.cell(CellRun(1, 30, "t", (REQUEST,)), {**HEADER, "prom_before": before, "prom_after": after})
    raw.complete(writer, {"slot": slot.index, "arm": slot.arm}, progress, slot, time.time())
    return slot


def test_what_is_written_is_read_back(tmp_path: Path):
    raw = campaign(tmp_path)
    assert measure(raw).directory == "00_off_1" and raw.boots() == ("00_off_1",)
    (cell,) = raw.cells("00_off_1")
    assert cell.requests == (REQUEST,) and cell.counters.successes == 1 and cell.counters.generation_tokens == 4
    assert (cell.arm, cell.slot, cell.key) == ("off", 0, ("prose", 1))
    assert raw.manifest()["schema_version"] == 1
    assert raw.progress().next_slot == Slot(1, "k1", 1)


def test_a_boot_counts_only_when_it_is_complete(tmp_path: Path):
    raw = campaign(tmp_path)
    measure(raw)
    writer = raw.begin("01_k1_1")
    writer.scrape(PAGE % (0, 0))
    assert raw.boots() == ("00_off_1",)
    again = raw.begin("01_k1_1")
    assert [p.name for p in (raw.path / "aborted").iterdir()] == ["01_k1_1.0"]
    assert "interrupted" in json.loads((raw.path / "aborted/01_k1_1.0/aborted.json").read_text())["reason"]
    assert list((again.path / "scrapes").iterdir()) == []


def test_a_boot_that_was_renamed_but_not_recorded_is_measured_again(tmp_path: Path):
    raw = campaign(tmp_path)
    measure(raw)
    old = (raw.path / rawdata.LOCK).read_bytes()
    measure(raw)
    (raw.path / rawdata.LOCK).write_bytes(old)
    assert raw.clear_partial("crash") == ["01_k1_1.0"]
    assert measure(raw).directory == "01_k1_1"


def test_only_the_last_boot_can_be_taken_back(tmp_path: Path):
    raw = campaign(tmp_path)
    measure(raw), measure(raw)
    with pytest.raises(RawError, match="expected 01_k1_1, seen 00_off_1"):
        raw.redo("00_off_1", "hot")
    assert raw.redo("01_k1_1", "somebody used the seat").next_slot == Slot(1, "k1", 1)
    assert (raw.path / "aborted/01_k1_1.0/boot.json").exists()


def test_equal_content_gives_equal_files(tmp_path: Path):
    raws = [campaign(tmp_path / name) for name in "ab"]
    for raw in raws:
        measure(raw)
        time.sleep(0.01)
    assert rawdata._sums(raws[0].path / "boots") == rawdata._sums(raws[1].path / "boots")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "boots/00_off_1/boot.json").write_text("{}"), "boots/00_off_1/boot.json was changed"),
        (lambda p: (p / "boots/00_off_1/scrapes/0000.prom.gz").unlink(), "0000.prom.gz is missing"),
        (lambda p: (p / "boots/00_off_1/cells/9_x_c1.json").write_text("{}"), "9_x_c1.json was added"),
        (lambda p: (p / "boots/03_k9_1").mkdir(), "boots: expected"),
        (lambda p: (p / "campaign.json").write_text("{}"), "campaign.json was changed"),
        (lambda p: (p / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
    ],
)
def test_changed_raw_data_is_found(tmp_path: Path, damage: object, message: str):
    raw = campaign(tmp_path)
    for _ in range(3):
        measure(raw)
    raw.seal()
    raw.verify()
    damage(raw.path)
    with pytest.raises(RawError, match=message):
        raw.verify()


def test_a_campaign_is_not_overwritten_and_a_strange_directory_is_named(tmp_path: Path):
    campaign(tmp_path)
    with pytest.raises(RawError, match="resume it, or choose another id"):
        campaign(tmp_path)
    with pytest.raises(RawError, match="is this the directory of a campaign"):
        RawCampaign(tmp_path).manifest()
    (tmp_path / "campaign.json").write_text("{")
    with pytest.raises(RawError, match="not JSON"):
        RawCampaign(tmp_path).manifest()
    with pytest.raises(RawError, match="expected format 1, seen 2"):
        progress_from_json({"format": 2})


def test_two_processes_cannot_measure_one_campaign(tmp_path: Path):
    raw = campaign(tmp_path)
    with raw.locked(), pytest.raises(RawError, match="another process is measuring"), raw.locked():
        pass
    with raw.locked():
        assert (raw.path / ".running").exists()


HELD = """
import sys, time
from pathlib import Path
from seatfleet.campaign.rawdata import RawCampaign
with RawCampaign(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_gone(tmp_path: Path):
    raw = campaign(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", HELD, str(raw.path)], stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    with pytest.raises(RawError), raw.locked():
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    with raw.locked():
        assert raw.exists


PROGRESS = Progress(
    "c", tuple(map(Planned, ["off", "k1", "off", "k1", "off"])), ("00_off_1", "01_k1_1"), 0, "boot-a", 1000.0
)


def test_a_short_pause_changes_nothing():
    assert PROGRESS.resumed("off", "boot-a", 1000 + 3600, 21600) == PROGRESS


@pytest.mark.parametrize(("host", "now", "gap"), [("boot-a", 1000 + 21601, 21601.0), ("boot-b", 1060.0, 60.0)])
def test_a_long_pause_or_a_reboot_opens_a_block_with_an_extra_control_boot(host: str, now: float, gap: float):
    resumed = PROGRESS.resumed("off", host, now, 21600)
    assert resumed.next_slot == Slot(2, "off", 2) and resumed.schedule[2].extra
    assert [slot.directory for slot in resumed.slots][2:] == ["02_off_2", "03_off_3", "04_k1_2", "05_off_4"]
    assert (resumed.block, resumed.gaps, resumed.host_boot_id) == (1, ((2, gap),), host)
    assert progress_from_json(json.loads(json.dumps(resumed.as_json()))) == resumed


def test_nothing_is_inserted_before_the_first_or_after_the_last_boot():
    fresh = Progress("c", PROGRESS.schedule)
    assert fresh.resumed("off", "boot-b", 1e9, 1).schedule == fresh.schedule
    done = Progress("c", PROGRESS.schedule, tuple("abcde"), 0, "boot-a", 0.0)
    assert done.resumed("off", "boot-b", 1e9, 1).schedule == done.schedule and done.next_slot is None


def test_cells_are_named_by_what_they_are():
    assert cell_name(0, "tool", 8, "stream") == "0_tool_c8"
    assert cell_name(2, "tool", 1, "planted") == "2_tool_c1_planted"


def test_a_clock_that_was_set_back_does_not_hide_a_pause():
    resumed = PROGRESS.resumed("off", "boot-a", 900.0, 21600)
    assert resumed.block == 1 and resumed.schedule[2].extra


def test_an_extra_boot_that_is_still_to_be_made_serves_for_two_pauses():
    first = PROGRESS.resumed("off", "boot-b", 1060.0, 21600)
    second = first.resumed("off", "boot-c", 1120.0, 21600)
    assert second.schedule == first.schedule and second.host_boot_id == "boot-c"


def test_who_only_looks_does_not_keep_anybody_from_measuring(tmp_path: Path):
    raw = campaign(tmp_path)
    assert not raw.running
    looking = threading.Event()

    def look() -> None:
        with (raw.path / ".running").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            looking.set()
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    looking.wait(5)
    assert not raw.running, "two that look do not take each other for a campaign"
    with raw.locked():
        assert raw.running
    thread.join()
