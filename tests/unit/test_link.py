"""The link between the hosts of one seat: who ends whom, who starts when, and what goes over the wire."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ports import unused_port

from seatfleet.core.host import link as work
from seatfleet.core.host import machine
from seatfleet.core.host.link import FollowerLink, HeadLink, Start, exchange
from seatfleet.core.host.tenants import APPS_QUERY
from seatfleet.core.paths import SeatPaths
from seatfleet.core.seat.admission import CARDS_QUERY
from seatfleet.core.seat.link import (
    SILENCE_S,
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
    obstacles,
)
from seatfleet.core.seat.render import Generation

FIRST, SECOND = "start-1", "start-2"
GONE = SILENCE_S + 1
IN = Report(FIRST, True)
ENDED = "the half of the seat on b ended"
OUT = Report(FIRST, False, cause="OSError: no memory")


@pytest.mark.parametrize(
    ("heard", "start", "age", "verdict"),
    [
        pytest.param(Heard(), FIRST, 0, None, id="nobody has come yet, and the head waits"),
        pytest.param(Heard(Report(), 100, None), FIRST, GONE, None, id="somebody was there before this start"),
        pytest.param(Heard(IN, 100, FIRST), FIRST, 1, None, id="both run"),
        pytest.param(Heard(IN, 100, FIRST), FIRST, GONE, "b has said nothing for 21 s", id="a cable is out"),
        pytest.param(
            Heard(OUT, 100, FIRST), FIRST, 1, f"{ENDED}: OSError: no memory", id="it ended"
        ),
        pytest.param(Heard(Report(), 100, FIRST), FIRST, 1, ENDED, id="its host booted"),
        pytest.param(Heard(IN, 100, FIRST), None, GONE, None, id="the head does not run"),
        pytest.param(Heard(IN, 100, FIRST), SECOND, GONE, None, id="the head has started anew"),
    ],
)  # fmt: skip
def test_the_head_is_ended_when_the_half_that_was_with_it_is_gone(
    heard: Heard, start: str | None, age: float, verdict: str | None
) -> None:
    assert heard.verdict(start, "b", 100 + age) == verdict


@pytest.mark.parametrize(
    ("heard", "start", "answer"),
    [
        pytest.param(Heard(), None, Answer(), id="no head, nothing to join"),
        pytest.param(Heard(), FIRST, Answer(FIRST, "gen"), id="the first time"),
        pytest.param(Heard(IN, 0, FIRST), FIRST, Answer(FIRST, "gen"), id="with it"),
        pytest.param(Heard(Report(), 0, FIRST), FIRST, Answer(), id="was with it and is not: too late for this start"),
        pytest.param(Heard(OUT, 0, FIRST), SECOND, Answer(SECOND, "gen"), id="the head has started anew"),
    ],
)
def test_what_the_follower_is_told(heard: Heard, start: str | None, answer: Answer) -> None:
    assert heard.answer(start, "gen") == answer


@pytest.mark.parametrize(
    ("own", "answer", "silent_s", "step"),
    [
        pytest.param(Half(None, False), None, GONE, Step.STAY, id="nobody answers, nothing runs"),
        pytest.param(Half(FIRST, True), None, 5, Step.STAY, id="the other link restarts"),
        pytest.param(Half(FIRST, True), None, GONE, Step.STOP, id="the head's host is gone"),
        pytest.param(Half(None, False), Answer(), 0, Step.STAY, id="the head does not run"),
        pytest.param(Half(FIRST, True), Answer(), 0, Step.STOP, id="the head has ended"),
        pytest.param(Half(None, False), Answer(FIRST, "gen"), 0, Step.START, id="the head has started"),
        pytest.param(Half(FIRST, True), Answer(FIRST, "gen"), 0, Step.STAY, id="both run"),
        pytest.param(Half(FIRST, True), Answer(SECOND, "gen"), 0, Step.STOP, id="the head has started anew"),
        pytest.param(Half(FIRST, False), Answer(SECOND, "gen"), 0, Step.START, id="and this half is gone too"),
        pytest.param(Half(FIRST, False), Answer(FIRST, "gen"), 0, Step.STAY, id="ended: the head comes first"),
        pytest.param(Half("?", True), Answer(FIRST, "gen"), 0, Step.STOP, id="somebody started it by hand"),
    ],
)
def test_what_the_follower_does(own: Half, answer: Answer | None, silent_s: float, step: Step) -> None:
    assert follow(own, answer, silent_s) is step


def test_a_report_counts_for_the_start_it_is_of() -> None:
    heard = Heard().hear(Report(), FIRST, 1.0)
    assert heard.joined is None
    heard = heard.hear(IN, FIRST, 2.0)
    assert (heard.joined, heard.at) == (FIRST, 2.0)
    assert heard.hear(IN, SECOND, 3.0).joined == FIRST


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (None, "b has said nothing over the link of the two hosts: look at seatfleet-link@ there"),
        ({"at": 60.0, "generations": {"gen": None}}, "b has said nothing for 40 s over the link"),
        ({"at": 99.0, "generations": {}}, "generation gen is not on b: run site.yml, which stages it there"),
        ({"at": 99.0, "generations": {"gen": "release x is not installed"}}, "b: release x is not installed"),
        ({"at": 99.0, "generations": {"gen": None}}, None),
    ],
)
def test_what_is_known_of_the_other_half_before_anything_stops(heard: dict | None, expected: str | None) -> None:
    found = obstacles(heard, "gen", "b", 100.0)
    assert len(found) == (expected is not None)
    assert all(expected is not None and text.startswith(expected) for text in found)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"start": 1}', b'{"start": 1, "generations": {}}', b'{"generations": []}', b"\xff"]
)
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(LinkError):
        decode_report(text)


def test_messages_come_out_as_they_went_in() -> None:
    report = Report(FIRST, True, {"gen": None, "old": "model x is not there"}, "KeyError: 'x'")
    assert decode_report(encode(report)) == report
    assert decode_answer(encode(Answer(FIRST, "gen"))) == Answer(FIRST, "gen")
    with pytest.raises(LinkError):
        decode_answer(b'{"start": []}')


@pytest.fixture
def port() -> int:
    return unused_port()


class FakeHost:
    """What the links do to their host, and how the units are; ``heads`` and ``halves`` are their present starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.head, self.half = Start("", 0, False), Start("", 0, False)
        self.killed: list[str] = []
        monkeypatch.setattr(work.LocalMachine, "kill", lambda _self, unit: self.killed.append(unit))
        monkeypatch.setattr(work.LocalMachine, "forget", lambda _self, unit: None)
        monkeypatch.setattr(work.LocalMachine, "journal", lambda _self, unit, since: iter(["ValueError: too large"]))
        monkeypatch.setattr(work.LocalMachine, "unit_state", lambda _self, unit: SimpleNamespace(drop_ins=()))
        monkeypatch.setattr(work, "systemctl", self._systemctl)
        monkeypatch.setattr(work, "_generation_of", lambda paths, seen: "gen" if seen.running else None)

    def _systemctl(self, *arguments: str) -> str:
        if arguments[0] == "start":
            self.half = Start("half-1", 7, True)
        if arguments[0] == "stop":
            self.half = Start("half-1", 0, False)
        return ""


