"""What an operator does to lab hosts: start, stop, cut, restart, remove; each verb is safe to repeat."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, disk, network, preflight, state, supervisor
from .errors import LabError
from .files import locked
from .settings import PROJECT, Lab
from .supervisor import Paths

LAUNCHER = PROJECT / "lab" / "lab"
BOOT_TIMEOUT_S = 300.0
START_TIMEOUT_S = 20.0
POWER_OFF_TIMEOUT_S = 60.0
# systemd as PID 1: SIGRTMIN+4 starts poweroff.target, SIGRTMIN+5 reboot.target (systemd(1), "Signals").
POWER_OFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5
POLL_S = 0.05


@dataclass(frozen=True)
class Status:
    """One row of ``lab list``."""

    name: str
    address: str
    state: str  # "up", "down" (has a disk) or "-" (does not exist)
    layers: tuple[str, ...]


def up(lab: Lab, name: str, layer: str | None) -> str:
    """Boot a host and return its address when SSH answers; a host that is up is left alone.

    ``layer`` decides what a new host's disk is stacked on; an existing host keeps its disk, and asking for another
    layer then is an error.
    """
    lab.spec(name)
    paths = Paths(lab.hosts / name)
    with locked(lab.hosts / f".{name}.lock"):
        with locked(lab.state / "lock"):
            if not supervisor.is_running(paths):
                _start(lab, name, layer)
            address = state.addresses(lab)[name]
        _check_layer(paths, name, layer)
        _await_ssh(lab, name, address)
    return address


def _start(lab: Lab, name: str, layer: str | None) -> None:
    """Prepare a host's disk and start its supervisor; returns when the supervisor has taken over."""
    if shortage := preflight.short_of_inotify():
        raise LabError(f"{name} would not boot: {shortage}")
    spec = lab.spec(name)
    paths = Paths(lab.hosts / name)
    reclaim(lab, name)
    subnet = state.initialise_locked(lab)
    state.ensure_key(lab)
    _prepare_disk(lab, name, layer, subnet)
    state.write_known_hosts(lab)
    for bind in spec.binds:
        bind.source.mkdir(parents=True, exist_ok=True)
    network.ensure_bridge(lab, subnet)
    command = supervisor.command(LAUNCHER, name, lab.machine(spec))
    environment = {**os.environ, "SEATFLEET_LAB": str(lab.state), "SEATFLEET_CACHE": str(lab.cache)}
    with paths.console.open("wb") as console:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (supervisor.boots(paths) and supervisor.is_running(paths)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            supervisor.clean(paths, lab.machine(spec), lab.link(spec))
            _drop_idle_bridge(lab)
            raise LabError(f"{name} did not start: {_last_line(paths.console)} (see {paths.console})")
        time.sleep(POLL_S)


def _prepare_disk(lab: Lab, name: str, layer: str | None, subnet: ipaddress.IPv4Network) -> None:
    paths = Paths(lab.hosts / name)
    if not paths.stack.exists():  # written last, so what is there without it is half a disk
        shutil.rmtree(paths.root, ignore_errors=True)
        stack = disk.stack_for(lab, layer)
        disk.new_upper(paths.upper, stack.directories(lab))
        paths.work.mkdir()
        paths.mount.mkdir()
        stack.write(paths.stack)
    _check_layer(paths, name, layer)
    lower = disk.Stack.read(paths.stack).directories(lab)
    address = state.addresses(lab)[name]
    disk.write_identity(lab, paths.upper, lower, name, address, str(subnet[1]))


def _check_layer(paths: Paths, name: str, layer: str | None) -> None:
    seen = disk.Stack.read(paths.stack).layers
    if layer is not None and layer not in seen[:1]:
        raise LabError(f"{name} exists and was not made from layer '{layer}': 'lab destroy {name}' first")


def _await_ssh(lab: Lab, name: str, address: str) -> None:
    """Wait until a login works; ``LabError`` with the console's last line when the host dies or takes too long."""
    paths = Paths(lab.hosts / name)
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while not (_greets(address) and _logs_in(lab, address)):
        if network.is_cut(lab.link(lab.spec(name))):
            raise LabError(f"{name} runs with its link cut: 'lab heal {name}'")
        if not supervisor.is_running(paths):
            raise LabError(f"{name} died while booting: {_last_line(paths.console)} (see {paths.console})")
        if time.monotonic() > deadline:
            raise LabError(f"{name}: no SSH login after {BOOT_TIMEOUT_S:.0f} s (see {paths.console})")
        time.sleep(POLL_S)


def _greets(address: str) -> bool:
    """Whether something on port 22 says "SSH-"; far cheaper than starting ssh in a loop."""
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            connection.settimeout(5)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _logs_in(lab: Lab, address: str) -> bool:
    command = ssh_command(lab, address, ["true"])
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _last_line(console: Path) -> str:
    lines = console.read_text(errors="replace").strip().splitlines() if console.exists() else []
    return lines[-1].strip() if lines else "it said nothing"


def login_command(lab: Lab, name: str, arguments: list[str]) -> list[str]:
    """Return the command line of ``lab ssh``; ``LabError`` when the host is not running."""
    supervisor.leader(lab, name)
    return ssh_command(lab, state.addresses(lab)[name], arguments)


def ssh_command(lab: Lab, address: str, arguments: list[str]) -> list[str]:
    """Return the ssh command line to an address of this lab."""
    options = ["BatchMode=yes", f"UserKnownHostsFile={lab.known_hosts}", "ConnectTimeout=5", "LogLevel=ERROR"]
    flags = [word for option in options for word in ("-o", option)]
    return ["ssh", "-i", str(lab.key), *flags, f"root@{address}", *arguments]


def exec_command(lab: Lab, name: str, arguments: list[str]) -> list[str]:
    """Return the command line that runs a command in a host without its network (also while its link is cut)."""
    environment = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    return ["nsenter", f"--target={supervisor.leader(lab, name)}", "--all", "--", *environment, *arguments]


def down(lab: Lab, name: str) -> str:
    """Power a host off in good order, keeping its disk; one that does not end in 60 s gets the power cut."""
    outcome = "down"
    paths = Paths(lab.hosts / name)
    lab.spec(name)
    with locked(lab.hosts / f".{name}.lock"):
        if supervisor.is_running(paths):
            with contextlib.suppress(LabError, ProcessLookupError):  # it may end by itself just now
                os.kill(supervisor.leader(lab, name), POWER_OFF)
            deadline = time.monotonic() + POWER_OFF_TIMEOUT_S
            while supervisor.is_running(paths) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if supervisor.is_running(paths):
                outcome = f"did not power off in {POWER_OFF_TIMEOUT_S:.0f} s, killed"
        _end(lab, name)
    return outcome


def kill(lab: Lab, name: str) -> str:
    """Cut a host's power: every process of it dies at once. What it wrote is kept, also what it had not synced."""
    lab.spec(name)
    with locked(lab.hosts / f".{name}.lock"):
        _end(lab, name)
    return "killed"


def destroy(lab: Lab, name: str) -> str:
    """Cut a host's power and remove its disk."""
    lab.spec(name)
    with locked(lab.hosts / f".{name}.lock"):
        _end(lab, name)
        if (lab.hosts / name).exists():
            shutil.rmtree(lab.hosts / name)
        with locked(lab.state / "lock"):
            if lab.addresses.exists():
                state.write_known_hosts(lab)
    return "destroyed"


def reboot(lab: Lab, name: str) -> str:
    """Restart a host from within and return when SSH answers again."""
    paths = Paths(lab.hosts / name)
    with locked(lab.hosts / f".{name}.lock"):
        pid = supervisor.leader(lab, name)
        before = supervisor.boots(paths)
        os.kill(pid, REBOOT)
        deadline = time.monotonic() + POWER_OFF_TIMEOUT_S
        while supervisor.boots(paths) <= before:
            if time.monotonic() > deadline or not supervisor.is_running(paths):
                raise LabError(f"{name} did not restart in {POWER_OFF_TIMEOUT_S:.0f} s (see {paths.console})")
            time.sleep(POLL_S)
        _await_ssh(lab, name, state.addresses(lab)[name])
    return "up again"


def snapshot(lab: Lab, name: str, layer: str) -> None:
    """Keep a stopped host's changes as a layer that new hosts can start from."""
    paths = Paths(lab.hosts / name)
    with locked(lab.hosts / f".{name}.lock"), locked(lab.state / "lock"):
        if not paths.stack.exists():
            raise LabError(f"{name} has no disk: start it with 'lab up {name}' and install what the layer should have")
        if supervisor.is_running(paths):
            raise LabError(f"{name} is running, its disk would be copied half-written: 'lab down {name}' first")
        disk.save_layer(lab, paths.upper, disk.Stack.read(paths.stack), layer)


def set_cable(lab: Lab, name: str, link_state: str) -> None:
    """Plug a host's network cable in ("up") or out ("down")."""
    network.set_link(lab.link(lab.spec(name)), link_state)


def listing(lab: Lab) -> list[Status]:
    """Return all declared hosts with their state."""
    known = state.addresses(lab) if lab.addresses.exists() else {}
    rows = []
    for name in lab.specs:
        paths = Paths(lab.hosts / name)
        exists = paths.stack.exists()
        layers = disk.Stack.read(paths.stack).layers if exists else ()
        shown = "up" if supervisor.is_running(paths) else "down" if exists else "-"
        rows.append(Status(name, known.get(name, "-"), shown, layers))
    return rows


def reclaim(lab: Lab, name: str) -> None:
    """Take away what an earlier run of this host left, wherever it left it; never what another lab has.

    A state directory that was removed by hand while hosts ran took lock and records with it; names still tell the lab.
    """
    spec = lab.spec(name)
    machine = lab.machine(spec)
    paths = Paths(lab.hosts / name)
    for pid in supervisor.strays(lab, name):  # before anything: it would take its end for the new host's
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    supervisor.clean(paths, machine, lab.link(spec))
    lost = [group for group in cgroups.leftovers(lab.cgroup) if group.name == machine]
    for group in lost:
        cgroups.kill(group)
    cgroups.remove(lost)


def _end(lab: Lab, name: str) -> None:
    """Kill what is left of a host, and the bridge when no other host of the lab is running."""
    paths = Paths(lab.hosts / name)
    if supervisor.is_running(paths):
        # PID 1 first: with it the kernel ends all of the host at one moment, as a power cut does. Then nspawn ends and
        # the supervisor cleans up. What is still there a second later (a boot that had just begun, a host whose nspawn
        # was killed) goes process by process.
        with contextlib.suppress(LabError, ProcessLookupError):
            os.kill(supervisor.leader(lab, name), signal.SIGKILL)
        begun = time.monotonic()
        while supervisor.is_running(paths):
            if time.monotonic() > begun + START_TIMEOUT_S:
                raise LabError(f"the supervisor of {name} does not end (see {paths.console})")
            time.sleep(POLL_S)
            if time.monotonic() > begun + 1:
                supervisor.kill_group(paths)
    reclaim(lab, name)
    with locked(lab.state / "lock"):
        _drop_idle_bridge(lab)


def _drop_idle_bridge(lab: Lab) -> None:
    """Remove the bridge when no host of the lab is running; call with the lab's lock held."""
    if not any(supervisor.is_running(Paths(lab.hosts / name)) for name in lab.specs):
        network.remove([lab.bridge])
