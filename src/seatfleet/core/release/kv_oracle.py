"""State oracle: what a prefix-cache hit of a hybrid model restores must be what the hit claims to cover.

    PYTHON kv_oracle.py [--site FOLDER] [--scenario seed|block16] [--method dflash|mtp|none] [--cases N] [--seed N]

Scenario ``seed`` is a drafter with blocks of the target's size, ``block16`` one whose blocks of 16 tokens are unified
with the others; both are examined unless one is named.

Runs under a release's own Python, without a GPU, a model or seatfleet. vLLM's real planning functions, scheduler and
cache manager are driven with random prompts, concurrency, speculative decoding and preemption over the layers of
Qwen3.5-122B-A10B with a DFlash drafter. Only the worker is played: it moves recurrent states between blocks exactly as
vLLM's ``mamba_utils`` does (state after a step in block ``cdiv(tokens, block) - 1``, one block per draft token after
it, the state at a crossed block boundary copied back), but a state is a record of the tokens it covers instead of
numbers. Before every step the state a request starts from, and on a hit every attention block too, must cover exactly
the tokens that the scheduler says are computed. If not, a GPU would have answered from a wrong state, silently.

Prints one JSON object, and a sentence on stderr for everything that is wrong. Exit status 0: every restore right; 1:
not so, or the engine would not start; 2: no vLLM here.

Not modelled: the kernels, asynchronous scheduling, multimodal inputs, KV connectors.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

NUM_SPEC = 12
BLOCK = 2240  # tokens; 2,048 B per token and layer reach the GDN state's 4,562,944 B, rounded up to 16 tokens
MAX_LEN = 262144
LAYERS = 48  # every fourth one is full attention
DRAFT_LAYERS = 6
BUDGET = 8192
MAX_SEQS = 8
POOL_BYTES = 20 * 2**30
TIGHT_POOLS = (190, 230, 300)  # blocks; one request of 50,000 tokens takes up to 170, so these evict and preempt
VOCABULARY = 1000
CASES = 60  # per scenario: 180 hits or more; three scenarios take 15 s of CPU with the import of vLLM
SCENARIOS = ("seed", "block16")
METHODS = ("dflash", "mtp", "none")
INTERFACE, HASHING, OUTPUTS = "vllm.v1.kv_cache_interface", "vllm.utils.hashing", "vllm.v1.outputs"
UTILS, PLANNING = "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning"

#: What a recurrent state or a KV block covers: runs of ``(family, end position)``. Tokens are a function of family
#: and position, so equal coverage means equal tokens.
Coverage = tuple[tuple[int, int], ...]


#: vLLM's objects; it is not installed where this file is type-checked.
Foreign: TypeAlias = Any

#: Bytes per page and per Mamba state of the layers below, as measured on a GB10 (public findings of 2026-06-28).
MEASURED = {"attention_page": 4_587_520, "mamba_state": 4_562_944, "mamba_page": 4_587_520, "drafter_page": 9_175_040}


# --- the real planning functions -------------------------------------------------------------------------------------


def optional(name: str, module: str) -> Foreign:
    """Return an object that only some releases have, else None."""
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(module), name, None)
    return None


def needed(name: str, *modules: str) -> Foreign:
    """Return an object that moved between releases, from the first module that has it.

    Raises:
        ImportError: none has it; the oracle has to be ported to this release.
    """
    found = next((found for module in modules if (found := optional(name, module)) is not None), None)
    if found is None:
        raise ImportError(f"{name} in none of {', '.join(modules)}")
    return found


def accepted(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that this release's ``function`` takes."""
    known = inspect.signature(function).parameters
    return {key: value for key, value in values.items() if key in known}


