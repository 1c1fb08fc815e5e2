"""The parts of the lab tool that can be told from text alone: names, subnets, cgroups, mirrors, declarations."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

import pytest
import yaml

from seatlab import base, cgroups, disk, network, preflight, settings, state
from seatlab.errors import LabError

PROJECT = Path(__file__).resolve().parents[2]

# Captured; the mount lines shortened to the fields that are read.
HYBRID_SELF = """\
9:name=systemd:/
8:pids:/
4:memory:/jobs/96f2
0::/
"""
HYBRID_MOUNTS = """\
23 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_SELF = "0::/user.slice/user-0.slice/session-3.scope\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
V1_SELF = """\
4:memory:/user.slice
3:cpu,cpuacct:/user.slice
1:name=systemd:/user.slice/user-0.slice/session-3.scope
"""
V1_MOUNTS = """\
31 25 0:26 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd
33 25 0:29 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
34 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct
"""
# A container without a cgroup namespace: the whole path is named, only a part of it is mounted.
CONTAINER_SELF = "1:name=systemd:/docker/4f2a/inner\n"
CONTAINER_MOUNTS = "31 25 0:26 /docker/4f2a /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"


@pytest.mark.parametrize(
    ("self_cgroup", "mountinfo", "expected"),
    [
        pytest.param(
            HYBRID_SELF,
            HYBRID_MOUNTS,
            ["systemd/L/M", "unified/L/M", "pids/L/M", "memory/jobs/96f2/L/M"],
            id="hybrid",
        ),
        pytest.param(V2_SELF, V2_MOUNTS, ["user.slice/user-0.slice/session-3.scope/L/M"], id="v2"),
        pytest.param("0::/\n", V2_MOUNTS, ["L/M"], id="v2 root"),
        pytest.param(
            V1_SELF,
            V1_MOUNTS,
            [
                "systemd/user.slice/user-0.slice/session-3.scope/L/M",
                "memory/user.slice/L/M",
                "cpu,cpuacct/user.slice/L/M",
            ],
            id="v1",
        ),
        pytest.param(CONTAINER_SELF, CONTAINER_MOUNTS, ["systemd/inner/L/M"], id="container"),
        pytest.param("1:name=systemd:/elsewhere\n", CONTAINER_MOUNTS, ["systemd/L/M"], id="outside of the mount"),
        pytest.param("5:hugetlb:/\n1:name=systemd:/\n", V1_MOUNTS, ["systemd/L/M"], id="one hierarchy not mounted"),
    ],
)
def test_cgroup_directories(self_cgroup: str, mountinfo: str, expected: list[str]) -> None:
    found = cgroups.directories(cgroups.parse(self_cgroup, mountinfo), "L", "M")
    assert [str(path) for path in found] == [f"/sys/fs/cgroup/{path}" for path in expected]


@pytest.mark.parametrize(
    ("self_cgroup", "mountinfo", "first"),
    [
        pytest.param(HYBRID_SELF, HYBRID_MOUNTS, ("name=systemd",), id="hybrid"),
        pytest.param("0::/\n4:memory:/\n1:name=systemd:/\n", HYBRID_MOUNTS, ("name=systemd",), id="hybrid, any order"),
        pytest.param(V2_SELF, V2_MOUNTS, (), id="v2"),
        pytest.param(V1_SELF, V1_MOUNTS, ("name=systemd",), id="v1"),
    ],
)
def test_hierarchy_that_names_processes_is_first(self_cgroup: str, mountinfo: str, first: tuple[str, ...]) -> None:
    hierarchies = cgroups.parse(self_cgroup, mountinfo)
    assert hierarchies[0].controllers == first
    assert hierarchies[0].names_processes


@pytest.mark.parametrize(
    ("below_root", "processes", "steps_aside"),
    [
        pytest.param(True, [os.getpid()], True, id="alone in a delegated scope"),
        pytest.param(True, [1, os.getpid()], False, id="shares its group: cannot, boots without limits"),
        pytest.param(False, [1, os.getpid()], False, id="the root is exempt"),
    ],
)
def test_v2_supervisor_steps_aside_only_where_it_is_alone(
    tmp_path: Path, below_root: bool, processes: list[int], steps_aside: bool
) -> None:
    """Version 2 passes controllers down only through groups without processes; plain files stand in for the kernel."""
    for group in (tmp_path, tmp_path / "L"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text("cpu memory pids\n")
        (group / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))
    if below_root:
        (tmp_path / "cgroup.type").write_text("domain\n")
    made = cgroups.create([cgroups.Hierarchy(2, (), tmp_path, PurePosixPath("/"))], "L", "M")
    assert made == [tmp_path / "L" / "M"]
    assert made[0].is_dir()
    leaf = tmp_path / cgroups.SUPERVISOR_LEAF / "cgroup.procs"
    assert leaf.exists() is steps_aside
    for group in (tmp_path, tmp_path / "L"):
        assert (group / "cgroup.subtree_control").read_text() == "+pids", "the last of three writes"
    assert not (made[0] / "cgroup.subtree_control").exists(), "the host's own group is its systemd's business"


