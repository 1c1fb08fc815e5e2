"""Would this host carry what it is declared to? Facts against wishes, one sentence per fault: expected, seen, next.

Pure but for :func:`look`, which reads what depends on the wishes (disk, ports, units, compilers). Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any

from ..inventory.catalogue import version_key
from ..paths import unit_name
from ..tables import aligned
from ..units import GIB, format_gib, parse_size
from .gpus import Gpu
from .hostfacts import Facts, LocalHost, Memory, assembler_architectures, compiler_version
from .sockets import in_cgroup

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "not checked"
# DeviceAllow= and ManagedOOMPreference= came with 248; Ubuntu 22.04, the oldest system in question, has 249.
OLDEST_SYSTEMD = 249
# LimitNOFILE= of the seats' unit; systemd cannot give more than fs.nr_open.
OPEN_FILES = 65536
# A mapping per weight file and per library, thousands with torch: the kernel's default is enough, less is not.
MAPS = 65530
# Unpacked wheels and their bytecode, as a multiple of the wheels: 2.3 for the lab's release, the margin is for CUDA's.
UNPACKED = 3
# What a driver may report less than the card has (ECC, reserved pages).
_MEMORY_TOLERANCE = 0.02


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``next`` says what to do about it, empty where nothing is."""

    id: str
    status: str
    expected: str
    seen: str
    next: str = ""

    def __str__(self) -> str:
        """One sentence, as operators read it."""
        return f"{self.id}: expected {self.expected}, seen {self.seen}" + (f"; {self.next}" if self.next else "")


@dataclass(frozen=True)
class Rules:
    """What a class of hosts has to be, beside what its seats need. Sizes in bytes; ``kernel_*`` are shell patterns."""

    kernel_allow: tuple[str, ...] = ()
    kernel_deny: tuple[str, ...] = ()
    synchronized: bool = True
    shm: int = GIB
    disk_reserve: int = GIB
    memory_reserve: int = 8 * GIB

    @classmethod
    def load(cls, written: Mapping[str, Any]) -> Rules:
        """Read them from variables; sizes as in seats (``8GiB``).

        Raises:
            ValueError: an unknown name, or a size that is none.
        """
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(written) - known):
            raise ValueError(f"preflight rules: expected {', '.join(sorted(known))}, seen {', '.join(unknown)}")
        return cls(**{name: _rule(name, value) for name, value in written.items()})


def _rule(name: str, value: object) -> Any:  # noqa: ANN401 - the type is that of the field
    if name.startswith("kernel_"):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ValueError(f"preflight rules: {name}: expected a list of kernel releases, seen {value!r}")
        return tuple(str(pattern) for pattern in value)
    return bool(value) if name == "synchronized" else parse_size(value)


@dataclass(frozen=True)
class ReleaseWish:
    """A release that shall run here: its least driver, what it compiles or loads at run time, bytes of its wheels."""

    name: str
    path: str
    python: str
    glibc: int
    wheels: int
    min_driver: str | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelWish:
    """A model that shall be here, with the bytes of its files."""

    name: str
    path: str
    size: int


@dataclass(frozen=True)
class SeatWish:
    """A seat that shall run here. ``pinned`` are bytes of host RAM that it pins (the n-gram table).

    ``link`` are interface and address of this host on the way to the other host of a seat over two; one that follows
    has no ``port``, which may be another seat's here.
    """

    name: str
    port: int | None
    release: str
    gpus: tuple[int | str, ...] = ()
    utilization: float | None = None
    pinned: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    link: tuple[str, str] | None = None


@dataclass(frozen=True)
class Wishes:
    """What is declared of a host: hardware, releases, models, seats, and the mirror that they come from."""

    hardware: Mapping[str, Any]
    releases: tuple[ReleaseWish, ...] = ()
    models: tuple[ModelWish, ...] = ()
    seats: tuple[SeatWish, ...] = ()
    mirror: str | None = None


