"""The report of a campaign: one HTML file that needs nothing else, Markdown, and the JSON both are made from.

Written for a reader who was not there: the answer first, then what was compared, the numbers with their floors, why,
what the controls say, and how to compute all of it again.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .analysis import analyse
from .plots import METRIC_NAMES, draw
from .rawdata import RawCampaign, to_json, write_durably
from .verdicts import NOT_ALONE, SYMMETRIC, TENFOLD, downwards, printed

Json = Mapping[str, Any]

JSON_NAME, MARKDOWN_NAME, HTML_NAME = "report.json", "report.md", "report.html"
#: Floating point differs in the last digits between two builds of the libraries, and in nothing else.
TOLERANCE = 1e-9


class Mismatch(Exception):
    """A stored report is not what its raw data gives."""


def write_report(raw: RawCampaign, out: Path) -> Json:
    """Analyse a campaign and write the three files; return the analysis.

    Raises:
        RawError: the raw data of a complete campaign is not what was measured.
    """
    if raw.sealed:
        raw.verify()
    report = analyse(raw)
    out.mkdir(parents=True, exist_ok=True)
    content = to_json(report)
    write_durably(out / JSON_NAME, content)
    write_durably(out / MARKDOWN_NAME, markdown(report).encode())
    write_durably(out / HTML_NAME, render_html(report, hashlib.sha256(content).hexdigest()).encode())
    return report


def verify(raw: RawCampaign, out: Path) -> Json:
    """Check the raw data against its sums, compute everything again, and compare with the stored report.

    Raises:
        RawError: raw data was changed.
        Mismatch: a stored number, the Markdown or the HTML does not follow from the raw data.
    """
    raw.verify()
    try:
        content = (out / JSON_NAME).read_bytes()
        stored = json.loads(content)
        text = (out / MARKDOWN_NAME).read_text(encoding="utf-8")
        page = (out / HTML_NAME).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Mismatch(f"{out}: {error}") from error
    fresh: Json = json.loads(to_json(analyse(raw)))
    differences = list(compare(stored, fresh))
    if not differences:  # else nobody knows what is in it
        differences += _differences_of_pages(stored, hashlib.sha256(content).hexdigest(), text, page)
    if differences:
        shown = "; ".join(differences[:10])
        raise Mismatch(f"{len(differences)} differences between the stored report and its raw data: {shown}")
    return fresh


def _differences_of_pages(report: Json, json_sha256: str, text: str, page: str) -> Iterable[str]:
    if text != markdown(report):
        yield f"{MARKDOWN_NAME} does not follow from {JSON_NAME}"
    if f'content="{json_sha256}"' not in page:
        yield f"{HTML_NAME} was made from another {JSON_NAME}"
    elif words(page) != words(render_html(report, json_sha256)):
        yield f"{HTML_NAME} does not say what {JSON_NAME} says"


def compare(stored: object, fresh: object, path: str = "") -> Iterable[str]:
    """Yield every place where two JSON values differ; numbers may differ by rounding."""
    if isinstance(stored, Mapping) and isinstance(fresh, Mapping):
        for key in sorted(stored.keys() | fresh.keys()):
            if key not in stored or key not in fresh:
                yield f"{path}.{key} is in one of them only"
            else:
                yield from compare(stored[key], fresh[key], f"{path}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(fresh, list):
        if len(stored) != len(fresh):
            yield f"{path}: {len(stored)} entries stored, {len(fresh)} computed"
        for i, (left, right) in enumerate(zip(stored, fresh, strict=False)):
            yield from compare(left, right, f"{path}[{i}]")
    elif _number(stored) and _number(fresh):
        if not math.isclose(float(str(stored)), float(str(fresh)), rel_tol=TOLERANCE, abs_tol=1e-12):
            yield f"{path}: {stored} stored, {fresh} computed"
    elif stored != fresh or isinstance(stored, bool) != isinstance(fresh, bool):
        yield f"{path}: {stored!r} stored, {fresh!r} computed"


def words(page: str) -> str:
    """Return what a reader of the page reads; pictures and style differ between two builds of the libraries."""
    body = page.partition("</style>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- content shared by Markdown and HTML ------------------------------------------------------------------------------


def percent(value: float | None) -> str:
    """Return a relative effect as a signed percentage; beyond tenfold the digits mean nothing."""
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if value <= TENFOLD else "over +1,000 %"


def interval(pair: Sequence[float] | None) -> str:
    """Return an interval of relative effects."""
    return "" if pair is None else f"{percent(pair[0]).removesuffix(' %')} to {percent(pair[1])}"


def unsigned(value: float | None) -> str:
    """Return a size as a percentage."""
    return percent(value).replace("+", "")


def both_ways(value: float | None) -> str:
    """Return a floor: one number while it is about the same in both directions, else its two ends."""
    return unsigned(value) if value is None or value <= SYMMETRIC else interval((downwards(value), value))


def _notes(finding: Json) -> str:
    unclear = finding["verdict"] in ("VOID", "NO_VERDICT") or finding["reason"].startswith(NOT_ALONE)
    return "; ".join([*finding["notes"], *([brief(finding["reason"])] if unclear else [])])


def plain(value: float | None, digits: int = 1) -> str:
    """Return a number, empty when there is none."""
    return "" if value is None else f"{value:,.{digits}f}"


def brief(reason: str | None, longest: int = 170) -> str:
    """Return the first sentence of a reason; the table of controls has all of it."""
    text = (reason or "").partition(". Likely")[0].partition("; V")[0]
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def findings_table(report: Json, family: str) -> Table:
    """Return the comparisons of one family."""
    head = (
        "comparison",
        "metric",
        "cell",
        "verdict",
        "effect",
        "95 % interval",
        "floor",
        "MDE80",
        "p",
        "boots",
        "note",
    )
    rows = [
        (
            f["contrast"],
            METRIC_NAMES[f["metric"]],
            f"{f['shape']} c={f['concurrency']}",
            printed(f["verdict"], f["family"]),
            percent(f["effect"]),
            interval(f["interval_95"]),
            both_ways(f["floor"]),
            both_ways(f["mde80"]),
            "" if f["p_adjusted"] is None else f"{f['p_adjusted']:.2g}",
            ", ".join(f"{n} {arm}" for arm, n in f["boots"].items()),
            _notes(f),
        )
        for f in report["findings"]
        if f["family"] == family
    ]
    return head, rows


def arms_table(report: Json) -> Table:
    """Return what the arms are."""
    head = ("arm", "studied keys", "what the engine made of it", "void because")
    rows = []
    for arm in report["arms"]:
        values = (
            ", ".join(f"{k}: {json.dumps(v)}" for k, v in arm["values"].items() if v is not None) or "as live, without"
        )
        induced = ", ".join(f"{name} {old} → {new}" for name, (old, new) in arm["induced"].items())
        role = " (broken on purpose)" if arm["positive_control"] else ""
        role = " (control)" if arm["id"] == report["campaign"]["control"] else role
        rows.append((arm["id"] + role, values, induced, brief(arm["void"])))
    return head, rows


def kv_table(report: Json) -> Table:
    """Return what every arm's KV memory holds: the price of a drafter that no throughput shows."""
    head = ("arm", "draft tokens", "KV tokens", "lost against the control")
    rows = [
        (
            row["arm"],
            str(row["k"]),
            f"{row['tokens']:,}",
            "" if row["lost"] is None else f"{row['lost']:,} ({unsigned(row['lost_share'])})" if row["lost"] else "0",
        )
        for row in report["kv"]
    ]
    return head, rows


