"""The probe against a real engine that hangs and one that is busy; after the chain, on the converged lab."""

from __future__ import annotations

import json

import pytest
from labrun import Lab, Run
from seatlife import HOST

SEAT = "flash-next"
UNIT = f"vllm-seat-{SEAT}.service"
PROBE = f"/opt/vllm/toolbox/bin/seatctl probe --manifest /etc/vllm/seats/{SEAT}/current/manifest.json --json"


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    lab.site("-l", f"{HOST},gw-1")


def probe(lab: Lab, *options: str) -> Run:
    return lab.host(HOST, *PROBE.split(), *options, check=False)


def signal_engine(lab: Lab, name: str) -> None:
    """Send a signal to the engine's processes, not to the API server, which goes on answering."""
    groups = " ".join(f"/sys/fs/cgroup/{tree}system.slice/{UNIT}/cgroup.procs" for tree in ("", "unified/"))
    script = (
        f"for p in $(cat {groups} 2>/dev/null | sort -u); do "
        f"grep -q '^VLLM' /proc/$p/comm && kill -{name} $p; done; true"
    )
    assert lab.console(HOST, "sh", "-c", script).code == 0


def test_a_stopped_engine_is_found_by_its_counters_while_health_is_200(lab: Lab) -> None:
    signal_engine(lab, "STOP")
    try:
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8022/health').status)"
        code = lab.console(HOST, "python3", "-c", ask).output
        found = probe(lab, "--level", "ready", "--token-timeout", "10", "--ready-timeout", "120")
    finally:
        signal_engine(lab, "CONT")
    assert code.strip() == "200"
    report = json.loads(found.output)
    assert (found.code, report["verdict"]) == (3, "NOT_READY")
    assert "the engine hangs" in report["cause"]
    assert probe(lab, "--level", "identity").code == 0
