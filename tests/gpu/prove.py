"""Boot patched and unpatched vLLM servers on one GPU and measure what patches change: ``prove.py ROOT OUT``.

Writes OUT/proof.json (numbers only) and OUT/logs.txt (shortened). Servers start side by side, each with a fixed KV
cache; everything that is timed runs with one server left.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LENGTHS = (5000, 6500, 8000, 9000, 10000, 30000)
READY_S = 400
DRAFTS = 12
GRAPHS = ["--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}']
FIXED = ["--load-format", "safetensors", "--kv-cache-memory-bytes", str(8 * 2**30)]
SIZED = ["--load-format", "dummy", "--gpu-memory-utilization", "0.2", "--enforce-eager"]
COMMON = [
    *("--language-model-only", "--max-model-len", "65536", "--max-num-seqs", "8", "--max-num-batched-tokens", "8192"),
    *("--gdn-prefill-backend", "triton", "--mamba-ssm-cache-dtype", "float32", "--enable-prefix-caching"),
]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass
class Server:
    """One vLLM server: a patch tree, a model, perhaps a drafter."""

    name: str
    tree: str
    model: str
    drafter: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=lambda: [*FIXED, *GRAPHS])
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    ready_s: float | None = None

    def start(self, root: Path, port: int) -> None:
        self.port, self.log = port, root / "logs" / f"{self.name}.log"
        self.log.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(root / "models" / self.model)]
        command += [*COMMON, *self.flags, "--port", str(port), "--host", "127.0.0.1"]
        if self.drafter:
            speculative = {"method": "dflash", "model": str(root / "models" / self.drafter)}
            command += ["--speculative-config", json.dumps(speculative | {"num_speculative_tokens": DRAFTS})]
        paths = f"{root / 'trees' / self.tree}:{root / 'site'}"
        environment = {**os.environ, **ENVIRONMENT, **self.environment, "PYTHONPATH": paths}
        self.process = subprocess.Popen(
            command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )

    def wait(self, deadline: float) -> bool:
        started = time.monotonic()
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            try:
                self.get("/health", timeout=2)
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
                continue
            self.ready_s = time.monotonic() - started
            return True
        return False

    def get(self, path: str, body: dict[str, Any] | None = None, timeout: float = 120) -> str:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read().decode()

    def complete(self, root: Path, prompt: list[int], salt: str, tokens: int = 1) -> dict[str, Any]:
        body = {"model": str(root / "models" / self.model), "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "logprobs": 5, "cache_salt": salt, "return_token_ids": True}
        return json.loads(self.get("/v1/completions", body))["choices"][0]

    def counters(self) -> dict[str, float]:
        names = "spec_decode_num_drafts|spec_decode_num_accepted_tokens|prefix_cache_hits|prefix_cache_queries"
        found = re.findall(rf"^vllm:({names})_total{{[^}}]*}} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return {name: float(value) for name, value in found}

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(self.process.pid, sign)
            try:
                self.process.wait(15)
                return
            except subprocess.TimeoutExpired:
                continue

    def said(self, pattern: str) -> list[str]:
        return list(dict.fromkeys(re.findall(pattern, self.log.read_text(errors="replace"))))[:4]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(3, 1000), k=length)


def first_token(choice: dict[str, Any]) -> dict[str, float]:
    return choice["logprobs"]["top_logprobs"][0]


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    """Largest logprob difference over tokens in both top fives; 99 when they share none."""
    shared = set(one) & set(other)
    return round(max((abs(one[token] - other[token]) for token in shared), default=99.0), 4)


def delta(server: Server, action: Any) -> tuple[Any, dict[str, float]]:
    before = server.counters()
    result = action()
    after = server.counters()
    return result, {name: after[name] - before.get(name, 0.0) for name in after}


def cold_and_warm(root: Path, server: Server, length: int) -> dict[str, Any]:
    """Twice cold (two salts), twice warm: same prompt, first token's logprobs."""
    prompt = prompt_of(length)
    cold = first_token(server.complete(root, prompt, f"a{length}"))
    again = first_token(server.complete(root, prompt, f"b{length}"))
    choice, counted = delta(server, lambda: server.complete(root, prompt, f"a{length}"))
    warm = first_token(choice)
    rewarm = first_token(server.complete(root, prompt, f"a{length}"))
    return {
        "tokens": length,
        "hit": int(counted["prefix_cache_hits"]),
        "cold_cold": distance(cold, again),
        "cold_warm": distance(cold, warm),
        "warm_warm": distance(warm, rewarm),
        "same_token": max(cold, key=cold.__getitem__) == max(warm, key=warm.__getitem__),
    }


