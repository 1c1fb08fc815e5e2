"""Every step of a deploy, and what happens when something breaks in the middle of it.

  python tests/integration/faults.py [--cells load:power,stage:disk] [--file docs/evidence/faults.json]
  python tests/integration/faults.py --render

A cell starts from a converged host, deploys a generation that was never there, and breaks one thing as soon as the step
is under way. It keeps what is seen once the host is whole again, and whether the next run of the same command
converges: exit code 0, the wanted generation, an answer through the alias, nothing left to do for ``--check``.

Needs the lab of the integration tests, up and deployed (SEATFLEET_KEEP_LAB=1). ``--render`` writes the results into
docs/reliability.md, where a cell without a result says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from hammer import DESIGNED, OK
from labrun import PROJECT, Lab
from seatlife import DEPLOYMENT, GENERATIONS, HOST, PORT, SEATS_FILE, UNIT, client_of, link

RESULTS = PROJECT / "docs/evidence/faults.json"
PAGE = PROJECT / "docs/reliability.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TRIGGER_S = 900
PLAY_S = 1800
READY_S = 900
# Every cell has a generation of its own: one that has served here before skips what is to be broken.
FIRST_SIZE_MIB = 40


@dataclass(frozen=True)
class Step:
    """A step of site.yml: the task that announces it and, within a long task, what the host has to show as well."""

    title: str
    task: str
    shows: str = "true"


STEPS = {
    "host": Step("directories, firewall", "gpu_host : Declare the directories"),
    "toolbox": Step("toolbox", "toolbox : Install the toolbox"),
    "release": Step("release", "vllm_release : Install releases"),
    "weights": Step("weights", "model_store : Publish models"),
    "stage": Step("generation staged", "seat : stage | Stage the generations"),
    "flags": Step("flags checked", "seat : stage | Foresee restarts", "pgrep -f '[f]lag_check.py'"),
    "close": Step("alias closed", "seat_alias : close | Close the aliases"),
    "stop": Step("seat stopped", "seat : roll_out | Roll out", f"! systemctl is-active --quiet {UNIT}"),
    "load": Step(
        "seat loads",
        "seat : roll_out | Roll out",
        f"systemctl is-active --quiet {UNIT} && ! test -e {GENERATIONS}/../current/probe.json",
    ),
    "probe": Step(
        "seat probed",
        "seat : roll_out | Roll out",
        f"! test -e {GENERATIONS}/../current/probe.json && curl -sf http://127.0.0.1:{PORT}/health",
    ),
    "open": Step("alias opened", "seat_alias : register-api | Register aliases"),
    "prove": Step("alias proven", "seat_alias : prove | Prove aliases"),
}
FAULTS = {
    "process": "processes killed",
    "power": "host power cut",
    "network": "network cut",
    "disk": "disk full",
}
# One per fault: before the stop, in the middle twice, and with nothing to write on.
QUICK = ("stage:process", "load:power", "probe:network", "stage:disk")
# What a full disk keeps from being written; one small file system stands for all of them.
WRITTEN = ("/etc/vllm/seats", "/var/lib/seatfleet", "/srv/models")


@dataclass(frozen=True)
class Cell:
    """The outcome of one cell. ``after`` is what was seen, ``converged`` whether the next run was all it took."""

    step: str
    fault: str
    play: str
    after: str
    converged: bool
    seconds: float


def run_cell(lab: Lab, step: str, fault: str) -> Cell:
    """Run one cell; the host has to be converged, and is again afterwards when the cell says so."""
    before = link(lab)
    with tempfile.TemporaryDirectory(prefix="seatfleet-fault-") as folder:
        edit = (SEATS_FILE, "kv_cache_memory: 64MiB", f"kv_cache_memory: {unused_size(lab)}MiB")
        edited = lab.edited(Path(folder) / "project", [edit])
        with BREAK[fault](lab) as broken:
            play = Play(edited)
            try:
                wait(lab, STEPS[step], play)
                play_ended = broken(play)
            finally:
                play.kill()
        after = settled_state(lab, before)
        begin = time.monotonic()
        again = edited.site("-l", HOST, check=False)
        seconds = time.monotonic() - begin
        converged = again.code == 0 and link(lab) != before and call(lab) == OK
        converged = converged and edited.site("--check", "-l", HOST, check=False).changed == {HOST: 0}
        if not converged:
            print(again.output, file=sys.stderr)
    return Cell(step, fault, play_ended, after, converged, round(seconds))


class Play:
    """``site.yml`` under way; its output goes to a file that can be looked at."""

    def __init__(self, lab: Lab) -> None:
        self._output = tempfile.NamedTemporaryFile()  # noqa: SIM115 - lives as long as the play
        self._process = subprocess.Popen(
            ["ansible-playbook", "site.yml", "-l", HOST], cwd=lab.project, env=lab.environment,
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @property
    def output(self) -> str:
        """All it has printed by now."""
        return Path(self._output.name).read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it and everything it started here, unless it is over."""
        if not self.ended:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> str:
        """Wait for its end; return how that went in words."""
        code = self._process.wait(PLAY_S)
        recap = re.search(r"unreachable=(\d+)\s+failed=(\d+)", self.output)
        if recap and recap[1] != "0":
            return "host unreachable"
        return "passed" if code == 0 else "failed"


def wait(lab: Lab, step: Step, play: Play) -> None:
    """Return as soon as a step is under way."""
    deadline = time.monotonic() + TRIGGER_S
    while f"TASK [{step.task}" not in play.output or lab.console(HOST, "sh", "-c", step.shows).code:
        if play.ended or time.monotonic() > deadline:
            raise SystemExit(f"{step.title}: never seen under way\n{play.output}")
        time.sleep(0.2)


