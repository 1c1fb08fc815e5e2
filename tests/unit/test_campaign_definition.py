from __future__ import annotations

from typing import Any

import pytest
import yaml

from seatfleet.campaign.definition import load_definition
from seatfleet.core.problems import ProblemsError

MTP = """
seat: flash-next
question: Does MTP make flash-next faster, and at which k?
studied_keys: [speculative-config]
arms:
  "off": {}
  k1: {speculative-config: {method: mtp, num_speculative_tokens: 1}}
  k2: {speculative-config: {method: mtp, num_speculative_tokens: 2}}
shapes:
  tool: {}
  count: {max_tokens: 64}
  longctx: {tokens: 32000, concurrency: [1]}
primary: {metric: aggregate_output_tok_s, shapes: [tool], concurrency: [1, 8]}
kv_pin: {minimum: 10GiB, step: 512MiB, margin: 2GiB}
"""


def mtp(**changes: Any) -> dict[str, Any]:
    raw = yaml.safe_load(MTP)
    for path, value in changes.items():
        target = raw
        *parents, last = path.split("__")
        for parent in parents:
            target = target[parent]
        if value is ...:
            del target[last]
        else:
            target[last] = value
    return raw


K1 = {"method": "mtp", "num_speculative_tokens": 1}


def load(raw: object, name: str = "mtp"):
    return load_definition(raw, name=name, where="group_vars/fv_ml1/campaigns.yml")


def test_a_definition_is_read_with_its_defaults():
    definition = load(mtp())
    assert definition.arm_ids == ("off", "k1", "k2")
    assert definition.arm("off").values == {"speculative-config": None}
    assert (definition.arm("k2").draft_tokens, definition.arm("k2").method) == (2, "mtp")
    assert (definition.arm("off").draft_tokens, definition.arm("off").method) == (0, None)
    assert definition.mode == "palindrome" and definition.sampling == {"temperature": 0.0}
    assert [c.id for c in definition.contrasts] == ["k1-vs-off", "k2-vs-off"]
    assert definition.contrasts[0].weights == {"k1": 1.0, "off": -1.0}
    assert definition.kv_pin is not None and definition.kv_pin.step == 512 << 20
    assert definition.cells() == (
        *(("tool", c) for c in (1, 4, 8)),
        *(("count", c) for c in (1, 4, 8)),
        ("longctx", 1),
    )


@pytest.mark.parametrize(
    ("shape", "concurrency", "expected"),
    [("tool", 1, 12), ("tool", 4, 12), ("tool", 8, 24), ("longctx", 1, 4), ("longctx", 8, 16)],
)
def test_a_cell_has_three_waves_and_at_least_twelve_requests(shape: str, concurrency: int, expected: int):
    assert load(mtp()).requests_of(shape, concurrency) == expected