def layer_specs(scenario: str, method: str) -> dict[str, Foreign]:
    """Return vLLM's KV cache specs by layer: 12 full-attention, 36 GDN (16 k heads, 64 v heads), the drafter's."""
    bf16, fp32 = needed("bfloat16", "torch"), needed("float32", "torch")
    shapes = needed("MambaStateShapeCalculator", "vllm.model_executor.layers.mamba.mamba_utils")
    attention_spec, mamba_spec = needed("FullAttentionSpec", INTERFACE), needed("MambaSpec", INTERFACE)
    spec_tokens = NUM_SPEC if method != "none" else 0
    backends = optional("MambaAttentionBackendEnum", "vllm.v1.attention.backends.registry")
    gdn = {
        "block_size": BLOCK,
        "shapes": shapes.gated_delta_net_state_shape(1, 16, 64, 128, 128, 4, spec_tokens),
        "dtypes": (bf16, fp32),
        "mamba_cache_mode": "align",
        "num_speculative_blocks": spec_tokens,
    }
    if backends is not None and hasattr(backends, "GDN_ATTN"):
        gdn["mamba_type"] = backends.GDN_ATTN
    attention = attention_spec(block_size=BLOCK, num_kv_heads=2, head_size=256, dtype=bf16)
    mamba = mamba_spec(**gdn, page_size_padded=attention.page_size_bytes)
    drafter = attention_spec(
        block_size=16 if scenario == "block16" else BLOCK, num_kv_heads=8, head_size=128, dtype=bf16
    )
    specs: dict[str, Foreign] = {}
    for number in range(LAYERS):
        kind, spec = ("self_attn.attn", attention) if number % 4 == 3 else ("linear_attn", mamba)
        specs[f"language_model.model.layers.{number}.{kind}"] = spec
    if method == "dflash":
        specs |= {f"model.layers.{LAYERS + number}.self_attn.attn": drafter for number in range(DRAFT_LAYERS)}
    elif method == "mtp":
        specs["mtp.layers.0.self_attn.attn"] = attention
    return specs


def measured_again() -> dict[str, int]:
    """Return the sizes of :data:`MEASURED` as this release computes them."""
    specs = layer_specs("seed", "dflash")
    attention, mamba = (
        specs["language_model.model.layers.3.self_attn.attn"],
        specs["language_model.model.layers.0.linear_attn"],
    )
    return {
        "attention_page": attention.page_size_bytes,
        "mamba_state": dataclasses.replace(mamba, page_size_padded=None).page_size_bytes,
        "mamba_page": mamba.page_size_bytes,
        "drafter_page": specs[f"model.layers.{LAYERS}.self_attn.attn"].page_size_bytes,
    }


def speculative_config(method: str) -> Foreign:
    """Return an object with vLLM's own methods (``use_eagle`` and the like) and only the fields they read."""
    if method == "none":
        return None
    config = object.__new__(needed("SpeculativeConfig", "vllm.config.speculative"))
    hf_config = SimpleNamespace(model_type="qwen3")
    draft = SimpleNamespace(hf_config=hf_config, architectures=["DFlashDraftModel"], model="drafter")
    config.__dict__.update(method=method, num_speculative_tokens=NUM_SPEC, draft_model_config=draft)
    return config


