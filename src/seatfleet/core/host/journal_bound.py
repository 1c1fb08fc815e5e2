"""How much of the journal a host keeps: the text of a file in ``journald.conf.d``."""

from __future__ import annotations

import re

from ..problems import Problem, ProblemsError

# journald takes a number without a unit as bytes, makes "8" the least it can, 0 no bound at all, and goes on with its
# default after a word that it cannot read: each would be a bound that nobody meant.
_SIZE = (re.compile(r"[1-9]\d*[MGT]"), "a size such as 8G (M, G or T), or nothing to leave journald's default")
_TIME = (
    re.compile(r"[1-9]\d* ?(?:hours?|days?|weeks?|months?|years?)"),
    "a time such as 30 days (hours to years), or nothing for no limit",
)
_FORMS = {"max_use": _SIZE, "keep_free": _SIZE, "max_retention": _TIME}


def journal_bound(max_use: str = "", keep_free: str = "", max_retention: str = "") -> str:
    """Return the text of the file, empty when nothing is bounded and there shall be no file.

    Raises :class:`ProblemsError` for values that journald would not take, or would not take as they are meant.
    """
    given = {"max_use": max_use, "keep_free": keep_free, "max_retention": max_retention}
    wrong = [
        Problem("", "", f"gpu_host_journal_{name}", expected, repr(given[name]))
        for name, (form, expected) in _FORMS.items()
        if given[name] and not form.fullmatch(given[name])
    ]
    if wrong:
        raise ProblemsError(wrong)
    # Files are at most 128 MiB, and journald keeps 100 of them: above 12 GiB that would be the bound.
    lines = [("SystemMaxUse", max_use), ("SystemMaxFiles", "0" if max_use else "")]
    lines += [("SystemKeepFree", keep_free), ("MaxRetentionSec", max_retention)]
    text = "".join(f"{key}={value}\n" for key, value in lines if value)
    return f"# Managed by Ansible (role gpu_host).\n[Journal]\n{text}" if text else ""
