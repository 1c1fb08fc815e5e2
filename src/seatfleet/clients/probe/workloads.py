"""Prompts of the acceptance check, written for this project: one that can be foreseen, two that cannot, one agent turn.

Never repeated filler: a drafter copied filler at 99 %, a prose corpus at 88 % and real code at 68 % (omlx PR 2343).
"""

from __future__ import annotations

from collections.abc import Mapping

_TEXTS: Mapping[str, str] = {
    "count": "Write the integers from {start} to {stop}, separated by commas. Write nothing else.",
    "code": (
        "Write a Python class Inventory{start} with fields name, owner, serial, room, rack, slot, vendor and price. "
        "Give it a getter and a setter for each field, each with a docstring, and a method that returns all as a dict. "
        "Only code."
    ),
    "prose": (
        "Write an essay about a journey by night train to the sea in the year {year}: who sits in the compartment, "
        "what they do not say, and what the traveller finds on arrival. Full sentences, no lists."
    ),
    "agent": (
        'You can call tools by writing one JSON object per line: {{"tool": name, "arguments": object}}. Tools: '
        "list_hosts(group), read_log(host, unit, lines), restart_unit(host, unit), open_ticket(title, body). "
        "Host h{start} answers slowly since this morning. Find the reason, restart what has to be restarted and open a "
        "ticket. Write every call of your plan, then a short summary."
    ),
}


def prompt(workload: str, variant: int) -> str:
    """Return the prompt of a workload; each variant differs early, so that no two share a long prefix."""
    start = 1 + 400 * variant
    return _TEXTS[workload].format(start=start, stop=start + 399, year=1890 + 7 * variant)
