"""All seats of one host, from the variables as Ansible has them to rendered generations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..inventory.schema import Presets, load_seat
from ..inventory.seat import Seat
from ..model.models import load_manifest
from ..problems import Problem, ProblemsError
from ..units import parse_size
from .render import Generation, HostClass, ModelRef, ReleaseRef, render_parts, seat_api_key


@dataclass(frozen=True)
class Model:
    """A model of the catalogue on the hosts: where it is, the bytes of its files, and those of its n-gram table."""

    name: str
    revision: str
    path: str
    size: int
    engram_table: int = 0
    quantization: str | None = None


@dataclass(frozen=True)
class HostInput:
    """The variables of one host that its seats are rendered from.

    ``hardware`` is the host's ``fleet_hardware``; ``gpu_uuids`` are its cards in PCI order, if they are known.
    """

    host: str
    seats: Mapping[str, Mapping[str, Any]]
    releases: Mapping[str, ReleaseRef]
    models: Mapping[str, Model]
    hardware: Mapping[str, Any]
    presets: Presets = field(default_factory=Presets)
    gpu_uuids: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = HostClass.devices
    capabilities: Sequence[str] = ()


def release_refs(specs: Iterable[Mapping[str, Any]], root: str) -> dict[str, ReleaseRef]:
    """Return releases by name, from what the lookup ``seatfleet.fleet.release`` returns."""
    return {spec["name"]: ReleaseRef(spec["name"], spec["id"], f"{root}/{spec['id']}") for spec in specs}


def model_refs(
    specs: Iterable[Mapping[str, Any]], root: str, catalogue: Mapping[str, Mapping[str, Any]]
) -> dict[str, Model]:
    """Return models by name, from what the lookup ``seatfleet.fleet.model`` returns and the model catalogue."""
    manifests = [load_manifest(spec["manifest"], "model manifest") for spec in specs]
    return {
        manifest.name: Model(
            name=manifest.name,
            revision=manifest.revision,
            path=f"{root}/{manifest.directory}",
            size=manifest.size,
            engram_table=_bytes(catalogue[manifest.name].get("facts", {}).get("engram_table")),
            quantization=catalogue[manifest.name].get("quantization"),
        )
        for manifest in manifests
    }


def load_seats(seats: Mapping[str, Mapping[str, Any]], host: str, presets: Presets) -> list[Seat]:
    """Return the seats of a host that should be present, in the order they are written.

    Raises:
        ProblemsError: with the problems of all seats.
    """
    return [seat for seat in load_written_seats(seats, host, presets) if seat.state == "present"]


def load_written_seats(seats: Mapping[str, Mapping[str, Any]], host: str, presets: Presets) -> list[Seat]:
    """Return all seats of a host as written. One that should be absent may run until it is removed.

    Raises:
        ProblemsError: with the problems of all seats.
    """
    loaded: list[Seat] = []
    problems: list[Problem] = []
    for name, written in seats.items():
        try:
            loaded.append(load_seat(name, host, written, presets))
        except ProblemsError as error:
            problems += error.problems
    if problems:
        raise ProblemsError(problems)
    return loaded


def used_releases(seats: Iterable[Seat]) -> list[str]:
    """Return the names of the releases that seats run from, sorted."""
    return sorted({seat.release for seat in seats})


def used_models(seats: Iterable[Seat]) -> list[str]:
    """Return the names of the models that seats load, drafters included, sorted."""
    return sorted({name for seat in seats for name in (seat.model, _drafter(seat)) if name})


def render_host(given: HostInput) -> list[Generation]:
    """Render the seats of a host that should be present, of those over two hosts what runs on this one, their head.

    Raises:
        ProblemsError: wrong fields of all seats; or a release, a model or a GPU that is not there.
    """
    return [parts[0] for parts in _render_all(given)]


def render_followers(given: HostInput) -> list[Generation]:
    """Render what runs on other hosts of this host's seats; ``host`` of each manifest says where.

    Raises:
        ProblemsError: as :func:`render_host`.
    """
    return [part for parts in _render_all(given) for part in parts[1:]]


def _render_all(given: HostInput) -> list[tuple[Generation, ...]]:
    seats = load_seats(given.seats, given.host, given.presets)
    problems = [problem for seat in seats for problem in _dangling(seat, given)]
    if problems:
        raise ProblemsError(problems)
    host = _host_class(given)
    return [_render(seat, given, host) for seat in seats]


def links(seats: Iterable[Seat]) -> list[dict[str, Any]]:
    """Return, for each seat over two hosts, the ports and addresses that only its other hosts may reach on this one."""
    return [
        {
            "seat": seat.name,
            "ports": [seat.nodes.port, seat.nodes.rendezvous_port],
            "address": seat.nodes.hosts[seat.nodes.rank(seat.host)].address,
            "peers": [node.address for node in seat.nodes.hosts if node.host != seat.host],
        }
        for seat in seats
        if seat.nodes is not None
    ]


def all_follower_hosts(seats: Iterable[Seat]) -> list[str]:
    """Return the hosts that follow one of the seats, sorted."""
    return sorted({node.host for seat in seats if seat.nodes for node in seat.nodes.hosts[1:]})


def followed_seats(others: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, dict[str, Any]]:
    """Return the seats of other hosts that a host follows, as they are written; ``others`` are all hosts' ``seats``."""
    return {
        str(name): dict(written)
        for other, seats in sorted(others.items())
        if other != host
        for name, written in seats.items()
        if host in follower_hosts(written)
    }


