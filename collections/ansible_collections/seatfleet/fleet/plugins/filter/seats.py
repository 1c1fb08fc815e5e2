"""Filters that turn the seats of a host into what its roles and modules take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.schema import Presets
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.inventory.seat import Seat
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.problems import ProblemsError
from ansible_collections.seatfleet.fleet.plugins.module_utils.seatfleet.core.seat import render_host

Mapping = dict[str, Any]
Load = Callable[[Mapping, str, Presets], list[Seat]]


def generations(*args: Any, **kwargs: Any) -> list[Mapping]:  # noqa: ANN401
    given = host_input(*args, **kwargs)
    try:
        return [generation.as_dict() for generation in render_host.render_host(given)]
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error


def followers(*args: Any, **kwargs: Any) -> dict[str, list[Mapping]]:  # noqa: ANN401
    given, found = host_input(*args, **kwargs), {}
    try:
        parts = render_host.render_followers(given)
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error
    for part in parts:
        found.setdefault(str(part.manifest["host"]), []).append(part.as_dict())
    return found


def host_input(
    seats: Mapping,
    host: str,
    releases: list[Mapping],
    models: list[Mapping],
    catalogue: Mapping,
    hardware: Mapping,
    presets: Mapping | None = None,
    release_root: str = "/opt/vllm/releases",
    model_root: str = "/srv/models",
    **host_class: object,
) -> render_host.HostInput:
    try:
        return render_host.HostInput(
            host=host,
            seats=seats,
            releases=render_host.release_refs(releases, release_root),
            models=render_host.model_refs(models, model_root, catalogue),
            hardware=hardware,
            presets=Presets(**(presets or {})),
            **host_class,
        )
    except ProblemsError as error:
        raise AnsibleFilterError(str(error)) from error


def followed(hosts: list[Mapping], host: str) -> dict[str, Any]:
    others = {str(one["inventory_hostname"]): one.get("seats") or {} for one in hosts}
    return render_host.followed_seats(others, host)


def heads(hosts: list[Mapping]) -> list[str]:
    return [
        str(one["inventory_hostname"])
        for one in hosts
        if any(render_host.follower_hosts(written) for written in (one.get("seats") or {}).values())
    ]


def used(what: Callable[[list[Seat]], list[Any]], load: Load = render_host.load_seats) -> Callable[..., list[Any]]:
    def of_seats(seats: Mapping, host: str, presets: Mapping | None = None) -> list[Any]:
        try:
            return what(load(seats, host, Presets(**(presets or {}))))
        except ProblemsError as error:
            raise AnsibleFilterError(str(error)) from error

    return of_seats


class FilterModule:
    """What Ansible asks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        written = render_host.load_written_seats
        return {
            "seat_generations": generations,
            "seat_followers": followers,
            "seat_heads": heads,
            "seats_followed": followed,
            "seat_links": used(render_host.links),
            "seat_follower_hosts": used(render_host.all_follower_hosts),
            "seat_api_keys": render_host.seat_api_keys,
            "seat_releases": used(render_host.used_releases),
            "seat_models": used(render_host.used_models),
            # What protects a seat, or others from it, holds until it is really gone.
            "seat_guards": used(lambda seats: [{"name": seat.name, "port": seat.port} for seat in seats], written),
            "seat_ports": used(lambda seats: sorted({seat.port for seat in seats}), written),
        }
