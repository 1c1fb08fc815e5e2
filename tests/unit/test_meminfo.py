"""The memory of a host, from its own ``/proc/meminfo`` and from text."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatfleet.core.host import meminfo

TEXT = "MemTotal:       9 kB\nMemAvailable:    7 kB\nHugePages_Total:       0\n"


def test_sizes_in_bytes() -> None:
    assert meminfo.fields(TEXT) == {"MemTotal": 9 * 1024, "MemAvailable": 7 * 1024}
    assert meminfo.field(TEXT, "MemAvailable") == 7 * 1024


@pytest.mark.parametrize("text", ["", "nonsense", "MemAvailable: 7 MB\n", "SwapMemAvailable: 7 kB\n"])
def test_a_missing_field_is_an_error_and_not_zero(text: str, tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text(text)
    with pytest.raises(ValueError, match="expected MemAvailable, seen none"):
        meminfo.available(file)


def test_this_very_machine() -> None:
    assert 0 < meminfo.available() < meminfo.field(meminfo.PATH.read_text(), "MemTotal")