def test_an_interaction_is_a_contrast_of_four_arms():
    weights = {"k1": 1, "off": -1, "k1-res": -1, "off-res": 1}
    arms = {
        name: {"speculative-config": {"method": "mtp", "num_speculative_tokens": i + 1}}
        for i, name in enumerate(weights)
    }
    definition = load(mtp(arms=arms, contrasts={"interaction": weights}))
    assert definition.contrasts[0].weights == {name: float(w) for name, w in weights.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seat": ...}, "seat: expected a text, seen 'nothing'"),
        ({"question": " "}, "question: expected a text"),
        ({"typo": 1}, "typo: expected a known field"),
        ({"shapes__count__typo": 1}, "shapes.count.typo: expected a known field"),
        ({"studied_keys": []}, "at least one vLLM option"),
        ({"studied_keys": ["speculative-config", "model"]}, "two seats, not two arms, seen 'model'"),
        ({"studied_keys": ["--speculative-config"]}, "studied_keys: expected an option as in vLLM's config file"),
        ({"arms": {False: {}, "k1": {}}}, "arms: expected arm ids in quotes: YAML reads a bare off as false"),
        ({"arms__k1": {"max-num-seqs": 4}}, "arms.k1.max-num-seqs: expected studied keys only"),
        ({"arms__k1": 3}, "arms.k1: expected a mapping of studied keys, seen 3"),
        ({"arms__k3": {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}}, "the values of arm k2"),
        ({"arms": {"off": {}}}, "at least one arm beside the control"),
        ({"arms__Bad Name": {"speculative-config": 1}}, "arms: expected an id of the form"),
        ({"control": "vllm-recipe"}, "control: expected the id of an arm (a figure from elsewhere is no control)"),
        ({"positive_controls": ["off"]}, "positive_controls: expected names out of k1, k2, seen 'off'"),
        ({"mode": "quick"}, "mode: expected one of screen, palindrome, confirm, seen 'quick'"),
        ({"concurrency": [8, 1]}, "concurrency: expected a rising list"),
        ({"concurrency": [0, 1]}, "concurrency: expected a rising list"),
        ({"reps": 0}, "reps: expected an integer from 1 to 20, seen 0"),
        ({"reps": True}, "reps: expected an integer"),
        ({"margin": 3}, "margin: expected a number from 0.001 to 0.5, seen 3"),
        ({"shapes": ["random"]}, "shapes: expected shapes out of prose"),
        ({"shapes": "prose"}, "shapes: expected a list of shapes"),
        ({"shapes__count__tokens": 900}, "shapes.count.tokens: expected a prompt size for longctx only"),
        (
            {"primary": {"shapes": ["prose"]}},
            "primary" if False else "shapes: expected names out of tool, count, longctx",
        ),
        ({"primary": {"shapes": ["longctx"], "concurrency": [8]}}, "shape longctx at concurrency 8"),
        ({"primary": {"metric": "vibes"}}, "metric: expected one of aggregate_output_tok_s"),
        ({"primary": 5}, "primary: expected a mapping, seen 5"),
        ({"sampling": {"ignore_eos": True}}, "sampling.ignore_eos: expected natural ends"),
        ({"sampling": {"heat": 1}}, "sampling.heat: expected a key out of"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature: expected a number"),
        ({"sampling": "fast"}, "sampling: expected greedy, or a mapping"),
        ({"contrasts": {"x": {"k1": 1, "off": 1}}}, "contrasts.x: expected weights that sum to zero"),
        ({"contrasts": {"x": {"k9": 1, "off": -1}}}, "contrasts.x: expected arms of this campaign that are not"),
        ({"contrasts": {"x": {"k1": float("nan"), "off": -1}}}, "contrasts.x: expected a mapping from arm to weight"),
        (
            {"positive_controls": ["k2"], "contrasts": {"x": {"k2": 1, "off": -1}}},
            "not broken on purpose, seen 'k2'",
        ),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature: expected a number"),
        ({"bands": {"k1": {"count": float("nan")}}}, "bands.k1.count: expected a shape and an acceptance length"),
        (
            {"studied_keys": ["speculative-config", "no-enable-prefix-caching"]},
            "expected enable-prefix-caching, with false in an arm",
        ),
        ({"studied_keys": ["speculative-config", "env:VLLM_API_KEY"]}, "secrets and cache roots"),
        (
            {"studied_keys": ["speculative-config", "env:CUDA_VISIBLE_DEVICES"], "shadow": {"gpus": [3], "port": 8099}},
            "studied_keys: expected keys that shadow does not set in every arm",
        ),
        (
            {
                "studied_keys": ["speculative-config", "kv-cache-memory-bytes"],
                "kv_pin": {"minimum": "8GiB", "step": "1GiB", "margin": "1GiB"},
            },
            "studied_keys: expected keys that kv_pin does not set in every arm",
        ),
        ({"contrasts": {"x": 5}}, "contrasts.x: expected a mapping from arm to weight"),
        ({"bands": {"k9": {"count": 2}}}, "bands: expected arms of this campaign, seen 'k9'"),
        ({"bands": {"k1": {"count": 0.5}}}, "bands.k1.count: expected a shape and an acceptance length"),
        ({"bands": {"k1": 5}}, "bands.k1: expected a mapping from shape"),
        (
            {"kv_pin": {"minimum": "10GB", "step": "512MiB", "margin": "2GiB"}},
            "minimum: expected an integer followed by",
        ),
        (
            {"amortization": {"off": "off", "off_lever": "x", "spec": "k1", "spec_lever": "k2"}},
            "off_lever: expected one of",
        ),
        ({"model_facts": {"experts": 4, "active_experts": 8}}, "active_experts: expected an integer from 1 to 4"),
        ({"shadow": {"gpus": [], "port": 8099}}, "shadow.gpus: expected a list of GPU indices"),
        ({"shadow": {"gpus": [3]}}, "shadow.port: expected a free port"),
        ({"compile_cache": "none"}, "compile_cache: expected one of persist, fresh"),
        ({"warmup_boots": "yes"}, "warmup_boots: expected true or false"),
        ({"planted_delay": 5}, "planted_delay: expected a number from 0.02 to 1"),
        (
            {"arms__k1": {"speculative-config": {**K1, "rejection_sample_method": "synthetic"}}},
            "expected real acceptance",
        ),
        (
            {"arms__k1": {"speculative-config": {**K1, "synthetic_acceptance_rate": 0.9}}},
            "expected real acceptance",
        ),
        *(
            ({"arms__k1": {"speculative-config": value}}, "a mapping with method and num_speculative_tokens")
            for value in (
                '{"method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "synthetic"}',
                {"method": "mtp"},
                {"num_speculative_tokens": 1},
                {"method": "mtp", "num_speculative_tokens": 0},
                {"method": "mtp", "num_speculative_tokens": "two"},
            )
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str):
    with pytest.raises(ProblemsError) as caught:
        load(mtp(**changes))
    assert message in str(caught.value)
    assert "group_vars/fv_ml1/campaigns.yml: campaign mtp" in str(caught.value)


def test_what_explains_the_result_is_read():
    arms = {name: {"quantization": name} for name in ("off", "fp8", "k2", "k2-fp8")}
    facts = {"experts": 512, "active_experts": 10, "host_table": True}
    four = {"off": "off", "off_lever": "fp8", "spec": "k2", "spec_lever": "k2-fp8"}
    definition = load(mtp(arms=arms, studied_keys=["quantization"], amortization=four, model_facts=facts))
    assert definition.amortization is not None and definition.amortization.spec_lever == "k2-fp8"
    assert definition.model_facts is not None and definition.model_facts.host_table


def test_everything_wrong_is_reported_at_once():
    with pytest.raises(ProblemsError) as caught:
        load(mtp(reps=0, margin=3, mode="quick", typo=1, seat=...))
    assert len(caught.value.problems) == 5


def test_a_definition_that_is_no_mapping_or_has_a_bad_name():
    with pytest.raises(ProblemsError, match="expected a mapping, seen"):
        load([1])
    with pytest.raises(ProblemsError, match="name: expected a name of the form"):
        load(mtp(), name="My Campaign")


def test_a_declared_synthetic_campaign_may_fabricate_acceptance():
    speculative = {"method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "synthetic"}
    assert load(mtp(synthetic=True, arms__k1={"speculative-config": speculative})).synthetic
