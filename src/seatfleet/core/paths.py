"""Where things live on a host. One place, so that the unit, the modules and the command line agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UNIT_PREFIX = "vllm-seat-"
CAMPAIGN_PREFIX = "vllm-campaign-"
STUB_PREFIX = "seatfleet-stub@"
LINK_PREFIX = "seatfleet-link@"
WATCH_PREFIX = "seatfleet-watch-"
FIREWALL_UNIT = "seatfleet-firewall.service"
SERVICE_USER = "vllm"
API_KEY_FILE = "api-key.env"
SEATS = "/etc/vllm/seats"
CACHE = "/var/cache/vllm"
TOOLBOX = "/opt/vllm/toolbox"
EVIDENCE = "/var/lib/seatfleet/evidence"
GUARDED = "/var/lib/seatfleet/guarded"


def unit_name(seat: str) -> str:
    """Return the systemd unit of a seat, for example ``vllm-seat-flash-next.service``."""
    return f"{UNIT_PREFIX}{seat}.service"


def campaign_unit(seat: str) -> str:
    """Return the transient unit that campaigns and headroom probes boot a seat's variants in."""
    return f"{CAMPAIGN_PREFIX}{seat}.service"


def measuring_units(seat: str) -> tuple[str, ...]:
    """Return the units that stop a seat, measure it and start it again: roles campaign and headroom."""
    return f"{CAMPAIGN_PREFIX}run-{seat}.service", f"vllm-headroom-run-{seat}.service"


def stub_unit(port: int) -> str:
    """Return the systemd unit that answers 503 on a port, for example ``seatfleet-stub@8022.service``."""
    return f"{STUB_PREFIX}{port}.service"


def link_unit(seat: str) -> str:
    """Return the systemd unit that keeps the two halves of a seat over two hosts together."""
    return f"{LINK_PREFIX}{seat}.service"


@dataclass(frozen=True)
class SeatPaths:
    """The files of one seat; ``root`` is ``/`` except in tests."""

    seat: str
    root: Path = Path("/")

    @property
    def home(self) -> Path:
        """The seat's own directory: generations, ``current``, ``previous`` and the API key."""
        return self.root / SEATS.lstrip("/") / self.seat

    @property
    def generations(self) -> Path:
        """The directory that holds one directory per generation."""
        return self.home / "generations"

    def generation(self, name: str) -> Path:
        """Return the directory of one generation (12 hex digits)."""
        return self.generations / name

    @property
    def current(self) -> Path:
        """Link to the generation that the unit starts."""
        return self.home / "current"

    @property
    def previous(self) -> Path:
        """Link to the last good generation before the current one."""
        return self.home / "previous"

    @property
    def api_key(self) -> Path:
        """The environment file with ``VLLM_API_KEY``, mode 0600."""
        return self.home / API_KEY_FILE

    @property
    def link(self) -> Path:
        """What the link of a seat over two hosts is told: ``nodes`` of its manifests."""
        return self.home / "link.json"

    @property
    def linked(self) -> Path:
        """What the link knows of the other host at the moment; gone with a boot."""
        return self.root / "run/seatfleet-link" / f"{self.seat}.json"

    @property
    def unit(self) -> Path:
        """The installed unit, a copy of the current generation's."""
        return self.root / "etc/systemd/system" / unit_name(self.seat)
