"""One seat: what is accepted, what is refused with which message, and how presets merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from seatfleet.core.inventory.schema import OWNED_ENV, OWNED_FLAGS, SEAT, Presets, load_seat, merge, read_seat
from seatfleet.core.inventory.seat import Alias, Evidence, Probe, Speculative
from seatfleet.core.paths import campaign_unit, measuring_units, unit_name
from seatfleet.core.problems import ProblemsError

GOOD = """
model: qwen3.8-flash-next
release: "0.33.0+rtx.1"
gpus: [2]
port: 8022
max_model_len: 262144
kv_cache_memory: 14GiB
max_num_batched_tokens: 8192
speculative: null
speculative_why: {state: unmeasured, note: not compared on this card}
aliases:
  gen-large: {keys: [infra-ops, all-agents], sampling: {temperature: 1.0, top_p: 0.95, top_k: 20}}
probe: {acceptance: null, ready_timeout_s: 1800}
"""
DFLASH = "{method: dflash, model: drafter, num_speculative_tokens: 12, attention_backend: FLASH_ATTN}"


def good(changes: str = "", without: tuple[str, ...] = ()) -> dict[str, Any]:
    seat = yaml.safe_load(GOOD)
    for name in without:
        del seat[name]
    return {**seat, **(yaml.safe_load(changes) or {})}


def faults(written: object, presets: Presets | None = None) -> list[str]:
    """The faults of a seat as ``field: expected ..., seen ...``."""
    found = read_seat("flash-next", "fv-ml1", written, presets).findings
    return sorted(f"{'.'.join(path)}: expected {expected}, seen {seen}" for path, expected, seen in found.wrong)


def test_the_whole_seat() -> None:
    seat = load_seat("flash-next", "fv-ml1", good())
    assert (seat.name, seat.host, seat.port, seat.gpus) == ("flash-next", "fv-ml1", 8022, (2,))
    assert seat.kv_cache_memory == 14 * 2**30
    assert seat.gpu_memory_utilization is None
    assert seat.tensor_parallel_size == 1
    assert seat.speculative is None
    assert seat.speculative_why == Evidence("unmeasured", "not compared on this card")
    assert seat.prefix_caching is True
    sampling = {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
    assert seat.aliases == (Alias("gen-large", ("infra-ops", "all-agents"), sampling),)
    assert seat.probe == Probe(acceptance=None, ready_timeout_s=1800, drain_timeout_s=300, stop_timeout_s=120)


def test_absent_fields_mean_their_documented_default() -> None:
    seat = load_seat("a", "h", good(without=("aliases", "probe", "max_num_batched_tokens")))
    assert seat.aliases == ()
    assert seat.probe == Probe()
    assert seat.bind == "0.0.0.0"
    assert seat.max_num_batched_tokens is None
    assert seat.engine == {} == seat.env
    assert load_seat("a", "h", good("gpus: [0, 1]")).tensor_parallel_size == 2
    assert load_seat("a", "h", good("gpus: []")).tensor_parallel_size == 1


def test_a_drafted_seat() -> None:
    seat = load_seat("a", "h", good(f"speculative: {DFLASH}", without=("speculative_why",)))
    assert seat.speculative == Speculative("dflash", 12, "drafter", "FLASH_ATTN")
    assert seat.speculative_why is None


SIZE = "an integer followed by MiB or GiB, for example 14GiB"
PARALLEL = "{method: mtp, num_speculative_tokens: 2}"
FAULTS = yaml.safe_load((Path(__file__).parent / "tables/seat_faults.yml").read_text())


@pytest.mark.parametrize(("change", "message"), [(case["change"], case["message"]) for case in FAULTS])
def test_one_fault_gives_one_message(change: str, message: str) -> None:
    assert faults(good(change)) == [message]


@pytest.mark.parametrize(
    "changes",
    [
        "kv_cache_memory: 14336MiB",
        "{kv_cache_memory: null, gpu_memory_utilization: 0.82}",
        "gpus: [GPU-01234567-89ab-cdef-0123-456789abcdef]",
        "gpus: [0, 1]",
        "engine: {block-size: 32, async-scheduling: false, compilation-config: {cudagraph_mode: PIECEWISE}}",
        "env: {VLLM_X: '1', NCCL_DEBUG: INFO}",
        "{engram: {cpu_offload: true}, host_memory: 96GiB}",
        "engram: {cpu_offload: false}",
        "speculative_why: {state: measured, note: k=1 loses, reference: docs/evidence/mtp.md}",
        "aliases: {a: {keys: [k], chat_template_kwargs: {t: 1}}, b: {keys: [k], chat_template_kwargs: {t: 2}}}",
        "aliases: {a: {keys: [k], limits: {rpm: 5}}, b: {keys: [k], limits: {rpm: 5}}}",
        f"{{speculative_why: null, speculative: {PARALLEL}, probe: {{acceptance: {{code: 3}}}}}}",
        "bind: '::1'",
        "state: absent",
    ],
)
def test_accepted(changes: str) -> None:
    assert faults(good(changes)) == []
    load_seat("a", "h", good(changes))


def test_all_faults_of_a_seat_are_in_one_report() -> None:
    bad = good("{max_model_lenght: 4, port: 80, kv_cache_memory: 14GB, prefix_caching: 'yes'}")
    with pytest.raises(ProblemsError) as caught:
        load_seat("flash-next", "fv-ml1", bad)
    assert str(caught.value) == (
        "4 problems, nothing was changed:\n"
        f"  seats.flash-next: seat flash-next on fv-ml1: kv_cache_memory: expected {SIZE} (did you mean 14GiB?), "
        "seen '14GB'\n"
        "  seats.flash-next: seat flash-next on fv-ml1: max_model_lenght: expected a known field of a seat "
        "(did you mean 'max_model_len'?), seen an unknown field\n"
        "  seats.flash-next: seat flash-next on fv-ml1: port: expected an integer from 1024 to 65535, seen 80\n"
        "  seats.flash-next: seat flash-next on fv-ml1: prefix_caching: expected true or false, without quotes, "
        "seen 'yes'"
    )


@pytest.mark.parametrize("name", ["current", "Flash", "a_b", "-a", "a" * 41, "all", "", "run-a", 8022, True])
def test_names_that_cannot_be_a_seat(name: Any) -> None:
    (fault,) = read_seat(name, "h", good()).findings.wrong
    assert fault[0] == ()


def test_no_two_seats_share_a_unit() -> None:
    """The campaign of one seat would be the variant that another one boots."""
    names = [name for name in ("run-a", "a", "run", "run-run-a") if not read_seat(name, "h", good()).findings.wrong]
    units = [unit for name in names for unit in (unit_name(name), campaign_unit(name), *measuring_units(name))]
    assert "a" in names
    assert len(set(units)) == len(units)


@pytest.mark.parametrize("written", [None, [], "text", 5])
def test_a_seat_that_is_no_mapping(written: object) -> None:
    (fault,) = read_seat("a", "h", written).findings.wrong
    assert fault[1].startswith("a mapping (profile, model,")


def test_templates_and_placeholders_are_neither_right_nor_wrong() -> None:
    read = read_seat("a", "h", good("{port: '{{ base_port + 1 }}', gpus: ['<fill in: UUID of the card>']}"))
    assert read.findings.wrong == []
    assert read.findings.unknown_yet == [("port",)]
    assert read.findings.placeholders == [("gpus", "0")]
    assert read.seat is None
    with pytest.raises(ProblemsError, match=r"port: expected a value, seen '\{\{ base_port \+ 1 \}\}'"):
        load_seat("a", "h", good("port: '{{ base_port + 1 }}'"))


def test_rules_stay_silent_about_what_is_already_reported() -> None:
    """A field that could not be read gives one message, not a second one from a rule that looks at it."""
    for field in SEAT.names:
        broken = good(f"{field}: !!set {{x}}") if field != "profile" else good("profile: 3")
        messages = faults(broken)
        assert all(message.startswith(field) for message in messages), messages
        assert len(messages) == 1, messages


PRESETS = yaml.safe_load("""
defaults: {probe: {ready_timeout_s: 900, stop_timeout_s: 60}, max_num_seqs: 8}
class_defaults: {max_num_batched_tokens: 4096, probe: {ready_timeout_s: 3600}}
profiles:
  dflash:
    model: m
    release: r
    gpus: [0]
    max_model_len: 131072
    gpu_memory_utilization: 0.82
    kv_cache_why: {state: elsewhere, note: n}
    speculative: {method: dflash, model: drafter, num_speculative_tokens: 12, attention_backend: FLASH_ATTN}
    env: {A_X: '1', B_X: '2'}
  plain:
    speculative: null
    speculative_why: {state: unmeasured, note: n}
