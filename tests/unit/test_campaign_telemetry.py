from __future__ import annotations

import time
from pathlib import Path

import pytest

from seatfleet.campaign.telemetry import COLUMNS, Sampler, parse_dmon_line, parse_query_line, summarize

RTX = "0, 95802, 2617, 14001, 61, N/A, 412.31, 99, 0x0000000000000000"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (RTX, ["0", "95802", "2617", "14001", "61", "", "412.31", "99", "0x0000000000000000"]),
        (
            "0, [N/A], 2400, [N/A], 55, [N/A], 30.1, 96, [Not Supported]",
            ["0", "", "2400", "", "55", "", "30.1", "96", ""],
        ),
        ("No devices were found", None),
        ("", None),
        ("a, b", None),
    ],
)
def test_lines_of_both_kinds_of_card(line: str, expected: list[str] | None):
    assert parse_query_line(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    0    1204     33", ("0", "1204", "33")),
        ("    0       -      -", ("0", "", "")),
        ("# gpu   rxpci  txpci", None),
        ("# Idx    MB/s   MB/s", None),
        ("", None),
    ],
)
def test_lines_of_the_pcie_monitor(line: str, expected: tuple[str, str, str] | None):
    assert parse_dmon_line(line) == expected


def csv(*rows: str) -> str:
    return "\n".join([",".join(COLUMNS), *rows]) + "\n"


def test_a_boot_is_summed_up_over_its_busy_samples():
    idle = "1,0,900,180,405,40,,30,0,0x0000000000000001,,"
    busy = "2,0,1000,2600,14001,60,,400,99,0x0000000000000000,120,20"
    hot = "3,0,1200,2400,14001,88,,380,99,0x0000000000000040,130,20"
    found = summarize(csv(idle, busy, busy, hot))
    assert found.sm_mhz == 2600 and found.temp_c_max == 88 and found.mem_used_mib_max == 1200
    assert found.throttled == 0.25 and found.samples == 4
    assert found.power_w_mean == pytest.approx((30 + 400 + 400 + 380) / 4)
    assert found.pcie_rx_mb_s_mean == pytest.approx((120 + 120 + 130) / 3)


@pytest.mark.parametrize(
    ("mask", "thermal"),
    [(0x1, False), (0x4, False), (0x8, True), (0x20, True), (0x40, True), (0x80, True), (0x24, True)],
)
def test_only_heat_and_power_brakes_count_as_throttling(mask: int, thermal: bool):
    found = summarize(csv(f"1,0,1,2600,1,60,,400,99,0x{mask:016x},,"))
    assert (found.throttled == 1.0) is thermal


def test_no_sample_is_no_summary():
    assert summarize(csv()) is None and summarize("") is None


def test_a_card_that_reports_little_has_what_it_reports():
    found = summarize(csv("1,0,,2400,,55,,30.1,96,,,"))
    assert found.mem_used_mib_max is None and found.pcie_rx_mb_s_mean is None
    assert found.throttled is None and found.sm_mhz == 2400


FAKE = """#!/bin/sh
case "$1" in
dmon) while :; do echo '    0    1204     33'; sleep 0.02; done ;;
*) while :; do echo '{line}'; sleep 0.02; done ;;
esac
"""


def test_a_host_with_a_card_is_sampled_until_it_is_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(FAKE.format(line=RTX))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sampler = Sampler()
    sampler.start()
    deadline = time.monotonic() + 60
    while not any(row[-1] for row in sampler.rows) and time.monotonic() < deadline:
        time.sleep(0.02)
    found = summarize(sampler.stop())
    assert found.sm_mhz == 2617 and found.pcie_rx_mb_s_mean == 1204


def test_a_host_without_a_card_has_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    sampler = Sampler()
    sampler.start()
    assert sampler.stop() == ",".join(COLUMNS) + "\n"


def test_the_slowest_of_several_cards_decides_and_an_idle_one_does_not():
    """All wait for it in every step; of four cards one that throttles in 16 % of samples was 4 % of all."""
    rows = []
    for i in range(50):
        mask = "0x0000000000000040" if i < 8 else "0x0000000000000000"
        rows += [f"{i},{gpu},1,2600,1,60,,400,99,0x0000000000000000,," for gpu in (0, 1, 2)]
        rows += [f"{i},3,1,2300,1,60,,400,99,{mask},,", f"{i},4,1,210,1,30,,20,0,0x0000000000000001,,"]
    found = summarize(csv(*rows))
    assert found.throttled == 0.16 and found.sm_mhz == 2300