def engine_config(method: str) -> Foreign:
    """Return the configuration fields that planning, cache manager and scheduler read, set as EngineCore sets them."""
    spec_tokens = NUM_SPEC if method != "none" else 0
    lookahead = spec_tokens + (method == "dflash")
    cache = SimpleNamespace(
        block_size=BLOCK,
        mamba_block_size=BLOCK,
        enable_prefix_caching=True,
        hash_block_size=None,
        prefix_match_unit=None,
        mamba_cache_mode="align",
        num_gpu_blocks_override=None,
        cache_dtype="auto",
        prefix_cache_retention_interval=None,
        enable_mamba_shared_prefix_checkpoint=False,
    )
    layouts = optional("KVCacheLayout", "vllm.v1.kv_cache_layout")
    if layouts is not None:
        cache.kv_cache_layout = "LBNHC"
        cache.get_resolved_kv_cache_layout = lambda: layouts["LBNHC"]
    scheduling = SimpleNamespace(
        max_num_seqs=MAX_SEQS,
        max_num_active_seqs=None,
        max_num_batched_tokens=BUDGET,
        max_num_scheduled_tokens=BUDGET - spec_tokens * MAX_SEQS,
        long_prefill_token_threshold=0,
        long_prefill_token_threshold_adaptive=False,
        policy="fcfs",
        scheduler_reserve_full_isl=True,
        enable_chunked_prefill=True,
        async_scheduling=False,
        disable_chunked_mm_input=False,
        disable_hybrid_kv_cache_manager=False,
        prefill_schedule_interval=1,
        watermark=0.0,
    )
    parallel = SimpleNamespace(
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        data_parallel_index=0,
        cp_kv_cache_interleave_size=1,
    )
    model = SimpleNamespace(
        max_model_len=MAX_LEN,
        original_max_model_len=MAX_LEN,
        supports_kv_cache_grouping=False,
        is_encoder_decoder=False,
        enable_return_routed_experts=False,
        return_sampling_mask=False,
        uses_mrope=False,
        is_diffusion=False,
        runner_type="generate",
        supports_multimodal_inputs=False,
        is_multimodal_model=False,
        hf_config=SimpleNamespace(model_type="qwen3_5_moe"),
    )
    observability = SimpleNamespace(
        kv_cache_metrics=False,
        kv_cache_metrics_sample=0.0,
        enable_mfu_metrics=False,
        enable_logging_iteration_details=False,
        per_request_spec_decode_metrics=None,
    )
    return SimpleNamespace(
        cache_config=cache,
        scheduler_config=scheduling,
        parallel_config=parallel,
        model_config=model,
        observability_config=observability,
        speculative_config=speculative_config(method),
        attention_config=SimpleNamespace(hisparse_config=None),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        lora_config=None,
        kv_transfer_config=None,
        kv_events_config=None,
        ec_transfer_config=None,
        use_v2_model_runner=False,
        is_mm_encoder_only=False,
        max_concurrent_batches=1,
        max_in_flight_tokens=BUDGET,
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=lookahead,
        num_prefill_lookahead_tokens=1 if method == "mtp" else 0,
        num_speculative_tokens=spec_tokens,
    )


@dataclass(frozen=True)
class Plan:
    """What vLLM's planning made of the layers."""

    config: Foreign
    kv_cache: Foreign
    scheduler_block: int
    hash_block: int

    @property
    def specs(self) -> list[Foreign]:
        """Return the spec of each KV cache group."""
        return [group.kv_cache_spec for group in self.kv_cache.kv_cache_groups]

    def geometry(self) -> dict[str, Any]:
        """Return block sizes in tokens and page sizes in bytes, per group and as resolved."""
        groups = [
            {
                "kind": type(spec).__name__,
                "layers": len(group.layer_names),
                "drafter": any(not name.startswith("language_model.") for name in group.layer_names),
                "block": spec.block_size,
                "page": spec.page_size_bytes,
            }
            for group, spec in zip(self.kv_cache.kv_cache_groups, self.specs, strict=True)
        ]
        return {
            "groups": groups,
            "scheduler_block": self.scheduler_block,
            "hash_block": self.hash_block,
            "blocks": self.kv_cache.num_blocks,
        }


def plan(scenario: str, method: str) -> Plan:
    """Run vLLM's planning in EngineCore's order; whatever it raises, an engine would raise at start."""
    config = engine_config(method)
    register = optional("register_all_kvcache_specs", "vllm.v1.core.single_type_kv_cache_manager")
    if register is not None:
        register(config)
    groups = needed("get_kv_cache_groups", PLANNING, UTILS)(config, layer_specs(scenario, method))
    config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in groups)
    kv_cache = needed("get_kv_cache_config_from_groups", PLANNING, UTILS)(config, groups, POOL_BYTES)
    kv_cache = needed("generate_scheduler_kv_cache_config", UTILS, PLANNING)([kv_cache])
    config.cache_config.num_gpu_blocks = kv_cache.num_blocks
    scheduler_block, hash_block = needed("resolve_kv_cache_block_sizes", UTILS)(kv_cache, config)
    if hasattr(kv_cache, "hash_block_size"):
        kv_cache.hash_block_size = hash_block
    return Plan(config, kv_cache, scheduler_block, hash_block)


# --- prompts ---------------------------------------------------------------------------------------------------------


def tokens_of(coverage: Coverage) -> list[int]:
    """Return the tokens of a coverage from position 0."""
    tokens: list[int] = []
    for family, end in coverage:
        tokens += [(position * 7 + family * 131) % VOCABULARY for position in range(len(tokens), end)]
    return tokens


