# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.report import drift


def drift_rows(
    results: Mapping[str, Mapping[str, Any]], host: str, tasks: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return what differs on a host, from the results of its roles in check mode."""
    return [row.as_dict() for row in drift.rows(host, results, tasks)]


def drift_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return such rows as one table."""
    return drift.table(rows)


class FilterModule:
    """Filters about drift."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"drift_rows": drift_rows, "drift_table": drift_table}
