"""Locks and wheelhouses of releases.

  lock NAME...    resolve the recipe NAME of files/locks/locks.yml again, as of its date, and write files/locks/NAME.txt
  check NAME...   say what is missing for a fetch: wheels that are on no index, pip, room on the disk
  fetch NAME...   build the wheelhouse of a lock in the cache: mirror/wheelhouses/NAME
  trees NAME...   unpack the Python files of the lock's vLLM in the cache: mirror/trees/NAME, for trying patch series
  survey [VERSION] what another vLLM (default: the newest on the index) would change: pins, patches, flags of the seats;
                  exit code 1 when something has to be changed by hand
  toolbox         build the hosts' toolbox, this checkout's own wheel among it, in the cache: mirror/toolbox

The cache is $SEATFLEET_CACHE (default ~/.cache/seatfleet). Wheels that are on no package index are looked for in the
directories of $SEATFLEET_WHEELS (default: the directories among $PIP_FIND_LINKS).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seatfleet.clients.wheelhouse import Recipe

HELP = "locks and wheelhouses of vLLM releases"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    parser.add_argument("--project", type=Path, help="the checkout (default: the one around the current directory)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    survey = actions.add_parser("survey")
    survey.add_argument("version", nargs="?", metavar="VERSION", help="default: the newest on the package index")
    survey.add_argument("--tree", type=Path, metavar="DIR", help="an unpacked wheel instead of a download")
    survey.add_argument(
        "--inventory", type=Path, help="whose seats count (default: ANSIBLE_INVENTORY, else inventory/production)"
    )
    for action in ("lock", "check", "fetch", "trees", "toolbox"):
        parser = actions.add_parser(action)
        if action == "toolbox":
            parser.add_argument("names", nargs="*", metavar="NAME", default=["toolbox-cp311-x86_64"])
        else:
            parser.add_argument("names", nargs="+", metavar="NAME")
        if action in {"fetch", "toolbox"}:
            parser.add_argument("--archive", action="store_true", help="also NAME.tar, for hosts without a mirror")


def run(args: argparse.Namespace) -> int:
    """Run one action; 2 for bad input, 1 when a tool or a download failed."""
    from seatfleet.clients.project import project_root
    from seatfleet.clients.wheelhouse import WheelhouseError

    project = args.project or project_root(Path.cwd())
    try:
        return _survey(project, args) if args.action == "survey" else _run(project, args)
    except WheelhouseError as error:
        print(error, file=sys.stderr)
        return 1


def _run(project: Path, args: argparse.Namespace) -> int:
    from seatfleet.clients import project as places
    from seatfleet.clients import trees, wheelhouse
    from seatfleet.core.problems import ProblemsError
    from seatfleet.core.release.locks import parse_lock

    directory = project / "files/locks"
    recipes = _named(wheelhouse.load_recipes(directory / "locks.yml"), args.names)
    wheel_dirs = places.wheel_directories()
    if args.action == "lock":
        for recipe in recipes:
            text = wheelhouse.compile_lock(recipe, directory, wheel_dirs)
            (directory / f"{recipe.name}.txt").write_text(text, encoding="utf-8")
            _say(f"files/locks/{recipe.name}.txt: {len(parse_lock(text, recipe.name).pins)} distributions")
        return 0
    mirror = places.cache_root() / "mirror"
    root = mirror / "wheelhouses"
    texts = {recipe: (directory / f"{recipe.name}.txt").read_text(encoding="utf-8") for recipe in recipes}
    locks = {recipe: parse_lock(text, f"files/locks/{recipe.name}.txt") for recipe, text in texts.items()}
    if args.action == "trees":
        for recipe, lock in locks.items():
            trees.build(lock, recipe.name, places.cache_root(), _say)
        return 0
    problems = [
        problem
        for recipe, lock in locks.items()
        if not wheelhouse.is_complete(root / recipe.name, lock)
        for problem in wheelhouse.check(lock, recipe.name, root, wheel_dirs)
    ]
    if problems:
        raise ProblemsError(problems)
    if args.action == "check":
        return 0
    for recipe, lock in locks.items():
        built = wheelhouse.fetch(lock, texts[recipe], recipe.name, root, wheel_dirs, recipe.shims, _say)
        if args.action == "toolbox":
            built = wheelhouse.build_toolbox(project, lock, built, mirror / "toolbox", _say)
        if args.archive:
            _say(f"{wheelhouse.write_archive(built)}")
    return 0


def _survey(project: Path, args: argparse.Namespace) -> int:
    import yaml

    from seatfleet.clients import project as places
    from seatfleet.clients import release_survey, trees
    from seatfleet.clients.inventory import default_inventory, read_inventory
    from seatfleet.core.release import patches
    from seatfleet.core.release.locks import parse_lock

    tree = args.tree or trees.newest("vllm", args.version, places.cache_root(), _say)
    candidate = release_survey.read_candidate(tree)
    inventory = read_inventory(args.inventory or default_inventory(project))
    used = release_survey.uses({host: inventory.hosts[host] for host in inventory.members})
    _say(f"vLLM {candidate.version} ({tree}), {len(used)} seats")
    by_hand = False
    releases = yaml.safe_load((project / "group_vars/all/releases.yml").read_text(encoding="utf-8"))["releases"]
    for name, entry in releases.items():
        if entry["distribution"] != "vllm":
            continue
        path = entry["locks"].get("x86_64") or entry["locks"]["aarch64"]
        folder = project / "files/patches" / entry["series"] if entry.get("series") else None
        series = diffs = None
        if folder is not None:
            written = yaml.safe_load((folder / "series.yml").read_text(encoding="utf-8"))
            series = patches.select(patches.load_series(written, str(folder)), entry.get("patches"))
            diffs = patches.load_diffs(folder, series)
        lock = parse_lock((project / path).read_text(encoding="utf-8"), path)
        own = project / f"files/patches/vllm-{candidate.version}/series.yml"
        listed = yaml.safe_load(own.read_text(encoding="utf-8"))["patches"] if own.is_file() else []
        ported = frozenset(patch["name"] for patch in listed)
        found = release_survey.survey(name, entry, lock, series, diffs or {}, candidate, used, ported)
        for line in release_survey.lines(found, candidate):
            _say(line)
        by_hand = by_hand or found.by_hand
    return int(by_hand)


def _named(recipes: dict[str, Recipe], names: list[str]) -> list[Recipe]:
    from seatfleet.core.problems import Problem, ProblemsError

    known = ", ".join(sorted(recipes))
    problems = [
        Problem("files/locks/locks.yml", f"lock {name}", "", f"one of {known}", "no such recipe")
        for name in names
        if name not in recipes
    ]
    if problems:
        raise ProblemsError(problems)
    return [recipes[name] for name in names]


def _say(line: str) -> None:
    print(line, flush=True)
