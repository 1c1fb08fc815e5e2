"""What a host is: cards, driver, kernel, memory, packages and tools, read without changing anything.

:class:`LocalHost` is the edge: files below a root, commands from a path. Everything else turns what they say into
:class:`Facts`, so that a capture of another machine can be read as well.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import meminfo
from .gpus import Gpu, read_cards
from .processes import PROPERTIES, UnitState, parse_show
from .sockets import Owner, listeners

_COMMAND_TIMEOUT_S = 20
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# PCI class codes of cards that CUDA may use: VGA controller and 3D controller.
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_NVIDIA = "0x10de"
# Packages whose upgrade changes the driver, its libraries, or the kernel that the driver was built for.
DRIVER_PACKAGES = re.compile(
    r"nvidia-(driver|dkms|kernel|open|utils|compute-utils|headless)\b.*|nvidia-open|cuda-drivers.*|libnvidia-.*"
    r"|linux-(image|modules|objects)-.*nvidia.*"
)


@dataclass(frozen=True)
class Answer:
    """What a command said: exit code and everything it printed; 127 when there is no such command."""

    code: int
    output: str


class LocalHost:
    """The machine this runs on; ``root`` and ``path`` are others in tests."""

    def __init__(self, root: Path = Path("/"), path: str = _SYSTEM_PATH) -> None:
        self._root = root
        self._path = path

    def at(self, path: str) -> Path:
        """Return where a path of the host is."""
        return self._root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """Return the content of a file, None when it cannot be read."""
        try:
            return self.at(path).read_text(errors="replace")
        except OSError:
            return None

    def run(self, *argv: str) -> Answer:
        """Run a command that only reads; a name is looked up in the path, an absolute one below the root."""
        found = shutil.which(str(self.at(argv[0])) if argv[0].startswith("/") else argv[0], path=self._path)
        if found is None:
            return Answer(127, f"no {argv[0]} on this host")
        environment = {"PATH": self._path, "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                [found, *argv[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(124, f"{argv[0]} said nothing for {_COMMAND_TIMEOUT_S} s")
        except OSError as error:
            return Answer(126, f"{argv[0]}: {error.strerror}")
        return Answer(done.returncode, done.stdout.decode(errors="replace"))

    def space(self, path: str) -> os.statvfs_result:
        """Return the file system that holds a path, or its nearest parent that exists."""
        place = self.at(path)
        while not place.exists():
            place = place.parent
        return os.statvfs(place)

    def free(self, path: str) -> int:
        """Return the bytes that may still be written there."""
        found = self.space(path)
        return found.f_bavail * found.f_frsize

    def unit(self, name: str) -> UnitState | None:
        """Return a unit's state, None where systemd cannot be asked."""
        answer = self.run("systemctl", "show", "--no-pager", f"--property={','.join(PROPERTIES)}", name)
        try:
            return parse_show(answer.output) if answer.code == 0 else None
        except (KeyError, ValueError):
            return None

    def listeners(self, port: int) -> list[Owner]:
        """Return who listens on a TCP port."""
        return listeners(port, self.at("/proc"))


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: of the loaded kernel module, and why nvidia-smi could not speak to it."""

    module: str | None
    trouble: str
    persistence_service: bool
    on_the_bus: tuple[str, ...]


@dataclass(frozen=True)
class Packages:
    """Installed driver packages, the held ones of them, and whether upgrades happen unattended."""

    driver: tuple[str, ...]
    held: frozenset[str]
    unattended: bool
    blacklist: tuple[str, ...]
    reboot_required: bool

    @property
    def loose(self) -> tuple[str, ...]:
        """Driver packages that an unattended upgrade could replace."""
        return tuple(
            name
            for name in self.driver
            if name not in self.held and not any(_matches(pattern, name) for pattern in self.blacklist)
        )


def _matches(pattern: str, name: str) -> bool:
    """Say whether a pattern of apt's configuration keeps a package; ``*nvidia*``, no regular expression, keeps none."""
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


@dataclass(frozen=True)
class Memory:
    """RAM in bytes, from ``/proc/meminfo``."""

    total: int
    available: int
    cached: int
    swap: int


@dataclass(frozen=True)
class Limits:
    """Kernel limits that a seat runs into; None where they cannot be read."""

    open_files: int | None
    maps: int | None
    overcommit: int | None
    shm: int
    shm_kind: str


@dataclass(frozen=True)
class Facts:
    """Everything about a host that does not depend on what it shall serve."""

    architecture: str
    kernel: str
    glibc: tuple[int, int] | None
    systemd: int | None
    cgroup: str
    gpus: tuple[Gpu, ...]
    driver: Driver
    packages: Packages
    memory: Memory
    limits: Limits
    synchronized: bool | None
    ffmpeg: tuple[int, ...] = field(default=())


def read_facts(host: LocalHost) -> Facts:
    """Read the facts of a host.

    Raises:
        ValueError: nvidia-smi answered in a form that is not understood; the message quotes the line.
    """

    def ask(arguments: tuple[str, ...]) -> tuple[int, str]:
        answer = host.run("nvidia-smi", *arguments)
        return answer.code, answer.output

    cards, trouble = read_cards(ask)
    return Facts(
        architecture=(host.text("/proc/sys/kernel/arch") or platform.machine()).strip(),
        kernel=(host.text("/proc/sys/kernel/osrelease") or "").strip(),
        glibc=_glibc(host.run("ldd", "--version").output),
        systemd=_number(r"systemd (\d+)", host.run("systemctl", "--version").output),
        cgroup=_cgroup(host),
        gpus=tuple(cards),
        driver=Driver(
            module=_module_version(host.text("/proc/driver/nvidia/version") or ""),
            trouble=trouble,
            persistence_service=host.run("systemctl", "is-active", "nvidia-persistenced.service").code == 0,
            on_the_bus=_cards_on_the_bus(host),
        ),
        packages=_packages(host),
        memory=_memory(host.text("/proc/meminfo") or ""),
        limits=_limits(host),
        synchronized=_synchronized(host.run("timedatectl", "show", "--property=NTPSynchronized").output),
        ffmpeg=parse_ldconfig(host.run("ldconfig", "-p").output),
    )


