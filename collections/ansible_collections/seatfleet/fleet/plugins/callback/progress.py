from __future__ import annotations

DOCUMENTATION = """
name: progress
type: notification
short_description: Says every half a minute which tasks are still running
description:
  - Ansible prints nothing while a module runs, and installing a release, copying weights or waiting until a seat is
    READY takes minutes. This says which task is still running on which hosts, for how long, and what takes the time.
  - The lines go to standard error, so that output which a program reads (C(ANSIBLE_STDOUT_CALLBACK=json)) stays whole.
  - Enabled in the project's C(ansible.cfg).
author: seatfleet developers
options:
  interval:
    description: Seconds between two lines, and how long a task must run before it is named; 0 says nothing.
    type: float
    default: 30
    ini:
      - {section: callback_progress, key: interval}
    env:
      - {name: SEATFLEET_PROGRESS_S}
"""

import os
import threading
import time

from ansible.executor.stats import AggregateStats
from ansible.executor.task_result import CallbackTaskResult
from ansible.inventory.host import Host
from ansible.playbook import Playbook
from ansible.playbook.task import Task
from ansible.plugins.callback import CallbackBase

# What takes the time in the modules that take minutes, and where to look meanwhile.
HINTS = {
    "vllm_release": "wheels are unpacked and compiled, patches applied and tested: minutes for each new release",
    "model_store": "weights are copied and every byte is hashed: as long as the disk needs",
    "seat_rollout": "a seat is drained, restarted and proven; `journalctl -fu 'vllm-seat-*'` on the host shows it",
    "seat_stage": "a new generation's flags are tried on the installed release: tens of seconds each",
    "seat_rollback": "a seat is restarted and proven; `journalctl -fu 'vllm-seat-*'` on the host shows it",
    "seat_adopt": "a seat is started and proven; `journalctl -fu 'vllm-seat-*'` on the host shows it",
    "seat_probe": "the seat is asked questions; a busy one takes longer",
    "litellm_proof": "every key asks every alias for a completion",
}
# What the same modules do in check mode; site.yml itself looks that way before it stops anything.
FORESEEN = {"seat_rollout": "the installed release tries the flags of what would restart; nothing is touched"}
# More names than this make no line clearer.
NAMED_HOSTS = 3


class CallbackModule(CallbackBase):
    """A thread beside the run that names what is not finished yet."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "seatfleet.fleet.progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        # (task, host) to its start. Only single operations on it, so that no lock is needed: Ansible forks its workers
        # while the thread runs, and one that was held at that moment would stay locked in the worker.
        self._running: dict[tuple[str, str], tuple[Task, float]] = {}
        self._end = threading.Event()

    def v2_playbook_on_start(self, playbook: Playbook) -> None:
        interval = self.get_option("interval")
        if interval > 0:
            threading.Thread(target=self._watch, args=(interval,), name="progress", daemon=True).start()

    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:
        self._end.set()

    def v2_runner_on_start(self, host: Host, task: Task) -> None:
        self._running[task._uuid, host.get_name()] = (task, time.monotonic())

    def _done(self, result: CallbackTaskResult) -> None:
        self._running.pop((result.task._uuid, result.host.get_name()), None)

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        self._done(result)

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        self._done(result)

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        self._done(result)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        self._done(result)

    def _watch(self, interval: float) -> None:
        while not self._end.wait(interval):
            text = "".join(f"{line}\n" for line in self._lines(time.monotonic(), interval))
            # Not through sys.stderr or Ansible's display, which have locks.
            os.write(2, text.encode())

    def _lines(self, now: float, interval: float) -> list[str]:
        tasks: dict[str, tuple[Task, float, list[str]]] = {}
        for (uuid, host), (task, began) in list(self._running.items()):
            if now - began >= interval:
                _, first, hosts = tasks.get(uuid, (task, began, []))
                tasks[uuid] = (task, min(first, began), [*hosts, host])
        return [_line(task, now - began, hosts) for task, began, hosts in tasks.values()]


def _line(task: Task, seconds: float, hosts: list[str]) -> str:
    more = f" and {len(hosts) - NAMED_HOSTS} more" if len(hosts) > NAMED_HOSTS else ""
    module = str(task.action).rpartition(".")[2]
    hint = (FORESEEN.get(module) if task.check_mode else None) or HINTS.get(module)
    minutes, rest = divmod(round(seconds), 60)
    waited = f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min {rest} s"
    where = f"on {', '.join(hosts[:NAMED_HOSTS])}{more}"
    return f"... {waited}: {task.get_name()}, {where}" + f" ({hint})" * bool(hint)
