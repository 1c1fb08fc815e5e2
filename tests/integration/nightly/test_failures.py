"""Changes that fail, each with clients calling: afterwards the seat of before answers through its alias.

What is found before the stop touches nothing, and no caller notices. What is found after it costs the designed 503.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hammer import DESIGNED, OK, Hammer
from labrun import Lab
from seatlife import (
    DEPLOYMENT,
    HOST,
    PATCHED_FILE,
    SEATS_FILE,
    SMALLER,
    call,
    client_of,
    deploying,
    link,
    process,
    rejected,
    wait_for_the_gateway,
    wait_for_the_new_process,
)

Edit = tuple[str, str, str]
# What these changes touch; the rest of site.yml has its tests elsewhere.
SEAT_ONLY = ("-l", HOST, "--tags", "model,seat,alias")


@pytest.fixture(scope="module", autouse=True)
def deployed(lab: Lab) -> None:
    """The one host converged; the gateway is there since test_chain.py."""
    lab.site("-l", HOST)


def with_engine(entry: str) -> Edit:
    return (SEATS_FILE, "    enforce_eager: true\n", f"    enforce_eager: true\n    engine: {{{entry}}}\n")


def with_env(entry: str) -> Edit:
    return (SEATS_FILE, "    env:\n", f"    env:\n      {entry}\n")


@contextmanager
def corrupted_file(lab: Lab) -> Iterator[None]:
    """Change a patched file of the release that serves; the process has read it long ago."""
    lab.host(HOST, "cp", "-a", PATCHED_FILE, "/root/kept.py")
    lab.host(HOST, "tee", "-a", PATCHED_FILE, stdin="# by hand\n")
    try:
        yield
    finally:
        lab.host(HOST, "cp", "-a", "/root/kept.py", PATCHED_FILE)


@contextmanager
def taken_port(lab: Lab) -> Iterator[None]:
    """Somebody else listens on the port that the seat shall get."""
    serve = ["/usr/bin/python3", "-m", "http.server", "8044"]
    lab.host(HOST, "systemd-run", "--quiet", "--unit=stranger", "--working-directory=/srv", *serve)
    try:
        yield
    finally:
        lab.host(HOST, "systemctl", "stop", "stranger.service")


@contextmanager
def unreached_port(lab: Lab) -> Iterator[None]:
    """The port that the seat shall get answers on the host, and not to the gateway."""
    with rejected(lab, "iif != lo tcp dport 8044"):
        yield


@contextmanager
def as_it_is(lab: Lab) -> Iterator[None]:
    yield


UNTOUCHED = {
    "removed flag": (as_it_is, [with_engine("swap-space: 4")], (), "unrecognized arguments: --swap-space"),
    "unknown variable": (
        as_it_is,
        [with_env('VLLM_NO_SUCH: "1"')],
        (),
        "expected a VLLM_ name that 0.32.0+cpu.1 knows",
    ),
    "missing plugin": (as_it_is, [with_engine("tool-parser-plugin: /opt/none.py")], (), "/opt/none.py"),
    "corrupted patched file": (corrupted_file, [SMALLER], (), "launcher.py"),
    "port taken": (taken_port, [(SEATS_FILE, "port: 8022", "port: 8044")], (), "port 8044 is held by process"),
    "gateway refuses": (
        as_it_is,
        [SMALLER],
        ("-e", "gateway_admin_key=sk-of-yesterday"),
        "the gateway refuses to close gen-large",
    ),
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_what_is_found_before_the_stop_is_noticed_by_no_caller(lab: Lab, tmp_path: Path, case: str) -> None:
    arrange, edits, arguments, words = UNTOUCHED[case]
    before, edited = process(lab), lab.edited(tmp_path / "edited", edits)
    with arrange(lab), client_of(lab) as during:
        run = edited.site(*SEAT_ONLY, *arguments, check=False)
    assert run.failed == {HOST}, run.output
    assert words in " ".join(run.output.split()), run.output
    assert process(lab) == before
    assert (during.accidents, during.seen[DESIGNED]) == ({}, 0)
    assert set(during.deployments) == {DEPLOYMENT}


BROKEN_HEAD = (SEATS_FILE, "model: tiny-oracle\n", "model: tiny-oracle-badmtp\n")
RETURNED = {
    "broken head": (as_it_is, [BROKEN_HEAD], "AL 1.00"),
    "slow load": (
        as_it_is,
        [SMALLER, (SEATS_FILE, "ready_timeout_s: 600", "ready_timeout_s: 10")],
        "not READY within 10 s",
    ),
    "gateway does not reach it": (
        unreached_port,
        [(SEATS_FILE, "port: 8022", "port: 8044")],
        "its new deployment seat-fv-ml1-flash-next-gen-large does not answer, so it was taken back",
    ),
}


@pytest.mark.parametrize("case", RETURNED)
def test_what_is_found_after_the_stop_brings_the_seat_back_with_its_alias(lab: Lab, tmp_path: Path, case: str) -> None:
    arrange, edits, words = RETURNED[case]
    before, way_back, edited = link(lab), link(lab, "previous"), lab.edited(tmp_path / "edited", edits)
    with arrange(lab), client_of(lab) as during:
        run = edited.site(*SEAT_ONLY, check=False)
    assert run.failed == {HOST}, run.output
    assert words in " ".join(run.output.split()), run.output
    assert f"Generation {before} is back and READY" in " ".join(run.output.split())
    assert during.accidents == {}
    assert during.seen[DESIGNED] > 0
    assert (link(lab), link(lab, "previous")) == (before, way_back)
    assert_serves(client_of(lab))


def assert_serves(client: Hammer) -> None:
    with client as after:
        time.sleep(3)
    assert (after.accidents, after.seen[DESIGNED]) == ({}, 0)
    assert set(after.deployments) == {DEPLOYMENT}


def test_where_a_fallback_exists_no_caller_notices(lab: Lab, tmp_path: Path) -> None:
    """A change that fails and comes back, then one that works: two restarts and a half, and not one refusal."""
    fallback = (SEATS_FILE, "      gen-large:\n", "      gen-large:\n        fallback: gen-small\n")
    declared = lab.edited(tmp_path / "declared", [fallback])
    declared.site(*SEAT_ONLY)
    broken = lab.edited(tmp_path / "broken", [fallback, BROKEN_HEAD])
    smaller = lab.edited(tmp_path / "smaller", [fallback, SMALLER])
    with client_of(lab) as during:
        failed = broken.site(*SEAT_ONLY, check=False)
        smaller.site(*SEAT_ONLY)
        declared.site(*SEAT_ONLY)
    lab.site(*SEAT_ONLY)
    assert failed.failed == {HOST}
    assert (during.accidents, during.seen[DESIGNED]) == ({}, 0)
    assert set(during.deployments) >= {DEPLOYMENT, DEPLOYMENT.replace("seat-", "closed-", 1)}
    assert_serves(client_of(lab))


def test_a_gateway_that_goes_away_keeps_what_serves(lab: Lab, tmp_path: Path) -> None:
    """The new seat is not to blame: it stays, and the play says what is left to do."""
    before, edited = link(lab), lab.edited(tmp_path / "edited", [SMALLER])
    try:
        with deploying(edited, "--tags", "seat,alias") as play:
            wait_for_the_new_process(lab, before)
            lab.host("gw-1", "systemctl", "stop", "litellm.service")
            said = " ".join(play.communicate(timeout=900)[0].split())
    finally:
        lab.host("gw-1", "systemctl", "start", "litellm.service")
        wait_for_the_gateway(lab)
    assert play.returncode != 0, said
    assert "Not done: alias gen-large of seat flash-next, for keys infra-ops, all-agents" in said, said
    assert link(lab) != before
    edited.site(*SEAT_ONLY)
    assert_serves(client_of(lab))
    lab.site(*SEAT_ONLY)
    assert link(lab) == before


@contextmanager
def without_ssh(lab: Lab) -> Iterator[None]:
    """Nobody can log in to the host any more; its seat goes on serving."""
    with rejected(lab, "tcp dport 22"):
        yield


@contextmanager
def without_network(lab: Lab) -> Iterator[None]:
    lab.power("cut", HOST)
    try:
        yield
    finally:
        lab.power("heal", HOST)


@pytest.mark.parametrize("fault", [without_ssh, without_network])
def test_an_unreachable_host_is_named_and_nothing_else_is_touched(
    lab: Lab, tmp_path: Path, fault: Callable[[Lab], AbstractContextManager[None]]
) -> None:
    before, edited = process(lab), lab.edited(tmp_path / "edited", [SMALLER])
    with client_of(lab) as during, fault(lab):
        run = edited.site("-l", HOST, check=False)
    assert run.failed == {HOST}, run.output
    assert "unreachable=1" in run.output
    if fault is without_ssh:  # without a network the seat has no callers either
        assert (during.accidents, during.seen[DESIGNED]) == ({}, 0)
    assert process(lab) == before
    assert_serves(client_of(lab))


def test_a_first_host_that_is_dead_does_not_keep_the_others_from_their_deployment(lab: Lab, tmp_path: Path) -> None:
    other = ("group_vars/lab_spark_1/seats.yml", "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")
    edited = lab.edited(tmp_path / "edited", [other])
    before, current = process(lab), ("readlink", "/etc/vllm/seats/dense-lab/current")
    there = lab.host("spark-1", *current).output
    with without_network(lab):
        run = edited.site(check=False)
    assert run.failed == {HOST}, run.output
    assert "unreachable=1" in run.output
    assert lab.host("spark-1", *current).output != there
    assert process(lab) == before
    lab.site()
    assert lab.host("spark-1", *current).output == there


def test_a_limit_keeps_to_its_host(lab: Lab, tmp_path: Path) -> None:
    """Both hosts' seats are edited; a run limited to one of them contacts the other not even for the gateway."""
    other = ("group_vars/lab_spark_1/seats.yml", "kv_cache_memory: 64MiB", "kv_cache_memory: 48MiB")
    edited = lab.edited(tmp_path / "edited", [SMALLER, other])
    show = ("systemctl", "show", "vllm-seat-dense-lab.service", "--property=MainPID,ActiveEnterTimestampMonotonic")
    before, neighbour = link(lab), lab.host("spark-1", *show).output
    with client_of(lab) as during:
        run = edited.site("-l", HOST)
    assert set(run.changed) == {HOST}
    assert during.accidents == {}
    assert link(lab) != before
    assert lab.host("spark-1", *show).output == neighbour
    lab.site("-l", HOST)
    assert link(lab) == before


def test_the_seat_of_before_still_answers(lab: Lab) -> None:
    assert call(lab) == OK
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}
