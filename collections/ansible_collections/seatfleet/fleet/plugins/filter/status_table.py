# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.report import status, status_page


def status_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of seat_status as one table."""
    return status.table(_checked("status_table", rows))


def status_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of seat_status as one HTML page."""
    return status_page.page(_checked("status_page", rows))


def _checked(name: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(rows, str | Mapping) or not all(isinstance(row, Mapping) for row in rows):
        raise AnsibleFilterError(f"{name} needs a list of rows of seat_status, got {type(rows).__name__}")
    return rows


class FilterModule:
    """Filters about the state of seats."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"status_table": status_table, "status_page": status_html}
