"""The lab on this machine: hosts are really booted, killed and removed. Needs root and what lab/README.md lists."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatlab import cgroups, settings

PROJECT = Path(__file__).resolve().parents[2]


class LabUnderTest:
    """One lab in a directory of its own, driven through its command line."""

    def __init__(self, state: Path) -> None:
        self.lab = settings.load({**os.environ, "SEATFLEET_LAB": str(state)})

    def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SEATFLEET_LAB": str(self.lab.state)}
        command = [str(PROJECT / "lab" / "lab"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)

    def __call__(self, *arguments: str) -> str:
        done = self.try_(*arguments)
        assert done.returncode == 0, f"lab {arguments}: {done.stderr}"
        return done.stdout.strip()

    def refused(self, *arguments: str) -> str:
        done = self.try_(*arguments)
        assert done.returncode == 1, f"lab {arguments} was expected to fail: {done.stdout}"
        assert done.stderr.startswith("lab: ")
        assert len(done.stderr.strip().splitlines()) == 1, "one line, no traceback"
        return done.stderr

    def boot_of(self, name: str) -> str:
        return self("ssh", name, "systemctl show -p UserspaceTimestampMonotonic --value")

    def nspawn_pid(self, name: str) -> int:
        pid: int = json.loads((self.lab.hosts / name / "running.json").read_text())["nspawn"]
        return pid

    def outside(self) -> dict[str, list[str]]:
        """Everything of this lab that is outside of its directory, by kind."""
        lab = self.lab
        mine = (lab.bridge, f"sf{lab.id}-")
        links = [link.name for link in Path("/sys/class/net").iterdir()]
        groups = [d for h in cgroups.current() for d, _, _ in os.walk(h.mount) if d.endswith(lab.cgroup)]
        processes = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text() + (process / "cgroup").read_text()
            except OSError:
                continue
            if lab.cgroup in words or f"sf{lab.id}-" in words:
                processes.append(process.name)
        runtime = [str(p) for p in Path("/run/systemd/nspawn").glob("*/*") if f"sf{lab.id}-" in p.name]
        return {
            "links": [name for name in links if any(word in name for word in mine)],
            "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(lab.state) in line],
            "cgroups": groups,
            "processes": processes,
            "runtime directories": runtime,
        }


def runs(pid: int) -> bool:
    """Whether a process does anything. One that is dead keeps its number until its parent asks for its exit code, which
    the PID 1 of a container may never do for the orphans it is given."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


