"""Check everything that the inventory says about seats, releases, models and aliases, without contacting any host.

Exit code 0: no problem found (what was not checked is listed); 2: the report lists every problem with file and line.
With --deploy, placeholders and files that are declared but not there are problems too, as they are in site.yml.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..clients.inventory import default_inventory, read_inventory
from ..clients.project_files import ProjectFiles
from ..core.inventory.fleet import Report, Unchecked, check_fleet, kv_fit
from ..core.inventory.seat import Seat
from ..core.inventory.variables import holds_secrets, missing_secrets, misspelt
from ..core.tables import aligned
from ..core.units import format_size

HELP = "check the inventory: every problem at once, with file and line"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "-i", "--inventory", type=Path, help="inventory (default: ANSIBLE_INVENTORY, else inventory/production)"
    )
    parser.add_argument("-l", "--limit", help="report only on these hosts (rules still see the whole fleet)")
    parser.add_argument("--deploy", action="store_true", help="refuse placeholders and missing files, as a deploy does")
    parser.add_argument("--json", action="store_true", help="print seats and what was not checked as JSON")


def run(args: argparse.Namespace) -> int:
    """Check and print.

    Raises:
        ProblemsError: with every problem found on the chosen hosts.
    """
    source = args.inventory or default_inventory()
    inventory = read_inventory(source)
    report = check_fleet(
        inventory.hosts,
        locate=inventory.origins,
        files=ProjectFiles(inventory.project),
        planner=kv_fit,
    )
    for problem, host in inventory.origins.duplicates():
        report.add(problem, [host])
    for problem, readers in misspelt(inventory.origins.names()):
        report.add(problem, readers)
    for host, variables in inventory.hosts.items():
        for secret, problem in missing_secrets(host, variables, inventory.origins):
            if holds_secrets(variables):
                report.add(problem, [host])
            else:
                why = "no secret is in the inventory; a run that gets them with -e looks"
                report.skip(Unchecked("vault", secret, why), [host])
    hosts = sorted(read_inventory(source, args.limit).members) if args.limit else None
    report.raise_for(hosts, deploy=args.deploy)
    print(as_json(report, hosts) if args.json else as_text(report, hosts))
    return 0


def chosen_seats(report: Report, hosts: Iterable[str] | None) -> list[Seat]:
    """Return the seats of the chosen hosts, by host and name."""
    wanted = None if hosts is None else set(hosts)
    return [seat for (host, _), seat in sorted(report.seats.items()) if wanted is None or host in wanted]


def skipped(report: Report, hosts: Iterable[str] | None) -> list[Unchecked]:
    """Return what was not checked on the chosen hosts; entries of a catalogue that no seat uses concern no host."""
    wanted = None if hosts is None else set(hosts)
    return sorted(item for item, scope in report.not_checked.items() if (scope if wanted is None else scope & wanted))


def as_text(report: Report, hosts: Sequence[str] | None) -> str:
    """Return the table of seats and the list of what was not checked."""
    seats, items = chosen_seats(report, hosts), skipped(report, hosts)
    header = ("host", "seat", "model", "release", "gpus", "port", "context", "KV", "drafts", "aliases")
    lines = list(aligned([header, *(_row(seat, report) for seat in seats)]))
    verdict = f"{len(seats)} seat{'s' if len(seats) != 1 else ''}, no problem found"
    # Flags under `engine`, for one, are parsed by the release that is installed there.
    rest = f"{len(items)} not checked:" if items else "everything checked that can be without the hosts"
    lines += ["", f"{verdict}, {rest}"]
    lines += [f"  {'blocks a deploy: ' if item.blocks else ''}{item}" for item in items]
    return "\n".join(lines)


def as_json(report: Report, hosts: Sequence[str] | None) -> str:
    """Return the same for programs."""
    seats = [
        {"host": seat.host, "seat": seat.name, "model": seat.model, "release": seat.release, "port": seat.port}
        for seat in chosen_seats(report, hosts)
    ]
    return json.dumps({"seats": seats, "not_checked": [vars(item) for item in skipped(report, hosts)]}, indent=2)


def _row(seat: Seat, report: Report) -> tuple[str, ...]:
    pin = seat.kv_cache_memory
    memory = f"{seat.gpu_memory_utilization:g} of the GPU" if pin is None else format_size(pin)
    spec = seat.speculative
    return (
        seat.host,
        seat.name + ("" if seat.state == "present" else f" ({seat.state})"),
        seat.model,
        seat.release,
        ",".join(str(gpu) for gpu in seat.gpus) or "-",
        str(seat.port),
        f"{seat.max_model_len:,}",
        ": ".join(part for part in (memory, report.fits.get((seat.host, seat.name))) if part),
        "off" if spec is None else f"{spec.method} n={spec.num_speculative_tokens}",
        ",".join(alias.name for alias in seat.aliases) or "-",
    )
