"""The plots of a report, drawn from its JSON alone. Each function returns an SVG, or None with nothing to draw.

Dots are boots, never means alone; void boots are drawn hollow. Bands and whiskers are the intervals of the analysis.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .verdicts import TENFOLD, downwards, printed

Json = Mapping[str, Any]

#: Okabe and Ito's palette, told apart by readers who do not see all colours; grey is always the control.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
_CONTROL = "#555555"
_VERDICT = {"WIN": "#0a7d4b", "LOSS": "#b3261e", "EQUIVALENT": "#33628f", "SCREEN_CANDIDATE": "#8a5a00"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "seatfleet",  # the same data gives the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def _colours(report: Json) -> dict[str, str]:
    control = report["campaign"]["control"]
    others = [arm["id"] for arm in report["arms"] if arm["id"] != control]
    return {control: _CONTROL} | {arm: _COLOURS[i % len(_COLOURS)] for i, arm in enumerate(others)}


def _svg(figure: Figure) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    text = target.getvalue()
    return text[text.index("<svg") :]


def _panels(count: int, width: float = 3.4, height: float = 2.7, columns: int = 3) -> tuple[Figure, list[Axes]]:
    rows = math.ceil(count / columns)
    wide = min(count, columns)
    figure = Figure(figsize=(width * wide, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, wide, i + 1) for i in range(count)]
    return figure, axes


def _void(report: Json) -> set[str]:
    return {boot["boot"] for boot in report["boots"] if boot["void"]}


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(6, len(labels))), fontsize=8.5)


def _primary_metric(report: Json) -> str:
    return str(report["campaign"]["primary"]["metric"])


METRIC_NAMES = {
    "aggregate_output_tok_s": "output tokens/s, all streams",
    "steady_output_tok_s": "output tokens/s, steady window",
    "decode_only_tok_s": "tokens/s of one stream, first token excluded",
    "end_to_end_tok_s": "tokens/s end to end, not streamed",
    "ttft_ms": "ms to the first token",
    "tpot_ms": "ms per output token",
    "icl_ms": "ms between chunks",
    "step_ms": "ms per step",
}


def throughput(report: Json) -> str | None:
    """Throughput against concurrency, a dot per boot, the control's mean with its floor as a band."""
    metric, colours, void = _primary_metric(report), _colours(report), _void(report)
    rows = [row for row in report["cells"] if row["kind"] == "stream" and metric in row["metrics"]]
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    if not shapes:
        return None
    figure, panels = _panels(len(shapes))
    for axes, shape in zip(panels, shapes, strict=True):
        here = [row for row in rows if row["shape"] == shape]
        levels = sorted({row["concurrency"] for row in here})
        for offset, (arm, colour) in enumerate(colours.items()):
            means = []
            for x, level in enumerate(levels):
                mine = [row for row in here if row["arm"] == arm and row["concurrency"] == level]
                place = x + 0.05 * (offset - (len(colours) - 1) / 2)
                for row in mine:
                    face = "none" if row["boot"] in void else colour
                    axes.plot(place, row["metrics"][metric], "o", ms=4, mfc=face, mec=colour, mew=1)
                good = [math.log(row["metrics"][metric]) for row in mine if row["boot"] not in void]
                means.append(math.exp(sum(good) / len(good)) if good else math.nan)
            axes.plot(range(len(levels)), means, "-", color=colour, lw=1.2, alpha=0.8, label=arm)
            if arm == report["campaign"]["control"]:
                floors = [_floor(report, metric, shape, level) for level in levels]
                low = [m * (1 + downwards(f)) for m, f in zip(means, floors, strict=True)]
                high = [m * (1 + f) for m, f in zip(means, floors, strict=True)]
                axes.fill_between(range(len(levels)), low, high, color=colour, alpha=0.15, lw=0)
        axes.set_xticks(range(len(levels)), [str(level) for level in levels])
        axes.set(title=shape, xlabel="requests at once", ylabel=METRIC_NAMES[metric])
        axes.set_ylim(bottom=0)
    _legend(figure, panels[0])
    return _svg(figure)


def _floor(report: Json, metric: str, shape: str, concurrency: int) -> float:
    floors = [
        found["floor"]
        for found in report["findings"]
        if (found["metric"], found["shape"], found["concurrency"]) == (metric, shape, concurrency) and found["floor"]
    ]
    return float(max(floors, default=0.0))


