# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core import status


def status_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of seat_status as one table."""
    if isinstance(rows, str | Mapping) or not all(isinstance(row, Mapping) for row in rows):
        raise AnsibleFilterError(f"status_table needs a list of rows of seat_status, got {type(rows).__name__}")
    return status.table(rows)


class FilterModule:
    """Filters about the state of seats."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"status_table": status_table}
