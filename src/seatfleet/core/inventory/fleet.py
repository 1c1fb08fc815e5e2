"""Everything the operator wrote for the whole fleet, checked at once: seats, catalogues, and the rules between them.

Three kinds of result are kept apart: *problems* (wrong, nothing may be deployed to the hosts concerned), *not checked*
(cannot be known here; never counted as passed) and among those the ones that *block a deploy*: values that only the
fleet's owner can fill in, and files that are declared but not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..model.planner import check_fit
from ..problems import Problem, ProblemsError
from ..release.patches import Series, select
from ..units import format_gib
from .catalogue import HARDWARE, MODEL, RELEASE, Entry, missing_patches, read_entry, version_key
from .kinds import INVALID, Path, did_you_mean, is_placeholder, is_template, show
from .pins import POLICIES, doubts, reference
from .schema import Presets, Read, read_seat, seat_problems
from .seat import Seat

#: Prefixes of environment names that belong to libraries under vLLM. ``VLLM_*`` is checked by the release's own list.
LIBRARY_ENV = (
    "CUDA_",
    "CUTE_DSL_",
    "FLASHINFER_",
    "GLOO_",
    "HF_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "OTEL_",
    "PYTHON",
    "PYTORCH_",
    "RAY_",
    "SAFETENSORS_",
    "SEATFLEET_",
    "TOKENIZERS_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TQDM_",
    "TRANSFORMERS_",
    "TRITON_",
    "UCX_",
)
#: Names that patches of our own series read.
PATCH_ENV_NAMES = ("INC_EXPECT_FP8_LAYERS", "LM_HEAD_INT8", "LM_HEAD_INT8_KEEP_BF16")
LIBRARY_ENV_NAMES = ("DO_NOT_TRACK", "LANG", "LC_ALL", "MAX_JOBS", "NO_PROXY", "NVCC_THREADS", "PATH", "TZ")


FLEET_VARIABLES = (
    "seats",
    "seat_defaults",
    "seat_class_defaults",
    "seat_environment",
    "seat_profiles",
    "releases",
    "models",
    "fleet_hardware",
    "fleet_pin_policy",
    "fleet_stub_port",
    "gateway_key_names",
    "gateway_control_key",
    "gateway_query_engine",
    "group_names",
    "seat_alias_handout_dir",
    "seat_alias_key_values",
)
#: The group whose hosts get their seats deployed.
SEAT_GROUP = "gpu_hosts"


@dataclass(frozen=True)
class Fit:
    """The planner's answer for one seat.

    ``problems`` are (field, expected, seen); ``unknown`` says why nothing could be computed (then the fit is reported
    as not checked); ``summary`` is one line for the seat table, such as ``560,654 tokens, 2.14 x 262,144 (fitted)``.
    """

    problems: tuple[tuple[str, str, str], ...] = ()
    unknown: str | None = None
    summary: str = ""


class Planner(Protocol):
    """Says whether a seat's context fits its KV pool."""

    def __call__(self, seat: Seat, catalogues: Mapping[str, Any], hardware: Mapping[str, Any]) -> Fit:
        """Return the fit.

        ``catalogues`` has ``releases`` and ``models`` as written, except that ``facts.config`` is the content of that
        file; ``hardware`` is ``fleet_hardware``.
        """


class ProjectFiles(Protocol):
    """What the rules need to know about files of the project, all paths relative to its root."""

    def exists(self, path: str) -> bool:
        """Return True when the file or directory is there."""

    def manifest_revision(self, path: str) -> str | None:
        """Return the revision that a model's manifest is of, None when there is no such file.

        Raises:
            ProblemsError: it is malformed.
        """

    def model_config(self, path: str, manifest: str) -> Mapping[str, Any] | None:
        """Return the content of a copy of a model's config.json, None when there is no such file.

        Raises:
            ProblemsError: it is malformed, or not the file that the manifest lists.
        """

    def series(self, name: str) -> Series | None:
        """Return a patch series, None when there is none of that name.

        Raises:
            ProblemsError: it is malformed.
        """

    def environment_names(self, path: str) -> frozenset[str] | None:
        """Return the names in an environment list, None when there is no such file."""

    def content(self, path: str) -> bytes | None:
        """Return what is in a file, None when there is no such file."""


@dataclass(frozen=True, order=True)
class Unchecked:
    """One thing that was not checked, and why. ``blocks`` says that it stops a deploy to the hosts concerned."""

    subject: str
    what: str
    why: str
    where: str = ""
    blocks: bool = False

    def __str__(self) -> str:
        """One line, in the order an operator reads it."""
        place = ": ".join(part for part in (self.where, self.subject, self.what) if part)
        return f"{place}: {self.why}"


