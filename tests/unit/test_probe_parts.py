"""The parts a probe rests on: manifest, key file, flags, sockets, systemd, report, evidence, client."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_stub import KEY, StubSeat

from seatfleet.clients.evidence import KEPT, keep
from seatfleet.clients.systemd import parse_show
from seatfleet.clients.vllm import Kind, Limits, SeatClient, SeatError
from seatfleet.core.health import probe_report
from seatfleet.core.health.declared import compare, parse_non_default_args, same
from seatfleet.core.health.probe_report import Check, Report
from seatfleet.core.host.sockets import Owner, cgroup_of, in_cgroup, listeners
from seatfleet.core.problems import ProblemsError
from seatfleet.core.seat.manifest import load_manifest, read_api_key

MANIFEST: dict[str, Any] = {
    "format": 1,
    "seat": "flash-next",
    "host": "fv-ml1",
    "unit": "vllm-seat-flash-next.service",
    "base_url": "http://127.0.0.1:8022",
    "port": 8022,
    "api_key_file": "/etc/vllm/seats/flash-next/api-key.env",
    "model_id": "flash-next",
    "served_names": ["flash-next"],
    "max_model_len": 2048,
    "release_id": "0.32.0-0123456789ab",
    "generation": "abcdef012345",
    "kv_cache_memory_bytes": 67108864,
    "max_num_seqs": 4,
    "prefix_caching": False,
    "speculative": {"method": "mtp", "k": 2},
    "declared": {"max-model-len": 2048},
    "probe": {"ready_timeout_s": 300, "acceptance": {"count": 2.9}},
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**MANIFEST, **changes}))
    return path


def test_manifest(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path))
    assert manifest.speculative is not None
    assert (manifest.speculative.method, manifest.speculative.k) == ("mtp", 2)
    assert (manifest.ready_timeout_s, manifest.acceptance, manifest.canary) == (300, {"count": 2.9}, "auto")
    assert manifest.api_key_file == Path("/etc/vllm/seats/flash-next/api-key.env")


def test_manifest_with_nothing_optional(tmp_path: Path) -> None:
    nothing = {"unit": None, "kv_cache_memory_bytes": None, "max_num_seqs": None, "speculative": None}
    manifest = load_manifest(written(tmp_path, **nothing, probe={"ready_timeout_s": 5, "acceptance": None}))
    assert (manifest.unit, manifest.speculative, manifest.acceptance) == (None, None, None)


def test_every_problem_of_a_manifest_at_once(tmp_path: Path) -> None:
    wrong = {
        "format": 2,
        "port": "8022",
        "prefix_caching": 1,
        "speculative": {"method": "mtp"},
        "probe": {"canary": "?"},
    }
    with pytest.raises(ProblemsError) as caught:
        load_manifest(written(tmp_path, **wrong))
    fields = {problem.field for problem in caught.value.problems}
    assert fields == {"format", "port", "prefix_caching", "speculative.k", "probe.canary"}


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_manifest_that_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(content)
    with pytest.raises(ProblemsError, match=str(path)):
        load_manifest(path)


@pytest.mark.parametrize(
    "line", ["VLLM_API_KEY=sk-seat-x", 'VLLM_API_KEY="sk-seat-x"', "# c\n VLLM_API_KEY=sk-seat-x\n"]
)
def test_key_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "api-key.env"
    path.write_text(line)
    assert read_api_key(path) == "sk-seat-x"


def test_key_file_without_a_key_does_not_show_its_content(tmp_path: Path) -> None:
    path = tmp_path / "api-key.env"
    path.write_text("sk-seat-naked")
    with pytest.raises(ProblemsError) as caught:
        read_api_key(path)
    assert "sk-seat-naked" not in str(caught.value)
    with pytest.raises(ProblemsError, match="a readable key file"):
        read_api_key(tmp_path / "none")


LINE = (
    "INFO 11-29 [api_utils.py:286] non-default args: {'model': '/m', 'max_model_len': 2048, 'mode': <Mode.X: 3>, "
    "'served_model_name': ['tiny'], 'enable_prefix_caching': False, 'speculative_config': {'method': 'mtp', "
    "'num_speculative_tokens': 2}}"
)


def test_non_default_arguments() -> None:
    found = parse_non_default_args(["noise", LINE])
    assert found is not None
    assert (found["max_model_len"], found["mode"]) == (2048, "<Mode.X: 3>")
    assert parse_non_default_args(["noise", "non-default args: {'a': object(]}"]) is None


@pytest.mark.parametrize(
    ("flag", "value", "status"),
    [
        ("max-model-len", 2048, "ok"),
        ("max-model-len", 4096, "fail"),
        ("served-model-name", ["tiny"], "ok"),
        ("served-model-name", "tiny", "ok"),
        ("no-enable-prefix-caching", True, "ok"),
        ("enable-prefix-caching", True, "fail"),
        ("kv-cache-memory-bytes", 67108864, "ok"),
        ("kv-cache-dtype", "auto", "ok"),
        ("kv-cache-dtype", "fp8", "fail"),
        ("gpu-memory-utilization", 0.92, "ok"),
        ("block-size", 32, "warn"),  # a hybrid model's engine raises it
        ("speculative-config", {"method": "mtp", "num_speculative_tokens": 2}, "ok"),
        ("speculative-config", {"method": "mtp", "num_speculative_tokens": 3}, "fail"),
        ("speculative-config", '{"method":"mtp","num_speculative_tokens":2}', "ok"),
        ("max-num-seqs", 256, "not_checked"),
    ],
)
def test_declared_flags(flag: str, value: object, status: str) -> None:
    labels = {
        "block_size": "2048",
        "cache_dtype": "auto",
        "enable_prefix_caching": "False",
        "gpu_memory_utilization": "0.92",
        "kv_cache_memory_bytes": "67108864",
    }
    assert compare({flag: value}, labels, parse_non_default_args([LINE]))[0].status == status


@pytest.mark.parametrize(("left", "right"), [(1, "1.0"), (True, "true"), (None, "None"), ([1, "2"], '["1", 2]')])
def test_same(left: object, right: object) -> None:
    assert same(left, right)


@pytest.mark.parametrize(("left", "right"), [(1, 2), (True, "False"), (None, "0"), ({"a": 1}, {"b": 1}), (1, True)])
def test_not_same(left: object, right: object) -> None:
    assert not same(left, right)


def test_listeners_of_this_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = server.getsockname()[1]
        owners = listeners(port)
        assert [owner.pid for owner in owners] == [os.getpid()]
        assert in_cgroup(owners[0], cgroup_of(os.getpid()))
        free = other.getsockname()[1]
    assert listeners(free) == []


def test_listeners_of_ipv6_and_not_of_connections() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with server:
        port = server.getsockname()[1]
        with socket.create_connection(("::1", port)) as client:
            assert [owner.pid for owner in listeners(port)] == [os.getpid()]
            assert listeners(client.getsockname()[1]) == []


@pytest.mark.parametrize(
    ("owner", "unit", "inside"),
    [("/a.slice/x.service", "/a.slice/x.service", True), ("/a.slice/x.service/w", "/a.slice/x.service", True),
     ("/a.slice/x.service2", "/a.slice/x.service", False), ("/", "", False), ("/a.slice/x.service", "", False)],
)  # fmt: skip
def test_cgroups(owner: str, unit: str, inside: bool) -> None:
    assert in_cgroup(Owner(1, "x", owner), unit) is inside


SHOW = """LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=exit-code
MainPID=0
NRestarts=4
InvocationID=0123456789abcdef0123456789abcdef
ControlGroup=
ExecMainStatus=1
ExecMainStartTimestampMonotonic=12500000
"""


def test_unit_state() -> None:
    state = parse_show(SHOW)
    assert (state.running, state.restarts, state.started_s) == (False, 4, 12.5)
    assert str(state) == "activating (auto-restart), result exit-code, exit status 1, 4 automatic restarts"
    assert parse_show(SHOW.replace("auto-restart", "start-pre")).running
    assert parse_show(SHOW.replace("activating", "active").replace("auto-restart", "running")).running
    assert not parse_show("").running


def report(*checks: Check) -> Report:
    made = Report("s", "h", "identity", "2026-11-29T20:00:00Z", "0.32.0-0123456789ab", "g")
    made.checks += checks
    return made


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], 0),
        ([2], 2),
        ([4], 4),
        ([4, 8], 8),
        ([8, 11], 11),
        ([11, 6, 7], 7),
        ([7, 9], 9),
        ([9, 5], 5),
        ([5, 3], 3),
        ([0], 1),
    ],
)
def test_the_worst_finding_decides(codes: list[int], worst: int) -> None:
    made = report(*(Check(f"c{code}", "fail", evidence="why", exit=code) for code in codes))
    assert made.exit == worst
    assert (made.cause is None) == (worst == 0)


def test_every_code_has_a_place_among_the_others() -> None:
    """A code without one would read as READY."""
    for code in probe_report.VERDICTS:
        assert report(Check("c", "fail", exit=code)).exit == (code or probe_report.EXIT_INTERNAL)


def test_warnings_and_unchecked_never_decide() -> None:
    assert report(Check("a", "warn", exit=5), Check("b", "not_checked", exit=5), Check("c", "ok", exit=5)).exit == 0


def test_json_form_is_stable() -> None:
    made = report(Check("a", "ok")).as_json()
    assert list(made) == [
        "schema", "seat", "host", "level", "verdict", "exit", "cause", "started_utc", "duration_s", "ready_s",
        "boot_id", "vllm_version", "release_id", "generation", "kv_cache_tokens", "checks",
        "acceptance", "ttft_s", "warnings",
    ]  # fmt: skip
    assert made["schema"] == "seatfleet.probe/1"
    assert list(made["checks"][0]) == ["id", "status", "expected", "observed", "unit", "evidence"]  # type: ignore[index]


def test_table_has_a_line_per_seat_and_every_cause() -> None:
    good, bad = report(), report(Check("x", "fail", evidence="it broke", exit=9))
    good.ready_s, good.kv_cache_tokens, good.acceptance = 28.04, 35108, {"count": {"al": 3.0}}
    lines = probe_report.table([good.as_json(), bad.as_json()]).splitlines()
    assert lines[1].split() == ["h", "s", "0.32.0-0123456789ab", "READY", "28.0", "35,108", "count=3.00", "0"]
    assert lines[-1] == "h/s: CANARY: x: it broke"


def test_prometheus_text_is_read_back_by_our_own_parser() -> None:
    from seatfleet.core.health.metrics import parse

    made = report(Check("x", "fail", evidence="it broke", exit=9))
    made.acceptance = {"count": {"al": 2.5}}
    page = parse(probe_report.prometheus_text(made.as_json(), 1000.5))
    assert page.total("seatfleet_probe_exit_code", host="h", seat="s") == 9
    assert page.total("seatfleet_probe_acceptance_length", workload="count") == 2.5
    assert page.total("seatfleet_probe_check", check="x", status="fail") == 1
    assert page.infos("seatfleet_probe_info")[0]["verdict"] == "CANARY"


def test_evidence_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(KEPT + 5):
        stamp = f"2026-11-29T{number // 60:02d}:{number % 60:02d}:00Z"
        keep(tmp_path, {"started_utc": stamp, "level": "ready"})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == KEPT
    assert names[0] == "20261129T000500Z-ready.json"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Kind.BAD_REQUEST), (401, Kind.UNAUTHORIZED), (403, Kind.FORBIDDEN), (404, Kind.NOT_FOUND),
     (429, Kind.TOO_MANY), (500, Kind.SERVER_ERROR), (502, Kind.SERVER_ERROR), (503, Kind.UNAVAILABLE)],
)  # fmt: skip
def test_http_status(status: int, kind: Kind) -> None:
    stub = StubSeat()
    stub.fail["/version"] = (status, '{"error":{"message":"said why"}}')
    with (
        SeatClient(f"http://127.0.0.1:{stub.port}", KEY) as client,
        pytest.raises(SeatError, match="said why") as caught,
    ):
        client.version()
    stub.close()
    assert (caught.value.kind, caught.value.status) == (kind, status)


def test_nobody_and_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with SeatClient(address, None, Limits(get=0.1)) as client, pytest.raises(SeatError) as caught:
            client.version()
        assert caught.value.kind is Kind.TIMEOUT
    with SeatClient(address, None) as client, pytest.raises(SeatError) as caught:
        client.version()
    assert caught.value.kind is Kind.REFUSED


@contextmanager
def answering(head: str, *pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A server that answers one request with these bytes, and its address."""

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {head}\r\n\r\n".encode())
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass  # closed with something unread it would be reset

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_stream_of_comments_is_given_up() -> None:
    limits = Limits(token=0.5, request=0.6)
    with answering("text/event-stream", *[b": keep-alive\n\n"] * 60, pause_s=0.1) as address:
        began = time.monotonic()
        with SeatClient(address, None, limits) as client, pytest.raises(SeatError) as caught:
            client.stream({})
    assert caught.value.kind is Kind.TIMEOUT
    assert time.monotonic() - began < 2.0


