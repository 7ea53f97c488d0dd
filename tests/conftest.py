"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test asserts a time: machines are busy. Where a change is judged, runs repeat themselves.
settings.register_profile(
    "padres_tx",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("padres_tx")
