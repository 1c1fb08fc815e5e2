"""Patch series on an installed vLLM: state, apply, verify, revert; and what a series needs for another wheel.

  seatctl patch status   --site SITE SERIES     state and hash of every file the series touches
  seatctl patch apply    --site SITE SERIES     pristine -> patched; --check only says what would happen
  seatctl patch verify   --site SITE SERIES     exit 0 only when every file is patched (run before every start)
  seatctl patch revert   --site SITE SERIES     patched -> pristine
  seatctl patch selftest --python PYTHON        prefix hits against the state oracle, in that release's own Python
  seatctl patch survey   WHEEL                  per patch: applies, moved, superseded, contained or to be ported
  seatctl patch hash     WHEEL SERIES           fill the hashes of series.yml from the wheel and the diffs
  seatctl patch new      WHEEL SERIES FOLDER    start the series of another wheel from one that exists

SERIES is a folder with series.yml (default: its default patches), a series.json as a release carries it (all of it), or
the directory of an installed release, which brings its own site-packages. SITE is a site-packages folder. WHEEL is a
wheel file or an unpacked one.
"""

from __future__ import annotations

import argparse
import email
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from seatfleet.core.problems import Problem
from seatfleet.core.release import kv_oracle, patch_survey, patches, unified_diff
from seatfleet.core.release.patches import PatchError, Reader, Series
from seatfleet.core.release.releases import MARKER, SERIES

HELP = "apply, verify and port patch series"
SELFTEST_TIMEOUT_S = 180