@pytest.fixture
def pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> Iterator[tuple[HeadLink, FollowerLink, FakeHost]]:
    host = FakeHost(monkeypatch)
    config = Config(0, port, (("a", "127.0.0.1"), ("b", "127.0.0.2")))
    paths = [SeatPaths("big", tmp_path / name) for name in "ab"]
    directory = paths[1].generation("gen")
    directory.mkdir(parents=True)
    paths[1].unit.parent.mkdir(parents=True)
    release, model = tmp_path / "release", tmp_path / "model"
    release.mkdir()
    (release / "release.json").touch()
    model.mkdir()
    manifest = {
        "seat": "big",
        "generation": "gen",
        "release_path": str(release),
        "release_id": "r",
        "model_path": str(model),
    }
    (directory / "manifest.json").write_text(json.dumps({**manifest, "model_id": "m"}))
    (directory / paths[1].unit.name).write_text("[Unit]\n")
    said: list[str] = []
    head = HeadLink(paths[0], config, said.append)
    follower = FollowerLink(paths[1], Config(1, port, config.hosts), said.append)
    monkeypatch.setattr(
        work, "unit_start", lambda unit: host.half if threading.current_thread().name == "half" else host.head
    )
    with work._Server(head) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield head, follower, host
        server.shutdown()


def look(follower: FollowerLink) -> None:
    """One look of the follower, which sees its own unit."""
    thread = threading.Thread(target=follower.look, name="half")
    thread.start()
    thread.join()


def test_both_halves_from_a_start_to_the_end_of_one(pair: tuple[HeadLink, FollowerLink, FakeHost]) -> None:
    head, follower, host = pair
    head.look()
    look(follower)
    assert not host.half.running  # there is no head to join
    host.head = Start(FIRST, 5, True)
    head.look()
    look(follower)
    assert host.half.running
    assert follower.paths.current.readlink().name == "gen"
    assert follower.paths.unit.read_text() == "[Unit]\n"
    look(follower)
    head.look()
    assert host.killed == []
    assert obstacles(work.read_linked(head.paths), "gen", "b", json.loads(head.paths.linked.read_text())["at"]) == []
    host.half = Start("half-1", 0, False)  # it dies
    look(follower)
    head.look()
    assert host.killed == [head.paths.unit.name]
    assert not host.half.running


def test_a_link_that_restarts_still_knows_the_pair(pair: tuple[HeadLink, FollowerLink, FakeHost]) -> None:
    head, follower, host = pair
    host.head = Start(FIRST, 5, True)
    head.look()
    look(follower)
    look(follower)
    again = HeadLink(head.paths, head.config, print)
    again.look()
    assert host.killed == []
    again.hear(
        Report(FIRST, False),
    )
    again.look()
    assert host.killed == [head.paths.unit.name]


