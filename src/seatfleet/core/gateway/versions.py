"""Which LiteLLM versions may run."""

from __future__ import annotations

# Stolen publishing token (24 March 2026, OSV MAL-2026-2144) and the incident of 21 October 2026.
COMPROMISED = frozenset({"1.82.7", "1.82.8"})
COMPROMISED_LINES = ("1.107.",)
# Advisories GHSA-v247-6f48-mgcj and GHSA-54p9-h82j-f925 are fixed from here on.
FLOOR = (1, 101, 1)


def version_problem(version: str) -> str | None:
    """Return why a LiteLLM version is refused (a sentence), or None."""
    if version in COMPROMISED or version.startswith(COMPROMISED_LINES):
        return (
            f"LiteLLM {version} is a compromised release: stop the proxy, treat every secret it could read as stolen,"
            " and install another version on a clean host"
        )
    try:
        parts = tuple(int(part) for part in version.split(".")[:3])
    except ValueError:
        return f"LiteLLM version {version!r} is not of the form 1.106.12"
    if parts < FLOOR:
        floor = ".".join(map(str, FLOOR))
        return f"LiteLLM {version} has known holes (GHSA-v247-6f48-mgcj, GHSA-54p9-h82j-f925): use {floor} or later"
    return None
