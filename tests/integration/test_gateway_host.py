"""The gateway's host: what the role refuses, and what an implant, an upgrade and a failing migration come to.

Needs only gw-1; the proxy is installed by the first test that wants it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from labrun import Lab, Run

LEDGER = '"_prisma_migrations"'
LAST = "20261009000000_add_credential_display_name"
BAD = """
set -eu
rm -rf /tmp/migrations && mkdir -p '/tmp/migrations/1_with a space' /tmp/migrations/2_bad /tmp/migrations/3_after
echo 'CREATE TABLE one (a int)' > '/tmp/migrations/1_with a space/migration.sql'
echo 'CREATE TABLE two (a int); SELECT no_such_function();' > /tmp/migrations/2_bad/migration.sql
echo 'CREATE INDEX CONCURRENTLY i ON one (a);' > /tmp/migrations/3_after/migration.sql
"""


@pytest.fixture(scope="module")
def host(lab: Lab) -> Lab:
    """The lab, with the gateway installed."""
    lab.run("ansible-playbook", "playbooks/gateway.yml", "-l", "gw-1")
    return lab


def sql(lab: Lab, query: str, database: str = "litellm") -> list[str]:
    """Run a query as PostgreSQL's superuser on the host."""
    argv = ("env", "-C", "/", "runuser", "-u", "postgres", "--", "psql", "-X", "-At", "-d", database)
    return lab.host("gw-1", *argv, stdin=query).output.split()


def started(lab: Lab) -> str:
    """Return what changes when the proxy is restarted."""
    return lab.host("gw-1", "systemctl", "show", "litellm", "--property=InvocationID").output


def play(lab: Lab, *extra: str) -> Run:
    """Run the gateway's play with options or extra variables, whatever comes of it."""
    given = [part for item in extra for part in ((item,) if item.startswith("-") else ("-e", item))]
    return lab.run("ansible-playbook", "playbooks/gateway.yml", "-l", "gw-1", *given, check=False)


def database(lab: Lab, directory: str) -> Run:
    """Run the database module alone, on a database of its own."""
    arguments = f"database=trial owner=litellm migrations={directory} dump_dir=/var/lib/litellm-dumps"
    return lab.run("ansible", "gw-1", "-m", "seatfleet.fleet.litellm_database", "-a", arguments, check=False)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("gateway_version=1.107.0", "compromised release"),
        ("gateway_version=1.82.8", "compromised release"),
        ("gateway_version=1.87.0", "known holes"),
        ("gateway_salt_key=sk-another-salt-key-0123456789", "The salt key differs"),
    ],
)
def test_refused_before_anything_changes(host: Lab, variable: str, words: str) -> None:
    before = started(host)
    run = play(host, variable)
    assert run.code != 0
    assert words in " ".join(run.output.split())
    assert run.changed["gw-1"] == 0
    assert started(host) == before


def test_an_implant_keeps_the_proxy_from_starting(host: Lab) -> None:
    packages = "/opt/litellm/current/lib/python3.11/site-packages"
    host.host("gw-1", "touch", f"{packages}/litellm_init.pth")
    try:
        assert host.host("gw-1", "systemctl", "restart", "litellm", check=False).code != 0
        assert "litellm_init.pth" in host.host("gw-1", "journalctl", "-u", "litellm", "-n", "20", "-o", "cat").output
    finally:
        host.host("gw-1", "rm", f"{packages}/litellm_init.pth")
        host.host("gw-1", "systemctl", "reset-failed", "litellm")
        host.host("gw-1", "systemctl", "restart", "litellm")
    assert play(host).code == 0


def test_a_restart_that_an_earlier_run_lost_is_made_good(host: Lab) -> None:
    before = started(host)
    host.host("gw-1", "touch", "/etc/litellm/config.yaml")
    run = play(host)
    assert (run.code, run.changed["gw-1"]) == (0, 1), run.output
    assert started(host) != before
    assert play(host).changed["gw-1"] == 0


def test_a_missing_migration_is_applied_after_a_dump(host: Lab) -> None:
    before = dumps(host)
    sql(host, f"DELETE FROM {LEDGER} WHERE migration_name = '{LAST}'")
    run = play(host)
    assert (run.code, run.changed["gw-1"]) == (0, 1), run.output
    assert sql(host, f"SELECT count(*) FROM {LEDGER} WHERE migration_name = '{LAST}'") == ["1"]
    new = dumps(host) - before
    assert len(new) == 1
    listing = host.host("gw-1", "pg_restore", "--list", new.pop()).output
    assert "LiteLLM_VerificationToken" in listing
    assert play(host).changed["gw-1"] == 0


def dumps(lab: Lab) -> set[str]:
    """Return the dumps that the host keeps."""
    return set(lab.host("gw-1", "sh", stdin="find /var/lib/litellm-dumps -name '*.dump'").output.split())


def test_another_release_is_selected_after_a_dump_and_the_older_one_comes_back(host: Lab, tmp_path: Path) -> None:
    """The second release is a copy of the first, under the name that an edited lock gives: no second installation."""
    lock = "files/locks/litellm-1.106.12-cp311-x86_64.txt"
    edited = host.edited(tmp_path / "edited", [(lock, "# then one wheel", "# Then one wheel")])
    foreseen = play(edited, "--check")
    assert foreseen.changed["gw-1"] > 0
    release = re.search(r"/opt/litellm/releases/1\.106\.12-[0-9a-f]{12}", foreseen.output)
    assert release is not None
    first = host.host("gw-1", "readlink", "-f", "/opt/litellm/current").output.strip()
    assert release[0] != first
    host.host("gw-1", "cp", "-a", first, release[0])
    before = dumps(host)
    for project, expected in ((edited, release[0]), (host, first)):
        start = started(host)
        run = play(project)
        assert run.code == 0, run.output
        assert host.host("gw-1", "readlink", "-f", "/opt/litellm/current").output.strip() == expected
        assert started(host) != start
        new = dumps(host) - before
        assert len(new) == 1, "not dumped before the change"
        before |= new
        assert play(project).changed["gw-1"] == 0
    assert "LiteLLM_VerificationToken" in host.host("gw-1", "pg_restore", "--list", before.pop()).output
    # Kept for a way back, until newer ones push it out.
    assert play(edited, "--check").changed["gw-1"] > 0
    host.host("gw-1", "rm", "-r", release[0])


@pytest.fixture
def trial(host: Lab) -> Iterator[Lab]:
    """The host, without the database that the test makes."""
    yield host
    sql(host, "DROP DATABASE IF EXISTS trial", "postgres")


def test_migrations_stop_at_the_failing_one_and_go_on_from_there(trial: Lab) -> None:
    trial.host("gw-1", "sh", stdin=BAD)
    first = database(trial, "/tmp/migrations")
    assert first.code != 0
    assert "no_such_function" in first.output
    names = f"SELECT migration_name FROM {LEDGER} ORDER BY 1"
    assert " ".join(sql(trial, names, "trial")) == "1_with a space"
    assert sql(trial, "SELECT to_regclass('two') IS NULL", "trial") == ["t"]
    trial.host("gw-1", "sh", stdin="echo 'CREATE TABLE two (a int);' > /tmp/migrations/2_bad/migration.sql")
    assert database(trial, "/tmp/migrations").code == 0
    assert " ".join(sql(trial, names, "trial")) == "1_with a space 2_bad 3_after"
    assert sql(trial, "SELECT tableowner FROM pg_tables WHERE tablename IN ('one', 'two')", "trial") == ["litellm"] * 2
    assert "changed: false" in database(trial, "/tmp/migrations").output
