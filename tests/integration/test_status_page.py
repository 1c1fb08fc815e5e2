"""The HTML page of the fleet's state in a real browser: everything has a place, nothing overflows, nothing is loaded.

Needs Chromium (``make browser``). ``SEATFLEET_SCREENSHOT=FILE`` keeps the picture that docs/observability.md shows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.report.status_page import page

ROWS = Path(__file__).parent / "data" / "status.json"
# Runs in a copy of the page only: the page itself has no script. The title carries the answer out of the browser.
MEASURE = """<script>addEventListener("load", () => { const box = e => e.getBoundingClientRect();
  const texts = [...document.querySelectorAll("svg text")];
  document.title = JSON.stringify({
    wide: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    plots: [...document.querySelectorAll("svg")].map(e => [box(e).width, box(e).height]),
    marks: document.querySelectorAll("svg rect, svg circle").length,
    outside: texts.filter(e => { const t = box(e), s = box(e.ownerSVGElement);
      return t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 2 || t.bottom > s.bottom + 3; }).length,
    rows: document.querySelectorAll("tbody tr").length,
    loaded: performance.getEntriesByType("resource").map(e => e.name),
    readable: [...document.querySelectorAll("td, li, h2")].every(e => box(e).height > 10),
  }); });</script></body>"""


def chromium(*arguments: str) -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "there is no Chromium: make browser"
    command = [found, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def measured(html: str, width: int, directory: Path) -> Mapping[str, Any]:
    file = directory / "measured.html"
    file.write_text(html.replace("</body>", MEASURE))
    dom = chromium(
        f"--user-data-dir={directory / 'profile'}", f"--window-size={width},900", "--dump-dom", f"file://{file}"
    )
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert title
    answer: Mapping[str, Any] = json.loads(unescape(title[1]))
    return answer


@pytest.mark.parametrize("width", [1600, 800])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    rows = json.loads(ROWS.read_text())
    seen = measured(page(rows), width, tmp_path)
    assert seen["wide"] <= seen["view"], "the page is wider than the window"
    assert seen["rows"] == len(rows)
    assert len(seen["plots"]) == 3 * sum(1 for row in rows if row["history"])
    assert all(wide > 150 and high > 40 for wide, high in seen["plots"])
    assert seen["marks"] >= sum(len(row["history"]) for row in rows)
    assert seen["outside"] == 0, "a label lies outside of its plot"
    assert seen["loaded"] == []
    assert seen["readable"]


def test_the_check_notices_a_page_that_is_broken(tmp_path: Path) -> None:
    rows = json.loads(ROWS.read_text())
    broken = page(rows).replace("overflow-x: auto", "overflow: visible").replace("max-width: 100rem", "width: 4000px")
    assert measured(broken, 1600, tmp_path)["wide"] > 1600


def test_the_picture(tmp_path: Path) -> None:
    file, picture = tmp_path / "page.html", Path(os.environ.get("SEATFLEET_SCREENSHOT") or tmp_path / "page.png")
    file.write_text(page(json.loads(ROWS.read_text())))
    chromium(
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1680,900", f"--screenshot={picture}", f"file://{file}"
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000, "blank"
