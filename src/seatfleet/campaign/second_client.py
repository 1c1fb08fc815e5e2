"""``vllm bench serve`` on the same prompts: is our own client blind or slow? A cross-check of one cell, no measurement.

Both clients send the same texts, greedy, at the same concurrency, isolated by a salt. What they are compared in is what
they define alike: output tokens per second, and the median time per token after the first. Their first token may be a
chunk that holds a role only, so the waits for it are two things (measured: 4.6 against 11.0 ms on the same server).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .parity import Refusal
from .prompts import Prompt

#: Two clients, one after the other, on one boot: more than this apart is a fault of one of them, not noise.
ALLOWED = 0.10
_LIMIT_S = 1800.0
#: Ours, theirs. Their TPOT divides by (tokens - 1); ours leaves out all tokens of the first chunk, usually that one.
SAME = (
    ("aggregate_output_tok_s", "output_throughput"),
    ("tpot_ms", "median_tpot_ms"),
)


@dataclass(frozen=True)
class SecondClient:
    """The executable ``vllm`` of the seat's own release, and where it finds the tokenizer."""

    executable: Path
    tokenizer: str

    def run(self, base_url: str, model: str, api_key: str | None, prompts: Sequence[Prompt], level: int) -> Any:  # noqa: ANN401 - their JSON
        """Send every prompt once and return their result.

        Raises:
            Refusal: it failed, or left out prompts.
        """
        with tempfile.TemporaryDirectory() as folder:
            texts, result = Path(folder) / "texts.json", Path(folder) / "result.json"
            texts.write_text(json.dumps(conversations(prompts)), encoding="utf-8")
            command = self.command(base_url, model, prompts, level, texts, result)
            secret = {"OPENAI_API_KEY": api_key} if api_key else {}
            quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
            done = subprocess.run(
                command,
                env={**os.environ, **quiet, **secret},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            if done.returncode or not result.is_file():
                last = " / ".join(done.stdout.strip().splitlines()[-3:])
                raise Refusal("second client", f"vllm bench serve ended with {done.returncode}: {last}")
            found = json.loads(result.read_text(encoding="utf-8"))
        if found.get("completed") != len(prompts):
            raise Refusal("second client", f"expected {len(prompts)} answers, seen {found.get('completed')}")
        return found

    def command(
        self, base_url: str, model: str, prompts: Sequence[Prompt], level: int, texts: Path, result: Path
    ) -> list[str]:
        """Return the command; the key travels in the environment."""
        return [
            *(str(self.executable), "bench", "serve", "--backend", "openai-chat"),
            *("--base-url", base_url, "--endpoint", "/v1/chat/completions"),
            *("--model", self.tokenizer, "--served-model-name", model, "--tokenizer", self.tokenizer),
            *("--dataset-name", "sharegpt", "--dataset-path", str(texts)),
            *("--sharegpt-output-len", str(prompts[0].max_tokens), "--num-prompts", str(len(prompts))),
            *("--max-concurrency", str(level), "--request-rate", "inf", "--num-warmups", "1"),
            *("--temperature", "0", "--extra-body", json.dumps({"cache_salt": uuid.uuid4().hex})),
            *("--result-dir", str(result.parent), "--result-filename", result.name),
            *("--save-result", "--disable-shuffle", "--disable-tqdm"),
        ]


def conversations(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Return the prompts in the one dataset format of theirs that needs neither a network nor pandas.

    Raises:
        Refusal: a prompt is more than one user message, or the token limits differ.
    """
    for prompt in prompts:
        if prompt.tools or len(prompt.messages) != 1 or prompt.max_tokens != prompts[0].max_tokens:
            raise Refusal("second client", f"{prompt.id}: vllm bench serve sends single messages without tools only")
    return [
        {"conversations": [{"from": "human", "value": prompt.messages[0]["content"]}, {"from": "gpt", "value": "x"}]}
        for prompt in prompts
    ]


def compare(ours: Mapping[str, float], theirs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per shared metric: both values, their ratio, and whether they agree."""
    rows = []
    for mine, yours in SAME:
        if mine in ours and theirs.get(yours):
            ratio = ours[mine] / float(theirs[yours])
            agrees = abs(ratio - 1) <= ALLOWED
            rows.append(
                {"metric": mine, "ours": ours[mine], "theirs": float(theirs[yours]), "ratio": ratio, "agrees": agrees}
            )
    return rows