@dataclass
class Report:
    """Outcome of :func:`check_fleet`; each item carries the hosts it concerns."""

    seats: dict[tuple[str, str], Seat] = field(default_factory=dict)
    fits: dict[tuple[str, str], str] = field(default_factory=dict)
    problems: dict[Problem, set[str]] = field(default_factory=dict)
    not_checked: dict[Unchecked, set[str]] = field(default_factory=dict)

    def add(self, problem: Problem, hosts: Iterable[str]) -> None:
        """Record a problem; the same one found for several hosts is kept once."""
        self.problems.setdefault(problem, set()).update(hosts)

    def skip(self, unchecked: Unchecked, hosts: Iterable[str]) -> None:
        """Record something that was not checked."""
        self.not_checked.setdefault(unchecked, set()).update(hosts)

    def concerning(self, hosts: Iterable[str] | None, deploy: bool) -> list[Problem]:
        """Return what stops work on ``hosts`` (None: on any); with ``deploy`` also what blocks one."""
        chosen = None if hosts is None else set(hosts)
        found = [problem for problem, scope in self.problems.items() if chosen is None or scope & chosen]
        for item, scope in self.not_checked.items() if deploy else ():
            # What no host uses, such as a model of the catalogue, blocks the deploy of none.
            if item.blocks and (scope if chosen is None else scope & chosen):
                found.append(Problem(item.where, item.subject, item.what, "all in place before a deploy", item.why))
        return sorted(found)

    def elsewhere(self, hosts: Iterable[str]) -> list[Problem]:
        """Return the problems that concern none of ``hosts``."""
        return sorted(problem for problem, scope in self.problems.items() if not scope & set(hosts))

    def raise_for(self, hosts: Iterable[str] | None = None, deploy: bool = False) -> None:
        """Raise everything that :meth:`concerning` returns.

        Raises:
            ProblemsError: there is any.
        """
        if found := self.concerning(hosts, deploy):
            raise ProblemsError(found)


Locate = Callable[[str, Path], str]


@dataclass(frozen=True)
class _Item:
    """One seat while it is being checked. ``values`` hold INVALID where a field could not be read."""

    host: str
    name: str
    read: Read
    locate: Locate
    class_environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return f"seat {self.name} on {self.host}"

    @property
    def active(self) -> bool:
        return self.read.values.get("state") != "absent"

    def value(self, name: str) -> Any:  # noqa: ANN401 - the type is that of the field
        """Return a field, None when it is absent or could not be read."""
        value = self.read.values.get(name)
        return None if value is INVALID else value

    def where(self, path: Path) -> str:
        return self.locate(self.host, self.read.merged.source(path))

    def problem(self, path: Path, expected: str, seen: str) -> Problem:
        return Problem(self.where(path), self.subject, ".".join(path), expected, seen)

    def unchecked(self, path: Path, why: str, blocks: bool = False) -> Unchecked:
        return Unchecked(self.subject, ".".join(path), why, self.where(path), blocks)


def nowhere(_host: str, path: Path) -> str:
    """Locate without files: the variable's name."""
    return path[0] if path else ""


def is_fleet_variable(name: str) -> bool:
    """Return True for the variables of a host that :func:`check_fleet` reads."""
    return name in FLEET_VARIABLES or name.startswith("vault_")


def kv_fit(seat: Seat, catalogues: Mapping[str, Any], hardware: Mapping[str, Any]) -> Fit:
    """Ask :mod:`seatfleet.core.model.planner`, with what the catalogues say of the seat's model and release."""

    def facts(name: str | None) -> Mapping[str, Any]:
        found = catalogues["models"].get(name, {}).get("facts", {}) if name else {}
        return found if isinstance(found, Mapping) else {}

    release = catalogues["releases"].get(seat.release)
    version = release.get("version") if isinstance(release, Mapping) else None
    found = check_fit(
        seat,
        facts(seat.model),
        str(version),
        drafter_facts=facts(seat.speculative.model if seat.speculative else None),
        cpu=hardware.get("gpus") == 0,
    )
    return Fit(found.problems, found.unknown, found.summary)


def check_fleet(
    hosts: Mapping[str, Mapping[str, Any]],
    *,
    locate: Locate = nowhere,
    files: ProjectFiles | None = None,
    planner: Planner | None = None,
) -> Report:
    """Check the variables of all hosts of an inventory.

    ``hosts`` maps each host name to its merged variables; ``locate`` names the file and line of a variable of a host;
    without ``files`` nothing about files is checked (and reported so); without ``planner`` no KV fit is.
    """
    report = Report()
    items = [item for host in sorted(hosts) for item in _read_host(host, hosts[host], locate, report)]
    for host in sorted(hosts):
        mine = [item for item in items if item.host == host and item.active]
        hardware = _hardware(host, hosts[host], locate, report) if mine else None
        groups = hosts[host].get("group_names")
        if mine and isinstance(groups, Sequence) and SEAT_GROUP not in groups:
            expected = f"a host of group {SEAT_GROUP}, because seats are deployed only there"
            seen = f"groups {', '.join(str(group) for group in groups) or 'none'}"
            report.add(Problem(locate(host, ("seats",)), f"host {host}", "seats", expected, seen), [host])
        catalogue = _Catalogue(host, hosts[host], locate, report)
        for item in mine:
            _check_references(item, catalogue, hardware, files, report)
            _check_keys(item, hosts[host], report)
            _check_fit(item, hosts[host], files, planner, report)
            _check_pin(item, hosts[host], files, report)
        _check_key_secrets(host, hosts[host], locate, report)
        _check_sharing(mine, hosts[host].get("fleet_stub_port"), report)
        _check_host_memory(host, mine, hardware, report)
        catalogue.report_all(files)
    _check_nodes([item for item in items if item.active], hosts, report)
    _check_aliases([item for item in items if item.active], report)
    _check_placeholders(hosts, locate, report)
    for item in items:
        if item.read.seat is not None:
            report.seats[item.host, item.name] = item.read.seat
    return report


