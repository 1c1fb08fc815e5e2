"""The process that keeps one host running: mounts its disk, starts nspawn, starts it again when the host reboots.

It runs detached, in a mount namespace of its own. While it runs it holds a lock, which is how everybody else knows;
there is no file to go stale and no process id to be used by somebody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, disk, network
from .errors import LabError, run
from .files import write
from .settings import Lab

# nspawn's exit status when the system in it asked for a reboot (EXIT_FORCE_RESTART); with --keep-unit nobody else acts.
REBOOT = 133
OPEN_FILES = 1024  # soft limit, systemd's own default; what this machine's shells have would leak into the host
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
OWN_MOUNTS = ("unshare", "--mount", "--propagation=slave", "--")
NSPAWN_RUN = Path("/run/systemd/nspawn")


@dataclass(frozen=True)
class Paths:
    """What one host has in the lab's state directory."""

    root: Path

    @property
    def upper(self) -> Path:
        """The host's own changes to what its disk is stacked on."""
        return self.root / "upper"

    @property
    def work(self) -> Path:
        """The working directory of overlayfs."""
        return self.root / "work"

    @property
    def mount(self) -> Path:
        """Where the disk is mounted, seen by the supervisor and nspawn only."""
        return self.root / "mnt"

    @property
    def stack(self) -> Path:
        """Record of what the disk is stacked on."""
        return self.root / "disk.json"

    @property
    def console(self) -> Path:
        """Everything the supervisor, nspawn and the host's console say."""
        return self.root / "console.log"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.root / "supervisor.lock"

    @property
    def running(self) -> Path:
        """Process id of nspawn id and how often it was started; valid only while the lock is held."""
        return self.root / "running.json"

    @property
    def outside(self) -> Path:
        """What the host has outside of this directory: its cgroups, the one that names processes first, and files."""
        return self.root / "outside.json"


def is_running(paths: Paths) -> bool:
    """Whether a supervisor holds the host's lock."""
    try:
        with paths.lock.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def boots(paths: Paths) -> int:
    """Return how often a running host has booted since its ``up``; 0 when it is not running."""
    try:
        count: int = json.loads(paths.running.read_text())["boots"]
    except FileNotFoundError:
        return 0
    return count


def command(launcher: Path, name: str, machine: str) -> list[str]:
    """Return the command line of a host's supervisor.

    Where systemd runs the machine it owns the cgroups, and only a scope with Delegate= may be filled from outside. Its
    name is new each time: systemd forgets a scope some time after the last process, and refuses the name until then.
    """
    prefix = []
    if Path("/run/systemd/system").is_dir():
        unit = f"{machine}-{secrets.token_hex(4)}"
        prefix = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={unit}", "--property=Delegate=yes", "--"]
    return [*prefix, *OWN_MOUNTS, sys.executable, str(launcher), "_supervise", name]


def supervise(lab: Lab, name: str) -> None:
    """Run a host until it powers off, is killed, or this process is told to end (SIGTERM)."""
    spec = lab.spec(name)
    paths = Paths(lab.hosts / name)
    machine = lab.machine(spec)
    with paths.lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        groups = cgroups.create(cgroups.current(), lab.cgroup, machine)
        _record(paths, groups, [])
        lower = disk.Stack.read(paths.stack).directories(lab)
        options = disk.overlay_options(lower, paths.upper, paths.work)
        run(["mount", "-t", "overlay", machine, "-o", options, str(paths.mount)])
        root = paths.mount.stat()
        _record(paths, groups, [NSPAWN_RUN / "locks" / f"inode-{root.st_dev}:{root.st_ino}"])
        arguments = nspawn(lab, name, paths.mount)
        try:
            _boot_until_off(arguments, groups, paths)
        finally:
            clean(paths, machine, lab.link(spec))
            _collect_orphans()