def load_wishes(written: Mapping[str, Any]) -> Wishes:
    """Return the wishes of plain data, as ``dataclasses.asdict`` of them makes it."""
    return Wishes(
        hardware=written["hardware"],
        releases=tuple(ReleaseWish(**{**one, "needs": tuple(one["needs"])}) for one in written["releases"]),
        models=tuple(ModelWish(**one) for one in written["models"]),
        seats=tuple(
            SeatWish(**{**one, "gpus": tuple(one["gpus"]), "link": tuple(one["link"]) if one.get("link") else None})
            for one in written["seats"]
        ),
        mirror=written["mirror"],
    )


@dataclass(frozen=True)
class Sight:
    """What was seen on the host of the wishes; free bytes per file system's path, port owners, running seats.

    ``addresses`` maps an interface to those it has, None where it is not there.
    """

    installed: frozenset[str]
    free: Mapping[str, tuple[int, int]]
    strangers: Mapping[str, str]
    running: frozenset[str]
    pythons: frozenset[str]
    compilers: Mapping[str, str | None]
    assemblers: Mapping[str, frozenset[str] | None]
    ninja: Mapping[str, bool]
    mirror: bool
    addresses: Mapping[str, frozenset[str] | None] = field(default_factory=dict)


def look(host: LocalHost, wishes: Wishes) -> Sight:
    """Read what depends on the wishes; changes nothing."""
    installed = {
        *(release.path for release in wishes.releases if host.at(f"{release.path}/release.json").is_file()),
        *(model.path for model in wishes.models if host.at(f"{model.path}/manifest.json").is_file()),
    }
    strangers, running = {}, set()
    for seat in wishes.seats:
        state = host.unit(unit_name(seat.name))
        group = state.control_group if state else ""
        if state and state.running:
            running.add(seat.name)
        for owner in host.listeners(seat.port) if seat.port is not None else ():
            # The stub that answers 503 for a seat that is down lets go of the port by itself.
            if not (in_cgroup(owner, group) or owner.cgroup.startswith("/system.slice/system-seatfleet")):
                strangers[seat.name] = str(owner)
    homes = {_toolkit(seat) for seat in wishes.seats}
    assemblers = {path for seat in wishes.seats if (path := seat.environment.get("TRITON_PTXAS_PATH"))}
    return Sight(
        installed=frozenset(installed),
        free={path: _space(host, path) for path in ("/opt/vllm/releases", "/srv/models", "/var/cache/vllm")},
        strangers=strangers,
        running=frozenset(running),
        pythons=frozenset(
            release.python for release in wishes.releases if host.run(f"python{release.python}", "-V").code == 0
        ),
        compilers={home: compiler_version(host, home) for home in homes},
        assemblers={path: assembler_architectures(host, path) for path in assemblers},
        ninja={release.path: host.at(f"{release.path}/bin/ninja").exists() for release in wishes.releases},
        mirror=wishes.mirror is None or host.at(wishes.mirror).is_dir(),
        addresses={seat.link[0]: _addresses(host, seat.link[0]) for seat in wishes.seats if seat.link},
    )


def _addresses(host: LocalHost, interface: str) -> frozenset[str] | None:
    answer = host.run("ip", "-brief", "address", "show", "dev", interface)
    words = answer.output.split()[2:] if answer.code == 0 else None
    return None if words is None else frozenset(word.partition("/")[0] for word in words)


def _space(host: LocalHost, path: str) -> tuple[int, int]:
    """Return a number that names the file system, and its free bytes."""
    found = host.space(path)
    return found.f_fsid, found.f_bavail * found.f_frsize


def _toolkit(seat: SeatWish) -> str:
    return seat.environment.get("CUDA_HOME", "/usr/local/cuda")


def judge(facts: Facts, wishes: Wishes, sight: Sight, rules: Rules) -> list[Check]:
    """Return every check, in the order an operator would repair things: hardware, driver, system, room, seats."""
    return [
        *_architecture(facts, wishes),
        *_cards(facts, wishes),
        *_driver(facts, wishes),
        *_packages(facts),
        *_kernel(facts, rules),
        *_system(facts, rules),
        *_tools(facts, wishes, sight),
        *_disk(wishes, sight, rules),
        *_memory(facts, wishes, sight, rules),
        *_ports(wishes, sight),
        *_links(wishes, sight),
    ]


