"""Prompts of exact length that repeat nothing and hold needles: natural text, sized by the seat's own tokenizer.

Random each time (an n-gram table and routed experts see text, a prefix cache sees nothing it knows), numbered so that
no two sentences are alike, with three facts to be found again: a long context that fails silently has not passed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: A prompt is as long as wanted, less at most this many tokens.
TOLERANCE = 8
_NEEDLE_DEPTHS = (0.1, 0.5, 0.9)
_PLACES = ("the upper lock", "the customs shed", "the old quay", "the signal mast", "the rope walk", "the ferry stairs")
_PEOPLE = ("the harbour master", "a young pilot", "the night clerk", "two divers", "the ice patrol", "a retired cook")
_VERBS = ("found", "listed", "mended", "borrowed", "weighed", "returned", "sketched", "counted")
_THINGS = ("brass valves", "coils of wire", "empty barrels", "tide tables", "spare lenses", "sealed letters")
_REASONS = ("before the fog came in", "after the second bell", "because the crane stood still", "while it rained")
_QUESTION = "\n\nThe text names three code words. Repeat the three code words, separated by commas, and nothing else."
#: Words that lengthen a prompt by about a token each.
_FILLER = (" and", " so", " on", " it", " was", " in", " the", " log")

Messages = tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Sized:
    """A chat of one message, its tokens as the seat counts them, and the code words an answer should hold."""

    messages: Messages
    tokens: int
    needles: tuple[str, ...]

    def recalled(self, answer: str) -> int:
        """Return how many code words an answer has."""
        return sum(needle in answer for needle in self.needles)


def _sentence(rng: random.Random, number: int) -> str:
    return (
        f"Note {number}: {rng.choice(_PEOPLE)} {rng.choice(_VERBS)} {rng.randint(2, 999)} {rng.choice(_THINGS)} at "
        f"{rng.choice(_PLACES)} {rng.choice(_REASONS)}."
    )


def text_of(rng: random.Random, sentences: int, needles: Sequence[str], filler: int = 0) -> str:
    """Return a text with that many sentences, the needles at a tenth, the middle and nine tenths of it."""
    numbers = rng.sample(range(10_000, 1_000_000), sentences)
    lines = [_sentence(rng, number) for number in numbers]
    for place, needle in reversed(list(zip(_NEEDLE_DEPTHS, needles, strict=True))):
        lines.insert(int(place * len(lines)), f"A code word is {needle}.")
    words = "".join(_FILLER[index % len(_FILLER)] for index in range(filler))
    return " ".join(lines) + words + _QUESTION


def sized(wanted: int, count_tokens: Callable[[Messages], int], rng: random.Random | None = None) -> Sized:
    """Return a prompt of ``wanted`` tokens, or a few less.

    Raises:
        ValueError: not even a prompt without sentences fits.
    """
    rng = rng or random.Random()
    needles = tuple(f"{rng.choice(('amber', 'cobalt', 'jade', 'ochre'))}{rng.randint(1000, 9999)}" for _ in range(3))
    seed = rng.random()

    def build(sentences: int, filler: int = 0) -> Messages:
        return ({"role": "user", "content": text_of(random.Random(seed), sentences, needles, filler)},)

    empty = count_tokens(build(0))
    if empty > wanted:
        raise ValueError(f"{wanted} tokens hold no prompt: the question alone has {empty}")
    sentences, tokens = _most_sentences(wanted, empty, lambda number: count_tokens(build(number)))
    filler = 0
    while wanted - tokens > TOLERANCE:
        # A word is at least a token: too many words at once are taken back below.
        filler += max(1, (wanted - tokens) // 2)
        tokens = count_tokens(build(sentences, filler))
        while tokens > wanted:
            filler -= max(1, (tokens - wanted) // 2)
            tokens = count_tokens(build(sentences, filler))
            if tokens <= wanted:
                return Sized(build(sentences, filler), tokens, needles)
    return Sized(build(sentences, filler), tokens, needles)


def _most_sentences(wanted: int, empty: int, count: Callable[[int], int]) -> tuple[int, int]:
    """Return the most sentences that fit and their tokens, in few questions: long texts are costly to tokenize."""
    low, low_tokens = 0, empty
    high: int | None = None
    guess = max(1, (wanted - empty) // 32)
    while high is None or high - low > 1:
        tokens = count(guess)
        if tokens <= wanted:
            low, low_tokens = guess, tokens
        else:
            high = guess
        each = max(1.0, (tokens - empty) / guess)
        if wanted - low_tokens < each:
            break
        aimed = int((wanted - empty) / each)
        guess = min(max(low + 1, aimed), high - 1 if high is not None else max(low + 1, aimed))
    return low, low_tokens
