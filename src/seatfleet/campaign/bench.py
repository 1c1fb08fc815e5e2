"""One quick look at a running seat with the campaign's client: numbers without a verdict.

A single boot has no noise floor. What this prints may be looked at, and may not be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..clients.vllm import SeatClient
from ..core.tables import aligned
from . import observe
from .definition import ShapeUse
from .load import LoadClient, Target
from .observe import Cell
from .pages import Pages
from .parity import Refusal, refuse_remote_client
from .prompts import Shape, make_shapes
from .second_client import SecondClient, compare


def bench(
    base_url: str,
    model: str | None,
    api_key: str | None,
    shapes: Sequence[str],
    levels: Sequence[int],
    max_tokens: int | None,
    second: Path | None = None,
) -> dict[str, Any]:
    """Run every shape once at every level and return its metrics and acceptance.

    ``second``, the executable ``vllm``, repeats the first cell, whose numbers are then compared.

    Raises:
        Refusal: the seat is not on this host, serves somebody else, or the second client cannot be used.
        SeatError: the seat does not answer.
    """
    refuse_remote_client(base_url)
    with SeatClient(base_url, api_key) as client:
        roots = {card.id: card.root for card in client.models()}
        names = list(roots)
        name = model or names[0]
        if name not in names:
            raise Refusal("R16 other seat", f"the server at {base_url} serves {', '.join(names)}, not {name}")
        uses = [ShapeUse(shape, max_tokens) for shape in shapes]
        texts = make_shapes(uses, lambda _: max(levels) * 2, lambda p: client.tokenize(name, p.messages)[0])
        version = client.version()
    target = Target(base_url, name, api_key)
    with Pages(target) as pages:
        pages.refuse_busy()
        cells = [row for shape in texts.values() for row in _look(target, pages, shape, levels)]
    found = {"base_url": base_url, "model": name, "vllm_version": version, "verdict": None, "cells": cells}
    if second is not None:
        prompts = texts[shapes[0]].take(requests_of(levels[0]))
        theirs = SecondClient(second, roots[name] or name).run(base_url, name, api_key, prompts, levels[0])
        found["cross_check"] = compare(cells[0]["metrics"], theirs)
    return found


def requests_of(level: int) -> int:
    """Return the requests of one cell."""
    return max(2 * level, 4)


def _look(target: Target, pages: Pages, shape: Shape, levels: Sequence[int]) -> Iterator[dict[str, Any]]:
    load = LoadClient(target, {"temperature": 0.0})
    asyncio.run(load.cell(shape.take(1), 1))  # the first wave builds kernels
    before = pages.read_settled(1)
    for order, level in enumerate(levels):
        prompts = shape.take(requests_of(level))
        run = asyncio.run(load.cell(prompts, level))
        after = pages.read_settled(len(prompts))
        counters = observe.read_counters(before, after)
        yield _row(Cell(0, target.model, 0, shape.name, level, "stream", order, run.requests, counters))
        before = after


def _row(cell: Cell) -> dict[str, Any]:
    counters = cell.counters
    foreign = None
    if counters.reset is None and not cell.failed and counters.successes != len(cell.requests):
        foreign = f"{counters.successes} requests ended, {len(cell.requests)} were ours"
    return {
        "shape": cell.shape,
        "concurrency": cell.concurrency,
        "requests": len(cell.requests),
        "failed": len(cell.failed),
        "metrics": cell.metrics,
        "acceptance_length": observe.acceptance_length(counters),
        "problem": counters.reset or foreign or (cell.failed[0].error if cell.failed else None),
    }


_COLUMNS = (
    ("tokens/s", "aggregate_output_tok_s", 1),
    ("one stream", "decode_only_tok_s", 1),
    ("first token ms", "ttft_ms", 1),
    ("ms/token", "tpot_ms", 2),
)


def bench_text(found: Mapping[str, Any]) -> str:
    """Return the look as a table."""
    head = ["text", "at once", *(title for title, _, _ in _COLUMNS), "AL", "problem"]
    rows = [head]
    for cell in found["cells"]:
        values = [
            f"{cell['metrics'][name]:.{digits}f}" if name in cell["metrics"] else "-" for _, name, digits in _COLUMNS
        ]
        length = cell["acceptance_length"]
        rows.append(
            [
                cell["shape"],
                str(cell["concurrency"]),
                *values,
                "-" if length is None else f"{length:.2f}",
                cell["problem"] or "",
            ]
        )
    title = f"{found['model']} at {found['base_url']}, vLLM {found['vllm_version']}"
    note = "One look at one boot: no floor, no verdict. To compare two settings run a campaign."
    return "\n".join([title, *aligned(rows), *_cross_check(found.get("cross_check") or ()), note])


def _cross_check(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        values = f"ours {row['ours']:.2f}, vllm bench serve {row['theirs']:.2f}, ratio {row['ratio']:.3f}"
        yield f"first cell again, {row['metric']}: {values}: {'agree' if row['agrees'] else 'DIFFER'}"
