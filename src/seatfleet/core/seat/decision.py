"""What a seat needs, decided from what really runs and not only from files on disk. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..host.processes import Process, SeatState
from .render import API_KEY_VARIABLE, GENERATION_VARIABLE

# Of what a process was started with beside the wanted variables, these can change what it does.
_GUARDED_PREFIXES = ("VLLM_", "CUDA_", "HF_", "TORCH", "PYTHON", "LD_")
# Follow from other values: naming them would only hide what the operator changed.
_DERIVED = frozenset({GENERATION_VARIABLE, "SEATFLEET_RELEASE", "PATH"})


class Action(StrEnum):
    """What happens to a seat."""

    NOTHING = "nothing"
    VERIFY = "verify"
    START = "start"
    RESTART = "restart"


@dataclass(frozen=True)
class Wanted:
    """The generation that should run, as its manifest says, and a digest of the API key it should have."""

    generation: str
    manifest: Mapping[str, Any]
    unit_text: str
    api_key_digest: str | None = None

    @property
    def unit(self) -> str:
        """Name of the systemd unit."""
        return str(self.manifest["unit"])

    @property
    def port(self) -> int:
        """TCP port of the seat."""
        return int(self.manifest["port"])

    @property
    def release_path(self) -> str:
        """Where the release is installed."""
        return str(self.manifest["release_path"])


@dataclass(frozen=True)
class OnDisk:
    """What the files of a seat on its host say."""

    current: str | None
    good: bool  # the wanted generation has evidence of passed probes
    unit_text: str | None
    running_manifest: Mapping[str, Any] | None  # of the generation that the process says it was started from
    api_key_digest: str | None = None  # of what the unit would start with; None: there is no file


@dataclass(frozen=True)
class Decision:
    """What to do and why; ``repairs`` need no restart."""

    action: Action
    reasons: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()

    @property
    def restarts(self) -> bool:
        """Whether callers will notice."""
        return self.action in {Action.START, Action.RESTART}

    @property
    def changes(self) -> bool:
        """Whether anything on the host changes."""
        return self.action is not Action.NOTHING or bool(self.repairs)


def digest(secret: str) -> str:
    """Return a hash for comparing secrets without keeping them."""
    return hashlib.sha256(secret.encode()).hexdigest()


def decide(wanted: Wanted, seen: SeatState, disk: OnDisk) -> Decision:
    """Compare the wanted generation with the running process."""
    if not seen.unit.running or seen.process is None:
        return Decision(Action.START, (f"the unit is {seen.unit}",))
    reasons = _process_differences(wanted, seen.process, disk)
    if reasons:
        return Decision(Action.RESTART, tuple(reasons))
    repairs = tuple(_repairs(wanted, seen, disk))
    if not disk.good:
        return Decision(Action.VERIFY, ("the running generation has no passed probe on record",), repairs)
    return Decision(Action.NOTHING, (), repairs)


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return in words how two manifests differ in what reaches the process."""
    changes = []
    if before["release_id"] != after["release_id"]:
        changes.append(f"release: {before['release_id']} -> {after['release_id']}")
    changes += _differences(before["declared"], after["declared"])
    arms = [part["environment"] for part in (before, after)]
    changes += [line for line in _differences(*arms) if not _follows(line, arms)]
    return changes or ["the unit file"]


def _process_differences(wanted: Wanted, process: Process, disk: OnDisk) -> list[str]:
    running = process.environ.get(GENERATION_VARIABLE)
    if running != wanted.generation:
        if running is None or disk.running_manifest is None:
            return [f"the process runs generation {running or 'unknown'}, wanted is {wanted.generation}"]
        return describe_changes(disk.running_manifest, wanted.manifest)
    reasons = []
    interpreter, *arguments = process.argv
    if not interpreter.startswith(f"{wanted.release_path}/bin/"):
        reasons.append(f"the process runs from {interpreter}, wanted is {wanted.release_path}")
    if arguments != list(wanted.manifest["argv"]):
        reasons.append("the process was started with other arguments than its unit says")
    environment = wanted.manifest["environment"]
    wrong = [name for name, value in environment.items() if process.environ.get(name) != value]
    wrong += [name for name in process.environ if _unexpected(name, environment)]
    if wrong:
        reasons.append(f"the process has another environment: {', '.join(sorted(wrong))}")
    key = process.environ.get(API_KEY_VARIABLE)
    if wanted.api_key_digest is not None and (key is None or digest(key) != wanted.api_key_digest):
        reasons.append("the API key of the seat has changed")
    return reasons


def _unexpected(name: str, environment: Mapping[str, str]) -> bool:
    return name.startswith(_GUARDED_PREFIXES) and name not in environment and name != API_KEY_VARIABLE


def _repairs(wanted: Wanted, seen: SeatState, disk: OnDisk) -> list[str]:
    repairs = []
    if disk.current != wanted.generation:
        repairs.append(f"link current: {disk.current} -> {wanted.generation}")
    if disk.unit_text != wanted.unit_text:
        repairs.append(f"unit file {wanted.unit}")
    if wanted.api_key_digest is not None and disk.api_key_digest != wanted.api_key_digest:
        repairs.append("the file of the API key")
    repairs += [f"remove {path}" for path in seen.unit.drop_ins]
    if seen.unit.needs_reload and not repairs:
        repairs.append("systemd has not read the unit file yet")
    if not seen.unit.enabled:
        repairs.append(f"enable {wanted.unit}")
    return repairs


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    keys = list(dict.fromkeys((*after, *before)))
    return [
        f"{key}: {before.get(key, 'not set')} -> {after.get(key, 'not set')}"
        for key in keys
        if before.get(key) != after.get(key) and key not in _DERIVED
    ]


def _follows(line: str, environments: list[Mapping[str, Any]]) -> bool:
    """Whether a difference is only the folder of the caches, which is named after release, weights and drafter."""
    home = environments[1].get("HOME", "")
    name = line.split(":", 1)[0]
    return all(str(environment.get(name, "")).startswith(f"{home}/") for environment in environments)
