"""Sizes as operators write them: an integer and ``MiB`` or ``GiB``, nothing else."""

from __future__ import annotations

import re

MIB = 1 << 20
GIB = 1 << 30
SIZE_FORM = "an integer followed by MiB or GiB, for example 14GiB"
_SIZE = re.compile(r"([1-9][0-9]*)(MiB|GiB)")


def parse_size(text: object) -> int:
    """Return the bytes of ``14GiB`` or ``512MiB``.

    vLLM's own units are a trap (``14G`` is 1024-based, ``14g`` 1000-based, ``14GiB`` refused), so every other
    spelling is refused here.

    Raises:
        ValueError: the text is not of that form.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected {SIZE_FORM}, seen {text!r}")
    return int(match[1]) * (MIB if match[2] == "MiB" else GIB)


def parse_positive(text: str) -> int:
    """Return an integer above zero, for options of the command line.

    Raises:
        ValueError: the text is none.
    """
    number = int(text)
    if number < 1:
        raise ValueError(f"expected an integer above zero, seen {text!r}")
    return number


def format_gib(size: int) -> str:
    """Return bytes as GiB with two decimals, for messages: ``14.00 GiB``."""
    return f"{size / GIB:.2f} GiB"


def format_size(size: int) -> str:
    """Return bytes as an operator writes them, ``14GiB`` or ``512MiB``, rounded down to whole MiB."""
    return f"{size // GIB}GiB" if size % GIB == 0 else f"{size // MIB}MiB"
