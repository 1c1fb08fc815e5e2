# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host import journal_bound as bound
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError


def journal_bound(max_use: object, keep_free: object = "", max_retention: object = "") -> str:
    """Return the text of journald's configuration; YAML may have read a number or nothing."""
    try:
        return bound.journal_bound(*("" if one is None else str(one) for one in (max_use, keep_free, max_retention)))
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters about the journal."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"journal_bound": journal_bound}
