"""The catalogue of known failures: every row says what is done, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatfleet.core.report.journal import first_cause
from seatfleet.core.report.known_failures import FAILURES, Failure, explain, get

PROJECT = Path(__file__).resolve().parents[2]
# One name may stand for two files, a unit test and its relative on lab hosts.
TESTS: dict[str, str] = {}
for _path in sorted(PROJECT.glob("tests/**/test_*.py")):
    TESTS[_path.stem] = TESTS.get(_path.stem, "") + _path.read_text(encoding="utf-8")
RECORDED = Path(__file__).parent / "data" / "journal"


def missing(reference: str) -> str | None:
    """Say what a reference of a row names that is not there."""
    file, _, test = reference.partition("::")
    if test:
        found = re.search(rf"^def {re.escape(test)}\(", TESTS.get(file, ""), re.MULTILINE)
        return None if found else f"no test {test} in {file}.py"
    places = [PROJECT / file, PROJECT / "tests/unit/tables" / file]
    return None if any(place.is_file() for place in places) else f"no file {file}"


def test_what_a_row_names_exists() -> None:
    wrong = {
        (row.id, reference): problem for row in FAILURES for reference in row.covered if (problem := missing(reference))
    }
    assert wrong == {}


def test_a_reference_to_nothing_is_noticed() -> None:
    assert missing("test_known_failures::test_nothing_of_the_kind") is not None
    assert missing("roles/gone/tasks/main.yml") is not None


@pytest.mark.parametrize("row", FAILURES, ids=lambda row: row.id)
def test_a_row_is_covered_or_says_why_not(row: Failure) -> None:
    assert row.sources
    assert row.covered or row.explain or row.open, "nothing is done, and nobody says why"
    assert row.prevent or row.detect or row.explain or row.open
    if row.prevent or row.detect:
        assert row.covered or row.open, "a claim without what holds it"
    if row.pattern:
        assert row.explain, "a line in a journal is found, and the operator is told nothing"


def test_names_are_unique_and_all_reports_are_there() -> None:
    names = [row.id for row in FAILURES]
    assert len(names) == len(set(names))
    reported = [name for name in names if name[0] in "MWSHGN"]
    assert len(reported) == 86
    assert get("m17") is get("M17") is not None
    assert get("Q1") is None


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("badflag", ["W12"]),
        ("badenv", ["X3"]),
        ("kvhuge", ["X4"]),
        ("kvtiny", ["M23"]),
        ("nomodel", ["W19"]),
        ("parser", ["H5"]),
        ("port", ["X5"]),
        ("util", ["X21"]),
        ("method", ["X21"]),
    ],
)
def test_recorded_journals_are_explained(name: str, ids: list[str]) -> None:
    lines = (RECORDED / f"{name}.log").read_text().splitlines()
    assert [row.id for row, _ in explain(lines)] == ids
    assert [row.id for row, _ in explain(first_cause(lines) or "")] == ids


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 466.00 MiB.", ["X13"]),
        ("RuntimeError: Error in memory profiling. Initial free memory 3.1 GiB, current free memory 4 GiB.", ["M11"]),
        (
            "ValueError: Free memory on device cuda:0 (80.1/94.97 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 87.37 GiB).",
            ["M13"],
        ),
        ("ImportError: libcudart.so.13: cannot open shared object file: No such file or directory", ["W1"]),
        ("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", ["W4"]),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", ["W4"]),
        ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", ["W5"]),
        ("vllm serve: error: ambiguous option: --kv-cache-memory could match --kv-cache-memory-bytes", ["W11"]),
        ("PermissionError: [Errno 13] Permission denied: '/root/.triton'", ["W13"]),
        ("OSError: [Errno 30] Read-only file system: '/.cache'", ["W13"]),
        ("RuntimeError: Could not load libtorchcodec. Likely causes: FFmpeg is not installed", ["W16"]),
        ("Failed to initialize NVML: Driver/library version mismatch", ["X1"]),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).", ["X2"]),
        ("vllm-seat-a.service: Start request repeated too quickly.", ["S5"]),
        ("OSError: [Errno 28] No space left on device", ["X7"]),
        ("safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization", ["X8"]),
        ("TimeoutError: Timed out waiting for engine core processes to start. Waited 600s", ["S3"]),
        ("INFO 11-29 20:48:38 [model.py:733] Resolved architecture: Qwen3ForCausalLM", []),
    ],
)
def test_lines(line: str, ids: list[str]) -> None:
    assert [row.id for row, _ in explain(line)] == ids


def test_the_first_line_is_kept_and_the_order_is_that_of_the_journal() -> None:
    text = " OSError: [Errno 28] No space left on device \nCUDA out of memory\nOSError: [Errno 28] No space left"
    assert [(row.id, line) for row, line in explain(text)] == [
        ("X7", "OSError: [Errno 28] No space left on device"),
        ("X13", "CUDA out of memory"),
    ]
