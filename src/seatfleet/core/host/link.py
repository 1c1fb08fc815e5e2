"""The link of a seat over two hosts at work: :mod:`..seat.link` decides, this asks systemd and the other host."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..files import pretty_json, write_atomic
from ..paths import TOOLBOX, SeatPaths, link_unit
from ..report.journal import first_cause
from ..seat import generations, stopped
from ..seat.link import (
    ENDED,
    MAX_MESSAGE,
    POLL_S,
    Answer,
    Config,
    Half,
    Heard,
    LinkError,
    Report,
    Step,
    decode_answer,
    decode_report,
    encode,
    follow,
    load_config,
)
from ..seat.render import GENERATION_VARIABLE, Generation
from . import guard
from .machine import LocalMachine, read_linked
from .processes import read_process

_REQUEST_TIMEOUT_S = 5
_COMMAND_TIMEOUT_S = 300
#: A follower keeps more than a head: which of them the head may go back to is not known there.
KEEP_GENERATIONS = 20

#: At seconds apart: the link of the other host may be starting.
_ATTEMPTS = 15

Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """One start of a unit: systemd's id of it, its main process (0 before there is one), and whether it runs."""

    id: str
    pid: int
    running: bool


def read_config(paths: SeatPaths) -> Config:
    """Return what the link of a seat was told.

    Raises:
        LinkError: nothing, or something else.
    """
    try:
        return load_config(json.loads(paths.link.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LinkError(f"{paths.link}: expected the nodes of a seat, seen {error!r}") from error


def systemctl(*arguments: str) -> str:
    """Run systemctl and return what it printed; errors are for the next look."""
    done = subprocess.run(
        ["systemctl", *arguments], capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
    )
    return done.stdout


def unit_start(unit: str) -> Start:
    """Ask systemd for the present start of a unit.

    One that waits for a restart does not run; one that is being stopped does, as it may be draining.
    """
    text = systemctl("show", unit, "--property=ActiveState,SubState,MainPID,InvocationID")
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active, sub = values.get("ActiveState", ""), values.get("SubState", "")
    running = active in {"active", "deactivating"} or (active == "activating" and not sub.startswith("auto-restart"))
    return Start(values.get("InvocationID", ""), int(values.get("MainPID") or 0), running)


class HeadLink:
    """The head's side: answers its follower, and ends the seat's process when the other half is gone."""

    def __init__(self, paths: SeatPaths, config: Config, say: Say) -> None:
        self.paths, self.config, self._say = paths, config, say
        self._lock = threading.Lock()
        self._start: str | None = None
        self._generation: str | None = None
        known = read_linked(paths) or {}
        self._heard = Heard(joined=known.get("joined"))

    def run(self) -> None:
        """Serve for ever."""
        with _Server(self) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while True:
                self.look()
                time.sleep(POLL_S / 2)

    def look(self) -> None:
        """Look at the seat's process once, and end it when it has to."""
        seen = unit_start(self.paths.unit.name)
        # A process that is only being prepared (ExecStartPre) has no generation yet.
        generation = _generation_of(self.paths, seen)
        with self._lock:
            self._start = seen.id if generation else None
            self._generation = generation
            why = self._heard.verdict(self._start, self.config.follower[0], time.monotonic())
        if why is not None:
            self._say(f"{ENDED}{why}")
            LocalMachine().kill(self.paths.unit.name)
            with self._lock:
                self._start = self._generation = None

    def hear(self, report: Report) -> Answer:
        """Take a report, write down what is known, and return the answer."""
        with self._lock:
            self._heard = self._heard.hear(report, self._start, time.monotonic())
            known = {
                # Of the clock that nobody sets, alike in all processes; the file is gone with a boot, as it is.
                "at": self._heard.at,
                "joined": self._heard.joined,
                "follower": self.config.follower[0],
                "start": report.start,
                "running": report.running,
                "generations": dict(report.generations),
            }
            answer = self._heard.answer(self._start, self._generation)
        _write(self.paths, known)
        return answer


def _generation_of(paths: SeatPaths, seen: Start) -> str | None:
    """Return the generation that the head's process is of, when it is one over two hosts."""
    process = read_process(seen.pid) if seen.running and seen.pid else None
    name = process.environ.get(GENERATION_VARIABLE) if process else None
    manifest = generations.read_manifest(paths, name) if name else None
    return name if manifest and manifest.get("nodes") else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, link: HeadLink) -> None:
        self.link = link
        address = link.config.own[1]
        if ":" in address:
            self.address_family = 10  # AF_INET6
        super().__init__((address, link.config.port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: a line every two seconds would fill the journal."""

    def do_POST(self) -> None:
        link = self.server.link
        length = self.headers.get("content-length", "")
        if self.client_address[0] != link.config.follower[1] or not length.isdigit() or int(length) > MAX_MESSAGE:
            self.send_error(403)
            return
        try:
            answer = encode(link.hear(decode_report(self.rfile.read(int(length)))))
        except LinkError:
            self.send_error(400)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class FollowerLink:
    """The follower's side: asks the head's host what to run, runs it, and tells how it goes."""

    def __init__(self, paths: SeatPaths, config: Config, say: Say) -> None:
        self.paths, self.config, self._say = paths, config, say
        self._heard_at = time.monotonic()
        self._silent = False

    def run(self) -> None:
        """Follow for ever."""
        while True:
            self.look()
            time.sleep(POLL_S)

    def look(self) -> None:
        """Ask once, and do what follows from the answer."""
        own = self.half()
        answer = self.ask(self.report(own))
        if answer is not None:
            self._heard_at = time.monotonic()
        step = follow(own, answer, time.monotonic() - self._heard_at)
        if step is Step.STOP:
            self._say(
                f"stop: {self.config.head[0]} " + ("does not answer" if answer is None else "has ended or restarted")
            )
            self.stop()
        elif step is Step.START and answer is not None and answer.start is not None and answer.generation is not None:
            self._start(answer.start, answer.generation)

    def half(self) -> Half:
        """Return what runs here, and for which start of the head it was started."""
        known, seen = read_linked(self.paths) or {}, unit_start(self.paths.unit.name)
        ours = bool(known.get("invocation")) and known.get("invocation") == seen.id
        # A process that nobody knows the start of belongs to none: the answer then stops it.
        return Half(known.get("start"), seen.running and ours) if ours or not seen.running else Half("?", True)

    def report(self, own: Half) -> Report:
        """Return what to tell the head's host."""
        cause = None
        if own.start is not None and not own.running:
            since = float((read_linked(self.paths) or {}).get("at", 0.0))
            cause = first_cause(LocalMachine().journal(self.paths.unit.name, since))
        return Report(own.start, own.running, dict(ready_generations(self.paths)), cause)

    def ask(self, report: Report) -> Answer | None:
        """Send a report and return the answer, None when there is none; said once."""
        host, address = self.config.head
        try:
            answer = exchange(self.config, report)
        except (OSError, http.client.HTTPException, LinkError) as error:
            if not self._silent:
                self._say(f"{host} does not answer at {address}, port {self.config.port}: {error}")
            self._silent = True
            return None
        if self._silent:
            self._say(f"{host} answers")
        self._silent = False
        return answer

    def stop(self) -> None:
        """End what runs here: without the head it can do nothing, so there is nothing to wait for."""
        LocalMachine().kill(self.paths.unit.name)
        systemctl("stop", self.paths.unit.name)

    def _start(self, start: str, generation: str) -> None:
        why = dict(ready_generations(self.paths)).get(generation, "it is not staged here: run site.yml for the head")
        if why is not None:
            self._say(f"generation {generation} cannot start: {why}")
            return
        text = generations.read_unit(self.paths, generation)
        if text is None:
            self._say(f"{self.paths.generation(generation)} has no unit file: somebody removed it")
            return
        generations.switch(self.paths, generation)
        generations.write_unit(self.paths, text, LocalMachine().unit_state(self.paths.unit.name).drop_ins)
        LocalMachine().forget(self.paths.unit.name)
        # Before the start: one that fails at once belongs to this start all the same.
        begun = time.time()
        stopped.clear(self.paths.seat, self.paths.root)
        systemctl("start", self.paths.unit.name)
        _write(self.paths, {"at": begun, "start": start, "invocation": unit_start(self.paths.unit.name).id})
        self._say(f"started generation {generation}")


def exchange(config: Config, report: Report) -> Answer:
    """Send one report from the follower's address to the head's.

    Raises:
        OSError, http.client.HTTPException: there is no way, or nobody answers.
        LinkError: the answer is none.
    """
    connection = http.client.HTTPConnection(
        config.head[1], config.port, timeout=_REQUEST_TIMEOUT_S, source_address=(config.own[1], 0)
    )
    try:
        connection.request("POST", "/", body=encode(report))
        answer = connection.getresponse()
        text = answer.read(MAX_MESSAGE)
        if answer.status != 200:
            raise LinkError(f"HTTP {answer.status}")
        return decode_answer(text)
    finally:
        connection.close()


def ready_generations(paths: SeatPaths) -> Iterator[tuple[str, str | None]]:
    """Yield the generations that are staged here, and why each could not start, as far as a glance can tell."""
    for path in sorted(paths.generations.glob("*/manifest.json")):
        manifest = generations.read_manifest(paths, path.parent.name)
        yield path.parent.name, "its manifest cannot be read" if manifest is None else _lacks(paths, manifest)


def _lacks(paths: SeatPaths, manifest: Mapping[str, Any]) -> str | None:
    if marked := guard.obstacle(manifest, paths.root):
        return marked
    if not Path(manifest["release_path"], "release.json").is_file():
        return f"release {manifest['release_id']} is not installed"
    for what in ("model", "drafter"):
        path = manifest.get(f"{what}_path")
        if path is not None and not Path(path).is_dir():
            return f"{what} {manifest[f'{what}_id']} is not there ({path})"
    return None


def _write(paths: SeatPaths, known: Mapping[str, Any]) -> None:
    paths.linked.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(paths.linked, json.dumps(known) + "\n")


def keep(paths: SeatPaths, say: Say) -> None:
    """Keep the link of a seat, for ever.

    Raises:
        LinkError: it was told nothing.
        OSError: the head's address is not one of this host.
    """
    config = read_config(paths)
    side = FollowerLink(paths, config, say) if config.rank else HeadLink(paths, config, say)
    side.run()


@dataclass(frozen=True)
class Linked:
    """What preparing one half of a seat did, or in check mode would do. ``obstacles`` are why it could not start."""

    seat: str
    generation: str
    created: bool
    changed: bool
    obstacles: tuple[str, ...] = ()


def prepare(rendered: Generation, *, check: bool, paths: SeatPaths | None = None) -> Linked:
    """Tell the link of one half what to do and start it; on the follower also stage its generation.

    What runs is not touched. On the follower the head's host is then asked once, which proves the way between the two.

    Raises:
        GenerationError: a generation on disk was edited.
    """
    paths = paths or SeatPaths(rendered.seat)
    nodes = rendered.manifest["nodes"]
    follows, text = bool(nodes["rank"]), pretty_json(nodes)
    plan = generations.plan_stage(paths, rendered.name, rendered.files) if follows else generations.StagePlan(False, {})
    told = paths.link.is_file() and paths.link.read_text(encoding="utf-8") == text
    stale = not told or not _link_is_current(paths.seat)
    if check:
        return Linked(paths.seat, rendered.name, plan.create, plan.changed or stale)
    if follows:
        generations.stage(paths, rendered.name, rendered.files, rendered.release_path)
        generations.prune(paths, generations.prunable(paths, KEEP_GENERATIONS, {rendered.name}))
    missing = [*LocalMachine().missing(rendered.manifest), *_short_of_memory(paths, rendered)] if follows else []
    if not missing and stale:
        if not told:
            write_atomic(paths.link, text)
        systemctl("enable", "--quiet", link_unit(paths.seat))
        systemctl("restart", link_unit(paths.seat))
    if not missing and follows:
        missing = _way_to_the_head(paths)
    return Linked(paths.seat, rendered.name, plan.create, plan.changed or stale, tuple(missing))


def _short_of_memory(paths: SeatPaths, rendered: Generation) -> list[str]:
    """Return why the follower's cards would not have the memory, from this host: the head looks at its own only."""
    unit = paths.unit.name
    if _generation_of(paths, unit_start(unit)) == rendered.name:
        return []
    machine, current = LocalMachine(), generations.link_target(paths.current)
    serving = generations.read_manifest(paths, current) if current else None
    pids = machine.seat_state(machine.unit_state(unit), int(rendered.manifest["port"])).pids
    return machine.short_of_memory(rendered.manifest, serving, pids)


def _link_is_current(seat: str) -> bool:
    """Return whether the link runs, from the toolbox that is installed now."""
    seen = unit_start(link_unit(seat))
    process = read_process(seen.pid) if seen.running and seen.pid else None
    return process is not None and any(word.startswith(f"{Path(TOOLBOX).resolve()}/") for word in process.argv[:2])


def _way_to_the_head(paths: SeatPaths) -> list[str]:
    """Return why the head's host cannot be asked, after some seconds: its link may be starting."""
    config = read_config(paths)
    side, seen = FollowerLink(paths, config, lambda text: None), ""
    for _ in range(_ATTEMPTS):
        try:
            exchange(config, side.report(side.half()))
        except (OSError, http.client.HTTPException, LinkError) as error:
            seen = str(error)
            time.sleep(1)
        else:
            return []
    (_, own), (head, address) = config.own, config.head
    return [
        f"from {own} to {head} at {address}, port {config.port}: expected an answer of the link, seen {seen}; look at"
        f" nodes of the seat, the cable, and {link_unit(paths.seat)} on {head}"
    ]
