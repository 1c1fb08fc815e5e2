"""Text that no healthy model writes: what NaN, permuted vocabularies and corrupted caches look like from outside.

Every rule is from a published report: ``!!!!`` for NaN logits (vllm #14126, #22881), one token for ever, replacement
characters, text that is pure repetition or pure noise.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence

_RUN = 20  # one character
_SHARE = 0.6  # one token
_GRAM, _GRAM_REPEATS = 8, 6
_REPLACEMENT_SHARE = 0.01
_ZLIB_LEAST, _ZLIB_MOST = 0.15, 0.95
_MEAN_LOGPROB = -4.0
#: Shares of a short text mean nothing.
_LEAST_TOKENS = 32
_LEAST_CHARACTERS = 200


def garbage(text: str, tokens: Sequence[int], logprobs: Sequence[float] = (), *, repeats: bool = False) -> list[str]:
    """Return what is wrong with a generated text, empty when nothing is.

    ``repeats`` allows repetition, for answers that must repeat (counting).
    """
    found = []
    if not text.strip():
        found.append("empty text")
    run = _longest_run(text)
    if run >= _RUN:
        found.append(f"one character {run} times in a row")
    if tokens and len(tokens) >= _LEAST_TOKENS:
        most = Counter(tokens).most_common(1)[0][1]
        if most > _SHARE * len(tokens):
            found.append(f"one token is {most} of {len(tokens)}")
        grams = Counter(tuple(tokens[index : index + _GRAM]) for index in range(len(tokens) - _GRAM + 1))
        repeated = grams.most_common(1)[0][1]
        if repeated > _GRAM_REPEATS and not repeats:
            found.append(f"the same {_GRAM} tokens {repeated} times")
    replaced = text.count("\N{REPLACEMENT CHARACTER}")
    if replaced > _REPLACEMENT_SHARE * max(1, len(text)):
        found.append(f"{replaced} replacement characters in {len(text)}")
    if len(text) >= _LEAST_CHARACTERS:
        data = text.encode()
        ratio = len(zlib.compress(data, 9)) / len(data)
        if ratio > _ZLIB_MOST or (ratio < _ZLIB_LEAST and not repeats):
            found.append(f"compresses to {ratio:.0%}")
    if any(math.isnan(value) for value in logprobs):
        found.append("a log probability is NaN")
    elif logprobs and sum(logprobs) / len(logprobs) < _MEAN_LOGPROB:
        found.append(f"mean log probability {sum(logprobs) / len(logprobs):.1f}")
    return found


def _longest_run(text: str) -> int:
    longest = run = 0
    last = ""
    for character in text:
        run = run + 1 if character == last and not character.isspace() else 1
        last = character
        longest = max(longest, run)
    return longest if text else 0