def test_hybrid_machine_keeps_its_unified_hierarchy_as_it_is(tmp_path: Path) -> None:
    for name in ("systemd", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    (tmp_path / "unified" / "cgroup.subtree_control").write_text("")
    root = PurePosixPath("/")
    both = [
        cgroups.Hierarchy(1, ("name=systemd",), tmp_path / "systemd", root),
        cgroups.Hierarchy(2, (), tmp_path / "unified", root),
    ]
    assert all(path.is_dir() for path in cgroups.create(both, "L", "M"))
    assert (tmp_path / "unified" / "cgroup.subtree_control").read_text() == ""


def test_remove_takes_groups_from_the_inside_and_leaves_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "L" / "M" / "system.slice" / "ssh.service").mkdir(parents=True)
    (tmp_path / "L" / "other").mkdir()
    cgroups.remove([tmp_path / "L" / "M"])
    cgroups.remove([tmp_path / "L" / "M"])
    assert [path.name for path in (tmp_path / "L").iterdir()] == ["other"]
    cgroups.remove([tmp_path / "L" / "other"])
    assert not (tmp_path / "L").exists()


def lab(state_directory: str = "/srv/project/.lab") -> settings.Lab:
    return settings.load({"SEATFLEET_LAB": state_directory, "SEATFLEET_CACHE": "/srv/cache"})


def test_everything_outside_of_a_labs_directory_is_named_after_it() -> None:
    one, other = lab("/srv/project/.lab"), lab("/srv/clone/.lab")
    for spec in one.specs.values():
        names = [one.bridge, one.cgroup, one.machine(spec), one.link(spec)]
        assert all(one.id in name for name in names)
        assert not set(names) & {other.bridge, other.cgroup, other.machine(spec), other.link(spec)}
    assert one.id == lab("/srv/project/sub/../.lab").id, "one directory, one lab"


@pytest.mark.parametrize("number", [2, 254])
def test_interface_names_fit_the_kernel(number: int) -> None:
    spec = settings.HostSpec("a-host-with-a-rather-long-name", number)
    assert len(lab().link(spec)) <= 15
    assert len(lab().bridge) <= 15


