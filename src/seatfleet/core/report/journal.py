"""The first cause in a seat's journal: of a start that failed, the first error counts and not the last line.

vLLM's last words are nearly always ``Engine core initialization failed. See root cause above.``; the cause is in
another process's traceback further up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

# A refused parser names all 70 known ones.
MAX_LENGTH = 600
# "(EngineCore pid=123) ERROR 11-29 20:11:02 [core.py:1234] text", every part optional but the text.
_PREFIX = re.compile(
    r"^(?:\((?P<process>[\w:.-]+)(?: pid=\d+)?\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ (?:\[[^\]]+\] ?)?)?"
)
# "torch.OutOfMemoryError: CUDA out of memory", "vllm.v1.engine.exceptions.EngineDeadError", "KeyError: 'x'"
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?::|$)")
_ARGPARSE = re.compile(r"^(?:\S+ )*\S*: error: ")
# What systemd says when the process never came to be.
_SYSTEMD = re.compile(r"^(?:\S+\.service: )?Failed (?:at step|to) ")
# A problem as seatctl prints it (core.problems), for example of a patched file.
_PROBLEM = re.compile(r": expected .+, seen ")
# pydantic names the field and what is wrong with it on the two lines that follow.
_VALIDATION = re.compile(r"validation errors? for \w+$")
# They say that something else failed.
_CONSEQUENCE = re.compile(
    r"^Failed to start |Engine core initialization failed|See root cause above|EngineDeadError|SystemExit"
    r"|KeyboardInterrupt|CancelledError|WorkerProc initialization failed|WorkerProc failed to start|Executor failed"
)


def first_cause(lines: Iterable[str]) -> str | None:
    """Return the first line that names a cause, None when no line looks like an error.

    An exception or a refused argument is worth more than a line that is merely logged as an error, and a line that
    points elsewhere ("see root cause above") is taken only when there is nothing better.
    """
    logged = None
    consequence = None
    rest = iter(lines)
    for line in rest:
        text, level = _strip(line)
        if _EXCEPTION.match(text) or _ARGPARSE.match(text) or _SYSTEMD.match(text) or _PROBLEM.search(text):
            if _VALIDATION.search(text):
                text = " ".join([text, *(_strip(detail)[0] for detail in islice(rest, 2))])
            if not _CONSEQUENCE.search(text):
                return text[:MAX_LENGTH]
            consequence = consequence or text
        elif logged is None and level in {"ERROR", "CRITICAL"} and _says_something(text):
            logged = text
    return (logged or consequence or "")[:MAX_LENGTH] or None


def _strip(line: str) -> tuple[str, str | None]:
    match = _PREFIX.match(line)
    text = line[match.end() :] if match else line
    return text.strip(), match["level"] if match else None


def _says_something(text: str) -> bool:
    return bool(text) and not text.startswith(("Traceback ", "File ", "^"))
