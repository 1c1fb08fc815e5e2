"""A small server with vLLM's endpoints, counters and faults, for the campaign's client and runner."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from seatfleet.campaign.parity import ArmConfig, Deployment
from seatfleet.campaign.seats import arm_manifest
from seatfleet.clients.probe import SystemHost
from seatfleet.core.seat.manifest import Manifest

MODEL = "fake"


@dataclass
class Behaviour:
    """How the fake answers. ``accepted`` is the number of draft tokens accepted in each step, repeated for ever."""

    k: int = 0
    accepted: tuple[int, ...] = (0,)
    step_s: float = 0.0005
    ttft_s: float = 0.001
    lanes: int = 64
    prefix_hit_rate: float = 0.0
    reasoning: bool = False
    token_ids: bool = True
    status: int = 200
    cut_after: int | None = None
    error_event: bool = False
    finish_reason: str = "length"
    extra_successes: int = 0
    restart_after: int | None = None
    preemptions: int = 0
    max_model_len: int = 4096
    text: str = " tok{n}"
    tool_calls: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None


LIVE = {"model": "/m", "served-model-name": [MODEL], "max-num-seqs": 8, "kv-cache-memory-bytes": 4 << 30}


@dataclass
class FakeSeat:
    """A seat whose arms are fake servers; behaviour per arm, hooks for accidents."""

    behaviours: dict[str, Behaviour]
    gpus: tuple[str, ...] = ()
    api_key: str | None = None
    config: dict[str, Any] = field(default_factory=lambda: dict(LIVE))
    identity: dict[str, Any] = field(default_factory=lambda: {"release": "1-abc"})
    starts: list[tuple[str, str]] = field(default_factory=list)
    restored: int = 0
    cleared: int = 0
    discarded: int = 0
    before_start: Callable[[str, int], None] = lambda arm, number: None
    lines: list[str] = field(default_factory=list)
    server: FakeVllm | None = None

    def live(self) -> Deployment:
        return Deployment((), dict(self.config), {}, "fake.yaml sha256:0", dict(self.identity))

    def start(self, config: ArmConfig, cache: str) -> None:
        self.starts.append((config.arm, cache))
        self.before_start(config.arm, len(self.starts))
        self.lines = ["starting"]
        self.server = FakeVllm(replace(self.behaviours[config.arm])).__enter__()

    def cache_root(self, cache: str) -> str:
        return f"/cache/{cache}"

    def manifest(self, config: ArmConfig) -> Manifest:
        assert self.server is not None
        settings = {**config.settings, "port": int(self.server.url.rpartition(":")[2])}
        return arm_manifest(
            replace(config, settings=settings), seat="s", host="h", unit=None, release="r", key_file=None, timeout_s=5
        )

    def host(self) -> SystemHost:
        return SystemHost(None)

    def log(self) -> list[str]:
        return list(self.lines)

    def stop(self) -> None:
        if self.server is not None:
            self.server.__exit__()
        self.server = None

    def clear(self) -> None:
        self.cleared += 1

    def restore(self) -> None:
        self.stop()
        self.restored += 1

    def discard(self, campaign: str) -> None:
        self.discarded += 1


@dataclass
class FakeVllm:
    """The server. ``behaviour`` may be changed while it runs."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    port: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> FakeVllm:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # as uvicorn does; else every small piece waits 40 ms

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                fake.get(self)

            def do_POST(self) -> None:
                fake.post(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        self.lock = threading.Lock()
        self.lanes = threading.Semaphore(self.behaviour.lanes)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # of the 5 that are usual, the next connection waits a second

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def add(self, name: str, value: float) -> None:
        with self.lock:
            self.counters[name] = self.counters.get(name, 0.0) + value

    # --- endpoints

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        if path == "/metrics":
            self.reply(handler, self.page().encode(), "text/plain")
        elif path == "/v1/models":
            card = {"id": MODEL, "max_model_len": self.behaviour.max_model_len, "root": "/m"}
            self.reply(handler, json.dumps({"data": [card]}).encode())
        elif path == "/version":
            self.reply(handler, b'{"version": "0.0.fake"}')
        else:
            self.reply(handler, b"")

    def reply(
        self, handler: BaseHTTPRequestHandler, content: bytes, kind: str = "application/json", status: int = 200
    ) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def page(self) -> str:
        with self.lock:
            counters = dict(self.counters)
        lines = [f"process_start_time_seconds {self.started}"]
        label = f'engine="0",model_name="{MODEL}"'
        names = ["generation_tokens", "prompt_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions"]
        if self.behaviour.k:
            names += ["spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"]
        lines += [f"vllm:{name}_total{{{label}}} {counters.get(name, 0.0)}" for name in names]
        for position in range(self.behaviour.k):
            value = counters.get(f"pos{position}", 0.0)
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{position}"}} {value}')
        for reason in ("stop", "length", "tool_calls"):
            value = counters.get(f"success_{reason}", 0.0)
            lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {value}')
        lines += [f"vllm:num_requests_{name}{{{label}}} {counters.get(name, 0.0)}" for name in ("running", "waiting")]
        lines.append(f"vllm:kv_cache_usage_perc{{{label}}} 0.0")
        config = f'block_size="{16 + self.behaviour.k}",num_gpu_blocks="{1000 - 10 * self.behaviour.k}"'
        lines.append(f'vllm:cache_config_info{{engine="0",{config},kv_cache_size_tokens="16000"}} 1.0')
        return "\n".join(lines) + "\n"

    def post(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if handler.path == "/tokenize":
            text = " ".join(message["content"] for message in body["messages"])
            self.reply(
                handler,
                json.dumps({"count": len(text.split()), "max_model_len": self.behaviour.max_model_len}).encode(),
            )
            return
        self.seen.append({**body, "authorization": handler.headers.get("Authorization")})
        behaviour = self.behaviour
        if behaviour.restart_after is not None and len(self.seen) > behaviour.restart_after:
            self.started += 1.0
            behaviour.restart_after = None
        if behaviour.status != 200:
            self.reply(handler, b'{"error": {"message": "no"}}', status=behaviour.status)
            return
        if behaviour.api_key and handler.headers.get("Authorization") != f"Bearer {behaviour.api_key}":
            self.reply(handler, b'{"error": {"message": "key"}}', status=401)
            return
        self.add("running", 1)
        try:
            with self.lanes:
                self.answer(handler, body)
        except OSError:
            pass
        finally:
            self.add("running", -1)

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if not body.get("stream"):
            content = self.whole(body)
            self.reply(handler, json.dumps(content).encode())
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for number, event in enumerate(self.events(body)):
            if self.behaviour.cut_after is not None and number >= self.behaviour.cut_after:
                handler.close_connection = True
                return
            data = b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n"
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        text, reason, usage = "", None, {}
        for event in self.events(body):
            if isinstance(event, bytes):
                continue
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
                reason = choice.get("finish_reason") or reason
        return {"choices": [{"message": {"content": text}, "finish_reason": reason}], "usage": usage}

    def steps(self, tokens: int) -> Iterator[int]:
        """Yield tokens per engine step, counting drafts as vLLM does."""
        behaviour = self.behaviour
        for accepted in itertools.cycle(behaviour.accepted):
            if tokens <= 0:
                return
            if behaviour.k:
                self.add("spec_decode_num_drafts", 1)
                self.add("spec_decode_num_draft_tokens", behaviour.k)
                self.add("spec_decode_num_accepted_tokens", accepted)
                for position in range(accepted):
                    self.add(f"pos{position}", 1)
            made = min(tokens, (accepted if behaviour.k else 0) + 1)
            tokens -= made
            yield made

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any] | bytes]:
        behaviour = self.behaviour
        prompt = sum(len(message["content"].split()) for message in body["messages"])
        yield {"model": MODEL, "choices": [{"delta": {"role": "assistant", "content": ""}}]}
        time.sleep(behaviour.ttft_s)
        made = 0
        first = True
        total = body["max_tokens"]
        for count in itertools.chain([1], self.steps(total - 1)):
            if not first:
                time.sleep(behaviour.step_s)
            text = "".join(behaviour.text.format(n=made + i) for i in range(count))
            made += count
            key = "reasoning" if behaviour.reasoning else "content"
            choice: dict[str, Any] = {"delta": {key: text}}
            if body.get("return_token_ids") and behaviour.token_ids:
                choice["token_ids"] = list(range(count))
            yield {"model": MODEL, "choices": [choice]}
            first = False
        if behaviour.tool_calls:
            calls = [
                {"index": i, "function": {"name": name, "arguments": text}}
                for i, (name, text) in enumerate(behaviour.tool_calls)
            ]
            yield {"choices": [{"delta": {"tool_calls": calls}}]}
        if behaviour.error_event:
            yield {"error": {"message": "EngineCore encountered an issue", "code": 500}}
        self.add("generation_tokens", made)
        self.add("prompt_tokens", prompt)
        self.add("prefix_cache_queries", prompt)
        self.add("prefix_cache_hits", int(prompt * behaviour.prefix_hit_rate))
        self.add("num_preemptions", behaviour.preemptions)
        self.add(f"success_{behaviour.finish_reason}", 1 + behaviour.extra_successes)
        yield {"choices": [{"delta": {}, "finish_reason": behaviour.finish_reason}]}
        usage = {"prompt_tokens": prompt, "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": 0}}
        yield {"choices": [], "usage": usage}
        yield b"[DONE]"
