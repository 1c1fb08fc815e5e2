"""A hand-written unit that serves on the seat's port is read, compared, taken over, and given back.

Last of the nightly files: it removes the seat first, and ends with the seat as the repository says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hammer import OK
from labrun import Lab
from seatlife import GENERATIONS, HOST, PORT, SEAT, SEATS_FILE, UNIT, call, client_of, link, wait_for

OLD = "by-hand.service"
ANSWERS = ["curl", "-sf", "-H", "Authorization: Bearer sk-by-hand", f"http://127.0.0.1:{PORT}/v1/models"]
READY_S = 900


@pytest.fixture(scope="module", autouse=True)
def by_hand(lab: Lab) -> None:
    """The seat as an administrator would have written it: flags on the line, environment in the unit."""
    lab.site("-l", HOST)
    release = lab.host(HOST, "readlink", "-f", f"{GENERATIONS}/{link(lab)}/release").output.strip()
    model = lab.host(HOST, "sh", "-c", f"'grep ^model: {GENERATIONS}/{link(lab)}/vllm.yaml'").output.split()[1]
    lab.run("ansible-playbook", "playbooks/remove.yml", "-e", f"seat={SEAT}", "-l", HOST)
    flags = (
        f"serve {model} --port {PORT} --max-model-len 2048 --kv-cache-memory-bytes 64M --max-num-batched-tokens 2048 "
        "--max-num-seqs 4 --no-enable-prefix-caching --enforce-eager --served-model-name tiny-oracle gen-large"
    )
    speculative = '\'{"method": "mtp", "num_speculative_tokens": 2}\''
    unit = f"""[Service]
User=vllm
CacheDirectory=by-hand
Environment=HOME=/var/cache/by-hand VLLM_CPU_OMP_THREADS_BIND=0 TORCH_COMPILE_DISABLE=1 HF_HUB_OFFLINE=1
Environment=VLLM_API_KEY=sk-by-hand
ExecStart={release}/bin/vllm {flags} --speculative-config {speculative}
[Install]
WantedBy=multi-user.target
"""
    lab.host(HOST, "tee", f"/etc/systemd/system/{OLD}", stdin=unit)
    lab.host(HOST, "systemctl", "enable", "--now", OLD)
    wait_for(lab, "the server by hand", *ANSWERS, limit_s=READY_S)


def adopt(lab: Lab, *arguments: str, check: bool = True) -> str:
    run = lab.run(
        "ansible-playbook", "playbooks/adopt.yml", "-l", HOST, "-e", f"seat={SEAT}", *arguments, check=check
    )  # fmt: skip
    assert check or run.code
    return " ".join(run.output.split())


def declared(lab: Lab) -> dict[str, object]:
    seats: dict[str, dict[str, object]] = yaml.safe_load((lab.project / SEATS_FILE).read_text())["seats"]
    return seats[SEAT]


def without_seat(lab: Lab, tmp_path: Path) -> Lab:
    """Return the project with the seat under another name: so nobody has declared what runs yet."""
    return lab.edited(
        tmp_path / "edited", [(SEATS_FILE, f"  {SEAT}:", "  elsewhere:"), (SEATS_FILE, "port: 8022", "port: 8044")]
    )


def test_what_serves_is_written_as_the_seat_that_equals_it(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "seat.yml"
    adopt(without_seat(lab, tmp_path), "-e", f"port={PORT}", "-e", f"adopt_file={file}")
    (read,) = yaml.safe_load(file.read_text()).values()
    fields = {"model", "release", "gpus", "port", "max_model_len", "kv_cache_memory", "max_num_batched_tokens"}
    fields |= {"max_num_seqs", "speculative", "prefix_caching", "enforce_eager"}
    assert {name: read[name] for name in fields} == {name: declared(lab)[name] for name in fields}
    assert read["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert list(read["aliases"]) == ["gen-large"]
    assert "sk-by-hand" not in file.read_text()


def test_a_seat_that_differs_takes_nothing_over(lab: Lab, tmp_path: Path) -> None:
    edited = lab.edited(tmp_path / "edited", [(SEATS_FILE, "max_num_seqs: 4", "max_num_seqs: 8")])
    assert "max-num-seqs: runs with 4, the seat has 8" in adopt(edited, "-e", "adopt_take=true", check=False)
    assert lab.host(HOST, "systemctl", "is-active", OLD).output.strip() == "active"


def test_a_seat_that_does_not_come_up_gives_the_port_back(lab: Lab, tmp_path: Path) -> None:
    edits = [(SEATS_FILE, "model: tiny-oracle\n", "model: tiny-oracle-badmtp\n")]
    edited = lab.edited(tmp_path / "edited", edits)
    said = adopt(edited, "-e", "adopt_take=true", "-e", "adopt_differs=true", check=False)
    assert f"{OLD} is back and answers after" in said
    assert lab.host(HOST, "systemctl", "is-enabled", OLD).output.strip() == "enabled"
    assert lab.host(HOST, "systemctl", "is-active", UNIT, check=False).output.strip() != "active"
    assert lab.console(HOST, *ANSWERS).code == 0


def test_the_port_is_taken_over_and_given_back(lab: Lab) -> None:
    adopt(lab, "-e", "adopt_take=true")
    assert call(lab) == OK
    assert lab.host(HOST, "systemctl", "is-enabled", OLD, check=False).output.strip() == "disabled"
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}
    adopt(lab, "-e", "adopt_give_back=true")
    assert lab.console(HOST, *ANSWERS).code == 0
    assert lab.host(HOST, "systemctl", "is-active", UNIT, check=False).output.strip() != "active"


def test_the_seat_comes_back_for_good(lab: Lab) -> None:
    with client_of(lab) as during:
        adopt(lab, "-e", "adopt_take=true")
    assert during.accidents == {}
    assert call(lab) == OK
    assert lab.site("--check", "-l", HOST).changed == {HOST: 0}