def acceptance_table(report: Json) -> Table:
    """Return acceptance per arm and shape."""
    head = ("arm", "text", "acceptance length", "of at most", "per position", "drafts", "tokens per chunk")
    rows = [
        (
            row["arm"],
            row["shape"],
            plain(row["acceptance_length"], 2),
            str(row["k"] + 1),
            " ".join(f"{rate:.2f}" for rate in row["rates"]),
            f"{row['drafts']:,}",
            plain(row["tokens_per_chunk_mean"], 2) or "not told",
        )
        for row in report["acceptance"]
    ]
    return head, rows


def steps_table(report: Json) -> Table:
    """Return step times and break-even."""
    head = ("arm", "cell", "ms per step", "acceptance length", "breaks even at", "above it (no floor: decides nothing)")
    rows = [
        (
            row["arm"],
            f"{row['shape']} c={row['concurrency']}",
            plain(row["step_ms"], 2),
            plain(row["acceptance_length"], 2),
            plain(row["break_even"], 2),
            "void"
            if row["void"]
            else ""
            if row["break_even"] is None
            else "yes"
            if row["acceptance_length"] > row["break_even"]
            else "no",
        )
        for row in report["steps"]
        if row["arm"] != report["campaign"]["control"]
    ]
    return head, rows


def latency_table(report: Json) -> Table:
    """Return percentiles."""
    head = ("arm", "cell", "requests", "first token p50 / p90 / p99, ms", "per token p50 / p90 / p99, ms")

    def three(found: Mapping[str, float | None]) -> str:
        if found["p50"] is None:
            return "n too small"
        return " / ".join("n too small" if found[p] is None else plain(found[p]) for p in ("p50", "p90", "p99"))

    rows = [
        (
            row["arm"],
            f"{row['shape']} c={row['concurrency']}",
            str(row["n"]),
            three(row["ttft_ms"]),
            three(row["tpot_ms"]),
        )
        for row in report["latency"]
    ]
    return head, rows


