"""What ``seatctl why`` makes of lines that vLLM, torch, systemd and NVIDIA's software really print.

The texts are from public reports (their numbers are in the catalogue) and from starts recorded here; each is given as a
unit's journal has it: the seat's lines, then systemd's.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from seatfleet.commands.why import explain
from seatfleet.core.report.known_failures import explain as look_up
from seatfleet.core.report.why import Failure, Start, failed_start, guarded

UNIT = "vllm-seat-a.service: "
EXITED = (f"{UNIT}Main process exited, code=exited, status=1/FAILURE", f"{UNIT}Failed with result 'exit-code'.")
ABORTED = (f"{UNIT}Main process exited, code=dumped, status=6/ABRT", f"{UNIT}Failed with result 'core-dump'.")
KILLED = (f"{UNIT}Main process exited, code=killed, status=9/KILL", f"{UNIT}Failed with result 'signal'.")
API, ENGINE, WORKER = "(APIServer pid=1) ", "(EngineCore pid=374) ", "(EngineCore pid=374) (Worker_TP0 pid=401) "
AT = "ERROR 11-29 20:47:08 "
UP = f"{API}INFO:     Application startup complete."
DERIVED = (
    f"{ENGINE}{AT}[core.py:1510] EngineCore failed to start.",
    f"{ENGINE}{AT}[core.py:1510] Exception: WorkerProc initialization failed due to an exception in the background.",
    f"{API}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
)
DEAD = (
    f"{API}{AT}[async_llm.py:744] AsyncLLM output_handler failed.",
    f"{API}{AT}[async_llm.py:744] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
    "stack trace (above) for the root cause.",
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 23.56 GiB "
    "of which 56.88 MiB is free."
)
NCCL = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=128, "
    "NumelOut=128, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
CORRUPTED = (
    "RuntimeError: vLLM failed to compile the model. The most likely reason for this is that a previous compilation "
    "failed, leading to a corrupted compilation artifact."
)
REQUEST = (
    f"{API}{AT}[serving.py:260] Error in preprocessing prompt inputs",
    f"{API}{AT}[serving.py:260] Traceback (most recent call last):",
    f"{API}{AT}[serving.py:260] ValueError: This model's maximum context length is 2048 tokens.",
)


class Case(NamedTuple):
    """A start: what was logged, what systemd says, the first cause of it, and the entries of the catalogue."""

    lines: tuple[str, ...]
    cause: str | None
    ids: tuple[str, ...]
    ended: tuple[str, ...] = EXITED


def worker(*lines: str) -> tuple[str, ...]:
    """Return a traceback of a worker, and what the engine and the server make of it."""
    head = (
        "WorkerProc hit an exception.",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/x.py", line 1, in f',
    )
    return (*(f"{WORKER}{AT}[multiproc_executor.py:1063] {line}" for line in (*head, *lines)), *DERIVED)


CASES = {
    "CUDA OOM at load": Case(worker("    self.w = torch.empty(", OOM), "torch.OutOfMemoryError: CUDA", ("X13",)),
    "CUDA OOM of the driver": Case(
        worker("RuntimeError: CUDA driver error: out of memory"), "RuntimeError: CUDA driver error", ("X13",)
    ),
    "CUDA OOM at a request": Case(
        (
            UP,
            f"{ENGINE}{AT}[dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput(...)",
            f"{ENGINE}{AT}[core.py:1129] EngineCore encountered a fatal error.",
            *DEAD,
            f"{ENGINE}Traceback (most recent call last):",
            f"{ENGINE}{OOM}",
        ),
        "torch.OutOfMemoryError: CUDA",
        ("X13",),
        (f"{UNIT}Main process exited, code=exited, status=1/FAILURE",),
    ),
    "a refused request long before": Case(
        (UP, *REQUEST, f"{ENGINE}{AT}[core.py:1129] {OOM}", *DEAD), "torch.OutOfMemoryError: CUDA", ("X13",)
    ),
    "KV cache too small for the context": Case(
        worker(
            "ValueError: To serve at least one request with the model's max seq len (262144), (8.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.00 GiB)."
        ),
        "ValueError: To serve at least one request",
        ("M23",),
    ),
    "no memory for the KV cache at all": Case(
        worker("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
        "ValueError: No available memory",
        ("X4",),
    ),
    "port of the server": Case(
        (f"{API}OSError: [Errno 98] Address already in use",), "OSError: [Errno 98] Address", ("X5",)
    ),
    "port of torch": Case(
        worker(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        "torch.distributed.DistNetworkError",
        ("X5",),
    ),
    "illegal memory access": Case(
        (
            UP,
            f"{WORKER}{AT}[multiproc_executor.py:1007] torch.AcceleratorError: CUDA error: an illegal memory access "
            "was encountered",
            f"{WORKER}{AT}[multiproc_executor.py:1007] Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/",
            *DEAD,
        ),
        "torch.AcceleratorError: CUDA error: an illegal memory access",
        ("X19",),
    ),
    "illegal memory access seen by C++ only": Case(
        (
            UP,
            "terminate called after throwing an instance of 'c10::AcceleratorError'",
            "  what():  CUDA error: an illegal memory access was encountered",
            f"{API}{AT}[core_client.py:600] Engine core proc EngineCore died unexpectedly, shutting down client.",
            *DEAD,
        ),
        "CUDA error: an illegal memory access",
        ("X19",),
        ABORTED,
    ),
    "NCCL timeout": Case(
        (
            UP,
            f"{WORKER}[rank0]:[E1001 16:06:04.539355394 ProcessGroupNCCL.cpp:607] {NCCL}",
            f"{WORKER}[rank0]:[E1001 16:06:04.539559761 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 0] "
            "Exception (either an error or timeout) detected by watchdog at work: 1",
            f"{ENGINE}{AT}[executor.py:250] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
            f"{ENGINE}{AT}[core.py:9] RuntimeError: cancelled",
            *DEAD,
        ),
        "[Rank 0] Watchdog caught collective operation timeout",
        ("N1",),
    ),
    "a worker that hangs": Case(
        (UP, f"{ENGINE}{AT}[core.py:9] TimeoutError: RPC call to execute_model timed out.", *DEAD),
        "TimeoutError: RPC call",
        ("X20",),
    ),
    "weight tensor missing": Case(
        worker("ValueError: Following weights were not initialized from checkpoint: {'mtp.fc.weight'}"),
        "ValueError: Following weights",
        ("X18",),
    ),
    "weight tensor unknown": Case(
        worker("ValueError: There is no module or parameter named 'fc.weight_scale' in Qwen3ForCausalLM."),
        "ValueError: There is no module",
        ("X18",),
    ),
    "shapes that differ, told": Case(
        worker("AssertionError: Attempted to load weight (torch.Size([3600])) into parameter (torch.Size([3584]))"),
        "AssertionError: Attempted",
        ("X18",),
    ),
    "shapes that differ, by a bare assert": Case(
        worker("    assert param_data.shape == loaded_weight.shape", "           ^^^^^^", "AssertionError"),
        "AssertionError: assert param_data.shape == loaded_weight.shape",
        ("X18",),
    ),
    "no code for the card": Case(
        worker("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
        "torch.AcceleratorError: CUDA error: no kernel image",
        ("W3",),
    ),
    "ptxas that does not know the card": Case(
        worker(
            "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error",
            "`ptxas` stderr:",
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        ),
        "triton.runtime.errors.PTXASError",
        ("W5",),
    ),
    "nvcc that does not know the card": Case(
        worker(
            "RuntimeError: Ninja build failed. Ninja output:",
            "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        ),
        "RuntimeError: Ninja build failed",
        ("W5",),
    ),
    "nvcc missing": Case(
        worker("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"),
        "RuntimeError: Could not find nvcc",
        ("W4",),
    ),
    "nvcc missing, told by the shell": Case(
        worker("RuntimeError: Ninja build failed. Ninja output:", "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found"),
        "RuntimeError: Ninja build failed",
        ("W4",),
    ),
    "ninja missing": Case(
        worker("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"), "FileNotFoundError", ("W4",)
    ),
    "C compiler missing": Case(
        worker("RuntimeError: Failed to find C compiler. Please specify via CC environment variable."),
        "RuntimeError: Failed to find C compiler",
        ("X15",),
    ),
    "headers of Python missing": Case(
        worker(
            "torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/x/main.c']' "
            "returned non-zero exit status 1.",
            "main.c:5:10: fatal error: Python.h: No such file or directory",
        ),
        "torch._inductor.exc.InductorError",
        ("X15",),
    ),
    "a warning with a traceback, and words that systemd uses": Case(
        (
            f"{API}WARNING 11-29 20:47:01 [x.py:1] Failed to read the generation config",
            f"{API}WARNING 11-29 20:47:01 [x.py:1] KeyError: 'generation'",
            *worker(OOM),
        ),
        "torch.OutOfMemoryError",
        ("X13",),
    ),
    "shared memory of the card": Case(
        worker(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, limit: 101376."
        ),
        "triton.runtime.errors.OutOfResources: out of resource",
        (),
    ),
    "compile cache, told by vLLM": Case(worker(CORRUPTED), "RuntimeError: vLLM failed to compile", ("X16",)),
    "compile cache, told after its own cause": Case(
        worker("TypeError: 'NoneType' object is not callable", "", CORRUPTED), "TypeError: 'NoneType'", ("X16",)
    ),
    "compile cache, cut short": Case(
        worker("_pickle.UnpicklingError: pickle data was truncated"), "_pickle.UnpicklingError", ("X16",)
    ),
    "reasoning parser": Case(
        (f"{API}KeyError: \"Reasoning parser 'qwen9' not found. Available parsers: deepseek_r1, qwen3\"",),
        "KeyError: \"Reasoning parser 'qwen9' not found",
        ("H5",),
    ),
    "parser plugin": Case(
        (
            f"{API}{AT}[abstract_tool_parser.py:150] Failed to load module 'mine' from /srv/mine.py.",
            f"{API}KeyError: 'invalid tool call parser: mine (chose from {{ hermes }})'",
        ),
        "KeyError: 'invalid tool call parser",
        ("H5",),
    ),
    "tokenizer": Case(
        (f"{API}OSError: Can't load tokenizer for '/srv/models/a'. If you were trying to load it from a hub",),
        "OSError: Can't load tokenizer",
        ("X17",),
    ),
    "unknown flag": Case(
        ("vllm: error: unrecognized arguments: --no-such-flag 1",), "vllm: error: unrecognized", ("W12",)
    ),
    "refused value": Case(
        ("vllm serve: error: argument --kv-cache-memory-bytes: Value 32MiB cannot be converted to",),
        "vllm serve: error: argument --kv-cache-memory-bytes",
        ("X21",),
    ),
    "the kernel's OOM killer took a worker": Case(
        (
            UP,
            *REQUEST,
            f"{ENGINE}{AT}[executor.py:250] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.",
            f"{ENGINE}{AT}[core.py:9] RuntimeError: cancelled",
            *DEAD,
        ),
        f"{UNIT}A process of this unit has been killed by the OOM killer.",
        ("M20",),
        (f"{UNIT}A process of this unit has been killed by the OOM killer.", f"{UNIT}Failed with result 'oom-kill'."),
    ),
    "systemd-oomd": Case(
        (UP,),
        f"{UNIT}systemd-oomd killed 12 process(es) in this unit.",
        ("M20",),
        (f"{UNIT}systemd-oomd killed 12 process(es) in this unit.", *KILLED),
    ),
    "SIGKILL from somewhere": Case((UP, *REQUEST[:1]), "Error in preprocessing prompt inputs", (), KILLED),
    "SIGKILL without a word": Case((UP,), None, ("X22",), KILLED),
    "a stop that hung": Case((UP,), None, ("X23", "X22"), (f"{UNIT}State 'stop-sigterm' timed out. Killing.", *KILLED)),
    "disk full": Case(
        worker("OSError: [Errno 28] No space left on device: '/var/cache/vllm/a/tmp'"), "OSError: [Errno 28]", ("X7",)
    ),
    "read-only file system": Case(
        worker("OSError: [Errno 30] Read-only file system: '/var/cache/vllm/a/0123/vllm'"),
        "OSError: [Errno 30]",
        ("X14",),
    ),
    "a path that is read-only for the unit": Case(
        worker("OSError: [Errno 30] Read-only file system: '/.cache'"), "OSError: [Errno 30]", ("W13",)
    ),
    "driver and library differ": Case(
        (
            f"{API}vllm.third_party.pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version "
            "mismatch.",
            f"{API}RuntimeError: Failed to infer device type",
        ),
        "vllm.third_party.pynvml.NVMLError_LibRmVersionMismatch",
        ("X1",),
    ),
    "driver too old for the release": Case(
        worker("torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
        "torch.AcceleratorError: CUDA error: the provided PTX",
        ("X2",),
    ),
    "no card": Case((f"{API}RuntimeError: Failed to infer device type",), "RuntimeError: Failed to infer", ("X6",)),
    "an engine that died of something unknown": Case(
        (UP, f"{ENGINE}{AT}[core.py:9] RuntimeError: Unexpected head dim size, 32", *DEAD),
        "RuntimeError: Unexpected head dim size, 32",
        (),
    ),
    "an engine that died without saying why": Case((UP, *DEAD), "vllm.v1.engine.exceptions.EngineDeadError", ("H1",)),
    "start timeout of the checks before vLLM": Case(
        (),
        f"{UNIT}start-pre operation timed out. Terminating.",
        ("S4",),
        (f"{UNIT}start-pre operation timed out. Terminating.", f"{UNIT}Failed with result 'timeout'."),
    ),
    "start timeout": Case(
        (), f"{UNIT}Start operation timed out", ("S4",), (f"{UNIT}Start operation timed out. Terminating.", *KILLED)
    ),
    "watchdog of systemd": Case(
        (UP,),
        f"{UNIT}Watchdog timeout (limit 3min)!",
        (),
        (f"{UNIT}Watchdog timeout (limit 3min)!", f"{UNIT}Failed with result 'watchdog'."),
    ),
    "engine that was too slow": Case(
        (f"{API}TimeoutError: Timed out waiting for engine core processes to start. Waited 600s",),
        "TimeoutError: Timed out waiting for engine core",
        ("S3",),
    ),
    "a warning that looks like a known failure": Case(
        (
            f"{WORKER}WARNING 11-29 20:47:01 [x.py:1] Your GPU does not have native support for FP4 computation",
            *worker("RuntimeError: something new"),
        ),
        "RuntimeError: something new",
        (),
    ),
}


def why(case: Case) -> Failure:
    start = Start(0.0, 1.0, (*case.lines, *case.ended), case.ended[0], case.ended)
    found = failed_start([start], explain)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_was_logged_is_explained(case: Case) -> None:
    found = why(case)
    assert (found.cause or "").startswith(case.cause or "\n") or found.cause is case.cause
    assert tuple(known.id for known in found.known) == case.ids


def test_the_memory_guards_mark_is_told() -> None:
    found = guarded({"at": "2026-11-29T20:00:00Z", "why": "1.9 GiB available, floor 4 GiB"}, explain)
    assert found is not None
    assert found.cause == "the memory guard killed it: 1.9 GiB available, floor 4 GiB"
    assert [known.id for known in found.known] == ["X12"]
    assert guarded({"why": "its mark cannot be read"}, explain) is not None
    assert guarded(None, explain) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "NVRM: Xid (PCI:0000:01:00): 31, pid=4711, name=VLLM::EngineCor, Ch 00000008, intr 00000000. MMU Fault",
            "X19",
        ),
        ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "X6"),
        ("Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1234kB, anon-rss:99kB", "M20"),
        ("Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1234kB, anon-rss:99kB", "M20"),
        ("NVRM: Xid (PCI:0000:01:00): 119, pid=4711, name=nvidia-smi, Timeout after 6s of waiting for RPC", "X24"),
        ("python3[4711]: segfault at 0 ip 00007ff3df585ad8 sp 00007ffe3c7b4808 error 4 in libc.so.6[167ad8]", "X25"),
        ("VLLM::EngineCor[4711]: unhandled exception: DABT (lower EL), ESR 0x0000000092000004", "X25"),
        ("NVRM: API mismatch: the client has the version 580.95.05, but", "X1"),
    ],
)
def test_lines_of_the_kernel(line: str, name: str) -> None:
    assert [row.id for row, _ in look_up(line)] == [name]
