"""The state of the fleet as one HTML page: no script, no font, no picture from elsewhere; what it shows is in the file.

Rows are those of :mod:`.status`, made with a history; plots are drawn from it as SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from .status import cells, messages

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 120, 34, 16
# Okabe and Ito's palette, told apart by readers who do not see all colours.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #59636e; --line: #d1d9e0; --card: #f6f8fa; --page: #fff;
        --good: #1a7f37; --bad: #cf222e; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --line: #3d444d; --card: #151b23;
        --page: #0d1117; --good: #3fb950; --bad: #f85149; --warn: #d29922; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 100rem; padding: 0 1.5rem; background: var(--page); color: var(--ink);
       font: 15px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
.when, figcaption { color: var(--dim); } .when { margin: .2rem 0 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-size: .72rem; letter-spacing: .04em; color: var(--dim); font-weight: 600; }
th, td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
td:last-child { white-space: normal; min-width: 11rem; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.warn { color: var(--warn); }
ul { padding-left: 1.1rem; } .seats { display: grid; gap: 1rem; margin-top: 1.5rem;
     grid-template-columns: repeat(auto-fill, minmax(min(100%, 58rem), 1fr)); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1.1rem; }
.plots { display: flex; flex-wrap: wrap; gap: .8rem; } figure { margin: 0; flex: 1 1 17rem; max-width: 32rem; }
figcaption { font-size: .8rem; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--dim); font-size: 10px; } svg .axis { stroke: var(--line); }
""".strip()


def page(statuses: Sequence[Mapping[str, Any]], title: str = "Seats of the fleet") -> str:
    """Return the page; ``statuses`` are :meth:`~.status.SeatStatus.as_dict`."""
    looked = max((status["looked"] for status in statuses), default=None)
    when = "nothing was looked at" if looked is None else f"as of {_utc(looked)}"
    sections = "\n".join(_section(status) for status in statuses)
    notes = messages(statuses)
    listed = f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="when">{escape(when)}, {_counted(statuses)}</p>
<div class="scroll">
{_table(statuses)}
</div>
{listed}
<div class="seats">
{sections}
</div>
</body>
</html>
"""


def _counted(statuses: Sequence[Mapping[str, Any]]) -> str:
    ready = sum(1 for status in statuses if status["state"] == "READY")
    stopped = sum(1 for status in statuses if status["stopped"] is not None)
    return f"{ready} of {len(statuses)} seats READY" + (f", {stopped} stopped on purpose" if stopped else "")


def _table(statuses: Sequence[Mapping[str, Any]]) -> str:
    if not statuses:
        return "<p>No seats.</p>"
    heads = "".join(f"<th>{escape(name)}</th>" for name, _ in cells(statuses[0]))
    rows = "\n".join(f"<tr>{_cells(status)}</tr>" for status in statuses)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _cells(status: Mapping[str, Any]) -> str:
    classes = {
        "STATE": "good" if status["state"] == "READY" else "bad" if status["stopped"] is None else "warn",
        "DRIFT": "warn" if status["drifted"] else "",
    }
    return "".join(
        f'<td class="{classes[name]}">{escape(text)}</td>' if classes.get(name) else f"<td>{escape(text)}</td>"
        for name, text in cells(status)
    )


def _section(status: Mapping[str, Any]) -> str:
    history = [probe for probe in status["history"] if _seconds(probe["at"]) is not None]
    name = f"{status['host']} / {status['seat']}"
    if not history:
        return f"<section><h2>{escape(name)}</h2><p>No probes are on record.</p></section>"
    plots = [
        _figure("probes: passed below, failed above", _verdicts(history)),
        _figure("acceptance length by workload", _lines(history, lambda probe: probe["acceptance"])),
        _figure("seconds a probe took", _lines(history, _duration)),
    ]
    failed = [probe for probe in history if probe["verdict"] not in ("READY", "BUSY")]
    last = f"<p>Last failure {escape(str(failed[-1]['at']))}: {escape(str(failed[-1]['cause']))}</p>" if failed else ""
    return f'<section><h2>{escape(name)}</h2>\n<div class="plots">\n{"".join(plots)}</div>{last}</section>'


def _figure(caption: str, svg: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>\n"


def _duration(probe: Mapping[str, Any]) -> Mapping[str, float]:
    return {} if probe["duration_s"] is None else {str(probe["level"]): float(probe["duration_s"])}


def _verdicts(history: Sequence[Mapping[str, Any]]) -> str:
    span = _span(history)
    marks = []
    for probe in history:
        x, verdict = _x(probe, span), probe["verdict"]
        passed = verdict in ("READY", "BUSY")
        height, colour = (14, "var(--good)" if verdict == "READY" else "var(--warn)") if passed else (60, "var(--bad)")
        title = escape(f"{probe['at']} {probe['level']}: {verdict}")
        marks.append(
            f'<rect x="{x - 1:.1f}" y="{_HEIGHT - _BOTTOM - height}" width="2.5" height="{height}" fill="{colour}">'
            f"<title>{title}</title></rect>"
        )
    return _svg("verdicts of the probes", span, marks)


def _lines(history: Sequence[Mapping[str, Any]], values: Callable[[Mapping[str, Any]], Mapping[str, float]]) -> str:
    points: dict[str, list[tuple[float, float]]] = {}
    span = _span(history)
    for probe in history:
        for name, value in values(probe).items():
            points.setdefault(name, []).append((_x(probe, span), float(value)))
    if not points:
        return _svg("no values", span, [f'<text x="{_LEFT + 8}" y="{_HEIGHT / 2}">not measured in this time</text>'])
    top = max(value for line in points.values() for _, value in line) * 1.08 or 1.0
    plot = _HEIGHT - _BOTTOM - 8
    marks = [f'<text x="2" y="14">{top / 1.08:.3g}</text>', f'<text x="2" y="{_HEIGHT - _BOTTOM}">0</text>']
    for i, (name, line) in enumerate(sorted(points.items())):
        colour = _COLOURS[i % len(_COLOURS)]
        places = [(x, _HEIGHT - _BOTTOM - value / top * plot) for x, value in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        marks += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places]
        marks.append(f'<text x="{_LEFT + 8 + 78 * i}" y="10" style="fill:{colour}">{escape(name)}</text>')
    return _svg(", ".join(sorted(points)), span, marks)


def _svg(label: str, span: tuple[float, float], marks: Iterable[str]) -> str:
    base = _HEIGHT - _BOTTOM
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}"/>{"".join(marks)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 3}">{_utc(span[0])}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 3}" text-anchor="end">{_utc(span[1])}</text></svg>'
    )


def _span(history: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    times = [seconds for probe in history if (seconds := _seconds(probe["at"])) is not None]
    return times[0], max(times[-1], times[0] + 60)


def _x(probe: Mapping[str, Any], span: tuple[float, float]) -> float:
    seconds = _seconds(probe["at"]) or span[0]
    return _LEFT + 4 + (seconds - span[0]) / (span[1] - span[0]) * (_WIDTH - _LEFT - 8)


def _seconds(at: object) -> float | None:
    try:
        return datetime.strptime(str(at), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