def forest(report: Json) -> str | None:
    """Every contrast of the primary metric with its 95 % interval, beside the floor of its cell."""
    metric = _primary_metric(report)
    found = [f for f in report["findings"] if f["metric"] == metric and f["effect"] is not None]
    if not found:
        return None
    figure = Figure(figsize=(8.6, 0.34 * len(found) + 1.0), layout="constrained")
    axes = figure.add_subplot()
    # one cell without any precision must not squeeze all others into a line
    right = 100 * min(TENFOLD, max(max(f["interval_95"][1], f["floor"]) for f in found))
    left = 100 * min(min(f["interval_95"][0], downwards(f["floor"])) for f in found)
    margin = 0.02 * (right - left)
    for y, row in enumerate(reversed(found)):
        colour = _VERDICT.get(row["verdict"], "#777777")
        low, high = (100 * value for value in row["interval_95"])
        below, above = 100 * downwards(row["floor"]), min(right, 100 * row["floor"])
        axes.barh(y, above - below, left=below, height=0.72, color="#eeeeee", lw=0)
        axes.plot([min(low, right), min(high, right)], [y, y], "-", color=colour, lw=1.6)
        if high > right:  # goes on
            axes.plot(right, y, ">", color=colour, ms=4)
        axes.plot(min(right, 100 * row["effect"]), y, "s", color=colour, ms=5 if row["family"] == "primary" else 3)
        words = printed(row["verdict"], row["family"])
        axes.text(right + margin, y, words, va="center", ha="left", fontsize=8, color=colour)
    axes.set_xlim(left - margin, right + 9 * margin)
    axes.axvline(0, color="#333333", lw=0.8)
    labels = [f"{f['contrast']}  {f['shape']} c={f['concurrency']}" for f in reversed(found)]
    axes.set_yticks(range(len(found)), labels)
    for label, row in zip(axes.get_yticklabels(), reversed(found), strict=True):
        label.set_fontweight("bold" if row["family"] == "primary" else "normal")
    axes.set_xlabel(f"change of {METRIC_NAMES[metric]}, percent (grey: the floor of the cell)")
    axes.grid(axis="y", visible=False)
    return _svg(figure)


def drift(report: Json) -> str | None:
    """Every boot in the order it was measured: a drift shows in the control's line."""
    metric, colours, void = _primary_metric(report), _colours(report), _void(report)
    primary = report["campaign"]["primary"]
    cells = [(shape, c) for shape in primary["shapes"] for c in primary["concurrency"]]
    order = [boot["boot"] for boot in report["boots"]]
    if not order:
        return None
    figure, panels = _panels(len(cells), width=4.2, columns=2)
    for axes, (shape, level) in zip(panels, cells, strict=True):
        for arm, colour in colours.items():
            points = [
                (order.index(row["boot"]), row["metrics"][metric], row["boot"])
                for row in report["cells"]
                if (row["arm"], row["shape"], row["concurrency"], row["kind"]) == (arm, shape, level, "stream")
                and metric in row["metrics"]
            ]
            style = "-" if arm == report["campaign"]["control"] else ":"
            axes.plot([p[0] for p in points], [p[1] for p in points], style, color=colour, lw=1, label=arm)
            for x, y, name in points:
                axes.plot(x, y, "o", ms=4.5, mfc="none" if name in void else colour, mec=colour)
        axes.set(title=f"{shape} c={level}", xlabel="boot", ylabel=METRIC_NAMES[metric])
        axes.set_xticks(range(len(order)), [str(i + 1) for i in range(len(order))])
    _legend(figure, panels[0])
    return _svg(figure)


def acceptance(report: Json) -> str | None:
    """How often a draft was accepted up to each position, and (line) given that the one before was."""
    rows = report["acceptance"]
    if not rows:
        return None
    colours = _colours(report)
    figure, panels = _panels(len(rows), width=2.3, height=2.1, columns=4)
    for axes, row in zip(panels, rows, strict=True):
        positions = range(1, len(row["rates"]) + 1)
        axes.bar(positions, row["rates"], color=colours[row["arm"]], alpha=0.75)
        axes.plot(positions, row["conditional"], "o-", color="#222222", ms=3, lw=1)
        axes.set(title=f"{row['arm']} {row['shape']}: AL {row['acceptance_length']:.2f}", ylim=(0, 1.05))
        axes.set_xticks(list(positions))
    panels[0].set_ylabel("accepted")
    return _svg(figure)


