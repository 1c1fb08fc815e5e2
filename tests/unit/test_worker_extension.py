"""What runs inside vLLM's worker on a probe boot, against a made-up torch: windows, peaks, and never an error."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.units import GIB
from seatfleet.headroom import worker_extension as extension


class Card:
    """A card and torch's allocator on it, as ``torch.cuda`` shows them."""

    def __init__(self) -> None:
        self.initialized = False
        self.reserved, self.reserved_peak, self.allocated_peak = [0, 0], 0, 0
        self.retries = self.ooms = 0
        self.free, self.total = 60 * GIB, 96 * GIB
        self.calls: list[str] = []
        self.grows_while_read = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        return 2

    def memory_reserved(self, index: int) -> int:
        return self.reserved[index]

    def memory_stats(self, index: int) -> dict[str, int]:
        self.calls.append(f"stats {index}")
        now = self.reserved[index]
        self.reserved[index] += self.grows_while_read
        return {
            "reserved_bytes.all.current": now,
            "reserved_bytes.all.peak": max(self.reserved_peak, now),
            "allocated_bytes.all.peak": self.allocated_peak,
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.calls.append(f"info {index}")
        return self.free, self.total

    def reset_peak_memory_stats(self, index: int) -> None:
        self.calls.append(f"reset {index}")
        self.reserved_peak = self.allocated_peak = 0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = Card()
    torch = types.SimpleNamespace(cuda=made, __version__="2.11.0+cu130", version=types.SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def mark(folder: Path, number: int) -> None:
    (folder / extension.MARK_FILE).write_text(json.dumps({"number": number, "label": f"w{number}"}))


def report(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("allocator-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_nothing_is_asked_before_the_worker_uses_its_card(card: Card, tmp_path: Path) -> None:
    watcher = extension.Watcher(extension.TorchAllocator(), tmp_path)
    watcher.look()
    card.initialized = True
    watcher.look()  # initialized, and nothing reserved yet
    assert card.calls == []
    assert list(tmp_path.iterdir()) == []


def test_while_graphs_are_captured_the_driver_is_not_called(card: Card, tmp_path: Path) -> None:
    card.initialized, card.reserved = True, [0, GIB]
    watcher = extension.Watcher(extension.TorchAllocator(), tmp_path)
    for _ in range(3):
        watcher.look()
    assert card.calls == []
    assert report(tmp_path) == {"open": 0, "closed": {}, "torch": "2.11.0+cu130"}


def test_a_window_has_its_own_peaks_increments_and_card(card: Card, tmp_path: Path) -> None:
    card.initialized, card.reserved, card.retries = True, [0, 30 * GIB], 7  # retries while it loaded
    watcher = extension.Watcher(extension.TorchAllocator(), tmp_path)
    mark(tmp_path, 1)
    watcher.look()
    assert report(tmp_path)["open"] == 1
    card.reserved_peak, card.allocated_peak, card.free = 34 * GIB, 33 * GIB, 58 * GIB
    watcher.look()
    card.retries, card.ooms, card.free = 9, 1, 59 * GIB
    mark(tmp_path, 2)
    watcher.look()
    (window,) = report(tmp_path)["closed"].values()
    assert (window["label"], window["device"], window["retries"], window["ooms"]) == ("w1", 1, 2, 1)
    assert (window["reserved_peak"], window["allocated_peak"]) == (34 * GIB, 33 * GIB)
    assert (window["free_least"], window["other_peak"]) == (58 * GIB, 96 * GIB - 58 * GIB - 30 * GIB)
    assert card.calls.count("reset 1") == 2
    mark(tmp_path, 3)
    watcher.look()
    assert report(tmp_path)["closed"]["2"]["retries"] == 0
    assert report(tmp_path)["closed"]["2"]["reserved_peak"] == 30 * GIB


def test_memory_of_others_is_unknown_while_the_allocator_grows(card: Card) -> None:
    card.reserved, card.grows_while_read = [0, GIB], 1
    assert "other" not in extension.TorchAllocator().read({})
    card.grows_while_read = 0
    assert "other" in extension.TorchAllocator().read({})


def test_an_error_is_written_down_and_not_raised(card: Card, tmp_path: Path) -> None:
    card.initialized, card.reserved = True, [0, GIB]
    watcher = extension.Watcher(extension.TorchAllocator(), tmp_path)
    (tmp_path / extension.MARK_FILE).write_text("{")
    watcher.run(lambda _: None)
    assert "JSONDecodeError" in report(tmp_path)["error"]


def test_a_torch_without_cuda_is_said(card: Card, tmp_path: Path) -> None:
    sys.modules["torch"].version.cuda = None
    folder = tmp_path / "counts"
    assert extension.start({extension.DIRECTORY_VARIABLE: str(folder)}) is None
    assert "give the probe a replay" in report(folder)["error"]


def test_without_being_asked_nothing_starts() -> None:
    assert extension.start({}) is None


def test_vllm_accepts_it_beside_any_worker() -> None:
    """vLLM adds the class to the worker's bases and refuses every public name that the worker has, too."""
    assert [name for name in dir(extension.Extension) if not name.startswith("__")] == []


def test_it_needs_the_standard_library_only() -> None:
    source = Path(extension.__file__).read_text(encoding="utf-8")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("alone", None))  # type: ignore[arg-type]
    exec(compile(source, "seatfleet_headroom.py", "exec"), module.__dict__)
    assert module.Extension.__module__ == "alone"
