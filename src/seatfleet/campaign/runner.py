"""Measures a campaign: one boot after the other, each complete on disk before the next begins.

Whatever ends it (an error, SIGTERM, SIGINT), the seat is stopped and production restored before :meth:`Runner.run`
returns; what SIGKILL leaves behind, the unit that runs it cleans up (``ExecStopPost``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

import httpx

from ..clients.probe import Host, Options, probe
from ..clients.probe.identity import CACHE_CONFIG, kv_cache_tokens
from ..clients.vllm import Limits, SeatClient, SeatError
from ..core.health.metrics import MetricsError, boot_identity
from ..core.health.probe_report import EXIT_READY
from ..core.seat.manifest import Manifest
from . import host as machine
from . import observe, parity
from .canary import Answers, check_answers
from .definition import Definition, changed_fields
from .load import CellRun, LoadClient, Target
from .pages import Pages
from .parity import ArmConfig, Deployment, Refusal
from .plan import END_TO_END_PROMPTS
from .prompts import Prompt, Shape, make_shapes
from .rawdata import BootWriter, Progress, RawCampaign, pack
from .schedule import Slot, make_schedule, rep_order
from .seats import SeatControl, SeatFailed
from .telemetry import Sampler

#: A pause longer than this, or a reboot, opens a new block.
LONGEST_GAP_S = 6 * 3600.0
#: A boot that fails is tried once more; twice in a row is no accident.
ATTEMPTS = 2
#: The warm-up is over when the server does not get faster any more, or after so many passes: after a single one, first
#: repetitions took up to twice the time of second ones (docs/evidence/campaign-gpu-2026-11-30).
WARM_UP_PASSES = 5


class Interrupted(KeyboardInterrupt):
    """Somebody asked the campaign to end; it can be resumed. No Exception, so that no handler of errors takes it."""


def client_sha256() -> str:
    """Return the hash of everything that sends, stamps and counts: two hashes are two harnesses (rule R1)."""
    package = resources.files(__package__)
    names = ["load.py", "pages.py", "prompts.py", "runner.py"]
    content = b"".join((package / name).read_bytes() for name in names)
    index = (package / "shapes" / "index.json").read_bytes()
    return hashlib.sha256(content + index).hexdigest()


@dataclass
class Runner:
    """One campaign on one machine."""

    definition: Definition
    written: Mapping[str, Any]
    control: SeatControl
    raw: RawCampaign
    host_name: str = "localhost"
    say: Callable[[str], None] = print
    answers: Callable[[Manifest, SeatClient, Host, Path], Answers] = check_answers
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    interrupted: str | None = None
    restoring: bool = False
    _looping: bool = False
    _task: asyncio.Task[CellRun] | None = None
    shapes: dict[str, Shape] = field(default_factory=dict)
    boot_seconds: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Measure what is left of the campaign.

        Raises:
            Refusal: the campaign must not be made, or not be continued here.
            SeatFailed: an arm failed twice.
        """
        with self._locked():
            try:
                self._measure_all()
                self.control.discard(self.raw.path.name)
            except Interrupted as error:
                self.restoring = True
                self.raw.clear_partial(f"interrupted by {error}")
                raise
            finally:
                self.restoring = True
                self.control.restore()

    def interrupt(self, reason: str) -> None:
        """Ask for the end, from a signal handler; production is restored without being interrupted again.

        Inside an event loop the cell's task is cancelled: what a handler raises there is lost between two callbacks, or
        leaves the loop's cancel scopes spinning (both seen). Outside it is raised, and remembered all the same, because
        Python drops it inside a destructor.

        Raises:
            Interrupted: at once, outside of an event loop.
        """
        self.interrupted = reason
        if self.restoring:
            return
        if not self._looping:
            raise Interrupted(reason)
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def go_on(self) -> None:
        """Raise :class:`Interrupted` when somebody has asked for the end."""
        if self.interrupted is not None and not self.restoring:
            raise Interrupted(self.interrupted)

    def run_cell(self, cell: Coroutine[Any, Any, CellRun]) -> CellRun:
        """Run one cell in an event loop of its own, ended by :meth:`interrupt`."""

        async def guarded() -> CellRun:
            self._task = asyncio.ensure_future(cell)
            if self.interrupted is not None:
                self._task.cancel()
            return await self._task

        self._looping = True
        try:
            return asyncio.run(guarded())
        except asyncio.CancelledError:
            raise Interrupted(self.interrupted or "cancelled") from None
        finally:
            self._looping, self._task = False, None
            self.go_on()

    def _locked(self) -> AbstractContextManager[None]:
        self.raw.path.mkdir(parents=True, exist_ok=True)
        return self.raw.locked()

    def _measure_all(self) -> None:
        live = self.control.live()
        if not self.raw.exists:
            self._create(live)
        manifest = self.raw.manifest()
        configs = self.configs(live, manifest["overrides"])
        # before anything is compared: an arm may have other cards than the live seat
        self.control.gpus = _cards(configs.values()) or self.control.gpus
        self._refuse_changes(manifest, live, configs)
        if self.raw.progress().next_slot is None:
            self.raw.seal()
            self.say(f"campaign {self.raw.path.name} was complete already")
            return
        self._refuse_gpus_in_use()
        self.control.clear()
        rest = machine.look(self.control.gpus)
        if self.definition.kv_pin is not None and "kv_pin_search" not in manifest:
            configs = self._search_pin(live, rest)
        progress = self.raw.progress().resumed(
            self.definition.control, machine.host_boot_id(), self.clock(), LONGEST_GAP_S
        )
        self.raw.save(progress)
        self.raw.amend(gaps=[{"before_slot": slot, "gap_s": gap} for slot, gap in progress.gaps])
        self.raw.clear_partial("interrupted: found when the campaign went on")
        if self.definition.warmup_boots and self.definition.compile_cache == "persist":
            self._warm_caches({arm: configs[arm] for arm in self._cold_arms(progress, list(configs))}, rest)
        while (slot := self.raw.progress().next_slot) is not None:
            self._measure_slot(slot, configs[slot.arm], rest)
        self.raw.seal()
        self.say(f"campaign {self.raw.path.name} is complete: {len(self.raw.boots())} boots in {self.raw.path}")

    # --- before the first boot

    def configs(self, live: Deployment, overrides: Mapping[str, Any]) -> dict[str, ArmConfig]:
        """Return the configuration of every arm, refusing arms that differ in more than the studied keys."""
        parity.refuse_unproven(live)
        keys = self.definition.studied_keys
        configs = {arm.id: parity.derive_arm(live, arm, keys, overrides) for arm in self.definition.arms}
        parity.refuse_base_mismatch(configs.values())
        parity.refuse_startup_plan(configs.values())
        if not self.definition.synthetic:
            parity.refuse_synthetic(configs.values())
        return configs

    def _create(self, live: Deployment) -> None:
        overrides = self._shadow_overrides()
        configs = self.configs(live, overrides)
        self._refuse_missing_parser(configs[self.definition.control])
        order = [slot.arm for slot in make_schedule(self.definition)]
        RawCampaign.create(
            self.raw.path,
            {
                "campaign_id": self.raw.path.name,
                "campaign": self.definition.name,
                "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
                "host": self.host_name,
                "definition": dict(self.written),
                "source": live.source,
                "identity": dict(live.identity),
                "overrides": overrides,
                "max_num_seqs": next(iter(configs.values())).settings.get("max-num-seqs"),
                "client": {"sha256": client_sha256(), "httpx": httpx.__version__},
                "arms": {name: {"argv_hash": c.argv_hash, "base_hash": c.base_hash} for name, c in configs.items()},
            },
            order,
        )
        self.say(f"order of boots: {' '.join(order)}")

    def _refuse_missing_parser(self, config: ArmConfig) -> None:
        asks_for_tools = any(use.name == "tool" for use in self.definition.shapes)
        if asks_for_tools and not config.settings.get("tool-call-parser"):
            raise Refusal("R17 no parser", "the shape tool needs a seat with tool_call_parser; the live one has none")

    def _refuse_gpus_in_use(self) -> None:
        """R19: a shadow seat beside somebody else's work measures that, too."""
        busy = machine.gpu_processes(self.control.gpus) if self.definition.shadow else []
        if busy:
            where = ", ".join(self.control.gpus)
            raise Refusal("R19 GPU in use", f"the shadow seat needs idle GPUs; on {where} run: {'; '.join(busy)}")

    def _shadow_overrides(self) -> dict[str, Any]:
        shadow = self.definition.shadow
        if shadow is None:
            return {}
        visible = ",".join(str(gpu) for gpu in shadow.gpus)
        return {"port": shadow.port, "env:CUDA_VISIBLE_DEVICES": visible}

    def _refuse_changes(self, manifest: Mapping[str, Any], live: Deployment, configs: Mapping[str, ArmConfig]) -> None:
        """Refuse to go on with another definition, client, release or machine than the campaign began with."""
        changed = changed_fields(manifest["definition"], json.loads(json.dumps(self.written)))
        if changed:
            fields = "; ".join(
                f"{name}: expected {manifest['definition'].get(name)!r}, seen {self.written.get(name)!r}"
                for name in changed
            )
            raise Refusal(
                "R5 definition", f"the definition changed since the campaign began ({fields}); begin a new one"
            )
        if manifest["client"]["sha256"] != client_sha256():
            raise Refusal("R1 harness", "the client changed since the campaign began; begin a new one")
        if manifest["identity"] != dict(live.identity):
            raise Refusal("R4 provenance", f"the seat changed: expected {manifest['identity']}, seen {live.identity}")
        for name, arm in manifest["arms"].items():
            # also before the first boot: the KV pin was searched for with what was live then
            if arm["argv_hash"] != configs[name].argv_hash:
                raise Refusal("R3 base", f"arm {name} was something else when the campaign began than is live now")
        for boot in self.raw.boots():
            info = self.raw.boot(boot)
            if info["argv_hash"] != configs[info["arm"]].argv_hash:
                raise Refusal("R3 base", f"boot {boot} was something else than the live deployment gives now")
            provenance = self._provenance()
            if {**info["provenance"], "vllm_version": None} != {**provenance, "vllm_version": None}:
                raise Refusal("R4 provenance", f"boot {boot}: expected {info['provenance']}, seen {provenance}")

    def _provenance(self) -> dict[str, Any]:
        return {**machine.facts(self.control.gpus), "vllm_version": None}

    def _search_pin(self, live: Deployment, rest: machine.Calm) -> dict[str, ArmConfig]:
        """Step 0: find one KV pin that the heaviest arm serves with room to spare, and fix it for all arms."""
        wanted = self.definition.kv_pin
        assert wanted is not None
        overrides = dict(self.raw.manifest()["overrides"])
        pin = self.configs(live, overrides)[self.definition.control].settings.get("kv-cache-memory-bytes")
        if not isinstance(pin, int):
            raise Refusal("R15 no pin", f"kv_pin needs a seat with kv_cache_memory; the live one has {pin!r}")
        # which of several arms with as many drafts needs most memory is not known, so all of them must serve
        most = max(arm.draft_tokens for arm in self.definition.arms)
        heaviest = [arm.id for arm in self.definition.arms if arm.draft_tokens == most]
        tried: list[dict[str, Any]] = []
        while pin >= wanted.minimum:
            configs = self.configs(live, {**overrides, "kv-cache-memory-bytes": pin})
            problem: str | None = None
            for arm in heaviest:
                problem, free = self._try_pin(configs[arm], wanted.margin, rest)
                tried.append({"arm": arm, "pin_bytes": pin, "problem": problem, "free_mib": free})
                self.say(f"step 0: {arm} with a KV pin of {pin / machine.MIB:.0f} MiB: {problem or 'serves'}")
                if problem is not None:
                    break
            if problem is None:
                arms = {name: {"argv_hash": c.argv_hash, "base_hash": c.base_hash} for name, c in configs.items()}
                overrides["kv-cache-memory-bytes"] = pin
                self.raw.amend(overrides=overrides, kv_pin_search=tried, arms=arms)
                return configs
            pin -= wanted.step
        names = ", ".join(heaviest)
        raise Refusal("R15 no pin", f"{names}: no pin down to {wanted.minimum} serves: {tried}")

    def _try_pin(self, config: ArmConfig, margin: int, rest: machine.Calm) -> tuple[str | None, float | None]:
        try:
            with _Boot(self, config, self._cache(f"{config.arm}-pin"), rest) as boot:
                boot.warm_up(self._load_shapes(boot))
                free = machine.free_gpu_mib(self.control.gpus)
        except (SeatFailed, SeatError, MetricsError, httpx.HTTPError) as error:
            return str(error), None
        if free is not None and free * machine.MIB < margin:
            return f"only {free:.0f} MiB of GPU memory are free", free
        return None, free

    def _warm_caches(self, configs: Mapping[str, ArmConfig], rest: machine.Calm) -> None:
        """Boot every arm once unmeasured, so that no measured boot pays for compiling (policy persist)."""
        for arm, config in configs.items():
            self.say(f"warm-up boot of {arm}")
            with _Boot(self, config, self._cache(arm), rest) as boot:
                boot.warm_up(self._load_shapes(boot))

    def _cold_arms(self, progress: Progress, arms: Sequence[str]) -> list[str]:
        """Return the arms to warm: all before the first boot, later those still to come whose caches are gone.

        A campaign that was complete has none any more; its last boot, measured again, would be the only cold one.
        """
        if not progress.done:
            return list(arms)
        if Path(self.control.cache_root(self.raw.path.name)).exists():
            return []
        left = {planned.arm for planned in progress.schedule[len(progress.done) :]}
        return [arm for arm in arms if arm in left]

    def _cache(self, arm: str) -> str:
        """Name a compile cache: of this campaign only, since an arm of the same name in another is another arm."""
        return f"{self.raw.path.name}/{arm}"

    def _load_shapes(self, boot: _Boot) -> dict[str, Shape]:
        """Return the prompts; long documents are sized by the seat's own tokenizer, so a seat must run."""
        if not self.shapes:
            largest = {
                use.name: max(c for s, c in self.definition.cells() if s == use.name) for use in self.definition.shapes
            }
            self.shapes = make_shapes(
                self.definition.shapes,
                lambda shape: self.definition.requests_of(shape, largest[shape]),
                boot.count_tokens,
            )
        return self.shapes

    # --- one boot

    def _measure_slot(self, slot: Slot, config: ArmConfig, rest: machine.Calm) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._measure_boot(slot, config, rest)
                return
            except (SeatFailed, SeatError, MetricsError, httpx.HTTPError) as error:
                moved = self.raw.clear_partial(f"{type(error).__name__}: {error}")
                self.say(f"boot {slot.directory} failed ({error}); kept as aborted/{', '.join(moved)}")
                if attempt == ATTEMPTS:
                    raise SeatFailed(
                        f"boot {slot.directory} failed {ATTEMPTS} times, the last time: {error}"
                    ) from error

    def _measure_boot(self, slot: Slot, config: ArmConfig, rest: machine.Calm) -> None:
        began = time.monotonic()
        progress = self.raw.progress()
        fresh = self.definition.compile_cache == "fresh"
        cache = self._cache(f"{slot.arm}-{slot.index}" if fresh else slot.arm)
        self._announce(slot)
        writer = self.raw.begin(slot.directory)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with _Boot(self, config, cache, rest) as boot:
            shapes = self._load_shapes(boot)
            warm_up_s = boot.warm_up_until_steady(shapes)
            before = boot.canary()
            sampler = Sampler(self.control.gpus)
            sampler.start()
            try:
                rep_s = boot.measure(writer, slot, shapes)
            finally:
                writer.file("telemetry.csv", sampler.stop().encode())
            info = {
                "slot": slot.index,
                "arm": slot.arm,
                "occurrence": slot.occurrence,
                "extra": progress.schedule[slot.index].extra,
                "block": progress.block,
                "started_utc": started,
                "host_boot_id": progress.host_boot_id,
                "argv_hash": config.argv_hash,
                "base_hash": config.base_hash,
                "settings": dict(config.settings),
                "env": dict(config.env),
                "changes": {key: list(pair) for key, pair in config.changes.items()},
                "provenance": {**self._provenance(), "vllm_version": boot.version},
                "client_sha256": client_sha256(),
                "sampling": dict(self.definition.sampling),
                "shapes": {name: shape.sha256 for name, shape in shapes.items()},
                "resolved": boot.resolved(),
                "ready_s": boot.ready_s,
                "warm_up_s": warm_up_s,
                "boot_identity": boot.identity,
                "cooldown": dict(boot.cooldown),
                "load_average": machine.load_average(),
                "compile_cache": {"policy": self.definition.compile_cache, "root": self.control.cache_root(cache)},
                "canary_before": before,
                "canary_after": boot.canary(),
            }
            lines = self.control.log()
            info["log_kept"] = bool(lines)
            writer.file("log_start.txt.gz", pack("\n".join(lines[: boot.ready_lines]).encode()))
            writer.file("log_after_ready.txt.gz", pack("\n".join(lines[boot.ready_lines :]).encode()))
        took = time.monotonic() - began
        self.boot_seconds.append(took)
        info["cost"] = {"rep_s": rep_s, "boot_s": max(0.0, took - rep_s * self.definition.reps)}
        self.raw.complete(writer, info, progress, slot, self.clock())
        self.raw.amend(shapes={name: {"sha256": s.sha256, "prompts": len(s.prompts)} for name, s in shapes.items()})

    def _announce(self, slot: Slot) -> None:
        left = len(self.raw.progress().schedule) - len(self.raw.boots())
        eta = f", about {fmean(self.boot_seconds) * left / 60:.0f} minutes left" if self.boot_seconds else ""
        self.say(f"boot {slot.index + 1} of {slot.index + left}: {slot.arm}{eta}")


