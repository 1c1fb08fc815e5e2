"""Documents: links lead somewhere, and nothing names a place outside the project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "roles/*/README.md", "lab/**/*.md", "tests/**/*.md")
    for path in PROJECT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")


def broken(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    return [link for link in LINK.findall(text) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_a_dead_link_is_noticed() -> None:
    assert broken(PROJECT / "README.md", "[a](docs/seats.md) [b](docs/none.md#x) [c](https://example.invalid/)") == [
        "docs/none.md"
    ]


def test_every_role_and_playbook_verb_is_named_in_the_readme() -> None:
    readme = (PROJECT / "README.md").read_text()
    assert [role.name for role in (PROJECT / "roles").iterdir() if role.name not in readme] == []


def test_messages_of_tasks_are_on_the_page_of_messages_whatever_their_form() -> None:
    page = (PROJECT / "docs/messages.md").read_text()
    # Folded, at any depth of indentation, inside blocks; and nothing of the keys that follow.
    assert "- …/….tar is not there. Run: seatctl release fetch --archive …\n" in page
    assert "these have it: …\n" in page
    assert "The aliases of … stay closed. Run site.yml when the seat answers.\n" in page
    # Of a refusal that is no exception named Error.
    assert "- the seat has no kv\\_cache\\_memory to start from" in page


# One from each place that speaks to people: what a seat's status notes, what a rollout, a key, a pin, the guard, the
# command line, a filter and a check of a host say. Most are put together far from where they are printed.
PRINTED = [
    "systemd gave it up; its port answers 503 with Retry-After: seatctl why a on the host says why, then run site.yml",
    "the process runs generation 0123456789ab, current is ba9876543210: run site.yml",
    "not in the inventory: playbooks/remove.yml removes it, or bring its entry back",
    "release 0.33.0-0123456789ab refuses these flags: --no-such-flag",
    "key infra-ops: its new value already belongs to key all-agents",
    "the key's team does not allow this alias: add it to the team's models",
    "the KV pin of flash-next was never measured on this host: playbooks/headroom.yml",
    "the memory guard killed it at 2030-01-01 00:00: 1.0 GiB were left; give it less memory and run site.yml, "
    "or: seatctl guard clear dense",
    "seat dense may be started again: run site.yml",
    "seatctl campaign: stopped by SIGTERM; what is complete is kept, run it again to go on",
    "status_table needs a list of rows of seat_status, got str",
    "the driver was upgraded under the running kernel module (580 to 590): reboot, then hold its packages",
    "no failed start in the journal that is kept, no failed probe in the evidence",
]


@pytest.mark.parametrize("message", PRINTED)
def test_what_is_printed_anywhere_is_on_the_page_of_messages(message: str) -> None:
    lines = (PROJECT / "docs/messages.md").read_text().splitlines()
    texts = [re.sub(r"\\(.)", r"\1", line.removeprefix("- ")) for line in lines if line.startswith("- ")]
    told = [text for text in texts if re.fullmatch(".*".join(map(re.escape, text.split("…"))), message)]
    assert [text for text in told if len(text) > 20], message