def tool_calls_table(report: Json) -> Table:
    """Return how many tool calls fitted what was offered: speculation has corrupted them (vllm #41967, #35800)."""
    head = ("arm", "answers with tools offered", "calls that fit")
    return head, [(row["arm"], str(row["n"]), f"{100 * row['ok']:.1f} %") for row in report["tool_calls"]]


def components_table(report: Json) -> Table:
    """Return where the noise is."""
    head = ("cell", "between boots", "inside a boot", "what would help", "best repetitions per boot")
    rows = [
        (
            f"{row['shape']} c={row['concurrency']}",
            unsigned(row["boot_sd"]),
            unsigned(row["repetition_sd"]),
            row["advice"],
            "" if row["repetitions"] is None else str(row["repetitions"]),
        )
        for row in report["components"]
    ]
    return head, rows


def amortization_table(report: Json) -> Table:
    """Return the three accounts of a dense lever."""
    head = ("text", "rule of thumb X/AL", "identity S/(T-S)", "measured", "95 % interval", "the identity is")
    rows = [
        (row["shape"], row["refused"], "", "", "", "")
        if "refused" in row
        else (
            row["shape"],
            percent(row["naive"]),
            percent(row["mechanistic"]),
            percent(row["measured"]),
            interval(row["interval_95"]),
            row["label"],
        )
        for row in report["amortization"]
    ]
    return head, rows