def _result(name: str, good: bool, expected: str, seen: str, todo: str, bad: str = FAIL) -> Check:
    return Check(name, OK, expected, seen) if good else Check(name, bad, expected, seen, todo)


# --- hardware and driver ----------------------------------------------------------------------------------------------


def _architecture(facts: Facts, wishes: Wishes) -> Iterator[Check]:
    wanted = wishes.hardware.get("architecture")
    if wanted is not None:
        todo = "correct fleet_hardware of the host, or the address in the inventory"
        yield _result("architecture", facts.architecture == wanted, str(wanted), facts.architecture, todo)


def _cards(facts: Facts, wishes: Wishes) -> Iterator[Check]:
    wanted = int(wishes.hardware.get("gpus") or 0)
    if wanted == 0:
        return
    cards, driver = facts.gpus, facts.driver
    if driver.trouble:
        yield Check("driver answers", FAIL, f"nvidia-smi to name {wanted} cards", driver.trouble, _why_silent(facts))
        return
    if len(cards) < wanted:
        bus = len(driver.on_the_bus)
        todo = (
            "look for Xid 79 in dmesg, the card is on the bus and the driver has lost it: reboot"
            if bus >= wanted
            else "power off, seat the card and its power cable again; lspci does not see it either"
        )
        names = ", ".join(card.pci for card in cards) or "none"
        yield Check("cards", FAIL, f"{wanted} cards", f"{len(cards)} ({names}), {bus} on the PCI bus", todo)
    else:
        todo = "correct gpus in fleet_hardware, or say which cards are others' by their UUIDs at the seats"
        yield _result("cards", len(cards) == wanted, f"{wanted} cards", f"{len(cards)}", todo, bad=WARN)
    yield from _card_kinds(cards, wishes.hardware)
    for card in cards:
        todo = "look at fans, air inlet and power cables; nvidia-smi -q -d PERFORMANCE shows the reason"
        seen = ", ".join(card.throttle) or "none"
        if card.throttle:
            yield Check(f"throttle {card.pci}", WARN, "no card slowed down", seen, todo)


def _card_kinds(cards: Sequence[Gpu], hardware: Mapping[str, Any]) -> Iterator[Check]:
    if capability := hardware.get("compute_capability"):
        others = sorted({card.capability for card in cards if card.capability not in (None, capability)}, key=str)
        todo = "correct compute_capability in fleet_hardware: kernels are compiled for it"
        seen = ", ".join(map(str, others)) if others else capability
        yield _result("compute capability", not others, str(capability), seen, todo)
    memory = parse_size(hardware["gpu_memory"]) if hardware.get("gpu_memory") else None
    unified = bool(hardware.get("unified_memory"))
    for card in cards:
        if unified != (card.memory is None):
            expected = "unified memory (nvidia-smi cannot tell it)" if unified else "memory of its own"
            seen = "none" if card.memory is None else format_gib(card.memory)
            todo = "correct unified_memory in fleet_hardware: memory is counted in another way"
            yield Check(f"memory of {card.pci}", FAIL, expected, seen, todo)
        elif memory and card.memory is not None and abs(card.memory - memory) > memory * _MEMORY_TOLERANCE:
            todo = "correct gpu_memory in fleet_hardware: the utilization beside a pin is computed from it"
            yield Check(f"memory of {card.pci}", FAIL, format_gib(memory), format_gib(card.memory), todo)


def _why_silent(facts: Facts) -> str:
    trouble, module = facts.driver.trouble, facts.driver.module
    if "version mismatch" in trouble.lower():
        loaded = f" ({module} is loaded)" if module else ""
        return f"the driver was upgraded under the running kernel module{loaded}: reboot, then hold its packages"
    if trouble.startswith("no nvidia-smi"):
        return "install the driver"
    if module is None:
        return "the kernel module is not loaded: modprobe nvidia says why (Secure Boot, no module for this kernel)"
    return "dmesg says more"