def latency(report: Json) -> str | None:
    """Distributions of the wait for the first token and of the time per token, per shape at its first level."""
    colours = _colours(report)
    rows = [row for row in report["latency"] if row["ttft_points"]]
    if not rows:
        return None
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    kinds = (("ttft_points", "ms to the first token"), ("tpot_points", "ms per token"))
    figure, panels = _panels(len(shapes) * 2, width=3.6, height=2.2, columns=2)
    for i, shape in enumerate(shapes):
        level = min(row["concurrency"] for row in rows if row["shape"] == shape)
        for j, (points, label) in enumerate(kinds):
            axes = panels[2 * i + j]
            for row in rows:
                values = row[points]
                if (row["shape"], row["concurrency"]) == (shape, level) and values:
                    share = [(k + 1) / len(values) for k in range(len(values))]
                    axes.step(values, share, where="post", color=colours[row["arm"]], lw=1.2, label=row["arm"])
            axes.set(title=f"{shape} c={level}", xlabel=label, ylabel="share of requests", ylim=(0, 1.02))
    _legend(figure, panels[0])
    return _svg(figure)


def break_even(report: Json) -> str | None:
    """Draw acceptance length against the one that pays for the longer step: right of the line speculation wins."""
    rows = [row for row in report["steps"] if row["break_even"] and row["arm"] != report["campaign"]["control"]]
    if not rows:
        return None
    colours = _colours(report)
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    top = max(max(row["break_even"], row["acceptance_length"]) for row in rows) * 1.08
    axes.plot([1, top], [1, top], "--", color="#888888", lw=1)
    axes.fill_between([1, top], [1, 1], [1, top], color="#0a7d4b", alpha=0.06, lw=0)
    seen: set[str] = set()
    for row in rows:
        label = None if row["arm"] in seen else row["arm"]
        seen.add(row["arm"])
        face = "none" if row["void"] else colours[row["arm"]]
        axes.plot(row["acceptance_length"], row["break_even"], "o", mfc=face, mec=colours[row["arm"]], label=label)
    axes.set(xlabel="acceptance length, tokens per step", ylabel="acceptance length that breaks even")
    axes.set(xlim=(0.95, top), ylim=(0.95, top))
    _legend(figure, axes)
    return _svg(figure)


def steps(report: Json) -> str | None:
    """Step time: the control's, and what an arm adds to it."""
    rows = [row for row in report["steps"] if row["break_even"]]
    if not rows:
        return None
    cells = list(dict.fromkeys((row["shape"], row["concurrency"]) for row in rows))
    colours = _colours(report)
    figure, panels = _panels(len(cells), width=2.3, height=2.2, columns=4)
    for axes, (shape, level) in zip(panels, cells, strict=True):
        here = [row for row in rows if (row["shape"], row["concurrency"]) == (shape, level)]
        for x, row in enumerate(here):
            base = row["step_ms"] / row["break_even"]
            axes.bar(x, min(base, row["step_ms"]), color="#bbbbbb")
            if row["step_ms"] > base:
                axes.bar(x, row["step_ms"] - base, bottom=base, color=colours[row["arm"]], alpha=0.8)
        axes.set_xticks(range(len(here)), [row["arm"] for row in here], rotation=30 if len(here) > 3 else 0)
        axes.set(title=f"{shape} c={level}")
    panels[0].set_ylabel("ms per step")
    return _svg(figure)


def telemetry(report: Json) -> str | None:
    """Clocks, temperature, power and PCIe traffic per boot."""
    boots = [boot for boot in report["boots"] if boot["telemetry"]]
    if not boots:
        return None
    kinds = (
        *(("sm_mhz", "SM clock, MHz"), ("temp_c_max", "hottest, C"), ("power_w_mean", "power, W")),
        *(("pcie_rx_mb_s_mean", "PCIe in, MB/s"), ("throttled", "share throttled")),
    )
    shown = [(k, label) for k, label in kinds if any(boot["telemetry"][k] is not None for boot in boots)]
    colours = _colours(report)
    figure, panels = _panels(len(shown), width=2.9, height=2.0)
    for axes, (kind, label) in zip(panels, shown, strict=True):
        for x, boot in enumerate(boots):
            value = boot["telemetry"][kind]
            if value is not None:
                axes.plot(x, value, "o", color=colours[boot["arm"]], mfc="none" if boot["void"] else None)
        axes.set(title=label, xlabel="boot")
    return _svg(figure)


