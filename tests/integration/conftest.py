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

    While a test is being written: SEATFLEET_KEEP_LAB keeps the hosts, SEATFLEET_REUSE_LAB takes those that are up.
    """
    handle = Lab()
    tool = str(PROJECT / "lab/lab")
    if not os.environ.get("SEATFLEET_REUSE_LAB"):
        handle.run(tool, "destroy", "--all")
        handle.run(tool, "up", *HOSTS)
    yield handle
    if not os.environ.get("SEATFLEET_KEEP_LAB"):
        handle.run(tool, "destroy", "--all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Let fixtures see how the test itself went."""
    report = yield
    setattr(item, f"rep_{report.when}", report)
    return report
