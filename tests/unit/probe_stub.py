"""A seat that does what a test tells it: a real HTTP server in a thread, with vLLM's endpoints and counters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from seatfleet.clients.systemd import UnitState
from seatfleet.core.host.sockets import Owner
from seatfleet.core.seat.manifest import Manifest, Speculation

CGROUP = "/system.slice/vllm-seat-s.service"
KEY = "sk-seat-right"
RUNNING = UnitState("loaded", "active", "running", "success", 100, 0, "a" * 32, CGROUP, 0, time.monotonic())


@dataclass
class Answer:
    """What one generation gives; ``pieces`` are the texts of the stream, one draft step each."""

    pieces: list[str]
    finish_reason: str = "length"
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)  # lead of each token over the runner-up, in nats
    logprob: float = -0.01
    shown: list[str] | None = None  # what a stream shows instead of the pieces


def speak(text: str, body: dict[str, Any], **more: Any) -> Answer:
    """Return a text word by word, cut at the request's limit."""
    pieces = [f"{word} " for word in text.split()]
    return Answer(pieces[: body["max_tokens"]], "length" if len(pieces) > body["max_tokens"] else "stop", **more)


def clever(body: dict[str, Any]) -> Answer:
    """Answer like a model that can: known questions right, else sentences."""
    asked = body["messages"][-1]["content"]
    if body.get("tools"):
        return Answer([], "tool_calls", tool_calls=[("get_weather", '{"city": "Paris"}')])
    if "17*23" in asked:
        return speak("391", body)
    if "France" in asked:
        return speak("Paris.", body)
    if "Repeat exactly" in asked:
        return speak(asked.split()[-1], body)
    if "months" in asked:
        return speak("January, February, March, April, May, June, July, August, September, October", body)
    names = ("harbour", "lamp", "winter", "platform", "ticket", "window", "salt", "river", "coat", "letter", "gull")
    verbs = ("keeps", "loses", "mends", "hides", "counts", "burns", "paints", "opens", "sells", "forgets")
    line = [f"{names[i % 11]} {verbs[i % 10]} the {names[(i * 7 + 3) % 11]}{i}" for i in range(body["max_tokens"])]
    return speak(". ".join(line), body)


def words(body: dict[str, Any]) -> Answer:
    """Return as many different words as the request allows."""
    return Answer([f"word{number} " for number in range(body["max_tokens"])])


