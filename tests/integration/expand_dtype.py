"""Runs in a release's own Python on a lab host: what expand does with floats, in the wheel and as installed.

expand_dtype.py WHEEL      prints {"wheel": [...], "installed": [...]}, each [float result, int32 result]
"""

from __future__ import annotations

import json
import sys
import types
import zipfile

import torch
import vllm._C  # noqa: F401 - registers the operators that the wheel's function calls
from vllm.utils import cpu_triton_utils as installed


def results(module: types.ModuleType) -> list[list[float]]:
    """Expand two requests with 2 and 1 drafted tokens; -1 marks what was not written."""
    lengths = torch.tensor([2, 3], dtype=torch.int32)
    found = []
    for kind, values in ((torch.float32, [0.5, 0.25]), (torch.int32, [20, 7])):
        output = torch.full((3,), -1, dtype=kind)
        module._expand_kernel_impl(output, torch.tensor(values, dtype=kind), lengths, 0, 1)
        found.append(output.tolist())
    return found


wheel = types.ModuleType("wheel")
with zipfile.ZipFile(sys.argv[1]) as archive:
    exec(archive.read("vllm/utils/cpu_triton_utils.py"), wheel.__dict__)
print(json.dumps({"wheel": results(wheel), "installed": results(installed)}))
