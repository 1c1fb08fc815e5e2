"""What the tests of a seat's life share: the seat they are about, and how they look at it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from hammer import DESIGNED, OK, Hammer
from labrun import LAB, Lab

HOST, SEAT, ALIAS, PORT = "fv-ml1", "flash-next", "gen-large", 8022
UNIT = f"vllm-seat-{SEAT}.service"
SEATS_FILE = "group_vars/lab_fv_ml1/seats.yml"
SMALLER = (SEATS_FILE, "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")
GENERATIONS = f"/etc/vllm/seats/{SEAT}/generations"
# A file of the release that a patch changed.
PATCHED_FILE = (
    f"/etc/vllm/seats/{SEAT}/current/release/lib/python3.11/site-packages/vllm/entrypoints/launchers/launcher.py"
)
DEPLOYMENT = f"seat-{HOST}-{SEAT}-{ALIAS}"


def client_of(lab: Lab) -> Hammer:
    """Return a client of the alias, with the key of its users."""
    address = json.loads((LAB / "hosts.json").read_text())["gw-1"]["address"]
    keys = lab.secrets()["litellm_keys"]
    assert isinstance(keys, dict)
    return Hammer(f"http://{address}:4000", keys["all-agents"], ALIAS)


def call(lab: Lab) -> str:
    """Call the alias once and return the kind of what came."""
    with httpx.Client(timeout=60) as client:
        return client_of(lab).once(client, stream=False)


def wait_for_the_gateway(lab: Lab, limit_s: float = 300) -> None:
    """Wait until the gateway answers callers, which it does half a minute after its start, later on a busy machine."""
    deadline, seen = time.monotonic() + limit_s, "nothing"
    while seen not in (OK, DESIGNED):
        assert time.monotonic() < deadline, f"the gateway does not answer after {limit_s:.0f} s: {seen}"
        time.sleep(1)
        try:
            seen = call(lab)
        except httpx.HTTPError as error:
            seen = repr(error)


def process(lab: Lab) -> str:
    """Return main PID and start time of the seat: both stay the same unless it was restarted."""
    return lab.host(HOST, "systemctl", "show", UNIT, "--property=MainPID,ActiveEnterTimestampMonotonic").output


def link(lab: Lab, name: str = "current") -> str:
    """Return the generation that a link of the seat names, empty without the link."""
    target = lab.host(HOST, "readlink", f"/etc/vllm/seats/{SEAT}/{name}", check=False).output.strip()
    return target.rpartition("/")[2]


def drift(lab: Lab, tmp_path: Path) -> list[dict[str, str]]:
    """Return what drift.yml reports; its exit code has to agree, and so has a check run of site.yml."""
    file = tmp_path / "drift.json"
    file.unlink(missing_ok=True)
    run = lab.run("ansible-playbook", "playbooks/drift.yml", "-l", HOST, "-e", f"drift_file={file}", check=False)
    assert file.exists(), run.output
    rows: list[dict[str, str]] = json.loads(file.read_text())
    assert (run.code != 0) == bool(rows), run.output
    checked = lab.site("--check", "-l", HOST, check=False)
    assert bool(checked.changed[HOST] or checked.failed) == bool(rows), f"{rows}\n{checked.output}"
    return rows


def wait_for(lab: Lab, what: str, *argv: str, limit_s: float = 300) -> None:
    """Run a command on the host until it ends with 0, over the console and not the network."""
    deadline = time.monotonic() + limit_s
    while lab.console(HOST, *argv).code != 0:
        assert time.monotonic() < deadline, f"{what} did not happen within {limit_s:.0f} s"
        time.sleep(0.5)


@contextmanager
def deploying(lab: Lab, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``site.yml`` beside the block, which has to see it end; what it printed is in ``stdout``."""
    command = ["ansible-playbook", "site.yml", "-l", HOST, *arguments]
    play = subprocess.Popen(
        command, cwd=lab.project, env=lab.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield play
    finally:
        play.kill()


def wait_for_the_new_process(lab: Lab, before: str) -> None:
    """Wait until another generation than ``before`` is current and its process has been started."""
    wait_for(lab, "the switch", "sh", "-c", f"test $(readlink -f {GENERATIONS}/../current) != {GENERATIONS}/{before}")
    wait_for(lab, "the start", "systemctl", "is-active", UNIT)


@contextmanager
def rejected(lab: Lab, match: str) -> Iterator[None]:
    """Let the host reject TCP connections, named in nft's words; through its console, so that SSH may be among them."""
    rule = f"chain input {{ type filter hook input priority 0; {match} reject with tcp reset; }};"
    added = lab.console(HOST, "nft", "--", f"table inet stranger {{ {rule} }}")
    assert added.code == 0, added.output
    try:
        yield
    finally:
        lab.console(HOST, "nft", "delete", "table", "inet", "stranger")
