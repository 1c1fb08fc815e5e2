"""Are the answers sane? The probe's canary, before and after the cells of every boot, with a golden per campaign.

The golden is one per arm: greedy tokens with a clear lead must be the same in every boot of an arm. Between arms a
difference is only a warning, because verification may legally break near-ties otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..clients.probe import Host, Options
from ..clients.probe.canary import check_canary, check_canary_deep
from ..clients.probe.session import Session, Stop
from ..clients.vllm import SeatClient, SeatError
from ..core.health.probe_report import Report
from ..core.seat.manifest import Manifest


@dataclass(frozen=True)
class Answers:
    """What is wrong with the answers (rule V7), and what is merely odd."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the form kept in ``boot.json``."""
        return {"problems": list(self.problems), "warnings": list(self.warnings)}


def check_answers(
    manifest: Manifest,
    client: SeatClient,
    host: Host,
    evidence: Path,
    checks: Sequence[Callable[[Session], None]] = (check_canary, check_canary_deep),
) -> Answers:
    """Ask the seat about 300 tokens' worth of questions; ``evidence`` keeps the golden of this arm."""
    evidence.mkdir(parents=True, exist_ok=True)
    report = Report(manifest.seat, manifest.host, "canary", "", manifest.release_id, manifest.generation)
    session = Session(manifest, client, host, Options(ready_timeout_s=0.0, evidence=evidence), report)
    try:
        for check in checks:
            check(session)
    except (Stop, SeatError) as error:
        return Answers((str(error),), tuple(report.warnings))
    failed = tuple(f"{one.id}: {one.evidence or one.observed}" for one in report.checks if one.status == "fail")
    return Answers(failed, tuple(report.warnings))