def _driver(facts: Facts, wishes: Wishes) -> Iterator[Check]:
    if not wishes.hardware.get("gpus"):
        return
    version = next((card.driver for card in facts.gpus), facts.driver.module)
    for release in wishes.releases:
        name = f"driver for {release.name}"
        if release.min_driver is None:
            yield Check(name, UNKNOWN, "min_driver in the catalogue", "none")
        elif version is None:
            yield Check(name, UNKNOWN, f"{release.min_driver} or newer", "no driver that answers")
        else:
            todo = f"install driver {release.min_driver} or newer and reboot, or run a release for an older CUDA"
            good = version_key(version) >= version_key(release.min_driver)
            yield _result(name, good, f"{release.min_driver} or newer", version, todo)
    if facts.gpus:
        module = facts.driver.module
        if module is not None:
            todo = "reboot: another version of the driver's libraries is installed than the loaded module"
            libraries = facts.gpus[0].driver
            yield _result("driver module", module == libraries, f"{libraries} as nvidia-smi says", module, todo)
        off = [card.pci for card in facts.gpus if card.persistence is False]
        todo = "systemctl enable --now nvidia-persistenced: without it the first start after idling pays for the driver"
        seen = f"off on {', '.join(off)}" if off else "on"
        yield _result("persistence", not off or facts.driver.persistence_service, "persistence mode on", seen, todo)


def _packages(facts: Facts) -> Iterator[Check]:
    packages = facts.packages
    if packages.driver:
        loose = packages.loose
        todo = f"apt-mark hold {' '.join(loose)}, or name them in gpu_host_held_packages"
        if packages.unattended:
            seen = f"unattended upgrades on, and not held: {', '.join(loose)}" if loose else "held"
        else:
            seen = f"unattended upgrades off, not held: {', '.join(loose)}" if loose else "held"
        bad = FAIL if packages.unattended else WARN
        yield _result("driver packages", not loose, "driver packages held", seen, todo, bad=bad)
    if packages.reboot_required:
        todo = "reboot when its seats may go, one host at a time"
        yield Check("reboot", WARN, "no reboot pending", "/run/reboot-required is there", todo)


def _kernel(facts: Facts, rules: Rules) -> Iterator[Check]:
    denied = [pattern for pattern in rules.kernel_deny if fnmatch(facts.kernel, pattern)]
    if denied:
        todo = "boot another kernel: this one is known to fail with these cards (docs/known-failures.md, S17)"
        yield Check("kernel", FAIL, f"none of {', '.join(rules.kernel_deny)}", facts.kernel, todo)
        return
    allowed = not rules.kernel_allow or any(fnmatch(facts.kernel, pattern) for pattern in rules.kernel_allow)
    expected = f"one of {', '.join(rules.kernel_allow)}" if rules.kernel_allow else "a kernel that is not denied"
    todo = "boot a listed kernel, or add this one to kernel_allow after trying it"
    yield _result("kernel", allowed, expected, facts.kernel, todo)


# --- the system -------------------------------------------------------------------------------------------------------


def _system(facts: Facts, rules: Rules) -> Iterator[Check]:
    seen = "none" if facts.systemd is None else str(facts.systemd)
    good = facts.systemd is not None and facts.systemd >= OLDEST_SYSTEMD
    todo = "upgrade the distribution: the seats' units use what older ones do not know"
    yield _result("systemd", good, f"{OLDEST_SYSTEMD} or newer", seen, todo)
    todo = "boot with systemd.unified_cgroup_hierarchy=1"
    found = facts.cgroup
    yield _result("control groups", found in {"v2", "hybrid"}, "the unified hierarchy (v2 or hybrid)", found, todo)
    limits = facts.limits
    todo = "mount a tmpfs on /dev/shm (the distribution's default): engine processes talk through it"
    good = limits.shm_kind == "tmpfs" and limits.shm >= rules.shm
    size = format_gib(limits.shm)
    yield _result("/dev/shm", good, f"a tmpfs of {format_gib(rules.shm)}", f"{limits.shm_kind} of {size}", todo)
    todo = f"sysctl fs.nr_open={1 << 20}: the seats' unit asks for {OPEN_FILES} open files"
    yield from _at_least("open files", limits.open_files, OPEN_FILES, todo)
    yield from _at_least("memory maps", limits.maps, MAPS, f"sysctl vm.max_map_count={MAPS}")
    if limits.overcommit is not None:
        todo = "sysctl vm.overcommit_memory=0: CUDA reserves far more address space than there is memory"
        value = str(limits.overcommit)
        yield _result("overcommit", limits.overcommit != 2, "vm.overcommit_memory 0 or 1", value, todo)
    if not rules.synchronized:
        yield Check("time", UNKNOWN, "a synchronized clock", "not asked for here")
    elif facts.synchronized is None:
        yield Check("time", UNKNOWN, "a synchronized clock", "no timedatectl")
    else:
        todo = "systemctl enable --now systemd-timesyncd (or chrony): evidence and tokens carry times"
        seen = "synchronized" if facts.synchronized else "not synchronized"
        yield _result("time", facts.synchronized, "a synchronized clock", seen, todo)


