"""One probe boot: a seat at one pin, loaded step by step to its full depth, each step a window of the allocator."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from ..campaign.canary import Answers, check_answers
from ..campaign.definition import Arm
from ..campaign.parity import ArmConfig, Deployment, derive_arm
from ..campaign.seats import SeatControl, SeatFailed
from ..clients.probe import Host, Options, probe
from ..clients.probe.canary import check_canary
from ..clients.vllm import Completion, Limits, SeatClient, SeatError
from ..core.health.headroom import (
    MIXED,
    PHASES,
    RAMP,
    Step,
    Trial,
    allocator_warnings,
    phase_extras,
    refuse_phase,
    refuse_step,
)
from ..core.health.metrics import MetricsError
from ..core.health.probe_report import EXIT_READY
from ..core.report.journal import first_cause
from ..core.seat.manifest import Manifest
from ..core.units import GIB
from . import sampler
from .prompts import Sized, sized
from .worker_extension import DIRECTORY_VARIABLE, MARK_FILE, REPLAY_VARIABLE

MODULE = "seatfleet_headroom"
ARM = "headroom"
FRACTIONS = (0.25, 0.5, 0.75, 0.9, 1.0)
ANSWER_TOKENS = 64
#: What a chat template and the answer take beside the prompt.
RESERVE = 128
#: Short prompts beside the long one in the mixed phase, at most.
SHORT_REQUESTS = 15
SHORT_TOKENS = 200
#: On unified memory the host goes with the seat: hard resets were seen during a 131,072-token prefill.
UNIFIED_FLOOR = 8 * GIB
UNIFIED_SHARE = 0.07
UNIFIED_DEPTH = 0.5
_WORKER_LIMIT_S = 60.0
_SAMPLER_LIMIT_S = 20.0
_PREEMPTIONS = "vllm:num_preemptions_total"
_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_KERNEL = re.compile(r"NV_ERR_NO_MEMORY|Out of memory: Killed|oom-kill|NVRM: Xid")
_NO_THINKING: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
_LIMITS = Limits(get=120.0, token=1800.0, request=3600.0)


@dataclass(frozen=True)
class Plan:
    """How a seat is loaded. ``unified`` says that cards and host share their memory; ``replay`` replaces the card."""

    phases: tuple[str, ...] = PHASES
    fractions: tuple[float, ...] = FRACTIONS
    idle_s: float = 10.0
    ready_timeout_s: float | None = None  # what the seat declares
    unified: bool = False
    allow_host_risk: bool = False
    replay: Path | None = None
    memory_replay: Path | None = None

    @property
    def depths(self) -> tuple[float, ...]:
        """The fractions that may be tried: on unified memory no deep prompt without the operator's word."""
        if self.unified and not self.allow_host_risk:
            return tuple(fraction for fraction in self.fractions if fraction <= UNIFIED_DEPTH)
        return self.fractions


class FloorReached(Exception):
    """The host's memory fell to the floor; the seat was stopped."""


