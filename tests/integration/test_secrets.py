"""No secret of the fleet is where others than root see it: in what a run prints or logs, on a host, or here.

After the chain: the fleet serves.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import canary
import pytest
from labrun import HOSTS, LAB, PROJECT, Lab

from seatfleet.core.seat.render import seat_api_key

SEATS = ("fv-ml1/flash-next", "spark-1/dense-lab")
SEATS_FILE = "group_vars/lab_fv_ml1/seats.yml"
# Aliases and lists change, no seat restarts.
EDITS = [
    (SEATS_FILE, "temperature: 1.0", "temperature: 0.9"),
    (SEATS_FILE, "keys: [infra-ops, all-agents]", "keys: [infra-ops]"),
]
SEAT = ("-l", "fv-ml1", "-e", "seat=flash-next")
# Every other verb, as far as it goes without measuring for long: whether it succeeds (None: both will do, and a refusal
# prints more). adopt reads arguments and environment of the process that has the seat's key.
VERBS: list[tuple[tuple[str, ...], bool | None]] = [
    (("playbooks/validate.yml",), True),
    (("playbooks/preflight.yml",), None),
    (("playbooks/status.yml",), True),
    (("playbooks/drift.yml",), None),
    (("playbooks/observability.yml",), True),
    (("playbooks/probe.yml", "-l", "fv-ml1"), True),
    (("playbooks/memory_guard.yml", "--check"), None),
    (("playbooks/bench.yml", *SEAT, "-e", "bench_shapes=count", "-e", "bench_concurrency=1"), None),
    (("playbooks/adopt.yml", *SEAT), None),
    (("playbooks/adopt.yml", "-l", "fv-ml1", "-e", "seat=not-declared", "-e", "port=8022"), None),
    (("playbooks/headroom.yml", *SEAT), False),
    (("playbooks/campaign.yml", *SEAT, "-e", "campaign=none"), False),
    (("playbooks/copy-model.yml", "-l", "fv-ml1", "-e", "model=none", "-e", "from=spark-1"), False),
    (("playbooks/rollback.yml", *SEAT, "-e", "generation=0123456789ab"), False),
    (("playbooks/remove.yml", "-l", "fv-ml1", "-e", "seat=flash-next", "--check"), None),
    (("playbooks/stop.yml", *SEAT), True),
]
SCRIPT = Path(canary.__file__).read_text()
# Where each secret has to be, or the search does not find what it looks for.
EXPECTED = {
    "gw-1": {"master": "/etc/litellm/master-key.env", "salt": "/etc/litellm/salt-key.env"},
    "fv-ml1": {"seat fv-ml1/flash-next": "/etc/vllm/seats/flash-next/api-key.env"},
    "spark-1": {"seat spark-1/dense-lab": "/etc/vllm/seats/dense-lab/api-key.env"},
}


@dataclass
class Watch:
    """The secrets, and where they were seen while commands ran: name of the command -> names of secrets."""

    secrets: Mapping[str, str]
    seen: dict[str, list[str]] = field(default_factory=dict)

    def read(self, label: str, text: str) -> None:
        """Look at a text."""
        if found := canary.found_in(text.encode(), self.secrets):
            self.seen[label] = found

    @contextmanager
    def arguments(self) -> Iterator[None]:
        """Look at the arguments of every process, those on the hosts included, as long as the block runs."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.5):
                if found := canary.found_in(canary.arguments(), self.secrets):
                    self.seen["arguments of a process"] = found

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def everything(lab: Lab) -> dict[str, str]:
    """Return every secret of the lab by name, those that are derived included."""
    given = lab.secrets()
    keys, root = given["litellm_keys"], given["seat_api_key_secret"]
    assert isinstance(keys, dict)
    assert isinstance(root, str)
    named = {
        "master": str(given["litellm_master_key"]),
        "salt": str(given["litellm_salt_key"]),
        "root of the seats' keys": root,
    }
    named |= {f"key {alias}": str(value) for alias, value in keys.items()}
    return named | {f"seat {seat}": seat_api_key(root, *seat.split("/")) for seat in SEATS}


