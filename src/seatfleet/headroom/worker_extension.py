"""What torch's allocator counted, written from inside vLLM's worker. Probe boots only.

``--worker-extension-cls seatfleet_headroom.Extension`` makes the worker import this file, copied under that name into a
folder on ``PYTHONPATH``; importing starts a thread. Nothing of the worker is changed, and no development endpoint is
needed (``/collective_rpc`` exists only with ``VLLM_SERVER_DEV_MODE``, another environment than production's).

The prober writes ``mark.json`` (``{"number", "label", "depth", "requests", "pin"}``) to begin a window. The thread then
closes the window before, resets torch's peaks and writes ``allocator-<pid>.json``: ``{"open": number, "closed":
{number: counts}}``. So a window's peaks are torch's own, not samples. Standard library and torch only: it runs in the
release's environment. Without CUDA (the lab) the counts come from a recorded capture, ``SEATFLEET_HEADROOM_REPLAY``.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

DIRECTORY_VARIABLE = "SEATFLEET_HEADROOM_DIR"
REPLAY_VARIABLE = "SEATFLEET_HEADROOM_REPLAY"
MARK_FILE = "mark.json"
PERIOD_S = 0.02


class Extension:
    """Adds nothing to the worker: vLLM imports this module to find it, and importing is what counts."""


class Allocator(Protocol):
    """Where counts come from; bytes. ``retries`` and ``ooms`` count since the process began."""

    torch: str

    def ready(self) -> bool:
        """Tell whether there is anything to count yet."""

    def read(self, mark: Mapping[str, Any]) -> dict[str, int]:
        """Return the counts now; peaks since :meth:`reset`."""

    def reset(self) -> None:
        """Begin new peaks."""


class TorchAllocator:
    """The caching allocator of this process."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self.torch = str(self._torch.__version__)
        if self._torch.version.cuda is None:
            raise ValueError(f"torch {self.torch} has no CUDA allocator to ask: give the probe a replay")

    @property
    def _device(self) -> int:
        """Return this worker's card. A thread starts on card 0, so it is the one that memory was reserved on."""
        cuda = self._torch.cuda
        return max(range(cuda.device_count()), key=lambda index: int(cuda.memory_reserved(index)))

    def ready(self) -> bool:
        """Tell whether the worker has begun to use its card; asking earlier would choose the card for it."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.memory_reserved(self._device))

    def read(self, mark: Mapping[str, Any]) -> dict[str, int]:
        """Return the counts now."""
        device = self._device
        before = self._torch.cuda.memory_stats(device)
        free, total = self._torch.cuda.mem_get_info(device)
        after = self._torch.cuda.memory_stats(device)
        reserved = int(after["reserved_bytes.all.current"])
        counts = {
            "device": device,
            "total": int(total),
            "free": int(free),
            "retries": int(after["num_alloc_retries"]),
            "ooms": int(after["num_ooms"]),
            "reserved": reserved,
            "reserved_peak": int(after["reserved_bytes.all.peak"]),
            "allocated_peak": int(after["allocated_bytes.all.peak"]),
        }
        # Memory of the card that is not this allocator's; unknown when something was reserved between two readings.
        if before["reserved_bytes.all.current"] == reserved:
            counts["other"] = int(total) - int(free) - reserved
        return counts

    def reset(self) -> None:
        """Begin new peaks."""
        self._torch.cuda.reset_peak_memory_stats(self._device)


class ReplayedAllocator:
    """What a card would have counted, from a capture of one: ``{"captured", "driver", "torch", "total", ...}``.

    ``points`` are ``[tokens, bytes]``: what one prompt of that many tokens needed beyond ``weights`` and the pin. A
    prompt longer than the capture's longest is a question that it cannot answer.
    """

    def __init__(self, file: Path) -> None:
        capture = json.loads(file.read_text(encoding="utf-8"))
        for name in ("captured", "driver"):
            if not capture.get(name):
                raise ValueError(f"{file}: a capture says when and with which driver it was made ({name} is missing)")
        self._capture: dict[str, Any] = capture
        self._retries = self._ooms = self._largest = 0
        self._seen: int | None = None
        self.torch = f"replay of {capture['captured']}, driver {capture['driver']}, torch {capture.get('torch')}"

    def ready(self) -> bool:
        """Return True: a replay can always answer."""
        return True

    def need(self, tokens: int) -> int:
        """Return the bytes that one prompt of ``tokens`` needs, between two points of the capture.

        Raises:
            ValueError: longer than anything captured.
        """
        points = [(0, 0), *((int(depth), int(size)) for depth, size in self._capture["points"])]
        for (low, small), (high, large) in pairwise(points):
            if tokens <= high:
                return int(small + (large - small) * (tokens - low) / (high - low))
        raise ValueError(f"the capture ends at {points[-1][0]} tokens, asked for {tokens}")

    def read(self, mark: Mapping[str, Any]) -> dict[str, int]:
        """Return what the card would count for the prompts of this mark."""
        capture, pin = self._capture, int(mark.get("pin", 0))
        held = int(capture["weights"]) + pin
        self._largest = max(self._largest, self.need(int(mark.get("depth", 0))))
        total, other = int(capture["total"]), int(capture["other"])
        room = total - other - held
        if mark.get("number") != self._seen and self.need(int(mark.get("depth", 0))) > room:
            self._retries += 1
            self._ooms += self.need(int(mark.get("depth", 0))) > room + int(capture["fragments"])
        self._seen = mark.get("number")
        reserved = held + min(room, self._largest)
        return {
            "device": 0,
            "total": total,
            "free": total - other - reserved,
            "retries": self._retries,
            "ooms": self._ooms,
            "reserved": reserved,
            "reserved_peak": reserved,
            "allocated_peak": held + min(room, self.need(int(mark.get("depth", 0)))),
            "other": other,
        }

    def reset(self) -> None:
        """Do nothing: peaks follow from the mark."""


class Window:
    """What was counted between two marks."""

    def __init__(self, mark: Mapping[str, Any], first: Mapping[str, int]) -> None:
        self.mark, self.first, self.last = mark, first, first
        self.free = first["free"]
        self.other: int | None = None

    def add(self, counts: Mapping[str, int]) -> None:
        """Take one more reading into account."""
        self.last, self.free = counts, min(self.free, counts["free"])
        if "other" in counts:
            self.other = max(self.other or 0, counts["other"])

    def summary(self) -> dict[str, Any]:
        """Return increments, peaks and the least free memory seen."""
        other = self.other if self.other is not None else self.last["total"] - self.free - self.last["reserved"]
        return {
            "label": self.mark.get("label"),
            "device": self.last["device"],
            "total": self.last["total"],
            "retries": self.last["retries"] - self.first["retries"],
            "ooms": self.last["ooms"] - self.first["ooms"],
            "reserved_peak": self.last["reserved_peak"],
            "allocated_peak": self.last["allocated_peak"],
            "other_peak": other,
            "free_least": self.free,
        }


class Watcher:
    """Reads the marks and writes the windows."""

    def __init__(self, allocator: Allocator, directory: Path) -> None:
        self.allocator, self.directory = allocator, directory
        self._window: Window | None = None
        self._closed: dict[str, Any] = {}
        self._announced = False

    def look(self) -> None:
        """Read once; on a new mark close the window and begin the next."""
        if not self.allocator.ready():
            return
        mark = self._mark()
        if mark is None:
            # While graphs are being captured a call of another thread can spoil the capture: only say "here".
            if not self._announced:
                self._write({"open": 0, "closed": {}, "torch": self.allocator.torch})
                self._announced = True
        elif self._window is None:
            self._begin(mark)
        elif mark.get("number") != self._window.mark.get("number"):
            self._window.add(self.allocator.read(self._window.mark))
            self._closed[str(self._window.mark.get("number"))] = self._window.summary()
            self._begin(mark)
        else:
            self._window.add(self.allocator.read(mark))

    def _begin(self, mark: Mapping[str, Any]) -> None:
        before = self._window.last if self._window else None
        self.allocator.reset()
        now = self.allocator.read(mark)
        # Increments count from the last reading of the window before: nothing falls between two windows.
        self._window = Window(mark, before or now)
        self._window.add(now)
        self._write({"open": mark.get("number"), "closed": self._closed, "torch": self.allocator.torch})

    def _mark(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads((self.directory / MARK_FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _write(self, content: Mapping[str, Any]) -> None:
        file = self.directory / f"allocator-{os.getpid()}.json"
        temporary = file.with_suffix(".new")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(file)

    def run(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Look for ever; an error ends the watching and is written down, never raised into the engine."""
        try:
            while True:
                self.look()
                sleep(PERIOD_S)
        except Exception as error:
            self._write({"error": f"{type(error).__name__}: {error}"})


def start(environment: Mapping[str, str]) -> threading.Thread | None:
    """Start watching when the environment asks for it."""
    if DIRECTORY_VARIABLE not in environment:
        return None
    directory = Path(environment[DIRECTORY_VARIABLE])
    directory.mkdir(parents=True, exist_ok=True)
    replay = environment.get(REPLAY_VARIABLE)
    try:
        allocator: Allocator = ReplayedAllocator(Path(replay)) if replay else TorchAllocator()
    except Exception as error:
        (directory / f"allocator-{os.getpid()}.json").write_text(json.dumps({"error": repr(error)}), encoding="utf-8")
        return None
    thread = threading.Thread(target=Watcher(allocator, directory).run, name="seatfleet-headroom", daemon=True)
    thread.start()
    return thread


start(os.environ)
