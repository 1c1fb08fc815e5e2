"""`seatctl validate` and playbooks/validate.yml on real inventories, as an operator runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatfleet.cli import main

PROJECT = Path(__file__).resolve().parents[2]
SHARED = ("ansible.cfg", "collections", "files", "playbooks", "roles", "src")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with variables of its own, to be broken; the code is the real one."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("inventory", "group_vars"):
        shutil.copytree(PROJECT / name, root / name, symlinks=True)
    shutil.copytree(PROJECT / "tests/playbooks", root / "tests/playbooks")
    for name in SHARED:
        (root / name).symlink_to(PROJECT / name)
    return root


def edit(root: Path, file: str, old: str, new: str) -> None:
    path = root / "group_vars" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def validate(root: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["validate", "-i", str(root / "inventory/production"), *argv])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("inventory", ["production", "lab"])
def test_the_shipped_inventories_have_no_problem(inventory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-i", str(PROJECT / "inventory" / inventory)]) == 0
    out = capsys.readouterr().out
    seats = {"production": ["flash-next", "agent", "dense"], "lab": ["flash-next", "dense-lab"]}[inventory]
    placeholder = "blocks a deploy: group_vars/production/vault.yml:4: vault: vault_litellm_master_key: a placeholder"
    assert (placeholder in out) == (inventory == "production")
    assert re.findall(r"^\S+ +(\S+) ", out, re.MULTILINE)[1 : len(seats) + 1] == seats
    assert f"{len(seats)} seats, no problem found" in out
    assert ("560,654 tokens, 2.14 x 262,144 (fitted)" in out) == (inventory == "production")
    assert ("everything checked" in out) == (inventory == "lab")


def test_placeholders_of_production_refuse_a_deploy(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = validate(project, capsys, "--deploy")
    assert code == 2
    assert "group_vars/production/vault.yml:4: vault: vault_litellm_master_key: expected all in place" in out


@pytest.mark.parametrize(("variable", "read"), [("inventory/lab", "dense-lab"), ("", "agent")])
def test_the_inventory_that_ansible_would_read_is_read(
    variable: str, read: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README: after `. lab/env`, seatctl talks of the lab."""
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("ANSIBLE_INVENTORY", variable and str(PROJECT / variable))
    assert main(["validate"]) == 0
    assert f" {read} " in capsys.readouterr().out


def test_what_no_host_uses_blocks_no_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    """The lab has the catalogue of production, whose models have placeholders, and uses none of them."""
    assert main(["validate", "-i", str(PROJECT / "inventory/lab"), "--deploy"]) == 0
    assert "everything checked that can be without the hosts" in capsys.readouterr().out


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-i", str(tmp_path / "no")]) == 2
    assert "expected a directory or file, seen nothing there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [("-i", "x/y/empty"), ("-i", "x/y/empty", "--json"), ("-i", "project/inventory/production", "-l", "fv-ml9")]
)
def test_nobody_to_check_is_no_clean_bill(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    monkeypatch.chdir(project.parent)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    Path("x/y/empty").mkdir(parents=True)
    assert main(["validate", *argv]) == 2
    assert "expected at least one host" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"a: \xff\n", b"a: \x00\n"])
def test_a_file_that_is_no_text_is_named(project: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (project / "group_vars/all/odd.yml").write_bytes(content)
    code, text = validate(project, capsys)
    assert (code, "odd.yml" in text) == (2, True)


def test_an_inventory_that_ansible_cannot_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "group_vars/fv_ml1/seats.yml").write_text("seats: {a: [}\n")
    code, out = validate(project, capsys)
    assert code == 2
    said = r"a syntax error here or above \(while parsing .*node content.*\)"
    broken = rf"group_vars/fv_ml1/seats\.yml:1: expected YAML, seen {said}"
    assert re.fullmatch(rf"1 problem, nothing was changed:\n  {broken}\n", out)


