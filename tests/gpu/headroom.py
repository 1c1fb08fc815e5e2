"""Find a real memory edge with the project's own headroom probe on one GPU: ``headroom.py ROOT OUT``.

A neighbour process takes all but 24 GiB of the card, so that the edge is near. The seat is a plain model with dummy
weights whose prompts are prefilled in one piece (as many batched tokens as context), so that what a prompt needs grows
with its length, and its head answers nothing. Then

1. the search of ``seatctl headroom run``: boots at pins, ramp, mixed and full-depth load, a pin proposed;
2. the blind pin: free memory less the weights less 1.5 GiB. It starts and answers, and must run out at depth;
3. the proposed pin, booted once more: it must not.

Writes OUT/headroom.json (verdicts, every allocator window) and OUT/headroom-log.txt. Exit code 0 when 1 to 3 came out
as they must. With ``--earlier`` the search goes on from the boots of an earlier call, and step 2 is of that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from make_models import tokenizer

from seatfleet.campaign.canary import Answers
from seatfleet.campaign.seats import LocalHost, LocalSeat
from seatfleet.clients.systemd import UnitState
from seatfleet.core.health.headroom import RAMP, unclean
from seatfleet.core.host.sockets import Owner
from seatfleet.core.units import GIB, MIB
from seatfleet.headroom.hunt import Hunt
from seatfleet.headroom.oracle import oracle
from seatfleet.headroom.prober import Plan, Prober, Result

LEFT = 24 * GIB
CONTEXT = 32_768
START = 7 * GIB
#: What the arithmetic of a blind pin leaves for everything beside weights and KV cache.
BLIND_REST = 3 * GIB // 2
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
    "pad_token_id": 0,
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
NEIGHBOUR = """
import sys, torch
left = int(sys.argv[1])
held = []
while (free := torch.cuda.mem_get_info()[0]) > left:
    held.append(torch.empty(max(2**21, min(free - left, 8 * 2**30)), dtype=torch.uint8, device="cuda"))
print("holding", sum(one.numel() for one in held), flush=True)
sys.stdin.read()
"""


def make_model(folder: Path) -> None:
    """Write a model without weights, which vLLM fills with dummies."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    plain = tokenizer()
    plain.chat_template = TEMPLATE
    plain.save_pretrained(folder)