def nspawn(lab: Lab, name: str, root: Path) -> list[str]:
    """Return nspawn's command line for a host.

    --private-users=identity maps every user to itself; nspawn mounts version 1 controllers writable only for a host
    with a user namespace, so without it MemoryMax= and its relatives in the host silently do nothing. --register=no
    and --keep-unit: neither machined nor a systemd is needed on this machine.
    """
    spec = lab.spec(name)
    flags = ["--boot", "--quiet", "--register=no", "--keep-unit", "--private-users=identity"]
    flags += ["--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe"]
    flags += [f"--machine={lab.machine(spec)}", f"--hostname={name}", f"--directory={root}"]
    flags += [f"--network-bridge={lab.bridge}"]
    flags += [f"--bind-ro={bind.source}:{bind.target}" for bind in spec.binds]
    return ["systemd-nspawn", *flags]


def _boot_until_off(arguments: list[str], groups: list[Path], paths: Paths) -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "TERM": "dumb"}
    ending = False

    def enter() -> None:
        cgroups.enter(groups)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard) if hard >= 0 else OPEN_FILES, hard))

    def end(_signal: int, _frame: object) -> None:
        nonlocal ending
        ending = True
        if child is not None:
            child.terminate()  # nspawn passes it on as an orderly shutdown

    child: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, end)
    _adopt_orphans()
    boots = 0
    status = REBOOT
    while status == REBOOT and not ending:
        boots += 1
        child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, env=environment, cwd="/", preexec_fn=enter)
        write(paths.running, json.dumps({"nspawn": child.pid, "boots": boots}))
        status = child.wait()
        print(f"lab: boot {boots}: nspawn ended with {status}", flush=True)


def _adopt_orphans() -> None:
    """Become the parent of the host's PID 1 when nspawn is killed, so that its end can be collected here.

    The machine's own PID 1 may be something in a container that collects nobody's.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise LabError(f"prctl: {os.strerror(ctypes.get_errno())}")


def _collect_orphans() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _record(paths: Paths, groups: list[Path], files: list[Path]) -> None:
    write(paths.outside, json.dumps({"groups": list(map(str, groups)), "files": list(map(str, files))}))


def _recorded(paths: Paths, kind: str) -> list[Path]:
    """Return the host's "groups" or "files" outside of its directory; none when it left none."""
    try:
        return [Path(path) for path in json.loads(paths.outside.read_text())[kind]]
    except FileNotFoundError:
        return []


def kill_group(paths: Paths) -> None:
    """Kill every process of a host."""
    for group in _recorded(paths, "groups")[:1]:
        cgroups.kill(group)


def strays(lab: Lab, name: str) -> list[int]:
    """Return the supervisors of a host by what /proc says of them: the way to one whose lock file was removed."""
    words = f"\0_supervise\0{name}\0"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_text().endswith(words):
                environment = (process / "environ").read_text().split("\0")
                if f"SEATFLEET_LAB={lab.state}" in environment:
                    found.append(int(process.name))
    return found


def clean(paths: Paths, machine: str, link: str) -> None:
    """Remove what a host leaves outside of its directory: processes, link, cgroups, nspawn's runtime directories."""
    kill_group(paths)
    network.remove([link])
    cgroups.remove(_recorded(paths, "groups"))
    for file in _recorded(paths, "files"):
        file.unlink(missing_ok=True)
    for kind in ("propagate", "unix-export"):
        with contextlib.suppress(FileNotFoundError):
            (NSPAWN_RUN / kind / machine).rmdir()
    paths.outside.unlink(missing_ok=True)
    paths.running.unlink(missing_ok=True)


def leader(lab: Lab, name: str) -> int:
    """Return the process id, on this machine, of a running host's PID 1; ``LabError`` when it does not run.

    It is the process in the host's cgroup that is PID 1 of a namespace directly below this one.
    """
    paths = Paths(lab.hosts / name)
    depth = len(_namespace_ids(os.getpid()))
    groups = _recorded(paths, "groups") if is_running(paths) else []
    for pid in (pid for group in groups[:1] for pid in cgroups.processes(group)):
        ids = _namespace_ids(pid)
        if len(ids) == depth + 1 and ids[-1] == 1:
            return pid
    raise LabError(f"{name} is not running: start it with 'lab up {name}'")


def _namespace_ids(pid: int) -> list[int]:
    """Return a process' ids from this PID namespace inwards; none when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []
