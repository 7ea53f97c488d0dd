"""A pytest plugin: measures tests, and runs those first that are known to be quick.

Those that fail without a mutant tell nothing and are left out.

A mutant is mostly caught by some quick test, wherever it stands. Those that take long come last, in
the order in which they stand, so that what their modules share is set up twice at most.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

#: What takes longer than most tests, and most of the time of all.
SLOW_S = 0.3


class Durations:
    """How long each test takes, what it needs included; for ever if it fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self._seconds.get(report.nodeid, 0.0) + report.duration
        self._seconds[report.nodeid] = math.inf if report.failed else round(seconds, 3)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._seconds))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", type=Path, help="write how long each test takes to this file")
    parser.addoption("--measured", type=Path, help="such a file: what is quick is run first")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--measure")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(path))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--measured")
    if path is not None:
        seconds = json.loads(path.read_text())
        items[:] = [item for item in items if seconds.get(item.nodeid) != math.inf]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0) > SLOW_S)
