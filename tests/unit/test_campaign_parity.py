from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatfleet.campaign import parity
from seatfleet.campaign.definition import Arm
from seatfleet.campaign.parity import (
    Deployment,
    Refusal,
    canonical_env,
    canonical_settings,
    derive_arm,
    parse_argv,
    refuse_synthetic,
)

KEY = "speculative-config"
OFF = Arm("off", {KEY: None})
K1 = Arm("k1", {KEY: {"method": "mtp", "num_speculative_tokens": 1}})
LIVE = Deployment(
    argv=("--config", "/etc/vllm/seats/flash-next/current/vllm.yaml"),
    config={
        "model": "/srv/models/x",
        "max-model-len": 2048,
        "kv-cache-memory-bytes": 1 << 30,
        "no-enable-prefix-caching": True,
    },
    env={"VLLM_CACHE_ROOT": "/a", "VLLM_API_KEY": "sk-secret", "CUDA_VISIBLE_DEVICES": "2", "PATH": "/bin"},
    source="/etc/vllm/seats/flash-next/current/vllm.yaml sha256:00",
    identity={"release": "0.33.0-abc"},
)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/m"], {"model": "/m"}),
        (["/m", "--port", "8022"], {"model": "/m", "port": 8022}),
        (["--port=8022"], {"port": 8022}),
        (["-tp", "2"], {"tensor-parallel-size": 2}),
        (["--enforce-eager"], {"enforce-eager": True}),
        (["--max_model_len", "16"], {"max-model-len": 16}),
        (["--served-model-name", "a", "b"], {"served-model-name": ["a", "b"]}),
        (["--a", "1", "--a", "2"], {"a": 2}),
        (["--kv-cache-memory", "64M"], {"kv-cache-memory-bytes": "64M"}),
        (["--temperature", "-1"], {"temperature": -1}),
        (["--speculative-config", '{"method": "mtp"}'], {KEY: {"method": "mtp"}}),
        (
            ["--speculative-config.method", "mtp", "--speculative-config.a.b", "1"],
            {KEY: {"method": "mtp", "a": {"b": 1}}},
        ),
    ],
)
def test_command_lines_become_settings(argv: list[str], expected: dict[str, Any]):
    assert parse_argv(argv) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (([], {"max-num-seqs": 8}), (["--max-num-seqs", "8"], {})),
        (([], {"no-enable-prefix-caching": True}), (["--no-enable-prefix-caching"], {})),
        (([], {KEY: {"method": "mtp", "k": 1}}), (["--speculative-config", '{"k":1, "method":"mtp"}'], {})),
        (([], {KEY: '{"method":"mtp"}'}), ([], {KEY: {"method": "mtp"}})),
        (([], {"served-model-name": "x"}), ([], {"served-model-name": ["x"]})),
        (([], {"max_model_len": 4}), ([], {"max-model-len": 4})),
        (([], {KEY: None}), ([], {})),
        ((["--config", "a.yaml"], {}), (["--config=b.yaml"], {})),
        ((["--max-num-seqs", "4"], {"max-num-seqs": 2}), ([], {"max-num-seqs": 4})),
    ],
)
def test_one_setting_written_in_two_ways_is_one_setting(one: Any, other: Any):
    assert canonical_settings(*one) == canonical_settings(*other)


def test_the_environment_of_the_comparison_has_no_secret_and_no_cache_root():
    assert canonical_env(LIVE.env) == {"CUDA_VISIBLE_DEVICES": "2"}


def test_arms_share_the_base_and_differ_in_the_studied_key():
    arms = [derive_arm(LIVE, arm, [KEY]) for arm in (OFF, K1)]
    assert arms[0].base_hash == arms[1].base_hash and arms[0].argv_hash != arms[1].argv_hash
    assert arms[0].changes == {} and list(arms[1].changes) == [KEY]
    parity.refuse_base_mismatch(arms)


