"""Models by manifest: which files a revision is made of, with size and sha256.

pin NAME        ask the hub what the catalogue's revision of NAME holds and write its manifest, to be committed
fetch NAME      bring NAME into the cache (mirror/models/NAME), from where hosts get it: resumed, verified, at once
manifest DIR    measure the files of DIR and write a manifest, for a model that comes from no hub
verify DIR      compare DIR with a manifest, every byte
tensors DIR     look for the tensors that the catalogue says NAME needs; reads headers only
serve DIR       on a host: let another host copy a model of the store over the fast link (playbooks/copy-model.yml)
receive         on the other host: copy it into the store

The hub is --hub, $HF_ENDPOINT, or https://huggingface.co; $HF_TOKEN opens closed repositories. A directory given with
--directory is looked into first; with it a model arrives while the hub is unreachable.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seatfleet.core.model.models import Manifest
    from seatfleet.core.model.tensors import Need

HELP = "manifests and files of models"
# Not needed to serve, and different at every visit to the hub's page.
EXCLUDED = (".gitattributes", ".gitignore")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    pin = actions.add_parser("pin")
    pin.add_argument("name", metavar="NAME")
    pin.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="files to leave out, repeatable")
    fetch = actions.add_parser("fetch")
    fetch.add_argument("names", nargs="+", metavar="NAME")
    fetch.add_argument("--directory", type=Path, action="append", default=[], help="look here first, repeatable")
    fetch.add_argument("--no-hub", action="store_true", help="directories only")
    for action in (pin, fetch):
        action.add_argument("--hub", metavar="URL")
        action.add_argument("--project", type=Path, help="the checkout (default: the one around the current directory)")
    manifest = actions.add_parser("manifest")
    manifest.add_argument("directory", type=Path, metavar="DIR")
    manifest.add_argument("--name", help="the model's name in the catalogue (default: the directory's)")
    manifest.add_argument("--revision", help="the hub's 40-digit commit (default: follows from the content)")
    manifest.add_argument("--output", type=Path, help="the file to write (default: standard output)")
    verify = actions.add_parser("verify")
    verify.add_argument("directory", type=Path, metavar="DIR")
    verify.add_argument("--manifest", type=Path, required=True)
    tensors = actions.add_parser("tensors")
    tensors.add_argument("directory", type=Path, metavar="DIR")
    tensors.add_argument("--name", help="the catalogue's model whose needs count")
    tensors.add_argument("--need", action="append", default=[], metavar="PREFIX[=COUNT]", help="repeatable")
    tensors.add_argument("--project", type=Path, help="the checkout (default: the one around the current directory)")
    serve = actions.add_parser("serve")
    serve.add_argument("directory", type=Path, metavar="DIR", help="a published model, /srv/models/NAME/REVISION12")
    serve.add_argument("--address", required=True, help="of the fast link")
    serve.add_argument("--port", type=int, default=8040)
    serve.add_argument("--idle", type=float, default=120.0, metavar="SECONDS", help="end when nobody has asked so long")
    receive = actions.add_parser("receive")
    receive.add_argument("--manifest", type=Path, required=True)
    receive.add_argument("--hub", metavar="URL", required=True, help="of the serving host")
    receive.add_argument("--root", type=Path, default=Path("/srv/models"))


def run(args: argparse.Namespace) -> int:
    """Run one action; 2 when files are not what they should be, 1 when a download broke off."""
    from seatfleet.clients.hub import HubError
    from seatfleet.clients.model_fetch import FetchError

    actions = {
        "pin": _pin,
        "fetch": _fetch,
        "manifest": _manifest,
        "verify": _verify,
        "tensors": _tensors,
        "serve": _serve,
        "receive": _receive,
    }
    try:
        actions[args.action](args)
    except (FetchError, HubError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        # A disk that filled up meanwhile, a file that cannot be read. What was staged stays.
        print(f"{error}; run again to resume when that is put right", file=sys.stderr)
        return 1
    return 0


def _pin(args: argparse.Namespace) -> None:
    from seatfleet.clients import model_fetch
    from seatfleet.clients.hub import Hub
    from seatfleet.core.files import pretty_json

    project = _project(args)
    entry = model_fetch.catalogue_entry(project, args.name)
    with Hub(args.hub) as hub:
        excluded = (*EXCLUDED, *args.exclude)
        found = model_fetch.pin(args.name, entry["repository"], entry["revision"], hub, excluded, _say)
    target = project / entry["manifest"]
    target.write_text(pretty_json(found.to_mapping()), encoding="utf-8")
    _say(f"{entry['manifest']}: {len(found.files)} files, {found.size} bytes; commit it")


def _fetch(args: argparse.Namespace) -> None:
    from seatfleet.clients import model_fetch
    from seatfleet.clients.hub import Hub
    from seatfleet.clients.project import cache_root
    from seatfleet.core.model.tensors import needs_of

    project = _project(args)
    mirror = cache_root() / "mirror"
    with Hub(args.hub) as hub:
        for name in args.names:
            entry = model_fetch.catalogue_entry(project, name)
            local = entry["repository"].startswith("local:")
            manifest = _read(project / entry["manifest"])
            if manifest.revision != entry["revision"]:
                _refuse_revision(entry["manifest"], name, entry["revision"], manifest.revision)
            directories = [
                found for one in args.directory for found in (one / entry.get("mirror", "-"), one / name, one)
            ]
            origin = model_fetch.Origin(entry["repository"], None if args.no_hub or local else hub, directories)
            place = model_fetch.Place(mirror / (entry.get("mirror") or f"models/{name}"))
            model_fetch.fetch(manifest, place, origin, needs_of(entry), _say)


def _refuse_revision(path: str, name: str, wanted: str, seen: str) -> None:
    from seatfleet.core.problems import Problem, ProblemsError

    expected = f"{wanted} as in the catalogue (seatctl model pin {name} writes it)"
    raise ProblemsError([Problem(path, f"model {name}", "revision", expected, seen)])


def _manifest(args: argparse.Namespace) -> None:
    from seatfleet.core.files import pretty_json
    from seatfleet.core.model import models

    measured = models.measure(args.directory, args.name or args.directory.resolve().name, args.revision)
    text = pretty_json(models.load_manifest(measured.to_mapping(), str(args.directory)).to_mapping())
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def _verify(args: argparse.Namespace) -> None:
    from seatfleet.core.model import models
    from seatfleet.core.problems import ProblemsError

    manifest = _read(args.manifest)
    if problems := models.compare(args.directory, manifest, hashes=True):
        raise ProblemsError(problems)
    print(f"{manifest.name}: {len(manifest.files)} files, {manifest.size} bytes, all as in {args.manifest}")


def _tensors(args: argparse.Namespace) -> None:
    from seatfleet.core.model import tensors
    from seatfleet.core.problems import Problem, ProblemsError

    if not args.directory.is_dir():
        raise ProblemsError([Problem(str(args.directory), "checkpoint", "", "a directory", "none")])
    checkpoint, problems = tensors.read_checkpoint(args.directory)
    needs = _needs(args)
    if problems := [*problems, *tensors.check(checkpoint, needs, str(args.directory))]:
        raise ProblemsError(problems)
    counts = [f"{need.prefix}*: {sum(name.startswith(need.prefix) for name in checkpoint.index)}" for need in needs]
    print(", ".join([f"{len(checkpoint.index)} tensors", *counts]))


def _needs(args: argparse.Namespace) -> list[Need]:
    from seatfleet.clients.model_fetch import catalogue_entry
    from seatfleet.core.model.tensors import Need, needs_of
    from seatfleet.core.problems import Problem, ProblemsError

    named = needs_of(catalogue_entry(_project(args), args.name)) if args.name else []
    parts = [written.partition("=") for written in args.need]
    if wrong := [count for _, _, count in parts if count and not count.isdecimal()]:
        raise ProblemsError([Problem("--need", "", "", "PREFIX=COUNT with an integer", wrong[0])])
    return [*named, *(Need(prefix, int(count) if count else None) for prefix, _, count in parts)]


def _serve(args: argparse.Namespace) -> None:
    from seatfleet.clients.model_server import ModelServer
    from seatfleet.core.model.models import MANIFEST

    manifest = _read(args.directory / MANIFEST)
    server = ModelServer((args.address, args.port), args.directory, f"local/{manifest.name}", manifest)
    _say(f"{manifest.name} at {server.url} until nobody has asked for {args.idle:.0f} s")
    server.serve_until_idle(args.idle)


def _receive(args: argparse.Namespace) -> None:
    from seatfleet.clients import model_fetch
    from seatfleet.clients.hub import Hub

    manifest = _read(args.manifest)
    place = model_fetch.Place(args.root / manifest.directory, listed=True)
    with Hub(args.hub, environment={}, direct=True) as hub:
        model_fetch.fetch(manifest, place, model_fetch.Origin(f"local/{manifest.name}", hub), (), _say)


def _read(path: Path) -> Manifest:
    from seatfleet.core.model.models import load_manifest
    from seatfleet.core.problems import Problem, ProblemsError

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        expected = "the model's manifest (seatctl model pin NAME writes it)"
        raise ProblemsError([Problem(str(path), "model manifest", "", expected, str(error.strerror))]) from error
    except ValueError as error:
        raise ProblemsError([Problem(str(path), "model manifest", "", "JSON", str(error))]) from error
    if not isinstance(content, dict):
        raise ProblemsError([Problem(str(path), "model manifest", "", "a JSON object", type(content).__name__)])
    return load_manifest(content, str(path))


def _project(args: argparse.Namespace) -> Path:
    from seatfleet.clients.project import project_root

    return Path(args.project) if args.project else project_root(Path.cwd())


def _say(line: str) -> None:
    print(line, flush=True)
