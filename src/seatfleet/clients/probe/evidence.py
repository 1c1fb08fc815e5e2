"""What a seat's earlier probes left behind: acceptance baselines and goldens, valid for one release and configuration.

Both are files in the evidence directory, written atomically. Without a directory nothing is kept and nothing compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...core.manifest import Manifest
from ..evidence import write_atomic
from .session import Session

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
