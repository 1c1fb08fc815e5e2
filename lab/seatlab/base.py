"""The base root filesystem of every lab host: Debian 12 whatever the machine, built once per content."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .errors import LabError, run
from .files import locked

SUITE = "bookworm"
# Counts changes of this file that change the result without changing a list below.
FORMAT = 1
PACKAGES = (
    "acl",  # setfacl: lets Ansible become an unprivileged user
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "libgomp1",  # OpenMP of torch
    "libnuma1",  # vLLM for CPUs loads it when it starts
    "libpam-systemd",
    "nftables",
    "nodejs",
    "openssh-server",
    "postgresql",
    "procps",
    "python3",
    "python3-apt",
    "python3-pip",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
    "zstd",
)
# Not wanted by a host that lives for minutes behind a private bridge.
MASKED_UNITS = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-networkd-wait-online.service",
)
ENABLED_UNITS = ("systemd-networkd.service",)
# Installed everywhere, started only where the gateway role enables it, as on a machine with a careful operator.
DISABLED_UNITS = ("postgresql.service",)
DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
# The build ends with this process, however that ends, and with the build its mounts and all that it started: the next
# one finds an unused directory, not one with /dev bound into it.
CONFINED = (
    "setpriv",
    "--pdeathsig=KILL",
    "--",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
PROXIES = ("http_proxy", "Acquire::http::Proxy", "https_proxy", "Acquire::https::Proxy")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def key(architecture: str = platform.machine()) -> str:
    """Return the name of the base that this version of the tool wants; another content has another name."""
    content = [FORMAT, SUITE, architecture, PACKAGES, MASKED_UNITS, ENABLED_UNITS, DISABLED_UNITS, DPKG_OPTIONS]
    return f"{SUITE}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"


def path(cache: Path) -> Path:
    """Return where the wanted base is, or will be."""
    return cache / "base" / key()


def sources(targets: Iterable[str], codename: str) -> list[str]:
    """Turn the machine's own Debian sources into those of the base: same mirrors, suite bookworm.

    ``targets`` are lines ``URI SUITE COMPONENT ORIGIN`` of ``apt-get indextargets``. The result is empty where the
    machine is no Debian or has no lists yet; mmdebstrap then takes its own default.
    """
    suites = {codename: SUITE, f"{codename}-updates": f"{SUITE}-updates", f"{codename}-security": f"{SUITE}-security"}
    lines = []
    for target in targets:
        uri, suite, component, *origin = target.split()
        if origin == ["Debian"] and component == "main" and suite in suites:
            lines.append(f"deb {uri} {suites[suite]} main")
    found = list(dict.fromkeys(lines))
    return found if any(line.endswith(f" {SUITE} main") for line in found) else []


def ensure(cache: Path) -> Path:
    """Return the wanted base, building it when the cache lacks it; of two callers at once, one builds."""
    wanted = path(cache)
    if wanted.is_dir():
        return wanted
    with locked(cache / "base" / ".lock", "lab: waiting for the base that another run is building"):
        if not wanted.is_dir():
            _build(wanted)
    return wanted


def _build(wanted: Path) -> None:
    """Build into a neighbour and rename: a base that exists is a complete one."""
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is missing, needed once to build the base: apt-get install mmdebstrap")
    building = wanted.with_name(f"{wanted.name}.building")
    log = wanted.with_name(f"{wanted.name}.log")
    shutil.rmtree(building, ignore_errors=True)
    print(f"lab: building the base root filesystem, minutes on a slow mirror (log: {log})", file=sys.stderr)
    command = [*CONFINED, "mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    command += ["--aptopt=Apt::Install-Recommends false"]
    command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
    command += [f"--keyring={KEYRING}"] if KEYRING.exists() else []
    command += [SUITE, str(building), *_machine_sources()]
    with log.open("wb") as output:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment())
    if done.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        shutil.rmtree(building, ignore_errors=True)
        raise LabError(f"mmdebstrap ended with {done.returncode}: {' '.join(last)} (see {log})")
    _generalise(building)
    building.rename(wanted)


def _machine_sources() -> list[str]:
    if shutil.which("apt-get") is None:
        return []
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    wanted = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    listed = run(["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"])
    return sources(listed.splitlines(), codename)


def _environment() -> dict[str, str]:
    """Return the environment of the build: a proxy of the machine's apt is one for this apt too."""
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    if shutil.which("apt-config"):
        shell = run(["apt-config", "shell", *PROXIES])
        environ |= dict(assignment.split("=", 1) for assignment in shlex.split(shell))
    return environ


def _generalise(root: Path) -> None:
    """Take out what makes a system one certain machine, and set what starts at boot."""
    for host_key in (root / "etc/ssh").glob("ssh_host_*"):
        host_key.unlink()
    (root / "etc/machine-id").write_text("")
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
    units = root / "etc/systemd/system"
    for unit in MASKED_UNITS:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    wants = units / "multi-user.target.wants"
    for unit in ENABLED_UNITS:
        (wants / unit).unlink(missing_ok=True)
        (wants / unit).symlink_to(f"/lib/systemd/system/{unit}")
    for unit in DISABLED_UNITS:
        (wants / unit).unlink()