def clip(coverage: Coverage, tokens: int) -> Coverage:
    """Return the coverage of the first ``tokens`` tokens."""
    runs: list[tuple[int, int]] = []
    for family, end in coverage:
        runs.append((family, min(end, tokens)))
        if end >= tokens:
            break
    return tuple(runs)


@dataclass
class Job:
    """One request: its prompt, how much it generates, and what became of it."""

    name: str
    prompt: Coverage
    family: int  # of the generated tokens
    generate: int
    generated: int = 0
    hit: int | None = None  # tokens taken from the prefix cache at the first schedule

    @property
    def prompt_tokens(self) -> int:
        """Return the length of the prompt."""
        return self.prompt[-1][1]

    def covered(self, tokens: int) -> Coverage:
        """Return the coverage of the first ``tokens`` tokens of prompt and (true) continuation."""
        if tokens <= self.prompt_tokens:
            return clip(self.prompt, tokens)
        return (*self.prompt, (self.family, tokens))

    def token(self, position: int) -> int:
        """Return the true token at a position behind the prompt."""
        return (position * 7 + self.family * 131) % VOCABULARY


# --- the played worker -----------------------------------------------------------------------------------------------


@dataclass
class Slots:
    """Per request on the worker: its block table, the running state's block index, accepted tokens of the last step."""

    blocks: list[list[int]]
    state_index: int | None = None
    accepted: int = 1


