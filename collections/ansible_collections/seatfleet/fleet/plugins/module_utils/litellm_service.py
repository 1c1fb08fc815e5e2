"""A LiteLLM proxy on this host: its unit and its readiness."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

PAUSE_S = 1.0
LOG_LINES = 15


class Service:
    """One unit, and the port of its proxy on the loopback address."""

    def __init__(self, module: AnsibleModule, unit: str, port: int) -> None:
        self.module = module
        self.unit = unit
        self.port = port

    def state(self) -> tuple[str, str]:
        """Return the unit's state and how often systemd has restarted it by itself."""
        _, out, _ = self.module.run_command(["systemctl", "show", self.unit, "--property=ActiveState,NRestarts"])
        fields = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        return fields.get("ActiveState", "unknown"), fields.get("NRestarts", "0")

    def enabled(self) -> bool:
        """Tell whether the unit starts with the host."""
        return bool(self.module.run_command(["systemctl", "is-enabled", "--quiet", self.unit])[0] == 0)

    def enable(self) -> str | None:
        """Let the unit start with the host; return why that failed."""
        code, _, err = self.module.run_command(["systemctl", "enable", "--quiet", self.unit])
        return None if code == 0 else f"systemctl enable ended with {code}: {err.strip()}"

    def outdated(self, files: Iterable[str | Path]) -> list[str]:
        """Return why the running process is not what the files say: it is none, or older than one of them.

        A link counts with its own time. Whole seconds: a file written in the second of the start counts as read.
        """
        command = ["systemctl", "show", self.unit, "--property=ExecMainStartTimestamp", "--timestamp=unix"]
        _, out, _ = self.module.run_command(command)
        start = out.strip().partition("=@")[2]
        if self.state()[0] not in ("active", "activating") or not start.isdigit():
            return [f"{self.unit} does not run"]
        paths = [Path(file) for file in files]
        newer = [path for path in paths if path.is_symlink() or path.exists()]
        return [f"{path} is newer than the process" for path in newer if int(path.lstat().st_mtime) > int(start)]

    def answer(self) -> str:
        """Return ``ready``, or what the proxy says instead; its status is 200 without the database too."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}/health/readiness", timeout=10) as response:
                database = json.load(response).get("db")
        except (urllib.error.URLError, OSError, ValueError, AttributeError) as error:
            return f"no answer ({error})"
        return "ready" if database == "connected" else f"database: {database}"

    def wait(self, limit_s: float) -> str | None:
        """Wait until the proxy is ready; return why it is not. A unit that ended is not waited for."""
        begin = time.monotonic()
        _, restarts = self.state()
        while (seen := self.answer()) != "ready":
            active, now = self.state()
            late = time.monotonic() - begin > limit_s
            if late or active not in ("active", "activating") or now != restarts:
                what = f"not ready in {limit_s:.0f} s" if late else f"{self.unit} is {active}, restarted {now} times"
                command = ["journalctl", "-u", self.unit, "-n", str(LOG_LINES), "-o", "cat", "--no-pager"]
                _, log, _ = self.module.run_command(command)
                return f"{what}; {seen}. Its last words:\n{log}"
            time.sleep(PAUSE_S)
        return None

    def restart(self, limit_s: float) -> str | None:
        """Restart the unit and wait; return why it is not ready. Running streams end before the old process does."""
        for command in (["systemctl", "daemon-reload"], ["systemctl", "restart", self.unit]):
            code, _, err = self.module.run_command(command)
            if code != 0:
                return f"{' '.join(command)} ended with {code}: {err.strip()}"
        return self.wait(limit_s)