@pytest.mark.parametrize("path", ["/srv/my project/.lab", "/srv/a:b", "/srv/a,b", "/srv/100%"])
def test_paths_that_mount_or_ssh_would_split_are_refused(path: str) -> None:
    with pytest.raises(LabError, match="set SEATFLEET_LAB"):
        lab(path)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SEATFLEET_CACHE": "/srv/cache", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/srv/cache"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/seatfleet"),
        ({"HOME": "/h"}, "/h/.cache/seatfleet"),
    ],
)
def test_cache_directory(environ: dict[str, str], expected: str) -> None:
    assert settings.cache_dir(environ) == Path(expected)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ({"a": {"number": 1}}, "a: number: expected 2 to 254, seen 1"),
        ({"a": {"number": 255}}, "a: number: expected 2 to 254, seen 255"),
        ({"a": {"number": "11"}}, "a: number: expected 2 to 254, seen '11'"),
        ({"a": {"number": 11}, "b": {"number": 11}}, "b: number 11 is already that of a"),
    ],
)
def test_host_numbers(hosts: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(LabError, match=message):
        settings.read_specs({"hosts": hosts}, Path("/srv/cache"))


def test_every_host_sees_the_mirror_and_its_own_binds() -> None:
    own = {"source": "models", "target": "/srv/models"}
    specs = settings.read_specs({"hosts": {"a": {"number": 2, "binds": [own]}, "b": {"number": 3}}}, Path("/c"))
    mirror = settings.Bind(Path("/c/mirror"), "/srv/mirror")
    assert specs["b"].binds == (mirror,)
    assert specs["a"].binds == (mirror, settings.Bind(Path("/c/models"), "/srv/models"))


def test_subnets_of_two_labs_differ_and_stay() -> None:
    free: dict[ipaddress.IPv4Network, str] = {}
    mine = network.choose("aaaaaa", "sfbr-aaaaaa", free, None)
    assert mine != network.choose("bbbbbb", "sfbr-bbbbbb", free, None)
    assert mine == network.choose("aaaaaa", "sfbr-aaaaaa", free, str(mine))
    assert mine.prefixlen == 24
    assert mine.subnet_of(network.POOL)


@pytest.mark.parametrize(
    ("interface", "prefix", "moves"),
    [
        pytest.param("sfbr-bbbbbb", 24, True, id="another lab has it"),
        pytest.param("docker0", 16, True, id="inside of a network of this machine"),
        pytest.param("sfbr-aaaaaa", 24, False, id="this lab's own bridge"),
        pytest.param("eth0", 8, False, id="a site-wide route is wider, so the lab's wins"),
    ],
)
def test_subnet_moves_away_from_what_the_machine_uses(interface: str, prefix: int, moves: bool) -> None:
    first = next(network.candidates("aaaaaa"))
    routes = {first.supernet(new_prefix=prefix): interface}
    assert (network.choose("aaaaaa", "sfbr-aaaaaa", routes, str(first)) != first) is moves


def test_no_free_subnet_says_so() -> None:
    everything = {network.POOL.supernet(new_prefix=8): "eth0"} | {
        ipaddress.IPv4Network(f"10.{second}.0.0/16"): "tun0" for second in range(256)
    }
    with pytest.raises(LabError, match="no free /24"):
        network.choose("aaaaaa", "sfbr-aaaaaa", everything, None)


def test_routes_are_read_from_the_kernels_table() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "sfbr-aaaaaa\t00294B0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert network.parse_routes(table) == {ipaddress.IPv4Network("10.75.41.0/24"): "sfbr-aaaaaa"}


MIRROR = "http://mirror.example/debian/"
SECURITY = "http://mirror.example/security/"


@pytest.mark.parametrize("codename", ["bookworm", "trixie"])
def test_base_comes_from_the_machines_own_mirrors(codename: str) -> None:
    targets = [
        f"{SECURITY} {codename}-security main Debian",
        f"{MIRROR} {codename} main Debian",
        f"{MIRROR} {codename} contrib Debian",
        f"{MIRROR} {codename}-backports main Debian",
        "https://vendor.example/apt stable main Vendor",
        "https://vendor.example/apt stable main",
    ]
    assert base.sources(targets, codename) == [
        f"deb {SECURITY} bookworm-security main",
        f"deb {MIRROR} bookworm main",
    ]


def test_base_falls_back_to_the_builders_default_mirror() -> None:
    assert base.sources([f"{SECURITY} noble main Ubuntu"], "noble") == []
    assert base.sources([f"{SECURITY} trixie-security main Debian"], "trixie") == [], "updates alone boot nothing"


@pytest.mark.parametrize("name", ["PACKAGES", "MASKED_UNITS", "ENABLED_UNITS", "DISABLED_UNITS", "DPKG_OPTIONS"])
def test_another_content_is_another_base(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = base.key("x86_64")
    assert before == base.key("x86_64") != base.key("aarch64")
    monkeypatch.setattr(base, name, (*getattr(base, name), "another"))
    assert base.key("x86_64") != before


def test_base_that_exists_is_not_built_again_and_a_stale_one_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "base" / "bookworm-000000000000").mkdir(parents=True)
    wanted = base.path(tmp_path)
    wanted.mkdir()
    assert base.ensure(tmp_path) == wanted


def test_missing_commands_are_reported_as_debian_packages() -> None:
    assert preflight.missing_packages(lambda command: None) == [
        "iproute2",
        "mount",
        "openssh-client",
        "systemd-container",
        "util-linux",
    ]
    assert preflight.missing_packages(lambda command: f"/usr/bin/{command}") == []


def test_lab_hosts_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="need root"):
        preflight.check()


def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(preflight, "missing_packages", lambda: ["systemd-container"])
    with pytest.raises(LabError, match="apt-get install --no-install-recommends systemd-container"):
        preflight.check()


@pytest.mark.parametrize(("limit", "short"), [(12, False), (11, True)])
def test_a_host_that_would_get_no_inotify_instance_is_not_booted(tmp_path: Path, limit: int, short: bool) -> None:
    (tmp_path / "sys/fs/inotify").mkdir(parents=True)
    (tmp_path / "sys/fs/inotify/max_user_instances").write_text(f"{limit}\n")
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "8").mkdir()
    (tmp_path / "8/fd").touch()  # what can no longer be listed
    for number, target in enumerate(["anon_inode:inotify", "anon_inode:inotify", "anon_inode:[eventpoll]"]):
        (tmp_path / f"7/fd/{number}").symlink_to(target)
    message = preflight.short_of_inotify(tmp_path)
    assert (message is not None) == short
    assert message is None or message.startswith("2 of 11 inotify instances are in use")


@pytest.mark.parametrize(
    ("mountinfo", "read_only", "message"),
    [
        pytest.param("", False, "no cgroup hierarchy for processes", id="nothing mounted"),
        pytest.param(HYBRID_MOUNTS, True, "/sys/fs/cgroup/systemd is read-only", id="container with read-only cgroups"),
    ],
)
def test_unusable_cgroups_are_one_line(mountinfo: str, read_only: bool, message: str) -> None:
    with pytest.raises(LabError, match=message):
        cgroups.check(cgroups.parse(HYBRID_SELF, mountinfo), lambda mount: read_only)