CHOICE = {"message": {"content": "ok"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [None]},
        {"choices": 3},
        {"choices": [{"message": {"content": 3}}]},
        {"choices": [{"message": {"tool_calls": [{"index": None}, {"index": 1}]}}]},
        {"choices": [CHOICE], "usage": [1]},
        {"choices": [{**CHOICE, "logprobs": {"content": [{"top_logprobs": [{}]}]}}]},
    ],
)
def test_an_answer_of_another_form_is_an_error_of_the_seat(answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    with answering("application/json", text) as address, SeatClient(address, None) as client:  # noqa: SIM117
        with pytest.raises(SeatError) as caught:
            client.chat({})
    assert caught.value.kind is Kind.MALFORMED
    with answering("text/event-stream", b"data: " + text + b"\n\n") as address, SeatClient(address, None) as client:  # noqa: SIM117
        with pytest.raises(SeatError) as caught:
            client.stream({})
    assert caught.value.kind in {Kind.MALFORMED, Kind.CUT}


FIELDS = (
    "message",
    "delta",
    "content",
    "reasoning",
    "tool_calls",
    "function",
    "token_ids",
    "logprobs",
    "index",
    "usage",
)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
        max_leaves=8,
    )
)
def test_whatever_is_answered_is_a_completion_or_an_error_of_the_seat(content: Any) -> None:
    body = {"choices": [content, {"message": content}], "usage": content}
    client = SeatClient("http://seat", None)
    client._http = httpx.Client(
        base_url="http://seat", transport=httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    )
    with suppress(SeatError):
        client.chat({})


def test_an_address_that_is_none_and_a_key_that_cannot_be_sent() -> None:
    with pytest.raises(SeatError) as caught:
        SeatClient("http://[::1", None)
    assert caught.value.kind is Kind.BAD_REQUEST
    with SeatClient("http://127.0.0.1:9", "sk-seat-0123\n") as client, pytest.raises(SeatError) as caught:
        client.version()
    assert "0123" not in str(caught.value)


def test_a_proxy_of_the_environment_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    stub = StubSeat()
    with SeatClient(f"http://127.0.0.1:{stub.port}", KEY) as client:
        assert client.version() == "0.32.0"
    stub.close()
