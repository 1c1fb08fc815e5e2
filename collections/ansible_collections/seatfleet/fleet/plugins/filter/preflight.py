# Copyright: seatfleet developers
# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.host import preflight, wishes
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.schema import Presets
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError


def preflight_wishes(
    seats: Mapping[str, Any],
    host: str,
    project_dir: str,
    presets: Mapping[str, Any] | None = None,
    release_root: str = "/opt/vllm/releases",
    model_root: str = "/srv/models",
    mirror_dir: str | None = None,
    **given: Any,  # noqa: ANN401 - passed on by name
) -> dict[str, Any]:
    """Return what a host is declared to carry."""
    try:
        found = wishes.gather(
            seats,
            host,
            presets=Presets(**(presets or {})),
            project=Path(project_dir),
            release_root=release_root,
            model_root=model_root,
            mirror=mirror_dir,
            **given,
        )
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error
    return dataclasses.asdict(found)


def preflight_table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the reports of host_preflight as one table, and after it one sentence per fault."""
    if isinstance(reports, str | Mapping) or not all(isinstance(one, Mapping) for one in reports):
        raise AnsibleFilterError(f"preflight_table needs a list of reports, got {type(reports).__name__}")
    return preflight.table(reports)


class FilterModule:
    """Filters of the preflight."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"preflight_wishes": preflight_wishes, "preflight_table": preflight_table}
