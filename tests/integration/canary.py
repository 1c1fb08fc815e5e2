"""Look for secrets where they must not be; test_secrets.py runs this file on a host, through standard input.

Prints one JSON object: ``files`` is every regular file that holds a secret, as [path, names of the secrets, whether
others than its owner could read it]; ``journal`` and ``arguments`` are the names of secrets that the journal or the
arguments of any process show.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# JSON, name -> value; written here by the test, as arguments are seen by everybody.
SECRETS = "{}"
# Larger files are weights and wheels, which no run writes.
LIMIT = 64 << 20
# Kernel, other machines' files, and what is unpacked from verified wheels.
LEFT_OUT = ("/proc", "/sys", "/dev", "/srv/mirror", "/usr", "/srv/models")


def walk(roots: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Yield every regular file below, and whether a directory above keeps everybody else out."""
    for root in roots:
        shut: dict[str, bool] = {}
        for directory, names, files in os.walk(root):
            if directory.startswith(LEFT_OUT) or directory.endswith("/site-packages"):
                names.clear()
                continue
            parent = shut.get(str(Path(directory).parent), False)
            shut[directory] = parent or not stat.S_IMODE(os.lstat(directory).st_mode) & 0o055
            for name in files:
                yield Path(directory, name), shut[directory]


def found_in(text: bytes, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets in a text."""
    return sorted(name for name, value in secrets.items() if value.encode() in text)


def look_at_files(roots: Sequence[str], secrets: Mapping[str, str]) -> list[tuple[str, list[str], bool]]:
    """Return every file that holds a secret."""
    hits = []
    for path, shut in walk(roots):
        try:
            state = path.lstat()
            if not stat.S_ISREG(state.st_mode) or state.st_size > LIMIT:
                continue
            names = found_in(path.read_bytes(), secrets)
        except OSError:
            continue  # gone meanwhile
        if names:
            hits.append((str(path), names, bool(state.st_mode & 0o077) and not shut))
    return sorted(hits)


def arguments() -> bytes:
    """Return the arguments of every process."""
    words = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return b"\n".join(words)


def main() -> None:
    """Look at this machine."""
    secrets = json.loads(SECRETS)
    journal = subprocess.run(["journalctl", "--no-pager", "--all", "-o", "export"], capture_output=True, check=True)
    report = {
        "files": look_at_files(["/"], secrets),
        "journal": found_in(journal.stdout, secrets),
        "arguments": found_in(arguments(), secrets),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