def _read_host(host: str, variables: Mapping[str, Any], locate: Locate, report: Report) -> Iterator[_Item]:
    """Read the seats of one host and report what is wrong inside each."""
    seats = variables.get("seats", {})
    if not isinstance(seats, Mapping):
        if is_template(seats):
            report.skip(Unchecked(f"host {host}", "seats", _TEMPLATE, locate(host, ("seats",))), [host])
        else:
            expected = "a mapping of seat names to seats"
            report.add(Problem(locate(host, ("seats",)), f"host {host}", "seats", expected, show(seats)), [host])
        return
    presets = _presets(host, variables, locate, report)
    shared = variables.get("seat_environment", {})
    if not isinstance(shared, Mapping):
        report.add(
            Problem(locate(host, ("seat_environment",)), f"host {host}", "seat_environment", "a mapping", show(shared)),
            [host],
        )
        shared = {}
    for name, written in seats.items():
        item = _Item(host, str(name), read_seat(name, host, written, presets), locate, shared)
        for problem in seat_problems(item.name, host, item.read, lambda path: locate(host, path)):
            report.add(problem, [host])
        for path in item.read.findings.unknown_yet:
            report.skip(item.unchecked(path, _TEMPLATE), [host])
        for path in item.read.findings.placeholders:
            report.skip(item.unchecked(path, _PLACEHOLDER, blocks=True), [host])
        yield item


_TEMPLATE = "a template, known only inside a run"
_PLACEHOLDER = "a placeholder, to be filled in by the owner of the fleet"


def _presets(host: str, variables: Mapping[str, Any], locate: Locate, report: Report) -> Presets:
    """Return the presets of a host; what is not a mapping is reported and left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in ("seat_defaults", "seat_class_defaults", "seat_profiles"):
        value = variables.get(name, {})
        if not isinstance(value, Mapping):
            report.add(Problem(locate(host, (name,)), f"host {host}", name, "a mapping", show(value)), [host])
            value = {}
        found[name] = value
    profiles = {str(name): content for name, content in found["seat_profiles"].items() if isinstance(content, Mapping)}
    return Presets(found["seat_defaults"], found["seat_class_defaults"], profiles)


def _hardware(host: str, variables: Mapping[str, Any], locate: Locate, report: Report) -> Entry:
    """Return the host's hardware; a host with seats must say it."""
    entry = read_entry(HARDWARE, host, variables.get("fleet_hardware"))
    for path, expected, seen in entry.findings.wrong:
        at = ("fleet_hardware", *path)
        report.add(Problem(locate(host, at), f"host {host}", ".".join(at), expected, seen), [host])
    return entry


class _Catalogue:
    """Releases and models of one host's variables; remembers which entries its seats use."""

    def __init__(self, host: str, variables: Mapping[str, Any], locate: Locate, report: Report) -> None:
        self._host, self._locate, self._report = host, locate, report
        self._entries: dict[str, dict[str, Entry]] = {}
        self._used: set[tuple[str, str]] = set()
        for kind, record in (("releases", RELEASE), ("models", MODEL)):
            written = variables.get(kind, {})
            if not isinstance(written, Mapping):
                expected = "a mapping of names to entries"
                report.add(Problem(locate(host, (kind,)), "catalogue", kind, expected, show(written)), [host])
                written = {}
            self._entries[kind] = {str(name): read_entry(record, str(name), item) for name, item in written.items()}

    def find(self, kind: str, name: str, item: _Item, at: Path) -> Entry | None:
        """Return the entry that a seat names, or report that there is none."""
        entries = self._entries[kind]
        if name not in entries:
            expected = f"an entry of {kind}{did_you_mean(name, entries)}"
            self._report.add(item.problem(at, expected, show(name)), [item.host])
            return None
        self._used.add((kind, name))
        return entries[name]

    def report_all(self, files: ProjectFiles | None) -> None:
        """Report faults of entries: those in use concern this host, the others nobody in particular."""
        for kind, entries in self._entries.items():
            for name, entry in entries.items():
                scope = [self._host] if (kind, name) in self._used else []
                subject = f"{kind.removesuffix('s')} {name}"

                def where(path: Path, kind: str = kind, name: str = name) -> str:
                    return self._locate(self._host, (kind, name, *path))

                for path, expected, seen in entry.findings.wrong:
                    self._report.add(Problem(where(path), subject, ".".join(path), expected, seen), scope)
                for path in entry.findings.placeholders:
                    unchecked = Unchecked(subject, ".".join(path), _PLACEHOLDER, where(path), blocks=True)
                    self._report.skip(unchecked, scope)
                for path in entry.findings.unknown_yet:
                    self._report.skip(Unchecked(subject, ".".join(path), _TEMPLATE, where(path)), scope)
                if kind == "releases" and files is not None:
                    self._report_patches(entry, subject, where, files, scope)

    def _report_patches(
        self, entry: Entry, subject: str, where: Callable[[Path], str], files: ProjectFiles, scope: Sequence[str]
    ) -> None:
        """Check that the patches of a release are in its series and fit together."""
        name, chosen = entry.get("series"), entry.get("patches")
        if name is None:
            if chosen:
                problem = Problem(where(("patches",)), subject, "patches", "none without a series", show(list(chosen)))
                self._report.add(problem, scope)
            return
        try:
            series = files.series(name)
            if series is None:
                why = f"files/patches/{name}/series.yml is not there yet"
                self._report.skip(Unchecked(subject, "series", why, where(("series",)), blocks=True), scope)
            else:
                select(series, chosen)
        except ProblemsError as error:
            for problem in error.problems:
                text = f"{problem.expected} ({problem.subject}, {problem.field})"
                self._report.add(Problem(where(("patches",)), subject, "patches", text, problem.seen), scope)