def branch(root: Path, server: Server, shared: int, tail: int) -> dict[str, Any]:
    """A second prompt that shares only its beginning with the first."""
    start = prompt_of(shared, 1)
    server.complete(root, start + prompt_of(3000, 2), f"c{shared}")
    choice, counted = delta(server, lambda: server.complete(root, start + prompt_of(tail, 3), f"c{shared}"))
    cold = first_token(server.complete(root, start + prompt_of(tail, 3), f"d{shared}"))
    difference = distance(cold, first_token(choice))
    return {
        "shared": shared,
        "tokens": shared + tail,
        "hit": int(counted["prefix_cache_hits"]),
        "cold_warm": difference,
    }


def next_turn(root: Path, server: Server, length: int, generate: int) -> dict[str, Any]:
    """Continue a conversation: the hit ends on a block boundary that decoding crossed, with rejected drafts."""
    talk = prompt_of(length, 4)
    talk = talk + server.complete(root, talk, f"e{length}", generate)["token_ids"]
    question = talk + prompt_of(300, 5)
    choice, counted = delta(server, lambda: server.complete(root, question, f"e{length}"))
    cold = first_token(server.complete(root, question, f"f{length}"))
    difference = distance(cold, first_token(choice))
    return {"prompt": length, "generated": generate, "hit": int(counted["prefix_cache_hits"]), "cold_warm": difference}


def side_by_side(root: Path, server: Server) -> dict[str, Any]:
    """Four prompts at a time: chunks are cut and batched differently every time, so cold differs from cold, too."""
    prompts = {length: prompt_of(length, 6) for length in (4700, 7100, 11300, 20000)}

    def late(item: tuple[int, tuple[float, list[int]]], salt: str) -> dict[str, Any]:
        time.sleep(item[1][0])
        return server.complete(root, item[1][1], salt)

    def wave(salt: str) -> dict[int, dict[str, float]]:
        dice = random.Random(salt)
        arrivals = {length: (dice.uniform(0, 0.1), prompt) for length, prompt in prompts.items()}
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = pool.map(lambda item: late(item, salt), arrivals.items())
            return {length: first_token(answer) for length, answer in zip(prompts, answers, strict=True)}

    cold, warm, hits = [], [], []
    for number in range(6):
        cold.append(wave(f"g{number}"))
        again, counted = delta(server, lambda salt=f"g{number}": wave(salt))
        warm.append(again)
        hits.append(int(counted["prefix_cache_hits"]))
    return {
        "tokens": sum(prompts),
        "hits": hits,
        "cold_cold": max(distance(a[n], b[n]) for n in prompts for a, b in itertools.combinations(cold, 2)),
        "cold_warm": max(distance(a[n], b[n]) for n in prompts for a in cold for b in warm),
        "warm_warm": max(distance(a[n], b[n]) for n in prompts for a, b in itertools.combinations(warm, 2)),
    }


def acceptance(root: Path, server: Server, prompt: list[int], salt: str, tokens: int = 260) -> dict[str, Any]:
    """Cold and warm acceptance length of one prompt; the copying target must repeat its last token."""
    result: dict[str, Any] = {"tokens": len(prompt)}
    for kind in ("cold", "warm"):
        choice, counted = delta(server, lambda: server.complete(root, prompt, salt, tokens))
        accepted = counted["spec_decode_num_accepted_tokens"] / counted["spec_decode_num_drafts"]
        result[kind] = round(1 + accepted, 2)
        result[f"{kind}_hit"] = int(counted["prefix_cache_hits"])
        result[f"{kind}_right"] = set(choice["token_ids"]) == {prompt[-1]}
    return result


def all_acceptance(root: Path, server: Server) -> list[dict[str, Any]]:
    rows = [acceptance(root, server, [100 + n] * length, f"r{n}") for n, length in enumerate((300, 5000, 9000, 30000))]
    # The control: the part that will be a hit holds another token, so the drafter must fail, cold and warm.
    rows.append({"control": True} | acceptance(root, server, [200] * 4480 + [201] * 520, "control"))
    return rows


def first_token_times(root: Path, server: Server, length: int = 30000, repeats: int = 5) -> dict[str, Any]:
    """Seconds to the first token, cold (fresh salt each time) and warm; medians in milliseconds."""
    prompt = prompt_of(length, 7)
    server.complete(root, prompt_of(length, 8), "warmup")

    def timed(salt: str) -> float:
        started = time.perf_counter()
        server.complete(root, prompt, salt)
        return (time.perf_counter() - started) * 1000

    cold = [timed(f"t{n}") for n in range(repeats)]
    timed("t0")
    warm, counted = delta(server, lambda: [timed("t0") for _ in range(repeats)])
    values = {"cold_ms": statistics.median(cold), "warm_ms": statistics.median(warm)}
    return {
        "tokens": length,
        "hit": int(counted["prefix_cache_hits"] / repeats),
        **{name: round(value, 1) for name, value in values.items()},
        "ratio": round(values["cold_ms"] / values["warm_ms"], 2),
    }


def answers(root: Path, server: Server) -> list[dict[str, float]]:
    return [first_token(server.complete(root, prompt_of(200, seed), f"q{seed}")) for seed in range(12)]