def follower_hosts(written: object) -> list[str]:
    """Return the hosts beside the head of a seat as it is written, without complaint about what is wrong in it."""
    nodes = written.get("nodes") if isinstance(written, Mapping) else None
    hosts = nodes.get("hosts") if isinstance(nodes, Mapping) else None
    nodes_after_the_head = hosts[1:] if isinstance(hosts, list) else ()
    return [str(node.get("host")) for node in nodes_after_the_head if isinstance(node, Mapping)]


def seat_api_keys(seats: Iterable[str], host: str, secret: str) -> dict[str, str]:
    """Return the API key of every seat of a host."""
    return {seat: seat_api_key(secret, host, seat) for seat in seats}


def _host_class(given: HostInput) -> HostClass:
    return HostClass(
        accelerator="cuda" if given.hardware.get("gpus") else "cpu",
        device_memory=_bytes(given.hardware.get("gpu_memory")) or None,
        gpu_uuids=tuple(given.gpu_uuids),
        environment=given.environment,
        devices=tuple(given.devices),
        capabilities=tuple(given.capabilities),
    )


def _render(seat: Seat, given: HostInput, host: HostClass) -> tuple[Generation, ...]:
    if seat.nodes is not None:
        # An index means a card on each of the hosts; only this one's UUIDs are known.
        host = replace(host, gpu_uuids=())
    drafter = _drafter(seat)
    parts = [_model(seat, given.models[name], given.hardware) for name in (seat.model, drafter) if name]
    return render_parts(seat, given.releases[seat.release], parts[0], host, parts[1] if drafter else None)


def _model(seat: Seat, model: Model, hardware: Mapping[str, Any]) -> ModelRef:
    # A table in host RAM takes nothing of a card; on unified memory it is the same memory.
    offloaded = seat.engram_cpu_offload and not hardware.get("unified_memory")
    resident = model.size - (model.engram_table if offloaded else 0)
    return ModelRef(model.name, model.revision, model.path, max(0, resident), model.quantization)


def _drafter(seat: Seat) -> str | None:
    return seat.speculative.model if seat.speculative else None


def _dangling(seat: Seat, given: HostInput) -> Iterator[Problem]:
    subject = f"seat {seat.name} on {seat.host}"
    wanted = [("release", seat.release, given.releases), ("model", seat.model, given.models)]
    if drafter := _drafter(seat):
        wanted.append(("speculative.model", drafter, given.models))
    for field_name, name, catalogue in wanted:
        if name not in catalogue:
            yield Problem("", subject, field_name, f"one of {', '.join(sorted(catalogue)) or 'none'}", name)
    for gpu in seat.gpus if given.gpu_uuids else ():
        if gpu not in given.gpu_uuids and gpu not in range(len(given.gpu_uuids)):
            yield Problem("", subject, "gpus", f"0 to {len(given.gpu_uuids) - 1} or a UUID of this host", str(gpu))


def _bytes(size: str | None) -> int:
    return 0 if size is None else parse_size(size)
