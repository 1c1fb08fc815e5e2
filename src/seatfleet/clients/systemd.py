"""What systemd and the journal say about a unit. Read only; as root, on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "ControlGroup",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
)
_COMMAND_LIMIT_S = 20


@dataclass(frozen=True)
class UnitState:
    """``systemctl show`` of a service; ``started_s`` is CLOCK_MONOTONIC of the main process's start."""

    load: str
    active: str
    sub: str
    result: str
    main_pid: int
    restarts: int
    invocation: str
    cgroup: str
    exit_status: int
    started_s: float

    @property
    def running(self) -> bool:
        """True from the first ExecStartPre until this start ends; waiting for an automatic restart is not running."""
        return self.active in ("active", "reloading") or (
            self.active == "activating" and not self.sub.startswith("auto-restart")
        )

    def __str__(self) -> str:
        """Describe the state the way ``systemctl status`` does."""
        detail = f", result {self.result}, exit status {self.exit_status}" if not self.running else ""
        return f"{self.active} ({self.sub}){detail}, {self.restarts} automatic restarts"


def parse_show(text: str) -> UnitState:
    """Return the state from the ``KEY=VALUE`` lines of ``systemctl show``."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitState(
        load=values.get("LoadState", "not-found"),
        active=values.get("ActiveState", "inactive"),
        sub=values.get("SubState", "dead"),
        result=values.get("Result", ""),
        main_pid=int(values.get("MainPID") or 0),
        restarts=int(values.get("NRestarts") or 0),
        invocation=values.get("InvocationID", ""),
        cgroup=values.get("ControlGroup", ""),
        exit_status=int(values.get("ExecMainStatus") or 0),
        started_s=int(values.get("ExecMainStartTimestampMonotonic") or 0) / 1e6,
    )


def _run(argv: Sequence[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S).stdout


def read_unit(unit: str) -> UnitState:
    """Return the state of a unit.

    Raises:
        OSError, subprocess.SubprocessError: systemctl is missing, failed or did not answer.
    """
    return parse_show(_run(["systemctl", "show", unit, f"--property={','.join(_PROPERTIES)}"]))


def read_journal(unit: UnitState, name: str, *, pattern: str | None = None, lines: int = 2000) -> list[str]:
    """Return what this start of the unit wrote, oldest first, at most ``lines``; empty when the journal is not kept."""
    match = f"_SYSTEMD_INVOCATION_ID={unit.invocation}" if unit.invocation else f"_SYSTEMD_UNIT={name}"
    argv = ["journalctl", "--no-pager", "--output=cat", f"--lines={lines}", match]
    if pattern is not None:
        argv += [f"--grep={pattern}", "--case-sensitive=yes"]
    try:
        return _run(argv).splitlines()
    except (OSError, subprocess.SubprocessError):  # journalctl --grep exits 1 when nothing matches
        return []
