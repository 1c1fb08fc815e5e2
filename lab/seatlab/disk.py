"""A host's disk: an overlay of the base, prepared layers and the host's own changes, which alone are kept per host.

The overlay is mounted in the supervisor's private mount namespace, so it ends with the host and the machine's mount
table never holds one. Everything here works on the directory of changes ("upper") while it is not mounted.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import base
from .errors import LabError, run
from .files import write
from .settings import Lab

# What makes a disk one certain host; a layer must not carry it. Relative to the root, globs allowed.
IDENTITY = (
    "etc/hostname",
    "etc/hosts",
    "etc/machine-id",
    "etc/ssh/ssh_host_*",
    "etc/systemd/network/10-host0.network",
    "root/.ansible",
    "root/.ssh",
    "var/lib/systemd/random-seed",
    "var/log/journal/*",
    "tmp/*",
    "var/tmp/*",
)
# Explicit, because kernels differ in defaults: all three tie a directory of changes to one mount of one machine.
OVERLAY_OPTIONS = "index=off,redirect_dir=off,metacopy=off"


@dataclass(frozen=True)
class Stack:
    """What lies below a host's own changes: the name of a base and of layers, the uppermost first."""

    base: str
    layers: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Stack:
        """Read what ``write`` wrote."""
        stored = json.loads(path.read_text())
        return cls(stored["base"], tuple(stored["layers"]))

    def write(self, path: Path) -> None:
        """Record the stack beside the changes that need it."""
        write(path, json.dumps({"base": self.base, "layers": self.layers}))

    def directories(self, lab: Lab) -> list[Path]:
        """Return the directories below, the uppermost first; ``LabError`` when one is gone."""
        found = [lab.layers / name / "upper" for name in self.layers] + [lab.cache / "base" / self.base]
        for directory in found:
            if not directory.is_dir():
                raise LabError(f"{directory} is gone and hosts or layers need it: destroy them and start again")
        return found


def stack_for(lab: Lab, layer: str | None) -> Stack:
    """Return the stack of a new host: the wanted base, or a layer with all that it was made on."""
    if layer is None:
        return Stack(base.ensure(lab.cache).name, ())
    record = lab.layers / layer / "layer.json"
    if not record.exists():
        known = ", ".join(sorted(path.parent.name for path in lab.layers.glob("*/layer.json"))) or "none"
        raise LabError(f"no layer '{layer}' in {lab.layers}; there: {known}; make one with 'lab snapshot HOST {layer}'")
    return Stack.read(record)


def overlay_options(lower: list[Path], upper: Path, work: Path) -> str:
    """Return the mount options of a host's root."""
    return f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work},{OVERLAY_OPTIONS}"


def write_identity(lab: Lab, upper: Path, lower: list[Path], name: str, address: str, gateway: str) -> None:
    """Give a disk its name, address and keys; what a role added to /etc/hosts and an SSH host key stay."""
    home = _directory(upper, lower, "root")
    keys = home / ".ssh"
    keys.mkdir(mode=0o700, exist_ok=True)
    write(keys / "authorized_keys", lab.key.with_suffix(".pub").read_text(), 0o600)
    etc = _directory(upper, lower, "etc")
    write(etc / "hostname", f"{name}\n")
    if not _has_line(etc / "hosts", f"{address} {name}"):
        write(etc / "hosts", f"127.0.0.1 localhost\n::1 localhost\n{address} {name}\n")
    network = f"[Match]\nName=host0\n\n[Network]\nAddress={address}/24\nGateway={gateway}\n"
    network += "LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
    write(_directory(upper, lower, "etc/systemd/network") / "10-host0.network", network)
    host_key = _directory(upper, lower, "etc/ssh") / "ssh_host_ed25519_key"
    if not host_key.is_file():
        host_key.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(host_key)])


def _has_line(path: Path, line: str) -> bool:
    return path.is_file() and line in path.read_text().splitlines()


def host_key(upper: Path) -> str:
    """Return type and public part of a host's SSH key, as a known_hosts line has them."""
    return " ".join((upper / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])


def _directory(upper: Path, lower: list[Path], relative: str) -> Path:
    """Make a directory in the changes as it is below: overlayfs shows the mode and owner of the uppermost one."""
    made = upper
    for part in Path(relative).parts:
        made = made / part
        if made.is_dir():
            continue
        made.mkdir()
        below = next(
            (root / made.relative_to(upper) for root in lower if (root / made.relative_to(upper)).is_dir()), None
        )
        if below:
            status = below.stat()
            os.chown(made, status.st_uid, status.st_gid)
            made.chmod(status.st_mode & 0o7777)
    return made


def new_upper(upper: Path, lower: list[Path]) -> None:
    """Make the directory of changes of a new host; its mode is that of the host's root directory."""
    upper.mkdir(parents=True)
    upper.chmod(lower[-1].stat().st_mode & 0o7777)


def save_layer(lab: Lab, upper: Path, stack: Stack, layer: str) -> None:
    """Copy a stopped host's changes as a layer, without what makes them that host; replaces a layer nobody uses."""
    if users := layer_users(lab, layer):
        raise LabError(f"layer '{layer}' is in use by {', '.join(users)}: destroy these or take another name")
    final = lab.layers / layer
    building = final.with_name(f".{layer}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    # GNU cp keeps what overlayfs needs: device nodes of deleted files, trusted.* attributes, hard links.
    run(["cp", "--archive", "--reflink=auto", str(upper), str(building / "upper")])
    for pattern in IDENTITY:
        for path in (building / "upper").glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    Stack(stack.base, (layer, *stack.layers)).write(building / "layer.json")
    shutil.rmtree(final, ignore_errors=True)
    building.rename(final)


def layer_users(lab: Lab, layer: str) -> list[str]:
    """Return the hosts and other layers whose disk is stacked on a layer."""
    records = [*lab.hosts.glob("*/disk.json"), *lab.layers.glob("*/layer.json")]
    owners = [path.parent.name for path in records if layer in Stack.read(path).layers]
    return sorted(owner for owner in owners if owner != layer)
