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