@dataclass
class Findings:
    """Counts over all cases. ``restores``: a state taken from another step's block after a hit or a preemption."""

    hits: int = 0
    poisoned: int = 0
    wrong_blocks: int = 0
    wrong_steps: int = 0
    preemptions: int = 0
    stalled: int = 0
    repeated_tokens: int = 0
    reused_tokens: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep the first few examples."""
        if len(self.examples) < 5:
            self.examples.append(text)

    def red(self) -> bool:
        """Return whether any restore was wrong or a request never finished."""
        return bool(self.poisoned or self.wrong_blocks or self.wrong_steps or self.stalled)


class Worker:
    """Plays the model runner: block contents are coverages. All groups share one pool, so one map serves them all."""

    def __init__(self, plan: Plan, findings: Findings) -> None:
        mamba_spec = needed("MambaSpec", INTERFACE)
        self.findings = findings
        self.mamba = [index for index, spec in enumerate(plan.specs) if isinstance(spec, mamba_spec)]
        self.attention = [index for index in range(len(plan.specs)) if index not in self.mamba]
        self.block = {index: int(spec.block_size) for index, spec in enumerate(plan.specs)}
        self.spec_blocks = int(plan.specs[self.mamba[0]].num_speculative_blocks)
        self.content: dict[tuple[int, int], Coverage] = {}  # (group, block id): what is in it
        self.slots: dict[str, Slots] = {}

    def begin(self, output: Foreign, jobs: dict[str, Job]) -> dict[str, int]:
        """Take over the block tables of a step; return the computed tokens per request as the scheduler tells them."""
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            for group in self.mamba:
                if (group, copy.src_block_id) in self.content:
                    self.content[group, copy.dst_block_id] = self.content[group, copy.src_block_id]
        for name in output.finished_req_ids:
            self.slots.pop(name, None)
        computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self.slots[new.req_id] = Slots([list(ids) for ids in new.block_ids])
            computed[new.req_id] = new.num_computed_tokens
            self._check_hit(jobs[new.req_id], new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for name, blocks, tokens in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            computed[name] = tokens
            if name in cached.resumed_req_ids:
                self.findings.preemptions += 1
                self.slots[name] = Slots([list(ids) for ids in blocks])
                self._check_hit(jobs[name], tokens)
            elif blocks is not None:
                for table, ids in zip(self.slots[name].blocks, blocks, strict=True):
                    table += ids
        return computed

    def _check_hit(self, job: Job, tokens: int) -> None:
        """Compare every attention block of a hit with what it must hold."""
        first = job.hit is None
        if first:
            job.hit = tokens
        if not tokens:
            return
        self.findings.hits += 1
        for group in self.attention:
            size = self.block[group]
            for index in range(tokens // size):
                held = self.content.get((group, self.slots[job.name].blocks[group][index]))
                if held != job.covered((index + 1) * size):
                    self.findings.wrong_blocks += 1
                    self.findings.note(f"{job.name}: hit {tokens}, group {group} block {index} holds {held}")
                    return

    def run(self, job: Job, computed: int, scheduled: int, drafts: int, right: int) -> int:
        """Advance one request by a step; return how many tokens it yields (0 inside a prompt)."""
        slots = self.slots[job.name]
        source = self._start_of_step(job, slots, computed, scheduled)
        end = computed + scheduled
        fresh = min(right, drafts) + 1 if end - drafts >= job.prompt_tokens + job.generated else 0
        for group in self.mamba:
            for draft in range(drafts + 1):
                covered = job.covered(end - drafts + draft) if draft < max(fresh, 1) else ((-1, end),)
                self.content[group, slots.blocks[group][source + draft]] = covered
        for group in self.attention:
            self._write_attention(job, slots, group, computed, end - drafts + max(fresh - 1, 0))
        slots.accepted = max(fresh, 1)
        self._copy_back(slots, end - drafts)
        return fresh

    def _start_of_step(self, job: Job, slots: Slots, computed: int, scheduled: int) -> int:
        """Move the state to this step's block like ``preprocess_mamba`` and check it; return that block's index."""
        size = self.block[self.mamba[0]]
        restored = slots.state_index is None
        before = (computed - 1) // size if slots.state_index is None else slots.state_index
        now = -(-(computed + scheduled) // size) - 1
        for group in self.mamba:
            if before == -1:
                continue
            table = slots.blocks[group]
            held = self.content.get((group, table[before + slots.accepted - 1]))
            if held != job.covered(computed):
                kind = "poisoned" if restored else "wrong_steps"
                setattr(self.findings, kind, getattr(self.findings, kind) + 1)
                claim = "hit claims" if restored else "step starts at"
                self.findings.note(f"{job.name}: {claim} {computed} tokens, the state covers {held}")
                break
        if before != -1 and before != now:
            slots.accepted = 1
        slots.state_index = now
        return now

    def _copy_back(self, slots: Slots, running: int) -> None:
        """Store the state at a crossed block boundary in that block, like ``postprocess_mamba``."""
        size = self.block[self.mamba[0]]
        aligned = (running + slots.accepted - 1) // size * size
        if aligned < running or slots.state_index is None:
            return
        target = aligned // size - 1
        for group in self.mamba:
            table = slots.blocks[group]
            self.content[group, table[target]] = self.content[group, table[slots.state_index + aligned - running]]
        if target == slots.state_index:
            slots.accepted = 1

    def _write_attention(self, job: Job, slots: Slots, group: int, start: int, end: int) -> None:
        size = self.block[group]
        for index in range(start // size, -(-end // size)):
            self.content[group, slots.blocks[group][index]] = job.covered(min(end, (index + 1) * size))


# --- the real scheduler, driven --------------------------------------------------------------------------------------


class Engine:
    """One boot: vLLM's scheduler over an empty cache, and the played worker."""

    def __init__(self, plan: Plan, findings: Findings, dice: random.Random) -> None:
        scheduler = needed("Scheduler", "vllm.v1.core.sched.scheduler")
        self.findings, self.dice = findings, dice
        self.spec_tokens = plan.config.num_speculative_tokens
        registry = SimpleNamespace(supports_multimodal_inputs=lambda model: False)
        values = {
            "vllm_config": plan.config,
            "kv_cache_config": plan.kv_cache,
            "structured_output_manager": SimpleNamespace(
                should_advance=lambda request: False,
                accept_tokens=lambda request, tokens: True,
                validate_tokens=lambda request, tokens: tokens,
            ),
            "block_size": plan.scheduler_block,
            "hash_block_size": plan.hash_block,
            "mm_registry": registry,
            "log_stats": False,
        }
        self.scheduler = scheduler(**accepted(scheduler.__init__, values))
        self.hasher = needed("get_request_block_hasher", UTILS)(plan.hash_block, needed("sha256", HASHING))
        self.worker = Worker(plan, findings)
        self.jobs: dict[str, Job] = {}

    def submit(self, job: Job) -> None:
        """Queue one request."""
        request = needed("Request", "vllm.v1.request")
        sampling = needed("SamplingParams", "vllm.sampling_params")
        values = {
            "request_id": job.name,
            "prompt_token_ids": tokens_of(job.prompt),
            "sampling_params": sampling(max_tokens=job.generate, ignore_eos=True),
            "pooling_params": None,
            "eos_token_id": None,
            "arrival_time": 0.0,
            "block_hasher": self.hasher,
        }
        self.jobs[job.name] = job
        self.scheduler.add_request(request(**accepted(request.__init__, values)))

    def drive(self, jobs: Iterable[Job], late: Sequence[Job] = ()) -> None:
        """Submit ``jobs``, then ``late`` ones step by step; run until all are done or nothing moves any more."""
        waiting = list(late)
        for job in jobs:
            self.submit(job)
        idle = 0
        while self.scheduler.has_unfinished_requests() or waiting:
            if waiting and self.dice.random() < 0.5:
                self.submit(waiting.pop(0))
            idle = 0 if self.step() else idle + 1
            if idle > 20:
                self.findings.stalled += 1
                self.findings.note(f"nothing scheduled for 20 steps: {[r.request_id for r in self.scheduler.running]}")
                return

    def step(self) -> int:
        """Run one scheduler step; return the number of tokens scheduled."""
        output = self.scheduler.schedule()
        computed = self.worker.begin(output, self.jobs)
        names = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        drafts: dict[str, list[int]] = {}
        for name in names:
            job = self.jobs[name]
            given = output.scheduled_spec_decode_tokens.get(name, [])
            start = computed[name] + output.num_scheduled_tokens[name] - len(given)
            right = next((i for i, token in enumerate(given) if token != job.token(start + i)), len(given))
            count = self.worker.run(job, computed[name], output.num_scheduled_tokens[name], len(given), right)
            sampled.append([job.token(start + offset) for offset in range(count)])
            job.generated += count
            if count and self.spec_tokens:
                drafts[name] = self._draft(job)
        result = needed("ModelRunnerOutput", OUTPUTS)(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.scheduler.update_from_output(output, result)
        if drafts:
            ids = needed("DraftTokenIds", OUTPUTS)
            self.scheduler.update_draft_token_ids(ids(list(drafts), list(drafts.values())))
        return int(output.total_num_scheduled_tokens)

    def _draft(self, job: Job) -> list[int]:
        """Return draft tokens of which a random number from the front are right."""
        start = job.prompt_tokens + job.generated
        right = self.dice.randint(0, self.spec_tokens)
        true = [job.token(start + offset) for offset in range(self.spec_tokens)]
        return [token if offset < right else (token + 1) % VOCABULARY for offset, token in enumerate(true)]


def one_case(plan: Plan, findings: Findings, dice: random.Random) -> None:
    """Fill the cache with concurrent prompts, then repeat one, branch off it and continue the conversation."""
    roomy = plan.kv_cache.num_blocks
    plan.config.cache_config.num_gpu_blocks = plan.kv_cache.num_blocks = dice.choice([roomy, *TIGHT_POOLS])
    plan.config.scheduler_config.scheduler_reserve_full_isl = dice.random() < 0.5
    try:
        engine = Engine(plan, findings, dice)
        length = dice.randint(2500, 40000)
        main = Job("main", ((1, length),), 10, dice.choice([1, 8, 200, 900]))
        others = [
            Job(f"other{n}", ((2 + n, dice.randint(200, 12000)),), 20 + n, dice.randint(1, 300))
            for n in range(dice.randint(0, 2))
        ]
        wave = [*others, main]
        dice.shuffle(wave)
        engine.drive(wave[:1], wave[1:])
        repeat = Job("repeat", main.prompt, 10, dice.choice([1, 40]))
        engine.drive([repeat])
        if plan.kv_cache.num_blocks == roomy:
            findings.repeated_tokens += length
            findings.reused_tokens += repeat.hit or 0
        shared = dice.randint(1, length)
        branch = Job("branch", (*clip(main.prompt, shared), (30, shared + dice.randint(1, 9000))), 31, 20)
        talk = main.covered(length + main.generated)
        turn = Job("turn", (*talk, (40, talk[-1][1] + dice.randint(1, 3000))), 41, 20)
        engine.drive([branch], [turn, Job("again", turn.prompt, 41, 5)])
    finally:
        plan.config.cache_config.num_gpu_blocks = plan.kv_cache.num_blocks = roomy


def examine(scenario: str, method: str, cases: int, seed: int) -> dict[str, Any]:
    """Return the report of one scenario; ``ok`` says whether the release may serve such a seat."""
    report: dict[str, Any] = {"scenario": scenario, "method": method, "cases": cases}
    try:
        planned = plan(scenario, method)
        needed("init_none_hash", UTILS)(needed("sha256", HASHING))
        Engine(planned, Findings(), random.Random(0))
    except (AssertionError, NotImplementedError, ValueError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        cause = str(error) or last.line
        report |= {"ok": False, "boots": False, "error": f"{type(error).__name__}: {cause} in {last.name}"}
        return report
    findings = Findings()
    dice = random.Random(seed)
    for _ in range(cases):
        one_case(planned, findings, dice)
    report |= {"ok": not findings.red(), "boots": True, "geometry": planned.geometry()}
    report |= {key: getattr(findings, key) for key in ("hits", "poisoned", "wrong_blocks", "wrong_steps")}
    report |= {key: getattr(findings, key) for key in ("preemptions", "stalled", "examples")}
    report["reuse"] = round(findings.reused_tokens / max(findings.repeated_tokens, 1), 3)
    return report


def scenarios_of(method: str) -> Sequence[str]:
    """Return the scenarios that differ for a method: they are about the drafter's blocks, and only DFlash has some."""
    return SCENARIOS if method == "dflash" else SCENARIOS[:1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the scenarios asked for and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", help="folder that holds vllm/, put before this Python's own packages")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="repeatable; default: all of a method")
    parser.add_argument("--method", choices=METHODS, action="append", help="repeatable; default: dflash")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args(argv)
    if args.site:
        sys.path.insert(0, args.site)
    # A release stays as its marker found it; the tests keep bytecode elsewhere.
    sys.dont_write_bytecode = sys.pycache_prefix is None
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    started = time.monotonic()
    try:
        importlib.import_module("vllm.v1.core.sched.scheduler")  # the heavy part, timed apart
    except ImportError as error:
        print(json.dumps({"ok": False, "error": f"cannot import vLLM here: {error}"}))
        return 2
    loaded = time.monotonic()
    reports = [
        examine(scenario, method, args.cases, args.seed)
        for method in args.method or ["dflash"]
        for scenario in args.scenario or scenarios_of(method)
    ]
    sizes = measured_again()
    ok = sizes == MEASURED and all(report["ok"] for report in reports)
    timing = {"import_s": round(loaded - started, 1), "run_s": round(time.monotonic() - loaded, 1)}
    print(
        json.dumps(
            {"ok": ok, "vllm": version(), "python": sys.executable, **timing, "sizes": sizes, "scenarios": reports},
            indent=1,
        ),
        flush=True,
    )
    if sizes != MEASURED:
        print(f"state oracle: expected the sizes {MEASURED}, seen {sizes}", file=sys.stderr)
    for report in reports:
        if not report["ok"]:
            print(f"state oracle: {sentence(report)}", file=sys.stderr)
    return 0 if ok else 1


def sentence(report: dict[str, Any]) -> str:
    """Return what is wrong with a scenario, for whoever has to decide about the release."""
    what = f"method {report['method']}, scenario {report['scenario']}"
    if not report["boots"]:
        return f"{what}: the engine would not start: {report['error']}"
    counts = (
        f"{report['hits']} prefix hits, {report['poisoned']} with a wrong state, {report['wrong_blocks']} with wrong "
        f"attention blocks; {report['wrong_steps']} other steps from a wrong state, {report['stalled']} cases stalled"
    )
    return f"{what}: {counts}; for example {next(iter(report['examples']), 'none kept')}"


def version() -> str:
    """Return the version of the vLLM that was imported."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("vllm")
    return "unknown"


if __name__ == "__main__":
    sys.exit(main())
