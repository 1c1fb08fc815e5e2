"""Compute what a KV cache holds, the way vLLM counts: bytes per block, blocks, tokens, requests of full length.

Reads a model's config.json; nothing is contacted. Exit code 1 when one request of full length does not fit.

    seatctl plan --config /srv/models/M/REV --kv 14GiB --max-model-len 262144 --vllm 0.33.0
    seatctl plan --config M/config.json --method mtp -k 2 --kv 14GiB --max-model-len 131072 --vllm 0.23.0
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.units import parse_positive, parse_size

if TYPE_CHECKING:
    from seatfleet.core.model.planner import Engine, Layout, Plan

HELP = "compute how many tokens a KV cache of given size holds"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--config", type=Path, required=True, help="the model's directory or config.json")
    parser.add_argument("--drafter", type=Path, help="the drafter's directory or config.json")
    parser.add_argument("--kv", required=True, metavar="SIZE", help="KV cache memory of one GPU, such as 14GiB")
    parser.add_argument(
        "--max-model-len", type=parse_positive, required=True, metavar="N", help="context length in tokens"
    )
    parser.add_argument("--vllm", required=True, metavar="VERSION", help="vLLM's version, such as 0.33.0")
    parser.add_argument("--method", help="speculative method: mtp, dflash, draft_model, eagle3 ...")
    parser.add_argument("-k", type=parse_positive, default=0, metavar="N", help="speculative tokens")
    parser.add_argument("--no-prefix-caching", action="store_true", help="the seat has prefix caching off")
    parser.add_argument("--block-size", type=parse_positive, metavar="N", help="a declared block size")
    parser.add_argument("--max-num-batched-tokens", type=parse_positive, default=8192, metavar="N")
    parser.add_argument("--tensor-parallel-size", type=parse_positive, default=1, metavar="N")
    parser.add_argument("--kv-cache-dtype", default="auto", metavar="TYPE")
    parser.add_argument("--mamba-ssm-cache-dtype", default="auto", metavar="TYPE")
    parser.add_argument("--padded", action="store_true", help="a patched release that pads pages which do not divide")
    parser.add_argument("--cpu", action="store_true", help="a CPU build: other default block size and state type")
    parser.add_argument("--json", action="store_true", help="print JSON")


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a ``config.json``, given the file or its directory.

    Raises:
        ProblemsError: it cannot be read or is no JSON object.
    """
    from seatfleet.core.problems import Problem, ProblemsError

    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProblemsError([Problem(str(file), "", "", "a model's config.json", str(error))]) from error
    if not isinstance(content, dict):
        raise ProblemsError([Problem(str(file), "", "", "a JSON object", type(content).__name__)])
    return content


def _engine(args: argparse.Namespace) -> Engine:
    from seatfleet.core.model.planner import Engine, parse_version
    from seatfleet.core.problems import Problem, ProblemsError

    version = parse_version(args.vllm)
    if version is None:
        raise ProblemsError([Problem("--vllm", "", "", "a version such as 0.33.0", repr(args.vllm))])
    return Engine(
        version=version,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        prefix_caching=not args.no_prefix_caching,
        speculative_tokens=args.k,
        method=args.method,
        tensor_parallel=args.tensor_parallel_size,
        kv_cache_dtype=args.kv_cache_dtype,
        state_dtype=args.mamba_ssm_cache_dtype,
        cpu=args.cpu,
        pads_pages=args.padded,
    )


def describe(layout: Layout, found: Plan, longest: int, needed: int) -> str:
    """Return the plan as text."""
    lines = [
        f"tokens              {found.tokens:,} ({found.confidence})",
        f"concurrency         {found.concurrency:.2f} requests of {found.max_model_len:,} tokens",
        f"blocks              {found.blocks:,} of {found.block_bytes:,} bytes",
        f"blocks per request  {found.blocks_per_request:,}",
        f"longest context     {longest:,}",
        f"least KV memory     {needed:,} bytes ({needed / 2**30:.2f} GiB) for {found.max_model_len:,}",
    ]
    lines += [
        f"group               {group.layers} x {group.name}, {group.rule}, {group.block_tokens:,} tokens a block, "
        f"{group.page_bytes:,} bytes a page"
        for group in layout.groups
    ]
    lines += [f"note                {note}" for note in found.notes]
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 1 when one request of full length does not fit, 2 when it cannot be computed."""
    from seatfleet.core.model.modelconfig import UnknownModelError, parse_config
    from seatfleet.core.model.planner import PlanError, largest_length, layout_of, least_bytes, plan
    from seatfleet.core.problems import Problem, ProblemsError

    try:
        kv_bytes = parse_size(args.kv)
    except ValueError as error:
        raise ProblemsError([Problem("--kv", "", "", "a size such as 14GiB", repr(args.kv))]) from error
    engine = _engine(args)
    try:
        drafter = parse_config(read_config(args.drafter)) if args.drafter else None
        layout = layout_of(parse_config(read_config(args.config)), engine, drafter)
    except (UnknownModelError, PlanError) as error:
        print(f"seatctl plan: {error}", file=sys.stderr)
        return 2
    found = plan(layout, kv_bytes, args.max_model_len)
    longest = largest_length(layout, kv_bytes, 1 << 24)
    needed = least_bytes(layout, args.max_model_len)
    if args.json:
        print(
            json.dumps(
                {
                    "tokens": found.tokens,
                    "concurrency": found.concurrency,
                    "blocks": found.blocks,
                    "block_bytes": found.block_bytes,
                    "blocks_per_request": found.blocks_per_request,
                    "longest_context": longest,
                    "least_kv_bytes": needed,
                    "fits": found.fits,
                    "confidence": found.confidence,
                    "notes": list(found.notes),
                },
                indent=2,
            )
        )
    else:
        print(describe(layout, found, longest, needed))
    if not found.fits:
        print(f"seatctl plan: one request of {args.max_model_len:,} tokens does not fit {args.kv}", file=sys.stderr)
    return 0 if found.fits else 1
