"""Rules between seats, catalogues and hosts: each fault gives its message, and nothing unchecked counts as passed."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatfleet.core.inventory.fleet import Fit, Report, Unchecked, check_fleet, kv_fit
from seatfleet.core.inventory.seat import Seat
from seatfleet.core.problems import Problem, ProblemsError
from seatfleet.core.release.patches import FileChange, Patch, Series

FLEET = """
all: &all
  gateway_key_names: [infra-ops, all-agents, control]
  gateway_control_key: control
  vault_litellm_keys: {infra-ops: sk-1, all-agents: sk-2, control: sk-3}
  releases:
    "0.23.0+gb10.1":
      distribution: vllm
      version: "0.23.0"
      python: "3.12"
      series: vllm-0.23.0
      patches: [pad, backoff, split, drop]
      locks: {aarch64: files/locks/a.txt}
      environment: files/environment/vllm-0.23.0.txt
    "0.33.0+rtx.1":
      distribution: vllm
      version: "0.33.0"
      python: "3.12"
      series: vllm-0.33.0
      locks: {x86_64: files/locks/b.txt}
  models:
    flash:
      repository: owner/flash
      revision: &sha 0123456789abcdef0123456789abcdef01234567
      manifest: files/models/flash.json
      facts:
        hybrid: true
        mamba_cache_mode: align
        native_context: 262144
        mtp_layers: 1
        engram_table: 96GiB
        min_vllm: "0.33.0"
    big:
      repository: owner/big
      revision: *sha
      manifest: files/models/big.json
      facts: {hybrid: true, mamba_cache_mode: align}
      patch_needs:
        - {series: [vllm-0.23.0], method: dflash, prefix_caching: true, patches: [split, drop], why: hits lie}
    drafter:
      repository: owner/drafter
      revision: *sha
      manifest: files/models/drafter.json
      facts: {drafts_for: [big]}
hosts:
  fv-ml1:
    fleet_hardware: {architecture: x86_64, gpus: 4, host_memory: 256GiB}
    seats:
      flash-next:
        model: flash
        release: "0.33.0+rtx.1"
        gpus: [2]
        port: 8022
        max_model_len: 262144
        kv_cache_memory: 14GiB
        speculative: null
        speculative_why: {state: unmeasured, note: n}
        engram: {cpu_offload: true}
        host_memory: 96GiB
        aliases: {gen-large: {keys: [infra-ops, all-agents]}}
  spark-1:
    fleet_hardware: {architecture: aarch64, gpus: 1, unified_memory: true}
    seats:
      agent:
        model: big
        release: "0.23.0+gb10.1"
        gpus: [0]
        port: 8031
        max_model_len: 131072
        gpu_memory_utilization: 0.82
        speculative: {method: dflash, model: drafter, num_speculative_tokens: 12, attention_backend: FLASH_ATTN}
        aliases: {gen-agent: {keys: [all-agents]}}
  gw-1: {}
