"""The seats of production against what their published figures were measured with, flag by flag.

Sources: the GB10 findings of 2026-06-28 (DFlash and dense levers for Qwen3.5-122B-A10B) and the record of the
Flash-Next seat of 2026-09-12. Neither shows a whole command line, so every flag that is rendered has to be published,
or differ or be added for a reason that is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from seat_examples import CUDA_RELEASE, GB10, RTX, SPARK_RELEASE, model

from seatfleet.clients.inventory import read_inventory
from seatfleet.core.inventory.fleet import check_fleet
from seatfleet.core.inventory.seat import Seat
from seatfleet.core.seat.render import HostClass, ReleaseRef, seat_environment, vllm_config
from seatfleet.core.units import GIB

PROJECT = Path(__file__).resolve().parents[2]

#: What every seat has beyond what was published.
FLEET = {
    "model": "weights of an exact revision, on the host",
    "served-model-name": "a name per alias, because LiteLLM shares settings between aliases over one (model, api_base)",
    "host": "seats listen where the gateway reaches them",
    "enable-prompt-tokens-details": "the prefix probe reads cached_tokens",
    "fail-on-environ-validation": "a misspelt VLLM_ variable ends the start",
    "shutdown-timeout": "requests in flight are finished",
    "enable-auto-tool-choice": "the agents call tools",
    "tool-call-parser": "qwen3_xml: hermes returns empty tool_calls on this family",
    "reasoning-parser": "answers without their reasoning",
}


@dataclass(frozen=True)
class Published:
    """What was published of one seat, and what this fleet does otherwise; the texts say why."""

    flags: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, str] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


DFLASH = {"method": "dflash", "num_speculative_tokens": 12, "attention_backend": "FLASH_ATTN"}
SPARK = {"gpu-memory-utilization": 0.82, "speculative-config": DFLASH}
OF_SPARKS = {
    "port": "of this fleet",
    "max-model-len": "inferred: the published pool sizes are exact at 131,072 only",
    "max-num-batched-tokens": "vLLM falls back to 2,048 on a GB10, whose memory nvidia-smi cannot tell",
    "max-num-seqs": "room in every step for a chunk that can be hit",
    "tensor-parallel-size": "one GPU",
}
NOT_ON_SPARKS = {
    "mamba-block-size": "256, as in other recipes, breaks the 122B",
    "attention-backend": "FlashInfer as the target's backend gained nothing; only the drafter's is pinned",
    "kv-cache-dtype": "bf16 KV, which auto is for this checkpoint",
    "moe-backend": "b12x and native FP4 gained nothing at one stream",
    "kv-cache-memory-bytes": "sized by profiling",
}
PUBLISHED = {
    ("spark-1", "agent"): Published(
        {**SPARK, "enable-prefix-caching": True}, otherwise=OF_SPARKS, absent=NOT_ON_SPARKS
    ),
    ("spark-2", "dense"): Published(
        # Prefix caching: "on by default"; the pool of the dense figures is that of a server without it.
        {**SPARK, "no-enable-prefix-caching": True},
        variables={"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"},
        otherwise={
            **OF_SPARKS,
            "LM_HEAD_INT8": "switch of this project's int8 head, which the published patch has always on",
            "INC_EXPECT_FP8_LAYERS": "144 published layers, as a condition to start",
        },
        absent={
            **NOT_ON_SPARKS,
            "LM_HEAD_INT8_KEEP_BF16": "the figures free the bf16 copy (SPARK_KEEP_BF16_LMHEAD unset)",
        },
    ),
    ("fv-ml1", "flash-next"): Published(
        {
            "port": 8022,
            "max-model-len": 262_144,
            # Published as --kv-cache-memory, which argparse completes to this name.
            "kv-cache-memory-bytes": 14 * GIB,
            "max-num-batched-tokens": 8192,
            "tensor-parallel-size": 1,
            "engram-config": {"cpu_offload": True},
        },
        otherwise={
            "enable-prefix-caching": "not published; on by default in this release",
            "gpu-memory-utilization": "beside the pin vLLM only uses it to refuse a start: what the seat takes",
        },
        absent={
            "speculative-config": "MTP off until the campaign on this card says otherwise",
            "max-num-seqs": "not published; vLLM's default",
        },
    ),
}


@pytest.fixture(scope="module")
def seats() -> Mapping[tuple[str, str], Seat]:
    return check_fleet(read_inventory(PROJECT / "inventory/production").hosts).seats


def rendered(seat: Seat) -> tuple[dict[str, Any], dict[str, str]]:
    """Return configuration and environment of a seat, with stand-ins for what only a host knows."""
    host: HostClass = RTX if seat.host == "fv-ml1" else GB10
    release: ReleaseRef = CUDA_RELEASE if seat.host == "fv-ml1" else SPARK_RELEASE
    drafter = model(seat.speculative.model) if seat.speculative and seat.speculative.model else None
    weights = model(seat.model, 60 * GIB)
    return vllm_config(seat, weights, host, drafter), seat_environment(seat, release, weights, host)


def test_every_seat_of_production_has_its_source(seats: Mapping[tuple[str, str], Seat]) -> None:
    assert set(seats) == set(PUBLISHED)


@pytest.mark.parametrize("where", PUBLISHED, ids="/".join)
def test_flags_and_environment(seats: Mapping[tuple[str, str], Seat], where: tuple[str, str]) -> None:
    seat, published = seats[where], PUBLISHED[where]
    config, environment = rendered(seat)
    if "speculative-config" in config:
        drafter = config["speculative-config"].pop("model")
        assert drafter.startswith("/srv/models/qwen3.5-122b-a10b-dflash/")
    assert {name: config.get(name) for name in published.flags} == published.flags
    assert set(config) - set(published.flags) - set(FLEET) <= set(published.otherwise), "rendered without a reason"
    assert {name: environment.get(name) for name in published.variables} == published.variables
    assert set(seat.env) - set(published.variables) <= set(published.otherwise), "set without a reason"
    assert not (set(config) | set(environment)) & set(published.absent)


def test_the_flash_next_seat_is_one_card_one_alias_and_the_sampling_of_the_checkpoint(
    seats: Mapping[tuple[str, str], Seat],
) -> None:
    seat = seats["fv-ml1", "flash-next"]
    (alias,) = seat.aliases
    assert (seat.gpus, alias.name, set(alias.keys)) == ((2,), "gen-large", {"infra-ops", "all-agents"})
    # presence_penalty, min_p and repetition_penalty stay unset: the checkpoint declares none.
    assert dict(alias.sampling) == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}


def test_the_campaign_is_the_published_design() -> None:
    """off twice, k = 1, 2, 3, at 1, 4 and 8 streams; that the control is booted first and last is the campaign's."""
    campaigns = yaml.safe_load((PROJECT / "group_vars/fv_ml1/campaigns.yml").read_text())["campaigns"]
    drafts = [
        arm.get("speculative-config", {}).get("num_speculative_tokens", 0) for arm in campaigns["mtp"]["arms"].values()
    ]
    assert (sorted(drafts), campaigns["mtp"]["concurrency"]) == ([0, 1, 2, 3], [1, 4, 8])


def test_prose_takes_four_drafts_by_one_line(seats: Mapping[tuple[str, str], Seat]) -> None:
    """The published advice for prose is a field of the profile; agents and code keep 12."""
    text = (PROJECT / "group_vars/all/profiles.yml").read_text()
    assert "for prose set speculative.num_speculative_tokens: 4" in text
    speculative = seats["spark-1", "agent"].speculative
    assert speculative is not None
    assert speculative.num_speculative_tokens == 12
