"""Settings for all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.stray_errors import StrayErrors

# No test asserts a time: machines are busy. Where a change is judged, runs repeat themselves.
settings.register_profile(
    "padres_tx",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("padres_tx")


@pytest.fixture(autouse=True)
def stray_errors() -> Iterator[StrayErrors]:
    """Fails a test in which an event loop reports an error that nobody else hears of."""
    with StrayErrors() as stray:
        yield stray
        reports = stray.take()
    assert not reports, "an event loop reports:\n" + "\n".join(reports)


def pytest_collection_finish() -> None:
    # What is imported stays for good; collecting garbage after each test need not look at it.
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        type=int,
        metavar="N",
        help="random runs of the engines' contract, over all engines (default: 2000); "
        "other random tests of transactions follow in proportion",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background commands with SIGINT ignored, and every child process inherits
    # that; tests interrupt themselves and the processes that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # In the environment, where test modules look when they are imported.
    if config.getoption("--seeds") is not None:
        os.environ["PADRES_TX_SEEDS"] = str(max(1, config.getoption("--seeds") // 4))