Broken = Callable[[Play], str]


@contextmanager
def killed(lab: Lab) -> Iterator[Broken]:
    """The controller dies, and with it every process that it started on the host."""

    def fault(play: Play) -> str:
        play.kill()
        lab.console(HOST, "systemctl", "kill", "--signal=SIGKILL", "session-*.scope")
        return "killed"

    yield fault


@contextmanager
def powerless(lab: Lab) -> Iterator[Broken]:
    """The host loses its power, and gets it back after the play noticed."""

    def fault(play: Play) -> str:
        lab.power("kill", HOST)
        return play.wait()

    yield fault
    lab.power("up", HOST)


@contextmanager
def cut_off(lab: Lab) -> Iterator[Broken]:
    """The host's network is cut until the play noticed; what was started on the host goes on."""

    def fault(play: Play) -> str:
        lab.power("cut", HOST)
        return play.wait()

    try:
        yield fault
    finally:
        lab.power("heal", HOST)


@contextmanager
def full(lab: Lab) -> Iterator[Broken]:
    """What the deploy writes to is on a small file system, which is full from the step on until the play ended."""
    small, ballast = "/mnt/small", "/mnt/small/ballast"
    script = [f"mkdir -p {small} && mount -t tmpfs -o size=64m small {small}"]
    for number, path in enumerate(WRITTEN):
        script.append(f"mkdir -p {path} && cp -a {path} {small}/{number} && mount --bind {small}/{number} {path}")
    on_console(lab, " && ".join(script))

    def fault(play: Play) -> str:
        # to the last byte, in blocks of a page
        lab.console(HOST, "dd", "if=/dev/zero", f"of={ballast}", "bs=4096")
        return play.wait()

    try:
        yield fault
    finally:
        script = [f"rm -f {ballast}"]
        for number, path in enumerate(WRITTEN):
            # what was written on the small file system is what the host goes on with
            script += [f"umount {path}", f"mv {path} {path}.before", f"cp -a {small}/{number} {path}"]
            script.append(f"rm -rf {path}.before")
        on_console(lab, " && ".join([*script, f"umount {small}"]))


BREAK = {"process": killed, "power": powerless, "network": cut_off, "disk": full}


def on_console(lab: Lab, script: str) -> None:
    done = lab.console(HOST, "sh", "-ec", script)
    if done.code:
        raise SystemExit(f"{script}: {done.output}")


def settled_state(lab: Lab, before: str) -> str:
    """Return what callers and operators find, once whatever still runs on the host has come to its end."""
    deadline = time.monotonic() + READY_S
    quiet = f"! pgrep -f '[s]eatctl probe' && flock --nonblock /run/lock/seatfleet-start.lock true && curl -sf http://127.0.0.1:{PORT}/health"
    while lab.console(HOST, "sh", "-c", quiet).code and time.monotonic() < deadline:
        time.sleep(1)
    running = lab.console(
        HOST, "sh", "-c", f"tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID {UNIT})/environ"
    ).output
    found = re.search(r"SEATFLEET_GENERATION=(\w+)", running)
    serves = "nothing runs" if found is None else f"{'old' if found[1] == before else 'new'} generation serves"
    kind = call(lab)
    alias = {OK: "alias open", DESIGNED: "alias closed (503)"}.get(kind, f"alias: {kind[:60]}")
    links = "" if link(lab) != link(lab, "previous") else ", previous is current"
    return f"{serves}, {alias}{links}"


def call(lab: Lab) -> str:
    """Call the alias once, without raising."""
    client = client_of(lab)
    try:
        with httpx.Client(timeout=60) as http:
            kind = client.once(http, stream=False)
    except httpx.HTTPError as error:
        return type(error).__name__
    return kind if kind != OK or set(client.deployments) == {DEPLOYMENT} else "answered by another seat"


def unused_size(lab: Lab) -> int:
    """Return MiB of KV memory that no generation on the host has."""
    seen = lab.host(HOST, "sh", "-c", f"'cat {GENERATIONS}/*/vllm.yaml'").output
    used = {int(size) >> 20 for size in re.findall(r"kv-cache-memory-bytes: (\d+)", seen)}
    return next(size for size in range(FIRST_SIZE_MIB, 2048) if size not in used | {64})


def render(results: Mapping[str, Mapping[str, object]]) -> str:
    """Return the table as Markdown."""
    lines = ["| step | " + " | ".join(FAULTS.values()) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for name, step in STEPS.items():
        lines.append(
            f"| {step.title} | " + " | ".join(_words(results.get(f"{name}:{fault}")) for fault in FAULTS) + " |"
        )
    return "\n".join(lines)


def _words(cell: Mapping[str, object] | None) -> str:
    if cell is None:
        return "not run"
    next_run = f"converged, {cell['seconds']} s" if cell["converged"] else "**did not converge**"
    return f"{cell['after']}; next run: {next_run}"


def load(file: Path) -> dict[str, dict[str, object]]:
    """Return the results kept in a file."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_page(results: Mapping[str, Mapping[str, object]]) -> None:
    """Put the table into docs/reliability.md."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{render(results)}\n{END}{rest.split(END)[1]}")


def main() -> int:
    """Run the cells that were asked for; 1 when one did not converge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", help="step:fault, separated by commas; all without")
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only write the table into docs/reliability.md")
    args = parser.parse_args()
    results = load(args.file)
    cells = args.cells.split(",") if args.cells else [f"{step}:{fault}" for step in STEPS for fault in FAULTS]
    for name in [] if args.render else cells:
        cell = run_cell(Lab(), *name.split(":"))
        print(f"{name}: {cell}", flush=True)
        results[name] = asdict(cell)
        args.file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    write_page(results)
    return int(any(not result["converged"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
