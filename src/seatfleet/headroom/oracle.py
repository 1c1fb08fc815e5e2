"""Can the allocator's warning fire in this release at all? Silence is evidence only where it can."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.health.headroom import allocator_warnings

_LIMIT_S = 120
#: Asks for twice the card, which no driver grants, so nothing is taken from neighbours; prints what was counted.
_SCRIPT = """
import json, torch
if torch.version.cuda is None:
    print(json.dumps({"torch": torch.__version__, "cuda": False}))
    raise SystemExit
torch.zeros(1, device="cuda")
try:
    torch.empty(2 * torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
counts = torch.cuda.memory_stats()
found = {"ooms": counts["num_ooms"], "retries": counts["num_alloc_retries"]}
print(json.dumps({"torch": torch.__version__, "cuda": True, **found}))
"""


def oracle(python: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Provoke an allocation that fails and say who noticed: ``{"torch", "counters", "journal"}``, each a word.

    ``counters`` is ``proven`` when torch counted it, ``journal`` is ``proven`` when it also logged it, else ``silent``;
    ``not checked`` without CUDA.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _SCRIPT],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
            env={**os.environ, **environment},
        )
        counted = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"torch": None, "counters": "not checked", "journal": "not checked", "why": str(error)[:300]}
    if not counted["cuda"]:
        return {"torch": counted["torch"], "counters": "not checked", "journal": "not checked", "why": "no CUDA here"}
    lines = (done.stdout + done.stderr).splitlines()
    return {
        "torch": counted["torch"],
        "counters": "proven" if counted["ooms"] or counted["retries"] else "silent",
        "journal": "proven" if allocator_warnings(lines) else "silent",
    }
