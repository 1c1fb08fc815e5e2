"""Prompts of a campaign: own texts, frozen in ``shapes/*.jsonl`` with their sha256, and generated long documents.

The same prompts go to every arm and repetition (paired); isolation from the prefix cache comes from ``cache_salt``,
which changes no token. Random token ids are not offered: they depress draft acceptance (vllm #52536) and say nothing
about text.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .definition import ShapeUse
from .parity import digest

LONGCTX_TOKENS = 32_000
LONGCTX_MAX_TOKENS = 300


class ShapeError(ValueError):
    """A frozen shape file is not the one its hash says, or a prompt cannot be made."""


@dataclass(frozen=True)
class Prompt:
    """One request's content. ``expect_text`` is a fact the answer should contain, ``expect_tool`` the tool to call."""

    id: str
    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | None = None
    expect_tool: str | None = None
    expect_text: str | None = None

    @property
    def sha256(self) -> str:
        """Hash of what the model reads."""
        return digest({"messages": list(self.messages), "tools": list(self.tools)})


@dataclass(frozen=True)
class Shape:
    """All prompts of one shape. ``sha256`` covers every prompt and its token limit."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def sha256(self) -> str:
        """Hash that must be equal in every boot."""
        return digest([[prompt.id, prompt.sha256, prompt.max_tokens] for prompt in self.prompts])

    def take(self, count: int) -> tuple[Prompt, ...]:
        """Return the first ``count`` prompts, starting again at the first when there are fewer."""
        return tuple(self.prompts[index % len(self.prompts)] for index in range(count))


def frozen_index() -> dict[str, dict[str, Any]]:
    """Return name -> ``{sha256, prompts}`` of the frozen files."""
    text = (resources.files(__package__) / "shapes" / "index.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def load_frozen(name: str, max_tokens: int | None = None) -> Shape:
    """Return a frozen shape, its file checked against ``index.json``.

    Raises:
        ShapeError: the file was changed; a campaign with other texts is another campaign.
    """
    content = (resources.files(__package__) / "shapes" / f"{name}.jsonl").read_bytes()
    expected, seen = frozen_index()[name]["sha256"], hashlib.sha256(content).hexdigest()
    if seen != expected:
        raise ShapeError(
            f"shapes/{name}.jsonl: expected sha256 {expected}, seen {seen}; frozen texts must not be edited"
        )
    header, *rows = (json.loads(line) for line in content.decode().splitlines())
    system = [{"role": "system", "content": header["system"]}] if "system" in header else []
    return Shape(
        name,
        tuple(
            Prompt(
                id=row["id"],
                messages=(*system, *row["messages"]),
                max_tokens=max_tokens or header["max_tokens"],
                tools=tuple(header.get("tools", ())),
                tool_choice=header.get("tool_choice"),
                expect_tool=row.get("expect_tool"),
            )
            for row in rows
        ),
    )


# --- long documents ---------------------------------------------------------------------------------------------------

_PLACES = (
    *("Oststad", "Karsund", "Vessel-Point", "Ostre", "Halden", "Lindby", "Torvik"),
    *("Marnes", "Selje", "Brekke", "Alvdal", "Rindal", "Nesna", "Hovden"),
)
_NAMES = (
    *("Ida", "Marek", "Sunniva", "Tobias", "Ragna", "Elias", "Ylva", "Anselm"),
    *("Petra", "Jonas", "Solveig", "Casimir", "Agnes", "Leif", "Judit", "Bertil"),
)
_GOODS = (
    *("copper wire", "roof slates", "dried peas", "lamp oil", "printing paper"),
    *("seed potatoes", "wool", "window glass", "salt", "hinges"),
)
_VESSELS = (
    *("Heron", "Petrel", "Northern-Light", "Two-Sisters", "Patience"),
    *("Grey-Goose", "Constance", "Morning", "Fulmar", "Sextant"),
)
_CAUSES = (
    *("fog", "a torn sail", "ice at the pier", "a missing seal on the papers"),
    *("a late train", "low water", "a broken crane"),
)
_SENTENCES = (
    "On day {n} the {vessel} carried {a} crates of {goods} from {place} to {other}, and the clerk {name} noted a delay "
    "of {b} minutes because of {cause}.",
    "Entry {n}: {name} of {place} paid {a} crowns and {b} pence for {goods} that had come with the {vessel}.",
    "The harbour book of {place} says under number {n} that {name} weighed {a} sacks, found {b} of them damp and sent "
    "the rest on to {other}.",
    "In week {n} the pilot {name} brought the {vessel} past {place} in {a} minutes, {b} more than the week before.",
    "Number {n} is a letter from {name} in {other}, asking why {a} bales of {goods} had stood at {place} for {b} days.",
    "For {a} crowns the {vessel} was fitted with {b} new lamps at {place}; {name} signed the bill, number {n}.",
    "{name} counted {a} gulls and {b} seals from the tower of {place} on the day of entry {n}, when nothing arrived "
    "but {goods}.",
    "Because of {cause} the {vessel} lay at {other} until hour {b}, writes {name}, and entry {n} was made {a} days "
    "late.",
)
_QUESTION = (
    "\n\nThat was the register. Answer from it: which clerk keeps the key to the archive room of {place}, and what is "
    "the number stamped on it? Say so in one sentence. Then write about two hundred words on how the trade of {place} "
    "changed over the pages that you read, naming entries by their numbers."
)
_NEEDLE = "The key to the archive room of {place} bears the number {number} and is kept by {name} alone."


def _sentence(rng: random.Random, number: int) -> str:
    place, other = rng.sample(_PLACES, 2)
    return rng.choice(_SENTENCES).format(
        n=number,
        a=rng.randint(2, 9999),
        b=rng.randint(2, 999),
        place=place,
        other=other,
        name=rng.choice(_NAMES),
        goods=rng.choice(_GOODS),
        vessel=rng.choice(_VESSELS),
        cause=rng.choice(_CAUSES),
    )


def long_document(index: int, sentences: int) -> Prompt:
    """Return document ``index`` with that many numbered sentences, no two alike, one of them asked for at the end.

    The same index gives the same sentences for ever (a longer document continues a shorter one, apart from the place of
    the sentence that is asked for), so that every arm reads the same text.
    """
    rng = random.Random(f"seatfleet longctx {index}")
    place, name, number = rng.choice(_PLACES), rng.choice(_NAMES), str(rng.randint(10_000, 99_999))
    depth = 0.2 + 0.6 * rng.random()
    lines = [_sentence(rng, 1000 * (index + 1) + i) for i in range(sentences)]
    lines.insert(int(depth * sentences), _NEEDLE.format(place=place, name=name, number=number))
    paragraphs = "\n\n".join(" ".join(lines[start : start + 12]) for start in range(0, len(lines), 12))
    text = f"Register {index + 1} of the coastal trade.\n\n{paragraphs}{_QUESTION.format(place=place)}"
    return Prompt(
        id=f"longctx-{index + 1:02d}",
        messages=({"role": "user", "content": text},),
        max_tokens=LONGCTX_MAX_TOKENS,
        expect_text=number,
    )


def sized_document(index: int, tokens: int, count_tokens: Callable[[Prompt], int], max_tokens: int | None) -> Prompt:
    """Return document ``index`` as long as fits into ``tokens`` prompt tokens, counted by the seat's own tokenizer.

    Raises:
        ShapeError: not even one paragraph fits.
    """
    low, high = 0, max(16, tokens // 8)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(long_document(index, middle)) <= tokens:
            low = middle
        else:
            high = middle - 1
    if low < 12:
        raise ShapeError(f"longctx: {tokens} tokens hold only {low} sentences; expected room for at least 12")
    document = long_document(index, low)
    return Prompt(
        id=document.id,
        messages=document.messages,
        max_tokens=max_tokens or document.max_tokens,
        expect_text=document.expect_text,
    )


def make_shapes(
    uses: Sequence[ShapeUse], most_requests: Callable[[str], int], count_tokens: Callable[[Prompt], int]
) -> dict[str, Shape]:
    """Return the shapes of a campaign by name. ``most_requests`` is the largest cell of a shape."""
    shapes: dict[str, Shape] = {}
    for use in uses:
        if use.name == "longctx":
            size = use.tokens or LONGCTX_TOKENS
            documents = [sized_document(i, size, count_tokens, use.max_tokens) for i in range(most_requests(use.name))]
            shapes[use.name] = Shape(use.name, tuple(documents))
        else:
            shapes[use.name] = load_frozen(use.name, use.max_tokens)
    return shapes
