"""The marked block in a proxy's config file: ours to the byte, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from seatfleet.core.gateway.config import BEGIN, END, ConfigError, edit, entry, entry_id, environment, variable
from seatfleet.core.gateway.state import WantedAlias

WANT = WantedAlias(
    "gen-large", "fv-ml1", "flash-next", "http://10.0.0.11:8022/v1", "sk-seat-canary", sampling={"top_k": 20}
)
OTHER = WantedAlias("gen-small", "spark-1", "dense", "http://10.0.0.21:8031/v1", "sk-seat-other")

FILES = {
    "empty": "",
    "empty list": "model_list: []\ngeneral_settings: {store_model_in_db: true}\n",
    "no list": "general_settings:\n  master_key: os.environ/X\n",
    "indented": "model_list:\n  - model_name: theirs\n    litellm_params: {model: a/b}\n# end\ngeneral_settings: {}\n",
    "flush left": "# top\nmodel_list:\n- model_name: theirs\n  litellm_params: {model: a/b}\ngeneral_settings: {}\n",
    "comment first": "model_list: # all\n  # theirs\n  - model_name: theirs\n    litellm_params: {model: a/b}\n",
}


def names(text: str) -> list[str]:
    return [item["model_name"] for item in yaml.safe_load(text)["model_list"]]


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_a_block_is_added_and_the_rest_of_the_file_means_the_same(text: str) -> None:
    made = edit(text, "fv-ml1", [WANT])
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(made.text)
    assert after["model_list"][0] == entry(WANT)
    assert after["model_list"][1:] == (before.get("model_list") or [])
    assert {name: value for name, value in after.items() if name != "model_list"} == {
        name: value for name, value in before.items() if name != "model_list"
    }


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_a_second_edit_changes_no_byte_and_a_removal_takes_the_block_away(text: str) -> None:
    made = edit(text, "fv-ml1", [WANT]).text
    assert edit(made, "fv-ml1", [WANT]).text == made
    gone = edit(made, "fv-ml1", [])
    assert gone.dropped == ("gen-large",)
    assert BEGIN not in gone.text
    assert yaml.safe_load(gone.text) == {"model_list": [], **(yaml.safe_load(text) or {})}
    assert [line for line in text.splitlines() if "model_list" not in line] == [
        line for line in gone.text.splitlines() if "model_list" not in line
    ]


def test_a_host_changes_only_its_own_entries() -> None:
    both = edit(edit(FILES["indented"], "fv-ml1", [WANT]).text, "spark-1", [OTHER])
    assert names(both.text) == ["gen-large", "gen-small", "theirs"]
    assert both.before == {}
    changed = edit(both.text, "fv-ml1", [replace(WANT, sampling={})])
    assert set(changed.before) == set(changed.after) == {entry_id(WANT)}
    assert names(edit(changed.text, "fv-ml1", []).text) == ["gen-small", "theirs"]


def test_nothing_to_write_leaves_a_file_without_a_block_alone() -> None:
    assert edit(FILES["indented"], "fv-ml1", []).text == FILES["indented"]


def test_an_alias_that_others_define_is_refused() -> None:
    with pytest.raises(ConfigError, match="theirs also stands outside"):
        edit(FILES["indented"], "fv-ml1", [replace(WANT, alias="theirs")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_list: [{model_name: a}]\n", "on a line of its own"),
        (f"model_list:\n  {BEGIN}\n  - {{}}\n", "1 and 0"),
        (f"model_list:\n  {END}\n  {BEGIN}\n", "1 and 1"),
        (f"model_list:\n  {BEGIN}\n  - model_name: by-hand\n  {END}\n", "not ours"),
        (f"model_list:\n  {BEGIN}\n  - {{}}\n  {END}\n", "not ours"),
    ],
)
def test_what_cannot_be_edited_safely_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        edit(text, "fv-ml1", [WANT])


def test_the_file_and_the_diff_hold_no_secret() -> None:
    made = edit("", "fv-ml1", [WANT])
    assert WANT.api_key not in made.text
    assert f"os.environ/{variable('fv-ml1', 'flash-next')}" in made.text
    assert "api_key" not in str(made.after)


def test_the_environment_file_keeps_other_hosts() -> None:
    first = environment("", "fv-ml1", {"flash-next": "a", "dense": "b"})
    second = environment(first, "spark-1", {"dense": "c"})
    third = environment(second, "fv-ml1", {"flash-next": "rotated"})
    assert third.splitlines() == ["SEATFLEET_KEY_FV_ML1_FLASH_NEXT=rotated", "SEATFLEET_KEY_SPARK_1_DENSE=c"]
    assert environment(third, "fv-ml1", {"flash-next": "rotated"}) == third


def test_the_file_and_the_database_never_share_an_id() -> None:
    """Deleting the database's deployment would take the file's out of the running proxy."""
    assert entry(WANT)["model_info"]["id"] == entry_id(WANT)
    assert entry_id(WANT) not in {WANT.deployment_id(revision) for revision in (1, 2, 3)}
