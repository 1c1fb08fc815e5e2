"""The whole headroom probe of one seat: boot after boot, until a pin can be proposed; production back at the end."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..campaign.host import facts
from ..campaign.parity import Deployment, canonical_settings
from ..campaign.seats import SeatFailed
from ..clients.evidence import write_atomic
from ..core.health.headroom import (
    Found,
    Next,
    Trial,
    phase_extras,
    search,
    settings_hash,
    snippet,
    stale,
    trials_from_json,
    unclean,
)
from ..core.host.tenants import APPS_QUERY, Tenant, names, parse_apps
from ..core.units import GIB
from .oracle import oracle
from .prober import ARM, Prober

SCHEMA = "seatfleet.headroom/1"
EVIDENCE = "evidence.json"
_SMI_LIMIT_S = 30


def tenants(gpus: Sequence[str]) -> list[Tenant]:
    """Return the processes on the cards, none on a host without cards."""
    if shutil.which("nvidia-smi") is None:
        return []
    select = ["-i", ",".join(gpus)] if gpus else []
    done = subprocess.run(
        ["nvidia-smi", *select, *APPS_QUERY], capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=True
    )
    return parse_apps(done.stdout)


def subject_of(live: Deployment, seat: str, driver: str, beside: Sequence[Tenant]) -> dict[str, Any]:
    """Return what the evidence will belong to."""
    settings = canonical_settings(live.argv, live.config)
    speculative = settings.get("speculative-config")
    return {
        "seat": seat,
        "release_id": live.identity.get("release"),
        "argv_hash": settings_hash(settings),
        "driver": driver,
        "max_model_len": settings.get("max-model-len"),
        "max_num_batched_tokens": settings.get("max-num-batched-tokens"),
        "max_num_seqs": settings.get("max-num-seqs"),
        "speculative": [speculative["method"], speculative["num_speculative_tokens"]] if speculative else None,
        "co_tenants": names(beside),
    }


@dataclass
class Hunt:
    """One probe of one seat. ``out`` gets the evidence, the raw samples and the logs.

    ``out/evidence.json`` is there until a probe has come to its end; the next one of the same subject goes on there.
    """

    prober: Prober
    seat: str
    out: Path
    start: int | None = None
    python: Path | None = None
    limit_s: float = float("inf")
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    boots: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Search, and bring production back whatever happens; return what was found.

        Raises:
            SeatFailed: the allocator cannot be asked, or not even the first boot came up.
        """
        control = self.prober.control
        self.out.mkdir(parents=True, exist_ok=True)
        live = control.live()
        try:
            control.clear()
            return self._search(live)
        finally:
            control.restore()
            control.discard(ARM)

    def _search(self, live: Deployment) -> dict[str, Any]:
        began = self.clock()
        gpus = self.prober.control.gpus
        machine = facts(gpus)
        driver = next((card["driver_version"] for card in machine["gpus"]), "none")
        beside = tenants(gpus)
        subject = subject_of(live, self.seat, driver, beside)
        start = self.start or self._live_pin(live)
        proof = oracle(self.python, live.env) if self.python else {"journal": "not checked", "counters": "not checked"}
        self.say(f"the allocator's counters: {proof['counters']}, its warning in the journal: {proof['journal']}")
        plan = self._plan()
        self._go_on(subject, plan)
        step = search(self.trials, self._total, start) if self.trials else Next(start)
        while isinstance(step, Next):
            if self.clock() - began > self.limit_s:
                self.say(f"stopped after {self.limit_s:.0f} s")
                break
            self.say(f"boot {len(self.trials) + 1} at {step.pin / GIB:.2f} GiB{' to confirm' if step.confirms else ''}")
            result = self.prober.boot(live, step.pin)
            if not self.trials and not result.trial.steps:
                raise SeatFailed(f"the first boot gave nothing to go by: {result.trial.failure}")
            self.trials.append(result.trial)
            self.boots.append(result.beside)
            self._keep(subject, plan, start, machine, proof, [str(one) for one in beside])
            self.say(
                f"  {unclean(result.trial) or 'clean'}" + (f"; {why}" if (why := result.beside["refused"]) else "")
            )
            step = search(self.trials, self._total, start)
        return self._conclude(subject, step)

    def _plan(self) -> dict[str, Any]:
        """Return what decides how a boot is loaded and judged: boots of another plan are not comparable."""
        plan = self.prober.plan
        captures = {name: str(value) for name in ("replay", "memory_replay") if (value := getattr(plan, name))}
        return {"start": self.start, "phases": list(plan.phases), "fractions": list(plan.depths), **captures}

    def _go_on(self, subject: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Take the boots of a probe that was cut off, when they were made as this one's are, of the seat as it is."""
        try:
            content = json.loads((self.out / EVIDENCE).read_text(encoding="utf-8"))
            trials, boots = trials_from_json(content["trials"]), list(content["boots"])
            differs = stale(content["subject"], json.loads(json.dumps(subject)))
            if content["plan"] != plan:
                differs.append(f"probed with {content['plan']}, now {dict(plan)}")
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.say(f"{self.out / EVIDENCE} cannot be read and is begun anew: {error}")
            return
        if differs:
            self.say(f"{self.out / EVIDENCE} is of something else and is begun anew: {'; '.join(differs)}")
            return
        self.trials, self.boots = trials, boots
        self.prober.started, self.prober.extras = len(trials), phase_extras(trials)
        self.say(f"going on after {len(trials)} boots of {content['created_utc']}")

    @property
    def _total(self) -> int:
        return max(trial.total for trial in self.trials)

    def _live_pin(self, live: Deployment) -> int:
        pin = canonical_settings(live.argv, live.config).get("kv-cache-memory-bytes")
        if not isinstance(pin, int):
            raise SeatFailed("the seat has no kv_cache_memory to start from: give --start, for example 4GiB")
        return pin

    def _keep(
        self,
        subject: Mapping[str, Any],
        plan: Mapping[str, Any],
        start: int,
        machine: Mapping[str, Any],
        proof: Mapping[str, Any],
        beside: Sequence[str],
    ) -> None:
        """Write the evidence as it is after each boot: what ends the probe does not end what it has learnt."""
        content = {
            "schema": SCHEMA,
            "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "subject": dict(subject),
            "plan": dict(plan),
            "start": start,
            "total": self._total,
            "trials": [asdict(trial) for trial in self.trials],
            "boots": self.boots,
            "oracle": proof,
            "machine": dict(machine),
            "tenants": list(beside),
        }
        write_atomic(self.out / EVIDENCE, json.dumps(content, indent=1) + "\n")

    def _conclude(self, subject: Mapping[str, Any], step: Next | Found) -> dict[str, Any]:
        """Return the result, and keep the evidence under the name of its own hash."""
        found = step if isinstance(step, Found) else Found(0, 0, len(self.trials), confirmed=False)
        # What was found belongs into the evidence: a later version may search in another way.
        content = {**json.loads((self.out / EVIDENCE).read_text(encoding="utf-8")), "found": asdict(found)}
        text = json.dumps(content, indent=1) + "\n"
        digest = hashlib.sha256(text.encode()).hexdigest()
        write_atomic(self.out / f"{digest[:12]}.json", text)
        result = {
            "pin": found.pin,
            "clean_pin": found.clean_pin,
            "confirmed": found.confirmed,
            "boots": [{"pin": trial.pin, "unclean": unclean(trial)} for trial in self.trials],
            "evidence": f"{digest[:12]}.json",
            "snippet": snippet(found, subject, self.trials, digest) if found.pin else None,
        }
        write_atomic(self.out / "result.json", json.dumps(result, indent=1) + "\n")
        if isinstance(step, Found):
            (self.out / EVIDENCE).unlink()
        return result
