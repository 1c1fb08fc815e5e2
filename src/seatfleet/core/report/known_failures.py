"""What is known to go wrong with vLLM seats on GB10 and RTX PRO 6000: public reports, and what is done about each here.

The data behind ``docs/known-failures.md`` and behind whoever has to explain a journal (:func:`explain`). Row names are
stable: M memory, W wheels, patches, JIT and caches, S systemd, processes and cards, H health and quality, G gateway,
N several cards or hosts, X seen by this project or to be met on any host. Sources are public threads and files; one
marked ``second-hand`` is cited by another and was not read at its origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Failure:
    """One known failure.

    ``prevent``, ``detect`` and ``explain`` say what this project does, each empty where it does nothing of the kind;
    ``explain`` is written for the operator who has it. ``covered`` are the tests (``test_file::test_name``) and files
    that hold it; ``open`` says what is not covered, and why. ``pattern`` is a regular expression that finds the
    failure in a line of a journal or in a first cause; None where no line is specific enough.
    """

    id: str
    symptom: str
    trigger: str
    sources: tuple[str, ...]
    prevent: str = ""
    detect: str = ""
    explain: str = ""
    covered: tuple[str, ...] = ()
    open: str = ""
    pattern: str | None = None


def get(name: str) -> Failure | None:
    """Return the failure with that id, whatever the case of its letter."""
    return next((failure for failure in FAILURES if failure.id == name.upper()), None)


def explain(lines: str | Iterable[str]) -> list[tuple[Failure, str]]:
    """Return the failures that a text or lines of a journal look like, each with the first line that says so.

    In the order of those lines: of a start that failed the first error counts.
    """
    found: dict[str, tuple[Failure, str]] = {}
    for line in lines.splitlines() if isinstance(lines, str) else lines:
        for failure, pattern in _patterns():
            if failure.id not in found and pattern.search(line):
                found[failure.id] = (failure, line.strip())
    return list(found.values())


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[Failure, re.Pattern[str]], ...]:
    return tuple((failure, re.compile(failure.pattern)) for failure in FAILURES if failure.pattern)


_MEMORY = (
    Failure(
        id="M1",
        symptom="the whole machine wedges while vLLM profiles memory, about 7 GiB left",
        trigger="GB10, gpu_memory_utilization 0.70",
        sources=("vllm#46307",),
        prevent="the preflight compares MemAvailable with what the host's seats and its reserve need",
        explain="give the seat less (kv_cache_memory, or a lower gpu_memory_utilization) or stop what holds the memory",
        detect="the memory guard watches through the start, too, and kills the seat at the floor",
        covered=("preflight_faults.yml", "test_guard::test_two_samples_below_the_floor_kill"),
    ),
    Failure(
        id="M2",
        symptom="a start collapses with MemAvailable at 22 GiB",
        trigger="vLLM 0.29, Flash-Next NVFP4, utilization 0.70, MTP k=3",
        sources=("vllm#56824",),
        explain="NV_ERR_NO_MEMORY lines of the kernel also appear in good starts and prove nothing by themselves",
        open="the memory that a start needs for a moment is not measured per model; it needs that machine",
    ),
    Failure(
        id="M3",
        symptom="hard reset at a prefill of 128K tokens, 32K and 64K work",
        trigger="GB10, long prompts",
        sources=("dgx-spark-playbooks#97",),
        detect="headroom probe: the depth rises step by step, and a step predicted not to fit is not made",
        explain="run the headroom probe for this seat before its alias is opened to long prompts",
        covered=("test_headroom::test_the_next_step_is_refused_before_it_is_made",),
    ),
    Failure(
        id="M4",
        symptom="silent wedge that only a power cycle ends",
        trigger="GB10 under memory pressure",
        sources=("open-gpu-kernel-modules#1358",),
        detect="the probe tells a hung engine by counters that stand still; a host that is gone is unreachable",
        explain="power-cycle the machine; the seat comes back with its last proven generation; then let it take less",
        covered=("test_probe::test_hung_engine_health_and_models_are_200", "test_generations::test_settle"),
    ),
    Failure(
        id="M5",
        symptom="the machine freezes although KV is pinned and a container limit is set",
        trigger="trusting a memory limit of a control group on unified memory",
        sources=("AEON-7/vllm-ultimate-dgx-spark#9",),
        prevent="no MemoryMax is written for a seat",
        explain="a control group does not see CUDA's share of unified memory; MemAvailable of the host does",
        covered=("src/seatfleet/core/seat/unit.py",),
    ),
    Failure(
        id="M6",
        symptom="a pinned KV cache is never checked; the engine ends at the first deep prompt",
        trigger="--kv-cache-memory-bytes",
        sources=("vllm PR#56698", "vLLM 0.33.0 gpu_worker.py"),
        prevent="the headroom probe finds a safe pin; one without matching evidence is named, or refused by policy",
        covered=("test_pins::test_what_makes_a_pin_doubtful", "test_headroom_hunt::test_a_blind_pin_crosses"),
        explain="a pin belongs to model, release, context, batching and speculation: measure it again after a change",
    ),
    Failure(
        id="M7",
        symptom="out of memory at a prefill of 230K tokens",
        trigger="profiling that did not see the attention workspace",
        sources=("vllm#55569",),
        detect="the headroom probe goes to the seat's full context with a real prompt",
        explain="measure with the longest prompt that is allowed, or lower max_model_len",
        covered=("test_headroom::test_random_memory_models_with_a_known_edge",),
    ),
    Failure(
        id="M8",
        symptom="memory of the n-gram table's convolution grows with the longest request of the batch",
        trigger="Flash-Next on builds before 2026-08-31",
        sources=("vllm#54764", "vllm PR#54517"),
        prevent="the catalogue says which vLLM a model needs at least; an older release is refused",
        covered=("fleet_faults.yml",),
    ),
    Failure(
        id="M9",
        symptom="weights take 105 GiB instead of 67",
        trigger="a kernel path without sm_121 support falls back to Marlin, or the other way round",
        sources=("vllm#43969", "vllm#50925", "vllm#49031"),
        detect="a campaign reports the backends that the engine resolved for each arm",
        explain="compare the lines 'Using ... backend' of this start with those of a start that was good; set "
        "moe_backend or attention_backend at the seat to pin one",
        covered=("test_campaign_observe::test_what_the_engine_resolved",),
        open="a deploy does not compare them; the lines have no stable form over releases",
        pattern=r"does not have native support for FP[48] computation|[Ww]eight-only FP[48] compression will be used",
    ),
    Failure(
        id="M10",
        symptom="wrong free memory on unified memory",
        trigger="cudaMemGetInfo on GB10 before vLLM took psutil's figure for integrated devices",
        sources=("vllm#35313", "vllm#48140", "vllm PR#35356"),
        explain="free the page cache before the start on releases before 0.33.0: it counts as used there",
        prevent="the model store drops the page cache of what it copies",
        covered=("test_models::test_a_model_is_published_readable_and_not_again",),
        open="the 0.23.0 series has no patch for it: its fleet runs with a utilization measured under that figure",
    ),
    Failure(
        id="M11",
        symptom="Error in memory profiling: free memory grew while it was measured",
        trigger="another seat stopped, or page cache was freed, during the start",
        sources=("vllm#35920", "vllm#56830"),
        prevent="one start at a time per host (a lock), and a stop is proven complete before the next start",
        explain="something else on this host gave memory back during the start; start again, it is not the seat",
        covered=(
            "test_machine::test_one_start_at_a_time",
            "test_rollout::test_a_process_that_cannot_be_killed_stops_the_rollout",
        ),
        pattern=r"Error in memory profiling",
    ),
    Failure(
        id="M12",
        symptom="two seats started together measure each other's memory",
        trigger="parallel starts on one card or on unified memory",
        sources=("vllm#55827",),
        prevent="one start at a time per host, over all seats and controllers",
        covered=("test_machine::test_one_start_at_a_time",),
        open="units that systemd starts by itself at boot are not serialised",
    ),
    Failure(
        id="M13",
        symptom="Free memory on device ... is less than desired GPU memory utilization",
        trigger="a desktop or another tenant holds memory",
        sources=("MiaAI-Lab GLM-5.3-EXL3#47",),
        prevent="a rollout does vLLM's own sum before the old process is stopped, and names who holds the rest",
        explain="somebody else holds memory of this card: nvidia-smi shows who; on GB10 compare MemAvailable",
        detect="the preflight compares what is free on a seat's card with what it will ask for",
        covered=("test_render::test_utilization_beside_a_pin", "test_admission::test_unified_memory"),
        pattern=r"Free memory on device .* is less than desired GPU memory utilization",
    ),
    Failure(
        id="M15",
        symptom="out of memory at a cold start beside other engines",
        trigger="GB10, free memory read from cudaMemGetInfo",
        sources=("NVIDIA/xr-ai PR#440", "NVIDIA/xr-ai PR#462"),
        prevent="a pin and a matching utilization are written together",
        covered=("test_render::test_utilization_beside_a_pin",),
    ),
    Failure(
        id="M16",
        symptom="a pin alone cannot start beside a tenant, the utilization check refuses it",
        trigger="--kv-cache-memory-bytes with the default utilization",
        sources=("llamastash#80", "llamastash PR#81"),
        prevent="the matching utilization is computed from weights, pin and overhead",
        covered=("test_render::test_utilization_beside_a_pin",),
    ),
    Failure(
        id="M17",
        symptom="the allocator wanted 466 MiB and 403 were free; the request still answered 200",
        trigger="RTX PRO 6000, a 155,497-token prefill, pin of 16 GiB",
        sources=("Qwen3.8-Flash-Next seat notes",),
        detect="the headroom probe fails a pin on any allocator warning, fatal or not",
        explain="the pin is too large by more than it looks: the next deep prompt may end the engine",
        covered=("test_headroom::test_warnings", "test_headroom::test_what_is_not_clean"),
        pattern=r"OOM on device \d+",
    ),
    Failure(
        id="M18",
        symptom="--kv-cache-memory did not limit anything, 27 GB gone; the container showed 364 MiB",
        trigger="unified memory and a container's own figures",
        sources=("mudler/vllm.cpp#357",),
        explain="RSS and container figures do not contain CUDA memory on GB10; MemAvailable of the host does",
    ),
    Failure(
        id="M19",
        symptom="from 9.9 to 2.4 GiB free within one sample of 3 s",
        trigger="prefill near the maximum",
        sources=("gb10-services memory note of 2026-07-16",),
        detect="the headroom probe keeps the high water of the allocator, which no sampling can miss",
        covered=("test_headroom::test_what_is_needed_leaves_out_what_the_allocator_can_give_back",),
    ),
    Failure(
        id="M20",
        symptom="MemoryMax or systemd-oomd acts too late or on the wrong process",
        trigger="GB10",
        sources=("model-serving-minefield 57", "LMCache#4759", "systemd#36434"),
        prevent="no MemoryMax, ManagedOOMPreference=avoid; the memory guard acts before the kernel does",
        explain="the kernel's killer or systemd-oomd took a process of the seat: lower what it pins, or find the "
        "tenant that grew (journalctl -k -g 'Out of memory' has the table of that moment)",
        covered=("test_unit::test_systemd_understands_every_line",),
        pattern=r"result 'oom-kill'|[Oo]ut of memory: Killed process|killed by the OOM killer"
        r"|systemd-oomd killed \d+ process",
    ),
    Failure(
        id="M21",
        symptom="a guardian with a floor and a swap condition never fires",
        trigger="swap is on",
        sources=("model-serving-minefield 134",),
        prevent="the memory guard has no swap condition, and its role refuses a host that swaps",
        detect="the preflight warns of swap on unified memory",
        covered=("preflight_faults.yml", "test_guard::test_other_guards_and_swap_are_named"),
    ),
    Failure(
        id="M23",
        symptom="speculation takes 36 to 56 % of the KV tokens; only three sequences run",
        trigger="MTP on a hybrid model",
        sources=("jschmied/qwen38-flash-next-gb10", "vllm#55533", "vllm PR#57261", "vllm#54458"),
        prevent="the planner counts blocks with the speculative tokens and refuses a context that does not fit",
        detect="the probe compares planned and logged KV tokens at every start",
        covered=("test_planner::test_a_context_that_does_not_fit_names_what_would", "test_probe::test_identity"),
        pattern=r"To serve at least one request with the model's max seq len",
        explain="more kv_cache_memory, a shorter max_model_len or fewer speculative tokens: seatctl plan says which",
    ),
    Failure(
        id="M24",
        symptom="sleep mode crashes",
        trigger="RTX PRO 6000, sleep level",
        sources=("vllm#21336",),
        prevent="sleep is not offered; a seat stops by its unit",
        covered=("src/seatfleet/core/seat/rollout.py",),
    ),
    Failure(
        id="M25",
        symptom="a speculative arm runs out of memory where the arm without speculation does not",
        trigger="one KV pin for both, BF16 drafter",
        sources=("FreeToken#214 (inference, untested)", "ninfer#102 (inference, untested)"),
        prevent="a campaign boots its heaviest arm first and lowers the one pin for all arms until it serves",
        covered=("test_campaign_runner::test_step_0_lowers_the_pin_for_all_arms_until_the_heaviest_serves",),
        explain="the pin was measured without the drafter: measure it again with speculation on, or lower it",
    ),
)

_WHEELS = (
    Failure(
        id="W1",
        symptom="libcudart.so.13 is missing, or two CUDA versions in one environment",
        trigger="vLLM's default wheel is CUDA 13 and torch was chosen separately",
        sources=("vllm#44335", "vllm#43435", "vllm#52300"),
        prevent="a release is one lock with one wheel and hash per distribution, resolved together",
        detect="the install imports torch and vllm's server as the service user before anything is stopped",
        explain="this environment was changed after its install; build the release again (vllm_release_repair)",
        covered=("test_installs::test_an_import_that_fails_leaves_no_marker_and_the_next_run_starts_over",),
        pattern=r"lib(?:cudart|cublas|nvrtc|cudnn)\S*\.so\S*: cannot open shared object",
    ),
    Failure(
        id="W2",
        symptom="torch cannot use CUDA although the wheel is installed",
        trigger="aarch64 wheels on the index were CPU-only before April 2026",
        sources=("LocalAI#9950",),
        prevent="locks name one wheel by hash for aarch64; those of both vLLM releases need CUDA packages",
        explain="python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())' in the release",
        covered=("test_locks::test_committed_lock_fits_its_recipe",),
        open="torch.cuda.is_available() is not asked on the host before the stop; it needs a card",
    ),
    Failure(
        id="W3",
        symptom="no sm_121 machine code in published wheels",
        trigger="GB10",
        sources=("vllm#50925", "vllm PR#38484", "wheels of 0.33.0, disassembled"),
        explain="GB10 runs sm_120 code, and FlashAttention 2 is compiled by the driver from PTX at the first start; a "
        "library that says this has neither: choose another attention_backend or moe_backend at the seat, or a release "
        "whose wheels have code for the card",
        covered=("test_render::test_every_cache_is_in_the_cache_directory",),
        pattern=r"no kernel image is available for execution on the device|cudaErrorNoKernelImageForDevice"
        r"|sm_\d+\w? is not compatible with the current PyTorch",
    ),
    Failure(
        id="W4",
        symptom="JIT needs nvcc or ninja and does not find them",
        trigger="a unit's minimal PATH, or PATH with a file in it",
        sources=("vllm#49497", "vllm#36077", "vllm#21960", "flashinfer#1781", "NeMo-Gym#1405"),
        prevent="the unit's PATH begins with the release's bin, where ninja is; the class adds CUDA's",
        explain="install the CUDA toolkit that the release needs, and name it in the host class' seat_environment",
        covered=("test_render::test_class_and_seat_add_to_the_environment", "preflight_faults.yml"),
        pattern=r"Could not find nvcc|nvcc(?:'|\")?: (?:command )?not found"
        r"|No such file or directory: '\S*(?:nvcc|ninja)'|Ninja is required to load C\+\+ extensions"
        r"|CUDA_HOME environment variable is not set",
    ),
    Failure(
        id="W5",
        symptom="ptxas does not know sm_121a",
        trigger="Triton's own ptxas on GB10",
        sources=("triton#8539", "gpustack#4372"),
        prevent="TRITON_PTXAS_PATH of the class is the CUDA toolkit's; the preflight asks it what it assembles for",
        explain="set TRITON_PTXAS_PATH to the CUDA toolkit's ptxas (the class gb10 does); a toolkit whose own nvcc "
        "does not know the card is too old",
        covered=("preflight_faults.yml", "group_vars/gb10/main.yml"),
        pattern=r"ptxas fatal.*sm_12\d|Unsupported gpu architecture 'compute_12\d\w?'"
        r"|Value 'sm_12\d\w?' is not defined for option 'gpu-name'",
    ),
    Failure(
        id="W6",
        symptom="kernels are compiled at run time that used to be in the wheel",
        trigger="flashinfer 0.6.18 and newer, aarch64",
        sources=("flashinfer PR#4757", "flashinfer#3907", "flashinfer#4527", "flashinfer#4514"),
        prevent="caches are kept per release and drafter, so a second start does not compile again",
        explain="a first start of a release may take many minutes; probe.ready_timeout_s of the class allows for it",
        covered=("test_render::test_every_cache_is_in_the_cache_directory",),
        open="kernels are not built at install time: that needs the card",
    ),
    Failure(
        id="W7",
        symptom="flashinfer refuses its cubin or jit-cache package of another version",
        trigger="part of an environment was upgraded",
        sources=("flashinfer's exact version check",),
        prevent="one lock per release, installed once, root-owned and read-only; never upgraded in place",
        explain="somebody installed into the release; build it again (vllm_release_repair)",
        covered=("test_installs::test_a_changed_unpatched_file_is_found_when_every_file_is_compared",),
        pattern=r"flashinfer-(?:cubin|jit-cache) version .* does not match",
    ),
    Failure(
        id="W8",
        symptom="patches are gone without a message",
        trigger="a later pip install into patched site-packages",
        sources=("jschmied/qwen38-flash-next-gb10 REPRODUCE section 3",),
        prevent="releases are read-only to the service and never installed into",
        detect="ExecStartPre verifies every patched file by hash",
        explain="the named file is not the patched one: build the release again (vllm_release_repair)",
        covered=("test_patches::test_a_later_pip_install_that_reverts_a_file_stops_verify",),
        pattern=r"expected patched sha256 .*, seen ",
    ),
    Failure(
        id="W10",
        symptom="the JSON of --speculative-config loses its quotes",
        trigger="JSON on a systemd line or in an environment file",
        sources=("jschmied/qwen38-flash-next-gb10", "MiaAI-Lab Qwen3.8-Single#5", "vibeunion/supacloud PR#269"),
        prevent="ExecStart is constant, all settings are in vLLM's own configuration file",
        covered=(
            "test_unit::test_exec_start_does_not_depend_on_settings",
            "test_render::test_speculative_is_one_nested_mapping",
        ),
    ),
    Failure(
        id="W11",
        symptom="ambiguous option at the start of a new release",
        trigger="an abbreviated flag (--kv-cache-memory)",
        sources=("vllm#56002", "vllm#55834"),
        prevent="only canonical names are written; abbreviations of rendered flags are refused under engine:",
        covered=("seat_faults.yml", "test_render::test_fields"),
        explain="a flag under engine: is an abbreviation; write the long name that the release has",
        pattern=r"ambiguous option: ",
    ),
    Failure(
        id="W12",
        symptom="crash loop on a removed flag",
        trigger="an upgrade (--disable-log-requests)",
        sources=(
            "kserve#6037",
            "kserve#4883",
            "dynamo#8693",
            "llm-d-benchmark#781",
            "jdaln/dgx-spark-inference-stack#12",
        ),
        prevent="the installed release is asked whether it takes the flags before anything is stopped; seatctl release "
        "survey names options of the fleet's seats that another vLLM does not have",
        detect="a generation that does not start gives the last proven one back; four failed starts end the loop",
        explain="the release does not know this flag; remove it under engine:, or keep the older release",
        covered=(
            "test_rollout::test_flags_that_the_release_refuses_touch_nothing",
            "test_release_survey::test_what_would_change",
            "test_rollout::test_a_bad_generation_gives_the_old_one_back",
        ),
        pattern=r"error: unrecognized arguments: ",
    ),
    Failure(
        id="W13",
        symptom="a cache directory is not writable",
        trigger="ProtectHome, ProtectSystem, HOME=/",
        sources=("lemonade#1864", "gigastt#336", "llm-d-kv-cache#83", "vllm PR#38920"),
        prevent="every cache variable points into the unit's CacheDirectory",
        covered=("test_render::test_every_cache_is_in_the_cache_directory",),
        explain="something writes outside of the unit's cache directory; name its variable under env: of the seat",
        pattern=r"(?:PermissionError|OSError): \[Errno (?:13|30)\](?!.*'/var/cache/vllm)",
    ),
    Failure(
        id="W14",
        symptom="arms with another number of draft tokens share compiled kernels",
        trigger="vLLM's compile cache key does not contain num_speculative_tokens",
        sources=("vllm#53366", "vLLM 0.33.0 SpeculativeConfig.compute_hash"),
        prevent="a cache folder per release, weights and drafter settings; a patch adds the number to the key",
        covered=(
            "test_render::test_arms_of_a_campaign_do_not_share_compiled_kernels",
            "test_campaign_runner::test_every_arm_has_compile_caches_of_its_own",
        ),
    ),
    Failure(
        id="W15",
        symptom="pidfd_getfd: Operation not permitted after 10 minutes of loading",
        trigger="offload of the n-gram table in preview builds, ptrace_scope=1",
        sources=("jschmied/qwen38-flash-next-gb10 failure B2", "flashinfer#2394"),
        explain="this build needs CAP_SYS_PTRACE: seat_capabilities of the host class; 0.33.0 does not need it",
        covered=("test_unit::test_devices_and_capabilities",),
        pattern=r"pidfd_getfd",
    ),
    Failure(
        id="W16",
        symptom="OSError of torchcodec at import",
        trigger="ffmpeg's libraries are missing; 0.33.0 requires torchcodec",
        sources=("jschmied/qwen38-flash-next-gb10 failure B2b",),
        prevent="the preflight looks for FFmpeg's libraries where a release needs them",
        detect="the install imports what the server imports, as the service user",
        explain="install ffmpeg's libraries (package ffmpeg) on the host",
        covered=(
            "preflight_faults.yml",
            "test_installs::test_an_import_that_fails_leaves_no_marker_and_the_next_run_starts_over",
        ),
        pattern=r"[Cc]ould not load libtorchcodec|libtorchcodec\S*\.so|libav(?:util|codec|format)\.so",
    ),
    Failure(
        id="W18",
        symptom="a compromised package steals credentials at every start of Python",
        trigger="LiteLLM 1.82.7 and 1.82.8, installed without hashes",
        sources=("BerriAI/litellm#24512", "MAL-2026-2144"),
        prevent="hash locks; those versions are refused",
        detect="the gateway's unit looks for files that any start of Python would run",
        covered=(
            "test_gateway_verdict::test_versions",
            "test_gateway_host::test_an_implant_keeps_the_proxy_from_starting",
        ),
    ),
    Failure(
        id="W19",
        symptom="the network is tried although everything is local",
        trigger="offline variables are missing, or the path is not a local directory",
        sources=("vllm#29706", "vllm#8458", "vllm#1910", "mistral-common#248"),
        prevent="HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE are set and reserved; models are absolute paths",
        covered=("test_render::test_names_the_fleet_sets_are_refused",),
        explain="the model's directory lacks a file that was then looked for on the hub: compare it with its manifest",
        pattern=r"OfflineModeIsEnabled|LocalEntryNotFoundError|HFValidationError|MaxRetryError.*huggingface",
    ),
    Failure(
        id="W20",
        symptom="a download says ok and has another content; an unpinned revision moved",
        trigger="downloads without hashes",
        sources=("huggingface_hub#3643", "huggingface_hub#4060", "tonyd2wild#2"),
        prevent="40-digit revision, sha256 and size of every file, published in one rename",
        covered=(
            "test_model_fetch::test_one_corrupted_byte_of_the_right_size",
            "test_model_fetch::test_a_wrong_revision",
            "test_models::test_a_corrupted_byte_of_the_right_size_is_refused",
        ),
    ),
    Failure(
        id="W22",
        symptom="the image is older than the model needs; a package was broken by an install without its dependencies",
        trigger="no rule for the least version",
        sources=("gorlak/sparky-cluster",),
        prevent="min_vllm of a model is checked before any host is contacted; locks are resolved as a whole",
        detect="the install compares the version of every locked distribution",
        covered=("fleet_faults.yml", "test_installs::test_an_install_is_patched_compiled_marked_and_not_repeated"),
        explain="choose a release that knows this architecture (min_vllm in the catalogue)",
        pattern=r"Model architectures .* are not supported",
    ),
)

_SYSTEMD = (
    Failure(
        id="S1",
        symptom="the engine survives its API server and holds 104,277 MiB",
        trigger="KillMode=process, a killed container, the kernel's OOM killer",
        sources=(
            "vllm#55510",
            "vllm PR#55846",
            "vllm PR#34816",
            "vllm#47266",
            "vllm#48234",
            "model-serving-minefield 123",
        ),
        prevent="KillMode=mixed; a stop is proven by an empty control group and a free port",
        covered=(
            "test_rollout::test_a_process_that_cannot_be_killed_stops_the_rollout",
            "test_processes::test_left_over_processes_of_a_dead_unit",
        ),
    ),
    Failure(
        id="S2",
        symptom="a stopped seat still holds memory, a start works minutes later",
        trigger="fast restart; a pinned table is given back about 30 s after the end",
        sources=("model-serving-minefield 81",),
        prevent="a start waits for the memory of the stopped seat: of its cards, and of the table it pinned",
        detect="a campaign waits as well, and says when it gave up",
        covered=(
            "test_rollout::test_a_start_waits_for_the_memory_of_the_stopped_seat",
            "test_rollout::test_a_start_waits_for_the_table_of_the_stopped_seat",
            "test_campaign_seats::test_the_next_boot_waits_for_the_machine_and_says_when_it_gave_up",
        ),
    ),
    Failure(
        id="S3",
        symptom="the API server gives up after 600 s and the engine keeps the card",
        trigger="VLLM_ENGINE_READY_TIMEOUT_S is 600 by default; cold JIT on GB10",
        sources=("vllm#48031", "vllm PR#35616", "vllm PR#32116", "vllm PR#44751"),
        prevent="it is set to probe.ready_timeout_s of the seat (3600 s on GB10)",
        explain="raise probe.ready_timeout_s of the seat or its class above the measured load",
        covered=("test_unit::test_times_come_from_the_seat",),
        pattern=r"Timed out waiting for engine core processes to start",
    ),
    Failure(
        id="S4",
        symptom="killed 90 s after the start",
        trigger="systemd's default start timeout",
        sources=("RIDE-Lab/SAGE#1346", "llama-swap#92"),
        prevent="TimeoutStartSec is probe.ready_timeout_s",
        covered=("test_unit::test_times_come_from_the_seat",),
        explain="before vLLM itself begins (Type=exec) only the check of the patches takes time: a disk that hangs "
        "(journalctl -k), or probe.ready_timeout_s is too short",
        pattern=r"[Ss]tart(?:-pre|-post)? operation timed out",
    ),
    Failure(
        id="S5",
        symptom="a restart loop leaks unified memory until a power cycle (about 35 restarts)",
        trigger="Restart=always without a limit",
        sources=("eugr/spark-vllm-docker#257", "MiaAI-Lab Single#14", "DSpark#72"),
        prevent="four failed starts within a window that counts the seat's load time end the loop",
        detect="the port then answers 503 with Retry-After, and the status table says so",
        covered=(
            "test_unit::test_a_seat_that_dies_at_the_end_of_every_load_is_caught",
            "test_life::test_a_seat_that_gives_up_answers_503_with_retry_after",
        ),
        explain="the seat failed four times; the first cause is in the journal of its first start, not of its last",
        pattern=r"Start request repeated too quickly|start-limit-hit",
    ),
    Failure(
        id="S8",
        symptom="FileNotFoundError of a semaphore after a logout",
        trigger="logind's RemoveIPC for a login user",
        sources=("sparkrun#285", "systemd#2039"),
        prevent="seats run as a system user, which RemoveIPC leaves alone, with a /dev/shm of their own",
        covered=("roles/gpu_host/tasks/main.yml", "test_unit::test_systemd_understands_every_line"),
        explain="something removes shared memory of the user vllm; it must be a system user (uid below 1000)",
        pattern=r"FileNotFoundError: \[Errno 2\].*(?:SemLock|/dev/shm|'/?psm_)",
    ),
    Failure(
        id="S10",
        symptom="another card than the declared one is used",
        trigger="CUDA's order is not that of nvidia-smi",
        sources=("unslothai#6352", "CoursIA#11650", "Device-SMI#40", "vllm#7472"),
        prevent="CUDA_DEVICE_ORDER=PCI_BUS_ID and the card's UUID; indices are positions in PCI order",
        covered=("test_gpus::test_cards_are_in_pci_order", "test_render::test_visible_devices"),
    ),
    Failure(
        id="S11",
        symptom="running requests are cut off by a stop",
        trigger="--shutdown-timeout is 0 by default",
        sources=("vllm PR#34730",),
        prevent="running requests are waited for, then shutdown-timeout 30 s below TimeoutStopSec",
        covered=("test_rollout::test_running_requests_are_waited_for", "test_unit::test_times_come_from_the_seat"),
    ),
    Failure(
        id="S12",
        symptom="zombie processes",
        trigger="a container without an init",
        sources=("NemoClaw#7219",),
        explain="does not apply: seats run under systemd",
    ),
    Failure(
        id="S13",
        symptom="the play says ok although the service died right after its start",
        trigger="trusting state: started",
        sources=("ansible PR#24778", "ansible PR#35636"),
        prevent="READY is an authenticated generation by the process that owns the socket, never systemd's word",
        covered=(
            "test_probe::test_a_unit_that_ended_fails_at_once_with_the_first_error",
            "test_probe::test_crash_at_the_first_request",
        ),
    ),
    Failure(
        id="S15",
        symptom="daemon-reload breaks NVML in containers",
        trigger="cgroup v2 and docker",
        sources=("gorlak/sparky-cluster docs",),
        explain="does not apply: seats are not containers; for tenants in docker use its cgroup driver systemd",
        pattern=r"Failed to initialize NVML: Unknown Error",
    ),
    Failure(
        id="S16",
        symptom="GB10 three to five times slower, in a low power state",
        trigger="power delivery",
        sources=("model-serving-minefield 124",),
        detect="a campaign samples clocks, power and throttling and makes such a boot void",
        covered=("test_campaign_telemetry::test_only_heat_and_power_brakes_count_as_throttling",),
        explain="unplug the machine for a minute; use the power supply that came with it",
    ),
    Failure(
        id="S17",
        symptom="kernel panics",
        trigger="DGX OS 7.4.0 with kernel 6.17.0-1008",
        sources=("forums.developer.nvidia.com 366026",),
        prevent="the preflight refuses kernels that the class denies",
        explain="boot another kernel; fleet_preflight.kernel_deny of the class lists those that panic",
        covered=("preflight_faults.yml", "group_vars/gb10/main.yml"),
    ),
    Failure(
        id="S18",
        symptom="silent hang with prompts above 8K tokens",
        trigger="sm_12x, early Flash-Next builds",
        sources=("vllm#53960 (second-hand)", "jschmied/qwen38-flash-next-gb10"),
        prevent="min_vllm of the model",
        detect="the prefix level of the probe sends prompts up to 30,000 tokens with a time limit",
        covered=("test_prefix::test_prompt_lengths", "test_prefix::test_a_crash_at_a_longer_prompt"),
    ),
)

_HEALTH = (
    Failure(
        id="H1",
        symptom="/health and /v1/models answer 200 while the scheduler is dead",
        trigger="a wedged engine",
        sources=("vllm#39863", "vllm PR#36451", "vllm PR#43122", "vllm PR#46811", "vllm#36960", "gonka#1421"),
        detect="READY is a generated token; counters that stand still under load mean hung; /health is never proof",
        covered=(
            "test_probe::test_hung_engine_health_and_models_are_200",
            "test_prefix::test_passive_finds_a_hung_engine_by_its_counters",
        ),
        explain="restart the seat; keep the journal: the first error is above the line that the engine died",
        pattern=r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)",
    ),
    Failure(
        id="H2",
        symptom="a healthy but busy seat is killed by a probe of 2 s",
        trigger="saturation",
        sources=("gonka#1421", "dgx-spark-playbooks PR#104"),
        prevent="busy is not dead: moving counters win over a probe's time limit; the probe kills nothing",
        covered=(
            "test_probe::test_busy_is_not_dead",
            "test_rollout::test_a_busy_seat_is_left_serving_and_proven_later",
        ),
    ),
    Failure(
        id="H3",
        symptom="a 401 is read as down",
        trigger="/v1/models as readiness",
        sources=("gpustack#6203", "model-serving-minefield 112"),
        prevent="an authenticated generation; 401, 403, 404 and 5xx are told apart",
        covered=("test_probe::test_answers_are_told_apart",),
    ),
    Failure(
        id="H5",
        symptom="tool calls are garbage, or every tool request is 400",
        trigger="wrong or missing parser",
        sources=("gorlak/sparky-cluster", "jschmied/qwen38-flash-next-gb10"),
        detect="the prefix level asks for a tool call and checks its arguments, whole and streamed",
        covered=("test_prefix::test_tool_calls", "test_prefix::test_broken_tool_calls"),
        explain="set tool_call_parser or reasoning_parser of the seat to the one the model's card names; a plugin that "
        "cannot be imported says so in a line above (Failed to load module)",
        pattern=r"invalid (?:tool call|reasoning) parser|(?:Reasoning|[Tt]ool) parser '\S+' not found"
        r"|\"auto\" tool choice requires --enable-auto-tool-choice",
    ),
    Failure(
        id="H6",
        symptom="prompts above 64 tokens are corrupt, a short smoke test passes",
        trigger="sm_120 sparse prefill",
        sources=("0xSero/deepseek-v4.1-flash-4x-rtx-pro-6000#1", "flashinfer#5075", "flashinfer#5095"),
        detect="probe prompts of several lengths, garbage detectors over 200 tokens",
        covered=("test_prefix::test_prompt_lengths", "test_canary::test_garbage"),
    ),
    Failure(
        id="H7",
        symptom="wrong text at long context only, with HTTP 200",
        trigger="sm_12x kernels",
        sources=("vllm#54739", "sglang#36531", "sglang#36806"),
        detect="code words at 2,000, 16,000 and 65,536 tokens (level prefix), and to full depth by the headroom probe",
        covered=("test_prefix::test_code_words_are_read_at_every_length",),
    ),
    Failure(
        id="H8",
        symptom="two prefills in one step corrupt all rows but the first",
        trigger="Flash-Next with MTP before 2026-09-05",
        sources=("vllm PR#55375", "vllm PR#55467", "vllm#55357"),
        prevent="min_vllm of the model is 0.33.0",
        detect="acceptance is also measured with several requests at once",
        covered=("fleet_faults.yml", "test_probe::test_a_drafter_that_breaks_with_several_requests_at_once"),
    ),
    Failure(
        id="H9",
        symptom="acceptance of exactly 1.00 at every position",
        trigger="CUDA graph corruption: verification does not happen",
        sources=("vllm#53030 (second-hand)",),
        detect="an upper bound: accepted at every position every time is broken on code and prose",
        covered=(
            "test_acceptance::test_bands",
            "test_campaign_analysis::test_flat_acceptance_on_prose_is_a_corruption_unless_declared",
        ),
    ),
    Failure(
        id="H10",
        symptom="acceptance 0: the draft head is random, missing in the index, or quantized by accident",
        trigger="checkpoint",
        sources=("vllm PR#37667", "paroquant#42", "sglang#35797", "vllm#55605", "vllm#41789"),
        prevent="a model is published only with the tensors that the catalogue names, in its index and in a form that "
        "its quantization configuration agrees with",
        detect="the probe's acceptance level measures it at every deploy",
        covered=(
            "test_model_fetch::test_needed_tensors_are_looked_for_before_anything_is_published",
            "test_tensors::test_what_the_configuration_says_of_the_head",
            "test_probe::test_acceptance",
            "test_chain::test_the_probe_fails_on_a_drafter_that_nothing_is_accepted_from",
        ),
        explain="seatctl model tensors DIR --name MODEL says which tensors are missing, unlisted or misread",
    ),
    Failure(
        id="H11",
        symptom="MTP is corrupt in some boots and right in others",
        trigger="more than one sequence, TP6",
        sources=("rtx6kpro#63",),
        detect="every start is probed, also one of an unchanged generation; a campaign judges each boot",
        covered=(
            "test_rollout::test_second_run_does_nothing",
            "test_campaign_analysis::test_what_disqualifies_k2_and_only_k2",
        ),
        open="restarts by systemd itself are probed by the next timer or deploy, not at once",
    ),
    Failure(
        id="H12",
        symptom="MTP fails only under concurrency or at a temperature",
        trigger="full CUDA graphs corrupt verification",
        sources=("model-serving-minefield 28, 98, 122",),
        detect="acceptance with several requests at once, greedy and as callers sample",
        covered=("test_probe::test_a_drafter_that_breaks_with_the_callers_temperature",),
    ),
    Failure(
        id="H13",
        symptom="prefix hits vanish or lose one block when a drafter is on",
        trigger="MTP or EAGLE on hybrid models",
        sources=("vllm#51250", "vllm#47930", "vllm-ascend#9247", "vllm#38898", "eugr/spark-vllm-docker#114"),
        detect="the prefix level counts hits against what block size and drafter allow",
        covered=("test_prefix::test_no_hits", "test_prefix::test_expected_hits"),
    ),
    Failure(
        id="H15",
        symptom="the same configuration has another speed and acceptance at every start",
        trigger="kernels are chosen by timing at the start",
        sources=("vllm#53436", "vllm#54506", "jschmied/qwen38-flash-next-gb10"),
        prevent="the unit of a campaign is the boot; one boot never decides",
        covered=("test_campaign_stats::test_the_screen_never_decides",),
    ),
    Failure(
        id="H16",
        symptom="a seven-fold regression that was a measurement artefact",
        trigger="prefill counted as decode, work of different length",
        sources=("vllm#47297", "rMLX#436"),
        prevent="streams are stamped at the client; decode-only and end-to-end are different metrics; lengths compared",
        covered=(
            "test_campaign_observe::test_metrics_of_one_stream_by_hand",
            "test_campaign_analysis::test_answers_of_different_length_are_named",
        ),
    ),
    Failure(
        id="H17",
        symptom="dynamic speculation with k=0 still costs 7 to 22 % per token",
        trigger="an off arm that has a speculative configuration",
        sources=("vllm#49548",),
        prevent="speculative: null writes no speculative-config at all; a control that drafts is no control",
        covered=("test_campaign_analysis::test_a_control_that_drafts_is_no_control",),
    ),
    Failure(
        id="H18",
        symptom="shared endpoints, warm caches and run order change the result",
        trigger="benchmarks on a seat that serves",
        sources=("model-serving-minefield 54, 105, 110, 111",),
        prevent="the seat leaves the gateway, control boots bracket the arms, every request has a salt of its own",
        detect="foreign requests make a boot void",
        covered=(
            "test_campaign_runner::test_a_seat_that_serves_others_is_refused",
            "test_campaign_schedule::test_linear_drift_cancels_in_every_difference",
        ),
    ),
    Failure(
        id="H19",
        symptom="temperature 0 is not reproducible under load",
        trigger="batch-dependent kernels",
        sources=("jschmied/qwen38-flash-next-gb10 failure D6", "vllm#51782"),
        explain="expected; texts are compared only where a token led the next one clearly",
        covered=("test_canary::test_a_change_without_a_clear_lead_is_legal",),
    ),
    Failure(
        id="H20",
        symptom="MTP costs 8 to 35 % of the throughput at concurrency",
        trigger="concurrency",
        sources=("vllm recipes PR#923", "WombatSoftware RTX PRO 6000 notes", "ninfer#102"),
        prevent="a campaign decides per concurrency, and reports where an arm pays",
        covered=("test_campaign_definition::test_a_definition_is_read_with_its_defaults",),
    ),
    Failure(
        id="H21",
        symptom="NVFP4 drafter: acceptance 0 under CUDA graphs; prompt_logprobs corrupt",
        trigger="vLLM 0.27 and 0.28",
        sources=("vllm#54997", "vllm#53488", "vllm PR#53520"),
        detect="acceptance at every deploy; prompt_logprobs is used by no check",
        covered=("test_probe::test_acceptance",),
    ),
)

_GATEWAY = (
    Failure(
        id="G1",
        symptom="401 for an alias that the key should reach",
        trigger="model name in the key's list instead of the alias",
        sources=("litellm#15228",),
        detect="every pair of alias and key is proven with a completion",
        covered=("test_gateway_verdict::test_judgement",),
    ),
    Failure(
        id="G2",
        symptom="listed in /v1/models and denied in chat",
        trigger="scoped keys",
        sources=("litellm#21032",),
        detect="proofs are completions, never the list",
        covered=("test_gateway_verdict::test_the_silent_case_is_pointed_out",),
    ),
    Failure(
        id="G4",
        symptom="403 in several variants",
        trigger="teams, access groups, key types",
        sources=("litellm#28464", "litellm#23850", "litellm#8616", "litellm#8113", "litellm#37810"),
        explain="each answer is classified: key refused, team's cap, alias unknown, backend refused",
        covered=(
            "test_gateway_verdict::test_classification",
            "test_gateway_client::test_the_cap_of_a_keys_team_is_known",
        ),
    ),
    Failure(
        id="G5",
        symptom="one client's parameter goes into everybody's later requests",
        trigger="extra_body of a deployment, older LiteLLM",
        sources=("litellm#32112", "litellm#29615", "litellm PR#29620"),
        prevent="least version 1.101.1; aliases of one backend must have the same chat_template_kwargs",
        covered=(
            "test_gateway_verdict::test_versions",
            "seat_faults.yml",
            "test_gateway::test_a_poke_with_the_opposite_setting_poisons_nothing",
        ),
    ),
    Failure(
        id="G6",
        symptom="health checks flood the seat, or never run",
        trigger="background_health_checks",
        sources=("litellm#37321", "litellm#20502", "litellm#10114", "litellm PR#24678"),
        prevent="off in the gateway of this project; the seat has its own probe",
        covered=("roles/gateway/vars/main.yml",),
    ),
    Failure(
        id="G8",
        symptom="running requests are lost when the gateway restarts for a change",
        trigger="configuration file rewritten per change",
        sources=("vllmops", "sparkrun"),
        prevent="aliases change through the API; a restart lets running streams end",
        covered=("test_gateway::test_a_running_stream_outlives_a_restart",),
    ),
)

_SEVERAL = (
    Failure(
        id="N1",
        symptom="hang or wrong data with transfers between cards",
        trigger="IOMMU or ACS on",
        sources=("nccl#1999", "vllm#33041", "nccl#2079", "rtx6kpro#15"),
        explain="set NCCL_P2P_DISABLE=1 under env: of the seat, or turn ACS off in the firmware",
        open="no transfer test is run: the fleet has no seat over two cards",
        pattern=r"Watchdog caught collective operation timeout",
    ),
    Failure(
        id="N3",
        symptom="NCCL of the wheel and of DGX OS differ although both say 2.28.9",
        trigger="GB10, two machines",
        sources=("vllm#41725", "vllm#42354"),
        prevent="the wheel's NCCL is in the lock by hash; both hosts of a seat run one release, or it is refused",
        covered=(
            "test_releases::test_what_decides_the_files_decides_the_id",
            "test_link::test_a_generation_that_lacks_something_is_not_started",
        ),
        pattern=r"NCCL error|ncclSystemError|ncclUnhandledCudaError",
        explain="both hosts must run the same release; look for LD_PRELOAD or VLLM_NCCL_SO_PATH in env:",
    ),
    Failure(
        id="N4",
        symptom="wrong RoCE interface or GID index",
        trigger="two Sparks",
        sources=("vllm#46097", "model-serving-minefield 89", "DSpark#87"),
        open="interfaces are the operator's to name (nodes; env: NCCL_IB_GID_INDEX); no card to test on",
        pattern=r"ibv_modify_qp failed|Gloo connectFullMesh failed",
        explain="name the interface of the fast link in nodes: of the seat, NCCL_IB_GID_INDEX in its env:",
    ),
    Failure(
        id="N5",
        symptom="silent wedge over four GB10: /health 200, counters frozen",
        trigger="FlashInfer sm_120 prefill",
        sources=("vllm PR#41834",),
        detect="as H1: counters that stand still",
        covered=("test_prefix::test_passive_finds_a_hung_engine_by_its_counters",),
    ),
    Failure(
        id="N6",
        symptom="kernels missing for sm_120",
        trigger="backends that do not support it",
        sources=("vllm#30135", "vllm#31085", "vllm#32109", "vllm#20522"),
        explain="choose another attention_backend or moe_backend at the seat; the error names the one that failed",
        pattern=r"No valid attention backend|not supported on compute capability|requires compute capability",
    ),
)

_ANYWHERE = (
    Failure(
        id="X1",
        symptom="Driver/library version mismatch",
        trigger="the driver package was upgraded under a loaded kernel module (unattended upgrades)",
        sources=("NVIDIA driver behaviour, recorded in many threads",),
        explain="reboot, one host at a time; hold the driver packages afterwards (apt-mark hold)",
        prevent="gpu_host_held_packages holds the driver; the preflight names loose packages under unattended upgrades",
        covered=("test_preflight::test_a_driver_that_was_upgraded_under_its_module", "test_gpus::test_facts"),
        pattern=r"Driver/library version mismatch|NVML/RM version mismatch"
        r"|Error 803: system has unsupported display driver|NVRM: API mismatch",
    ),
    Failure(
        id="X2",
        symptom="the driver is too old for the release's CUDA",
        trigger="CUDA 13 wheels need the driver branch R580",
        sources=("CUDA 13.0 release notes",),
        explain="upgrade the driver to min_driver of the release, or run a release built for an older CUDA",
        pattern=r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|PTX was compiled with an unsupported toolchain|Error 804: forward compatibility",
        prevent="the preflight compares the driver with min_driver of each release",
        covered=("test_preflight::test_an_old_driver",),
    ),
    Failure(
        id="X3",
        symptom="a VLLM_ variable that the release does not know",
        trigger="a typing error, or a variable of another release",
        sources=("vLLM platforms/interface.py validate_environ",),
        prevent="names are checked against the release's own list before any host is contacted",
        detect="--fail-on-environ-validation is in every seat",
        covered=("fleet_faults.yml", "test_journal::test_recorded_journals"),
        explain="correct or remove the name under env: of the seat",
        pattern=r"Unknown vLLM environment variable detected",
    ),
    Failure(
        id="X4",
        symptom="the KV cache does not fit the memory",
        trigger="a pin above what is free",
        sources=("vLLM v1 kv_cache_utils",),
        explain="lower kv_cache_memory, or find out what else holds the memory",
        covered=("test_journal::test_recorded_journals",),
        pattern=r"Available memory on node .* on kv cache allocation is less than"
        r"|No available memory for the cache blocks",
    ),
    Failure(
        id="X5",
        symptom="address already in use",
        trigger="another process listens on the seat's port",
        sources=("recorded here",),
        prevent="the port is looked at before anything is stopped, and its owner is named",
        covered=(
            "test_rollout::test_what_can_be_known_before_the_stop_touches_nothing",
            "test_processes::test_somebody_else_on_the_port",
        ),
        explain="ss -ltnp shows who listens on the seat's port",
        pattern=r"[Aa]ddress already in use|EADDRINUSE",
    ),
    Failure(
        id="X6",
        symptom="no card is visible to the seat",
        trigger="driver not loaded, card fallen off the bus, a UUID of a card that was replaced",
        sources=("NVIDIA Xid 79", "torch"),
        prevent="cards are counted and read by UUID before a generation is rendered",
        covered=("test_gpus::test_facts",),
        explain="nvidia-smi and lspci on the host; after a replaced card run site.yml, which reads the new UUID",
        pattern=r"No CUDA GPUs are available|no CUDA-capable device is detected|Failed to infer device type"
        r"|fallen off the bus|Xid \(PCI:[^)]*\): 79\b|CUDA_ERROR_NO_DEVICE",
    ),
    Failure(
        id="X7",
        symptom="disk full",
        trigger="weights, releases or compile caches",
        sources=("any host",),
        prevent="releases and models are measured against the free space before a byte is written",
        covered=(
            "test_installs::test_a_full_disk_is_named_with_both_sizes",
            "test_models::test_a_disk_that_is_too_small_is_named_with_both_sizes",
        ),
        explain="df -h /srv /opt /var/cache; old models and releases go with playbooks/remove.yml",
        pattern=r"No space left on device",
    ),
    Failure(
        id="X8",
        symptom="a weight file cannot be read",
        trigger="truncated or damaged file",
        sources=("safetensors",),
        prevent="sizes at every deploy, sha256 when asked for (drift_hashes=true)",
        covered=("test_models::test_damage_is_found_refused_and_repaired",),
        explain="ansible-playbook playbooks/drift.yml -e drift_hashes=true names the file",
        pattern=r"SafetensorError|InvalidHeader|HeaderTooLarge|incomplete metadata, file not fully covered",
    ),
    Failure(
        id="X9",
        symptom="the first request for log-probabilities ends the engine",
        trigger="no C++ compiler on the host: the sampler is compiled also with enforce_eager",
        sources=("recorded here, vLLM 0.32.0",),
        prevent="TORCH_COMPILE_DISABLE=1 where there is no compiler",
        covered=("group_vars/lab/main.yml",),
        explain="install a C++ compiler on the host, or set TORCH_COMPILE_DISABLE=1 under env: of the seat",
        pattern=r"InvalidCxxCompiler|No working C\+\+ compiler found",
    ),
    Failure(
        id="X10",
        symptom="a dead engine ends the server with exit code 0",
        trigger="vLLM's API server after an engine's death",
        sources=("recorded here, vLLM 0.32.0 and 0.33.0",),
        prevent="Restart=always, and a patch that makes the exit code 1",
        covered=("test_engine_death::test_exit_codes_with_the_patch_and_without",),
    ),
    Failure(
        id="X11",
        symptom="a seat over two hosts answers /health with 200 while the worker on the other host is dead",
        trigger="vLLM's multi-node launch; the next request gets 500 and ends the server",
        sources=("recorded here, vLLM 0.32.0",),
        detect="the link of the two hosts ends the other half within seconds, and both start anew",
        covered=(
            "test_link::test_the_head_is_ended_when_the_half_that_was_with_it_is_gone",
            "test_two_hosts::test_one_half_that_ends_takes_the_other_with_it_and_both_come_back",
        ),
    ),
    Failure(
        id="X12",
        symptom="the memory guard ended the seat",
        trigger="available memory of a host with unified memory below its floor",
        sources=("docs/memory.md",),
        explain="give the seat less (kv_cache_memory, a shorter max_model_len) and deploy it, or find the tenant that "
        "grew; to start it as it is: seatctl guard clear SEAT",
        covered=("test_known_lines::test_the_memory_guards_mark_is_told",),
        pattern=r"memory guard killed ",
    ),
    Failure(
        id="X13",
        symptom="CUDA is out of memory",
        trigger="at load: something else holds the card; while serving: a KV pin that leaves no room for a deep prompt",
        sources=("vllm#18446", "club-3090#58", "club-3090#60"),
        explain="at load: nvidia-smi shows who else holds the card, else the seat is too large for it; while serving: "
        "lower kv_cache_memory to what playbooks/headroom.yml measures, with speculation on if the seat has it (M25)",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"OutOfMemoryError|CUDA out of memory|CUDA (?:driver )?error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|Cuda failure 'out of memory'",
    ),
    Failure(
        id="X14",
        symptom="the seat's own cache cannot be written",
        trigger="the disk went read-only after an error, or files there belong to somebody else",
        sources=("any host",),
        explain="Read-only: journalctl -k tells of the disk. Permission: something ran as root; stop the seat and "
        "remove what is in /var/cache/vllm/SEAT, it is built again",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"\[Errno (?:13|30)\] .*'/var/cache/vllm|Read-only file system \(os error 30\)",
    ),
    Failure(
        id="X15",
        symptom="a kernel cannot be compiled at run time",
        trigger="no C compiler, no headers of Python, or a toolkit that refuses the source",
        sources=("vllm#36077", "flashinfer#2252"),
        explain="the compiler's own message is beside this line; gcc, g++ and python3-dev must be on the host",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"Failed to find C compiler|fatal error: \S+: No such file or directory|cannot find -lcuda"
        r"|(?:gcc|[gc]\+\+): (?:command )?not found",
    ),
    Failure(
        id="X16",
        symptom="a compile cache is damaged",
        trigger="a start that was cut off while it wrote, or two that wrote at once",
        sources=("vllm#31199", "vllm#21858", "vllm#18851"),
        explain="stop the seat, remove what is in /var/cache/vllm/SEAT and start it: the first start compiles again",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"leading to a corrupted compilation artifact|UnpicklingError|EOFError: Ran out of input"
        r"|failed to get the hash of the compiled graph",
    ),
    Failure(
        id="X17",
        symptom="the tokenizer cannot be loaded",
        trigger="files missing in the model's directory, or a package that the tokenizer needs",
        sources=("transformers",),
        explain="compare the model's directory with its manifest (drift.yml -e drift_hashes=true); a tokenizer of its "
        "own needs trust_remote_code",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"Can't load tokenizer for|Couldn't instantiate the backend tokenizer"
        r"|Tokenizer class \S+ does not exist",
    ),
    Failure(
        id="X18",
        symptom="the checkpoint's tensors are not those that the model's code expects",
        trigger="another quantization or revision than the release knows, or tensors missing in the index",
        sources=("vllm#53105", "vllm PR#53233", "verl#834"),
        explain="seatctl model tensors DIR --name MODEL says which are missing, unlisted or misread; else a release "
        "that knows this checkpoint (min_vllm)",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"weights were not initialized from checkpoint|There is no module or parameter named"
        r"|Attempted to load weight|weight shape mismatch|\.shape == loaded_weight\.shape|size mismatch for \S+:"
        r"|KeyError: '(?:model|layers|language_model|mtp|lm_head)\.\S+'",
    ),
    Failure(
        id="X19",
        symptom="a kernel failed on the card (illegal memory access, assert, Xid)",
        trigger="a bug of a kernel with these shapes; rarely the card",
        sources=("vllm#24430", "vllm#32467", "NVIDIA Xid 13, 31, 43, 48, 63, 64, 94, 95"),
        explain="Xid 13, 31 or 43 alone are a kernel's bug (pin another attention_backend or moe_backend, or "
        "enforce_eager, and keep the request); 48, 63, 64, 94 or 95 are memory errors of the card",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"illegal memory access|cudaErrorIllegalAddress|device-side assert triggered|misaligned address"
        r"|unspecified launch failure|illegal instruction was encountered"
        r"|Xid \(PCI:[^)]*\): (?:13|31|43|48|63|64|94|95)\b",
    ),
    Failure(
        id="X20",
        symptom="a worker does not answer its engine in time",
        trigger="a hung kernel or collective, or a step longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        sources=("vLLM v1 multiproc_executor",),
        explain="as a hang: py-spy and journalctl -k at the time; a first step that compiles needs a higher "
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS under env: of the seat",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"RPC call to \w+ timed out",
    ),
    Failure(
        id="X21",
        symptom="the value of a setting is refused",
        trigger="engine: or a field of the seat, at a release that takes other values",
        sources=("recorded here, vLLM 0.32.0",),
        explain="the message names the field and what it takes; correct it at the seat",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"error: argument --\S+: |validation errors? for \w*(?:Config|Args)\b",
    ),
    Failure(
        id="X22",
        symptom="killed by SIGKILL, and nothing was logged",
        trigger="the memory guard, the link of a seat over two hosts, an OOM killer, or somebody with kill -9",
        sources=("recorded here",),
        explain="who it was: journalctl -u seatfleet-memory-guard, -u 'seatfleet-link@*', and -k, at that time",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"Main process exited, code=killed, status=9/KILL",
    ),
    Failure(
        id="X23",
        symptom="a stop took longer than TimeoutStopSec and ended by SIGKILL",
        trigger="vLLM waits for open connections of clients that do not read",
        sources=("recorded here, vLLM 0.32.0",),
        explain="nothing is wrong with the seat; requests that outlived probe.stop_timeout_s were cut off",
        covered=("test_known_lines::test_what_was_logged_is_explained",),
        pattern=r"State 'stop-\w+' timed out",
    ),
    Failure(
        id="X24",
        symptom="the card's firmware stopped answering, or the card wants a reset",
        trigger="a driver or firmware bug, heat or power; rarely the seat",
        sources=("NVIDIA Xid 62, 109, 119, 120, 140, 143, 149, 154", "open-gpu-kernel-modules#1150"),
        explain="no start on this card helps: nvidia-bug-report.sh, then reboot the host with its seats stopped "
        "(playbooks/stop.yml); if it comes again, another driver, then another card",
        covered=("test_known_lines::test_lines_of_the_kernel",),
        pattern=r"Xid \(PCI:[^)]*\): (?:62|109|119|120|140|143|149|154)\b",
    ),
    Failure(
        id="X25",
        symptom="a process of the seat crashed in native code (segfault, illegal instruction)",
        trigger="a bug of the driver, of NCCL or of an extension; a file that was changed under a running process",
        sources=("vllm#27868",),
        explain="the file behind 'in' of the kernel's line says whose code it was: libcuda is the driver's, libnccl, "
        "libtorch and vllm's .so are the release's; coredumpctl info has the stack. Go back to what served "
        "(playbooks/rollback.yml); seatctl patch verify tells whether files of the release were changed",
        covered=("test_known_lines::test_lines_of_the_kernel",),
        pattern=r"\[\d+\](?:: segfault at | general protection fault ip:| trap invalid opcode ip:)"
        r"|\[\d+\]: unhandled exception: "
        r"|status=11/SEGV|status=4/ILL|Segfault encountered|Fatal Python error: (?:Segmentation fault|Illegal instr)",
    ),
)

FAILURES: tuple[Failure, ...] = (*_MEMORY, *_WHEELS, *_SYSTEMD, *_HEALTH, *_GATEWAY, *_SEVERAL, *_ANYWHERE)
