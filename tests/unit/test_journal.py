"""The first cause, from journals of starts that really failed (vLLM 0.32.0) and lines of systemd."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatfleet.core.report.journal import MAX_LENGTH, first_cause

RECORDED = Path(__file__).parent / "data" / "journal"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("badflag", "vllm: error: unrecognized arguments: --no-such-flag"),
        ("badenv", "ValueError: Unknown vLLM environment variable detected: VLLM_NO_SUCH"),
        ("kvhuge", "ValueError: Available memory on node 0 (13.72/18.34 GiB) on kv cache allocation is less than"),
        ("kvtiny", "ValueError: To serve at least one request with the model's max seq len (2048)"),
        ("nomodel", "huggingface_hub.errors.HFValidationError: Repo id must be in the form"),
        ("parser", "KeyError: 'invalid tool call parser: nope (chose from {"),
        ("port", "OSError: [Errno 98] Address already in use"),
        # pydantic says which field and what is wrong with it on the lines after the exception
        (
            "util",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig gpu_memory_utilization "
            "Input should be less than or equal to 1",
        ),
        (
            "method",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig method Input",
        ),
    ],
)
def test_recorded_journals(name: str, cause: str) -> None:
    found = first_cause((RECORDED / f"{name}.log").read_text().splitlines())
    assert found is not None
    assert found.startswith(cause)
    assert len(found) <= MAX_LENGTH


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], None),
        (["(APIServer pid=1) INFO 11-29 20:48:38 [model.py:733] Resolved architecture: Qwen3ForCausalLM"], None),
        # a warning that quotes an error is none
        (["(APIServer pid=1) WARNING 11-29 20:48:38 [x.py:1] This can cause errors like `OSError: [Errno 24]`"], None),
        (
            [
                "vllm-seat-a.service: Failed to set up mount namespacing: /dev/shm: Invalid argument",
                "vllm-seat-a.service: Failed at step NAMESPACE spawning /opt/vllm/bin/seatctl: Invalid argument",
            ],
            "vllm-seat-a.service: Failed to set up mount namespacing: /dev/shm: Invalid argument",
        ),
        (
            ["xx.service: Failed to locate executable /no/such: No such file or directory"],
            "xx.service: Failed to locate",
        ),
        # what follows from something else is named only when nothing better is there
        (
            ["RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"],
            "RuntimeError: Engine core initialization failed.",
        ),
        (
            [
                "(EngineCore pid=3) ERROR 11-29 20:47:08 [core.py:9] EngineCore failed to start.",
                "RuntimeError: Engine core initialization failed. See root cause above.",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 466.00 MiB.",
            ],
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 466.00 MiB.",
        ),
        (
            [
                "(EngineCore pid=3) ERROR 11-29 20:47:08 [core.py:9] Traceback (most recent call last):",
                "(EngineCore pid=3) ERROR 11-29 20:47:08 [core.py:9] the GPU fell off the bus",
            ],
            "the GPU fell off the bus",
        ),
        # seatctl patch verify in ExecStartPre
        (
            [
                "1 problem, nothing was changed:",
                "  /opt/vllm/a.py: vllm-0.33.0: expected patched sha256 1, seen 2",
                "Failed to start vllm-seat-a.service - vLLM seat a.",
            ],
            "/opt/vllm/a.py: vllm-0.33.0: expected patched sha256 1, seen 2",
        ),
        (["Failed to start vllm-seat-a.service - vLLM seat a."], "Failed to start vllm-seat-a.service"),
    ],
)
def test_lines(lines: list[str], cause: str | None) -> None:
    found = first_cause(lines)
    assert found == cause if cause is None else found is not None and found.startswith(cause)
