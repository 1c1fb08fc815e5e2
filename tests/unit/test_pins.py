"""Whether a pin rests on a measurement of this very seat: on the controller and on the host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from seatfleet.core.health.headroom import BOOT_NOISE, FULL, MIXED, RAMP, Step, Trial, settings_hash
from seatfleet.core.inventory.fleet import check_fleet
from seatfleet.core.inventory.pins import doubts, host_doubts, installed_driver, proposed, reference
from seatfleet.core.inventory.seat import Evidence, Seat, Speculative
from seatfleet.core.units import GIB

TOTAL = 97_887 << 20
DECLARED = {"model": "/srv/models/m/1", "max-num-batched-tokens": 8192, "no-enable-x": True, "port": 8022}


def boot(pin: int, clean: bool = True) -> Trial:
    need = 80 * GIB + pin
    steps = [Step(2000, need - GIB, pin, pin), Step(4000, need, pin, pin, retries=0 if clean else 1)]
    steps += [Step(4000, need, pin, pin, phase=phase) for phase in (MIXED, FULL)]
    return Trial(pin, TOTAL, 4000, tuple(steps), phases=(RAMP, MIXED, FULL))


TRIALS = [boot(14 * GIB), boot(14 * GIB + GIB // 4, clean=False), boot(14 * GIB - BOOT_NOISE)]
#: 14 GiB clean, less 1 GiB, less the noise, in quarters of a GiB.
PROPOSED = 12 * GIB + 3 * GIB // 4
SUBJECT: dict[str, Any] = {
    "seat": "flash-next",
    "release_id": "0.33.0-0123456789ab",
    "argv_hash": settings_hash(DECLARED),
    "driver": "580.95.05",
    "max_model_len": 262_144,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": None,
    "speculative": None,
    "co_tenants": [],
}


def evidence(**changes: Any) -> bytes:
    content = {"subject": {**SUBJECT, **changes}, "start": GIB, "total": TOTAL, "trials": [asdict(t) for t in TRIALS]}
    return json.dumps(content).encode()


def seat(text: bytes | None = None, **changes: Any) -> Seat:
    name = hashlib.sha256(text or evidence()).hexdigest()[:12]
    made = Seat(
        "flash-next",
        "fv-ml1",
        "m",
        "0.33.0+rtx.1",
        8022,
        262_144,
        (2,),
        PROPOSED,
        None,
        max_num_batched_tokens=8192,
        kv_cache_why=Evidence("measured", "n", f"files/headroom/{name}.json"),
    )
    return replace(made, **changes)


def test_a_measured_pin_has_no_doubts() -> None:
    assert proposed(evidence())[1] == PROPOSED
    assert reference(seat()) is not None
    assert doubts(seat(), "0.33.0", evidence()) == []
    assert doubts(seat(kv_cache_memory=PROPOSED - GIB), "0.33.0", evidence()) == []  # smaller is as safe
    assert doubts(seat(kv_cache_memory=None, kv_cache_why=None), "0.33.0", None) == []


SEED = Evidence("elsewhere", "one prefill of 155,557 tokens, one request, no MTP, another build")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_why": None}, "rests on nothing"),
        ({"kv_cache_why": SEED}, "not measured here: elsewhere: one prefill of 155,557 tokens, one request, no MTP"),
        ({"kv_cache_why": Evidence("measured", "n", "docs/report.md")}, "not measured here"),
        ({"kv_cache_memory": 14 * GIB}, "the pin is 14.00 GiB, the evidence proposes 12.75 GiB"),
        ({"max_model_len": 131_072}, "max_model_len: probed with 262144, now 131072"),
        ({"max_num_batched_tokens": 16_384}, "max_num_batched_tokens: probed with 8192, now 16384"),
        ({"max_num_seqs": 64}, "max_num_seqs: probed with None, now 64"),
        ({"speculative": Speculative("mtp", 2)}, "speculative: probed with None, now ['mtp', 2]"),
        ({"name": "other"}, "seat: probed with 'flash-next', now 'other'"),
    ],
)
def test_what_makes_a_pin_doubtful(changes: Mapping[str, Any], words: str) -> None:
    (found,) = doubts(seat(**changes), "0.33.0", evidence())
    assert words in found


@pytest.mark.parametrize(
    ("version", "text", "words"),
    [
        ("0.34.0", evidence(), "release: probed with '0.33.0-0123456789ab', now vLLM 0.34.0"),
        ("0.33", evidence(), "release: probed with '0.33.0-0123456789ab', now vLLM 0.33"),
        ("0.33.0", None, "is not there"),
        ("0.33.0", evidence() + b" ", "was changed"),
    ],
)
def test_evidence_of_something_else(version: str, text: bytes | None, words: str) -> None:
    (found,) = doubts(seat(), version, text)
    assert words in found


def test_a_file_that_is_no_evidence() -> None:
    (found,) = doubts(seat(b"{}"), "0.33.0", b"{}")
    assert "no evidence of a headroom probe" in found


# -- validation


class Files:
    """A project with one evidence file."""

    def __init__(self, text: bytes | None) -> None:
        self.text = text

    def content(self, path: str) -> bytes | None:
        return self.text

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def validated(policy: str | None) -> Any:
    written = {"seats": {"s": {"kv_cache_memory": "14GiB"}}, "fleet_hardware": {"gpus": 1}}
    if policy:
        written["fleet_pin_policy"] = policy
    return check_fleet({"h": written}, files=Files(None), planner=None)


def test_the_policy_is_one_of_two() -> None:
    assert any("fleet_pin_policy" in str(problem) for problem in validated("maybe").problems)
    assert not any("fleet_pin_policy" in str(problem) for problem in validated("refuse").problems)


def test_what_was_found_then_counts_and_not_what_a_later_version_would_find() -> None:
    content = {**json.loads(evidence()), "found": {"pin": 5 * GIB}}
    assert proposed(json.dumps(content).encode()) == (SUBJECT, 5 * GIB)


# -- the host


def host(root: Path, text: bytes | None, driver: str | None = "580.95.05") -> None:
    folder = root / "var/lib/seatfleet/evidence/flash-next/headroom"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "0.json").write_bytes(text)
        (folder / "result.json").write_text('{"evidence": "0.json"}')
    if driver:
        file = root / "proc/driver/nvidia/version"
        file.parent.mkdir(parents=True)
        file.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n")


MANIFEST: dict[str, Any] = {
    "seat": "flash-next",
    "release_id": "0.33.0-0123456789ab",
    "kv_cache_memory_bytes": PROPOSED,
    "gpus": [2],
    "declared": {**DECLARED, "enable-x": False, "port": 9, "kv-cache-memory-bytes": 7},
    "max_model_len": 262_144,
    "max_num_seqs": None,
    "speculative": None,
}
del MANIFEST["declared"]["no-enable-x"]


@pytest.mark.parametrize(
    ("changes", "driver", "words"),
    [
        ({}, "580.95.05", None),
        ({"kv_cache_memory_bytes": None}, "580.95.05", None),
        ({"gpus": []}, "580.95.05", None),
        ({}, "581.10", "driver: probed with '580.95.05', now '581.10'"),
        ({}, None, "now 'none'"),
        ({"release_id": "0.33.0-ba9876543210"}, "580.95.05", "release_id"),
        ({"declared": {**DECLARED, "attention-backend": "X"}}, "580.95.05", "argv_hash"),
        ({"kv_cache_memory_bytes": 14 * GIB}, "580.95.05", "its KV pin is 14.00 GiB, measured was 12.75 GiB"),
    ],
)
def test_what_the_host_says(tmp_path: Path, changes: Mapping[str, Any], driver: str | None, words: str | None) -> None:
    host(tmp_path, evidence(), driver)
    found = host_doubts({**MANIFEST, **changes}, tmp_path)
    if words is None:
        assert found == []
    else:
        assert any(words in line for line in found)


def test_a_host_without_evidence(tmp_path: Path) -> None:
    host(tmp_path, None)
    (found,) = host_doubts(MANIFEST, tmp_path)
    assert "was never measured on this host" in found
    (tmp_path / "var/lib/seatfleet/evidence/flash-next/headroom/result.json").write_text("{}")
    (found,) = host_doubts(MANIFEST, tmp_path)
    assert "cannot be read" in found


def test_a_host_without_a_driver(tmp_path: Path) -> None:
    assert installed_driver(tmp_path) is None