@dataclass
class Sampling:
    """The sampler's process."""

    out: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, out: Path, gpus: Sequence[str], replay: Path | None) -> Sampling:
        """Start it and wait for its first sample.

        Raises:
            SeatFailed: it ended instead.
        """
        out.unlink(missing_ok=True)
        # By its file: it needs nothing of this package, and a memory that is locked is better small.
        command = [sys.executable, str(sampler.__file__), f"--out={out}", f"--gpus={','.join(gpus)}"]
        command += [f"--replay={replay}"] if replay else []
        sampling = cls(out, subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE))
        deadline = time.monotonic() + _SAMPLER_LIMIT_S
        while sampling.available() is None:
            if sampling.process.poll() is not None or time.monotonic() >= deadline:
                sampling.stop()
                said = sampling.process.stderr.read().decode(errors="replace") if sampling.process.stderr else ""
                raise SeatFailed(f"memory cannot be sampled: {said.strip().splitlines()[-1:]}")
            time.sleep(0.02)
        return sampling

    def lines(self) -> list[dict[str, Any]]:
        """Return what was sampled so far; the line that is being written is left out."""
        text = self.out.read_text(encoding="utf-8") if self.out.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def available(self) -> int | None:
        """Return the newest ``MemAvailable``, without reading the whole file."""
        try:
            with self.out.open("rb") as handle:
                handle.seek(0, 2)
                handle.seek(max(0, handle.tell() - 4096))
                for line in reversed(handle.read().splitlines()):
                    with suppress(ValueError):
                        sample = json.loads(line)
                        if isinstance(sample, dict) and "MemAvailable" in sample:
                            return int(sample["MemAvailable"])
        except OSError:
            return None
        return None

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Windows:
    """The windows of the allocators of one boot's workers, one file per worker."""

    def __init__(self, directory: Path, pin: int, sleep: Callable[[float], None]) -> None:
        self.directory, self._pin, self._sleep = directory, pin, sleep
        self._number = 0

    def mark(self, label: str, depth: int = 0, requests: int = 0) -> int:
        """Begin a window and wait until every worker has begun it; return its number.

        Raises:
            SeatFailed: no worker answers, or one cannot count.
        """
        self._number += 1
        mark = {"number": self._number, "label": label, "depth": depth, "requests": requests, "pin": self._pin}
        temporary = self.directory / f"{MARK_FILE}.new"
        temporary.write_text(json.dumps(mark), encoding="utf-8")
        # The worker runs as another user, and the unit's umask does not count here.
        temporary.chmod(0o644)
        temporary.replace(self.directory / MARK_FILE)
        deadline = time.monotonic() + _WORKER_LIMIT_S
        while True:
            reports = self.reports()
            if reports and all(report.get("open") == self._number for report in reports):
                return self._number
            if time.monotonic() >= deadline:
                raise SeatFailed(f"the workers' allocators did not answer within {_WORKER_LIMIT_S:.0f} s")
            self._sleep(0.02)

    def reports(self) -> list[dict[str, Any]]:
        """Return what the workers wrote.

        Raises:
            SeatFailed: one of them cannot count.
        """
        reports = [json.loads(file.read_text(encoding="utf-8")) for file in self.directory.glob("allocator-*.json")]
        for report in reports:
            if "error" in report:
                raise SeatFailed(f"the allocator cannot be asked: {report['error']}")
        return reports

    def closed(self, number: int) -> list[dict[str, Any]]:
        """Return one window of every worker; empty for a window that nobody closed."""
        return [window for report in self.reports() if (window := report["closed"].get(str(number)))]

    def wait_for_workers(self) -> None:
        """Wait until the first report is there.

        Raises:
            SeatFailed: none came.
        """
        deadline = time.monotonic() + _WORKER_LIMIT_S
        while not self.reports():
            if time.monotonic() >= deadline:
                raise SeatFailed(f"no worker loaded the extension: {self.directory} is empty")
            self._sleep(0.05)


def short_answers(manifest: Manifest, client: SeatClient, host: Host, evidence: Path) -> Answers:
    """Ask the seat what the timed probe asks: a load that corrupts something shows in the next short answer."""
    return check_answers(manifest, client, host, evidence, (check_canary,))