def _memory(text: str) -> Memory:
    values = meminfo.fields(text)
    return Memory(
        values.get("MemTotal", 0), values.get("MemAvailable", 0), values.get("Cached", 0), values.get("SwapTotal", 0)
    )


def parse_ldconfig(text: str) -> tuple[int, ...]:
    """Return the major versions of libavutil among the system's libraries (56 is FFmpeg 4, 60 is FFmpeg 8)."""
    return tuple(sorted({int(major) for major in re.findall(r"\blibavutil\.so\.(\d+)\b", text)}))


def parse_dpkg(text: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return installed driver packages and the held ones, from ``dpkg-query`` with ``WANT STATUS PACKAGE`` lines."""
    rows = [line.split() for line in text.splitlines()]
    installed = [(row[2], row[0]) for row in rows if len(row) == 3 and row[1] == "installed"]
    driver = {name: want for name, want in installed if DRIVER_PACKAGES.fullmatch(name)}
    return tuple(sorted(driver)), frozenset(name for name, want in driver.items() if want == "hold")


def parse_apt_config(text: str) -> tuple[bool, tuple[str, ...]]:
    """Return whether unattended upgrades run, and the package patterns they leave alone, from ``apt-config dump``."""
    period = re.search(r'^APT::Periodic::Unattended-Upgrade "([^"]*)";', text, re.MULTILINE)
    blacklist = re.findall(r'^Unattended-Upgrade::Package-Blacklist:: "([^"]+)";', text, re.MULTILINE)
    return bool(period and period[1] not in ("", "0")), tuple(blacklist)


def _packages(host: LocalHost) -> Packages:
    listed = host.run("dpkg-query", "--show", "--showformat=${db:Status-Want} ${db:Status-Status} ${Package}\\n")
    driver, held = parse_dpkg(listed.output if listed.code == 0 else "")
    unattended, blacklist = parse_apt_config(host.run("apt-config", "dump").output)
    # The package's own switch is in the configuration; without the package nothing runs it.
    installed = host.at("/usr/bin/unattended-upgrade").exists()
    return Packages(driver, held, unattended and installed, blacklist, host.at("/run/reboot-required").exists())


def _module_version(text: str) -> str | None:
    match = re.search(r"^NVRM version: .*?\b(\d+\.\d+(?:\.\d+)?)\b", text, re.MULTILINE)
    return match[1] if match else None


def _cards_on_the_bus(host: LocalHost) -> tuple[str, ...]:
    devices = host.at("/sys/bus/pci/devices")
    if not devices.is_dir():
        return ()
    return tuple(
        sorted(
            device.name
            for device in devices.iterdir()
            if (host.text(f"/sys/bus/pci/devices/{device.name}/vendor") or "").strip() == _NVIDIA
            and (host.text(f"/sys/bus/pci/devices/{device.name}/class") or "").startswith(_DISPLAY_CLASSES)
        )
    )


def _limits(host: LocalHost) -> Limits:
    shm = host.space("/dev/shm")
    mounts = [line.split() for line in (host.text("/proc/mounts") or "").splitlines()]
    # The last one is on top.
    kinds = [words[2] for words in mounts if len(words) > 2 and words[1] == "/dev/shm"]
    return Limits(
        open_files=_integer(host.text("/proc/sys/fs/nr_open")),
        maps=_integer(host.text("/proc/sys/vm/max_map_count")),
        overcommit=_integer(host.text("/proc/sys/vm/overcommit_memory")),
        shm=shm.f_blocks * shm.f_frsize,
        shm_kind=kinds[-1] if kinds else "no mount",
    )


def _cgroup(host: LocalHost) -> str:
    """Return v2, hybrid (v2 beside v1's controllers) or v1."""
    if host.at("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "hybrid" if host.at("/sys/fs/cgroup/unified/cgroup.procs").exists() else "v1"


def _glibc(text: str) -> tuple[int, int] | None:
    match = re.search(r"\b(\d+)\.(\d+)$", text.split("\n", 1)[0])
    return (int(match[1]), int(match[2])) if match else None


def _synchronized(text: str) -> bool | None:
    match = re.search(r"NTPSynchronized=(yes|no)", text)
    return match[1] == "yes" if match else None


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def compiler_version(host: LocalHost, home: str) -> str | None:
    """Return the version of a CUDA toolkit's nvcc, None when it does not run."""
    answer = host.run(f"{home}/bin/nvcc", "--version")
    match = re.search(r"release (\d+\.\d+)", answer.output)
    return match[1] if answer.code == 0 and match else None


def assembler_architectures(host: LocalHost, ptxas: str) -> frozenset[str] | None:
    """Return the ``sm_`` names that a ptxas assembles for, None when it does not run."""
    answer = host.run(ptxas, "--help")
    names: Iterable[str] = re.findall(r"'(sm_\d+[af]?)'", answer.output)
    return frozenset(names) if answer.code == 0 else None