def deployment(root: Path, model: Path, port: int) -> dict[str, Any]:
    """Return the seat as ``LocalSeat`` reads it."""
    return {
        "executable": [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"],
        "seat": "edge",
        "config": {
            "model": str(model),
            "served-model-name": ["edge"],
            "load-format": "dummy",
            "host": "127.0.0.1",
            "port": port,
            "max-model-len": CONTEXT,
            "max-num-batched-tokens": CONTEXT,
            "max-num-seqs": 4,
            "kv-cache-memory-bytes": START,
            # vLLM demands this share of the card to be free at start, also when a pin makes it ignore it afterwards.
            "gpu-memory-utilization": 0.1,
            "enforce-eager": True,
            "enable-prefix-caching": False,
        },
        "env": {
            "PYTHONPATH": f"{root / 'trees/ours'}:{root / 'site'}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_USE_DEEP_GEMM": "0",
            "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        "identity": {"release": "vllm 0.23.0"},
    }


class Process(LocalHost):
    """A process of a machine whose ``/proc`` may not say who owns a socket."""

    def unit(self) -> UnitState:
        return replace(super().unit(), cgroup="/here")

    def listeners(self, port: int) -> list[Owner]:
        return [Owner(self.unit().main_pid, "vllm", "/here")]


class Seat(LocalSeat):
    """A local seat on such a machine, whose caches stay for the boots that follow the search."""

    def host(self) -> Process:
        assert self._process is not None
        return Process(self._process, self._started_s, self._log_file)

    def discard(self) -> None:
        """Keep the caches."""


def no_questions(*_: object) -> Answers:
    """Ask nothing: dummy weights answer no question. READY and the ramp's own tokens show that it serves."""
    return Answers()


def weights(boot: dict[str, Any], pin: int) -> int:
    """Return what an idle seat has allocated beside its KV cache."""
    (idle,) = (window for window in boot["windows"] if window["label"] == "idle")
    return max(worker["allocated_peak"] for worker in idle["workers"]) - pin


def described(result: Result) -> dict[str, Any]:
    """Return a boot as JSON."""
    trial = result.trial
    return {"pin": trial.pin, "unclean": unclean(trial), "trial": asdict(trial), "boot": result.beside}


def blind_boot(seat: Seat, plan: Plan, work: Path, size: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Boot at the pin that arithmetic gives, and go straight to full depth, as traffic does."""
    blind = (LEFT - size - BLIND_REST) // MIB * MIB
    say(f"blind pin {blind / GIB:.2f} GiB: {LEFT / GIB:.0f} GiB free, {size / GIB:.2f} GiB of weights")
    work.mkdir()
    straight = Prober(seat, replace(plan, fractions=(1.0,), phases=(RAMP,)), work, say=say, answers=no_questions)
    straight.started = 90
    return {"weights": size, "pin": blind, **described(straight.boot(seat.live(), blind))}


def hint(log: str) -> str | None:
    """Return vLLM's own advice, for the record only."""
    found = re.search(r"[^\n]*--kv-cache-memory[^\n]*", log)
    return found[0].strip()[-300:] if found else None


def main() -> int:
    """Search, then try the blind and the proposed pin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="where unpack.sh has put trees and models")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no boot of the search after so long")
    parser.add_argument("--earlier", type=Path, metavar="DIR", help="OUT of an earlier call that ran out of time")
    args = parser.parse_args()
    root, out = args.root.resolve(), args.out.resolve()
    earlier = json.loads((args.earlier / "headroom.json").read_text()) if args.earlier else None
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    work = root / "headroom"
    shutil.rmtree(work, ignore_errors=True)
    model = root / "models/headroom"
    make_model(model)
    file = work / "seat.yml"
    work.mkdir()
    file.write_text(yaml.safe_dump(deployment(root, model, 8300)))
    log = (out / "headroom-log.txt").open("w", buffering=1)

    def say(text: str) -> None:
        line = f"{time.monotonic() - began:6.1f} s {text}"
        print(line, flush=True)
        log.write(line + "\n")

    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "total": torch.cuda.mem_get_info()[1],
        "torch": torch.__version__,
        "left": LEFT,
    }
    report["oracle"] = oracle(Path(sys.executable), {"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    say(f"oracle: {report['oracle']}")
    neighbour = subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, str(LEFT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    seat = Seat(file, work / "seat", ready_timeout_s=150)
    try:
        assert neighbour.stdout is not None
        say(f"neighbour: {neighbour.stdout.readline().strip()}")
        if args.earlier:
            shutil.copytree(args.earlier / "search", out / "search")
        plan = Plan(idle_s=2.0, ready_timeout_s=150.0)
        prober = Prober(seat, plan, work, say=say, answers=no_questions)
        hunt = Hunt(prober, "edge", out / "search", start=START, limit_s=args.seconds, say=say)
        try:
            report["found"] = hunt.run()
            live = seat.live()
            if earlier:
                report["blind"] = earlier["blind"]
            else:
                report["blind"] = blind_boot(
                    seat, plan, work / "blind", weights(hunt.boots[0], hunt.trials[0].pin), say
                )
            if report["found"]["pin"]:
                say(f"proposed pin {report['found']['pin'] / GIB:.2f} GiB, once more")
                report["proposed"] = described(prober.boot(live, report["found"]["pin"]))
        except Exception as error:  # whatever was learnt before is worth keeping
            report["failed"] = repr(error)
            say(f"failed: {error!r}")
        report["trials"] = [asdict(trial) for trial in hunt.trials]
        report["boots"] = hunt.boots
    finally:
        seat.stop()
        neighbour.terminate()
        neighbour.wait()
    blind_trial = report.get("blind", {}).get("trial", {})
    report["verdict"] = {
        "pin_proposed": bool(report.get("found", {}).get("pin")),
        "blind_started": report.get("blind", {}).get("boot", {}).get("ready_s") is not None,
        "blind_crossed": bool(blind_trial.get("failure"))
        or any(step["retries"] or step["ooms"] for step in blind_trial.get("steps", [])),
        "proposed_clean": "proposed" in report and report["proposed"]["unclean"] is None,
    }
    report["took_s"] = round(time.monotonic() - began, 1)
    (out / "headroom.json").write_text(json.dumps(report, indent=1))
    for start in sorted((work / "seat").glob("start-*.log")):
        text = start.read_text(errors="replace")
        report_hint = hint(text)
        lines = [line[:300] for line in text.splitlines()]
        kept = lines if len(lines) < 120 else [*lines[:30], "[...]", *lines[-90:]]
        log.write("\n".join([f"##### {start.name} {report_hint or ''}", *kept]) + "\n")
    say(f"verdict: {report['verdict']}")
    return 0 if all(report["verdict"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
