"""The systemd unit of a seat: one template, hardened per class of host.

``ExecStart`` is the same for every generation (``current`` is a link), so that nothing an operator can write ends up
on a systemd line: systemd drops the quotes of JSON there and expands ``%`` and ``$``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..paths import API_KEY_FILE, CACHE, FIREWALL_UNIT, SEATS, SERVICE_USER, TOOLBOX, link_unit, stub_unit

RESTART_SEC = 10
# Messages per interval; what is above is counted by journald and left out, which multiplies the burst, the more room
# the journal has (2.5 when it is full: docs/observability.md does the sum). A start with a long traceback writes 400
# lines within seconds, a seat that serves a few per second; a loop that logs at full speed fills 4 GiB in an hour and
# pushes out what everybody else on the host wrote.
LOG_INTERVAL_S = 30
LOG_BURST = 3000
# The first start and three more within one window, then the unit stays failed: restart loops leak unified memory on
# GB10 until a power cycle (about 35 restarts), and a seat that cannot start should say so.
START_LIMIT_BURST = 4
# What SIGTERM may take on top of vLLM's own drain: with work in flight it was seen to hang until its clients left.
STOP_MARGIN_S = 30


@dataclass(frozen=True)
class UnitSpec:
    """What differs between the units of two seats. Times in seconds; ``devices`` as ``DeviceAllow=`` wants them.

    ``link`` is for a seat over two hosts, ``follows`` for the unit on the host that has no port of it.
    """

    seat: str
    description: str
    port: int
    ready_timeout_s: int
    stop_timeout_s: int
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    link: bool = False
    follows: bool = False


def exec_start(seat: str) -> tuple[str, ...]:
    """Return the command line of a seat, constant over its generations."""
    current = f"{SEATS}/{seat}/current"
    return (f"{current}/release/bin/vllm", "serve", "--config", f"{current}/vllm.yaml")


def start_window_s(ready_timeout_s: int) -> int:
    """Return ``StartLimitIntervalSec``: long enough that a seat which dies at the end of every load is still caught."""
    return START_LIMIT_BURST * (ready_timeout_s + RESTART_SEC)


def render_unit(spec: UnitSpec) -> str:
    """Return the text of the unit."""
    home = f"{SEATS}/{spec.seat}"
    # After what it conflicts with: the stub lets go of the port before the seat wants it.
    after = " ".join(
        ("network-online.target", FIREWALL_UNIT, *(() if spec.follows else (stub_unit(spec.port),)), *spec.after)
    )
    wants = " ".join(("network-online.target", FIREWALL_UNIT, *((link_unit(spec.seat),) if spec.link else ())))
    capabilities = " ".join(spec.capabilities)
    sections: dict[str, list[tuple[str, str]]] = {
        "Unit": [
            ("Description", spec.description.replace("%", "%%")),
            ("After", after),
            ("Wants", wants),
            *(_unlimited() if spec.follows else _given_up(spec)),
        ],
        "Service": [
            # vLLM never notifies systemd: whether the seat is READY is for the probe to say.
            ("Type", "exec"),
            ("User", SERVICE_USER),
            ("Group", SERVICE_USER),
            ("EnvironmentFile", f"{home}/current/seat.env"),
            *(() if spec.follows else _serves(spec.seat)),
            ("ExecStartPre", f"{TOOLBOX}/bin/seatctl patch verify {home}/current/release"),
            ("ExecStart", " ".join(exec_start(spec.seat))),
            # vLLM exits 0 when its engine dies: on-failure would leave the seat down. A follower starts with its head.
            ("Restart", "no" if spec.follows else "always"),
            ("RestartSec", str(RESTART_SEC)),
            ("TimeoutStartSec", str(spec.ready_timeout_s)),
            ("TimeoutStopSec", str(spec.stop_timeout_s)),
            # SIGTERM to the API server alone, so that it can drain; SIGKILL to everything that is left when it is gone.
            ("KillMode", "mixed"),
            ("OOMPolicy", "stop"),
            # Out of memory, the kernel takes the seat and not sshd or a neighbour's database.
            ("OOMScoreAdjust", "500"),
            ("ManagedOOMPreference", "avoid"),
            ("LimitMEMLOCK", "infinity"),
            ("LimitNOFILE", "65536"),
            ("LimitCORE", "0"),
            ("LogRateLimitIntervalSec", str(LOG_INTERVAL_S)),
            ("LogRateLimitBurst", str(LOG_BURST)),
            ("UMask", "0077"),
            ("CacheDirectory", f"vllm/{spec.seat}"),
            ("CacheDirectoryMode", "0750"),
            ("WorkingDirectory", f"{CACHE}/{spec.seat}"),
            ("NoNewPrivileges", "yes"),
            ("CapabilityBoundingSet", capabilities),
            ("AmbientCapabilities", capabilities),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("ProtectClock", "yes"),
            ("ProtectControlGroups", "yes"),
            ("ProtectHostname", "yes"),
            ("ProtectKernelLogs", "yes"),
            ("ProtectKernelModules", "yes"),
            ("ProtectKernelTunables", "yes"),
            ("PrivateTmp", "yes"),
            # A killed engine leaves its shared memory behind (400 MB for a tiny model); on a file system of its own
            # it goes with the unit. The options are not expanded: %% would reach mount(2) (systemd 252).
            ("TemporaryFileSystem", "/dev/shm:mode=1777,size=100%"),
            *_devices(spec.devices),
            ("LockPersonality", "yes"),
            ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
            ("RestrictNamespaces", "yes"),
            ("RestrictRealtime", "yes"),
            ("RestrictSUIDSGID", "yes"),
            ("SystemCallArchitectures", "native"),
            ("SystemCallFilter", "~@clock @module @mount @obsolete @raw-io @reboot @swap"),
        ],
        **({} if spec.follows else {"Install": [("WantedBy", "multi-user.target")]}),
    }
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in lines) for section, lines in sections.items()
    )


def _given_up(spec: UnitSpec) -> list[tuple[str, str]]:
    return [
        ("StartLimitIntervalSec", str(start_window_s(spec.ready_timeout_s))),
        ("StartLimitBurst", str(START_LIMIT_BURST)),
        # Given up, its port answers 503 with Retry-After at once. The host has no key of the gateway to close the
        # alias with, and shall have none; and this works with the gateway down or unreachable from here.
        ("OnFailure", stub_unit(spec.port)),
        ("Conflicts", stub_unit(spec.port)),
    ]


def _unlimited() -> list[tuple[str, str]]:
    # It starts when its head does, whose own limit counts for both.
    return [("StartLimitIntervalSec", "0")]


def _serves(seat: str) -> list[tuple[str, str]]:
    return [
        ("EnvironmentFile", f"{SEATS}/{seat}/{API_KEY_FILE}"),
        # As root: after a power cut in the middle of a rollout the generation that was never proven must not serve.
        ("ExecStartPre", f"+{TOOLBOX}/bin/seatctl settle {seat}"),
    ]


def _devices(devices: tuple[str, ...]) -> list[tuple[str, str]]:
    # PrivateDevices would hide /dev/nvidia*, so a host with GPUs lists what it lets through instead.
    if not devices:
        return [("PrivateDevices", "yes"), ("DevicePolicy", "closed")]
    return [("DevicePolicy", "closed"), *(("DeviceAllow", f"{device} rw") for device in devices)]
