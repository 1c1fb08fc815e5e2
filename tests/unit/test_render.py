"""Rendering: config file, environment, names of generations; whole generations of the seeds' and the lab's seats."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import seat_examples as examples
import yaml
from seat_examples import CPU, GB10, LARGE, RELEASE, RTX, TINY, UUIDS, model, seat

from seatfleet.core.problems import ProblemsError
from seatfleet.core.seat.manifest import load_manifest
from seatfleet.core.seat.render import (
    Generation,
    HostClass,
    load_generation,
    render,
    render_environment,
    render_parts,
    seat_api_key,
    seat_environment,
    vllm_config,
)
from seatfleet.core.seat.render_host import all_follower_hosts, followed_seats, follower_hosts, links
from seatfleet.core.units import GIB

GOLDEN = Path(__file__).parent / "data" / "generations"
CASES = {
    "lab-oracle": (RELEASE, TINY, CPU, None),
    "lab-dense": (RELEASE, model("tiny-qwen3"), CPU, model("tiny-qwen3")),
    "rtx-flash-next": (examples.CUDA_RELEASE, LARGE, RTX, None),
    "spark-dflash": (
        examples.SPARK_RELEASE,
        model("qwen3.5-122b-a10b-int4", 70 * GIB),
        GB10,
        model("qwen3.5-122b-a10b-dflash", GIB),
    ),
}


def rendered(name: str, **changes: object) -> Generation:
    release, weights, host, drafter = CASES[name]
    return render(seat(name, **changes), release, weights, host, drafter)


def config(name: str, host: HostClass = CPU, resident: int | None = None, **changes: object) -> dict[str, Any]:
    return vllm_config(seat(name, **changes), model("m", resident), host)


@pytest.mark.parametrize("name", CASES)
def test_golden_generations(name: str) -> None:
    """SEATFLEET_UPDATE_GOLDEN=1 writes the files; a change of theirs restarts every seat of every fleet."""
    generation = rendered(name)
    directory = GOLDEN / name
    if os.environ.get("SEATFLEET_UPDATE_GOLDEN"):
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in generation.files.items():
            (directory / file).write_text(text)
    assert {path.name: path.read_text() for path in directory.iterdir()} == dict(generation.files)


@pytest.mark.parametrize("name", CASES)
def test_config_files_read_back(name: str) -> None:
    generation = rendered(name)
    assert yaml.safe_load(generation.files["vllm.yaml"]) == generation.manifest["declared"]


@pytest.mark.parametrize("name", CASES)
def test_manifests_are_what_the_probe_reads(name: str, tmp_path: Path) -> None:
    generation = rendered(name)
    (tmp_path / "manifest.json").write_text(generation.files["manifest.json"])
    manifest = load_manifest(tmp_path / "manifest.json")
    assert manifest.generation == generation.name
    assert manifest.base_url == f"http://127.0.0.1:{manifest.port}"
    assert manifest.declared == generation.manifest["declared"]


def test_generation_survives_ansible() -> None:
    generation = rendered("lab-oracle")
    assert load_generation(json.loads(json.dumps(generation.as_dict()))) == generation


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prefix_caching": True}, {"enable-prefix-caching": True}),
        # enable-x: false is dropped without a word in a --config file
        ({"prefix_caching": False}, {"no-enable-prefix-caching": True}),
        ({"enforce_eager": False}, {"enforce-eager": ..., "no-enforce-eager": ...}),
        ({"kv_cache_memory": "14GiB"}, {"kv-cache-memory-bytes": 15032385536}),
        ({"kv_cache_memory": ..., "gpu_memory_utilization": 0.9}, {"gpu-memory-utilization": 0.9}),
        ({"tool_call_parser": "hermes"}, {"tool-call-parser": "hermes", "enable-auto-tool-choice": True}),
        ({"engram": {"cpu_offload": False}}, {"engram-config": {"cpu_offload": False}}),
        ({"engine": {"async-scheduling": False}}, {"no-async-scheduling": True, "async-scheduling": ...}),
        ({"engine": {"seed": 0}}, {"seed": 0}),
        ({"engine": {"middleware": ["a", "b"]}}, {"middleware": ["a", "b"]}),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 3, "engine": {"prompt_lookup_max": 3}}}, {}),
        ({"probe": {"stop_timeout_s": 120}}, {"shutdown-timeout": 90}),
        ({"probe": {"stop_timeout_s": 10}}, {"shutdown-timeout": 0}),
        ({"moe_backend": "triton", "mamba_ssm_cache_dtype": "float32"}, {"moe-backend": "triton"}),
    ],
)
def test_fields(changes: dict[str, object], expected: dict[str, object]) -> None:
    found = config("lab-oracle", **changes)
    assert {key: found.get(key, ...) for key in expected} == expected


def test_speculative_is_one_nested_mapping() -> None:
    drafter = model("drafter")
    found = vllm_config(seat("spark-dflash"), model("m"), GB10, drafter)["speculative-config"]
    assert found == {
        "method": "dflash",
        "model": drafter.path,
        "num_speculative_tokens": 12,
        "attention_backend": "FLASH_ATTN",
    }
    assert "speculative-config" not in config("rtx-flash-next")


@pytest.mark.parametrize(
    ("host", "resident", "changes", "share"),
    [
        # (74 + 14 + 2) GiB of 95.59 GiB, rounded up
        (RTX, 74 * GIB, {}, 0.95),
        # the weights are not known: the pin and the overhead are, and they are a lower bound
        (RTX, None, {}, 0.17),
        # two cards share the weights; the pin is per card
        (RTX, 74 * GIB, {"gpus": [0, 1], "tensor_parallel_size": 2}, 0.56),
        # never above what a card can give: the planner says no to such a seat, not the renderer
        (RTX, 95 * GIB, {}, 0.98),
        # no memory known, or a CPU host, where vLLM skips the check for a pin
        (HostClass("cuda"), 74 * GIB, {}, None),
        (CPU, 74 * GIB, {}, None),
        (RTX, 74 * GIB, {"kv_cache_memory": ..., "kv_cache_why": ..., "gpu_memory_utilization": 0.5}, 0.5),
    ],
)
def test_utilization_beside_a_pin(
    host: HostClass, resident: int | None, changes: dict[str, object], share: float | None
) -> None:
    assert config("rtx-flash-next", host, resident, **changes).get("gpu-memory-utilization") == share


@pytest.mark.parametrize(
    ("host", "gpus", "visible"),
    [
        (RTX, [2], UUIDS[2]),
        (RTX, [3, 1], f"{UUIDS[3]},{UUIDS[1]}"),
        (RTX, [UUIDS[1]], UUIDS[1]),
        # cards not known yet: the index, in the same order
        (HostClass("cuda"), [2], "2"),
        (CPU, [], None),
    ],
)
def test_visible_devices(host: HostClass, gpus: list[object], visible: str | None) -> None:
    this = seat("rtx-flash-next", gpus=gpus, tensor_parallel_size=max(1, len(gpus)))
    environment = seat_environment(this, RELEASE, LARGE, host)
    assert environment.get("CUDA_VISIBLE_DEVICES") == visible
    assert environment.get("CUDA_DEVICE_ORDER") == (None if visible is None else "PCI_BUS_ID")


def test_every_cache_is_in_the_cache_directory() -> None:
    environment = seat_environment(seat("rtx-flash-next"), RELEASE, LARGE, RTX)
    caches = (
        "HOME XDG_CACHE_HOME XDG_CONFIG_HOME HF_HOME VLLM_CACHE_ROOT VLLM_CONFIG_ROOT TRITON_CACHE_DIR "
        "TORCHINDUCTOR_CACHE_DIR FLASHINFER_WORKSPACE_BASE CUDA_CACHE_PATH"
    )
    for name in caches.split():
        assert f"{environment[name]}/".startswith("/var/cache/vllm/rtx-flash-next/"), name


def test_arms_of_a_campaign_do_not_share_compiled_kernels() -> None:
    def cache(k: int, kv: str = "64MiB") -> str:
        speculative = {"method": "mtp", "num_speculative_tokens": k}
        this = seat("lab-oracle", speculative=speculative, kv_cache_memory=kv)
        return seat_environment(this, RELEASE, TINY, CPU)["VLLM_CACHE_ROOT"]

    assert cache(2) != cache(3)
    # while a change that compiles nothing else keeps them: a rollback need not compile again
    assert cache(2) == cache(2, kv="128MiB")


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HOME", "VLLM_CACHE_ROOT", "SEATFLEET_GENERATION"])
def test_names_the_fleet_sets_are_refused(name: str) -> None:
    this = dataclasses.replace(seat("lab-oracle"), env={name: "x"})
    with pytest.raises(ProblemsError, match=rf"seat lab-oracle on host-1: env\.{name}: expected no such entry"):
        seat_environment(this, RELEASE, TINY, CPU)


def test_flags_the_renderer_sets_are_refused() -> None:
    for flag in ("max-num-seqs", "no-enable-prefix-caching", "served_model_name"):
        this = dataclasses.replace(seat("lab-oracle"), engine={flag: 1})
        with pytest.raises(ProblemsError, match=r"engine\.\S+: expected no such entry"):
            vllm_config(this, TINY, CPU)


def test_class_and_seat_add_to_the_environment() -> None:
    host = HostClass("cuda", environment={"PATH": "/usr/local/cuda/bin:/usr/bin", "NCCL_DEBUG": "WARN", "A": "class"})
    this = dataclasses.replace(seat("rtx-flash-next"), env={"A": "seat", "VLLM_HOST_IP": "192.0.2.7"})
    environment = seat_environment(this, RELEASE, LARGE, host)
    assert environment["PATH"] == f"{RELEASE.path}/bin:/usr/local/cuda/bin:/usr/bin"
    assert (environment["NCCL_DEBUG"], environment["A"], environment["VLLM_HOST_IP"]) == ("WARN", "seat", "192.0.2.7")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain/path:1,2", "A=plain/path:1,2"),
        ("", "A="),
        ("two words", 'A="two words"'),
        ('{"a": "b"}', r'A="{\"a\": \"b\"}"'),
        ("$HOME `x` \\", r'A="\$HOME \`x\` \\"'),
        ("100%", "A=100%"),
        ("#no comment", 'A="#no comment"'),
    ],
)
def test_environment_lines(value: str, line: str) -> None:
    assert render_environment({"A": value}) == line + "\n"


@pytest.mark.parametrize("value", ["a\nB=1", "a\0b", "\r"])
def test_line_breaks_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="variable A: expected one line of text"):
        render_environment({"A": value})


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_cache_memory": "128MiB"},
        {"max_model_len": 4096},
        {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
        {"prefix_caching": True},
        {"env": {"VLLM_CPU_OMP_THREADS_BIND": "1"}},
        {"port": 8023},
        {"probe": {"ready_timeout_s": 601}},
    ],
)
def test_what_reaches_the_process_is_another_generation_and_back(changes: dict[str, object]) -> None:
    before, changed, again = (rendered("lab-oracle", **what).name for what in ({}, changes, {}))
    assert before != changed
    assert before == again
    assert len(before) == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"aliases": {}},
        {"aliases": {"gen-large": {"keys": ["infra-ops"]}, "gen-new": {"keys": ["all-agents"]}}},
        {"aliases": {"gen-large": {"keys": ["infra-ops"], "sampling": {"temperature": 0.1}}}},
        {"probe": {"ready_timeout_s": 600, "acceptance": {"count": 2.9}}},
    ],
)
def test_gateway_and_probe_settings_never_restart_a_seat(changes: dict[str, object]) -> None:
    assert rendered("lab-oracle", **changes).name == rendered("lab-oracle").name


def test_release_and_weights_are_part_of_the_generation() -> None:
    this = seat("lab-oracle")
    names = {
        render(this, release, weights, CPU).name
        for release in (RELEASE, examples.CUDA_RELEASE)
        for weights in (TINY, dataclasses.replace(TINY, path="/srv/models/tiny-oracle/ffffffffffff"))
    }
    assert len(names) == 4


def test_served_names_begin_with_the_models_own() -> None:
    found = config("spark-dflash")["served-model-name"]
    assert found == ["qwen3.5-122b-a10b-int4", "gen-agent", "gen-code"]
    aliases = {"tiny-oracle": {"keys": ["infra-ops"]}}
    assert config("lab-oracle", aliases=aliases)["served-model-name"] == ["tiny-oracle"]


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8022"),
        ("127.0.0.1", "http://127.0.0.1:8022"),
        ("192.0.2.7", "http://192.0.2.7:8022"),
        ("::", "http://[::1]:8022"),
        ("2001:db8::7", "http://[2001:db8::7]:8022"),
    ],
)
def test_where_the_probe_reaches_a_seat(bind: str, url: str) -> None:
    assert rendered("lab-oracle", bind=bind).manifest["base_url"] == url


def test_api_keys_differ_by_seat_and_host_and_do_not_tell_the_secret() -> None:
    keys = {seat_api_key("s", host, name) for host in ("a", "b") for name in ("x", "y")}
    assert len(keys) == 4
    assert seat_api_key("s", "a", "x") in keys
    assert seat_api_key("other", "a", "x") not in keys
    assert all(key.startswith("sk-seat-") and len(key) == 72 for key in keys)


def test_no_secret_is_in_any_file() -> None:
    for name in CASES:
        text = "".join(rendered(name).files.values())
        assert "sk-" not in text
        assert "VLLM_API_KEY" not in text


NODES = {
    "port": 29500,
    "hosts": [
        {"host": "host-1", "address": "10.0.0.1", "interface": "fast0"},
        {"host": "host-2", "address": "10.0.0.2", "interface": "fast1"},
    ],
}


def halves(name: str, nodes: object = NODES, **changes: object) -> tuple[Generation, Generation]:
    release, weights, host, drafter = CASES[name]
    host = dataclasses.replace(host, gpu_uuids=())
    head, follower = render_parts(seat(name, nodes=nodes, **changes), release, weights, host, drafter)
    return head, follower


def test_the_two_halves_of_a_seat_are_one_generation() -> None:
    head, follower = halves("lab-dense")
    assert head.name == follower.name
    assert head == rendered("lab-dense", nodes=NODES)
    declared = [half.manifest["declared"] for half in (head, follower)]
    told = {"tensor-parallel-size": 2, "pipeline-parallel-size": 1, "distributed-executor-backend": "mp", "nnodes": 2}
    told |= {"master-addr": "10.0.0.1", "master-port": 29501}
    assert declared[0].items() >= (told | {"node-rank": 0}).items()
    assert declared[1].items() == {**declared[0], "node-rank": 1, "headless": True}.items()
    environment = [half.manifest["environment"] for half in (head, follower)]
    for values, number in zip(environment, "12", strict=True):
        assert values["VLLM_HOST_IP"] == f"10.0.0.{number}"
        interfaces = {values["GLOO_SOCKET_IFNAME"], values["NCCL_SOCKET_IFNAME"]}
        assert interfaces == {f"fast{int(number) - 1}"}
        assert values["SEATFLEET_GENERATION"] == head.name
    assert [half.manifest["host"] for half in (head, follower)] == ["host-1", "host-2"]
    assert [half.manifest["nodes"]["rank"] for half in (head, follower)] == [0, 1]
    assert head.manifest["release_id"] == follower.manifest["release_id"]


def test_units_of_the_two_halves() -> None:
    """The head starts by itself and may be given up; the other half starts with it and answers nobody."""
    head, follower = (half.files["vllm-seat-lab-dense.service"].splitlines() for half in halves("lab-dense"))
    only = {line for line in head if line not in follower}
    assert {"Restart=always", "WantedBy=multi-user.target", "OnFailure=seatfleet-stub@8031.service"} <= only
    assert any("api-key.env" in line for line in only)
    assert any("settle" in line for line in only)
    for unit in (head, follower):
        wants = "Wants=network-online.target seatfleet-firewall.service seatfleet-link@lab-dense.service"
        assert wants in unit
        # a worker survives its parent: the whole control group goes
        assert "KillMode=mixed" in unit
    assert {"Restart=no", "StartLimitIntervalSec=0"} <= set(follower)
    assert "[Install]" not in follower


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"host": "host-2", "address": "10.0.0.2", "interface": "other"}, id="interface"),
        pytest.param({"host": "host-2", "address": "10.0.0.3", "interface": "fast1"}, id="address"),
    ],
)
def test_what_changes_one_half_alone_is_another_generation_of_both(changed: dict[str, str]) -> None:
    before, after = (
        halves("lab-dense", {**NODES, "hosts": [NODES["hosts"][0], other]}) for other in (NODES["hosts"][1], changed)
    )
    assert {half.name for half in before}.isdisjoint(half.name for half in after)
    assert after[0].name == after[1].name
    assert before[0].manifest["declared"] == after[0].manifest["declared"]


def test_cards_of_two_hosts_are_named_by_their_index_and_may_be_a_pipeline() -> None:
    for ranks, pipeline in ((None, 1), (2, 1), (1, 2)):
        head, follower = halves("spark-dflash", tensor_parallel_size=ranks)
        for half in (head, follower):
            assert half.manifest["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
            assert half.manifest["declared"]["pipeline-parallel-size"] == pipeline
            assert half.manifest["declared"]["tensor-parallel-size"] == 2 // pipeline


def test_who_follows_whose_seats() -> None:
    written = {"nodes": NODES, "model": "m"}
    others = {"host-1": {"big": written, "small": {"model": "m"}}, "host-2": {"own": {"nodes": None}}, "host-3": {}}
    assert followed_seats(others, "host-2") == {"big": written}
    assert followed_seats(others, "host-1") == {}
    for wrong in ({"nodes": "nonsense"}, {"nodes": {"hosts": None}}, {"nodes": {"hosts": {}}}, {}, None, "nonsense"):
        assert follower_hosts(wrong) == []
    pair = seat("lab-dense", nodes=NODES)
    assert all_follower_hosts([pair, seat("lab-oracle")]) == ["host-2"]
    own = {"seat": "lab-dense", "ports": [29500, 29501], "address": "10.0.0.1", "peers": ["10.0.0.2"]}
    assert links([pair, seat("lab-oracle")]) == [own]
    there = {**own, "address": "10.0.0.2", "peers": ["10.0.0.1"]}
    assert links([dataclasses.replace(pair, host="host-2")]) == [there]