def test_secrets_are_fresh_and_have_the_inventorys_form() -> None:
    one, other = state.new_secrets(), state.new_secrets()
    inventory = (PROJECT / "group_vars" / "lab" / "secrets.yml").read_text()
    assert all(f"lab_secrets.{name} " in inventory for name in one)
    assert all(one[name] != other[name] for name in one)
    keys = one["litellm_keys"]
    assert isinstance(keys, dict)
    assert sorted(keys) == ["all-agents", "control", "infra-ops"]
    assert all(key.startswith("sk-") for key in keys.values())


def test_init_makes_what_the_inventory_reads_once(tmp_path: Path) -> None:
    mine = lab(str(tmp_path))
    subnet = state.initialise(mine)
    secrets = mine.secrets.read_text()
    assert mine.secrets.stat().st_mode & 0o777 == 0o600
    addresses = json.loads(mine.addresses.read_text())
    assert addresses == {name: {"address": str(subnet[spec.number])} for name, spec in mine.specs.items()}
    assert state.initialise(mine) == subnet
    assert mine.secrets.read_text() == secrets


def test_identity_keeps_modes_of_the_directories_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory in an overlay's changes hides the mode of the one below it: a 0755 /root would be a hole."""
    lower, upper = tmp_path / "base", tmp_path / "upper"
    for name, mode in (("root", 0o700), ("etc/ssh", 0o750), ("etc/systemd/network", 0o711)):
        (lower / name).mkdir(parents=True)
        (lower / name).chmod(mode)
    mine = lab(str(tmp_path / "lab"))
    mine.state.mkdir()
    mine.key.with_suffix(".pub").write_text("ssh-ed25519 AAAA lab\n")
    (lower / "etc/ssh/ssh_host_ed25519_key").write_text("")
    monkeypatch.setattr(disk, "run", lambda command: "")
    disk.new_upper(upper, [lower])
    for address in ("10.64.0.11", "10.64.0.11", "10.64.9.11"):
        disk.write_identity(mine, upper, [lower], "fv-ml1", address, "10.64.0.1")
        with (upper / "etc/hosts").open("a") as hosts:
            hosts.write("# a role's line\n")
    modes = {name: (upper / name).stat().st_mode & 0o777 for name in ("root", "root/.ssh", "etc/ssh")}
    assert modes == {"root": 0o700, "root/.ssh": 0o700, "etc/ssh": 0o750}
    assert (upper / "root/.ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    assert "10.64.9.11 fv-ml1" in (upper / "etc/hosts").read_text()
    assert "Address=10.64.9.11/24" in (upper / "etc/systemd/network/10-host0.network").read_text()


def test_overlay_names_the_uppermost_layer_first() -> None:
    lower = [Path("/l/more/upper"), Path("/l/release/upper"), Path("/c/base/b")]
    options = disk.overlay_options(lower, Path("/h/upper"), Path("/h/work"))
    assert options.startswith("lowerdir=/l/more/upper:/l/release/upper:/c/base/b,upperdir=/h/upper,workdir=/h/work,")


def test_inventory_and_declaration_have_the_same_hosts() -> None:
    declared = tomllib.loads((PROJECT / "lab" / "hosts.toml").read_text())["hosts"]
    groups = yaml.safe_load((PROJECT / "inventory" / "lab" / "hosts.yml").read_text())["all"]["children"]
    grouped = [host for group in groups["lab"]["children"].values() for host in group["hosts"]]
    assert sorted(grouped) == sorted(declared)


def test_env_can_be_sourced_twice_from_anywhere(tmp_path: Path) -> None:
    script = f"cd {tmp_path}; . {PROJECT}/lab/env; . {PROJECT}/lab/env; env"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SEATFLEET_LAB": "here"}
    done = subprocess.run(["bash", "-euc", script], env=environ, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["SEATFLEET_LAB"] == str(tmp_path / "here")
    assert seen["ANSIBLE_INVENTORY"] == str(PROJECT / "inventory" / "lab")
    assert seen["ANSIBLE_CONFIG"] == str(PROJECT / "ansible.cfg")
    tools = str(PROJECT / ".venv" / "bin")
    assert seen["PATH"].count(tools) <= max(1, environ["PATH"].count(tools)), "sourced twice, added twice"
    assert (tmp_path / "here" / "secrets.json").exists()


def test_inventory_is_readable_while_no_lab_exists(tmp_path: Path) -> None:
    environ = {**os.environ, "SEATFLEET_LAB": str(tmp_path / "none"), "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")}
    command = ["ansible-inventory", "-i", str(PROJECT / "inventory" / "lab"), "--graph"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"--{name}\n" in done.stdout for name in ("fv-ml1", "spark-1", "gw-1"))
