"""Alerts, dashboard and scrape files: judged by promtool, and by what vLLM and the hosts really export."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_doc_commands import problem_of

from seatfleet.core.health.metrics import parse
from seatfleet.core.health.probe_report import prometheus_text as probe_text
from seatfleet.core.report.exporter import METRICS, Drafter, least_acceptance, prometheus_text, samples
from seatfleet.core.seat.stub import REFUSED

PROJECT = Path(__file__).resolve().parents[2]
PROMETHEUS = PROJECT / "files/observability/prometheus"
DASHBOARD = PROJECT / "files/observability/grafana/seats.json"
DATA = Path(__file__).parent / "data"
CACHE = Path(
    os.environ.get("SEATFLEET_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seatfleet"
)
NAME = re.compile(r"\b(?:vllm:[a-z_]+|seatfleet_[a-z_]+)")
SUFFIX = re.compile(r"_(?:total|bucket|sum|count)$")


def tool(name: str) -> str:
    path = CACHE / "tools" / name
    assert path.exists(), f"{path} is not there: make tools"
    return str(path)


def promtool(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool"), "test", "rules", "alerts_test.yml"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_fires_and_does_not_fire() -> None:
    done = promtool(PROMETHEUS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_both_kinds_of_test() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    seen = {(check["alertname"], bool(check["exp_alerts"])) for test in tests for check in test["alert_rule_test"]}
    wanted = {(rule["alert"], fires) for rule in alerts() for fires in (True, False)}
    assert seen == wanted


# One mistake per alert; the tests of the rules must notice each.
MISTAKES = [
    ("seatfleet_seat_running == 0", "seatfleet_seat_running == 2"),
    ("seatfleet_seat_stopped == 1)", "seatfleet_seat_stopped == 0)"),
    ("for: 12h", "for: 1h"),
    ("> seatfleet_seat_ready_timeout_seconds", "> 0"),
    ("increase(seatfleet_seat_restarts_total[1h]) > 1.5", "increase(seatfleet_seat_restarts_total[1h]) > 0.5"),
    ("vllm:iteration_tokens_total_count[5m])) == 0", "vllm:iteration_tokens_total_count[5m])) >= 0"),
    ("seatfleet_probe_exit_code != 4", "seatfleet_probe_exit_code != 9"),
    ("< on (host, seat) group_left ()", "> on (host, seat) group_left ()"),
    ("[30m])) > 1000", "[30m])) > 0"),
    ("vllm:kv_cache_usage_perc) > 0.95", "vllm:kv_cache_usage_perc) > 0.98"),
    ("vllm:num_preemptions_total[15m])) > 5", "vllm:num_preemptions_total[15m])) > 500"),
    ("seatfleet_host_memory_available_bytes <", "seatfleet_host_memory_available_bytes >"),
    ("seatfleet_seat_drifted > 0", "seatfleet_seat_drifted > 1"),
    ("seatfleet_alias_proof_ok == 0", "seatfleet_alias_proof_ok == 1"),
    ("increase(seatfleet_stub_refused_total[5m]) > 0", "seatfleet_stub_refused_total > 0"),
    ("min by (host) (seatfleet_seat_running", "max by (host) (seatfleet_seat_running"),
    ('up{job="seatfleet-host"} == 0', 'up{job="seatfleet-hosts"} == 0'),
    ("seatfleet_export_timestamp_seconds > 600", "seatfleet_export_timestamp_seconds > 6000"),
    ("seatfleet_probe_timestamp_seconds > 1800", "seatfleet_probe_timestamp_seconds > 600"),
    ('or on (host, seat)\n          (up{job="seatfleet-vllm"} == 0', "unless on (host, seat)\n          (up == 2"),
    ('unless on (host) up{job="seatfleet-host"} == 1', 'unless on (host) up{job="seatfleet-host"} == 2'),
    ("last_over_time(seatfleet_seat_stopped[1d]) == 1", "seatfleet_seat_stopped == 1"),
    ("last_over_time(seatfleet_seat_stopped[1d]) == 1", "last_over_time(seatfleet_seat_stopped[1d])"),
    ('up{job="seatfleet-stub"} == 0', 'up{job="seatfleet-stub"} == 2'),
    ('up{job="seatfleet-stub"} == 0 and on (host) up', 'up{job="seatfleet-stub"} == 0 or up'),
    ("seatfleet_probe_exit_code == 0\n", "seatfleet_probe_exit_code >= 0\n"),
]


@pytest.mark.parametrize(("right", "wrong"), MISTAKES, ids=[wrong for _, wrong in MISTAKES])
def test_a_mistake_in_a_rule_is_noticed(right: str, wrong: str, tmp_path: Path) -> None:
    text = (PROMETHEUS / "alerts.yml").read_text()
    assert text.count(right) >= 1
    (tmp_path / "alerts.yml").write_text(text.replace(right, wrong))
    (tmp_path / "alerts_test.yml").write_text((PROMETHEUS / "alerts_test.yml").read_text())
    assert promtool(tmp_path).returncode != 0


def test_prometheus_and_alertmanager_take_their_files() -> None:
    for command in (
        ["promtool", "check", "config", "--syntax-only", "prometheus.yml"],
        ["amtool", "check-config", "alertmanager.yml"],
    ):
        done = subprocess.run(
            [tool(command[0]), *command[1:]], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_says_what_to_do_and_has_its_section_for_the_night() -> None:
    headings = re.findall(r"^## (\w+)$", (PROJECT / "docs/night.md").read_text(), re.MULTILINE)
    for rule in alerts():
        assert rule["annotations"].keys() == {"summary", "do", "page"}
        assert rule["annotations"]["page"] == f"docs/night.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["alert"] in headings


def test_the_commands_of_alerts_are_ones_and_name_the_host() -> None:
    """Typed at night, as they are: without a host a verb would reach seats of the same name elsewhere."""
    found = []
    for rule in alerts():
        text = re.sub(r"{{ \$labels.host }}", "fv-ml1", rule["annotations"]["do"])
        text = re.sub(r"{{ \$labels.seat }}", "flash-next", text)
        for command in re.findall(r"(?:ansible-playbook|seatctl) [^;,]*?(?=[;,]| says| puts| opens|$)", text):
            found.append(command)
            assert problem_of(command) is None, command
            assert "-l fv-ml1" in command or command.startswith("seatctl"), command
        assert "playbooks/" not in text.replace("ansible-playbook playbooks/", ""), f"half a command: {text}"
    assert len(found) > 10


def test_the_jobs_that_alerts_go_by_are_scraped() -> None:
    jobs = {job["job_name"] for job in yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]}
    assert set(re.findall(r'job="([^"]+)"', (PROMETHEUS / "alerts.yml").read_text())) == jobs


# ---- the names that alerts and dashboard use -------------------------------------------------------------------------


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["name"], variable["query"]


def exported() -> set[str]:
    """Return the names on a real page of vLLM 0.32.0 and those that the hosts write."""
    page = (DATA / "metrics-0.32.0-full.prom").read_text()
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and not line.startswith("#")}
    return (
        names
        | {REFUSED}
        | {name for name, _, _ in METRICS}
        | set(re.findall(r"^(seatfleet_\w+)\{", probe_text(REPORT, 0.0), re.M))
    )


REPORT = {
    "host": "h", "seat": "s", "level": "identity", "verdict": "READY", "release_id": "r", "generation": "g",
    "exit": 0, "duration_s": 1.0, "checks": [{"id": "c", "status": "ok"}], "acceptance": {"count": {"al": 3.0}},
}  # fmt: skip


def test_alerts_and_dashboard_use_names_that_are_exported() -> None:
    names = exported()
    unknown = {(place, name) for place, text in expressions() for name in NAME.findall(text) if name not in names}
    assert unknown == set()


@pytest.mark.parametrize("version", ["0.23.0", "0.32.0", "0.33.0"])
def test_the_other_releases_have_these_names_too(version: str) -> None:
    """From the sources of the wheels, where counters have no suffix yet."""
    declared = set(json.loads((DATA / "metric-names.json").read_text())[version])
    used = {name for _, text in expressions() for name in NAME.findall(text) if name.startswith("vllm:")}
    assert {name for name in used if name not in declared and SUFFIX.sub("", name) not in declared} == set()


def test_a_name_that_nobody_exports_is_noticed() -> None:
    assert "vllm:kv_cache_usage_percent" not in exported()
    assert "seatfleet_seat_up" not in exported()


def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    """promtool reads them as rules; Grafana's variables stand for a pattern."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [
        {"record": f"panel:{i}", "expr": query.replace("$host", ".*").replace("$seat", ".*")}
        for i, query in enumerate(queries)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(panel["description"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_panels_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
                assert x < 24


# ---- what a host exports ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drafter", "baseline", "least"),
    [
        (Drafter("mtp", 2, {}), {}, 1.05),  # nothing known: only broken is
        (Drafter("mtp", 2, {}), {"count": 3.0, "prose": 2.24}, 0.75 * 2.24),
        (Drafter("mtp", 2, {"count": 2.95, "prose": 2.0}), {"count": 3.0, "prose": 2.24}, 2.0),
        (Drafter("dflash", 12, {}), {"count": 11.0, "code": 5.4}, 0.75 * 5.4),
    ],
)
def test_the_least_acceptance_is_that_of_the_worst_workload(
    drafter: Drafter, baseline: dict[str, float], least: float
) -> None:
    assert least_acceptance(drafter, baseline) == pytest.approx(least)


def test_the_page_of_a_host_without_seats_is_a_page() -> None:
    found = samples("h", [], {}, now=1e9, memory=(3, 2), proof={}, proven_at=None)
    page = parse(prometheus_text(found))
    assert page.total("seatfleet_host_memory_available_bytes", host="h") == 3
    assert page.total("seatfleet_export_timestamp_seconds") == 1e9


def test_failed_proofs_are_zero() -> None:
    cells = [
        {"alias": "gen-large", "key": "all-agents", "expected": "allow", "ok": False},
        {"alias": "gen-large", "key": 'co"ntrol', "expected": "deny", "ok": True},
    ]
    found = samples("h", [], {}, now=1e9, memory=(3, 2), proof={"cells": cells}, proven_at=5.0)
    page = parse(prometheus_text(found))
    assert page.total("seatfleet_alias_proof_ok", key="all-agents", expected="allow") == 0
    assert page.total("seatfleet_alias_proof_ok", expected="deny") == 1
    assert page.total("seatfleet_alias_proof_timestamp_seconds") == 5
