"""Run a screen campaign on one GPU with seatfleet's own campaign code: ``campaign.py ROOT OUT``.

DFlash with 4 and 12 draft tokens against none, and a broken drafter that must be voided, on vLLM 0.23.0 with the series
and the fabricated models of ``make_models.py``. Schedule, load, controls and raw data are those of ``seatctl campaign
run``; only the way a server is started differs from a seat host (a process instead of a unit).

The campaign runs in a session of its own and outlives this command: called again it attaches, and after a crash or on a
machine that was given back meanwhile it goes on or begins anew. Every call writes what there is to OUT: ``raw.tar.gz``,
``run.log``, ``server.log`` and ``status.json``. Exit code 0: complete, 4: not yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from prove import COMMON, ENVIRONMENT, FIXED, GRAPHS

NAME = "dflash"
PORT = 8300
MODEL_LENGTH = 16384
POLL_S = 2.0
LOG_LINES = 400
EXIT_NOT_YET = 4


def settings(flags: list[str]) -> dict[str, Any]:
    """Return command line flags as vLLM's config file has them."""
    found: dict[str, Any] = {}
    for flag, value in zip(flags, [*flags[1:], "--"], strict=True):
        if flag.startswith("--"):
            found[flag.removeprefix("--")] = True if value.startswith("--") else yaml.safe_load(value)
    return found


def seat(root: Path) -> dict[str, Any]:
    """Return the live seat that every arm is derived from: no speculation, patched release, fixed KV cache."""
    model = root / "models/target-chat"
    config = {**settings([*COMMON, *FIXED, *GRAPHS]), "max-model-len": MODEL_LENGTH}
    return {
        "seat": "gpu",
        "executable": [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"],
        "config": {**config, "model": str(model), "served-model-name": ["gpu"], "host": "127.0.0.1", "port": PORT},
        "env": {**ENVIRONMENT, "PYTHONPATH": f"{root / 'trees/ours'}:{root / 'site'}"},
        "identity": {"release": "vllm 0.23.0 with the series of files/patches/vllm-0.23.0"},
    }


def definition(root: Path) -> dict[str, Any]:
    """Return the campaign.

    What the drafter's way of guessing gives on these texts can be counted by hand: acceptance lengths of 3.65 and 6.23
    on counting and of 1.28 and 1.33 on prose, with 4 and 12 drafts. The bands lie 10 to 20 % below.
    """

    def arm(drafter: str, drafts: int) -> dict[str, Any]:
        model = str(root / "models" / drafter)
        return {"speculative-config": {"method": "dflash", "model": model, "num_speculative_tokens": drafts}}

    healthy = {"n4": {"count": 3.2, "prose": 1.1}, "n12": {"count": 5.0, "prose": 1.1}}
    return {
        "seat": "gpu",
        "question": "Does DFlash make the fabricated hybrid faster on one H200, and with how many draft tokens?",
        "studied_keys": ["speculative-config"],
        "arms": {
            "off": {},
            "n4": arm("drafter-good", 4),
            "n12": arm("drafter-good", 12),
            "broken": arm("drafter-broken", 12),
        },
        "positive_controls": ["broken"],
        "bands": {**healthy, "broken": healthy["n12"]},
        "mode": "screen",
        "shapes": {"count": {"max_tokens": 300}, "prose": {"max_tokens": 300}},
        "concurrency": [1, 4],
        "primary": {"metric": "aggregate_output_tok_s", "shapes": ["count"], "concurrency": [1, 4]},
        "requests": 4,
        "reps": 2,
        "warmup_boots": False,
        "idle_s": 1,
        "ready_timeout_s": 300,
    }


def start(root: Path, work: Path, seat_file: Path, definition_file: Path) -> None:
    """Start the campaign, or let it go on, in a session of its own."""
    command = [sys.executable, "-m", "seatfleet.cli", "campaign", "run", str(work / NAME), "--name", NAME]
    command += ["--definition", str(definition_file), "--local", str(seat_file), "--work", str(work / "servers")]
    paths = os.pathsep.join(filter(None, (str(root / "tool"), str(root / "site"), os.environ.get("PYTHONPATH"))))
    with (work / "run.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
        )
    (work / "pid").write_text(str(process.pid))


def runs(work: Path) -> bool:
    """Tell whether the campaign's process is there; one that ended as our child is collected."""
    try:
        pid = int((work / "pid").read_text())
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    # for a moment after its start a process has no command line; a zombie has none either
    return state != "Z" and (not command or b"seatfleet.cli" in command)


def status(work: Path) -> dict[str, Any]:
    """Return how far the campaign is, as ``seatctl campaign status`` says it."""
    from seatfleet.campaign.plan import progress
    from seatfleet.campaign.rawdata import RawCampaign

    raw = RawCampaign(work / NAME)
    return dict(progress(raw)) if raw.exists else {"left": -1, "next": "nothing measured yet"}


def tail(path: Path) -> str:
    """Return the end of a log."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return "\n".join(line[:300] for line in lines[-LOG_LINES:]) + "\n"


def hand_out(work: Path, out: Path) -> dict[str, Any]:
    """Copy what there is to OUT; the report is made where scipy is, ``seatctl campaign report RAW``."""
    out.mkdir(parents=True, exist_ok=True)
    found = status(work)
    (out / "status.json").write_text(json.dumps(found, indent=1))
    if (work / NAME).is_dir():
        shutil.make_archive(str(out / "raw"), "gztar", work, NAME)
    (out / "run.log").write_text(tail(work / "run.log"))
    servers = sorted((work / "servers").glob("start-*.log"))
    (out / "server.log").write_text(tail(servers[-1]) if servers else "no server was started\n")
    return found


def main() -> int:
    """Start or attach, wait, hand out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="where unpack.sh has put trees and models")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0, help="return after so long, complete or not")
    parser.add_argument("--seat", type=Path, help="another live seat (to try this script on a machine without a GPU)")
    parser.add_argument("--definition", type=Path, help="another definition of a campaign with the name dflash")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    work = args.root.resolve() / "campaign"
    work.mkdir(parents=True, exist_ok=True)
    seat_file, definition_file = work / "seat.yml", work / "campaigns.yml"
    live = yaml.safe_load(args.seat.read_text()) if args.seat else seat(args.root.resolve())
    wanted = yaml.safe_load(args.definition.read_text()) if args.definition else None
    if not runs(work):
        seat_file.write_text(yaml.safe_dump(live, sort_keys=False))
        campaigns = wanted or {"campaigns": {NAME: definition(args.root.resolve())}}
        definition_file.write_text(yaml.safe_dump(campaigns, sort_keys=False))
        start(args.root.resolve(), work, seat_file, definition_file)
    while runs(work) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    found = hand_out(work, args.out)
    print((args.out / "run.log").read_text()[-3000:])
    print(json.dumps(found))
    return 0 if found["left"] == 0 else EXIT_NOT_YET


if __name__ == "__main__":
    sys.exit(main())
