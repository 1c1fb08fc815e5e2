"""`seatctl patch` on small wheels: what an operator and an author of a series type."""

import base64
import hashlib
import json
import shutil
import subprocess
import zipfile

import pytest
import yaml

from seatfleet.cli import main
from seatfleet.commands import patch
from seatfleet.core.release import kv_oracle, unified_diff

CORE = "".join(f"line {number}\n" for number in range(1, 31))
PAD = CORE.replace("line 3\n", "line 3 padded\n")
SPLIT = PAD.replace("line 20\n", "line 20 split\n")
EXTRA = "extra = 1\n"


def wheel_of(folder, version, files, distribution="pkg"):
    """Write a wheel with a true RECORD; return its path."""
    info = f"{distribution}-{version}.dist-info"
    contents = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"}
    lines = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(text)}\n")
    contents[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"])
    wheel = folder / f"{distribution}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return wheel


def entry(name, number, **more):
    texts = {"why": ("because " * 20).strip(), "upstream": "none", "seats": "all", "tested": "here"}
    return {"name": name, "file": f"{number:04d}-{name}.patch", **texts, **more}


@pytest.fixture
def wheel(tmp_path):
    return wheel_of(tmp_path, "1.0", {"pkg/core.py": CORE})


@pytest.fixture
def series(tmp_path, wheel):
    """A series of three patches, hashed by the tool itself."""
    folder = tmp_path / "series/pkg-1.0"
    folder.mkdir(parents=True)
    (folder / "0001-pad.patch").write_text(unified_diff.render("pkg/core.py", CORE, PAD))
    (folder / "0002-split.patch").write_text(unified_diff.render("pkg/core.py", PAD, SPLIT))
    (folder / "0003-extra.patch").write_text(unified_diff.render("pkg/extra.py", None, EXTRA))
    patches = [entry("pad", 1, superseded_by="3.0"), entry("split", 2, needs=["pad"]), entry("extra", 3, default=False)]
    document = {"format": 1, "distribution": "pkg", "version": "1.0", "patches": patches}
    (folder / "series.yml").write_text(yaml.safe_dump(document))
    assert main(["patch", "hash", str(wheel), str(folder)]) == 0
    return folder


@pytest.fixture
def site(tmp_path, wheel):
    folder = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_hash_writes_one_stable_readable_form(series, wheel):
    text = (series / "series.yml").read_text()
    assert text.startswith("---\nformat: 1\n")
    assert "    why: >-\n" in text
    assert max(map(len, text.splitlines())) <= 120
    hashes = yaml.safe_load(text)["patches"]
    assert hashes[0]["files"]["pkg/core.py"]["after"] == hashes[1]["files"]["pkg/core.py"]["before"]
    assert hashes[2]["files"]["pkg/extra.py"]["before"] is None
    assert main(["patch", "hash", str(wheel), str(series)]) == 0
    assert (series / "series.yml").read_text() == text


def test_hash_refuses_a_tree_that_is_not_the_wheel(series, site, capsys):
    (site / "pkg/core.py").write_text(CORE + "edited\n")
    text = (series / "series.yml").read_text()
    assert main(["patch", "hash", str(site), str(series)]) == 2
    assert "pkg/core.py" in capsys.readouterr().err
    assert (series / "series.yml").read_text() == text


def test_the_life_of_a_series_on_an_installation(series, site, capsys):
    base = ["--site", str(site), str(series)]
    assert main(["patch", "verify", *base]) == 2
    assert main(["patch", "apply", "--check", *base]) == 0
    assert (site / "pkg/core.py").read_text() == CORE
    assert main(["patch", "apply", *base]) == 0
    assert (site / "pkg/core.py").read_text() == SPLIT
    assert not (site / "pkg/extra.py").exists(), "off by default"
    assert main(["patch", "verify", *base]) == 0
    capsys.readouterr()
    assert main(["patch", "status", *base]) == 0
    assert capsys.readouterr().out.startswith("patched ")
    assert main(["patch", "revert", *base]) == 0
    assert (site / "pkg/core.py").read_text() == CORE
    assert main(["patch", "apply", *base, "--only", "pad, extra"]) == 0
    assert (site / "pkg/core.py").read_text() == PAD
    assert (site / "pkg/extra.py").read_text() == EXTRA
    assert main(["patch", "apply", *base, "--only", "split"]) == 2
    assert "pad selected too" in capsys.readouterr().err


def test_a_json_series_is_taken_whole(series, site):
    """What a release carries was selected already: patches that are off by default count, too."""
    document = yaml.safe_load((series / "series.yml").read_text())
    (series / "series.json").write_text(json.dumps(document))
    assert main(["patch", "apply", "--site", str(site), str(series / "series.json")]) == 0
    assert (site / "pkg/extra.py").read_text() == EXTRA


def surveyed(capsys, series, wheel):
    capsys.readouterr()
    code = main(["patch", "survey", str(wheel), "--series-root", str(series.parent)])
    return code, {line.split()[1]: line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}


SURVEYS = [
    ("1.0", {"pkg/core.py": CORE}, 0, {"pad": "applies", "split": "applies", "extra": "applies"}),
    ("1.1", {"pkg/core.py": "new\n" + CORE}, 0, {"pad": "moved", "split": "moved", "extra": "applies"}),
    ("1.2", {"pkg/core.py": PAD}, 0, {"pad": "contained", "split": "applies", "extra": "applies"}),
    (
        "1.3",
        {"pkg/core.py": CORE.replace("line 19", "LINE")},
        1,
        {"pad": "applies", "split": "port", "extra": "applies"},
    ),
    ("2.0", {"pkg/other.py": ""}, 1, {"pad": "port", "split": "port", "extra": "applies"}),
    ("2.1", {"pkg/core.py": CORE, "pkg/extra.py": ""}, 1, {"pad": "applies", "split": "applies", "extra": "port"}),
    ("3.0", {"pkg/core.py": PAD}, 0, {"pad": "superseded", "split": "applies", "extra": "applies"}),
]


@pytest.mark.parametrize(("version", "files", "code", "verdicts"), SURVEYS, ids=[row[0] for row in SURVEYS])
def test_survey(capsys, series, tmp_path, version, files, code, verdicts):
    assert surveyed(capsys, series, wheel_of(tmp_path, version, files)) == (code, verdicts)


def test_survey_takes_the_newest_series_that_is_not_newer(capsys, series, tmp_path):
    later = tmp_path / "series/pkg-1.10"
    shutil.copytree(series, later)
    document = yaml.safe_load((later / "series.yml").read_text())
    (later / "series.yml").write_text(
        yaml.safe_dump({**document, "version": "1.10", "patches": document["patches"][:1]})
    )
    assert set(surveyed(capsys, series, wheel_of(tmp_path, "1.9", {"pkg/core.py": CORE}))[1]) == {
        "pad",
        "split",
        "extra",
    }
    assert set(surveyed(capsys, series, wheel_of(tmp_path, "1.11", {"pkg/core.py": CORE}))[1]) == {"pad"}
    assert set(surveyed(capsys, series, wheel_of(tmp_path, "0.9", {"pkg/core.py": CORE}))[1]) == {
        "pad",
        "split",
        "extra",
    }


def test_survey_of_something_else_says_so(capsys, series, tmp_path):
    other = wheel_of(tmp_path, "1.0", {}, distribution="other")
    assert main(["patch", "survey", str(other), "--series-root", str(series.parent)]) == 2
    assert "one of pkg" in capsys.readouterr().err
    assert main(["patch", "survey", str(other), "--series-root", str(tmp_path / "nothing")]) == 2


def test_new_starts_a_series_that_fits(series, tmp_path):
    newer = wheel_of(tmp_path, "3.0", {"pkg/core.py": "new\n" + PAD})
    folder = tmp_path / "new/pkg-3.0"
    assert main(["patch", "new", str(newer), str(series), str(folder)]) == 0
    document = yaml.safe_load((folder / "series.yml").read_text())
    assert [one["name"] for one in document["patches"]] == ["split", "extra"]
    assert document["patches"][0]["needs"] == [], "pad is in 3.0 already"
    site = tmp_path / "newer-site"
    with zipfile.ZipFile(newer) as archive:
        archive.extractall(site)
    assert main(["patch", "apply", "--site", str(site), str(folder), "--only", "split,extra"]) == 0
    assert (site / "pkg/core.py").read_text() == "new\n" + SPLIT


def test_selftest_runs_the_oracle_in_the_releases_own_python(monkeypatch, tmp_path):
    seen = []

    def run(command, **options):
        seen.append((command, options))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(patch.subprocess, "run", run)
    arguments = ["--python", "/release/bin/python", "--scenario", "block16", "--method", "mtp", "--method", "none"]
    assert main(["patch", "selftest", *arguments, "--site", str(tmp_path), "--cases", "5"]) == 1
    ((command, options),) = seen
    assert command[:3] == ["/release/bin/python", "-P", kv_oracle.__file__]
    wanted = "--cases 5 --seed 7 --method mtp --method none --scenario block16 --site"
    assert " ".join(command[3:]).startswith(wanted)
    assert options["timeout"] > 30


def test_the_oracle_without_vllm_says_so(capsys):
    """Also the proof that the file needs nothing but a standard library to start."""
    assert kv_oracle.main([]) == 2
    assert "cannot import vLLM here" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("arguments", "examined"),
    [
        ([], [("seed", "dflash"), ("block16", "dflash")]),
        (["--method", "dflash", "--method", "mtp"], [("seed", "dflash"), ("block16", "dflash"), ("seed", "mtp")]),
        (["--scenario", "block16", "--method", "mtp"], [("block16", "mtp")]),
    ],
)
def test_the_oracle_examines_every_scenario_that_a_method_has(monkeypatch, capsys, arguments, examined):
    seen = []

    def examine(scenario, method, cases, seed):
        seen.append((scenario, method))
        assert cases == kv_oracle.CASES
        report = {"scenario": scenario, "method": method, "ok": scenario != "block16", "boots": method == "dflash"}
        counts = {"hits": 100, "poisoned": 45, "wrong_blocks": 2, "wrong_steps": 1, "stalled": 0}
        return {**report, **counts, "error": "AssertionError: no", "examples": ["turn: hit claims 4480 tokens"]}

    monkeypatch.setattr(kv_oracle, "examine", examine)
    monkeypatch.setattr(kv_oracle, "measured_again", lambda: kv_oracle.MEASURED)
    monkeypatch.setattr(kv_oracle.importlib, "import_module", lambda name: None)
    assert kv_oracle.main(arguments) == 1, "one red scenario is enough"
    assert seen == examined
    output = capsys.readouterr()
    assert json.loads(output.out)["ok"] is False
    assert output.err.count("\n") == 1, "one sentence per red scenario, none for green ones"
    if examined[-1] == ("block16", "mtp"):
        assert "method mtp, scenario block16: the engine would not start: AssertionError: no" in output.err
    else:
        assert "block16: 100 prefix hits, 45 with a wrong state, 2 with wrong attention" in output.err
        assert "for example turn: hit claims 4480 tokens" in output.err


