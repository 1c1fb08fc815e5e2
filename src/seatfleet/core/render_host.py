"""All seats of one host, from the variables as Ansible has them to rendered generations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .problems import Problem, ProblemsError
from .render import Generation, HostClass, ModelRef, ReleaseRef, render, seat_api_key
from .schema import Presets, load_seat
from .seat import Seat
from .units import parse_size


@dataclass(frozen=True)
class HostInput:
    """The variables of one host that its seats are rendered from.

    ``releases`` and ``models`` map catalogue names to what :class:`ReleaseRef` and :class:`ModelRef` hold beside the
    name; ``hardware`` is the host's ``fleet_hardware``; ``gpu_uuids`` are its cards in PCI order, if they are known.
    """

    host: str
    seats: Mapping[str, Mapping[str, Any]]
    releases: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    hardware: Mapping[str, Any]
    presets: Presets = field(default_factory=Presets)
    gpu_uuids: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = HostClass.devices
    capabilities: Sequence[str] = ()


def render_host(given: HostInput) -> list[Generation]:
    """Render the seats of a host that should be present, in the order they are written.

    Raises:
        ProblemsError: with the problems of all seats: wrong fields, unknown release or model.
    """
    rendered: list[Generation] = []
    problems: list[Problem] = []
    host = _host_class(given)
    for name, written in given.seats.items():
        try:
            seat = load_seat(name, given.host, written, given.presets)
            if seat.state == "present":
                rendered.append(_render(seat, given, host))
        except ProblemsError as error:
            problems += error.problems
    if problems:
        raise ProblemsError(problems)
    return rendered


def seat_api_keys(seats: Iterable[str], host: str, secret: str) -> dict[str, str]:
    """Return the API key of every seat of a host."""
    return {seat: seat_api_key(secret, host, seat) for seat in seats}


def _host_class(given: HostInput) -> HostClass:
    memory = given.hardware.get("gpu_memory")
    return HostClass(
        accelerator="cuda" if given.hardware.get("gpus") else "cpu",
        device_memory=None if memory is None else parse_size(memory),
        gpu_uuids=tuple(given.gpu_uuids),
        environment=given.environment,
        devices=tuple(given.devices),
        capabilities=tuple(given.capabilities),
    )


def _render(seat: Seat, given: HostInput, host: HostClass) -> Generation:
    release = _entry(seat, "release", seat.release, given.releases)
    model = _model(seat, "model", seat.model, given.models)
    drafter_name = seat.speculative.model if seat.speculative else None
    drafter = None if drafter_name is None else _model(seat, "speculative.model", drafter_name, given.models)
    return render(seat, ReleaseRef(seat.release, **release), model, host, drafter)


def _model(seat: Seat, field_name: str, name: str, models: Mapping[str, Mapping[str, Any]]) -> ModelRef:
    return ModelRef(name, **_entry(seat, field_name, name, models))


def _entry(seat: Seat, field_name: str, name: str, catalogue: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if name not in catalogue:
        known = ", ".join(sorted(catalogue)) or "none"
        raise ProblemsError([Problem("", f"seat {seat.name} on {seat.host}", field_name, f"one of {known}", name)])
    return catalogue[name]
