"""Every shipped series against the real wheel it is for."""

import json
import shutil

import pytest
from patch_trees import PROJECT, SERIES, series_of

from seatfleet.cli import main
from seatfleet.commands.patch import Wheel
from seatfleet.core import patch_survey, patches

NAMES = sorted(path.parent.name for path in (PROJECT / "files/patches").glob("*/series.yml"))


def test_every_series_has_a_wheel_to_be_tested_on():
    assert sorted(SERIES) == NAMES


@pytest.fixture
def site(pristine, request, tmp_path):
    """A writable copy of what the series touches, as installed."""
    source = pristine(request.param)
    for path in (
        *series_of(request.param).chains(),
        *(f"{p.parent.name}/{p.name}" for p in source.glob("*.dist-info/*")),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if (source / path).is_file():
            shutil.copyfile(source / path, tmp_path / path)
    return tmp_path


def contents(site):
    return {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}


@pytest.mark.parametrize("site", NAMES, indirect=True)
def test_series_applies_verifies_and_reverts_on_the_real_files(site, request, capsys):
    name = request.node.callspec.params["site"]
    series, folder = series_of(name), PROJECT / "files/patches" / name
    record = patches.record_hashes((site / f"{name}.dist-info/RECORD").read_bytes())
    for path, chain in series.chains().items():
        assert chain[0][1].before == record.get(path), f"{path}: the series does not start from the wheel's file"
    before = contents(site)
    diffs = patches.load_diffs(folder, series)
    assert patches.apply(site, series, diffs)
    patches.verify(site, series)
    for path in series.chains():
        if path.endswith(".py"):
            compile((site / path).read_text(), path, "exec")
    assert patches.revert(site, series, diffs)
    assert contents(site) == before
    for verb in ("apply", "verify", "status", "revert"):
        assert main(["patch", verb, "--site", str(site), str(folder)]) == 0
    assert contents(site) == before
    assert "applied" in capsys.readouterr().out


@pytest.mark.parametrize("site", NAMES, indirect=True)
def test_a_release_verifies_from_its_json(site, request, tmp_path, capsys):
    name = request.node.callspec.params["site"]
    folder = PROJECT / "files/patches" / name
    series = patches.select(series_of(name))
    (site / "series.json").write_text(json.dumps(series.to_mapping()))
    command = ["patch", "verify", "--site", str(site), str(site / "series.json")]
    assert main(command) == 2
    seen = capsys.readouterr().err
    for path, chain in series.chains().items():
        assert path in seen
        assert chain[-1][1].after in seen
    patches.apply(site, series, patches.load_diffs(folder, series))
    assert main(command) == 0


@pytest.mark.parametrize("name", NAMES)
def test_survey_of_the_own_wheel_finds_nothing_to_do(name, pristine):
    wheel = Wheel(pristine(name))
    series = series_of(name)
    diffs = patches.load_diffs(PROJECT / "files/patches" / name, series)
    found = patch_survey.survey(series, diffs, wheel.read, wheel.version)
    assert {finding.verdict for finding in found} <= {"applies"}


def test_survey_of_a_newer_wheel_names_every_patch(pristine, capsys, tmp_path):
    (tmp_path / "series").mkdir()
    shutil.copytree(PROJECT / "files/patches/vllm-0.23.0", tmp_path / "series/vllm-0.23.0")
    assert main(["patch", "survey", str(pristine("vllm-0.33.0")), "--series-root", str(tmp_path / "series")]) == 1
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


def test_a_started_series_is_a_series(pristine, tmp_path, capsys):
    """`new` keeps what moved, drops what is superseded, and its result applies to the other wheel."""
    newer = pristine("vllm-0.33.0")
    assert main(["patch", "new", str(newer), str(PROJECT / "files/patches/vllm-0.23.0"), str(tmp_path / "new")]) == 0
    assert main(["patch", "hash", str(newer), str(tmp_path / "new")]) == 0
    wheel = Wheel(newer)
    (tmp_path / "root").mkdir()
    (tmp_path / "new").rename(tmp_path / "root/vllm-0.33.0")
    capsys.readouterr()
    assert main(["patch", "survey", str(newer), "--series-root", str(tmp_path / "root")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["applies     int8-lm-head"]
    assert wheel.version == "0.33.0"


def test_hash_is_stable_and_refuses_another_tree(pristine, tmp_path, capsys):
    folder = tmp_path / "vllm-0.33.0"
    shutil.copytree(PROJECT / "files/patches/vllm-0.33.0", folder)
    text = (folder / "series.yml").read_text()
    assert main(["patch", "hash", str(pristine("vllm-0.33.0")), str(folder)]) == 0
    assert (folder / "series.yml").read_text() == text
    source = pristine("vllm-0.33.0")
    edited = tmp_path / "wheel"
    for path in ("vllm-0.33.0.dist-info", *series_of("vllm-0.33.0").chains()):
        (edited / path).parent.mkdir(parents=True, exist_ok=True)
        if (source / path).is_dir():
            shutil.copytree(source / path, edited / path)
        elif (source / path).is_file():
            shutil.copyfile(source / path, edited / path)
    with (edited / "vllm/config/speculative.py").open("a") as handle:
        handle.write("# edited\n")
    assert main(["patch", "hash", str(edited), str(folder)]) == 2
    assert "vllm/config/speculative.py" in capsys.readouterr().err