@dataclass
class Result:
    """A trial and everything that was seen beside it."""

    trial: Trial
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass
class Prober:
    """Boots one seat at pins and loads it."""

    control: SeatControl
    plan: Plan
    work: Path
    say: Callable[[str], None] = print
    answers: Callable[[Manifest, SeatClient, Host, Path], Answers] = short_answers
    sleep: Callable[[float], None] = time.sleep
    started: int = 0
    extras: dict[str, int] = field(default_factory=dict)

    def extension(self) -> Path:
        """Write the worker's extension where the seat's user can read it, and return the folder."""
        folder = self.work / "extension"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        source = resources.files(__package__) / "worker_extension.py"
        target = folder / f"{MODULE}.py"
        target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        target.chmod(0o644)
        if self.plan.replay is not None:
            copy = folder / "replay.json"
            shutil.copyfile(self.plan.replay, copy)
            copy.chmod(0o644)
        return folder

    def config(self, live: Deployment, pin: int, counts: Path) -> ArmConfig:
        """Return the live configuration at another pin, with the extension and nothing else."""
        folder = self.extension()
        overrides: dict[str, Any] = {
            "kv-cache-memory-bytes": pin,
            "worker-extension-cls": f"{MODULE}.Extension",
            "env:PYTHONPATH": ":".join(filter(None, (str(folder), live.env.get("PYTHONPATH")))),
            f"env:{DIRECTORY_VARIABLE}": str(counts),
        }
        if self.plan.replay is not None:
            overrides[f"env:{REPLAY_VARIABLE}"] = str(folder / "replay.json")
        return derive_arm(live, Arm(ARM, {}), [], overrides)

    def boot(self, live: Deployment, pin: int) -> Result:
        """Boot at a pin, load the seat, stop it; what goes wrong with the seat is in the trial."""
        self.started += 1
        counts = Path(self.control.cache_root(ARM)) / f"allocator-{self.started}"
        shutil.rmtree(counts, ignore_errors=True)
        config = self.config(live, pin, counts)
        self.control.stop()
        samples = Sampling.start(
            self.work / f"samples-{self.started}.jsonl", self.control.gpus, self.plan.memory_replay
        )
        try:
            result = _Boot(self, config, pin, counts, samples).run()
            for phase, extra in phase_extras([result.trial]).items():
                self.extras[phase] = max(extra, self.extras.get(phase, 0))
            return result
        finally:
            self.control.stop()
            samples.stop()