NOTHING: dict[str, list[str]] = {
    "links": [],
    "mounts": [],
    "cgroups": [],
    "processes": [],
    "runtime directories": [],
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    """A lab with one host up."""
    lab = LabUnderTest(tmp_path_factory.mktemp("first"))
    lab("up", "fv-ml1")
    yield lab
    lab("destroy", "--all")


@pytest.fixture
def second(tmp_path: Path) -> Iterator[LabUnderTest]:
    """Another lab on the same machine."""
    lab = LabUnderTest(tmp_path / "second")
    yield lab
    lab("destroy", "--all")


def test_a_dead_process_without_a_parent_that_asks_does_not_run() -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert runs(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists(), "nobody has asked yet"
    assert not runs(process.pid)
    process.wait()
    assert not runs(process.pid)


def test_host_is_a_complete_system(first: LabUnderTest) -> None:
    mirror = first.lab.cache / "mirror"
    probe = mirror / f"probe-{first.lab.id}"
    probe.write_text("seen")
    try:
        assert first("ssh", "fv-ml1", f"cat /srv/mirror/{probe.name}") == "seen"
    finally:
        probe.unlink()
    assert first.try_("ssh", "fv-ml1", "touch /srv/mirror/x").returncode != 0, "the mirror is read-only"
    assert first("ssh", "fv-ml1", "systemctl is-system-running --wait") == "running"
    assert first("ssh", "fv-ml1", "hostname; ps -p 1 -o comm=").split() == ["fv-ml1", "systemd"]
    assert first("ssh", "fv-ml1", ". /etc/os-release; echo $VERSION_CODENAME") == "bookworm"
    assert first("ssh", "fv-ml1", "ldconfig -p | grep -c -e libnuma.so.1 -e libgomp.so.1") == "2"
    assert (
        first("ssh", "fv-ml1", "node --version; python3 -c 'import venv, ensurepip'; which psql nft").count("\n") == 2
    )
    state = first.try_("ssh", "fv-ml1", "systemctl is-enabled postgresql; systemctl is-active postgresql").stdout
    assert state.split() == ["disabled", "inactive"]


def test_unit_limits_are_enforced(first: LabUnderTest) -> None:
    run = "systemd-run --quiet --wait --pipe -p MemoryMax=64M -p MemorySwapMax=0 python3 -c"
    assert first("ssh", "fv-ml1", f"{run} \"x = b'1' * (16 << 20); print(len(x))\"") == str(16 << 20)
    assert first.try_("ssh", "fv-ml1", f"{run} \"x = b'1' * (200 << 20)\"").returncode != 0


def test_up_leaves_a_running_host_alone(first: LabUnderTest) -> None:
    before = first.nspawn_pid("fv-ml1")
    first("up", "fv-ml1")
    assert first.nspawn_pid("fv-ml1") == before


def test_while_up_everything_outside_is_found_and_no_mount_is(first: LabUnderTest) -> None:
    found = first.outside()
    assert found["mounts"] == []
    assert all(found[kind] for kind in found if kind != "mounts"), "this test's own eyes are shut"


def test_kill_is_a_power_cut_and_the_disk_survives(first: LabUnderTest) -> None:
    first("ssh", "fv-ml1", "echo kept >/srv/kept; sync")
    first("kill", "fv-ml1")
    first("kill", "fv-ml1")
    assert first.outside() == NOTHING
    assert "is not running" in first.refused("ssh", "fv-ml1", "true")
    assert "down" in first("list")
    first("up", "fv-ml1")
    assert first("ssh", "fv-ml1", "cat /srv/kept") == "kept"
    assert (
        first("ssh", "fv-ml1", "journalctl -b -1 --no-pager -q -g 'Reached target .*poweroff' || echo none") == "none"
    )


def test_cut_and_heal(first: LabUnderTest) -> None:
    for _ in range(2):
        first("cut", "fv-ml1")
    assert "'lab heal fv-ml1'" in first.refused("up", "fv-ml1")
    assert first("exec", "fv-ml1", "hostname") == "fv-ml1", "the host itself is alive"
    for _ in range(2):
        first("heal", "fv-ml1")
    first("up", "fv-ml1")
    assert first("ssh", "fv-ml1", "hostname") == "fv-ml1"


def test_reboot_from_outside_and_from_inside(first: LabUnderTest) -> None:
    def boots() -> int:
        return int(first("ssh", "fv-ml1", "journalctl --list-boots -q --no-pager | wc -l"))

    before = boots()
    first("reboot", "fv-ml1")
    assert boots() == before + 1
    assert first("ssh", "fv-ml1", "journalctl -b -1 --no-pager -q | grep -c 'Reached target reboot'") == "1"


def test_down_is_orderly_and_repeatable(first: LabUnderTest) -> None:
    first("down", "fv-ml1")
    first("down", "fv-ml1")
    assert first.outside() == NOTHING
    first("up", "fv-ml1")
    assert first("ssh", "fv-ml1", "journalctl -b -1 --no-pager -q | grep -c 'Reached target poweroff'") == "1"


def test_host_whose_nspawn_died_is_reclaimed(first: LabUnderTest) -> None:
    os.kill(first.nspawn_pid("fv-ml1"), signal.SIGKILL)  # alone; the host's systemd survives this
    first("down", "fv-ml1")
    assert first.outside() == NOTHING
    first("up", "fv-ml1")


def test_host_that_cannot_start_leaves_nothing(first: LabUnderTest) -> None:
    first("down", "fv-ml1")
    mount_point = first.lab.hosts / "fv-ml1" / "mnt"
    mount_point.rmdir()
    assert "fv-ml1 did not start: " in first.refused("up", "fv-ml1")
    assert first.outside() == NOTHING
    mount_point.mkdir()
    first("up", "fv-ml1")


def test_two_at_once_boot_one_host(second: LabUnderTest) -> None:
    command = [str(PROJECT / "lab" / "lab"), "up", "spark-1"]
    environment = {**os.environ, "SEATFLEET_LAB": str(second.lab.state)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    for process in both:
        process.communicate()
    assert second("ssh", "spark-1", "journalctl --list-boots -q --no-pager | wc -l") == "1"


def test_labs_coexist_and_reclaim_only_their_own(first: LabUnderTest, second: LabUnderTest) -> None:
    before = first.nspawn_pid("fv-ml1")
    second("up", "fv-ml1")
    assert second("list") != first("list"), "other addresses"
    assert second("ssh", "fv-ml1", "ls /srv") == "mirror", "the other disk: nothing of the first lab's"
    second("destroy", "--all")
    second("destroy", "--all")
    assert second.outside() == NOTHING
    assert first.nspawn_pid("fv-ml1") == before
    assert first("ssh", "fv-ml1", "hostname") == "fv-ml1"


def test_lab_whose_directory_was_removed_while_running_is_reclaimed(second: LabUnderTest) -> None:
    second("up", "fv-ml1")
    lost = second.nspawn_pid("fv-ml1")
    (second.lab.hosts / "fv-ml1").rename(second.lab.state / "gone")
    second("up", "fv-ml1")
    assert second.nspawn_pid("fv-ml1") != lost
    assert not runs(lost)
    second("destroy", "--all")
    assert second.outside() == NOTHING


def test_layer_carries_the_disk_and_not_the_identity(second: LabUnderTest) -> None:
    second("up", "fv-ml1")
    second("ssh", "fv-ml1", "echo v1 >/opt/installed; rm /usr/bin/zstd; echo '10.0.0.9 extra' >>/etc/hosts")
    second("ssh", "fv-ml1", "rm -r /usr/share/zoneinfo; mkdir /usr/share/zoneinfo; touch /usr/share/zoneinfo/mine")
    assert "lab down fv-ml1" in second.refused("snapshot", "fv-ml1", "release")
    identity = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f1,2"
    was = second("ssh", "fv-ml1", identity).splitlines()
    second("down", "fv-ml1")
    second("snapshot", "fv-ml1", "release")
    second("snapshot", "fv-ml1", "release")
    assert "there: release" in second.refused("up", "spark-1", "--layer", "relase")

    second("up", "spark-1", "gw-1", "--layer", "release")
    second("up", "spark-1", "--layer", "release")
    assert second("ssh", "spark-1", "cat /opt/installed; hostname").split() == ["v1", "spark-1"]
    assert second("ssh", "spark-1", "ls /usr/share/zoneinfo") == "mine", "an emptied directory stays emptied"
    assert second.try_("ssh", "spark-1", "which zstd").returncode != 0, "a removed file stays removed"
    assert second("ssh", "spark-1", "grep -c -e fv-ml1 -e extra /etc/hosts || true") == "0"
    ids = [second("ssh", name, identity).splitlines() for name in ("spark-1", "gw-1")]
    assert len({line for lines in [was, *ids] for line in lines}) == 6, "three machines, nothing shared"
    assert "in use by gw-1, spark-1" in second.refused("snapshot", "fv-ml1", "release")

    # A layer made on a layer, after the host it came from is gone.
    second("destroy", "fv-ml1", "gw-1")
    second("ssh", "spark-1", "echo v2 >/opt/more")
    second("down", "spark-1")
    second("snapshot", "spark-1", "release-and-more")
    second("up", "fv-ml1", "--layer", "release-and-more")
    assert second("ssh", "fv-ml1", "cat /opt/installed /opt/more; hostname").split() == ["v1", "v2", "fv-ml1"]
    assert "was not made from layer 'release'" in second.refused("up", "fv-ml1", "--layer", "release")


def test_env_makes_ansible_find_the_lab(second: LabUnderTest, tmp_path: Path) -> None:
    second("up", "gw-1")
    script = f"cd {tmp_path} && . {PROJECT}/lab/env && exec ansible gw-1 -m ansible.builtin.command -a hostname"
    environment = {**os.environ, "SEATFLEET_LAB": str(second.lab.state)}
    done = subprocess.run(["bash", "-euc", script], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gw-1" in done.stdout
