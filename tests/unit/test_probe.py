"""The probe against a scripted seat: every failure it must tell apart, produced for real over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from probe_stub import CGROUP, KEY, Answer, FakeHost, StubSeat, manifest_for

from seatfleet.clients.probe import Options, probe
from seatfleet.clients.vllm import Limits, SeatClient
from seatfleet.core.health import probe_report as codes
from seatfleet.core.health.probe_report import Report
from seatfleet.core.host.sockets import Owner
from seatfleet.core.seat.manifest import Manifest, Speculation

# A healthy stub is answered for however loaded the machine is; what hangs costs its test a multiple of the short ones.
PATIENT = Limits(connect=30.0, get=30.0, token=30.0, request=60.0)
HUNG_ENGINE = Limits(connect=30.0, get=30.0, token=0.7, request=60.0)
HUNG_SERVER = Limits(connect=30.0, get=0.7, token=0.7, request=60.0)
# No attempt is cut short by the first; it ends the wait for a seat that stays as it is.
ONCE = Options(ready_timeout_s=0.5, poll_s=0.05, quiet_s=0.1, settle_s=0.3)
WAITING = Options(ready_timeout_s=60, poll_s=0.05)


@pytest.fixture
def stub() -> Iterator[StubSeat]:
    seat = StubSeat()
    yield seat
    seat.close()


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def run(
    stub: StubSeat,
    host: FakeHost,
    level: str = "ready",
    *,
    key: str = KEY,
    manifest: Manifest | None = None,
    options: Options = ONCE,
    limits: Limits = PATIENT,
) -> Report:
    wanted = manifest or manifest_for(stub)
    with SeatClient(wanted.base_url, key, limits) as client:
        return probe(wanted, client, host, options, level)


def test_a_healthy_seat_passes_every_level(stub: StubSeat, host: FakeHost) -> None:
    report = run(stub, host, "acceptance")
    assert (report.exit, report.cause, report.warnings) == (codes.EXIT_READY, None, [])
    assert report.acceptance["count"]["al"] == pytest.approx(3.0)
    assert report.kv_cache_tokens == 35108
    assert {check.id for check in report.checks if check.status != "ok"} == {"canary"}  # off in this manifest
    assert "planned_kv_tokens" in {check.id for check in report.checks}
    assert report.boot_id == "aaaaaaaaaaaa/process_start_time_seconds=1000.00"


# -- READY


def test_waits_for_a_seat_that_is_still_starting(stub: StubSeat, host: FakeHost) -> None:
    owners, host.owners = host.owners, []
    host.before_look = lambda number: host.owners.extend(owners if number == 3 else [])
    report = run(stub, host, options=WAITING)
    assert report.exit == codes.EXIT_READY
    assert report.ready_s is not None


def test_no_seconds_to_ready_for_a_seat_that_was_up_already(stub: StubSeat, host: FakeHost) -> None:
    assert run(stub, host).ready_s is None


def test_503_while_starting_is_waited_for(stub: StubSeat, host: FakeHost) -> None:
    stub.fail["/v1/chat/completions"] = (503, "starting")
    host.before_look = lambda number: stub.fail.clear() if number == 3 else None
    report = run(stub, host, options=WAITING)
    assert report.exit == codes.EXIT_READY
    assert report.ready_s is not None


def test_nobody_listens(stub: StubSeat, host: FakeHost) -> None:
    host.owners = []
    report = run(stub, host)
    assert report.exit == codes.EXIT_NOT_READY
    assert "nobody listens" in str(report.cause)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"active": "failed", "sub": "failed", "result": "exit-code", "exit_status": 1},
            "result exit-code, exit status 1",
        ),
        ({"active": "inactive", "sub": "dead"}, "inactive (dead)"),
        ({"active": "activating", "sub": "auto-restart", "restarts": 3}, "auto-restart"),
        ({"load": "not-found"}, "deploy the seat first"),
    ],
)
def test_a_unit_that_ended_fails_at_once_with_the_first_error(
    stub: StubSeat, host: FakeHost, changes: dict[str, Any], words: str
) -> None:
    host.change(**changes)
    host.lines = [
        "INFO 11-29 20:11:02 [x.py:1] ValueError is only mentioned",
        "(EngineCore pid=7) ERROR 11-29 20:11:02 [core.py:1] ValueError: To serve at least one request 2 GiB is needed",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    report = run(stub, host, options=WAITING)
    assert host.looks == 0  # not even at the port
    assert report.exit == codes.EXIT_NOT_READY
    assert words in str(report.cause)
    if "load" not in changes:
        assert "First error: ValueError: To serve at least one request" in str(report.cause)


def test_a_restart_while_waiting_fails_at_once(stub: StubSeat, host: FakeHost) -> None:
    host.owners = []
    host.lines = ["torch.OutOfMemoryError: CUDA out of memory"]
    host.before_look = lambda number: host.change(invocation="b" * 32, restarts=1) if number == 3 else None
    report = run(stub, host, options=WAITING)
    assert host.looks == 3
    assert report.exit == codes.EXIT_NOT_READY
    assert "started again while it was waited for" in str(report.cause)
    assert "CUDA out of memory" in str(report.cause)


def test_another_server_on_the_port(stub: StubSeat, host: FakeHost) -> None:
    host.owners = [Owner(4242, "python3", "/user.slice/session-1.scope")]
    report = run(stub, host, options=WAITING)
    assert report.exit == codes.EXIT_NOT_READY
    assert "held by process 4242 (python3) in /user.slice/session-1.scope" in str(report.cause)
    assert stub.generations == 0


def test_a_unit_of_a_longer_name_is_another_unit(stub: StubSeat, host: FakeHost) -> None:
    host.owners = [Owner(4242, "vllm", CGROUP + "x")]
    assert run(stub, host).exit == codes.EXIT_NOT_READY


def test_processes_in_a_child_cgroup_belong_to_the_unit(stub: StubSeat, host: FakeHost) -> None:
    host.owners = [Owner(100, "vllm", CGROUP + "/worker")]
    assert run(stub, host).exit == codes.EXIT_READY


def test_another_seats_model_answers(stub: StubSeat, host: FakeHost) -> None:
    stub.names = ["somebody-else"]
    report = run(stub, host)
    assert report.exit == codes.EXIT_IDENTITY
    assert "serves ['somebody-else'], not 'tiny'" in str(report.cause)


def test_hung_engine_health_and_models_are_200(stub: StubSeat, host: FakeHost) -> None:
    stub.hang.set()
    report = run(stub, host, options=WAITING, limits=HUNG_ENGINE)
    assert report.exit == codes.EXIT_NOT_READY
    assert "the engine hangs (/metrics answers, but its counters stand still)" in str(report.cause)


def test_hung_server_process(stub: StubSeat, host: FakeHost) -> None:
    stub.hang_all = True
    report = run(stub, host, options=WAITING, limits=HUNG_SERVER)
    assert report.exit == codes.EXIT_NOT_READY
    assert "/metrics does not answer either" in str(report.cause)


def test_a_process_that_was_stopped_is_told_from_one_that_works(host: FakeHost) -> None:
    """SIGSTOP to a real server process: its port still accepts connections, as the kernel does that."""
    code = "import threading, probe_stub; print(probe_stub.StubSeat().port, flush=True); threading.Event().wait()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            far = StubSeat()
            far.close()
            far.port = int(server.stdout.readline())
            assert run(far, host).exit == codes.EXIT_READY
            server.send_signal(signal.SIGSTOP)
            report = run(far, host, options=WAITING, limits=HUNG_SERVER)
            assert report.exit == codes.EXIT_NOT_READY
            assert "the engine hangs" in str(report.cause)
            server.send_signal(signal.SIGCONT)
            assert run(far, host).exit == codes.EXIT_READY
        finally:
            server.kill()


def test_busy_is_not_dead(stub: StubSeat, host: FakeHost) -> None:
    stub.hang.set()
    stub.progress = 1  # the engine works for others
    report = run(stub, host, limits=HUNG_ENGINE)
    assert (report.exit, codes.VERDICTS[report.exit]) == (codes.EXIT_BUSY, "BUSY")
    assert "too much load" in str(report.cause)


def test_crash_at_the_first_request(stub: StubSeat, host: FakeHost) -> None:
    stub.cut_after = 0
    host.lines = ["RuntimeError: Unexpected head dim size, 32"]
    stub.before_generation = lambda _: host.change(active="failed", sub="failed")
    report = run(stub, host)
    assert report.exit == codes.EXIT_NOT_READY
    assert "the first request killed vllm-seat-s.service" in str(report.cause)
    assert "Unexpected head dim size" in str(report.cause)


def test_dead_engine_reported_inside_a_200_stream(stub: StubSeat, host: FakeHost) -> None:
    stub.stream_error = "EngineCore encountered an issue"
    stub.before_generation = lambda _: host.change(active="failed", sub="failed")
    assert "EngineCore encountered an issue" in str(run(stub, host).cause)


@pytest.mark.parametrize(
    ("path", "status", "body", "code", "words"),
    [
        ("/v1/models", 401, '{"error":"Unauthorized"}', codes.EXIT_NOT_READY, "does not accept the key"),
        ("/v1/models", 403, '{"error":{"message":"no"}}', codes.EXIT_NOT_READY, "is a proxy on this port?"),
        ("/v1/models", 404, "nothing here", codes.EXIT_IDENTITY, "404"),
        ("/v1/chat/completions", 404, '{"error":{"message":"no such model"}}', codes.EXIT_IDENTITY, "no such model"),
        (
            "/v1/chat/completions",
            400,
            '{"error":{"message":"no chat template"}}',
            codes.EXIT_NOT_READY,
            "no chat template",
        ),
        ("/v1/chat/completions", 429, "slow down", codes.EXIT_BUSY, "429"),
        ("/v1/chat/completions", 503, "later", codes.EXIT_NOT_READY, "503"),
        ("/v1/models", 200, "<html>hello</html>", codes.EXIT_NOT_READY, "this is not vLLM's API"),
        ("/v1/models", 200, "[]", codes.EXIT_NOT_READY, "this is not vLLM's API"),
        ("/v1/models", 200, '{"data":[{"name":"x"}]}', codes.EXIT_NOT_READY, "no list of models with ids"),
    ],
)
def test_answers_are_told_apart(
    stub: StubSeat, host: FakeHost, path: str, status: int, body: str, code: int, words: str
) -> None:
    stub.fail[path] = (status, body)
    report = run(stub, host)
    assert (report.exit, words in str(report.cause)) == (code, True), report.cause


def test_500_on_generation_of_a_seat_that_survives(
    stub: StubSeat, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seatfleet.clients.probe.ready._CRASH_GRACE_S", 0.1)
    stub.fail["/v1/chat/completions"] = (500, '{"error":{"message":"NaN in logits"}}')
    report = run(stub, host)
    assert report.exit == codes.EXIT_NOT_READY
    assert "HTTP 500: NaN in logits" in str(report.cause)


def test_stream_cut(stub: StubSeat, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seatfleet.clients.probe.ready._CRASH_GRACE_S", 0.1)
    stub.cut_after = 3
    report = run(stub, host)
    assert report.exit == codes.EXIT_NOT_READY
    assert "ended after 3 chunks without a finish reason" in str(report.cause)


def test_wrong_key_is_said_and_not_shown(stub: StubSeat, host: FakeHost) -> None:
    report = run(stub, host, key="sk-seat-old")
    assert report.exit == codes.EXIT_NOT_READY
    assert "does not accept the key" in str(report.cause)
    assert "sk-seat-old" not in json.dumps(report.as_json())


@pytest.mark.parametrize(
    ("answer", "words"),
    [(Answer([], "stop"), "0 tokens"), (Answer(["x"], "abort"), "finish reason 'abort'")],
)
def test_an_answer_that_is_none(stub: StubSeat, host: FakeHost, answer: Answer, words: str) -> None:
    stub.answer = lambda _: answer
    report = run(stub, host)
    assert report.exit == codes.EXIT_NOT_READY
    assert words in str(report.cause)


def test_a_seat_without_a_unit_says_what_was_not_checked(stub: StubSeat, host: FakeHost) -> None:
    host.state = None
    report = run(stub, host, manifest=manifest_for(stub, unit=None))
    assert report.exit == codes.EXIT_READY
    assert [check.id for check in report.checks if check.status == "not_checked"] == ["socket_owner"]


# -- identity


def change_identity(stub: StubSeat, what: str) -> None:
    if what == "max_model_len":
        stub.max_model_len = 4096
    elif what == "max_model_len_tokenize":
        stub.tokenize_limit = 1024
    elif what == "served_names":
        stub.names = ["tiny", "extra"]
    elif what == "version":
        stub.version = "0.23.0"
    elif what == "kv_cache_tokens":
        stub.cache_config["kv_cache_size_tokens"] = "1024"
    elif what == "speculation absent":
        stub.rates = None
    elif what == "speculation":
        stub.rates = [1.0, 0.9, 0.8]
    elif what == "declared.no-enable-prefix-caching":
        stub.cache_config["enable_prefix_caching"] = "True"
    elif what == "declared.kv-cache-memory-bytes":
        stub.cache_config["kv_cache_memory_bytes"] = "None"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("max_model_len", "declared 2048, /v1/models says 4096"),
        ("max_model_len_tokenize", "/tokenize says 1024"),
        ("served_names", "the server has ['extra', 'tiny']"),
        ("version", "the server is vLLM 0.23.0"),
        ("kv_cache_tokens", "0.50 requests of full context"),
        ("speculation absent", "runs without speculation"),
        ("speculation", "drafts 3 positions"),
        ("declared.no-enable-prefix-caching", "declared True, the engine has 'True'"),
        ("declared.kv-cache-memory-bytes", "the engine has 'None'"),
    ],
)
def test_identity(stub: StubSeat, host: FakeHost, what: str, words: str) -> None:
    assert run(stub, host, "identity").exit == codes.EXIT_READY
    change_identity(stub, what)
    report = run(stub, host, "identity")
    assert report.exit == codes.EXIT_IDENTITY
    assert str(report.cause).startswith(f"{what.partition(' ')[0]}: ")
    assert words in str(report.cause)


def test_speculation_that_was_not_declared(stub: StubSeat, host: FakeHost) -> None:
    report = run(stub, host, "identity", manifest=manifest_for(stub, speculative=None))
    assert report.exit == codes.EXIT_IDENTITY
    assert "it drafts all the same" in str(report.cause)


def test_kv_tokens_from_the_journal_of_0_23(stub: StubSeat, host: FakeHost) -> None:
    del stub.cache_config["kv_cache_size_tokens"]
    host.lines = [
        "INFO GPU KV cache size: 332,721 tokens",
        "INFO Maximum concurrency for 131,072 tokens per request: 2.54x",
    ]
    report = run(stub, host, "identity")
    assert (report.exit, report.kv_cache_tokens) == (codes.EXIT_READY, 332721)


def test_kv_tokens_that_nobody_reports_are_not_passed(stub: StubSeat, host: FakeHost) -> None:
    del stub.cache_config["kv_cache_size_tokens"]
    report = run(stub, host, "identity")
    assert [check.id for check in report.checks if check.status == "not_checked"] == ["kv_cache_tokens", "canary"]


def test_all_identity_findings_are_listed(stub: StubSeat, host: FakeHost) -> None:
    for what in ("max_model_len", "version", "speculation"):
        change_identity(stub, what)
    failed = {check.id for check in run(stub, host, "identity").checks if check.status == "fail"}
    assert failed == {"max_model_len", "max_model_len_tokenize", "version", "speculation"}


# -- acceptance


@pytest.mark.parametrize(
    ("rates", "code", "words"),
    [
        ([0.0, 0.0], codes.EXIT_ACCEPT_BROKEN, "the draft head is not loaded"),
        ([0.4, 0.06], codes.EXIT_ACCEPT_LOW, "laid out wrongly"),
        ([1.0, 1.0], codes.EXIT_READY, ""),
    ],
)
def test_acceptance(stub: StubSeat, host: FakeHost, rates: list[float], code: int, words: str) -> None:
    stub.rates = rates
    report = run(stub, host, "acceptance")
    assert report.exit == code
    assert words in str(report.cause)


def test_a_low_value_is_measured_twice_and_both_are_reported(stub: StubSeat, host: FakeHost) -> None:
    stub.rates = [0.5, 0.4]
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_ACCEPT_LOW
    assert any("measured twice" in warning for warning in report.warnings)


def test_a_drafter_that_breaks_with_several_requests_at_once(stub: StubSeat, host: FakeHost) -> None:
    alive: list[int] = []

    def together(number: int) -> None:
        alive.append(number)
        time.sleep(0.05)
        stub.rates = [0.1, 0.05] if len(alive) > 1 else [1.0, 1.0]

    stub.before_generation = together
    stub.after_generation = lambda _: alive.pop() and None
    report = run(stub, host, "acceptance")
    assert report.acceptance["count"]["al"] == pytest.approx(3.0)
    assert report.exit == codes.EXIT_ACCEPT_LOW
    assert str(report.cause).startswith("acceptance.count.together: AL ")


def test_a_drafter_that_breaks_with_the_callers_temperature(stub: StubSeat, host: FakeHost) -> None:
    """As callers sample, four at once: verification that only a temperature corrupts."""

    def sampled(_: int) -> None:
        hot = stub.prompts[-1]["temperature"] > 0
        stub.rates = [0.09, 0.01] if hot else [1.0, 1.0]

    stub.before_generation = sampled
    report = run(stub, host, "acceptance")
    assert report.acceptance["count.together"]["status"] == "ok"
    assert report.exit == codes.EXIT_ACCEPT_LOW
    assert str(report.cause).startswith("acceptance.count.sampled: AL 1.1")
    assert sum(body["temperature"] == 1.0 and body["top_p"] == 0.95 for body in stub.prompts) == 4


def test_a_drafter_that_is_right_less_often_with_a_temperature(stub: StubSeat, host: FakeHost) -> None:
    def sampled(_: int) -> None:
        stub.rates = [0.6, 0.4] if stub.prompts[-1]["temperature"] > 0 else [1.0, 1.0]

    stub.before_generation = sampled
    assert run(stub, host, "acceptance").exit == codes.EXIT_READY


def test_callers_that_say_nothing_about_sampling(stub: StubSeat, host: FakeHost) -> None:
    report = run(stub, host, "acceptance", manifest=manifest_for(stub, sampling={}))
    (found,) = (check for check in report.checks if check.id == "acceptance.count.sampled")
    assert found.status == "not_checked"


EXTRA = ("count.sampled", "count.together")


def test_bands_of_the_method_when_none_are_declared(stub: StubSeat, host: FakeHost) -> None:
    stub.rates = [0.95, 0.9]
    manifest = manifest_for(stub, acceptance=None)
    report = run(stub, host, "acceptance", manifest=manifest)
    assert (report.exit, sorted(report.acceptance)) == (codes.EXIT_READY, ["code", "count", *EXTRA, "prose"])
    stub.rates = [1.0, 1.0]
    report = run(stub, host, "acceptance", manifest=manifest)
    assert report.exit == codes.EXIT_ACCEPT_BROKEN
    assert "flat 1.00" in str(report.cause)


def test_requests_that_are_booked_after_their_answers_are_waited_for(stub: StubSeat, host: FakeHost) -> None:
    stub.after_generation = lambda number: setattr(stub, "books_late_s", 0.1)  # from the second on: one is READY's
    report = run(stub, host, "acceptance", options=Options(ready_timeout_s=0.5, settle_s=30))
    assert (report.exit, report.acceptance["count"]["source"]) == (codes.EXIT_READY, "counters")


def test_two_engines_are_summed(stub: StubSeat, host: FakeHost) -> None:
    stub.engines = 2
    stub.rates = [0.9, 0.8]
    report = run(stub, host, "acceptance", manifest=manifest_for(stub, acceptance={"count": 2.6}))
    assert (report.exit, report.acceptance["count"]["al"]) == (codes.EXIT_READY, pytest.approx(2.7, abs=0.05))


def restart(stub: StubSeat) -> None:
    stub.start_time += 60
    stub.reset()


def test_counters_reset_once_are_measured_again(stub: StubSeat, host: FakeHost) -> None:
    # generation 1 is READY's, 2 is the first of the measurement
    stub.after_generation = lambda number: restart(stub) if number == 2 else None
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_READY
    assert any("measured again after a reset" in warning for warning in report.warnings)


def test_counters_that_keep_resetting_are_a_finding_and_never_zero(stub: StubSeat, host: FakeHost) -> None:
    stub.after_generation = lambda number: restart(stub) if number > 1 else None
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_COUNTERS
    assert "RESET" in str(report.cause)
    assert report.acceptance == {}


def test_a_counter_that_falls_without_a_restart_is_a_reset_too(stub: StubSeat, host: FakeHost) -> None:
    def fall(number: int) -> None:
        if number > 1:
            stub.counts[0]["drafts"] = -number

    stub.after_generation = fall
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_COUNTERS
    assert "went down" in str(report.cause)


def test_nan_counters(stub: StubSeat, host: FakeHost) -> None:
    stub.metrics_text = lambda text: "\n".join(
        line.rpartition(" ")[0] + " NaN" if "num_accepted_tokens_total" in line else line for line in text.split("\n")
    )
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_COUNTERS
    assert "NaN" in str(report.cause)


def test_a_metrics_page_of_100k_lines(stub: StubSeat, host: FakeHost) -> None:
    filler = "".join(f'other{{n="{number}"}} 1\n' for number in range(100_000))
    stub.metrics_text = lambda text: filler + text
    assert run(stub, host, "acceptance").exit == codes.EXIT_READY


def test_a_metrics_page_that_is_none(stub: StubSeat, host: FakeHost) -> None:
    stub.metrics_text = lambda _: "<html>proxy error</html>"
    report = run(stub, host, "identity")
    assert report.exit == codes.EXIT_NOT_READY
    assert "line 1 is not Prometheus text" in str(report.cause)


def test_a_busy_seat_is_left_alone(stub: StubSeat, host: FakeHost) -> None:
    stub.running = 3
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_BUSY
    assert "3 running and 0 waiting" in str(report.cause)
    assert stub.generations == 1  # READY's only


@pytest.mark.parametrize("others", ["during", "before"])
def test_with_others_on_the_seat_the_own_streams_count(stub: StubSeat, host: FakeHost, others: str) -> None:
    """Somebody else's broken drafts are in the counters; the probe's own are healthy."""
    stub.rates = [0.95, 0.9]

    def somebody_else(number: int) -> None:
        if number > 1:
            stub.counts[0]["success"] += others == "during"
            stub.counts[0]["drafts"] += 1000

    stub.running = int(others == "before")
    stub.after_generation = somebody_else
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_READY
    assert report.acceptance["count"]["source"] == "stream"
    assert report.acceptance["count"]["al"] == pytest.approx(2.85, abs=0.05)


def test_merged_pieces_of_a_shared_seat_prove_nothing(stub: StubSeat, host: FakeHost) -> None:
    stub.running = 1
    stub.merge_pieces = 2
    report = run(stub, host, "acceptance")
    assert report.exit == codes.EXIT_BUSY
    assert "do not show single steps" in str(report.cause)


def test_no_speculation_is_not_counted_as_acceptance(stub: StubSeat, host: FakeHost) -> None:
    stub.rates = None
    report = run(stub, host, "acceptance", manifest=manifest_for(stub, speculative=None))
    assert report.exit == codes.EXIT_READY
    assert [check.status for check in report.checks if check.id == "acceptance"] == ["not_checked"]


def test_the_speculation_of_twelve_positions(stub: StubSeat, host: FakeHost) -> None:
    stub.rates = [0.98, 0.96, 0.94, 0.92, 0.9, 0.88, 0.86, 0.84, 0.8, 0.75, 0.7, 0.6]
    manifest = manifest_for(stub, speculative=Speculation("dflash", 12), acceptance={"count": 7.0})
    report = run(stub, host, "acceptance", manifest=manifest)
    assert report.exit == codes.EXIT_READY
    assert len(report.acceptance["count"]["per_pos"]) == 12