def _check_references(
    item: _Item, catalogue: _Catalogue, hardware: Entry | None, files: ProjectFiles | None, report: Report
) -> None:
    """Check a seat against the catalogue entries it names and the hardware of its host."""

    def add(path: Path, expected: str, seen: str) -> None:
        report.add(item.problem(path, expected, seen), [item.host])

    release = _entry(item, catalogue, "releases", ("release",), item.value("release"))
    model = _entry(item, catalogue, "models", ("model",), item.value("model"))
    spec = item.value("speculative")
    method = spec["method"] if spec is not None and spec["method"] is not INVALID else None
    drafter = None
    if spec is not None and isinstance(spec["model"], str):
        drafter = _entry(item, catalogue, "models", ("speculative", "model"), spec["model"])
        _check_drafter(item, drafter, add)
        if drafter is not None:
            _check_manifest(item, ("speculative", "model"), drafter, files, report)
    if model is not None:
        _check_model_facts(item, model, method, add)
        _check_manifest(item, ("model",), model, files, report)
    if release is not None:
        _check_lock(item, release, hardware, files, report)
        _check_environment(item, release, files, report)
    if release is not None and model is not None and item.value("prefix_caching") is not None:
        _check_pair(item, model, release, method, files, add)
    _check_card_memory(item, [part for part in (model, drafter) if part is not None], hardware, report)
    count = hardware.get("gpus") if hardware is not None else None
    for index, gpu in enumerate(item.value("gpus") or ()):
        if isinstance(gpu, int) and isinstance(count, int) and gpu >= count:
            add(("gpus", str(index)), f"below {count}, the number of GPUs in fleet_hardware of {item.host}", show(gpu))


def _entry(item: _Item, catalogue: _Catalogue, kind: str, at: Path, name: object) -> Entry | None:
    return catalogue.find(kind, name, item, at) if isinstance(name, str) else None


_Add = Callable[[Path, str, str], None]


def _check_model_facts(item: _Item, model: Entry, method: str | None, add: _Add) -> None:
    """Apply what the catalogue knows about the model."""
    name = model.name
    block, context, engram = item.value("mamba_block_size"), item.value("max_model_len"), item.value("engram")
    if block is not None and model.facts("hybrid") and model.facts("mamba_cache_mode") == "align":
        expected = f"nothing: on {name} (hybrid, align mode) it breaks the KV block geometry"
        add(("mamba_block_size",), expected, show(block))
    native = model.facts("native_context")
    if isinstance(context, int) and isinstance(native, int) and context > native:
        add(("max_model_len",), f"at most {native}, the native context of {name}", show(context))
    if method == "mtp" and not model.facts("mtp_layers"):
        expected = f"another method: {name} has no MTP head in the catalogue (facts.mtp_layers)"
        add(("speculative", "method"), expected, show(method))
    table = model.facts("engram_table")
    if engram is None and table is not None and item.read.values.get("engram") is None:
        expected = f"{{cpu_offload: true or false}}: {name} has an n-gram table of {format_gib(table)}"
        add(("engram",), expected, "nothing, and vLLM would offload it unasked")
    if engram is not None and table is None:
        add(("engram",), f"nothing: {name} has no n-gram table (facts.engram_table)", show(dict(engram)))
    memory = item.value("host_memory")
    if isinstance(memory, int) and isinstance(table, int) and memory < table:
        add(("host_memory",), f"at least {format_gib(table)}, the n-gram table of {name}", format_gib(memory))