@pytest.mark.parametrize(
    "live",
    [
        replace(LIVE, config={**LIVE.config, "max-model-len": 4096}),
        replace(LIVE, env={**LIVE.env, "VLLM_USE_V2": "1"}),
        replace(LIVE, identity={"release": "0.33.0-def"}),
        replace(LIVE, argv=(*LIVE.argv, "--max-num-seqs", "4")),
    ],
)
def test_a_stray_difference_is_refused(live: Deployment):
    with pytest.raises(Refusal, match=r"R3 base.*off.*k1|R3 base.*k1.*off"):
        parity.refuse_base_mismatch([derive_arm(LIVE, OFF, [KEY]), derive_arm(live, K1, [KEY])])


def test_a_cache_root_or_a_secret_of_its_own_is_no_difference():
    moved = replace(LIVE, env={**LIVE.env, "VLLM_CACHE_ROOT": "/b", "VLLM_API_KEY": "sk-other"})
    assert derive_arm(LIVE, OFF, [KEY]).base_hash == derive_arm(moved, OFF, [KEY]).base_hash


def test_overrides_belong_to_the_base_of_every_arm():
    pin = {"kv-cache-memory-bytes": 1 << 29, "env:CUDA_VISIBLE_DEVICES": 3}
    off, k1 = (derive_arm(LIVE, arm, [KEY], pin) for arm in (OFF, K1))
    assert off.base_hash == k1.base_hash != derive_arm(LIVE, OFF, [KEY]).base_hash
    assert off.settings["kv-cache-memory-bytes"] == 1 << 29 and off.env["CUDA_VISIBLE_DEVICES"] == "3"
    assert off.changes["kv-cache-memory-bytes"] == (1 << 30, 1 << 29)


def test_a_studied_environment_variable():
    on = Arm("on", {"env:VLLM_X": "1"})
    off = Arm("off", {"env:VLLM_X": None})
    arms = [derive_arm(LIVE, arm, ["env:VLLM_X"]) for arm in (on, off)]
    assert arms[0].env["VLLM_X"] == "1" and "VLLM_X" not in arms[1].env
    assert arms[0].base_hash == arms[1].base_hash


def test_induced_differences_name_both_values():
    resolved = {
        "off": {"block_size": 2096, "kv_tokens": 9},
        "k2": {"block_size": 2112, "kv_tokens": 9},
        "k0": {"block_size": 2096, "kv_tokens": 9},
    }
    assert parity.induced_differences(resolved, "off") == {"k2": {"block_size": (2096, 2112)}}


def test_arguments_without_a_source_are_refused():
    with pytest.raises(Refusal, match="R8 retyped"):
        parity.refuse_unproven(replace(LIVE, source=""))
    parity.refuse_unproven(LIVE)


@pytest.mark.parametrize(("value", "refused"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_a_remembered_startup_plan_is_refused(value: str, refused: bool):
    arms = [derive_arm(replace(LIVE, env={"VLLM_ENABLE_STARTUP_PLAN": value}), OFF, [KEY])]
    if refused:
        with pytest.raises(Refusal, match="R14 startup plan"):
            parity.refuse_startup_plan(arms)
    else:
        parity.refuse_startup_plan(arms)
        assert arms[0].env


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8022", "http://[::1]:8022", "http://localhost:1", "http://127.0.1.1"]
)
def test_a_client_beside_the_seat_is_fine(url: str):
    assert parity.refuse_remote_client(url) is None


@pytest.mark.parametrize("url", ["http://10.0.0.3:8022", "http://fv-ml1:8022", "https://example.org", "nonsense"])
def test_a_client_across_a_network_is_refused(url: str):
    with pytest.raises(Refusal, match="R10 remote client"):
        parity.refuse_remote_client(url)


def test_a_busy_seat_is_refused():
    parity.refuse_busy(0, 0)
    with pytest.raises(Refusal, match="R11 foreign traffic"):
        parity.refuse_busy(1, 0)


def test_a_live_seat_with_fabricated_acceptance_is_refused():
    speculative = {"method": "mtp", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"}
    live = Deployment((), {"model": "/m", "speculative-config": speculative}, {}, "s")
    config = derive_arm(live, Arm("off", {"max-num-seqs": None}), ["max-num-seqs"])
    with pytest.raises(Refusal, match=r"R20 synthetic.*rejection_sample_method"):
        refuse_synthetic([config])
