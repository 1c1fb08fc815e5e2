from __future__ import annotations

import re
from collections import Counter

import pytest

from seatfleet.campaign import prompts
from seatfleet.campaign.definition import ShapeUse
from seatfleet.campaign.prompts import ShapeError, frozen_index, load_frozen, long_document, make_shapes, sized_document


def words(prompt: prompts.Prompt) -> int:
    return sum(len(message["content"].split()) for message in prompt.messages)


@pytest.mark.parametrize("name", ["prose", "code", "count", "tool"])
def test_frozen_texts_are_what_their_hash_says_and_all_different(name: str):
    shape = load_frozen(name)
    assert len(shape.prompts) == frozen_index()[name]["prompts"] == 24
    assert len({prompt.sha256 for prompt in shape.prompts}) == 24
    assert len({prompt.id for prompt in shape.prompts}) == 24


def test_an_edited_text_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompts, "frozen_index", lambda: {"prose": {"sha256": "0" * 64}})
    with pytest.raises(ShapeError, match="frozen texts must not be edited"):
        load_frozen("prose")


def test_the_limit_of_tokens_belongs_to_the_hash_of_a_shape():
    assert load_frozen("prose").sha256 != load_frozen("prose", 64).sha256
    assert all(prompt.max_tokens == 64 for prompt in load_frozen("prose", 64).prompts)


def test_a_cell_larger_than_the_shape_begins_again():
    shape = load_frozen("count")
    assert [prompt.id for prompt in shape.take(26)][24:] == [prompt.id for prompt in shape.prompts[:2]]


def test_tool_prompts_expect_one_of_the_offered_tools():
    shape = load_frozen("tool")
    offered = {tool["function"]["name"] for tool in shape.prompts[0].tools}
    assert {prompt.expect_tool for prompt in shape.prompts} == offered
    assert {prompt.expect_tool for prompt in shape.prompts[:6]} == offered


def test_a_long_document_repeats_nothing_and_can_be_asked():
    document = long_document(3, 2000)
    text = document.messages[0]["content"]
    sentences = re.split(r"(?<=[.;!?]) ", text.partition("\n\n")[2].partition("That was the register")[0])
    assert max(Counter(s.strip() for s in sentences).values()) == 1
    tokens = text.split()
    windows = Counter(tuple(tokens[i : i + 16]) for i in range(len(tokens) - 16))
    assert sum(count - 1 for count in windows.values()) / len(windows) < 0.001
    assert text.count(document.expect_text) == 1


def test_a_document_is_the_same_for_ever_and_no_two_are_alike():
    assert long_document(0, 50) == long_document(0, 50)
    assert long_document(0, 50).sha256 == "PIN" or len(long_document(0, 50).sha256) == 64
    first, second = (set(long_document(i, 50).messages[0]["content"].split("\n\n")[1:-1]) for i in (0, 1))
    assert not first & second


@pytest.mark.parametrize("tokens", [600, 5000, 20_000])
def test_a_document_fills_its_size(tokens: int):
    document = sized_document(0, tokens, words, None)
    assert tokens - 40 < words(document) <= tokens


def test_a_document_that_cannot_hold_anything_is_refused():
    with pytest.raises(ShapeError, match="300 tokens hold only"):
        sized_document(0, 300, words, None)


def test_shapes_of_a_campaign():
    uses = [ShapeUse("count", max_tokens=16), ShapeUse("longctx", tokens=700)]
    shapes = make_shapes(uses, lambda name: 4, words)
    assert list(shapes) == ["count", "longctx"] and len(shapes["longctx"].prompts) == 4
    assert shapes["count"].prompts[0].max_tokens == 16 and shapes["longctx"].prompts[0].max_tokens == 300
