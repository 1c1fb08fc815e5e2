#!/usr/bin/env python3
"""Give the lab of this clone more hosts: fv-ml2 to fv-ml<COUNT>, each with fv-ml1's seat under its own alias.

usage: bench/converge/more_hosts.py COUNT       before `make lab-up`; a seat needs some 1.5 GiB of memory

Changes lab/hosts.toml and inventory/lab/hosts.yml, so use a clone that you throw away.
"""

from __future__ import annotations

import sys
from typing import Any

import measure
import yaml

#: Numbers from here on are free in lab/hosts.toml; a host's address ends with its number.
FIRST_NUMBER = 100


def extend(inventory: dict[str, Any], names: list[str]) -> None:
    """Add the hosts to the lab's inventory, in a group of their own."""
    hosts = measure.fleet_hosts(names)
    for name, variables in hosts.items():
        variables["ansible_host"] = f"{{{{ lab_hosts['{name}'].address }}}}"
    groups = inventory["all"]["children"]
    groups["lab"]["children"]["lab_more"] = {"hosts": hosts}
    groups["gpu_hosts"]["children"]["lab_more"] = None


def main() -> None:
    """Write both files."""
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    names = [f"fv-ml{number}" for number in range(2, int(sys.argv[1]) + 1)]
    path = measure.PROJECT / "inventory/lab/hosts.yml"
    inventory = yaml.safe_load(path.read_text())
    extend(inventory, names)
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    with (measure.PROJECT / "lab/hosts.toml").open("a") as declared:
        declared.writelines(f"\n[hosts.{name}]\nnumber = {FIRST_NUMBER + i}\n" for i, name in enumerate(names))


if __name__ == "__main__":
    main()
