"""Models by manifest: which files a revision is made of, with size and sha256.

manifest DIR    measure the files of DIR and write a manifest, to be committed as files/models/NAME.json
verify DIR      compare DIR with a manifest, every byte
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "manifests of model files"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    manifest = actions.add_parser("manifest")
    manifest.add_argument("directory", type=Path, metavar="DIR")
    manifest.add_argument("--name", help="the model's name in the catalogue (default: the directory's)")
    manifest.add_argument("--revision", help="the hub's 40-digit commit (default: follows from the content)")
    manifest.add_argument("--output", type=Path, help="the file to write (default: standard output)")
    verify = actions.add_parser("verify")
    verify.add_argument("directory", type=Path, metavar="DIR")
    verify.add_argument("--manifest", type=Path, required=True)


def run(args: argparse.Namespace) -> int:
    """Run one action; 2 when files are not what the manifest says."""
    from seatfleet.core import models
    from seatfleet.core.files import pretty_json
    from seatfleet.core.problems import ProblemsError

    if args.action == "manifest":
        measured = models.measure(args.directory, args.name or args.directory.resolve().name, args.revision)
        text = pretty_json(models.load_manifest(measured.to_mapping(), str(args.directory)).to_mapping())
        if args.output:
            args.output.write_text(text, encoding="utf-8")
        else:
            print(text, end="")
        return 0
    manifest = models.load_manifest(json.loads(args.manifest.read_text(encoding="utf-8")), str(args.manifest))
    if problems := models.compare(args.directory, manifest, hashes=True):
        raise ProblemsError(problems)
    print(f"{manifest.name}: {len(manifest.files)} files, {manifest.size} bytes, all as in {args.manifest}")
    return 0
