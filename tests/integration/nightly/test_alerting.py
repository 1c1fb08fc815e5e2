"""From a seat that is down to the webhook: the real Prometheus and Alertmanager with the files of this project.

No lab: the host's page is one that this test serves, so that it can go from well to down and back. Three minutes, most
of them the ``for:`` of the alert.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from labrun import CACHE, PROJECT

from seatfleet.core.report.exporter import prometheus_text

FILES = PROJECT / "files/observability/prometheus"
SHARE = (
    "mount -t tmpfs none /usr/share && mkdir -p /usr/share/prometheus && "
    'cp -r "$0" /usr/share/prometheus/alertmanager && exec "$@"'
)


class Fleet(http.server.ThreadingHTTPServer):
    """Serves the page of a host and takes what the webhook is sent."""

    running = 1
    received: list[dict[str, Any]]

    def page(self) -> str:
        seat = {"host": "fv-ml1", "seat": "flash-next"}
        return prometheus_text(
            [
                ("seatfleet_export_timestamp_seconds", {"host": "fv-ml1"}, time.time()),
                ("seatfleet_seat_running", seat, self.running),
            ]
        )


class Handler(http.server.BaseHTTPRequestHandler):
    server: Fleet

    def do_GET(self) -> None:
        body = self.server.page().encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def running(directory: Path, name: str, *arguments: str) -> Iterator[None]:
    program = CACHE / "tools" / name
    assert program.exists(), f"{program} is not there: make tools"
    with (directory / f"{name}.log").open("w") as log:
        # A /usr/share of its own: Debian's Alertmanager reads templates there, and is not installed.
        command = ["unshare", "--mount", "sh", "-c", SHARE, str(program.parent / "templates"), str(program), *arguments]
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def wait_for(fleet: Fleet, status: str, limit_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for message in fleet.received:
            if message["status"] == status:
                return message
        time.sleep(1)
    raise AssertionError(f"no message with status {status} within {limit_s:.0f} s, seen {fleet.received}")


def test_a_seat_that_goes_down_reaches_the_webhook_and_so_does_its_return(tmp_path: Path) -> None:
    fleet = Fleet(("127.0.0.1", 0), Handler)
    fleet.received = []
    threading.Thread(target=fleet.serve_forever, daemon=True).start()
    here = f"127.0.0.1:{fleet.server_port}"
    # Only addresses and intervals differ from the files as they are shipped.
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = ["127.0.0.1:19093"]
    # Targets from the file would need an inotify instance, of which the labs of a machine use up what there are.
    host = next(job for job in config["scrape_configs"] if job["job_name"] == "seatfleet-host")
    config["scrape_configs"] = [host]
    del host["file_sd_configs"]
    host["static_configs"] = [{"targets": [here], "labels": {"host": "fv-ml1"}}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "alerts.yml").write_text((FILES / "alerts.yml").read_text())
    manager = (FILES / "alertmanager.yml").read_text().replace("http://127.0.0.1:9095", f"http://{here}")
    (tmp_path / "alertmanager.yml").write_text(manager.replace("group_wait: 30s", "group_wait: 1s").replace("5m", "2s"))
    prometheus = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:19090")
    alertmanager = (
        "--config.file=alertmanager.yml", "--storage.path=am", "--web.listen-address=127.0.0.1:19093",
        "--cluster.listen-address=",
    )  # fmt: skip
    with running(tmp_path, "prometheus-alertmanager", *alertmanager), running(tmp_path, "prometheus", *prometheus):
        time.sleep(20)
        assert fleet.received == [], "an alert while all is well"
        fleet.running = 0
        message = wait_for(fleet, "firing", 240)
        (alert,) = message["alerts"]
        assert alert["labels"]["alertname"] == "SeatDown"
        assert alert["annotations"]["summary"] == "fv-ml1/flash-next does not serve"
        fleet.running = 1
        wait_for(fleet, "resolved", 120)
    fleet.shutdown()