"""
PARSED = yaml.safe_load(FLEET)
SHA = "0123456789abcdef0123456789abcdef01234567"


def patch(name: str, needs: tuple[str, ...] = (), **required_when: object) -> Patch:
    change = FileChange("0" * 64, "1" * 64)
    return Patch(
        name,
        f"{name}.patch",
        "2" * 64,
        {f"{name}.py": change},
        f"it needs the {name}",
        "",
        "",
        "",
        needs,
        **required_when,
    )


PATCHES = (
    patch("pad", required_when={"hybrid": True, "method": "dflash"}),
    patch("backoff", needs=("pad", "split")),
    patch("split"),
    patch("drop", default=False),
)


class Files:
    """A project where every declared file exists."""

    def __init__(self, missing: Sequence[str] = (), revision: str = SHA) -> None:
        self.missing, self.revision = missing, revision

    def exists(self, path: str) -> bool:
        return path not in self.missing

    def manifest_revision(self, path: str) -> str | None:
        return self.revision if self.exists(path) else None

    def model_config(self, path: str, manifest: str) -> Mapping[str, Any] | None:
        if not self.exists(path):
            return None
        if path == "stale.json":
            raise ProblemsError([Problem(path, "model", "facts.config", f"that of {manifest}", "another")])
        return {"from": path}

    def series(self, name: str) -> Series | None:
        if not self.exists(name):
            return None
        distribution, _, version = name.partition("-")
        return Series(distribution, version, PATCHES if version == "0.23.0" else ())

    def content(self, path: str) -> bytes | None:
        return b"{}" if self.exists(path) else None

    def environment_names(self, path: str) -> frozenset[str] | None:
        return frozenset({"VLLM_LOGGING_LEVEL"}) if self.exists(path) else None


def fits(_seat: Seat, _catalogues: Mapping[str, Any], _hardware: Mapping[str, Any]) -> Fit:
    return Fit(summary="560,654 tokens")


def fleet(*changes: str) -> dict[str, dict[str, Any]]:
    """The good fleet with changes such as ``fv-ml1.seats.flash-next.port = 80``; ``= !delete`` removes."""
    document = copy.deepcopy(PARSED)
    hosts = {host: {**copy.deepcopy(document["all"]), **variables} for host, variables in document["hosts"].items()}
    for change in changes:
        path, _, value = change.partition(" = ")
        first, *parts = path.split("/") if "/" in path else path.split(".")
        for host in hosts if first == "all" else [first]:
            target: Any = hosts[host]
            for part in parts[:-1]:
                target = target.setdefault(part, {})
            if value == "!delete":
                del target[parts[-1]]
            else:
                target[parts[-1]] = yaml.safe_load(value)
    return hosts


def check(*changes: str, files: Files | None = None) -> Report:
    def locate(host: str, path: tuple[str, ...]) -> str:
        return f"{host}.yml" if path[0] in ("seats", "fleet_hardware") else "all.yml"

    return check_fleet(fleet(*changes), locate=locate, files=files or Files(), planner=fits)


def without_pins(report: Report) -> list[Unchecked]:
    """What was not checked, but for the pins: their evidence is the business of test_pins.py."""
    return sorted(item for item in report.not_checked if item.what != "kv_cache_memory")


def problems(*changes: str, files: Files | None = None) -> list[str]:
    return [str(problem) for problem in check(*changes, files=files).concerning(None, deploy=False)]


def test_the_good_fleet_has_nothing_to_say() -> None:
    report = check()
    assert report.problems == {}
    assert without_pins(report) == []
    assert sorted(report.seats) == [("fv-ml1", "flash-next"), ("spark-1", "agent")]
    assert report.fits["fv-ml1", "flash-next"] == "560,654 tokens"


FLASH = "fv-ml1.yml: seat flash-next on fv-ml1"
AGENT = "spark-1.yml: seat agent on spark-1"
SECOND = (
    "fv-ml1.seats.second = {model: flash, release: 0.33.0+rtx.1, gpus: [3], port: 8023, max_model_len: 4096, "
    "kv_cache_memory: 1GiB, speculative_why: {state: unmeasured, note: n}, engram: {cpu_offload: false}}"
)
OTHER_SEAT = (
    "{model: big, release: 0.23.0+gb10.1, gpus: [], port: 8041, max_model_len: 4096, kv_cache_memory: 1GiB, "
    "speculative_why: {state: unmeasured, note: n}}"
)
NODES_VALUE = (
    "{port: 29500, hosts: [{host: spark-1, address: 10.0.0.1, interface: e0}, "
    "{host: gw-1, address: 10.0.0.2, interface: e0}]}"
)
NODES = f"spark-1.seats.agent.nodes = {NODES_VALUE}"
STRAY = NODES.replace("host: spark-1", "host: spark-9").replace("host: gw-1", "host: fv-ml2")
TWIN = "gw-1.fleet_hardware = {architecture: aarch64, gpus: 1, unified_memory: true}"
OTHER = f"gw-1.seats.other = {OTHER_SEAT}"
ENVIRONMENT = (
    "a VLLM_ name or one of a library under it (CUDA_*, CUTE_DSL_*, FLASHINFER_*, GLOO_*, HF_*, LD_*, MALLOC_*, MKL_*, "
    "NCCL_*, OMP_*, OTEL_*, PYTHON*, PYTORCH_*, RAY_*, SAFETENSORS_*, SEATFLEET_*, TOKENIZERS_*, TORCHINDUCTOR_*, "
    "TORCH_*, TQDM_*, TRANSFORMERS_*, TRITON_*, UCX_*)"
)


NAMES = {
    "FLASH": FLASH,
    "AGENT": AGENT,
    "SECOND": SECOND,
    "ENVIRONMENT": ENVIRONMENT,
    "OTHER_SEAT": OTHER_SEAT,
    "OTHER": OTHER,
    "NODES_VALUE": NODES_VALUE,
    "NODES": NODES,
    "STRAY": STRAY,
    "TWIN": TWIN,
}
FAULTS = yaml.safe_load((Path(__file__).parent / "tables/fleet_faults.yml").read_text())


def spelled_out(texts: Sequence[str]) -> list[str]:
    return [re.sub("|".join(NAMES), lambda match: NAMES[match[0]], text) for text in texts]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: " and ".join(case["changes"])[:80])
def test_a_fault_gives_its_message(case: Mapping[str, Any]) -> None:
    assert problems(*spelled_out(case["changes"])) == spelled_out(case["messages"])


def test_a_name_that_yaml_reads_as_a_number_is_refused_here_and_not_first_by_a_deploy() -> None:
    hosts = fleet()
    hosts["fv-ml1"]["seats"] = {8022: hosts["fv-ml1"]["seats"]["flash-next"]}
    found = [problem for problem in check_fleet(hosts, files=Files(), planner=fits).problems if problem.field == ""]
    assert [problem.seen for problem in found] == ["8022"]


def test_hosts_without_hardware_are_told_to_say_it() -> None:
    (message,) = problems("fv-ml1.fleet_hardware = !delete")
    assert message.startswith("fv-ml1.yml: host fv-ml1: fleet_hardware: expected a mapping (architecture, gpus,")


def test_a_manifest_of_another_revision() -> None:
    other = "f" * 40
    messages = problems(files=Files(revision=other))
    assert messages[0] == f"all.yml: model big: revision: expected {other}, that of files/models/big.json, seen '{SHA}'"
    assert len(messages) == 3


def test_faulty_seats_still_take_part_in_the_rules_between_seats() -> None:
    """All problems at once: a misspelt field does not hide that the port is taken."""
    messages = problems(SECOND, "fv-ml1.seats.second.port = 8022", "fv-ml1.seats.second.prt = 1")
    assert len(messages) == 2
    assert "a port of its own" in messages[0]
    assert "did you mean 'port'?" in messages[1]


@pytest.mark.parametrize("source", ["all.seat_alias_handout_dir = /keys", "all.seat_alias_key_values = '{{ keys }}'"])
def test_a_key_may_get_its_secret_from_elsewhere(source: str) -> None:
    assert problems("all.vault_litellm_keys = {infra-ops: sk-1}", source) == []


CARD = "fv-ml1.fleet_hardware.gpu_memory = 97887MiB"


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        (["pin = 96GiB"], "96.00 GiB pinned"),
        (["pin = 95GiB"], None),
        (["pin = 35GiB", "resident = 60GiB"], None),
        (["pin = 94GiB", "resident = 60GiB"], "94.00 GiB pinned + 60.00 GiB of flash (its resident) = 154.00 GiB"),
        # The weights are split, the pin is not.
        (["gpus = [2, 3]", "pin = 65GiB", "resident = 60GiB"], None),
        (
            ["gpus = [2, 3]", "pin = 66GiB", "resident = 60GiB"],
            "66.00 GiB pinned + 30.00 GiB of flash (its resident on 2 GPUs) = 96.00 GiB",
        ),
    ],
)
def test_pin_and_weights_have_to_fit_the_card(changes: list[str], seen: str | None) -> None:
    paths = {
        "pin": "fv-ml1.seats.flash-next.kv_cache_memory",
        "gpus": "fv-ml1.seats.flash-next.gpus",
        "resident": "all.models.flash.resident",
    }
    found = problems(CARD, *(re.sub(r"^\w+", lambda match: paths[match[0]], change) for change in changes))
    where = f"{FLASH}: kv_cache_memory: expected at most 95.59 GiB on a card with the weights"
    assert found == ([f"{where} (fleet_hardware.gpu_memory of fv-ml1), seen {seen}"] if seen else [])


def test_a_drafter_takes_memory_of_the_card_too() -> None:
    changes = ["spark-1.fleet_hardware.gpu_memory = 96GiB", "spark-1.seats.agent.kv_cache_memory = 40GiB"]
    changes += ["spark-1.seats.agent.gpu_memory_utilization = null", "all.models.big.resident = 50GiB"]
    assert problems(*changes) == []
    (found,) = problems(*changes, "all.models.drafter.resident = 7GiB")
    assert found.endswith("50.00 GiB of big (its resident) + 7.00 GiB of drafter (its resident) = 97.00 GiB")
    unknown = "whether the weights fit beside the pin: resident of drafter is not declared"
    assert unknown in {item.why for item in check(*changes).not_checked}


def unchecked(*changes: str, files: Files | None = None) -> dict[Unchecked, set[str]]:
    report = check(*changes, files=files)
    assert report.problems == {}
    return {item: report.not_checked[item] for item in without_pins(report)}


def test_what_is_not_there_yet_blocks_a_deploy_but_not_a_review() -> None:
    report = check(files=Files(missing=["files/locks/a.txt", "files/models/big.json", "vllm-0.33.0"]))
    assert report.concerning(None, deploy=False) == []
    assert [str(problem) for problem in report.concerning(["spark-1"], deploy=True)] == [
        f"{AGENT}: model: expected all in place before a deploy, seen files/models/big.json is not there yet",
        f"{AGENT}: release: expected all in place before a deploy, seen files/locks/a.txt is not there yet",
    ]
    assert [str(problem) for problem in report.concerning(["fv-ml1"], deploy=True)] == [
        "all.yml: release 0.33.0+rtx.1: series: expected all in place before a deploy, "
        "seen files/patches/vllm-0.33.0/series.yml is not there yet"
    ]


def test_placeholders() -> None:
    report = check("all.models.flash.revision = '<fill in: commit>'", "all.vault_x = {k: '<fill in: secret>'}")
    assert report.problems == {}
    blocked = [f"{item.subject}: {item.what}" for item in without_pins(report) if item.blocks]
    assert blocked == ["model flash: revision", "vault: vault_x.k"]
    with pytest.raises(ProblemsError, match="2 problems"):
        report.raise_for(["fv-ml1"], deploy=True)
    with pytest.raises(ProblemsError, match="1 problem,"):
        report.raise_for(["gw-1"], deploy=True)


MIXED = "GPUs are named by index and by UUID, so that it is not known here whether two are the same"


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        (
            ["all.gateway_key_names = '{{ names }}'", "all.vault_litellm_keys = '{{ secret }}'", "spark-1.seats = {}"],
            [f"{FLASH}: aliases.gen-large.keys: neither gateway_key_names nor vault_litellm_keys is readable here"],
        ),
        (["fv-ml1.seats = '{{ other }}'"], ["fv-ml1.yml: host fv-ml1: seats: a template, known only inside a run"]),
        (
            ["fv-ml1.fleet_hardware.host_memory = !delete"],
            [f"{FLASH}: host_memory: fleet_hardware.host_memory of fv-ml1 is not declared"],
        ),
        (
            ["fv-ml1.seats.flash-next.env = {VLLM_X: '1'}"],
            [f"{FLASH}: env.VLLM_X: no list of the names that 0.33.0+rtx.1 knows"],
        ),
        (
            [SECOND, "fv-ml1.seats.second.gpus = [GPU-01234567-89ab-cdef-0123-456789abcdef]"],
            [f"host fv-ml1: gpus: {MIXED}"],
        ),
        (
            ["all.models.flash.license = '{{ note }}'"],
            ["all.yml: model flash: license: a template, known only inside a run"],
        ),
    ],
)
def test_what_cannot_be_known_is_said(changes: list[str], texts: list[str]) -> None:
    found = unchecked(*changes)
    assert [str(item) for item in sorted(found)] == texts
    assert not any(item.blocks for item in found)


def test_a_seat_field_that_is_a_template() -> None:
    found = sorted(unchecked("fv-ml1.seats.flash-next.port = '{{ p }}'"))
    assert [str(item) for item in found] == [
        f"{FLASH}: max_model_len: the KV fit, because the seat is not complete here",
        f"{FLASH}: port: a template, known only inside a run",
    ]


def test_without_a_planner_no_fit_is_claimed() -> None:
    report = check_fleet(fleet(), files=Files(), planner=None)
    assert report.fits == {}
    assert [(item.subject, item.what, item.why) for item in without_pins(report)] == [
        ("seat agent on spark-1", "max_model_len", "the KV fit: this build has no planner"),
        ("seat flash-next on fv-ml1", "max_model_len", "the KV fit: this build has no planner"),
    ]


def test_the_planner_is_asked_and_believed() -> None:
    def planner(seat: Seat, catalogues: Mapping[str, Any], hardware: Mapping[str, Any]) -> Fit:
        assert hardware["architecture"] in ("x86_64", "aarch64")
        if seat.name == "agent":
            assert catalogues["models"][seat.model]["repository"] == "owner/big"
            return Fit(unknown="no geometry of big")
        return Fit(problems=(("max_model_len", "at most 100,000 tokens in 14GiB", "262144"),))

    report = check_fleet(fleet(), files=Files(), planner=planner)
    assert [str(problem) for problem in report.problems] == [
        "seats: seat flash-next on fv-ml1: max_model_len: expected at most 100,000 tokens in 14GiB, seen 262144"
    ]
    assert [str(item) for item in without_pins(report)] == [
        "seats: seat agent on spark-1: max_model_len: the KV fit: no geometry of big"
    ]


def test_the_planner_gets_the_content_of_config_files() -> None:
    seen: dict[str, object] = {}

    def planner(seat: Seat, catalogues: Mapping[str, Any], _hardware: Mapping[str, Any]) -> Fit:
        seen.update({name: entry["facts"].get("config") for name, entry in catalogues["models"].items()})
        return Fit()

    hosts = fleet("all.models.big.facts.config = big.json", "all.models.drafter.facts.config = missing.json")
    report = check_fleet(hosts, files=Files(missing=["missing.json"]), planner=planner)
    assert report.problems == {}
    assert seen == {"flash": None, "big": {"from": "big.json"}, "drafter": None}


def test_a_config_file_of_another_revision_is_a_problem() -> None:
    assert problems("all.models.big.facts.config = stale.json") == [
        "stale.json: model: facts.config: expected that of files/models/big.json, seen another"
    ]


LAYOUT = "all.models.flash.facts.kv_layout = {block_bytes: 40550400, full: [1600], fixed: 9, build: measured}"
MTP = "fv-ml1.seats.flash-next.speculative = {method: mtp, num_speculative_tokens: 1}"


def test_the_real_planner() -> None:
    """The published pool: 560,654 tokens in 14 GiB at 262,144; at 6 GiB the context does not fit."""
    report = check_fleet(fleet(LAYOUT), files=Files(), planner=kv_fit)
    assert report.fits == {("fv-ml1", "flash-next"): "560,654 tokens, 2.14 x 262,144 (fitted)"}
    assert [item.why for item in without_pins(report)] == [
        "the KV fit: the pool's size is known only after the start (gpu_memory_utilization)"
    ]
    small = check_fleet(fleet(LAYOUT, "fv-ml1.seats.flash-next.kv_cache_memory = 6GiB"), files=Files(), planner=kv_fit)
    assert [problem.expected for problem in small.problems] == [
        "at most 238,400 with kv_cache_memory 6.00 GiB, or at least 6.53 GiB for it"
    ]


def test_a_fitted_layout_says_nothing_about_another_number_of_drafts() -> None:
    hosts = fleet(LAYOUT, MTP, "fv-ml1.seats.flash-next.speculative_why = null")
    report = check_fleet(hosts, files=Files(), planner=kv_fit)
    assert ("fv-ml1", "flash-next") not in report.fits
    assert "the KV fit: kv_layout was not fitted with 1 speculative tokens" in [i.why for i in report.not_checked]


def test_scope_of_problems() -> None:
    """A fault of one host does not stop work on another; one that involves both stops both."""
    report = check("spark-1.seats.agent.port = 1", "spark-1.seats.agent.aliases = {gen-large: {keys: [all-agents]}}")
    on_fv = [problem.field for problem in report.concerning(["fv-ml1"], deploy=True)]
    on_spark = [problem.field for problem in report.concerning(["spark-1"], deploy=True)]
    assert on_fv == ["aliases.gen-large"]
    assert on_spark == ["aliases.gen-large", "port"]
    assert [problem.field for problem in report.elsewhere(["fv-ml1"])] == ["port"]


def test_an_entry_that_nobody_uses_stops_nobody() -> None:
    report = check("all.models.unused = {repository: owner/x}")
    assert report.concerning(["fv-ml1", "spark-1", "gw-1"], deploy=True) == []
    assert {problem.subject for problem in report.concerning(None, deploy=False)} == {"model unused"}


def test_the_same_catalogue_fault_is_reported_once() -> None:
    assert len(problems("all.models.drafter.revision = main")) == 1


@pytest.mark.parametrize(("policy", "refused"), [("report", False), ("refuse", True)])
def test_a_pin_without_evidence_is_named_and_refused_where_the_policy_says_so(policy: str, refused: bool) -> None:
    report = check(f"all.fleet_pin_policy = {policy}")
    pins = [item for item in report.not_checked if item.what == "kv_cache_memory"]
    assert pins
    assert all("rests on nothing" in item.why for item in pins)
    assert report.problems == {}
    stopped = [problem for problem in report.concerning(None, deploy=True) if problem.field == "kv_cache_memory"]
    assert bool(stopped) == refused
