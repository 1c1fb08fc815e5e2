"""Bad input, reported all at once: each problem names file, seat, field, what was expected and what was seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong with the input.

    ``where`` is ``file`` or ``file:line`` relative to the project; ``subject`` names the seat, alias, release or host
    (``"seat flash-next on fv-ml1"``); ``field`` is a dotted path inside it; ``seen`` is the offending value as text.
    """

    where: str
    subject: str
    field: str
    expected: str
    seen: str

    def __str__(self) -> str:
        """One line, in the order an operator reads it."""
        place = ": ".join(part for part in (self.where, self.subject, self.field) if part)
        return f"{place}: expected {self.expected}, seen {self.seen}"


def _reading_order(problem: Problem) -> tuple[str, int, Problem]:
    """Sort by file, then by line as a number: line 7 before line 10."""
    file, _, line = problem.where.rpartition(":")
    return (file, int(line), problem) if line.isdigit() else (problem.where, 0, problem)


class ProblemsError(ValueError):
    """Raised once, with every problem found; ``str()`` is the complete report."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=_reading_order)
        count = len(self.problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''}, nothing was changed:\n{lines}")
