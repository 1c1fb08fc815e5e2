"""What a seat's earlier probes left behind: acceptance baselines and goldens, valid for one release and configuration.

Both are files in the evidence directory, written atomically. Without a directory nothing is kept and nothing compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...core.seat.manifest import Manifest
from ..evidence import write_atomic
from .session import Session

#: Two runs of the deepest level, or forty of acceptance.
HOURLY_TOKENS = 300_000
_HOUR_S = 3600.0
#: Boots that make a baseline; later ones are compared with it and no longer change it.
BASELINE_BOOTS = 3


def subject(manifest: Manifest) -> dict[str, Any]:
    """Return what the numbers are about: another release, model or speculation is another subject."""
    speculative = manifest.speculative
    return {
        "release_id": manifest.release_id,
        "model_id": manifest.model_id,
        "model_path": str(manifest.model_path) if manifest.model_path else None,
        "speculative": [speculative.method, speculative.k] if speculative else None,
    }


def load_state(path: Path | None) -> dict[str, Any]:
    """Return the content of a state file; empty when there is none or it cannot be read (it is only ever rewritten)."""
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass
class Budget:
    """Tokens that heavy levels have cost a seat: at most :data:`HOURLY_TOKENS` an hour and start.

    A start is anew worth a probe; a job that asks the same start every minute is a mistake that callers pay for.
    """

    path: Path | None
    boot: str
    runs: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, session: Session) -> Self:
        """Read what earlier probes have spent within the hour."""
        path = session.options.evidence / "budget.json" if session.options.evidence else None
        now = time.time()
        runs = [run for run in load_state(path).get("runs", []) if now - _HOUR_S < run.get("at", 0) <= now]
        return cls(path, session.report.boot_id or session.boot(), runs)

    @property
    def spent(self) -> int:
        """Tokens spent on this start within the hour."""
        return sum(int(run["tokens"]) for run in self.runs if run.get("boot") == self.boot)

    def add(self, tokens: int) -> None:
        """Write down what a probe has cost."""
        if self.path is not None and tokens:
            self.runs.append({"at": int(time.time()), "boot": self.boot, "tokens": tokens})
            write_atomic(self.path, json.dumps({"runs": self.runs}, indent=1) + "\n")


@dataclass
class Baselines:
    """Acceptance lengths of the first boots of this subject: workload -> boot id -> AL."""

    path: Path | None
    subject: dict[str, Any]
    boot: str
    workloads: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> Self:
        """Read the baselines of the seat, empty when they are of another subject."""
        path = session.options.evidence / "baseline.json" if session.options.evidence else None
        about = subject(session.manifest)
        state = load_state(path)
        workloads = state.get("workloads") if state.get("subject") == about else None
        return cls(path, about, session.report.boot_id or "", dict(workloads or {}))

    def lengths(self, workload: str) -> Sequence[float]:
        """Return the AL of earlier boots, empty until there are enough of them."""
        known = self.workloads.get(workload, {})
        return list(known.values()) if len(known) >= BASELINE_BOOTS else ()

    def add(self, workload: str, length: float) -> None:
        """Add this boot's healthy AL while the baseline is not complete."""
        known = self.workloads.setdefault(workload, {})
        if len(known) < BASELINE_BOOTS and self.boot:
            known.setdefault(self.boot, round(length, 4))

    def save(self) -> None:
        """Write the file."""
        if self.path is not None:
            text = json.dumps({"subject": self.subject, "workloads": self.workloads}, indent=2)
            write_atomic(self.path, text + "\n")
