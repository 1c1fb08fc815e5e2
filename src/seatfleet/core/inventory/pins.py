"""Whether a seat's KV pin rests on a measurement of this very seat: on the controller, and again on its host.

A pin that nobody measured works until the first deep prompt. The evidence is a file of the headroom probe, named by the
beginning of its own sha256 (:data:`seatfleet.core.health.headroom.EVIDENCE_FOLDER`); what it belongs to is its
``subject``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..health.headroom import EVIDENCE_FOLDER, Found, search, settings_hash, stale, trials_from_json
from ..paths import EVIDENCE
from ..units import format_gib
from .seat import Seat

#: What to do with a pin that has no matching evidence.
POLICIES = ("report", "refuse")
_REFERENCE = re.compile(re.escape(EVIDENCE_FOLDER) + r"/([0-9a-f]{12})\.json")
_PROBE = "measure it with playbooks/headroom.yml"
_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


def proposed(text: bytes) -> tuple[Mapping[str, Any], int]:
    """Return the subject of an evidence file and the pin that follows from its boots, 0 when none does.

    Raises:
        ValueError: it is no evidence of the headroom probe.
    """
    try:
        content = json.loads(text)
        subject = dict(content["subject"])
        if "found" in content:
            return subject, int(content["found"]["pin"])
        trials = trials_from_json([{"total": content["total"], **trial} for trial in content["trials"]])
        step = search(trials, content["total"], content["start"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no evidence of a headroom probe: {error!r}") from error
    return subject, step.pin if isinstance(step, Found) else 0


def _known(seat: Seat, subject: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subject as it would be now, as far as the inventory alone can tell; the rest is left to the host."""
    speculative = seat.speculative
    return {
        **subject,
        "seat": seat.name,
        "max_model_len": seat.max_model_len,
        "max_num_batched_tokens": seat.max_num_batched_tokens,
        "max_num_seqs": seat.max_num_seqs,
        "speculative": [speculative.method, speculative.num_speculative_tokens] if speculative else None,
    }


def reference(seat: Seat) -> str | None:
    """Return the file that a seat's pin refers to, None when it refers to none of the headroom probe."""
    why = seat.kv_cache_why
    return why.reference if why and why.reference and _REFERENCE.fullmatch(why.reference) else None


def doubts(seat: Seat, version: str | None, text: bytes | None) -> list[str]:
    """Return why a seat's pin is not proven, as far as the inventory tells; empty when it is, or when there is no pin.

    ``version`` is vLLM's in the seat's release; ``text`` the content of :func:`reference`, None when it is not there.
    """
    if seat.kv_cache_memory is None:
        return []
    why, name = seat.kv_cache_why, reference(seat)
    if why is None:
        return [f"the pin rests on nothing (kv_cache_why is missing): {_PROBE}"]
    if why.state != "measured" or name is None:
        return [f"the pin is not measured here: {why}; {_PROBE}"]
    if text is None:
        return [f"the pin's evidence {name} is not there: {_PROBE}"]
    digest = hashlib.sha256(text).hexdigest()
    if digest[:12] != Path(name).stem:
        return [f"the pin's evidence {name} was changed: its sha256 is {digest}"]
    try:
        subject, pin = proposed(text)
    except ValueError as error:
        return [f"{name}: {error}"]
    found = [f"the pin's evidence is stale, {line}" for line in stale(subject, _known(seat, subject))]
    probed = str(subject.get("release_id"))
    if version is not None and probed.rpartition("-")[0] != version:
        found.append(f"the pin's evidence is stale, release: probed with {probed!r}, now vLLM {version}")
    if seat.kv_cache_memory > pin:
        found.append(f"the pin is {format_gib(seat.kv_cache_memory)}, the evidence proposes {format_gib(pin)}")
    return found


def installed_driver(root: Path = Path("/")) -> str | None:
    """Return the version of the loaded NVIDIA driver, None without one."""
    try:
        match = _DRIVER.search((root / "proc/driver/nvidia/version").read_text(encoding="utf-8"))
    except OSError:
        return None
    return match[1] if match else None


def host_doubts(manifest: Mapping[str, Any], root: Path = Path("/")) -> Sequence[str]:
    """Return why the pin of a generation is not proven on this host: its own evidence, its driver, all its settings.

    Empty for a seat without a pin, or without a card (nothing there can be measured).
    """
    pin = manifest.get("kv_cache_memory_bytes")
    if pin is None or not manifest.get("gpus"):
        return []
    folder = root / EVIDENCE.lstrip("/") / str(manifest["seat"]) / "headroom"
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        text = (folder / str(result["evidence"])).read_bytes()
        subject, largest = proposed(text)
    except FileNotFoundError:
        return [f"the KV pin of {format_gib(pin)} was never measured on this host: {_PROBE}"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"the evidence of its KV pin cannot be read ({error}): {_PROBE}"]
    declared = manifest.get("declared") or {}
    speculative = manifest.get("speculative")
    now = {
        **subject,
        "seat": manifest["seat"],
        "release_id": manifest["release_id"],
        "argv_hash": settings_hash(declared),
        "driver": installed_driver(root) or "none",
        "max_model_len": manifest.get("max_model_len"),
        "max_num_seqs": manifest.get("max_num_seqs"),
        "max_num_batched_tokens": declared.get("max-num-batched-tokens"),
        "speculative": [speculative["method"], speculative["k"]] if speculative else None,
    }
    found = [f"the evidence of its KV pin is stale, {line}: {_PROBE}" for line in stale(subject, now)]
    if pin > largest:
        found.append(f"its KV pin is {format_gib(pin)}, measured was {format_gib(largest)}: {_PROBE}")
    return found
