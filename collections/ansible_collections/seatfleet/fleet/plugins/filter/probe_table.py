# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.health import probe_report


def probe_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return probe reports as one table."""
    if isinstance(results, str | Mapping) or not all(isinstance(result, Mapping) for result in results):
        raise AnsibleFilterError(f"probe_table needs a list of probe reports, got {type(results).__name__}")
    return probe_report.table(results)


class FilterModule:
    """Filters about probe reports."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"probe_table": probe_table}