def _cards(configs: Iterable[ArmConfig]) -> tuple[str, ...]:
    """Return the cards that any arm may use: not those of the live seat for a shadow or with more of them per arm."""
    visible = (config.env.get("CUDA_VISIBLE_DEVICES", "").split(",") for config in configs)
    return tuple(dict.fromkeys(card for cards in visible for card in cards if card))


class _Boot:
    """One start of one arm, as a context: started and READY inside, stopped afterwards whatever happened."""

    def __init__(self, runner: Runner, config: ArmConfig, cache: str, rest: machine.Calm) -> None:
        self.runner, self.config, self.cache, self.rest = runner, config, cache, rest
        self.definition, self.control = runner.definition, runner.control
        self.cooldown: Mapping[str, Any] = {}
        self.ready_s = 0.0
        self.ready_lines = 0
        self.version = ""
        self.identity: str | None = None

    def __enter__(self) -> Self:
        self.runner.go_on()
        self.control.stop()
        self.cooldown = machine.calm_down(self.rest, self.definition.idle_s, self.control.gpus, sleep=self.runner.sleep)
        try:
            self._start()
        except BaseException:
            self.control.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.pages.close()
        self.control.stop()

    def _start(self) -> None:
        began = time.monotonic()
        self.control.start(self.config, self.cache)
        self.manifest: Manifest = self.control.manifest(self.config)
        parity.refuse_remote_client(self.manifest.base_url)
        self.client = SeatClient(self.manifest.base_url, self.control.api_key, Limits(request=600.0))
        self.pages = Pages(self.target)
        report = probe(
            self.manifest,
            self.client,
            self.control.host(),
            # An arm may take as long as its seat: an hour on GB10.
            Options(ready_timeout_s=max(self.definition.ready_timeout_s, self.manifest.ready_timeout_s), poll_s=1.0),
            "ready",
        )
        if report.exit != EXIT_READY:
            raise SeatFailed(f"arm {self.config.arm} is not READY: {report.cause}")
        self.ready_s = round(time.monotonic() - began, 3)
        self.ready_lines = len(self.control.log())
        self.version = self.client.version()
        self.pages.refuse_busy()
        self.identity = boot_identity(self.pages.page)

    # --- asking the seat

    @property
    def target(self) -> Target:
        """The seat under load."""
        return Target(self.manifest.base_url, self.manifest.model_id, self.control.api_key)

    def count_tokens(self, prompt: Prompt) -> int:
        """Return the prompt's tokens by the seat's own tokenizer."""
        return self.client.tokenize(self.manifest.model_id, prompt.messages)[0]

    def resolved(self) -> dict[str, Any]:
        """Return what the engine decided for itself."""
        page = self.pages.read()
        labels = next(iter(page.infos(CACHE_CONFIG)), {})
        lengths = {card.id: card.max_model_len for card in self.client.models()}
        tokens, _ = kv_cache_tokens(page, self.control.log()[: self.ready_lines])  # no label before 0.28, a log line
        return {
            **observe.induced(labels),
            "kv_cache_size_tokens": None if tokens is None else str(tokens),
            "max_model_len": lengths.get(self.manifest.model_id),
        }

    def canary(self) -> dict[str, Any]:
        """Return what is wrong with the seat's answers."""
        evidence = self.runner.raw.path / "evidence" / self.config.arm
        return self.runner.answers(self.manifest, self.client, self.control.host(), evidence).as_json()

    # --- loading the seat

    def _cell(self, prompts: Sequence[Prompt], concurrency: int, **options: Any) -> CellRun:  # noqa: ANN401
        load = LoadClient(self.target, self.definition.sampling, self.definition.chat_template_kwargs)
        return self.runner.run_cell(load.cell(prompts, concurrency, **options))

    def warm_up(self, shapes: Mapping[str, Shape]) -> None:
        """Run every shape at every concurrency once, discarded: kernels are built, first waves took 40 to 57 s."""
        for name, concurrency in self.definition.cells():
            run = self._cell(shapes[name].take(concurrency), concurrency)
            failed = [request for request in run.requests if not request.ok]
            if failed:
                raise SeatFailed(f"warm-up of {name} at concurrency {concurrency}: {failed[0].error}")

    def warm_up_until_steady(self, shapes: Mapping[str, Shape]) -> list[float]:
        """Warm up until the server does not get faster any more; return the seconds of each pass."""
        passes: list[float] = []
        while len(passes) < WARM_UP_PASSES:
            began = time.monotonic()
            self.warm_up(shapes)
            passes.append(round(time.monotonic() - began, 3))
            if not observe.still_faster(passes):
                break
        return passes

    def measure(self, writer: BootWriter, slot: Slot, shapes: Mapping[str, Shape]) -> float:
        """Run all repetitions; return the mean seconds of one."""
        keeper = _Keeper(self, writer)
        durations = []
        busy_s: dict[tuple[str, int], list[float]] = {}
        for rep in range(self.definition.reps):
            began = time.monotonic()
            for name, concurrency in rep_order(self.runner.raw.path.name, slot.index, rep, self.definition.cells()):
                prompts = shapes[name].take(self.definition.requests_of(name, concurrency))
                run = keeper.cell(prompts, concurrency, rep, name, "stream", token_ids=name != "longctx")
                done = [r.t_last_ns - r.t_send_ns for r in run.requests if r.ok and r.t_last_ns is not None]
                busy_s.setdefault((name, concurrency), []).append(fmean(done) / 1e9 if done else 0.0)
            if self.definition.end_to_end:
                for use in self.definition.shapes:
                    # every prompt twice in a row, the first answer is discarded by the metric
                    twice = [p for prompt in shapes[use.name].take(END_TO_END_PROMPTS) for p in (prompt, prompt)]
                    keeper.cell(twice, 1, rep, use.name, "end_to_end", streaming=False)
            durations.append(time.monotonic() - began)
        self._planted(keeper, shapes, busy_s)
        return round(fmean(durations), 3)

    def _planted(
        self, keeper: _Keeper, shapes: Mapping[str, Shape], busy_s: Mapping[tuple[str, int], Sequence[float]]
    ) -> None:
        """Positive control in control boots: a slowness of known size that the analysis must see."""
        key = (self.definition.primary.shapes[0], 1)
        share = self.definition.planted_delay
        if share is None or key not in busy_s or self.config.arm != self.definition.control:
            return
        prompts = shapes[key[0]].take(self.definition.requests_of(*key))
        token_ids = key[0] != "longctx"
        # Between two cells without the delay: against the repetitions, minutes before, it would measure the drift too.
        keeper.cell(prompts, 1, 0, key[0], "beside", token_ids=token_ids)
        delay = share * median(busy_s[key])
        keeper.cell(prompts, 1, 0, key[0], "planted", token_ids=token_ids, planted_delay_s=delay)
        keeper.cell(prompts, 1, 1, key[0], "beside", token_ids=token_ids)


class _Keeper:
    """Writes cells down, with the pages before and after each; neighbouring cells share a page."""

    def __init__(self, boot: _Boot, writer: BootWriter) -> None:
        self.boot, self.writer = boot, writer
        boot.pages.read()
        self._name = writer.scrape(boot.pages.text)
        self._order = 0

    def cell(
        self, prompts: Sequence[Prompt], concurrency: int, rep: int, shape: str, kind: str, **options: object
    ) -> CellRun:
        """Run one cell and keep it."""
        before = self._name
        run = self.boot._cell(prompts, concurrency, **options)
        self.boot.pages.read_settled(len(run.requests))
        self._name = self.writer.scrape(self.boot.pages.text)
        header = {
            "rep": rep,
            "shape": shape,
            "concurrency": concurrency,
            "kind": kind,
            "order_index": self._order,
            "prom_before": before,
            "prom_after": self._name,
        }
        self.writer.cell(run, header)
        self._order += 1
        return run
