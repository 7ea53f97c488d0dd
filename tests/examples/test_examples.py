"""The example programs: with each engine, over an in-process overlay and as people run them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from padres_tx import Notification, launcher
from padres_tx.examples import consolidation, dispatching
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.dispatching_clients import DECIDED, assert_at_rest, asynchronous

PLACES = {"E": "B1", "D": "B2", "A1": "B3", "C": "B2", "A2": "B1"}


def told(came: dict[str, list[Notification]]) -> dict[str, list[tuple[object, object]]]:
    return {name: [(n["x"], n["n"]) for n in all_] for name, all_ in came.items()}


@pytest.mark.parametrize("topology", ["one", "three"])
@pytest.mark.parametrize("engine", [*DECIDED, "bl-wait"])
@asynchronous
async def test_dispatching(engine: str, topology: str) -> None:
    overlay = InProcessOverlay(topology)
    async with AsyncExitStack() as stack:
        at = PLACES if topology == "three" else dict.fromkeys(PLACES, "B1")
        e, d, a1 = [
            await stack.enter_async_context(overlay.connect_async(name, at=at[name]))
            for name in ("E", "D", "A1")
        ]
        came = told(await dispatching.run(e, d, a1, engine=engine))
        assert set(came) == {"D", "A1"}
        if engine != "bl-wait":  # Which promises nothing.
            assert came == {"D": [("x2", 0)], "A1": [("x1", 1), ("x1", 2)]}
        assert_at_rest(overlay)


@pytest.mark.parametrize("topology", ["one", "three"])
@pytest.mark.parametrize("engine", [*DECIDED, "bl-wait"])
@asynchronous
async def test_consolidation(engine: str, topology: str) -> None:
    overlay = InProcessOverlay(topology)
    async with AsyncExitStack() as stack:
        at = PLACES if topology == "three" else dict.fromkeys(PLACES, "B1")
        e, c, a1, a2 = [
            await stack.enter_async_context(overlay.connect_async(name, at=at[name]))
            for name in ("E", "C", "A1", "A2")
        ]
        came = told(await consolidation.run(e, c, a1, a2, engine=engine))
        assert set(came) == {"C", "A1", "A2"}
        if engine != "bl-wait":
            assert came == {
                "C": [("x1", 2), ("x2", 2)],
                "A1": [("x1", 1)],
                "A2": [("x2", 1)],
            }
        assert_at_rest(overlay)


def test_the_programs_run_on_a_running_overlay() -> None:
    with launcher.overlay("three") as running:
        at = [word for name in ("B1", "B2", "B3") for word in ("--at", running.address(name))]
        for program, engine, line in (
            ("dispatching", "d-tx", "D received {'class': 'p1', 'x': 'x2', 'n': 0}"),
            ("consolidation", "s-tx", "A2 received {'class': 'p1', 'x': 'x2', 'n': 1}"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", f"padres_tx.examples.{program}", "--engine", engine, *at],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stderr
            assert line in done.stdout.splitlines()


def test_what_is_wrong_is_a_line_and_not_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "padres_tx.examples.dispatching", "--at", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("Error: no broker at 127.0.0.1:1")