def _check_card_memory(item: _Item, models: Sequence[Entry], hardware: Entry | None, report: Report) -> None:
    """Check that a KV pin and the weights beside it fit one card; no two seats share one, and each card has the pin."""
    seat = item.read.seat
    total = hardware.get("gpu_memory") if hardware is not None else None
    if seat is None or seat.kv_cache_memory is None or not seat.gpus or not isinstance(total, int):
        return
    known = {entry.name: size for entry in models if isinstance(size := entry.get("resident"), int)}
    # Drafter and model may be the same entry, and are loaded twice then.
    parts = [(entry.name, known[entry.name] / seat.ranks) for entry in models if entry.name in known]
    needed = seat.kv_cache_memory + sum(size for _, size in parts)
    if needed > total:
        share = f" (its resident on {seat.ranks} GPUs)" if seat.ranks > 1 else " (its resident)"
        terms = [f"{format_gib(seat.kv_cache_memory)} pinned"]
        terms += [f"{format_gib(int(size))} of {name}{share}" for name, size in parts]
        seen = " + ".join(terms) + (f" = {format_gib(int(needed))}" if parts else "")
        expected = f"at most {format_gib(total)} on a card with the weights (fleet_hardware.gpu_memory of {item.host})"
        report.add(item.problem(("kv_cache_memory",), expected, seen), [item.host])
    elif unknown := sorted({entry.name for entry in models} - set(known)):
        why = f"whether the weights fit beside the pin: resident of {', '.join(unknown)} is not declared"
        report.skip(item.unchecked(("kv_cache_memory",), why), [item.host])


def _check_drafter(item: _Item, drafter: Entry | None, add: _Add) -> None:
    made_for = drafter.facts("drafts_for") if drafter is not None else None
    model = item.value("model")
    if drafter is not None and made_for and isinstance(model, str) and model not in made_for:
        add(("speculative", "model"), f"a drafter for {model}", f"{drafter.name!r}, made for {', '.join(made_for)}")


def _check_pair(
    item: _Item, model: Entry, release: Entry, method: str | None, files: ProjectFiles | None, add: _Add
) -> None:
    """Check that the release can serve the model as the seat wants it."""
    least, version = model.facts("min_vllm"), release.get("version")
    if isinstance(least, str) and isinstance(version, str) and version_key(version) < version_key(least):
        expected = f"a release of vLLM {least} or newer for {model.name}"
        add(("release",), expected, f"{release.name!r} (vLLM {version})")
    traits = {
        "hybrid": bool(model.facts("hybrid")),
        "method": method,
        "model": model.name,
        "prefix_caching": bool(item.value("prefix_caching")),
    }
    name = release.get("series")
    if files is None or not isinstance(name, str) or release.values.get("patches") is INVALID:
        return
    try:
        series = files.series(name)
        missing = missing_patches(model, release, series, traits) if series is not None else []
    except ProblemsError:  # reported with the release itself
        return
    if missing:
        # One message: they are needed together, and a release with only some of them is refused as well.
        names = ", ".join(patch for patch, _ in missing)
        reasons = "; ".join(f"{patch}: {why.partition('. ')[0].rstrip('.')}" for patch, why in missing)
        add(("release",), f"a release that has {names} ({reasons})", f"{release.name!r} without them")


def _check_manifest(item: _Item, at: Path, model: Entry, files: ProjectFiles | None, report: Report) -> None:
    """Check that the manifest is there (it can only be made, not guessed) and is of the revision in the catalogue."""
    path, revision = model.get("manifest"), model.get("revision")
    if not isinstance(path, str) or files is None:
        return
    try:
        found = files.manifest_revision(path)
    except ProblemsError as error:
        for problem in error.problems:
            report.add(problem, [item.host])
        return
    if found is None:
        report.skip(item.unchecked(at, f"{path} is not there yet", blocks=True), [item.host])
    elif isinstance(revision, str) and revision != found:
        where = item.locate(item.host, ("models", model.name, "revision"))
        problem = Problem(where, f"model {model.name}", "revision", f"{found}, that of {path}", show(revision))
        report.add(problem, [item.host])


def _check_lock(
    item: _Item, release: Entry, hardware: Entry | None, files: ProjectFiles | None, report: Report
) -> None:
    architecture = hardware.get("architecture") if hardware is not None else None
    locks = release.get("locks")
    if architecture is None or not isinstance(locks, Mapping):
        return
    if architecture not in locks:
        expected = f"a release with a lock for {architecture}, the architecture of {item.host}"
        seen = f"{release.name!r} with locks for {', '.join(sorted(locks)) or 'none'}"
        report.add(item.problem(("release",), expected, seen), [item.host])
    elif files is not None and not files.exists(locks[architecture]):
        why = f"{locks[architecture]} is not there yet"
        report.skip(item.unchecked(("release",), why, blocks=True), [item.host])