COVERAGES = [
    (((1, 10),), 4, ((1, 4),)),
    (((1, 10), (2, 20)), 10, ((1, 10),)),
    (((1, 10), (2, 20)), 11, ((1, 10), (2, 11))),
    (((1, 10), (2, 20)), 99, ((1, 10), (2, 20))),
]


@pytest.mark.parametrize(("coverage", "tokens", "clipped"), COVERAGES)
def test_coverages_are_equal_exactly_when_tokens_are(coverage, tokens, clipped):
    assert kv_oracle.clip(coverage, tokens) == clipped
    assert kv_oracle.tokens_of(clipped) == kv_oracle.tokens_of(coverage)[:tokens]
    assert kv_oracle.tokens_of(((1, 10),)) != kv_oracle.tokens_of(((2, 10),))


def test_an_installed_release_needs_no_other_argument(series, site, tmp_path, capsys):
    """What every seat runs before it starts."""
    release = tmp_path / "release"
    packages = release / "lib/python3.12/site-packages"
    packages.parent.mkdir(parents=True)
    shutil.copytree(site, packages)
    assert main(["patch", "verify", str(release)]) == 2, "no marker: an interrupted install"
    (release / "release.json").write_text("{}")
    assert main(["patch", "verify", str(release)]) == 0
    assert "no patches" in capsys.readouterr().out
    (release / "series.json").write_text(json.dumps(yaml.safe_load((series / "series.yml").read_text())))
    assert main(["patch", "verify", str(release)]) == 2
    assert "pristine again" in capsys.readouterr().err
    assert main(["patch", "apply", "--site", str(packages), str(series), "--only", "pad,split,extra"]) == 0
    assert main(["patch", "verify", str(release)]) == 0
