"""What all unit tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A loaded machine fails no test, and a run fails for what was changed, not for the examples that it drew.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