def _check_environment(item: _Item, release: Entry, files: ProjectFiles | None, report: Report) -> None:
    """Check names, so that a misspelt one is not silently without effect (vLLM only logs a warning)."""
    path = release.get("environment")
    known = files.environment_names(path) if files is not None and isinstance(path, str) else None
    for name in item.value("env") or {}:
        at = ("env", name)
        if name.startswith("VLLM_") and known is None:
            report.skip(item.unchecked(at, f"no list of the names that {release.name} knows"), [item.host])
        elif expected := _unknown_name(name, release, known or frozenset()):
            report.add(item.problem(at, expected, show(name)), [item.host])
    for name in item.class_environment:
        # What a release without a list knows is not known of the seats' own names either, and said there.
        if (name.startswith("VLLM_") and known is None) or not (
            expected := _unknown_name(name, release, known or frozenset())
        ):
            continue
        where = item.locate(item.host, ("seat_environment", name))
        report.add(Problem(where, f"host {item.host}", f"seat_environment.{name}", expected, show(name)), [item.host])


def _unknown_name(name: str, release: Entry, known: frozenset[str]) -> str | None:
    """Return what was expected instead of a name that nothing in a seat's process reads, None when something does."""
    if name.startswith("VLLM_"):
        return None if name in known else f"a VLLM_ name that {release.name} knows{did_you_mean(name, known)}"
    if name.startswith(LIBRARY_ENV) or name in (*LIBRARY_ENV_NAMES, *PATCH_ENV_NAMES):
        return None
    return "a VLLM_ name or one of a library under it (" + ", ".join(f"{prefix}*" for prefix in LIBRARY_ENV) + ")"


def _check_keys(item: _Item, variables: Mapping[str, Any], report: Report) -> None:
    """Check that each allowed key exists at the gateway, by name; secrets are not looked at."""
    aliases = item.value("aliases") or {}
    names, vault = variables.get("gateway_key_names"), variables.get("vault_litellm_keys")
    held = {str(name) for name in vault} if isinstance(vault, Mapping) else None
    known = {str(name) for name in names} if isinstance(names, Sequence) and not isinstance(names, str) else held
    control = variables.get("gateway_control_key")
    for alias, content in aliases.items():
        keys = content["keys"] if content["keys"] is not INVALID else ()
        for index, key in enumerate(keys):
            at = ("aliases", alias, "keys", str(index))
            if key == control:
                expected = "another key: this one proves that keys without the grant are refused"
                report.add(item.problem(at, expected, show(key)), [item.host])
            elif known is not None and key not in known:
                expected = f"a key of the gateway (gateway_key_names){did_you_mean(key, known)}"
                report.add(item.problem(at, expected, show(key)), [item.host])
        if known is None and keys:
            why = "neither gateway_key_names nor vault_litellm_keys is readable here"
            report.skip(item.unchecked(("aliases", alias, "keys"), why), [item.host])


def _check_key_secrets(host: str, variables: Mapping[str, Any], locate: Locate, report: Report) -> None:
    """Check that each key of the gateway has a secret, unless the gateway makes them or they come from elsewhere."""
    names, vault = variables.get("gateway_key_names"), variables.get("vault_litellm_keys")
    elsewhere = variables.get("seat_alias_handout_dir") or "seat_alias_key_values" in variables
    if elsewhere or not isinstance(names, Sequence) or isinstance(names, str) or not isinstance(vault, Mapping):
        return
    held = {str(name) for name in vault}
    for index, name in enumerate(names):
        if str(name) not in held and not is_template(name):
            at = ("gateway_key_names", str(index))
            expected = f"a key with a secret in vault_litellm_keys{did_you_mean(str(name), held)}"
            report.add(Problem(locate(host, at), "", ".".join(at), expected, show(name)), [host])


def _check_fit(
    item: _Item,
    variables: Mapping[str, Any],
    files: ProjectFiles | None,
    planner: Planner | None,
    report: Report,
) -> None:
    """Ask the planner whether the context fits the KV pool; without an answer say that it was not checked."""
    seat, what = item.read.seat, ("max_model_len",)
    if planner is None or seat is None:
        reason = ": this build has no planner" if planner is None else ", because the seat is not complete here"
        report.skip(item.unchecked(what, f"the KV fit{reason}"), [item.host])
        return
    models, releases, hardware = (variables.get(name) for name in ("models", "releases", "fleet_hardware"))
    if not (isinstance(models, Mapping) and isinstance(releases, Mapping) and isinstance(hardware, Mapping)):
        return
    used = {seat.model, seat.speculative.model if seat.speculative else None} & set(models)
    try:
        read = {name: _with_config(models[name], files) for name in used}
    except ProblemsError as error:
        for problem in error.problems:
            report.add(problem, [item.host])
        return
    fit = planner(seat, {"models": read, "releases": releases}, hardware)
    for field_name, expected, seen in fit.problems:
        report.add(item.problem(tuple(field_name.split(".")), expected, seen), [item.host])
    if fit.unknown is not None:
        report.skip(item.unchecked(what, f"the KV fit: {fit.unknown}"), [item.host])
    elif fit.summary:
        report.fits[item.host, item.name] = fit.summary


