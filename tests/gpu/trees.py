"""Make one tree per patch state from ROOT/site: ``trees.py ROOT``; files are hard links, as an installer leaves them.

stock   the wheel as it is
seed    the public pair of patches this project started from (``seed-pair.patch``)
ours    the series, applied with the project's own tool
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import yaml

from seatfleet.core.release import patches, unified_diff

PARTS = ("vllm", "vllm-0.23.0.dist-info")


def main() -> int:
    """Make ROOT/trees/{stock,seed,ours}."""
    root = Path(sys.argv[1])
    for name in ("stock", "seed", "ours"):
        for part in PARTS:
            shutil.copytree(root / "site" / part, root / "trees" / name / part, copy_function=os.link)
    for part in PARTS:
        shutil.rmtree(root / "site" / part)
    for path, diff in unified_diff.parse((root / "proof/seed-pair.patch").read_text()).items():
        target = root / "trees/seed" / path
        text = unified_diff.apply(path, target.read_text(), diff.hunks)
        target.unlink()
        target.write_text(text)
    series = patches.load_series(yaml.safe_load((root / "series/series.yml").read_text()))
    series = patches.select(series)
    site = root / "trees/ours"
    patches.apply(site, series, patches.load_diffs(root / "series", series))
    patches.verify(site, series)
    return 0


if __name__ == "__main__":
    sys.exit(main())
