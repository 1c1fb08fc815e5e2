"""The first cause in a seat's journal: of a start that failed, the first error counts and not the last line.

vLLM's last words are nearly always ``Engine core initialization failed. See root cause above.``; the cause is in
another process's traceback further up. A seat that served for days has logged the errors of single requests before:
there the engine's processes are asked first, and only about what came after the server was up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

# A refused parser names all 70 known ones.
MAX_LENGTH = 600
# "(EngineCore pid=123) ERROR 11-29 20:11:02 [core.py:1234] text", every part optional but the text; workers may carry
# their engine's name before their own.
_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w:.-]+)(?: \w+=\d+)*\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ (?:\[[^\]]+\] ?)?)?"
    r"(?:\[rank\d+\]: ?)?"
)
# "torch.OutOfMemoryError: CUDA out of memory", "vllm.v1.engine.exceptions.EngineDeadError", "KeyError: 'x'"; with its
# module also what is not called an error: "triton.runtime.errors.OutOfResources: out of resource"
_EXCEPTION = re.compile(
    r"^(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)|(?:[a-z_]\w*\.)+[A-Z]\w*: )"
)
# C++: what torch logs as an error ("[E1001 16:06:04.537 ProcessGroupNCCL.cpp:607] text") and what a crash says.
_NATIVE = re.compile(r"^(?:\[[EF]\d* [^\]]*\.\w+:\d+\] |what\(\): +|(?=Fatal Python error: ))(?P<text>\S.*)")
_ARGPARSE = re.compile(r"^(?:\S+ )*\S*: error: ")
# What systemd says when the process never came to be, or not in time.
_SYSTEMD = re.compile(
    r"^(?:\S+\.service: )?(?:Failed (?:at step|to) |[Ss]tart(?:-pre|-post)? operation timed out|Watchdog timeout)"
)
# Somebody's OOM killer took a process: whatever the others then say follows from it.
KILLED = re.compile(r"killed by the OOM killer|systemd-oomd killed \d+ process|[Oo]ut of memory: Killed process")
# A problem as seatctl prints it (core.problems), for example of a patched file.
_PROBLEM = re.compile(r": expected .+, seen ")
# pydantic names the field and what is wrong with it on the two lines that follow.
_VALIDATION = re.compile(r"validation errors? for \w+$")
# They say that something else failed.
_CONSEQUENCE = re.compile(
    r"^Failed to start |Engine core initialization failed|See root cause above|EngineDeadError|SystemExit"
    r"|KeyboardInterrupt|CancelledError|WorkerProc initialization failed|WorkerProc failed to start|Executor failed"
)
# Logged as an error above the traceback that says which, or beside it.
_HEADING = re.compile(
    r"^(?:Traceback |File |\^|Dumping |WorkerProc hit an exception|EngineCore failed to start"
    r"|EngineCore encountered a fatal error|AsyncLLM output_handler failed)"
)
_NO_ERROR = {"DEBUG", "INFO", "WARNING"}
_SERVING = "Application startup complete"


@dataclass(frozen=True)
class _Found:
    """The first line of each kind: a cause, a line that is merely logged as an error, one that points elsewhere."""

    cause: str | None
    logged: str | None
    consequence: str | None


def first_cause(lines: Iterable[str]) -> str | None:
    """Return the first line that names a cause, None when no line looks like an error.

    An exception or a refused argument is worth more than a line that is merely logged as an error, and a line that
    points elsewhere ("see root cause above") is taken only when there is nothing better.
    """
    every = list(lines)
    killed = next((line.strip() for line in every if KILLED.search(line)), None)
    if killed:
        return killed[:MAX_LENGTH]
    served = next((index for index, line in enumerate(every) if _SERVING in line), None)
    scopes = [every] if served is None else [_of_the_engine(every[served + 1 :]), every[served + 1 :]]
    found = [_look(scope) for scope in scopes]
    best = next((text for one in found if (text := one.cause or one.logged)), None)
    return (best or found[-1].consequence or "")[:MAX_LENGTH] or None


def says_why(line: str) -> bool:
    """Return False for a line that is no error, or that only points at another one."""
    text, level = _strip(line)
    return level not in _NO_ERROR and not _CONSEQUENCE.search(text)


def _of_the_engine(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not line.startswith("(APIServer")]


def _look(lines: Iterable[str]) -> _Found:
    logged = consequence = None
    source, in_frame = "", False
    rest = iter(lines)
    for line in rest:
        text, level = _strip(line)
        if level in _NO_ERROR:
            continue
        if native := _NATIVE.match(text):
            return _Found(native["text"], logged, consequence)
        if _EXCEPTION.match(text) or _ARGPARSE.match(text) or _SYSTEMD.match(line) or _PROBLEM.search(text):
            if _VALIDATION.search(text):
                text = " ".join([text, *(_strip(detail)[0] for detail in islice(rest, 2))])
            if not _CONSEQUENCE.search(text):
                # A bare assert says nothing; the line of code does.
                return _Found(f"{text}: {source}" if text == "AssertionError" and source else text, logged, consequence)
            consequence = consequence or text
        elif logged is None and level in {"ERROR", "CRITICAL"} and text and not in_frame and not _HEADING.match(text):
            logged = text
        source = text if in_frame else source
        in_frame = text.startswith('File "')
    return _Found(None, logged, consequence)


def _strip(line: str) -> tuple[str, str | None]:
    match = _PREFIX.match(line)
    text = line[match.end() :] if match else line
    return text.strip(), match["level"] if match else None
