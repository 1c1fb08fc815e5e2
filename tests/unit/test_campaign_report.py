from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from campaign_raw import MTP, World, make_raw
from matplotlib.axes import Axes

from seatfleet.campaign.plots import forest
from seatfleet.campaign.rawdata import RawCampaign, RawError
from seatfleet.campaign.report import (
    Mismatch,
    _tone,
    both_ways,
    brief,
    compare,
    facts,
    findings_table,
    markdown,
    render_html,
    steps_table,
    tool_calls_table,
    verify,
    write_report,
)

EVIDENCE = Path(__file__).resolve().parents[2] / "docs/evidence"
SPEED = {"k1": 0.62, "k2": 0.40, "k3": 0.20}


def telemetry(slot: object) -> list[str]:
    return [f"{i},0,1000,2600,9000,60,,300,99,0x0000000000000000,120,20" for i in range(20)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RawCampaign:
    from campaign_raw import WRITTEN

    arms = {**WRITTEN["arms"], "bad": {"speculative-config": {**MTP, "model": "/<b>bad"}}}
    world = World(speed={**SPEED, "bad": 0.4}, accepted={"bad": 0}, telemetry=telemetry)
    facts = {"experts": 512, "active_experts": 10, "host_table": True}
    raw = make_raw(
        tmp_path_factory.mktemp("report") / "c", world, arms=arms, positive_controls=["bad"], reps=2, model_facts=facts,
        question="Is MTP <faster> & better?",
    )  # fmt: skip
    write_report(raw, raw.path / "report")
    return raw


@pytest.fixture
def raw(finished: RawCampaign, tmp_path: Path) -> RawCampaign:
    import shutil

    shutil.copytree(finished.path, tmp_path / "c")
    return RawCampaign(tmp_path / "c")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(raw: RawCampaign) -> _Page:
    parsed = _Page()
    parsed.feed((raw.path / "report/report.html").read_text())
    assert parsed.open == []
    return parsed


def test_the_page_needs_nothing_else(finished: RawCampaign):
    parsed = page(finished)
    sources = [attrs.get("src") or "" for tag, attrs in parsed.tags if tag == "img"]
    assert len(sources) == 10 and all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert {tag for tag, _ in parsed.tags} & {"script", "link", "iframe"} == set()
    for source in sources:
        svg = base64.b64decode(source.partition(",")[2]).decode()
        ET.fromstring(svg)
        assert not re.search(r'(href|src)="(?!#)', svg)


def test_the_answer_comes_first_and_every_number_has_its_floor(finished: RawCampaign):
    parsed = page(finished)
    text = re.sub(r"\s+", " ", parsed.text)
    answer = text.index("k1 against off: better at tool c=1")
    assert answer < text.index("What was decided") < text.index("What was compared") < text.index("Provenance")
    for words in (
        "CANNOT_RESOLVE is not equality",
        "floor",
        "breaks even at",
        "3.9 times the expert weights",
        "--verify",
    ):
        assert words in text
    assert "Is MTP <faster> & better?" in text and "bad (broken on purpose)" in text


def test_markdown_says_the_same(finished: RawCampaign):
    text = (finished.path / "report/report.md").read_text()
    assert text.startswith("# mtp on flash-next: Is MTP <faster> & better?")
    assert "| k1-vs-off | output tokens/s, all streams | tool c=1 | WIN |" in text
    assert "| k1 | 1 | 15,200 | 800 (5.0 %) |" in text and "| off | 0 | 16,000 | 0 |" in text
    assert text.index("## What was decided") < text.index("## Exploratory")
    assert all(line.count("|") == lines[0].count("|") for lines in _tables(text) for line in lines)


def _tables(text: str) -> list[list[str]]:
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [[line.replace("\\|", "") for line in block] for block in blocks if block[0].startswith("|")]


def test_a_report_is_verified_against_its_raw_data(finished: RawCampaign):
    verify(finished, finished.path / "report")


def tamper_number(raw: RawCampaign) -> None:
    path = raw.path / "report/report.json"
    report = json.loads(path.read_text())
    report["findings"][0]["effect"] += 0.001
    path.write_text(json.dumps(report))


def tamper_markdown(raw: RawCampaign) -> None:
    path = raw.path / "report/report.md"
    path.write_text(path.read_text().replace("WIN", "LOSS", 1))


def tamper_html(raw: RawCampaign) -> None:
    path = raw.path / "report/report.html"
    path.write_text(
        path.read_text().replace('name="report-json-sha256" content="', 'name="report-json-sha256" content="0')
    )


def tamper_raw(raw: RawCampaign) -> None:
    (raw.path / "boots/00_off_1/boot.json").write_text("{}")


@pytest.mark.parametrize(
    ("tamper", "error", "message"),
    [
        (tamper_number, Mismatch, r"findings\[0\].effect: .* stored, .* computed"),
        (tamper_markdown, Mismatch, "report.md does not follow"),
        (tamper_html, Mismatch, "report.html was made from another"),
        (tamper_raw, RawError, "boot.json was changed"),
        (lambda raw: (raw.path / "report/report.json").unlink(), Mismatch, "No such file"),
        (lambda raw: (raw.path / "report/report.json").write_text("{"), Mismatch, "report"),
    ],
)
def test_a_changed_report_or_changed_raw_data_is_found(
    raw: RawCampaign, tamper: object, error: type[Exception], message: str
):
    tamper(raw)
    with pytest.raises(error, match=message):
        verify(raw, raw.path / "report")


@pytest.mark.parametrize(
    ("stored", "fresh", "differences"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, []),
        ({"a": 1.0}, {"a": 1.0001}, ["a: 1.0 stored, 1.0001 computed"]),
        ({"a": 1}, {"a": True}, ["a: 1 stored, True computed"]),
        ({"a": 1}, {"b": 1}, [".a is in one of them only", ".b is in one of them only"]),
        ([1, 2], [1], [": 2 entries stored, 1 computed"]),
        ({"a": [None]}, {"a": [0]}, ["a[0]: None stored, 0 computed"]),
    ],
)
def test_reports_are_compared_place_by_place(stored: object, fresh: object, differences: list[str]):
    assert list(compare(stored, fresh)) == differences


