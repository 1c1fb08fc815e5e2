"""One lab and one gateway per run: the fixtures that the ordered chain in test_chain.py walks along.

These tests need root, the prepared cache (``make prepare``) and about 8 GB of memory; they fail, never skip, without.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from labrun import HOSTS, PROJECT, Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Virgin lab hosts, removed again at the end (also when they were left behind by an interrupted run).

    With SEATFLEET_KEEP_LAB=1 the lab stays, and the next run with it goes on where the last one stopped: for working on
    one test without paying for those before it. SEATFLEET_LAB_HOSTS="fv-ml1 gw-1" then spares the third host.
    """
    handle = Lab()
    tool = str(PROJECT / "lab/lab")
    keep = bool(os.environ.get("SEATFLEET_KEEP_LAB"))
    if not keep:
        handle.run(tool, "destroy", "--all")
    handle.run(tool, "up", *(os.environ.get("SEATFLEET_LAB_HOSTS", "").split() or HOSTS))
    yield handle
    if not keep:
        handle.run(tool, "destroy", "--all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Let fixtures see how the test itself went."""
    report = yield
    setattr(item, f"rep_{report.when}", report)
    return report