class _Boot:
    """One boot under way; what was seen is collected here, so that a seat that dies leaves what came before."""

    def __init__(self, prober: Prober, config: ArmConfig, pin: int, counts: Path, samples: Sampling) -> None:
        self.prober, self.plan, self.control = prober, prober.plan, prober.control
        self.config, self.pin, self.samples = config, pin, samples
        self.windows = Windows(counts, pin, prober.sleep)
        self.steps: list[Step] = []
        self.recalled: list[tuple[int, int]] = []
        self.seen: list[dict[str, Any]] = []
        self.total = 0
        self.torch: str | None = None
        self.refused: str | None = None
        self.full_depth = int(config.settings.get("max-model-len", 0)) - ANSWER_TOKENS - RESERVE

    def run(self) -> Result:
        began = time.monotonic()
        failure: str | None = None
        preemptions, canary, concurrency = 0, Answers(), None
        ready_lines = 0
        ready_s: float | None = None
        try:
            with self._ready() as client:
                ready_s = round(time.monotonic() - began, 1)
                ready_lines = len(self.control.log())
                concurrency = self._concurrency()
                first = self._preemptions(client)
                self.windows.wait_for_workers()
                self.torch = self.windows.reports()[0].get("torch")
                self._measure(client, concurrency)
                preemptions = self._preemptions(client) - first
                canary = self.prober.answers(self.manifest, client, self.control.host(), self.prober.work / "canary")
        except (SeatFailed, SeatError, MetricsError, FloorReached) as error:
            failure = self._why(error)
        log = self.control.log()
        unit = self._unit_problem()
        trial = Trial(
            pin=self.pin,
            total=self.total,
            full_depth=self.full_depth,
            steps=tuple(self.steps),
            warnings=tuple(allocator_warnings(log[ready_lines:])) if ready_s is not None else (),
            restarts=unit,
            preemptions=preemptions,
            canary_ok=not canary.problems,
            failure=failure,
            phases=self.plan.phases,
            needles_lost=self._lost(),
        )
        beside = {
            "ready_s": ready_s,
            "took_s": round(time.monotonic() - began, 1),
            "torch": self.torch,
            "concurrency": concurrency,
            "refused": self.refused,
            "canary": canary.as_json(),
            "needles": [{"depth": depth, "recalled": found} for depth, found in self.recalled],
            "windows": self.seen,
            "kernel": kernel_messages(time.monotonic() - began),
            "kv_cache": next((line.strip() for line in log if "KV cache size" in line), None),
        }
        return Result(trial, beside)

    @contextmanager
    def _ready(self) -> Iterator[SeatClient]:
        self.control.start(self.config, ARM)
        self.manifest = self.control.manifest(self.config)
        with SeatClient(self.manifest.base_url, self.control.api_key, _LIMITS) as client:
            limit_s = self.manifest.ready_timeout_s if self.plan.ready_timeout_s is None else self.plan.ready_timeout_s
            options = Options(ready_timeout_s=limit_s, poll_s=1.0)
            report = probe(self.manifest, client, self.control.host(), options, "ready")
            if report.exit != EXIT_READY:
                raise SeatFailed(f"not READY: {report.cause}")
            yield client

    def _why(self, error: Exception) -> str:
        """Return the first cause in the log, where there is one: the client only sees a stream that was cut."""
        cause = first_cause(self.control.log())
        return f"{error} ({cause})" if cause and cause not in str(error) else str(error)

    def _unit_problem(self) -> int:
        with suppress(SeatFailed):
            state = self.control.host().unit()
            return state.restarts if state is not None else 0
        return 0

    def _concurrency(self) -> float | None:
        found = [match for line in self.control.log() if (match := _CONCURRENCY.search(line))]
        return float(found[-1][1]) if found else None

    def _preemptions(self, client: SeatClient) -> int:
        return int(client.metrics().total_or(_PREEMPTIONS, 0.0))

    # --- the load

    def _measure(self, client: SeatClient, concurrency: float | None) -> None:
        number, began = self.windows.mark("idle"), time.monotonic_ns()
        self.prober.sleep(self.plan.idle_s)
        self._take(number, "idle", began)
        for fraction in self.plan.depths:
            depth = int(fraction * self.full_depth)
            if self.steps and (refusal := refuse_step(self.steps, depth, self.total)):
                self.refused = refusal
                return
            if not self._step(client, RAMP, [self._prompt(client, depth)]):
                return
        if len(self.plan.depths) < len(self.plan.fractions):
            self.refused = "unified memory: deeper prompts only with the operator's word (allow_host_risk)"
            return
        for phase in self.plan.phases[1:]:
            if refusal := refuse_phase(self.steps, phase, self.total, self.prober.extras.get(phase)):
                self.refused = refusal
                return
            prompts = self._mixed(client) if phase == MIXED else self._full(client, concurrency)
            if not self._step(client, phase, prompts):
                return

    def _prompt(self, client: SeatClient, tokens: int) -> Sized:
        model = self.manifest.model_id
        return sized(tokens, lambda messages: client.tokenize(model, messages)[0])

    def _mixed(self, client: SeatClient) -> list[Sized]:
        """Return one prompt of full depth and short ones: some kernels pad every prompt of a batch to the longest."""
        short = min(SHORT_REQUESTS, (self.manifest.max_num_seqs or SHORT_REQUESTS + 1) - 1)
        tokens = min(SHORT_TOKENS, self.full_depth // 4)
        return [self._prompt(client, self.full_depth), *(self._prompt(client, tokens) for _ in range(short))]

    def _full(self, client: SeatClient, concurrency: float | None) -> list[Sized]:
        """Return as many prompts of full depth as the pool holds."""
        count = max(1, min(int(concurrency or 1), self.manifest.max_num_seqs or 1))
        return [self._prompt(client, self.full_depth) for _ in range(count)]

    def _step(self, client: SeatClient, phase: str, prompts: Sequence[Sized]) -> bool:
        """Send prompts at once and take what the allocator counted; tell whether to go on."""
        depth = max(prompt.tokens for prompt in prompts)
        number = self.windows.mark(f"{phase} {depth}", depth, len(prompts))
        began = time.monotonic_ns()
        with ThreadPoolExecutor(len(prompts)) as pool:
            running = [pool.submit(self._ask, client, prompt) for prompt in prompts]
            self._watch_floor(running, client)
            answers = [one.result() for one in running]
        window = self._take(number, phase, began)
        for prompt, answer in zip(prompts, answers, strict=True):
            if answer.prompt_tokens != prompt.tokens:
                raise SeatFailed(f"/tokenize counted {prompt.tokens} tokens, the answer {answer.prompt_tokens}")
        longest = max(zip(prompts, answers, strict=True), key=lambda pair: pair[0].tokens)
        if phase == RAMP:
            self.recalled.append((depth, longest[0].recalled(f"{longest[1].reasoning}\n{longest[1].text}")))
        step = Step(
            depth=depth,
            used_peak=window["used_peak"],
            reserved_peak=window["reserved_peak"],
            allocated_peak=window["allocated_peak"],
            retries=window["retries"],
            ooms=window["ooms"],
            phase=phase,
            requests=len(prompts),
            prefill_s=round(max(answer.ttft_s or 0.0 for answer in answers), 3),
        )
        self.steps.append(step)
        self.prober.say(
            f"  {phase}: {len(prompts)} x {depth:,} tokens need {step.needed / GIB:.2f} of {self.total / GIB:.2f} GiB, "
            f"{step.retries} retries, {step.ooms} out of memory, first token after {step.prefill_s} s"
        )
        return not (step.retries or step.ooms)

    def _ask(self, client: SeatClient, prompt: Sized) -> Completion:
        body = {
            "model": self.manifest.model_id,
            "messages": list(prompt.messages),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            **_NO_THINKING,
        }
        return client.stream(body)

    def _watch_floor(self, running: Sequence[Any], client: SeatClient) -> None:
        """On unified memory stop the seat before it takes the host with it."""
        if not self.plan.unified:
            return
        done = False
        while not done:
            done = all(one.done() for one in running)
            available = self.samples.available()
            if available is not None and available < self.floor:
                client.close()
                self.control.stop()
                raise FloorReached(
                    f"{available / GIB:.2f} GiB of host memory were left, the floor is {self.floor / GIB:.2f}"
                )
            self.prober.sleep(sampler.PERIOD_S)

    @property
    def floor(self) -> int:
        """Memory of a unified host that is never given to a seat."""
        total = next((int(line["MemTotal"]) for line in self.samples.lines() if "MemTotal" in line), 0)
        return max(UNIFIED_FLOOR, int(UNIFIED_SHARE * total))

    def _take(self, number: int, label: str, began_ns: int) -> dict[str, Any]:
        """Close a window; return the worst worker's counts."""
        end_ns = time.monotonic_ns()
        self.windows.mark("between")
        windows = self.windows.closed(number)
        if not windows:
            raise SeatFailed(f"window {number} was not closed by any worker")
        memory = sampler.least(self.samples.lines(), began_ns, end_ns)
        if self.plan.unified:
            _use_host_memory(windows, self.samples.lines(), memory, self.floor)
        for window in windows:
            window["used_peak"] = min(window["total"], window["other_peak"] + window["reserved_peak"])
        self.total = min(window["total"] for window in windows)
        self.seen.append({"window": number, "label": label, "workers": windows, "memory": memory})
        worst = max(windows, key=lambda one: one["used_peak"] - (one["reserved_peak"] - one["allocated_peak"]))
        return {
            **worst,
            "retries": sum(window["retries"] for window in windows),
            "ooms": sum(window["ooms"] for window in windows),
        }

    def _lost(self) -> int:
        """Return how many longer prompts lost code words, once a model has shown that it can repeat them."""
        if not self.recalled or self.recalled[0][1] < 3:
            return 0
        return sum(found < 3 for _, found in self.recalled[1:])


def _use_host_memory(
    windows: Sequence[dict[str, Any]], lines: Sequence[Mapping[str, Any]], memory: Mapping[str, Any], floor: int
) -> None:
    """Replace the card's figures by the host's: on unified memory the driver's free memory leaves out page cache."""
    total = next(int(line["MemTotal"]) for line in lines if "MemTotal" in line)
    least = int(memory["MemAvailable"]["least"])
    for window in windows:
        window["total"] = total - floor
        window["other_peak"] = max(0, total - least - window["reserved_peak"])


def kernel_messages(seconds: float) -> list[str]:
    """Return what the kernel said about memory meanwhile. Not a verdict: such lines appear in good starts, too."""
    command = ["journalctl", "--dmesg", "--no-pager", "--output=cat", f"--since=-{int(seconds) + 1}s"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ["the kernel's log cannot be read here"]
    return [line for line in text.splitlines() if _KERNEL.search(line)][:20]
