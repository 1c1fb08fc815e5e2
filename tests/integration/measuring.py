"""What the tests of campaigns share: where things are on the host, and how to wait for them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labrun import Lab
from seatlife import HOST, SEAT

#: What measures, and the server under measurement.
RUN, ARM = f"vllm-campaign-run-{SEAT}.service", f"vllm-campaign-{SEAT}.service"
BASE = f"/var/lib/seatfleet/campaigns/{SEAT}/raw"
#: One boot of the CPU server, also on a machine that does much else.
BOOT_LIMIT_S = 1500


def play(campaign: str, results: Path, *options: str) -> list[str]:
    """Return the command that measures ``campaign`` in a window and collects it below ``results``."""
    given = {"seat": SEAT, "campaign": campaign, "campaign_window": "true", "campaign_results_dir": str(results)}
    extra = [part for name, value in given.items() for part in ("-e", f"{name}={value}")]
    return ["ansible-playbook", "playbooks/campaign.yml", "-l", HOST, *extra, *options]


def active(lab: Lab, unit: str) -> bool:
    """Tell whether a unit runs; False also while the host cannot be asked."""
    return lab.host(HOST, "systemctl", "is-active", unit, check=False).output.strip() == "active"


def state(lab: Lab, campaign: str) -> dict[str, Any]:
    """Return how far the newest campaign of that name is."""
    command = f"/opt/vllm/toolbox/bin/seatctl campaign status --base {BASE} --name {campaign} --json"
    found: dict[str, Any] = json.loads(lab.host(HOST, *command.split()).output)
    return found


def sums(lab: Lab, campaign: str, boot: str) -> str:
    """Return the hash of every file of one boot."""
    path = f"{BASE}/*-{campaign}/boots/{boot}"
    found = lab.host(HOST, f"find {path} -type f | sort | xargs sha256sum").output
    assert found.count("\n") > 5, found
    return found


def wait_until(
    what: str,
    condition: Callable[[], bool],
    limit_s: float = BOOT_LIMIT_S,
    command: subprocess.Popen[str] | None = None,
) -> None:
    """Wait for something, or fail with its name; at once when the command that should bring it about has ended."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert command is None or command.poll() is None, f"{what}: {command.communicate()[0][-4000:]}"
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s"
        time.sleep(3)