def configure(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per action."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, run_action, text in (
        ("status", _status, "state and hash of every file"),
        ("apply", _apply, "pristine -> patched"),
        ("verify", _verify, "fail unless every file is patched"),
        ("revert", _revert, "patched -> pristine"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("series", type=Path, metavar="SERIES")
        action.add_argument("--site", type=Path, help="site-packages folder, unless SERIES is an installed release")
        action.add_argument("--only", metavar="NAMES", help="comma-separated patch names instead of the default ones")
        if name in {"apply", "revert"}:
            action.add_argument("--check", action="store_true", help="compare everything, write nothing")
        action.set_defaults(run_action=run_action)
    selftest = actions.add_parser("selftest", help="prefix hits against the state oracle")
    selftest.add_argument("--python", type=Path, default=Path(sys.executable), help="the release's own Python")
    selftest.add_argument("--site", type=Path, help="packages to put before those of that Python")
    selftest.add_argument("--scenario", choices=kv_oracle.SCENARIOS, action="append")
    selftest.add_argument("--method", choices=kv_oracle.METHODS, action="append")
    selftest.add_argument("--cases", type=int, default=kv_oracle.CASES)
    selftest.add_argument("--seed", type=int, default=7)
    selftest.set_defaults(run_action=_selftest)
    survey = actions.add_parser("survey", help="what the known series mean for another wheel")
    survey.add_argument("wheel", type=Path, metavar="WHEEL")
    survey.add_argument("--series-root", type=Path, default=Path("files/patches"))
    survey.set_defaults(run_action=_survey)
    fill = actions.add_parser("hash", help="fill the hashes of series.yml")
    fill.add_argument("wheel", type=Path, metavar="WHEEL")
    fill.add_argument("series", type=Path, metavar="SERIES")
    fill.set_defaults(run_action=_hash)
    new = actions.add_parser("new", help="start a series for another wheel")
    new.add_argument("wheel", type=Path, metavar="WHEEL")
    new.add_argument("series", type=Path, metavar="SERIES")
    new.add_argument("folder", type=Path, metavar="FOLDER")
    new.set_defaults(run_action=_new)


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    if "site" in args and args.site is None and "series" in args:
        installed = _installed(args.series.resolve())
        if installed is None:
            print(f"{args.series.resolve().name}: no patches")
            return 0
        args.series, args.site = installed
    return int(args.run_action(args))


def _installed(release: Path) -> tuple[Path, Path] | None:
    """Return series and site-packages of an installed release, None for one without patches."""
    sites = list(release.glob("lib/python3.*/site-packages"))
    if not (release / MARKER).is_file() or len(sites) != 1:
        expected = f"an installed release (it has {MARKER}), or --site"
        raise PatchError([Problem(str(release), "release", "", expected, "no such installation")])
    return (release / SERIES, sites[0]) if (release / SERIES).is_file() else None


# --- on an installation ----------------------------------------------------------------------------------------------


def _status(args: argparse.Namespace) -> int:
    series = _selected(args)
    for file in patches.status(args.site, series):
        print(f"{file.state:8}  {file.seen or '-':64}  {file.path}")
    return 0


def _apply(args: argparse.Namespace) -> int:
    series = _selected(args)
    changed = patches.apply(args.site, series, patches.load_diffs(_folder(args.series), series), check=args.check)
    return _say(series, changed, "would be applied" if args.check else "applied", "in place already")


def _revert(args: argparse.Namespace) -> int:
    series = _selected(args)
    changed = patches.revert(args.site, series, patches.load_diffs(_folder(args.series), series), check=args.check)
    return _say(series, changed, "would be reverted" if args.check else "reverted", "not applied")


def _verify(args: argparse.Namespace) -> int:
    series = _selected(args)
    patches.verify(args.site, series)
    return _say(series, False, "", "in place")


def _say(series: Series, changed: bool, done: str, nothing: str) -> int:
    names = ", ".join(patch.name for patch in series.patches) or "no patches"
    print(f"{series.label}: {names}: {done if changed else nothing}")
    return 0


def _selftest(args: argparse.Namespace) -> int:
    """Run the oracle, a file on its own, in the release's Python (isolated from this one's packages)."""
    command = [str(args.python), "-P", str(Path(kv_oracle.__file__))]
    command += ["--cases", str(args.cases), "--seed", str(args.seed)]
    command += [part for name in args.method or () for part in ("--method", name)]
    command += [part for name in args.scenario or () for part in ("--scenario", name)]
    command += ["--site", str(args.site)] if args.site else []
    return subprocess.run(command, check=False, timeout=SELFTEST_TIMEOUT_S).returncode


# --- on wheels -------------------------------------------------------------------------------------------------------


def _survey(args: argparse.Namespace) -> int:
    """Survey with the nearest older (or equal) series; exit 1 when something needs porting."""
    folders = [file.parent for file in sorted(args.series_root.glob("*/series.yml"))]
    if not folders:
        raise PatchError([Problem(str(args.series_root), "", "series", "at least one folder with series.yml", "none")])
    wheel = Wheel(args.wheel, {_name_of(folder)[0] for folder in folders})
    folder = _nearest(folders, wheel)
    series = _read_series(folder)
    found = patch_survey.survey(series, patches.load_diffs(folder, series), wheel.read, wheel.version)
    print(f"{wheel.distribution} {wheel.version} against {folder}")
    for finding in found:
        upstream = f" [{finding.patch.upstream}]" if finding.verdict != "applies" else ""
        print(f"{finding.verdict:10}  {finding.patch.name:24}  {finding.detail}{upstream}".rstrip())
    return int(any(finding.verdict == "port" for finding in found))


def _hash(args: argparse.Namespace) -> int:
    mapping = yaml.safe_load((args.series / "series.yml").read_text())
    wheel = Wheel(args.wheel, {mapping["distribution"]})
    filled = fill_hashes(mapping, args.series, wheel.read, wheel.recorded())
    patches.load_series(filled, str(args.series / "series.yml"))
    (args.series / "series.yml").write_text(dump_series(filled))
    print(f"{args.series / 'series.yml'}: {len(filled['patches'])} patches hashed against {wheel.path.name}")
    return 0


def _new(args: argparse.Namespace) -> int:
    series = _read_series(args.series)
    wheel = Wheel(args.wheel, {series.distribution})
    found = patch_survey.survey(series, patches.load_diffs(args.series, series), wheel.read, wheel.version)
    started, diffs = patch_survey.ported(series, found, wheel.read, wheel.version)
    args.folder.mkdir(parents=True)
    for patch in started.patches:
        (args.folder / patch.file).write_text(diffs[patch.name])
    (args.folder / "series.yml").write_text(dump_series(started.to_mapping()))
    for finding in found:
        print(f"{finding.verdict:10}  {finding.patch.name:24}  {finding.detail}".rstrip())
    return 0


class Wheel:
    """A wheel file, or a folder with one unpacked or installed: its name, version and files.

    ``distributions`` are the names that count when there are others beside it.
    """

    def __init__(self, path: Path, distributions: Iterable[str]) -> None:
        self.path, known = path, set(distributions)
        try:
            self._zip = zipfile.ZipFile(path) if path.is_file() else None
        except zipfile.BadZipFile as error:
            raise PatchError([Problem(str(path), "wheel", "", "a wheel or an unpacked one", str(error))]) from error
        names = self._zip.namelist() if self._zip else [str(p.relative_to(path)) for p in path.glob("*.dist-info/*")]
        infos = {name.split("/")[0] for name in names if re.match(r"[^/]+\.dist-info/", name)}
        infos = {info for info in infos if info.split("-")[0] in known}
        if len(infos) != 1:
            expected = f"the .dist-info folder of one of {', '.join(sorted(known))}"
            raise PatchError([Problem(str(path), "wheel", "", expected, ", ".join(sorted(infos)) or "none")])
        (self.info,) = infos
        metadata = email.message_from_bytes(self.read(f"{self.info}/METADATA") or b"")
        self.distribution, self.version = self.info.removesuffix(".dist-info").split("-")[0], str(metadata["Version"])

    def read(self, name: str) -> bytes | None:
        """Return one file's content, None when it is not in the wheel."""
        try:
            return self._zip.read(name) if self._zip else (self.path / name).read_bytes()
        except (KeyError, FileNotFoundError):
            return None

    def recorded(self) -> Mapping[str, str]:
        """Return ``{path: sha256}`` of the wheel's own RECORD."""
        return patches.record_hashes(self.read(f"{self.info}/RECORD") or b"")


def fill_hashes(mapping: Mapping[str, Any], folder: Path, read: Reader, recorded: Mapping[str, str]) -> dict[str, Any]:
    """Return the series with every sha256 computed: diffs as they are, files by applying them in order.

    A pristine file that differs from the wheel's own RECORD means that the tree is not the wheel: refused.
    """
    tree: dict[str, str | None] = {}
    entries = []
    for entry in mapping["patches"]:
        text = (folder / entry["file"]).read_bytes().decode()
        files: dict[str, dict[str, str | None]] = {}
        for path, diff in sorted(unified_diff.parse(text).items()):
            if path not in tree:
                raw = read(path)
                seen = None if raw is None else patches.sha256_of(raw)
                if seen != recorded.get(path):
                    where = f"{folder}: {path}"
                    raise PatchError([Problem(where, "pristine", "sha256", str(recorded.get(path)), str(seen))])
                tree[path] = None if raw is None else raw.decode()
            before = tree[path]
            after = unified_diff.apply(path, before or "", diff.hunks)
            tree[path] = after
            start = None if before is None else patches.sha256_of(before.encode())
            files[path] = {"before": start, "after": patches.sha256_of(after.encode())}
        entries.append({**entry, "sha256": patches.sha256_of(text.encode()), "files": files})
    return {**mapping, "patches": entries}


_ORDER = (
    "name",
    "file",
    "sha256",
    "files",
    "why",
    "changes",
    "upstream",
    "needs",
    "conflicts",
    "superseded_by",
    "seats",
)


class _Dumper(yaml.SafeDumper):
    """Indents list items below their key and folds long texts, as the rest of the project writes YAML."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=">" if len(text) > 90 else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def dump_series(mapping: Mapping[str, Any]) -> str:
    """Return ``series.yml`` in one fixed form, so that filling hashes makes small diffs."""
    entries = [
        {key: entry[key] for key in (*_ORDER, *(k for k in entry if k not in _ORDER)) if key in entry}
        for entry in mapping["patches"]
    ]
    head = {key: mapping[key] for key in ("format", "distribution", "version")}
    plain = {**head, "patches": entries}
    return "---\n" + yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


# --- finding things --------------------------------------------------------------------------------------------------


def _selected(args: argparse.Namespace) -> Series:
    series = _read_series(args.series)
    if args.only is not None:
        return patches.select(series, [name.strip() for name in args.only.split(",")])
    return series if args.series.suffix == ".json" else patches.select(series)


def _folder(series: Path) -> Path:
    return series if series.is_dir() else series.parent


def _read_series(path: Path) -> Series:
    file = path / "series.yml" if path.is_dir() else path
    try:
        text = file.read_text()
        content = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PatchError([Problem(str(file), "series", "", "a readable file", str(error))]) from error
    if not isinstance(content, dict):
        raise PatchError([Problem(str(file), "series", "", "a mapping", type(content).__name__)])
    return patches.load_series(content, str(file))


def _name_of(folder: Path) -> tuple[str, str]:
    """Return distribution and version of a series by its folder's name: ``vllm-0.23.0``."""
    distribution, _, version = folder.name.rpartition("-")
    return distribution, version


def _nearest(folders: Sequence[Path], wheel: Wheel) -> Path:
    """Return the folder of the newest series that is not newer than the wheel; else the oldest one there is."""
    versions = {folder: _name_of(folder)[1] for folder in folders if _name_of(folder)[0] == wheel.distribution}
    by_age = sorted(versions, key=lambda folder: patch_survey.numbers(versions[folder]))
    older = [folder for folder in by_age if patch_survey.at_least(wheel.version, versions[folder])]
    return older[-1] if older else by_age[0]