def _check_pin(item: _Item, variables: Mapping[str, Any], files: ProjectFiles | None, report: Report) -> None:
    """Say of a KV pin that it rests on no measurement of this seat; whether that stops a deploy is a policy."""
    policy, hardware = variables.get("fleet_pin_policy", "report"), variables.get("fleet_hardware")
    if policy not in POLICIES:
        where = item.locate(item.host, ("fleet_pin_policy",))
        report.add(
            Problem(where, f"host {item.host}", "fleet_pin_policy", " or ".join(POLICIES), show(policy)), [item.host]
        )
    seat = item.read.seat
    if seat is None or files is None or not (isinstance(hardware, Mapping) and hardware.get("gpus")):
        return
    releases = variables.get("releases")
    release = releases.get(seat.release) if isinstance(releases, Mapping) else None
    version = release.get("version") if isinstance(release, Mapping) else None
    name = reference(seat)
    for why in doubts(seat, version, files.content(name) if name else None):
        report.skip(item.unchecked(("kv_cache_memory",), why, blocks=policy == "refuse"), [item.host])


def _with_config(model: object, files: ProjectFiles | None) -> Mapping[str, Any]:
    """Return a model as written with the content of its ``facts.config`` in place of the path."""
    entry = model if isinstance(model, Mapping) else {}
    facts = entry.get("facts")
    path = facts.get("config") if isinstance(facts, Mapping) else None
    if not isinstance(facts, Mapping) or not isinstance(path, str) or files is None:
        return entry
    config = files.model_config(path, str(entry.get("manifest")))
    return {**entry, "facts": {**facts, "config": config}}


def _check_sharing(items: Sequence[_Item], stub_port: object, report: Report) -> None:
    """Two seats of one host may share neither a port nor a GPU, and none has the port of the stub."""
    ports: dict[int, _Item] = {}
    gpus: dict[int | str, _Item] = {}
    for item in items:
        port = item.value("port")
        if isinstance(port, int) and (other := ports.setdefault(port, item)) is not item:
            seen = f"{port}, which seat {other.name} has ({other.where(('port',))})"
            report.add(item.problem(("port",), f"a port of its own on {item.host}", seen), [item.host])
        if isinstance(port, int) and port == stub_port:
            seen = f"{port}, where closed aliases lead (fleet_stub_port)"
            report.add(item.problem(("port",), f"a port of its own on {item.host}", seen), [item.host])
        for link in sorted(_ports(item) - {port}):
            if (other := ports.setdefault(link, item)) is not item:
                seen = f"{link}, which seat {other.name} has ({other.where(('port',))})"
                report.add(item.problem(("nodes", "port"), f"ports of its own on {item.host}", seen), [item.host])
        for index, gpu in enumerate(item.value("gpus") or ()):
            if (other := gpus.setdefault(gpu, item)) is not item:
                seen = f"{gpu}, which seat {other.name} has ({other.where(('gpus',))})"
                report.add(item.problem(("gpus", str(index)), "a GPU of its own", seen), [item.host])
    if len({type(gpu) for gpu in gpus}) > 1:
        why = "GPUs are named by index and by UUID, so that it is not known here whether two are the same"
        report.skip(Unchecked(f"host {items[0].host}", "gpus", why), [items[0].host])


#: What both hosts of a seat have to say alike: their halves are rendered from the head's variables.
_ALIKE = ("fleet_hardware", "seat_environment")


def _check_nodes(items: Sequence[_Item], hosts: Mapping[str, Mapping[str, Any]], report: Report) -> None:
    """Check that a seat over two hosts is declared on its head, and that the other has room for it and is like it."""
    halves: list[tuple[_Item, str]] = []
    for item in items:
        nodes = item.value("nodes")
        names = [node["host"] for node in nodes["hosts"]] if nodes and nodes["hosts"] is not INVALID else []
        if not names or INVALID in names:
            continue
        head, follower = names[0], names[1]
        if item.read.merged.source(("nodes",))[0] != "seats":
            # Whoever looks for seats that a host follows looks at the seats only.
            problem = item.problem(("nodes",), "written at the seat itself", "written in a preset")
            report.add(problem, [item.host])
        if head != item.host:
            at = ("nodes", "hosts", "0", "host")
            report.add(item.problem(at, f"{item.host}, the host of the seat: the head comes first", show(head)), names)
        known = [host for host in hosts if SEAT_GROUP in (hosts[host].get("group_names") or [SEAT_GROUP])]
        if follower not in known:
            at = ("nodes", "hosts", "1", "host")
            expected = f"another host of group {SEAT_GROUP}{did_you_mean(follower, known)}"
            report.add(item.problem(at, expected, show(follower)), [item.host])
            continue
        _check_likeness(item, follower, hosts, report)
        halves.append((item, follower))
    for item, follower in halves:
        there = [other for other in items if other.host == follower]
        there += [other for other, host in halves if host == follower and other is not item]
        _check_room(item, follower, there, report)