def chunks(report: Json) -> str | None:
    """Tokens per chunk as the client saw them, beside the acceptance length by the counters (line)."""
    rows = [row for row in report["acceptance"] if row["tokens_per_chunk"]]
    if not rows:
        return None
    colours = _colours(report)
    figure, panels = _panels(len(rows), width=2.3, height=2.1, columns=4)
    for axes, row in zip(panels, rows, strict=True):
        counts = {int(n): count for n, count in row["tokens_per_chunk"].items()}
        total = sum(counts.values())
        axes.bar(list(counts), [count / total for count in counts.values()], color=colours[row["arm"]], alpha=0.75)
        axes.axvline(row["acceptance_length"], color="#222222", lw=1.2)
        axes.set(title=f"{row['arm']} {row['shape']}", xlim=(0.4, row["k"] + 1.6))
        axes.set_xticks(range(1, row["k"] + 2))
    panels[0].set_ylabel("share of chunks")
    return _svg(figure)


def components(report: Json) -> str | None:
    """Where the noise is: between repetitions inside a boot, or between boots."""
    rows = report["components"]
    if not rows:
        return None
    figure = Figure(figsize=(6.4, 0.3 * len(rows) + 1.1), layout="constrained")
    axes = figure.add_subplot()
    for y, row in enumerate(reversed(rows)):
        first = axes.barh(y + 0.18, 100 * row["boot_sd"], height=0.34, color="#0072B2")
        second = axes.barh(y - 0.18, 100 * row["repetition_sd"], height=0.34, color="#E69F00")
    axes.set_yticks(range(len(rows)), [f"{row['shape']} c={row['concurrency']}" for row in reversed(rows)])
    axes.set_xlabel("standard deviation, percent")
    figure.legend(
        [first.patches[0], second.patches[0]], ["between boots", "inside a boot"], loc="outside lower center", ncols=2
    )
    return _svg(figure)


#: Drawn in this order: (name, caption, function).
PLOTS: Sequence[tuple[str, str, Callable[[Json], str | None]]] = (
    (
        "throughput",
        "Throughput against concurrency. Every dot is a boot (hollow: void), lines join geometric means. The grey band "
        "is the control with the floor of the cell: a mean inside it is not told apart from the control.",
        throughput,
    ),
    (
        "forest",
        "Every comparison of the primary metric with its 95 % interval; bold rows are the declared family. The grey "
        "bar is the floor: effects inside it cannot be resolved by this many boots.",
        forest,
    ),
    (
        "break-even",
        "Why: a step with drafts takes longer. An arm pays when its acceptance length exceeds what the longer step "
        "costs, that is, in the shaded half. Every dot is a cell.",
        break_even,
    ),
    ("steps", "Milliseconds per step: the control's part in grey, what the arm adds in colour.", steps),
    (
        "acceptance",
        "Acceptance by draft position (bars), and given that the position before was accepted (line). AL counts the "
        "token that comes with every step: it lies between 1 and k + 1.",
        acceptance,
    ),
    (
        "chunks",
        "Tokens per chunk as they arrived at concurrency 1; the line is the acceptance length by the seat's counters. "
        "Two instruments, one answer.",
        chunks,
    ),
    ("drift", "Boots in the order they were measured. The control's solid line would show a drift.", drift),
    (
        "latency",
        "Waits for the first token and times per token, all requests of the valid boots. Descriptive.",
        latency,
    ),
    ("components", "Where the noise of the primary metric comes from.", components),
    ("telemetry", "The GPU during every boot.", telemetry),
)


def draw(report: Json) -> dict[str, tuple[str, str]]:
    """Return name -> (caption, SVG) of every plot that has something to show."""
    drawn: dict[str, tuple[str, str]] = {}
    with mpl.rc_context(_STYLE):
        for name, caption, function in PLOTS:
            svg = function(report)
            if svg is not None:
                drawn[name] = (caption, svg)
    return drawn
