"""The worked example of the documents, run as it is written: every block, in order, in one copy of the project."""

from __future__ import annotations

import re
from pathlib import Path

from documented import EXAMPLE
from labrun import Lab

# A heading, or the commands of a block.
PART = re.compile(r"^## ([^\n]+)$|^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The lab and the tooling of this run stand in for those that the page makes; real hardware stays out.
HERE = {"make demo": "tests/integration/demo", "make lab-down": "lab/lab list"}


def test_the_worked_example(lab: Lab, tmp_path: Path) -> None:
    text = EXAMPLE.read_text().split("## The same on real machines")[0]
    script = "\n".join(
        f'echo "== $SECONDS s: {heading}"' if heading else "\n".join(HERE.get(line, line) for line in block.split("\n"))
        for heading, block in PART.findall(text)
    )
    done = lab.edited(tmp_path / "project", []).run("bash", "-exc", script, check=False, timeout_s=2 * 3600)
    assert done.code == 0, done.output[-20_000:]
    # What the table of durations on the page is made from; shown by pytest -rP.
    print("\n".join(line for line in done.output.splitlines() if line.startswith("== ")))
    assert "AL 1.00" in done.output
    assert "is back and READY" in " ".join(done.output.split())
    assert "known failure" in done.output or "last failed probe" in done.output
    listed = lab.host("fv-ml1", "ls", "/etc/vllm/seats", check=False).output
    assert "flash-next" not in listed
