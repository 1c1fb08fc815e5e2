"""What a host is declared to carry, for the preflight: from variables and catalogues, before anything is rendered.

Lenient where a deploy is strict: a model whose files nobody has listed yet takes no room here, so that a host can be
looked at before its weights are chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..inventory.schema import Presets
from ..inventory.seat import Seat
from ..model.models import Manifest, load_manifest
from ..release.locks import parse_lock
from ..seat.render import HostClass, matching_utilization
from ..seat.render_host import load_seats, used_models
from ..units import parse_size
from .preflight import ModelWish, ReleaseWish, SeatWish, Wishes


def gather(
    seats: Mapping[str, Mapping[str, Any]],
    host: str,
    *,
    presets: Presets,
    hardware: Mapping[str, Any],
    environment: Mapping[str, str],
    releases: Sequence[Mapping[str, Any]],
    catalogue: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Mapping[str, Any]],
    project: Path,
    release_root: str,
    model_root: str,
    mirror: str | None,
) -> Wishes:
    """Return the wishes of a host.

    ``releases`` is what the lookup ``seatfleet.fleet.release`` returns for its seats, ``catalogue`` and ``models`` are
    the catalogues of releases and of models, ``project`` is the checkout that manifests are relative to.

    Raises:
        ProblemsError: wrong fields of seats, a malformed lock or manifest.
    """
    present = load_seats(seats, host, presets)
    manifests = {name: found for name in used_models(present) if (found := _manifest(project, models.get(name)))}
    return Wishes(
        # A plain one: Ansible passes a mapping of its own that cannot be copied by type.
        hardware=dict(hardware),
        releases=tuple(_release(spec, catalogue[spec["name"]], release_root) for spec in releases),
        models=tuple(
            ModelWish(name, f"{model_root}/{manifest.directory}", manifest.size) for name, manifest in manifests.items()
        ),
        seats=tuple(_seats(present, manifests, models, hardware, environment)),
        mirror=mirror,
    )


def _manifest(project: Path, model: Mapping[str, Any] | None) -> Manifest | None:
    if model is None or not (project / model["manifest"]).is_file():
        return None
    return load_manifest(json.loads((project / model["manifest"]).read_text(encoding="utf-8")), model["manifest"])


def _release(spec: Mapping[str, Any], entry: Mapping[str, Any], root: str) -> ReleaseWish:
    lock = parse_lock(spec["lock"], spec["lock_name"])
    return ReleaseWish(
        name=spec["name"],
        path=f"{root}/{spec['id']}",
        python=lock.target.python,
        glibc=lock.target.glibc,
        wheels=lock.size,
        min_driver=entry.get("min_driver"),
        needs=tuple(entry.get("needs") or ()),
    )


def _seats(
    seats: Sequence[Seat],
    manifests: Mapping[str, Manifest],
    models: Mapping[str, Mapping[str, Any]],
    hardware: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Iterator[SeatWish]:
    memory = hardware.get("gpu_memory")
    device = HostClass("cuda" if hardware.get("gpus") else "cpu", parse_size(memory) if memory else None)
    for seat in seats:
        drafter = seat.speculative.model if seat.speculative else None
        resident = [
            max(0, manifests[name].size - (_table(models[name]) if _offloaded(seat, name) else 0))
            for name in (seat.model, drafter)
            if name is not None and name in manifests
        ]
        yield SeatWish(
            name=seat.name,
            port=None if seat.nodes and seat.nodes.rank(seat.host) else seat.port,
            release=seat.release,
            gpus=seat.gpus,
            utilization=seat.gpu_memory_utilization or matching_utilization(seat, device, [*resident]),
            pinned=seat.host_memory or 0,
            environment={**environment, **seat.env},
            link=_link(seat),
        )


def _link(seat: Seat) -> tuple[str, str] | None:
    if seat.nodes is None:
        return None
    node = seat.nodes.hosts[seat.nodes.rank(seat.host)]
    return node.interface, node.address


def _offloaded(seat: Seat, name: str) -> bool:
    return bool(seat.engram_cpu_offload) and name == seat.model


def _table(model: Mapping[str, Any]) -> int:
    table = (model.get("facts") or {}).get("engram_table")
    return parse_size(table) if table else 0
