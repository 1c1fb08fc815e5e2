"""The worked example of the documents, run as it is written: every block, in order, in one copy of the project."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from labrun import LAB, PROJECT, Lab

PAGE = PROJECT / "docs/example.md"
# A heading, or the commands of a block.
PART = re.compile(r"^## ([^\n]+)$|^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The lab and the tooling of this run stand in for those that the page makes; real hardware stays out.
HERE = {"make demo": "tests/integration/demo", "make lab-down": "lab/lab list"}


def test_the_worked_example(lab: Lab, tmp_path: Path) -> None:
    text = PAGE.read_text().split("## The same on real machines")[0]
    script = "\n".join(
        f'echo "== $SECONDS s: {heading}"' if heading else "\n".join(HERE.get(line, line) for line in block.split("\n"))
        for heading, block in PART.findall(text)
    )
    copy = lab.edited(tmp_path / "project", [])
    environment = {**copy.environment, "SEATFLEET_LAB": str(LAB)}
    done = subprocess.run(
        ["bash", "-exc", script], cwd=copy.project, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]
    # What the table of durations on the page is made from; shown by pytest -rP.
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith("== ")))
    assert "AL 1.00" in done.stdout
    assert "is back and READY" in " ".join(done.stdout.split())
    assert "known failure" in done.stdout or "last failed probe" in done.stdout
    listed = lab.host("fv-ml1", "ls", "/etc/vllm/seats", check=False).output
    assert "flash-next" not in listed