def test_the_same_raw_data_gives_the_same_files(raw: RawCampaign):
    before = {p.name: p.read_bytes() for p in (raw.path / "report").iterdir()}
    write_report(raw, raw.path / "report")
    assert {p.name: p.read_bytes() for p in (raw.path / "report").iterdir()} == before


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (None, ""),
        ("V2 counting: AL 1.00. Likely: the head is not loaded", "V2 counting: AL 1.00"),
        ("V2 a; V3 b", "V2 a"),
        ("x" * 200, "x" * 169 + "…"),
    ],
)
def test_reasons_are_shortened_in_tables(reason: str | None, short: str):
    assert brief(reason) == short


def test_a_campaign_with_nothing_valid_still_has_a_report(tmp_path: Path):
    broken = make_raw(tmp_path / "c", World(accepted={"k1": 0, "k2": 0, "k3": 0}))
    report = write_report(broken, tmp_path / "out")
    assert {f["verdict"] for f in report["findings"]} == {"VOID"}
    assert (tmp_path / "out/report.html").exists() and "void at tool c=1" in report["answer"]


def test_a_page_that_says_something_else_is_found(raw: RawCampaign):
    """The hash of the numbers in it is right, and the numbers are not."""
    path = raw.path / "report/report.html"
    page = path.read_text()
    path.write_text(page.replace("better at tool", "much better at tool"))
    with pytest.raises(Mismatch, match=r"report\.html does not say what report\.json says"):
        verify(raw, raw.path / "report")
    path.write_text(re.sub(r"<style>.*?</style>", "<style></style>", page, flags=re.S))
    verify(raw, raw.path / "report")


def test_a_void_arm_pays_nowhere(finished: RawCampaign):
    report = json.loads((finished.path / "report/report.json").read_text())
    assert {row[-1] for row in steps_table(report)[1] if row[0] == "bad"} == {"void"}


