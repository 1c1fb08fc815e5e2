"""Patched files of an installed release.

verify RELEASE compares every file that the release's series patches with its sha256. The unit of a seat does so before
each start, because a later ``pip install`` takes patches away without a word.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "patched files of an installed release"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    verify = actions.add_parser("verify")
    verify.add_argument(
        "release", type=Path, help="directory of the release, for example /opt/vllm/releases/0.33.0-..."
    )


def run(args: argparse.Namespace) -> int:
    """Verify; 1 when a file is not what the series says, 2 when there is no such release."""
    import json

    from seatfleet.core.patches import PatchError, load_series, verify
    from seatfleet.core.problems import Problem, ProblemsError
    from seatfleet.core.releases import MARKER, SERIES

    release = args.release.resolve()
    if not (release / MARKER).is_file():
        raise ProblemsError([Problem(str(release), "", MARKER, "an installed release", "no such file")])
    if not (release / SERIES).is_file():
        print(f"{release.name}: no patches")
        return 0
    series = load_series(json.loads((release / SERIES).read_text(encoding="utf-8")), str(release / SERIES))
    (site,) = release.glob("lib/python3.*/site-packages")
    try:
        verify(site, series)
    except PatchError as error:
        for problem in error.problems:
            print(f"seatctl: error: {problem}", file=sys.stderr)
        return 1
    print(f"{release.name}: {len(series.patches)} patches in place")
    return 0
