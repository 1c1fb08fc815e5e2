"""What another vLLM would change: pins, patches, options and variables, read from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from seatfleet.clients import release_survey
from seatfleet.clients.release_survey import Use, environment_names, read_candidate, survey, uses
from seatfleet.core.release.locks import Lock, Pin, Target

ENVS = """
from typing import Any, Callable
environment_variables: dict[str, Callable[[], Any]] = {
    "VLLM_CACHE_ROOT": lambda: 1,
    "LD_LIBRARY_PATH": lambda: 2,
}
"""
ARGS = """
def add(parser, kwargs):
    group = parser.add_argument_group("x")
    group.add_argument("--model", **kwargs["model"])
    group.add_argument("--max-model-len", "-l", **kwargs["max"])
    warn("--max-model-len is deprecated and will be removed in v0.41.0. "
         "Use --length.")
"""
FRONTEND = """
class BaseFrontendArgs:
    enable_prompt_tokens_details: bool = False
class FrontendArgs(BaseFrontendArgs):
    served_model_name: str
    port: int = 8000
class Other:
    no_option: int = 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "vllm/envs.py": ENVS,
        "vllm/engine/arg_utils.py": ARGS,
        "vllm/entrypoints/common/cli_args.py": FRONTEND,
        "vllm-0.40.0.dist-info/METADATA": (
            "Name: vllm\nVersion: 0.40.0\nRequires-Dist: torch==2.20.0\nRequires-Dist: regex\n"
            'Requires-Dist: Orjson>=3; platform_machine == "x86_64"\nRequires-Dist: pandas; extra == "bench"\n'
            'Requires-Dist: winreg; sys_platform == "win32"\n'
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def pin(name: str, version: str) -> Pin:
    return Pin(name, version, "0" * 64, f"{name}-{version}-py3-none-any.whl", 1, "index")


LOCK = Lock(Target(12, "x86_64", 35), (pin("torch", "2.14.0"), pin("regex", "2026.1.1"), pin("vllm", "0.33.0")))
ENTRY = {"version": "0.33.0"}


def test_options_and_variables_are_read_from_the_files(tree: Path) -> None:
    candidate = read_candidate(tree)
    assert candidate.version == "0.40.0"
    assert candidate.options == {
        "model", "max-model-len", "enable-prompt-tokens-details", "served-model-name", "port",
    }  # fmt: skip
    assert candidate.environment == {"VLLM_CACHE_ROOT"}
    assert candidate.deprecated == {
        "max-model-len": "--max-model-len is deprecated and will be removed in v0.41.0. Use --length."
    }


def test_what_would_change(tree: Path) -> None:
    used = [
        Use(
            "a", "h", "r", frozenset({"model", "port", "no-model", "gone"}), frozenset({"VLLM_CACHE_ROOT", "VLLM_OLD"})
        ),
        Use("b", "h", "r", frozenset({"max-model-len", "gone"}), frozenset()),
        Use("c", "h", "another release", frozenset({"also-gone"}), frozenset()),
    ]
    candidate = read_candidate(tree)
    found = survey("r", ENTRY, LOCK, None, {}, candidate, used)
    assert found.pins == ("torch 2.14.0 -> ==2.20.0",)
    assert found.added == ("orjson>=3",)
    assert found.removed == {"gone": ("a on h", "b on h")}
    assert found.unknown == {"VLLM_OLD": ("a on h",)}
    assert list(found.deprecated) == ["max-model-len"]
    assert found.by_hand
    text = "\n".join(release_survey.lines(found, candidate))
    assert "r: vLLM 0.33.0 -> 0.40.0" in text
    assert "removed   --gone, used by a on h, b on h" in text
    assert not survey(
        "r", ENTRY, LOCK, None, {}, candidate, [used[1].__class__("b", "h", "r", frozenset(), frozenset())]
    ).by_hand


def test_the_fleets_own_use_is_what_a_seat_is_rendered_with() -> None:
    seat = {
        "model": "m", "release": "r", "port": 8000, "gpus": [0], "max_model_len": 1024, "kv_cache_memory": "1GiB",
        "kv_cache_why": {"state": "elsewhere", "note": "n"}, "speculative": None,
        "speculative_why": {"state": "unmeasured", "note": "n"}, "env": {"VLLM_MINE": "1"}, "engine": {"extra": True},
        "prefix_caching": False,
    }  # fmt: skip
    hosts = {
        "h": {
            "seats": {"s": seat},
            "seat_environment": {"VLLM_CLASS": "1", "CUDA_HOME": "/x"},
            "fleet_hardware": {"gpus": 1},
        },
        "gw": {},
    }
    (use,) = uses(hosts)
    assert {"model", "kv-cache-memory-bytes", "no-enable-prefix-caching", "extra"} <= use.options
    assert {"VLLM_MINE", "VLLM_CLASS", "VLLM_CACHE_ROOT"} <= use.environment
    assert "CUDA_HOME" not in use.environment


def test_names_of_the_committed_lists_are_read_the_same_way() -> None:
    assert environment_names("environment_variables = {'VLLM_A': 1, 'B': 2}") == {"VLLM_A"}
    assert environment_names("x = 1") == frozenset()


def test_the_command_over_a_tree(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from seatfleet.cli import main

    project = Path(__file__).resolve().parents[2]
    assert main(["release", "--project", str(project), "survey", "--tree", str(tree)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("vLLM 0.40.0 (")
    releases = yaml.safe_load((project / "group_vars/all/releases.yml").read_text())["releases"]
    for name, entry in releases.items():
        assert (f"{name}: vLLM" in shown) is (entry["distribution"] == "vllm")
    assert "torch 2.14.0 -> ==2.20.0" in shown
    assert "port" in shown
    assert json.dumps("removed")[1:-1] in shown