def test_a_clock_that_is_set_ends_nobody(
    pair: tuple[HeadLink, FollowerLink, FakeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, follower, host = pair
    host.head = Start(FIRST, 5, True)
    head.look()
    look(follower)
    look(follower)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600.0)  # as chronyd does after a boot with a wrong clock
    head.look()
    assert host.killed == []
    heard = work.read_linked(head.paths)
    monkeypatch.setattr(machine, "read_linked", lambda _: heard)
    nodes = {"rank": 0, "port": 1, "hosts": [{"host": name, "address": address} for name, address in head.config.hosts]}
    assert machine._link_problems({"seat": "big", "generation": "gen", "nodes": nodes}) == []


def test_a_half_whose_head_is_gone_ends(pair: tuple[HeadLink, FollowerLink, FakeHost]) -> None:
    head, follower, host = pair
    host.head = Start(FIRST, 5, True)
    head.look()
    look(follower)
    host.head = Start(FIRST, 0, False)
    head.look()
    look(follower)
    assert host.killed == [follower.paths.unit.name]
    assert not host.half.running


def test_a_generation_that_lacks_something_is_not_started(pair: tuple[HeadLink, FollowerLink, FakeHost]) -> None:
    head, follower, host = pair
    manifest = json.loads((follower.paths.generation("gen") / "manifest.json").read_text())
    Path(manifest["model_path"]).rmdir()
    host.head = Start(FIRST, 5, True)
    head.look()
    look(follower)
    assert not host.half.running
    known = work.read_linked(head.paths)
    assert known is not None
    assert known["generations"] == {"gen": f"model m is not there ({manifest['model_path']})"}


def test_nobody_else_is_answered(pair: tuple[HeadLink, FollowerLink, FakeHost], port: int) -> None:
    stranger = Config(1, port, (("a", "127.0.0.1"), ("c", "127.0.0.3")))
    with pytest.raises(LinkError, match="HTTP 403"):
        exchange(stranger, Report())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5, source_address=("127.0.0.2", 0))
    connection.request("POST", "/", body=b"nonsense")
    assert connection.getresponse().status == 400
    connection.close()
    assert work.read_linked(pair[0].paths) is None


def test_what_the_link_is_told_must_be_nodes(tmp_path: Path) -> None:
    paths = SeatPaths("big", tmp_path)
    with pytest.raises(LinkError, match=r"link\.json: expected the nodes of a seat"):
        work.read_config(paths)
    paths.link.parent.mkdir(parents=True)
    paths.link.write_text(
        json.dumps({"rank": 1, "port": 29500, "hosts": [{"host": h, "address": h, "interface": "e"} for h in "ab"]})
    )
    assert work.read_config(paths) == Config(1, 29500, (("a", "a"), ("b", "b")))


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Generation, SeatPaths]:
    """A follower's half that wants 90 % of a card of 100 MiB, of which somebody else holds all but 20."""
    nodes = {"rank": 1, "port": 29500, "hosts": [{"host": h, "address": h, "interface": "e"} for h in "ab"]}
    manifest = {
        "gpus": [0],
        "port": 8022,
        "nodes": nodes,
        "declared": {"gpu-memory-utilization": 0.9},
        "environment": {"CUDA_VISIBLE_DEVICES": "0"},
    }
    files = {"manifest.json": json.dumps(manifest)}
    answers = {CARDS_QUERY: "0, GPU-a, 10000, 2000\n", APPS_QUERY: "GPU-a, 17, 8000\n"}
    monkeypatch.setattr(work.LocalMachine, "missing", lambda _self, manifest: [])
    monkeypatch.setattr(work.LocalMachine, "unit_state", lambda _self, unit: None)
    monkeypatch.setattr(work.LocalMachine, "seat_state", lambda _self, unit, port: SimpleNamespace(pids=()))
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *query: answers[query])
    monkeypatch.setattr(work, "unit_start", lambda unit: Start("", 0, False))
    monkeypatch.setattr(work, "_way_to_the_head", lambda paths: [])
    monkeypatch.setattr(work, "systemctl", lambda *arguments: "")
    return Generation("big", "gen", str(tmp_path), files, manifest), SeatPaths("big", tmp_path)


def test_a_card_that_is_full_on_the_follower_is_found_before_the_head_stops(half: tuple[Generation, SeatPaths]) -> None:
    rendered, paths = half
    (obstacle,) = work.prepare(rendered, check=False, paths=paths).obstacles
    assert obstacle.startswith("card GPU-a has 1.95 GiB free, the seat wants 8.79 GiB: ")
    assert "holds 7.81 GiB" in obstacle
    assert not paths.link.exists()


def test_a_half_that_runs_already_needs_no_more_memory(
    half: tuple[Generation, SeatPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_generation_of", lambda paths, seen: "gen")
    assert work.prepare(half[0], check=False, paths=half[1]).obstacles == ()