def test_a_config_file_that_its_manifest_does_not_list(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = tmp_path / "files"
    shutil.copytree(PROJECT / "files", files)
    (project / "files").unlink()
    (project / "files").symlink_to(files)
    (files / "models/tiny-oracle.config.json").write_text("{}")
    assert main(["validate", "-i", str(project / "inventory/lab")]) == 2
    err = capsys.readouterr().err
    assert "expected the config.json that files/models/tiny-oracle.json lists, sha256 080f81af" in err


@pytest.mark.parametrize(
    ("prefix_caching", "missing"),
    [
        (True, {"dflash-keep-last-block", "hash-block-align", "mamba-chunk-split", "mamba-page-pad"}),
        (False, {"mamba-page-pad"}),
    ],
)
def test_a_hybrid_model_with_dflash_needs_its_patches(
    project: Path, capsys: pytest.CaptureFixture[str], prefix_caching: bool, missing: set[str]
) -> None:
    """On the shipped series of 0.23.0: without these the engine does not start, or a prefix hit lies."""
    releases = project / "group_vars/all/releases.yml"
    releases.write_text(
        re.sub(r"patches:\n( +- .*\n)+", "patches: [fla-shared-memory]\n", releases.read_text(), count=1)
    )
    profiles = "all/profiles.yml"
    edit(project, profiles, "prefix_caching: true\n    reasoning", f"prefix_caching: {prefix_caching}\n    reasoning")
    code, out = validate(project, capsys, "-l", "spark-1")
    assert code == 2
    assert out.startswith("1 problem, nothing was changed:")
    found = re.search(r"seat agent on spark-1: release: expected a release that has ([^(]+) \((.*)\), seen ", out)
    assert found, out
    assert set(found[1].split(", ")) == missing
    assert set(re.findall(r"(?:^|; )([\w-]+): ", found[2])) == missing, "a reason for each"


def documented(start: str) -> str:
    """A fenced block of docs/seats.md, found by how it starts."""
    blocks: list[str] = re.findall(r"^```\w+\n(.*?)^```$", (PROJECT / "docs/seats.md").read_text(), re.M | re.S)
    (block,) = [block for block in blocks if block.startswith(start)]
    return block


def test_the_example_of_the_manual(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = documented("# group_vars/fv_ml1/seats.yml").partition("\n")[2]
    (project / "group_vars/fv_ml1/seats.yml").write_text(example)
    code, out = validate(project, capsys, "--limit", "fv-ml1")
    assert code == 0, out
    assert "1 seat, no problem found" in out


def test_the_example_over_two_hosts(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One seat on the head, none on the other host; without its second host it is refused."""
    head, follower = (project / f"group_vars/{name}/seats.yml" for name in ("spark_1", "spark_2"))
    head.write_text(documented("# group_vars/spark_1/seats.yml"))
    follower.write_text("---\nseats: {}\n")
    code, out = validate(project, capsys, "--limit", "gb10")
    assert code == 0, out
    assert "1 seat, no problem found" in out
    edit(project, "spark_1/seats.yml", "host: spark-2", "host: spark-3")
    code, out = validate(project, capsys, "--limit", "gb10")
    assert code == 2
    assert "nodes.hosts.1.host: expected another host of group gpu_hosts (did you mean 'spark-2'?)" in out


def test_the_faults_of_the_manual(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the manual shows is what is printed."""
    (project / "group_vars/fv_ml1/seats.yml").write_text(documented("# faults"))
    code, out = validate(project, capsys)
    assert code == 2
    assert out == documented("$ seatctl validate").partition("\n")[2]


def test_a_limit_chooses_what_is_reported(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project, "spark_2/seats.yml", "port: 8032", "port: 80")
    edit(project, "fv_ml1/seats.yml", "port: 8022", "port: 80")
    code, out = validate(project, capsys, "-l", "gb10")
    assert code == 2
    assert out.count("\n") == 2
    assert "group_vars/spark_2/seats.yml:6: seat dense on spark-2: port: expected" in out


def test_a_limit_still_sees_clashes_with_the_rest_of_the_fleet(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(project, "spark_2/seats.yml", "gen-dense", "gen-large")
    code, out = validate(project, capsys, "-l", "fv-ml1")
    assert code == 2
    assert "expected a name used once in the fleet, seen 'gen-large', which seat flash-next on fv-ml1 has" in out


def test_a_key_written_twice(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project, "spark_2/seats.yml", "    port: 8032\n", "    port: 8032\n    port: 8033\n")
    code, out = validate(project, capsys)
    assert code == 2
    where = "group_vars/spark_2/seats.yml:7: seats.dense.port"
    assert f"{where}: expected each key once, seen a second one; the first is on line 6" in out


def test_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = validate(project, capsys, "--json", "-l", "fv-ml1")
    assert code == 0
    report = json.loads(out)
    assert [seat["seat"] for seat in report["seats"]] == ["flash-next"]
    assert {"subject": "vault", "blocks": True}.items() <= report["not_checked"][-1].items()


# ---- in a play ------------------------------------------------------------------------------------------------------


class Play:
    """Runs playbooks/validate.yml with an ssh that only records that it was called."""

    def __init__(self, root: Path) -> None:
        self.root, self.called = root, root / "ssh-was-called"
        fake = root / "ssh"
        fake.write_text(f'#!/bin/sh\necho "$@" >> {self.called}\nexit 255\n')
        fake.chmod(0o755)
        self.fake = fake

    def run(self, *argv: str, playbook: str = "playbooks/validate.yml") -> tuple[int, str]:
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self.root / "ansible.cfg"),
            "ANSIBLE_SSH_EXECUTABLE": str(self.fake),
            "ANSIBLE_NOCOLOR": "1",
        }
        command = ["ansible-playbook", playbook, *argv]
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


REVIEW = ("-e", "fleet_validate_deploy=false")


@pytest.fixture
def play(project: Path) -> Play:
    return Play(project)


def lines(out: str) -> Sequence[str]:
    """The report's lines, as the error message prints them."""
    found = re.search(r"\d+ problems?, nothing was changed:\n((?:  \S.*\n)+)", out)
    return [line.strip() for line in found[1].splitlines()] if found else []


def test_all_problems_before_any_host_is_contacted(play: Play) -> None:
    """Misspelt field, shared port, unknown key, ambiguous size: one message, and no connection, with hosts dead."""
    (play.root / "group_vars/fv_ml1/seats.yml").write_text(documented("# faults"))
    code, out = play.run(*REVIEW, playbook="tests/playbooks/contact.yml")
    assert code != 0
    expected = documented("$ seatctl validate").partition("\n")[2].splitlines()[1:]
    assert lines(out) == [line.strip() for line in expected]
    assert "Contact a host" not in out
    assert not play.called.exists()


def test_the_play_that_contacts_hosts_would_have(play: Play) -> None:
    """The control of the test above: with good input the same playbook does call ssh."""
    code, out = play.run(*REVIEW, playbook="tests/playbooks/contact.yml")
    assert code != 0
    assert "TASK [Contact a host]" in out
    assert "fv-ml1.example.net" in play.called.read_text()


def test_extra_variables_count_and_no_file_is_blamed(play: Play) -> None:
    seats = {"agent": {"profile": "dflash", "port": 80, "aliases": {}}}
    # A value that looks like a template once it is evaluated is not evaluated again.
    odd = {"vault_odd": "{{ '{{' }} not a template"}
    code, out = play.run(*REVIEW, "-l", "spark-1", "-e", json.dumps({"seats": seats, **odd}))
    assert code != 0
    where = "seats (not in group_vars: -e, set_fact or the inventory itself)"
    assert f"{where}: seat agent on spark-1: port: expected an integer from 1024 to 65535, seen 80" in lines(out)


def test_a_fault_on_a_host_outside_the_play_is_a_warning(play: Play) -> None:
    edit(play.root, "spark_2/seats.yml", "port: 8032", "port: 80")
    code, out = play.run(*REVIEW, "-l", "fv-ml1", "--check")
    assert code == 0, out
    text = " ".join(out.split())
    assert "on a host outside this play: group_vars/spark_2/seats.yml:6: seat dense on spark-2: port: expected" in text


def test_a_clash_with_a_host_outside_the_play_stops_it(play: Play) -> None:
    edit(play.root, "spark_2/seats.yml", "gen-dense", "gen-large")
    code, out = play.run(*REVIEW, "-l", "fv-ml1")
    assert code != 0
    assert len(lines(out)) == 1
    assert "expected a name used once in the fleet" in lines(out)[0]


def test_a_deploy_is_refused_while_placeholders_are_left(play: Play) -> None:
    code, out = play.run("-l", "gw-1")
    assert code != 0
    vault = [line for line in lines(out) if line.startswith("group_vars/production/vault.yml")]
    assert len(vault) == 6
    assert any(
        line.startswith("group_vars/gw_1/main.yml:6: gateway: gateway_query_engine.sha256:") for line in lines(out)
    )
    assert "sk-" not in out.replace("sk-...", "")


ENCRYPTED = """!vault |
      $ANSIBLE_VAULT;1.1;AES256
      3332313033343030313233343536373839303132333435363738393031323334
      3536373839303132333435363738393031323334
"""


def test_encrypted_values_are_not_looked_at(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """With single values encrypted, names stay readable and validation needs no vault password."""
    vault = play.root / "group_vars/production/vault.yml"
    vault.write_text(re.sub(r'"<fill in: .*"\n', ENCRYPTED, vault.read_text()))
    edit(play.root, "fv_ml1/seats.yml", "infra-ops", "infra-opps")
    code, out = validate(play.root, capsys, "-l", "fv-ml1")
    assert code == 2
    assert "did you mean 'infra-ops'?" in out
    code, out = play.run("-l", "gw-1,fv-ml1")
    assert code != 0
    assert any("did you mean 'infra-ops'?" in line for line in lines(out))
    assert not any("vault" in line for line in lines(out))


def test_a_variable_that_cannot_be_evaluated_is_a_problem_of_its_host(play: Play) -> None:
    edit(play.root, "spark_1/seats.yml", "port: 8031", 'port: "{{ undefined_here + 1 }}"')
    code, out = play.run(*REVIEW, "-l", "spark-1")
    assert code != 0
    (line,) = lines(out)
    assert line == (
        "group_vars/spark_1/seats.yml:6: host spark-1: seats.agent.port: expected a value, "
        "seen 'undefined_here' is undefined"
    )


def test_a_variable_that_is_nearly_one_of_ours(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """`seat:` declares no seat: the next deploy would take the aliases of those that run from their callers."""
    edit(play.root, "fv_ml1/seats.yml", "seats:\n", "seat:\n")
    expected = (
        "group_vars/fv_ml1/seats.yml:3: seat: expected a variable that something reads (did you mean 'seats'?), "
        "seen one that nothing does"
    )
    code, out = validate(play.root, capsys, "-l", "fv-ml1")
    assert (code, lines(out)) == (2, [expected])
    code, out = play.run(*REVIEW, "-l", "fv-ml1")
    assert code != 0
    assert lines(out) == [expected]
    assert validate(play.root, capsys, "-l", "spark-1")[0] == 0


def test_secrets_that_are_used_and_not_there(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    """All before a host is contacted, each with who needs it; without any secret outside a run: not checked."""
    edit(play.root, "production/main.yml", "{{ vault_litellm_master_key }}", "{{ vault_litellm_admin_key }}")
    edit(play.root, "production/vault.yml", "vault_seat_api_key_secret:", "vault_mine:")
    code, out = validate(play.root, capsys, "-l", "fv-ml1")
    found = lines(out)
    assert [line.partition(", which")[0].replace("expected the variable ", "") for line in found] == [
        "group_vars/production/main.yml:4: gateway_admin_key: vault_litellm_admin_key",
        "roles/seat/defaults/main.yml: seat_api_key_secret: vault_seat_api_key_secret",
        "roles/seat_alias/defaults/main.yml: seat_alias_seat_key_secret: vault_seat_api_key_secret",
    ]
    assert code == 2
    code, out = play.run(*REVIEW, "-l", "fv-ml1")
    assert (code != 0, lines(out)) == (True, found)
    code, out = play.run(
        *REVIEW, "-l", "fv-ml1", "-e", "vault_seat_api_key_secret=s", "-e", "vault_litellm_admin_key=s"
    )
    assert code == 0, out
    (play.root / "group_vars/production/vault.yml").unlink()
    code, out = validate(play.root, capsys, "-l", "fv-ml1")
    assert code == 0, out
    assert "vault: vault_seat_api_key_secret: no secret is in the inventory" in out


def test_a_profile_that_is_misspelt_is_one_problem(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project, "fv_ml1/seats.yml", "profile: flash-next", "profile: flash-nxt")
    code, out = validate(project, capsys, "-l", "fv-ml1")
    assert code == 2
    (line,) = lines(out)
    assert line.endswith("expected a profile of seat_profiles (did you mean 'flash-next'?), seen 'flash-nxt'")
