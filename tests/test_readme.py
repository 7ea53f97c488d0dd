"""What the README shows of transactions runs as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import padres_tx
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.client_cast import assert_at_rest, asynchronous, numbers

README = Path(__file__).parents[1] / "README.md"
JOBS = "[class,eq,'job']"


def functions() -> dict[str, Any]:
    """All that the section on transactions defines."""
    section = README.read_text().partition("\n## Transactions\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {"padres_tx": padres_tx}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(block, names)
    return names


@pytest.mark.parametrize("planned", [False, True])
@asynchronous
async def test_the_example_moves_a_job_and_nothing_else(planned: bool) -> None:
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("shop", at="B1") as shop,
        overlay.connect_async("dispatcher", at="B2") as dispatcher,
        overlay.connect_async("worker", at="B3") as worker,
    ):
        await shop.advertise(JOBS)
        await dispatcher.subscribe(JOBS)
        if planned:
            await worker.advertise("[class,eq,'take']")
            await dispatcher.subscribe("[class,eq,'take']")
            await functions()["take_over_planned"](worker)
        else:
            await functions()["take_over"](worker, dispatcher)
        for order in (7, 8):
            await shop.publish({"class": "job", "order": order, "n": order})
        assert (await numbers(worker), await numbers(dispatcher)) == ([7], [8])
        assert_at_rest(overlay)


@asynchronous
async def test_the_outcome_of_a_commit_is_asked_for_after_the_connection_is_lost() -> None:
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("dispatcher", at="B2") as dispatcher,
        overlay.connect_async("worker", at="B3") as worker,
    ):
        await worker.advertise(JOBS)
        await dispatcher.subscribe(JOBS)
        called, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(tx: padres_tx.Part, notification: padres_tx.Notification) -> None:
            called.set()
            await go_on.wait()

        dispatcher.on_tcm(None, slowly)
        tx = await worker.beginTX("d-tx")
        worker.txTCM(tx, {"class": "job"})
        committing = asyncio.create_task(
            functions()["commit"](worker, tx, lambda: overlay.connect_async(at="B1"))
        )
        await called.wait()
        worker._channel.abort(padres_tx.ConnectionLost("the cable"))
        go_on.set()
        result = await committing
        assert (result.tx, result.status, result.code) == (tx, "aborted", "left")
        assert_at_rest(overlay)