class StubSeat:
    """The server. Attributes are read at each request, so a test may change them while it runs."""

    def __init__(self, port: int = 0) -> None:
        self.key = KEY
        self.names = ["tiny"]
        self.max_model_len = 2048
        self.tokenize_limit: int | None = None
        self.version = "0.32.0"
        self.rates: list[float] | None = [1.0, 1.0]  # None: no speculation
        self.engines = 1
        self.running = 0
        self.waiting = 0
        self.start_time = 1000.0
        self.cache_config = {
            "block_size": "16",
            "enable_prefix_caching": "False",
            "kv_cache_memory_bytes": "67108864",
            "kv_cache_size_tokens": "35108",
            "num_gpu_blocks": "120",
        }
        self.answer: Callable[[dict[str, Any]], Answer] = words
        self.fail: dict[str, tuple[int, str]] = {}  # path -> (status, body)
        self.before_generation: Callable[[int], None] = lambda number: None
        self.after_generation: Callable[[int], None] = lambda number: None  # just before the end of the answer is sent
        self.books_late_s: float | None = None  # vLLM may book a request only after its answer has ended
        self.cut_after: int | None = None  # pieces, then the connection is closed
        self.stream_error = ""
        self.merge_pieces = 1  # steps per piece of a stream: more than one when the server falls behind
        self.metrics_text: Callable[[str], str] = lambda text: text
        self.generations = 0
        self.prompts: list[dict[str, Any]] = []
        self.hang = threading.Event()  # set: generations wait until it is cleared
        self.hang_all = False
        self.progress = 0
        self.cached: dict[str, int] = {}
        self.drop_hits = False
        self.warm_answer: Callable[[dict[str, Any]], Answer] | None = None
        self.ttft: Callable[[bool], float] = lambda warm: 0.0
        self._lock = threading.Lock()
        self.reset()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for a delayed acknowledgement

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                stub.get(self)

            def do_POST(self) -> None:
                stub.post(self)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # of the 5 that are usual, the next connection waits a second

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that gave up are the point
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.hang.clear()
        self.hang_all = False
        self.server.shutdown()
        self.server.server_close()

    def reset(self) -> None:
        """Counters as after a start."""
        self.counts: list[dict[str, Any]] = [
            {
                "drafts": 0,
                "draft_tokens": 0,
                "accepted": [0.0] * 16,
                "success": 0,
                "prompt": 0,
                "generated": 0,
                "queries": 0,
                "hits": 0,
                "iterations": 0,
            }
            for _ in range(8)
        ]

    # -- answers

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _waits(self) -> None:
        while self.hang_all:
            time.sleep(0.02)

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        self._waits()
        path = handler.path
        if path in self.fail:
            self.send(handler, *self.fail[path])
        elif path.startswith("/v1") and handler.headers.get("Authorization") != f"Bearer {self.key}":
            self.send(handler, 401, '{"error":"Unauthorized"}')
        elif path == "/v1/models":
            cards = [{"id": name, "max_model_len": self.max_model_len, "root": "/m"} for name in self.names]
            self.send(handler, 200, json.dumps({"data": cards}))
        elif path == "/version":
            self.send(handler, 200, json.dumps({"version": self.version}))
        elif path == "/metrics":
            self.send(handler, 200, self.metrics_text(self.metrics()), "text/plain")
        elif path == "/health":
            self.send(handler, 200, "")
        else:
            self.send(handler, 404, '{"detail":"Not Found"}')

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        self._waits()
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        if handler.path in self.fail:
            self.send(handler, *self.fail[handler.path])
        elif handler.path.startswith("/v1") and handler.headers.get("Authorization") != f"Bearer {self.key}":
            self.send(handler, 401, '{"error":"Unauthorized"}')
        elif handler.path == "/tokenize":
            count = self.count(body)
            self.send(
                handler, 200, json.dumps({"count": count, "max_model_len": self.tokenize_limit or self.max_model_len})
            )
        elif handler.path == "/v1/chat/completions":
            if body["model"] not in self.names:
                self.send(
                    handler, 404, json.dumps({"error": {"message": f"The model `{body['model']}` does not exist."}})
                )
            else:
                self.generate(handler, body)
        else:
            self.send(handler, 404, '{"detail":"Not Found"}')

    @staticmethod
    def count(body: dict[str, Any]) -> int:
        return 8 + sum(len(message["content"].split()) for message in body["messages"] if message.get("content"))

    def generate(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.generations += 1
        number = self.generations
        self.prompts.append(body)
        self.before_generation(number)
        while self.hang.is_set():
            time.sleep(0.02)
            self.counts[0]["iterations"] += self.progress
        prompt = self.count(body)
        salted = body.get("cache_salt", "") + json.dumps(body["messages"])
        block = int(self.cache_config["block_size"])
        caching = self.cache_config["enable_prefix_caching"] == "True" and not self.drop_hits
        hits = self.cached.get(salted, 0) if caching else 0
        warm = hits > 0
        self.cached[salted] = max(prompt - 1, 0) // block * block
        answer = self.warm_answer(body) if warm and self.warm_answer else self.answer(body)
        time.sleep(self.ttft(warm))
        ids = [int.from_bytes(piece.encode(), "big") % 50_000 for piece in answer.pieces]
        if body.get("stream"):
            end = self._stream(handler, body, answer, prompt, ids)
        else:
            end = self._whole(handler, body, answer, prompt, ids, hits)
        # The caller reads counters as soon as it has the end: what belongs to this answer must have happened by then.
        if self.books_late_s is not None:
            end()
            handler.wfile.flush()
            time.sleep(self.books_late_s)
        with self._lock:
            self._book(number % self.engines, prompt, len(answer.pieces), hits)
        self.after_generation(number)
        if self.books_late_s is None:
            end()

    def _book(self, engine: int, prompt: int, tokens: int, hits: int) -> None:
        counts = self.counts[engine]
        counts["success"] += 1
        counts["prompt"] += prompt
        counts["generated"] += tokens
        counts["iterations"] += tokens
        counts["queries"] += prompt
        counts["hits"] += hits
        if self.rates is not None:
            k = len(self.rates)
            drafts = max(1, round(tokens / (1 + sum(self.rates))))
            counts["drafts"] += drafts
            counts["draft_tokens"] += drafts * k
            for position, rate in enumerate(self.rates):
                counts["accepted"][position] += drafts * rate

    def _steps(self, tokens: int) -> Iterator[int]:
        """Yield the tokens of each piece: one from the prefill, then accepted drafts and the bonus token."""
        done, step = 0, 0
        while done < tokens:
            chance = step * 0.6180339887 % 1  # evenly spread, no random numbers
            size = sum(chance < rate for rate in self.rates or ()) + 1 if step else 1
            size = min(size * self.merge_pieces, tokens - done)
            yield size
            done, step = done + size, step + 1

    def _logprobs(self, body: dict[str, Any], answer: Answer) -> dict[str, Any] | None:
        if not body.get("logprobs"):
            return None
        gaps = answer.gaps or [5.0] * len(answer.pieces)
        return {
            "content": [
                {
                    "token": piece,
                    "logprob": answer.logprob,
                    "top_logprobs": [{"logprob": answer.logprob}, {"logprob": answer.logprob - gap}],
                }
                for piece, gap in zip(answer.pieces, gaps, strict=False)
            ]
        }

    def _tools(self, answer: Answer) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "id": f"call-{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(answer.tool_calls)
        ]

    def _usage(self, prompt: int, answer: Answer) -> dict[str, Any]:
        return {"prompt_tokens": prompt, "completion_tokens": len(answer.pieces)}

    def _whole(
        self, handler: Any, body: dict[str, Any], answer: Answer, prompt: int, ids: list[int], hits: int
    ) -> Callable[[], None]:
        """Return what sends the answer."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.pieces)}
        if answer.tool_calls:
            message["tool_calls"] = self._tools(answer)
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": answer.finish_reason,
            "logprobs": self._logprobs(body, answer),
            "token_ids": ids,
        }
        usage = {**self._usage(prompt, answer), "prompt_tokens_details": {"cached_tokens": hits}}
        text = json.dumps({"model": body["model"], "choices": [choice], "usage": usage})
        return lambda: self.send(handler, 200, text)

    def _stream(
        self, handler: Any, body: dict[str, Any], answer: Answer, prompt: int, ids: list[int]
    ) -> Callable[[], None]:
        """Send all but the end of the stream; return what sends that."""
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True

        def event(content: object) -> None:
            handler.wfile.write(f"data: {json.dumps(content)}\n\n".encode())

        base = {"model": body["model"]}
        event({**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        if self.stream_error:
            return lambda: event({"error": {"message": self.stream_error, "code": 500}})
        logprobs = self._logprobs(body, answer)
        done = 0
        for number, size in enumerate(self._steps(len(ids))):
            if self.cut_after is not None and number >= self.cut_after:
                return lambda: None
            part = slice(done, done + size)
            choice = {
                "index": 0,
                "delta": {"content": "".join((answer.shown or answer.pieces)[part])},
                "finish_reason": None,
                "token_ids": ids[part],
                "logprobs": {"content": logprobs["content"][part]} if logprobs else None,
            }
            event({**base, "choices": [choice]})
            done += size
        if answer.tool_calls:
            event(
                {**base, "choices": [{"index": 0, "delta": {"tool_calls": self._tools(answer)}, "finish_reason": None}]}
            )
        event({**base, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": answer.finish_reason}]})
        event({**base, "choices": [], "usage": self._usage(prompt, answer)})
        return lambda: handler.wfile.write(b"data: [DONE]\n\n")

    def metrics(self) -> str:
        with self._lock:  # else a request may be booked by half
            return self._page()

    def _page(self) -> str:
        lines = [f"process_start_time_seconds {self.start_time}"]
        for engine in range(self.engines):
            counts = self.counts[engine]
            tag = f'engine="{engine}",model_name="tiny"'
            values: list[tuple[str, str, float]] = [
                ("num_requests_running", "", self.running),
                ("num_requests_waiting", "", self.waiting),
                ("kv_cache_usage_perc", "", 0.1),
                ("request_success_total", ',finished_reason="stop"', 0),
                ("request_success_total", ',finished_reason="length"', counts["success"]),
                ("iteration_tokens_total_count", "", counts["iterations"]),
                ("prompt_tokens_total", "", counts["prompt"]),
                ("generation_tokens_total", "", counts["generated"]),
                ("prefix_cache_queries_total", "", counts["queries"]),
                ("prefix_cache_hits_total", "", counts["hits"]),
            ]
            if self.rates is not None:
                k = len(self.rates)
                accepted = counts["accepted"]
                values += [
                    ("spec_decode_num_drafts_total", "", counts["drafts"]),
                    ("spec_decode_num_draft_tokens_total", "", counts["draft_tokens"]),
                    ("spec_decode_num_accepted_tokens_total", "", sum(int(accepted[i]) for i in range(k))),
                ]
                values += [
                    ("spec_decode_num_accepted_tokens_per_pos_total", f',position="{i}"', int(accepted[i]))
                    for i in range(k)
                ]
            lines += [f"vllm:{name}{{{tag}{labels}}} {float(value)}" for name, labels, value in values]
            labels = ",".join(f'{name}="{value}"' for name, value in self.cache_config.items())
            lines.append(f'vllm:cache_config_info{{engine="{engine}",{labels}}} 1.0')
        return "\n".join(lines) + "\n"


class FakeHost:
    """The machine as a test wants it."""

    def __init__(self) -> None:
        self.state: UnitState | None = RUNNING
        self.owners = [Owner(100, "vllm", CGROUP)]
        self.looks = 0
        self.before_look: Callable[[int], None] = lambda number: None  # of each look at the port
        self.lines: list[str] = []
        self.compiler = True

    def unit(self) -> UnitState | None:
        return self.state

    def listeners(self, port: int) -> list[Owner]:
        self.looks += 1
        self.before_look(self.looks)
        return self.owners

    def journal(self, state: UnitState, pattern: str | None = None) -> list[str]:
        return self.lines

    def has_gpu(self) -> bool:
        return False

    def has_compiler(self) -> bool:
        return self.compiler

    def change(self, **changes: Any) -> None:
        assert self.state is not None
        self.state = replace(self.state, **changes)


def manifest_for(stub: StubSeat, **changes: Any) -> Manifest:
    manifest = Manifest(
        seat="s",
        host="h",
        unit="vllm-seat-s.service",
        base_url=f"http://127.0.0.1:{stub.port}",
        port=stub.port,
        api_key_file=None,
        model_id="tiny",
        served_names=("tiny",),
        max_model_len=2048,
        release_id="0.32.0-0123456789ab",
        generation="0123456789ab",
        kv_cache_memory_bytes=67108864,
        max_num_seqs=4,
        prefix_caching=False,
        speculative=Speculation("mtp", 2),
        declared={"kv-cache-memory-bytes": 67108864, "no-enable-prefix-caching": True},
        ready_timeout_s=5,
        acceptance={"count": 2.5},
        canary="off",
        model_path=Path(__file__).parent / "data" / "models" / "tiny-oracle-qwen3next",
        drafter_path=None,
        sampling={"temperature": 1.0, "top_p": 0.95},
    )
    return replace(manifest, **changes)
