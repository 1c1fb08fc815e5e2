"""The patch series of this repository as data: what they claim, what releases choose, what an install has to prove."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from seatfleet.core.release import installs, patches
from seatfleet.core.release.patches import Series
from seatfleet.core.release.releases import load_release, read_release

PROJECT = Path(__file__).resolve().parents[2]
SERIES = {path.parent.name: path for path in sorted(PROJECT.glob("files/patches/*/series.yml"))}
RELEASES = yaml.safe_load((PROJECT / "group_vars/all/releases.yml").read_text())["releases"]


def load(name: str) -> Series:
    return patches.load_series(yaml.safe_load(SERIES[name].read_text()), name)


@pytest.mark.parametrize("name", SERIES)
def test_every_diff_is_the_recorded_one_and_says_what_it_changes(name: str) -> None:
    series = load(name)
    assert name == series.label
    for patch, text in zip(series.patches, patches.load_diffs(SERIES[name].parent, series).values(), strict=True):
        assert patches.sha256_of(text.encode()) == patch.sha256, f"{patch.file}: the GPU evidence is of another diff"
        assert patch.red_without, f"{patch.name}: no test is named that is red without it"
    assert {path.name for path in SERIES[name].parent.glob("*.patch")} == {patch.file for patch in series.patches}


def test_what_no_gpu_has_seen_says_so() -> None:
    """vLLM 0.33.0 was on no GPU; of 0.23.0 neither anything of sm_12x nor MTP was."""
    unseen = list(load("vllm-0.33.0").patches)
    unseen += [p for p in load("vllm-0.23.0").patches if "H200" not in p.tested]
    assert [patch.name for patch in unseen if "CPU-tested only" not in patch.tested] == []
    assert {p.name for p in load("vllm-0.23.0").patches if "CPU-tested only" in p.tested} == {
        "fla-shared-memory",
        "mamba-hit-length",
        "speculative-compile-key",
    }


ORACLES = {
    "0.23.0+gb10.1": ["--method", "dflash", "--method", "mtp"],
    "0.33.0+gb10.1": ["--method", "dflash"],
    "0.33.0+rtx.1": [],
    "0.32.0+cpu.1": [],
}


@pytest.mark.parametrize("name", RELEASES)
def test_an_install_proves_the_prefix_hits_that_its_patches_are_about(name: str) -> None:
    entry = RELEASES[name]
    release = load_release(read_release(PROJECT, name, entry, next(iter(entry["locks"])), yaml.safe_load))
    assert installs.oracle_arguments(release) == ORACLES[name]
