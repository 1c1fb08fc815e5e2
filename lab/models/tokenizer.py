"""A byte-level BPE tokenizer of 512 entries for the tiny models, written without a tokenizer library.

A trainer's result may change with its version; this one is thirty lines of counting, the same everywhere.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

VOCAB = 512
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD, EOS = SPECIAL.index("<|endoftext|>"), SPECIAL.index("<|im_end|>")
SPACE, NEWLINE = "Ġ", "Ċ"  # how byte-level BPE writes 0x20 and 0x0A
_LINE = (
    "the quick brown fox jumps over lazy dog gpu host seat ready probe prefix cache token model draft "
    "accept reject deep prefill memory headroom vllm ansible systemd unit"
)
WORDS = tuple(_LINE.split())
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Merge = tuple[str, str]


def byte_alphabet() -> list[str]:
    """Return the 256 characters that stand for bytes: printable ones for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(len(others))]


def train(words: tuple[str, ...]) -> list[Merge]:
    """Return the merges that make one token of each word, with a leading space or without; the commonest pair first."""
    pieces = [list(prefix + word) for word in words for prefix in (SPACE, "")]
    merges: list[Merge] = []
    while pairs := Counter(pair for piece in pieces for pair in pairwise(piece)):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        pieces = [_merge(piece, best) for piece in pieces]
    return merges


def _merge(piece: list[str], pair: Merge) -> list[str]:
    merged: list[str] = []
    for symbol in piece:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def vocabulary() -> tuple[dict[str, int], list[Merge]]:
    """Return token ids and merges; pairs of hex digits fill the vocabulary: every id of the model then has a text."""
    merges = train(WORDS)
    digits = "0123456789ABCDEF"
    room = VOCAB - len(SPECIAL) - 256 - len(merges)
    merges += [(a, b) for a in digits for b in digits][:room]
    tokens = [*SPECIAL, *byte_alphabet(), *(a + b for a, b in merges)]
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != VOCAB:
        raise ValueError(f"expected {VOCAB} different tokens, seen {len(ids)}")
    return ids, merges


def tokenizer_json() -> dict[str, Any]:
    """Return the content of ``tokenizer.json``."""
    ids, merges = vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], "content": token, **flags} for token in SPECIAL],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [list(merge) for merge in merges],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[EOS],
        "pad_token": SPECIAL[PAD],
        "model_max_length": 4096,
    }