def _at_least(name: str, seen: int | None, least: int, todo: str) -> Iterator[Check]:
    if seen is None:
        yield Check(name, UNKNOWN, f"{least} or more", "cannot be read")
    else:
        yield _result(name, seen >= least, f"{least} or more", str(seen), todo)


def _tools(facts: Facts, wishes: Wishes, sight: Sight) -> Iterator[Check]:
    for release in wishes.releases:
        expected = f"python{release.python} in the system's path, for {release.name}"
        seen = "there" if release.python in sight.pythons else "none"
        todo = f"apt install python{release.python} python{release.python}-venv, or set vllm_release_python"
        yield _result(f"python for {release.name}", release.python in sight.pythons, expected, seen, todo)
        if facts.glibc is not None:
            good = facts.glibc >= (2, release.glibc)
            seen = f"{facts.glibc[0]}.{facts.glibc[1]}"
            todo = "upgrade the distribution, or lock the release for an older glibc"
            yield _result(f"glibc for {release.name}", good, f"2.{release.glibc} or newer", seen, todo)
        if "ffmpeg" in release.needs:
            todo = "apt install ffmpeg: torchcodec of this release loads its libraries"
            seen = f"libavutil {', '.join(map(str, facts.ffmpeg))}" if facts.ffmpeg else "no libavutil"
            yield _result(f"ffmpeg for {release.name}", bool(facts.ffmpeg), "FFmpeg 4 or newer", seen, todo)
        if "ninja" in release.needs and release.path in sight.installed:
            todo = "build the release again (vllm_release_repair): its lock has ninja"
            good = sight.ninja[release.path]
            yield _result(f"ninja for {release.name}", good, "ninja in the release", "there" if good else "none", todo)
    yield from _compilers(wishes, sight)


def _compilers(wishes: Wishes, sight: Sight) -> Iterator[Check]:
    needing = {release.name for release in wishes.releases if "nvcc" in release.needs}
    for home in sorted({_toolkit(seat) for seat in wishes.seats if seat.release in needing}):
        version = sight.compilers.get(home)
        todo = "install the CUDA toolkit there, or name another place as CUDA_HOME in seat_environment of the class"
        yield _result(f"nvcc in {home}", version is not None, "a CUDA compiler that runs", version or "none", todo)
    capability = wishes.hardware.get("compute_capability")
    wanted = f"sm_{str(capability).replace('.', '')}" if capability else None
    for path, names in sorted(sight.assemblers.items()):
        expected = f"ptxas that knows {wanted or 'the cards'}"
        todo = "install a newer CUDA toolkit, or let TRITON_PTXAS_PATH of the class lead to one"
        seen = "it does not run" if names is None else f"{len(names)} architectures" + _newest(names)
        good = names is not None and (wanted is None or wanted in names)
        yield _result(f"ptxas {path}", good, expected, seen, todo)


def _newest(names: Iterable[str]) -> str:
    numbers = [int(match[1]) for name in names if (match := re.match(r"sm_(\d+)", name))]
    return f", sm_{max(numbers)} the newest" if numbers else ""