def on(lab: Lab, host: str, given: Mapping[str, str]) -> dict[str, list[object]]:
    """Return what the search finds on a host."""
    script = SCRIPT.replace('SECRETS = "{}"', f"SECRETS = {json.dumps(given)!r}")
    found: dict[str, list[object]] = json.loads(lab.host(host, "python3", "-", stdin=script).output.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def watch(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Run every playbook at the highest useful verbosity: check mode, a change, failures, every verb, the way back."""
    new = {name: f"sk-{secrets.token_hex(20)}" for name in ("new master", "new salt", "new key", "new root")}
    watch = Watch({**everything(lab), **new})
    directory = tmp_path_factory.mktemp("canary")
    given = directory / "new.json"
    given.write_text(
        json.dumps(
            {
                "vault_litellm_keys": {"infra-ops": new["new key"]},
                "vault_seat_api_key_secret": new["new root"],
            }
        )
    )
    changed = directory / "master.json"
    changed.write_text(json.dumps({"gateway_master_key": new["new master"]}))
    other = directory / "salt.json"
    other.write_text(json.dumps({"gateway_salt_key": new["new salt"]}))
    edited = lab.edited(directory / "edited", EDITS)
    site, gateway, alias = ("site.yml",), ("playbooks/gateway.yml",), ("playbooks/seats.yml", "--tags", "alias")
    one = ("-l", "fv-ml1")
    runs: list[tuple[str, Lab, tuple[str, ...], bool | None]] = [
        ("check", edited, (*site, "--check"), True),
        ("change", edited, (*alias, *one), True),
        ("proof", edited, (*gateway, "--tags", "prove", *one), True),
        ("other secrets, check", lab, (*site, "--check", "-e", f"@{given}", *one), False),
        ("other master key, check", lab, (*gateway, "--check", "-e", f"@{changed}"), True),
        ("other salt key", lab, (*gateway, "-e", f"@{other}"), False),
        ("another value of a key", lab, (*alias, *one, "-e", f"@{given}"), False),
        ("gateway down", lab, (*alias, *one, "-e", "gateway_url=http://127.0.0.1:9"), False),
        (
            "refused by the gateway",
            lab,
            (*alias, *one, "-e", "gateway_admin_key={{ vault_litellm_keys.control }}"),
            False,
        ),
        *((" ".join(arguments), lab, arguments, good) for arguments, good in VERBS),
        ("back", lab, site, True),
    ]
    log = directory / "ansible.log"
    with watch.arguments():
        for label, where, arguments, good in runs:
            run = where.run(
                "env", f"ANSIBLE_LOG_PATH={log}", "ansible-playbook", "-vvv", "--diff", *arguments, check=False
            )
            assert good is None or (run.code == 0) == good, f"{label}:\n{run.output[-6000:]}"
            watch.read(f"output of: {label}", run.output)
    watch.read("Ansible's log", log.read_text())
    return watch


def test_no_run_shows_a_secret(watch: Watch) -> None:
    assert watch.seen == {}


@pytest.mark.parametrize("host", HOSTS)
def test_on_a_host_only_root_reads_them(lab: Lab, watch: Watch, host: str) -> None:
    found = on(lab, host, watch.secrets)
    assert (found["journal"], found["arguments"]) == ([], [])
    assert [hit for hit in found["files"] if hit[2]] == []  # type: ignore[index]
    where = {name: path for path, names, _ in found["files"] for name in names}  # type: ignore[misc]
    assert EXPECTED[host].items() <= where.items()
    # A host of seats has its own seats' keys and nothing of the gateway; the gateway's has no value of a user's key.
    assert set(where) == set(EXPECTED[host])


def test_here_only_their_owner_reads_them(watch: Watch) -> None:
    temporary = [str(path) for name in ("ansible*", "seatfleet*") for path in Path(tempfile.gettempdir()).glob(name)]
    roots = [str(PROJECT), str(LAB), str(Path.home() / ".ansible"), *temporary]
    found = canary.look_at_files([root for root in roots if Path(root).is_dir()], watch.secrets)
    assert [hit for hit in found if hit[2]] == []
    assert str(LAB / "secrets.json") in [path for path, _, _ in found]


def test_the_search_finds_what_is_planted(lab: Lab) -> None:
    planted = {name: f"sk-planted-{secrets.token_hex(12)}" for name in ("file", "journal", "argument")}
    lab.host("gw-1", "tee", "/var/tmp/planted", stdin=planted["file"])
    lab.host("gw-1", "logger", planted["journal"])
    sleep = "import time; time.sleep(600)"
    lab.host("gw-1", "systemd-run", "--quiet", "--unit=planted", "python3", "-c", f"'{sleep}'", planted["argument"])
    try:
        found = on(lab, "gw-1", planted)
        assert ["/var/tmp/planted", ["file"], True] in found["files"]
        assert "journal" in found["journal"]
        assert found["arguments"] == ["argument"]
        lab.host("gw-1", "chmod", "0600", "/var/tmp/planted")
        assert ["/var/tmp/planted", ["file"], False] in on(lab, "gw-1", planted)["files"]
    finally:
        lab.host("gw-1", "rm", "/var/tmp/planted")
        lab.host("gw-1", "systemctl", "stop", "planted")