def _check_likeness(item: _Item, follower: str, hosts: Mapping[str, Mapping[str, Any]], report: Report) -> None:
    """Check what one rendering for both hosts, and one release on both, rests on."""
    head, other = hosts[item.host], hosts[follower]
    for name in _ALIKE:
        if head.get(name, {}) != other.get(name, {}):
            expected = f"{name} of {follower} like that of {item.host}: a seat over two hosts needs two of one class"
            report.add(item.problem(("nodes",), expected, "another"), [item.host, follower])
    for kind, named in (("releases", item.value("release")), ("models", item.value("model"))):
        entries = [variables.get(kind) for variables in (head, other)]
        mine, theirs = (entry.get(named) if isinstance(entry, Mapping) else None for entry in entries)
        if isinstance(named, str) and mine != theirs:
            expected = f"entry {named} of {kind} on {follower} as on {item.host}: both halves run the same"
            seen = "another" if theirs is not None else "none"
            report.add(item.problem((kind.removesuffix("s"),), expected, seen), [item.host, follower])


def _check_room(item: _Item, follower: str, there: Sequence[_Item], report: Report) -> None:
    """Check that nobody on the follower has the name, the ports or the GPUs of the half that runs there."""
    ports = _ports(item)
    for other in there:
        whose = f"seat {other.name} on {other.host} ({other.where(())})"
        scope = [item.host, follower]
        if other.name == item.name:
            report.add(item.problem((), f"a name that no seat on {follower} has", f"that of {whose}"), scope)
        if shared := sorted(ports & _ports(other)):
            expected = f"ports of its own on {follower}"
            report.add(item.problem(("nodes", "port"), expected, f"{shared[0]}, which {whose} has"), scope)
        for index, gpu in enumerate(item.value("gpus") or ()):
            if gpu in (other.value("gpus") or ()):
                expected = f"a GPU of its own on {follower}"
                report.add(item.problem(("gpus", str(index)), expected, f"{gpu}, which {whose} has"), scope)


def _ports(item: _Item) -> set[int]:
    """Return the TCP ports of a seat, with nodes those of its link too (its own is the head's alone)."""
    nodes, port = item.value("nodes"), item.value("port")
    link = nodes["port"] if nodes and nodes["port"] is not INVALID else None
    return {port for port in (port, link, link + 1 if link else None) if isinstance(port, int)}


def _check_host_memory(host: str, items: Sequence[_Item], hardware: Entry | None, report: Report) -> None:
    """Check that the tables which seats pin in host RAM fit together."""
    wanted = [(item, memory) for item in items if isinstance(memory := item.value("host_memory"), int)]
    if not wanted:
        return
    total = hardware.get("host_memory") if hardware is not None else None
    item, _ = wanted[-1]
    if not isinstance(total, int):
        report.skip(item.unchecked(("host_memory",), f"fleet_hardware.host_memory of {host} is not declared"), [host])
        return
    pinned = sum(memory for _, memory in wanted)
    if pinned > total:
        names = ", ".join(item.name for item, _ in wanted)
        expected = f"at most {format_gib(total)} pinned on {host} in all"
        report.add(item.problem(("host_memory",), expected, f"{format_gib(pinned)} ({names})"), [host])


def _check_aliases(items: Sequence[_Item], report: Report) -> None:
    """Check that an alias leads to one seat of the fleet, and a fallback to another."""
    owners: dict[str, _Item] = {}
    for item in items:
        for alias in item.value("aliases") or {}:
            if (other := owners.setdefault(alias, item)) is not item:
                at = ("aliases", alias)
                seen = f"{alias!r}, which {other.subject} has ({other.where(at)})"
                report.add(item.problem(at, "a name used once in the fleet", seen), [item.host, other.host])
    for item in items:
        for alias, content in (item.value("aliases") or {}).items():
            fallback = content["fallback"]
            if fallback is None or fallback is INVALID or fallback == alias:
                continue
            if fallback not in owners:
                expected = f"an alias of the fleet{did_you_mean(fallback, owners)}"
            elif owners[fallback] is item:
                expected = "an alias of another seat: this one is drained together with it"
            else:
                continue
            report.add(item.problem(("aliases", alias, "fallback"), expected, show(fallback)), [item.host])


def _check_placeholders(hosts: Mapping[str, Mapping[str, Any]], locate: Locate, report: Report) -> None:
    """Report placeholders of the shipped examples, which must be replaced before a deploy."""
    for host, variables in hosts.items():
        for name, value in variables.items():
            if not name.startswith(("vault_", "gateway_")):
                continue
            leaves = value.items() if isinstance(value, Mapping) else [("", value)]
            for key, leaf in leaves:
                if is_placeholder(leaf):
                    path = (name, str(key)) if key else (name,)
                    subject = "vault" if name.startswith("vault_") else "gateway"
                    report.skip(Unchecked(subject, ".".join(path), _PLACEHOLDER, locate(host, path), True), [host])