# --- room -------------------------------------------------------------------------------------------------------------


def _disk(wishes: Wishes, sight: Sight, rules: Rules) -> Iterator[Check]:
    """Room for what is not there yet, added up per file system."""
    needed = {"/opt/vllm/releases": 0, "/srv/models": 0, "/var/cache/vllm": 0}
    for release in wishes.releases:
        if release.path not in sight.installed:
            needed["/opt/vllm/releases"] += release.wheels * UNPACKED
    for model in wishes.models:
        if model.path not in sight.installed:
            needed["/srv/models"] += model.size
    systems: dict[int, list[str]] = {}
    for path in needed:
        systems.setdefault(sight.free[path][0], []).append(path)
    for paths in systems.values():
        room = sum(needed[path] for path in paths) + rules.disk_reserve
        free = sight.free[paths[0]][1]
        expected = f"{format_gib(room)} free ({format_gib(rules.disk_reserve)} of it to keep)"
        todo = "remove old models and releases (playbooks/remove.yml), or give the file system more room"
        yield _result(f"disk {' '.join(paths)}", free >= room, expected, format_gib(free), todo)
    if wishes.mirror is not None and (missing := _absent(wishes, sight)):
        todo = f"mount the mirror at {wishes.mirror}, or set fleet_mirror_dir to null to push from the controller"
        seen = "there" if sight.mirror else "no such directory"
        yield _result("mirror", sight.mirror, f"{wishes.mirror}, for {', '.join(missing)}", seen, todo)


def _absent(wishes: Wishes, sight: Sight) -> list[str]:
    wanted = [(wish.name, wish.path) for wish in wishes.releases] + [(wish.name, wish.path) for wish in wishes.models]
    return [name for name, path in wanted if path not in sight.installed]


def _memory(facts: Facts, wishes: Wishes, sight: Sight, rules: Rules) -> Iterator[Check]:
    memory = facts.memory
    starting = [seat for seat in wishes.seats if seat.name not in sight.running]
    yield from _host_memory(memory, wishes, starting, rules)
    if wishes.hardware.get("unified_memory"):
        todo = "swapoff -a and remove it from /etc/fstab: on unified memory a seat that swaps hangs the machine"
        seen = format_gib(memory.swap) if memory.swap else "none"
        yield _result("swap", memory.swap == 0, "no swap", seen, todo, bad=WARN)
        return
    yield from _card_memory(facts.gpus, starting)


def _host_memory(memory: Memory, wishes: Wishes, starting: Sequence[SeatWish], rules: Rules) -> Iterator[Check]:
    """RAM that seats take and give back only when they end: pinned tables, and on unified memory everything."""
    total = parse_size(wishes.hardware["gpu_memory"]) if wishes.hardware.get("gpu_memory") else memory.total
    unified = bool(wishes.hardware.get("unified_memory"))
    tables = sum(seat.pinned for seat in wishes.seats)
    if tables:
        names = ", ".join(f"{seat.name} {format_gib(seat.pinned)}" for seat in wishes.seats if seat.pinned)
        expected = f"RAM for the pinned tables ({names}) and {format_gib(rules.memory_reserve)} beside"
        todo = "two seats are two tables: keep one of them on the card (engram.cpu_offload false) or on another host"
        good = memory.total >= tables + rules.memory_reserve
        yield _result("host memory", good, expected, format_gib(memory.total), todo)
        if not good:
            return  # what is free of too little would be a second sentence for one fault
    wanted = {seat.name: seat.pinned + (int((seat.utilization or 0) * total) if unified else 0) for seat in starting}
    needed = sum(wanted.values())
    if not needed:
        return
    names = ", ".join(f"{name} {format_gib(size)}" for name, size in wanted.items() if size)
    expected = f"{format_gib(needed + rules.memory_reserve)} available for what does not run yet ({names})"
    seen = f"{format_gib(memory.available)} of {format_gib(memory.total)}, {format_gib(memory.cached)} page cache"
    todo = "stop what holds the memory (ps --sort=-rss), or wait: a stopped seat's table is back after half a minute"
    yield _result("free memory", memory.available >= needed + rules.memory_reserve, expected, seen, todo)


