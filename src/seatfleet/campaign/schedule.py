"""The order of boots. A boot is the sampling unit: kernels are chosen per boot, repetitions inside one share that draw.

The control stands first, last and between; arm means and control mean then sit at the same mean position, so that a
linear drift over the campaign cancels exactly in every arm-minus-control difference (``palindrome``, ``confirm``).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from .definition import Definition, Mode


@dataclass(frozen=True)
class Slot:
    """One boot of the schedule: ``occurrence`` counts the boots of this arm from 1."""

    index: int
    arm: str
    occurrence: int

    @property
    def directory(self) -> str:
        """Name of the boot's directory: sorts in the order of the schedule."""
        return f"{self.index:02d}_{self.arm}_{self.occurrence}"


def boot_order(control: str, arms: Sequence[str], mode: Mode) -> tuple[str, ...]:
    """Return the arm of every boot.

    ``screen`` boots every arm once between two controls (the order of the seed: 5 boots for 3 arms, no verdict).
    ``palindrome`` mirrors that (9 boots). ``confirm`` has three arm blocks for an odd number of arms (13 boots for 3)
    and four mirrored ones for an even number, where three blocks with equal mean positions do not exist.
    """
    forward = tuple(arms)
    if mode == "screen":
        blocks = [forward]
    elif mode == "palindrome":
        blocks = [forward, forward[::-1]]
    elif len(forward) % 2:
        blocks = [forward, *_balanced_blocks(forward)]
    else:
        blocks = [forward, forward[::-1], forward, forward[::-1]]
    order = [control]
    for block in blocks:
        order += [*block, control]
    return tuple(order)


def _balanced_blocks(arms: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Two permutations such that position 1 + 2 + 3 of every arm is the same (a magic rectangle; odd counts only)."""
    count = len(arms)
    middle = (count - 1) // 2
    second = [middle - i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(count)]
    third = [3 * middle - i - position for i, position in enumerate(second)]
    blocks = []
    for positions in (second, third):
        block = [""] * count
        for arm, position in zip(arms, positions, strict=True):
            block[position] = arm
        blocks.append(tuple(block))
    return blocks


def make_schedule(definition: Definition) -> tuple[Slot, ...]:
    """Return the measured boots of a campaign in order.

    Arms that are broken on purpose boot once and last: they are recognised or not, never compared, and would take the
    others out of their balance.
    """
    broken = definition.positive_controls
    compared = [arm for arm in definition.studied_arms if arm not in broken]
    return number_slots((*boot_order(definition.control, compared, definition.mode), *broken))


def number_slots(order: Sequence[str]) -> tuple[Slot, ...]:
    """Return the boots with their index and the occurrence of their arm."""
    seen: dict[str, int] = {}
    slots = []
    for index, arm in enumerate(order):
        seen[arm] = seen.get(arm, 0) + 1
        slots.append(Slot(index, arm, seen[arm]))
    return tuple(slots)


def rep_order(campaign_id: str, slot: int, rep: int, cells: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the cells of one repetition in an order drawn from (campaign, boot, repetition).

    Every repetition visits all cells, so that warming inside a boot is spread over the cells instead of ranking them.
    """
    seed = hashlib.sha256(f"{campaign_id}/{slot}/{rep}".encode()).digest()
    shuffled = list(cells)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled)