SERVERS = [
    Server("stock", "stock", "target-random", "drafter-good"),
    Server("seed", "seed", "target-random", "drafter-good"),
    Server("ours", "ours", "target-random", "drafter-good"),
    Server("ours-compiled", "ours", "target-random", "drafter-good", flags=FIXED),
    Server("good", "ours", "target-copy", "drafter-good"),
    Server("broken", "ours", "target-copy", "drafter-broken"),
    Server("int8", "ours", "target-copy", "drafter-good", {"LM_HEAD_INT8": "1"}),
    Server("fp8", "ours", "target-fp8", environment={"INC_EXPECT_FP8_LAYERS": "12"}),
    Server("fp8-reference", "ours", "target-fp8-ref"),
    Server("fp8-stock", "stock", "target-fp8"),
    Server("fp8-count", "ours", "target-fp8", environment={"INC_EXPECT_FP8_LAYERS": "144"}),
]
#: The 122B's head on small layers, random: started one after the other, alone, because vLLM sizes the KV cache.
HEADS = [
    Server("head-bf16", "ours", "target-large", flags=SIZED),
    Server("head-int8", "ours", "target-large", environment={"LM_HEAD_INT8": "1"}, flags=SIZED),
]


def measure(root: Path, server: Server) -> dict[str, Any]:
    """Everything about one running server that is not timed."""
    if server.name in {"seed", "ours", "ours-compiled"}:
        result: dict[str, Any] = {"cold_and_warm": [cold_and_warm(root, server, length) for length in LENGTHS]}
        result["branch"] = [branch(root, server, 9100, 400), branch(root, server, 20000, 700)]
        result["next_turn"] = [next_turn(root, server, 8900, 120), next_turn(root, server, 4400, 200)]
        return result | {"side_by_side": side_by_side(root, server)}
    if server.drafter:
        return {"acceptance": all_acceptance(root, server)}
    return {"answers": answers(root, server)}


def guarded(root: Path, server: Server, report: dict[str, Any]) -> None:
    try:
        report |= measure(root, server)
    except Exception as error:  # one failing server must not cost the others' numbers
        report["failed"] = repr(error)


def described(server: Server, ready: bool) -> dict[str, Any]:
    """Return how a start ended and what the log says about it."""
    errors = server.said(r"(?:Assertion|NotImplemented|Value|Runtime|Import|ModuleNotFound)Error[^\n]{0,200}")
    facts = server.said(
        r"(?:GPU KV cache size|Available KV cache memory|Model loading took|\S+ is int8|\d+ layers of the checkpoint"
        r"|Setting attention block size to \d+)[^\n]{0,80}"
    )
    code = server.process.poll() if server.process else None
    return {
        "ready": ready,
        "exit": code,
        "ready_s": server.ready_s and round(server.ready_s),
        "errors": errors,
        "log": facts,
    }


def shortened(log: Path) -> str:
    """Return the beginning and the end of a log."""
    lines = [line[:300] for line in log.read_text(errors="replace").splitlines()]
    return "\n".join(lines if len(lines) < 160 else [*lines[:40], "[...]", *lines[-120:]])


def main() -> int:
    """Start all, measure all, time one, write."""
    root, out = Path(sys.argv[1]), Path(sys.argv[2])
    wanted = sys.argv[3].split(",") if len(sys.argv) > 3 else [server.name for server in (*SERVERS, *HEADS)]
    servers = [server for server in SERVERS if server.name in wanted]
    heads = [server for server in HEADS if server.name in wanted]
    for number, server in enumerate(servers):
        server.start(root, 8100 + number)
    deadline = time.monotonic() + READY_S
    with ThreadPoolExecutor(len(servers)) as pool:
        done = pool.map(lambda server: server.wait(deadline), servers)
        ready = {server.name: ok for server, ok in zip(servers, done, strict=True)}
    report: dict[str, dict[str, Any]] = {}
    for server in servers:
        report[server.name] = described(server, ready[server.name])
    running = [server for server in servers if ready[server.name]]
    print({name: (r["ready"], r["errors"][:1]) for name, r in report.items()}, flush=True)
    with ThreadPoolExecutor(max(len(running), 1)) as pool:
        list(pool.map(lambda server: guarded(root, server, report[server.name]), running))
    (out / "proof.json").write_text(json.dumps(report, indent=1))
    for server in running:
        if server.name != "ours":
            server.stop()
    for server in running:
        if server.name == "ours":
            report["ours"]["first_token_times"] = first_token_times(root, server)
            server.stop()
    for server in servers:
        server.stop()
    for server in heads:
        server.start(root, 8200)
        report[server.name] = described(server, server.wait(time.monotonic() + READY_S))
        server.stop()
    (out / "proof.json").write_text(json.dumps(report, indent=1))
    logs = (f"##### {server.name}\n{shortened(server.log)}\n" for server in (*servers, *heads))
    (out / "logs.txt").write_text("".join(logs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
