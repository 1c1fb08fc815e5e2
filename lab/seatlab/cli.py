"""The command line of the lab."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from . import base, hosts, preflight, settings, state, supervisor
from .errors import LabError
from .settings import Lab


def parser() -> argparse.ArgumentParser:
    """Return the command line's grammar."""
    top = argparse.ArgumentParser(prog="lab", description="Lab hosts with real systemd and sshd on this machine.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    def named(name: str, text: str) -> argparse.ArgumentParser:
        command = verb(name, text)
        command.add_argument("names", nargs="*", metavar="NAME", help="hosts; none means all declared ones")
        return command

    verb("init", "make the lab's addresses and secrets (no root needed; up does it too)")
    verb("base", "build the base root filesystem, when the cache lacks it")
    named("up", "boot hosts; returns when SSH answers").add_argument("--layer", help="start new hosts from this layer")
    named("down", "power hosts off, keep their disks")
    named("kill", "cut the power of hosts, keep their disks")
    named("reboot", "restart hosts from within; returns when SSH answers")
    destroy = verb("destroy", "cut the power of hosts and remove their disks")
    destroy.add_argument("names", nargs="*", metavar="NAME")
    destroy.add_argument("--all", action="store_true", help="every host of this lab")
    verb("cut", "pull a host's network cable").add_argument("name")
    verb("heal", "plug a host's network cable in").add_argument("name")
    verb("list", "show hosts, addresses, state and layers")
    snapshot = verb("snapshot", "keep a stopped host's disk as a layer for new hosts")
    snapshot.add_argument("name")
    snapshot.add_argument("layer")
    for name, text in (("ssh", "log in to a host, or run a command"), ("exec", "run a command without the network")):
        command = verb(name, text)
        command.add_argument("name")
        command.add_argument("command", nargs=argparse.REMAINDER)
    return top


def main(arguments: Sequence[str]) -> int:
    """Run one verb; 0, or 1 with one line on stderr per host or thing that failed."""
    try:
        lab = settings.load(os.environ)
        if arguments[:1] == ["_supervise"]:  # started by up, not for people
            supervisor.supervise(lab, arguments[1])
            return 0
        return _run(lab, parser().parse_args(arguments))
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _run(lab: Lab, options: argparse.Namespace) -> int:
    verb: str = options.verb
    if verb == "init":
        state.initialise(lab)
        return 0
    if verb == "list":
        for row in hosts.listing(lab):
            print(f"{row.name:<12} {row.address:<16} {row.state:<5} {' '.join(row.layers) or 'base'}")
        return 0
    preflight.check()
    if verb == "base":
        print(base.ensure(lab.cache))
    elif verb == "up":
        base.ensure(lab.cache)
        return _each(lab, options, lambda name: f"up at {hosts.up(lab, name, options.layer)}")
    elif verb == "destroy":
        if options.all == bool(options.names):
            raise LabError("destroy: name hosts, or say --all")
        return _each(lab, options, lambda name: hosts.destroy(lab, name))
    elif verb in ACTIONS:
        return _each(lab, options, lambda name: ACTIONS[verb](lab, name))
    elif verb == "snapshot":
        hosts.snapshot(lab, options.name, options.layer)
    elif verb in ("cut", "heal"):
        hosts.set_cable(lab, options.name, {"cut": "down", "heal": "up"}[verb])
    elif verb == "ssh":
        _become(hosts.login_command(lab, options.name, options.command))
    elif verb == "exec":
        _become(hosts.exec_command(lab, options.name, options.command or ["bash"]))
    return 0


ACTIONS: dict[str, Callable[[Lab, str], str]] = {"down": hosts.down, "kill": hosts.kill, "reboot": hosts.reboot}


def _become(command: list[str]) -> None:
    os.execvp(command[0], command)


def _each(lab: Lab, options: argparse.Namespace, action: Callable[[str], str]) -> int:
    """Do something to several hosts at once; every failure is reported, the others go on."""
    names = list(dict.fromkeys(options.names)) or list(lab.specs)
    for name in names:
        lab.spec(name)
    begun = time.monotonic()

    def one(name: str) -> bool:
        try:
            outcome = action(name)
        except (LabError, OSError) as error:
            print(f"lab: {error}", file=sys.stderr)
            return False
        print(f"{name}: {outcome} ({time.monotonic() - begun:.1f} s)")
        return True

    with ThreadPoolExecutor(len(names)) as pool:
        try:
            return 0 if all(list(pool.map(one, names))) else 1
        except KeyboardInterrupt:
            # Leaving the block would wait for the others. All that is half done here is finished by the next run.
            os._exit(130)
