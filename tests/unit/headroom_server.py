"""What a vLLM server is to the headroom probe: it reads ``--config``, loads the worker extension, serves, and dies of
a prompt that the card (a capture) has no room for.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import yaml
from probe_stub import Answer, StubSeat, speak


def main() -> None:
    config = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    module = importlib.import_module(config["worker-extension-cls"].rpartition(".")[0])
    stub = StubSeat(port=config["port"])
    stub.names, stub.rates, stub.max_model_len = config["served-model-name"], None, config["max-model-len"]
    forgetful = int(os.environ.get("STUB_FORGETS_AT", "1000000"))

    def answer(body: dict[str, Any]) -> Answer:
        replay = os.environ.get(module.REPLAY_VARIABLE)
        tokens = stub.count(body)
        if replay and tokens > 100:
            card = module.ReplayedAllocator(Path(replay))
            capture = card._capture
            room = capture["total"] - capture["other"] - capture["weights"] - config["kv-cache-memory-bytes"]
            if card.need(tokens) > room + capture["fragments"]:
                print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 466.00 MiB.", flush=True)
                os._exit(0)
        found = re.findall(r"A code word is (\w+)\.", body["messages"][-1]["content"])
        return speak(", ".join(found) if found and tokens < forgetful else "one two three four five six", body)

    stub.answer = answer
    print("GPU KV cache size: 8,192 tokens, Maximum concurrency for 2,048 tokens per request: 4.00x", flush=True)
    threading.Event().wait()


main()