""")


def merged(written: str) -> dict[str, Any]:
    return merge("agent", yaml.safe_load(written), Presets(**PRESETS)).content


def test_layers_in_order() -> None:
    seat = load_seat("agent", "spark-1", {"profile": "dflash", "port": 8031}, Presets(**PRESETS))
    assert (seat.model, seat.max_num_seqs, seat.max_num_batched_tokens) == ("m", 8, 4096)
    assert seat.probe == Probe(ready_timeout_s=3600, drain_timeout_s=300, stop_timeout_s=60)
    assert seat.profile == "dflash"


@pytest.mark.parametrize(
    ("written", "path", "value"),
    [
        # A mapping merges key by key.
        ("{profile: dflash, speculative: {num_speculative_tokens: 4}}", ("speculative", "model"), "drafter"),
        ("{profile: dflash, speculative: {num_speculative_tokens: 4}}", ("speculative", "num_speculative_tokens"), 4),
        # Another method brings its own keys.
        (
            "{profile: dflash, speculative: {method: mtp, num_speculative_tokens: 2}}",
            ("speculative",),
            {"method": "mtp", "num_speculative_tokens": 2},
        ),
        # The same method keeps them.
        ("{profile: dflash, speculative: {method: dflash}}", ("speculative", "attention_backend"), "FLASH_ATTN"),
        # Alternatives replace each other.
        ("{profile: dflash, kv_cache_memory: 20GiB}", ("gpu_memory_utilization",), None),
        ("{profile: dflash, kv_cache_memory: 20GiB}", ("kv_cache_why",), None),
        ("{profile: dflash, speculative: null}", ("speculative",), None),
        ("{profile: plain, speculative: {method: mtp, num_speculative_tokens: 2}}", ("speculative_why",), None),
        # Lists replace, null removes a key of env.
        ("{profile: dflash, gpus: [3]}", ("gpus",), [3]),
        ("{profile: dflash, env: {A_X: null}}", ("env",), {"B_X": "2"}),
        ("{profile: dflash, env: {C_X: '3'}}", ("env",), {"A_X": "1", "B_X": "2", "C_X": "3"}),
    ],
)
def test_merging(written: str, path: tuple[str, ...], value: object) -> None:
    content: Any = merged(written)
    for part in path:
        content = content.get(part)
    assert content == value


def test_presets_are_not_changed_by_merging() -> None:
    before = yaml.safe_dump(PRESETS)
    merged("{profile: dflash, speculative: {num_speculative_tokens: 4}, env: {A_X: null}}")
    assert yaml.safe_dump(PRESETS) == before


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (("port",), ("seats", "agent", "port")),
        (("model",), ("seat_profiles", "dflash", "model")),
        (("speculative", "num_speculative_tokens"), ("seats", "agent", "speculative", "num_speculative_tokens")),
        (("speculative", "model"), ("seat_profiles", "dflash", "speculative", "model")),
        (("probe", "ready_timeout_s"), ("seat_class_defaults", "probe", "ready_timeout_s")),
        (("probe", "stop_timeout_s"), ("seat_defaults", "probe", "stop_timeout_s")),
        (("nothing", "of", "this"), ("seats", "agent", "nothing", "of", "this")),
    ],
)
def test_each_value_knows_its_layer(path: tuple[str, ...], source: tuple[str, ...]) -> None:
    written = yaml.safe_load("{profile: dflash, port: 8031, speculative: {num_speculative_tokens: 4}}")
    assert merge("agent", written, Presets(**PRESETS)).source(path) == source


def test_unknown_profile_names_the_nearest() -> None:
    assert faults(good("profile: dflesh"), Presets(**PRESETS)) == [
        "profile: expected a profile of seat_profiles (did you mean 'dflash'?), seen 'dflesh'"
    ]


def test_every_field_is_documented() -> None:
    def fields(record: Any) -> Any:
        for field in record.fields:
            yield field
            for kind in (field.kind, getattr(field.kind, "value", None), getattr(field.kind, "item", None)):
                if hasattr(kind, "fields"):
                    yield from fields(kind)

    for field in fields(SEAT):
        assert field.doc.endswith("."), field.name
        assert field.kind.expected


def test_owned_names_point_to_a_field_or_say_why() -> None:
    for place in {*OWNED_FLAGS.values(), *OWNED_ENV.values()}:
        assert place.startswith("nothing: ") or place == "the model catalogue" or place.split(".")[0] in SEAT.names


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({}, []),
        ({"speculative": {"num_speculative_tokens": 4}, "gpus": [0]}, []),
        ({"speculative": {"method": "dflash"}, "probe": {"acceptance": {"code": 2}}}, []),
        ({"port": 80}, ["an integer from 1024 to 65535"]),
    ],
)
def test_without_its_profile_a_seat_lacks_nothing_else(more: dict[str, Any], messages: list[str]) -> None:
    read = read_seat("a", "h", {"profile": "dflsh", "port": 8031, **more}, Presets(**PRESETS))
    expected = [item[1] for item in read.findings.wrong]
    assert expected == ["a profile of seat_profiles (did you mean 'dflash'?)", *messages]


def test_a_name_that_yaml_reads_as_a_number_wants_quotes() -> None:
    read = read_seat("a", "h", good("release: 0.33"))
    assert read.findings.wrong == [
        (("release",), "the name of a catalogue entry (in quotes: without them YAML reads a number)", "0.33")
    ]