def checks_table(report: Json, statuses: Sequence[str]) -> Table:
    """Return the controls with one of these outcomes, equal ones of several boots in one row."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for check in report["checks"]:
        if check["status"] in statuses:
            key = (check["rule"], check["title"], check["status"], check["detail"])
            merged.setdefault(key, []).append(check["subject"])
    rows = [(rule, title, status, _subjects(names), detail) for (rule, title, status, detail), names in merged.items()]
    return ("rule", "control", "outcome", "boot or arm", "detail"), rows


def _subjects(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} boots or arms"


def boots_table(report: Json) -> Table:
    """Return the boots in order."""
    head = ("boot", "arm", "started (UTC)", "READY after, s", "block", "void because")
    rows = [
        (b["boot"], b["arm"], b["started_utc"][:19], plain(b["ready_s"]), str(b["block"] + 1), brief(b["void"]))
        for b in report["boots"]
    ]
    return head, rows


def facts(report: Json) -> list[tuple[str, str]]:
    """Return what a reader needs to place the numbers."""
    campaign = report["campaign"]
    primary = campaign["primary"]
    cells = ", ".join(f"{shape} c={c}" for shape in primary["shapes"] for c in primary["concurrency"])
    found = [
        ("Question", campaign["question"]),
        ("Seat", f"{campaign['seat']} on {campaign['host']}, {campaign['placement']}"),
        ("Begun", campaign["created_utc"]),
        ("Studied", ", ".join(campaign["studied_keys"])),
        ("Decided by", f"{METRIC_NAMES[primary['metric']]} in {cells} (declared before measuring, Holm-corrected)"),
        ("Order of boots", " ".join(campaign["order"])),
        ("Margin that matters", f"{100 * campaign['margin']:.1f} %"),
        ("Sampling", ", ".join(f"{k} {v:g}" for k, v in campaign["sampling"].items())),
        ("Compile caches", f"{campaign['compile_cache']}, one per arm"),
    ]
    if campaign["overrides"]:
        same = ", ".join(f"{k}: {v}" for k, v in campaign["overrides"].items())
        found.append(("Set alike in every arm", same))
    if campaign["gaps"]:
        gaps = ", ".join(f"{gap['gap_s']:.0f} s before boot {gap['before_slot'] + 1}" for gap in campaign["gaps"])
        found.append(("Pauses", f"{gaps}; an extra control boot and a term per block take them out"))
    if campaign["redone"]:
        boots = ", ".join(f"{entry['boot']} ({entry['reason']})" for entry in campaign["redone"])
        found.append(("Measured again by hand", boots))
    if campaign["aborted"]:
        boots = ", ".join(f"{entry['boot']} ({brief(entry['reason'], 80)})" for entry in campaign["aborted"])
        found.append(("Begun, not ended, measured again", boots))
    if campaign["mode"] == "screen":
        found.append(("What this design can see", "a screen decides nothing: its floor is 11.0 times |off_A - off_B|"))
    elif campaign["design"]:
        design = campaign["design"]
        found.append(
            (
                "What this design can see",
                f"{design['boots']} boots: a floor of {design['floor']:.2f} and an 80 % chance at "
                f"{design['mde80']:.2f} standard deviations between boots, if all arms are equally noisy",
            )
        )
    return found


HOW_TO_READ = (
    "The unit is the boot: kernels are chosen when a server starts, so repetitions inside one start are not "
    "independent. Effects are ratios to the control. **Floor**: smaller effects cannot be told from none by this many "
    "boots. "
    "**MDE80**: an effect of this size would be beyond its floor four times in five. **WIN** and **LOSS** hold for "
    "the whole declared family at once. **EQUIVALENT**: the 90 % interval lies inside the margin. **CANNOT_RESOLVE** "
    "is not equality; it names the floor. **VOID**: the arm or boot measured something else than it claims. "
    "**NO_VERDICT**: a control of the whole campaign failed."
)


def _reproduce(report: Json) -> str:
    return f"seatctl campaign report {report['campaign']['id']} --verify"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def _markdown_table(table: Table) -> str:
    head, rows = table
    if not rows:
        return "none\n"

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

    return line(head) + line("---" for _ in head) + "".join(line(row) for row in rows)


def markdown(report: Json) -> str:
    """Return the report as Markdown, without plots."""
    campaign = report["campaign"]
    parts = [
        f"# {campaign['name']} on {campaign['seat']}: {campaign['question']}\n",
        f"**{report['answer']}**\n",
        "".join(f"- {name}: {text}\n" for name, text in facts(report)[1:]),
        f"{HOW_TO_READ}\n",
    ]
    for title, table in _sections(report):
        if table[1]:
            parts.append(f"## {title}\n\n{_markdown_table(table)}")
    parts += [f"{sentence}\n" for sentence in report["sentences"]]
    parts.append(f"## Provenance\n\n```json\n{json.dumps(report['provenance'], indent=1)}\n```\n")
    parts.append(f"Computed again from the raw data by `{_reproduce(report)}`.\n")
    return "\n".join(parts)


def _sections(report: Json) -> list[tuple[str, Table]]:
    return [
        ("What was decided", findings_table(report, "primary")),
        ("What was compared", arms_table(report)),
        ("KV memory", kv_table(report)),
        ("Acceptance", acceptance_table(report)),
        ("Step time and break-even", steps_table(report)),
        ("Tool calls", tool_calls_table(report)),
        ("Dense lever under speculation", amortization_table(report)),
        ("Controls that did not pass", checks_table(report, ("fail", "void", "flag", "not checked"))),
        ("Exploratory comparisons (not corrected, decide nothing)", findings_table(report, "exploratory")),
        ("Waits and times per token", latency_table(report)),
        ("Where the noise is", components_table(report)),
        ("Boots", boots_table(report)),
        ("Controls that passed", checks_table(report, ("pass",))),
    ]


# --- HTML -------------------------------------------------------------------------------------------------------------

_CSS = """
:root { --ink: #1c1f23; --soft: #5b6470; --line: #e3e6ea; --paper: #fff; --wash: #f6f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 24px 64px; background: var(--paper); }
h1 { font-size: 25px; line-height: 1.25; margin: 4px 0 14px; }
h2 { font-size: 18px; margin: 38px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
.kicker { color: var(--soft); font-size: 13px; letter-spacing: .02em; }
.answer { font-size: 18px; line-height: 1.45; padding: 14px 18px; border-left: 5px solid #777;
  background: var(--wash); }
.answer.WIN { border-color: #0a7d4b; background: #eef8f2; } .answer.LOSS { border-color: #b3261e; background: #fdf1f0; }
.answer.EQUIVALENT { border-color: #33628f; background: #f0f5fa; }
.answer.NO_VERDICT, .answer.VOID { border-color: #8a5a00; background: #fdf6e8; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 18px 0; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 2px solid var(--line); padding: 5px 8px; }
td { border-bottom: 1px solid var(--line); padding: 5px 8px; vertical-align: top; font-variant-numeric: tabular-nums; }
td.wide { min-width: 190px; max-width: 420px; overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 1px 8px; border-radius: 9px; font-size: 12px; font-weight: 600; color: #fff;
  background: #777; white-space: nowrap; }
.badge.WIN, .badge.pass { background: #0a7d4b; } .badge.LOSS, .badge.fail { background: #b3261e; }
.badge.EQUIVALENT { background: #33628f; }
.badge.VOID, .badge.void, .badge.NO_VERDICT, .badge.flag, .badge.SCREEN_CANDIDATE { background: #8a5a00; }
figure { margin: 22px 0; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 13px; margin-top: 6px; max-width: 80ch; }
details { margin: 14px 0; } summary { cursor: pointer; font-weight: 600; }
pre { background: var(--wash); padding: 12px; overflow-x: auto; font-size: 12.5px; }
.note { color: var(--soft); font-size: 14px; max-width: 88ch; }
@media print { body { background: #fff; } main { max-width: none; } details > * { display: block; } }
"""
_VERDICTS = ("WIN", "LOSS", "EQUIVALENT", "CANNOT_RESOLVE", "SCREEN_CANDIDATE", "VOID", "NO_VERDICT")
_BADGES = frozenset({*_VERDICTS, "pass", "fail", "void", "flag", "not checked"})
_WIDE = 46


def _html_table(table: Table) -> str:
    head, rows = table
    if not rows:
        return "<p class=note>None.</p>"

    def cell(text: str) -> str:
        if text in _BADGES:
            return f'<td><span class="badge {html.escape(text)}">{html.escape(text)}</span></td>'
        wide = ' class="wide"' if len(text) > _WIDE else ""
        return f"<td{wide}>{html.escape(text)}</td>"

    body = "".join("<tr>" + "".join(cell(str(text)) for text in row) + "</tr>\n" for row in rows)
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    return f"<div class=scroll><table><thead><tr>{titles}</tr></thead><tbody>\n{body}</tbody></table></div>"


def _strong(text: str) -> str:
    parts = html.escape(text).split("**")
    return "".join(f"<b>{part}</b>" if i % 2 else part for i, part in enumerate(parts))


def _tone(report: Json) -> str:
    """Return the verdict that colours the answer; none where the declared family holds both a gain and a loss."""
    given = {f["verdict"] for f in report["findings"] if f["family"] == "primary"}
    if {"WIN", "LOSS"} <= given:
        return "mixed"
    return next((verdict for verdict in _VERDICTS if verdict in given), "NO_VERDICT")


def render_html(report: Json, json_sha256: str) -> str:
    """Return the report as one HTML file: no script, no reference to anything outside."""
    campaign = report["campaign"]
    drawn = draw(report)

    def figure(name: str) -> str:
        if name not in drawn:
            return ""
        caption, svg = drawn[name]
        data = base64.b64encode(svg.encode()).decode()
        alt = html.escape(caption.partition(".")[0])
        return (
            f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>\n"
        )

    def section(title: str, table: Table, *figures: str) -> str:
        plots = "".join(figure(name) for name in figures)
        if not table[1] and not plots:
            return ""
        return f"<h2>{html.escape(title)}</h2>\n{_html_table(table) if table[1] else ''}\n{plots}"

    counts: dict[str, int] = {}
    for check in report["checks"]:
        counts[check["status"]] = counts.get(check["status"], 0) + 1
    tally = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    facts_html = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts(report)[1:])
    sentences = "".join(f"<p class=note>{html.escape(text)}</p>" for text in report["sentences"])

    def fold(title: str, body: str) -> str:
        return f"<details><summary>{html.escape(title)}</summary>{body}</details>"

    body = "\n".join(
        [
            f"<p class=kicker>Campaign {html.escape(campaign['name'])} · {html.escape(campaign['id'])}</p>",
            f"<h1>{html.escape(campaign['question'])}</h1>",
            f'<p class="answer {_tone(report)}">{html.escape(report["answer"])}</p>',
            f"<dl>{facts_html}</dl>",
            section("What was decided", findings_table(report, "primary"), "forest", "throughput"),
            f"<p class=note>{_strong(HOW_TO_READ)}</p>",
            section("What was compared", arms_table(report)),
            section("KV memory", kv_table(report)),
            section("Why: step time and break-even", steps_table(report), "break-even", "steps"),
            sentences,
            section("Acceptance of drafts", acceptance_table(report), "acceptance", "chunks"),
            section("Tool calls", tool_calls_table(report)),
            section("Dense lever under speculation", amortization_table(report)),
            section(
                f"Controls ({tally})",
                checks_table(report, ("fail", "void", "flag", "not checked")),
                "drift",
                "telemetry",
            ),
            fold("Controls that passed", _html_table(checks_table(report, ("pass",)))),
            section("Waits and times per token", latency_table(report), "latency"),
            section("Where the noise is", components_table(report), "components"),
            "<h2>Everything else that was measured</h2>",
            fold(
                "Exploratory comparisons (not corrected, they decide nothing)",
                _html_table(findings_table(report, "exploratory")),
            ),
            section("Boots", boots_table(report)),
            "<h2>Provenance</h2>",
            f"<pre>{html.escape(json.dumps(report['provenance'], indent=1))}</pre>",
            f"<p class=note>Client {campaign['client_sha256'][:12]}, live deployment "
            f"{html.escape(campaign['source'])}. Every number is computed again from the raw data by "
            f"<code>{html.escape(_reproduce(report))}</code>.</p>",
        ]
    )
    title = html.escape(f"{campaign['name']} on {campaign['seat']}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="report-json-sha256" content="{json_sha256}">'
        f"<title>{title}</title><style>{_CSS}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )
