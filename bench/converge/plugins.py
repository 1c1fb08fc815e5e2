"""Connection plugins for the bench, written into a scratch directory: Ansible's own with a counter, one that replays.

``counted`` is ``ssh`` of the installed ansible-core with two methods wrapped, so that what is measured is what runs in
production. ``replay`` answers like the recorded host did, call by call.
"""

from __future__ import annotations

from pathlib import Path

import ansible.plugins.connection.ssh

# Appended to Ansible's module: notes every command, with the module it carries and its answer.
_COUNTING = """

import base64 as _base64
import json as _json
import os as _os
import re as _re

_NAME = _re.compile(rb"module_fqn=['\\"]([\\w.]+)")


def _note(connection, what, **more):
    entry = {"host": connection._play_context.remote_addr, "what": what, **more}
    with open(_os.environ["CONVERGE_LOG"], "ab") as log:  # O_APPEND: one write per line, whole
        log.write((_json.dumps(entry) + "\\n").encode())


_plain_exec = Connection.exec_command
_plain_put = Connection.put_file


def _exec(self, cmd, in_data=None, sudoable=True):
    code, output, errors = _plain_exec(self, cmd, in_data=in_data, sudoable=sudoable)
    found = _NAME.search(in_data or b"")
    more = {}
    if _os.environ.get("CONVERGE_RECORD"):
        more = {"code": code, "output": _base64.b64encode(output).decode()}
    _note(self, "exec", module=found[1].decode() if found else None, **more)
    return code, output, errors


def _put(self, in_path, out_path):
    _note(self, "put", module=None)
    return _plain_put(self, in_path, out_path)


# Not a subclass: Ansible's own calls super() by the name of the class.
Connection.exec_command = _exec
Connection.put_file = _put
"""

_REPLAY = '''
from __future__ import annotations

DOCUMENTATION = """
name: replay
short_description: Answers like a recorded host
description: Answers like a recorded host, call by call.
author: seatfleet developers
options: {}
"""

import base64
import json
import os
import re
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

_NAME = re.compile(rb"module_fqn=['\\"]([\\w.]+)")
_RECORDS = json.loads(Path(os.environ.get("CONVERGE_RECORDS") or os.devnull).read_text() or "[]")
_STATE = Path(os.environ.get("CONVERGE_STATE") or ".")


class Connection(ConnectionBase):
    transport = "replay"
    has_pipelining = True

    def _connect(self):
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        found = _NAME.search(in_data or b"")
        module = found[1].decode() if found else None
        host = self._play_context.remote_addr
        # Tasks run in processes of their own: how far a host has come is the length of its file.
        state = _STATE / host
        with state.open("ab") as counter:
            number = counter.tell()
            counter.write(b".")
        record = _RECORDS[number]
        if record["module"] != module:
            raise AnsibleConnectionFailure(f"call {number} of {host}: expected {record['module']}, seen {module}")
        return record["code"], base64.b64decode(record["output"]), b""

    def put_file(self, in_path, out_path):
        pass

    def fetch_file(self, in_path, out_path):
        raise AnsibleConnectionFailure("nothing is fetched in a run that changes nothing")

    def close(self):
        pass
'''


def write(directory: Path) -> None:
    """Write both plugins."""
    source = Path(ansible.plugins.connection.ssh.__file__ or "").read_text()
    (directory / "counted.py").write_text(source + _COUNTING)
    (directory / "replay.py").write_text(_REPLAY)