def _card_memory(cards: Sequence[Gpu], starting: Sequence[SeatWish]) -> Iterator[Check]:
    for seat in starting:
        for gpu in seat.gpus:
            card = _card(cards, gpu)
            if card is None:
                if cards:
                    todo = "nvidia-smi -L shows the UUIDs of this host"
                    yield Check(f"card of {seat.name}", FAIL, f"card {gpu}", f"{len(cards)} other cards", todo)
                continue
            if seat.utilization is None or card.memory is None or card.used is None:
                continue
            share = seat.utilization * card.memory
            expected = f"{format_gib(int(share))} free on {card.pci} ({seat.utilization:.2f} of it)"
            todo = "nvidia-smi shows which process holds it; end that, or give the seat another card or less memory"
            free = card.memory - card.used
            yield _result(f"card of {seat.name}", free >= share, expected, format_gib(free), todo)


def _card(cards: Sequence[Gpu], gpu: int | str) -> Gpu | None:
    if isinstance(gpu, int):
        return cards[gpu] if gpu < len(cards) else None
    return next((card for card in cards if card.uuid == gpu), None)


def _ports(wishes: Wishes, sight: Sight) -> Iterator[Check]:
    for seat in (seat for seat in wishes.seats if seat.port is not None):
        stranger = sight.strangers.get(seat.name)
        expected = f"port {seat.port} free or the seat's own"
        todo = "end that process, or give the seat another port"
        yield _result(f"port of {seat.name}", stranger is None, expected, stranger or "free or its own", todo)


def _links(wishes: Wishes, sight: Sight) -> Iterator[Check]:
    for seat in wishes.seats:
        if seat.link is None:
            continue
        interface, address = seat.link
        seen = sight.addresses.get(interface)
        shown = f"no interface {interface}" if seen is None else ", ".join(sorted(seen)) or "no address"
        todo = "configure the link between the two hosts, or correct nodes of the seat"
        expected = f"{address} on {interface}"
        yield _result(f"link of {seat.name}", seen is not None and address in seen, expected, shown, todo)


# --- for people -------------------------------------------------------------------------------------------------------


def report(host: str, facts: Facts, checks: Sequence[Check]) -> dict[str, Any]:
    """Return plain data of one host: its line of the table, all checks, and sentences for those that are not fine."""
    return {
        "host": host,
        "cards": _kinds(facts.gpus) or "none",
        "driver": next((card.driver for card in facts.gpus), facts.driver.module or "none"),
        "kernel": facts.kernel,
        "available": facts.memory.available,
        "memory": facts.memory.total,
        "checks": [asdict(check) for check in checks],
        "failed": [str(check) for check in checks if check.status == FAIL],
        "warned": [str(check) for check in checks if check.status == WARN],
        "not_checked": [str(check) for check in checks if check.status == UNKNOWN],
        "gpus": [asdict(card) for card in facts.gpus],
    }


def _kinds(cards: Sequence[Gpu]) -> str:
    names = [card.name.removeprefix("NVIDIA ") for card in cards]
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per host and after that one per fault; hosts that said nothing are the caller's to name."""
    header = ("HOST", "CARDS", "DRIVER", "KERNEL", "MEMORY FREE/ALL", "OK", "WARN", "FAILED", "NOT CHECKED")
    rows = [header, *(_line(one) for one in reports)]
    lines = list(aligned(rows))
    for kind, title in (("failed", "failed"), ("warned", "warning"), ("not_checked", "not checked")):
        lines += [f"{one['host']}: {title}: {text}" for one in reports for text in one[kind]]
    return "\n".join(lines)


def _line(one: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [sum(check["status"] == status for check in one["checks"]) for status in (OK, WARN, FAIL, UNKNOWN)]
    memory = f"{one['available'] / GIB:.0f}/{one['memory'] / GIB:.0f} GiB"
    return (one["host"], one["cards"], one["driver"], one["kernel"], memory, *map(str, counts))