def test_a_boot_that_was_measured_again_is_in_the_facts(finished: RawCampaign):
    report = json.loads((finished.path / "report/report.json").read_text())
    report["campaign"]["redone"] = [{"boot": "08_off_3", "reason": "too slow"}]
    assert ("Measured again by hand", "08_off_3 (too slow)") in facts(report)


def test_a_report_is_not_made_of_raw_data_that_was_changed(raw: RawCampaign):
    tamper_raw(raw)
    with pytest.raises(RawError, match="raw data changed since it was measured"):
        write_report(raw, raw.path / "report")


def test_boots_that_did_not_end_are_in_the_facts(finished: RawCampaign):
    report = json.loads((finished.path / "report/report.json").read_text())
    report["campaign"]["aborted"] = [{"boot": "03_k3_1", "reason": "interrupted by SIGTERM"}]
    assert ("Begun, not ended, measured again", "03_k3_1 (interrupted by SIGTERM)") in facts(report)


def test_floors_are_printed_as_far_as_they_reach_in_both_directions():
    assert (both_ways(0.0235), both_ways(1.316), both_ways(None)) == ("2.4 %", "-56.8 to +131.6 %", "")


def test_an_exploratory_win_is_not_printed_like_one(finished: RawCampaign):
    """Of 100 uncorrected comparisons without any effect, five look like this."""
    report = json.loads((finished.path / "report/report.json").read_text())
    decided = {row[3] for row in findings_table(report, "primary")[1]}
    explored = {row[3] for row in findings_table(report, "exploratory")[1]}
    assert "WIN" in decided and "WIN (uncorrected)" in explored and not {"WIN", "LOSS", "EQUIVALENT"} & explored


@pytest.mark.parametrize(
    ("given", "tone"), [(["WIN", "VOID"], "WIN"), (["LOSS", "CANNOT_RESOLVE"], "LOSS"), (["WIN", "LOSS"], "mixed")]
)
def test_the_colour_of_an_answer_is_not_that_of_its_better_half(given: list[str], tone: str):
    assert _tone({"findings": [{"verdict": verdict, "family": "primary"} for verdict in given]}) == tone


def test_how_often_tool_calls_fitted_is_in_both_pages(finished: RawCampaign):
    report = json.loads((finished.path / "report/report.json").read_text())
    report["tool_calls"] = [{"arm": "k1", "n": 48, "ok": 0.875}]
    assert tool_calls_table(report)[1] == [("k1", "48", "87.5 %")]
    assert "| k1 | 48 | 87.5 % |" in markdown(report) and "87.5 %" in render_html(report, "0")


def test_the_bar_of_a_floor_ends_where_the_floor_ends(finished: RawCampaign):
    """Drawn as plus and minus the same percentage, a certain loss would lie on the grey."""
    drawn: list[tuple[float, float]] = []

    def barh(self: Axes, y: object, width: float, left: float = 0.0, **_: object) -> None:
        drawn.append((left, left + width))

    report = json.loads((finished.path / "report/report.json").read_text())
    for found in report["findings"]:
        found["floor"] = 3.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Axes, "barh", barh)
        forest(report)
    assert drawn and {(round(low), round(high)) for low, high in drawn} == {(-75, 300)}


def test_a_report_that_lacks_something_differs(raw: RawCampaign):
    path = raw.path / "report/report.json"
    content = json.loads(path.read_text())
    del content["campaign"]["redone"], content["steps"]
    path.write_text(json.dumps(content))
    with pytest.raises(Mismatch, match=r"campaign\.redone is in one of them only"):
        verify(raw, raw.path / "report")


@pytest.mark.parametrize("kept", sorted(EVIDENCE.glob("campaign-*/*/campaign.json")), ids=lambda file: file.parent.name)
def test_reports_that_are_kept_as_evidence_still_follow_from_their_raw_data(kept: Path):
    verify(RawCampaign(kept.parent), kept.parent / "report")
