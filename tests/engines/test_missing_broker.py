"""Over real broker processes: while one of them is missing the others go on, and name it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import padres_tx
from padres_tx import (
    Client,
    Doubt,
    Notification,
    Part,
    Result,
    TransactionAborted,
    launcher,
    static,
)

#: Nothing here takes longer than some seconds; a machine may be busy all the same.
PATIENCE_S = 120.0
LOOK_S = 0.05

P, Q = {"class": "p"}, {"class": "q"}


def played(topology: str, play: Callable[[launcher.Running, AsyncExitStack], Any]) -> None:
    async def run(running: launcher.Running) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            await play(running, stack)

    with launcher.overlay(topology) as running:
        asyncio.run(run(running))


async def client(
    running: launcher.Running, stack: AsyncExitStack, name: str, at: str, **more: Any
) -> Client:
    connecting = padres_tx.connect(running.address(at), name=name, **more)
    return await stack.enter_async_context(connecting)


async def asked(running: launcher.Running, broker: str, what: str) -> Any:
    async with padres_tx.operator(running.address(broker)) as operator:
        return await operator.inspect(what)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(LOOK_S)


async def unreachable(running: launcher.Running, broker: str) -> list[str]:
    return [each["broker"] for each in (await asked(running, broker, "status"))["unreachable"]]


@pytest.mark.slow
def test_a_leaf_that_stays_dead_holds_nobody_up_but_d_tx_which_names_it() -> None:
    async def play(running: launcher.Running, stack: AsyncExitStack) -> None:
        running.kill("B5")
        e = await client(running, stack, "E", "B4")
        await e.advertise(P)
        await e.advertise(Q)
        w = await client(running, stack, "W", "B3")
        await w.subscribe(P)
        await e.publish({**P, "n": 1})
        assert (await w.next()).point["n"] == 1
        async with e.transaction("s-tx", wait="applied") as plan:
            plan.tcm(P, ops={"W": [static.sub(Q)]})
        await e.publish({**Q, "n": 2})
        assert (await w.next()).point["n"] == 2
        with pytest.raises(TransactionAborted, match=r"B5 \(no link from B2\)") as aborted:
            async with w.transaction("d-tx", deadline_s=2.0) as tx:
                tx.usub(Q)
        assert aborted.value.code == "deadline"
        await w.unsubscribe(Q)
        for broker in ("B1", "B2", "B3", "B4"):
            assert await unreachable(running, broker) == ["B5"]
        running.restart("B5")

        async def back() -> bool:
            return not await unreachable(running, "B3")

        await until(back)
        async for attempt in w.transaction("d-tx", retries=20):
            async with attempt as tx:
                tx.sub(Q)
        late = await client(running, stack, "L", "B5")
        await late.subscribe(Q)
        await e.publish({**Q, "n": 3})
        for each in (w, late):
            assert (await each.next()).point["n"] == 3

    played("five", play)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni"])
def test_a_participant_that_is_cut_off_hears_of_the_deadline_by_itself(engine: str) -> None:
    async def play(running: launcher.Running, stack: AsyncExitStack) -> None:
        e = await client(running, stack, "E", "B1")
        d = await client(running, stack, "D", "B3")
        await e.advertise(P)
        await d.subscribe(P)
        called, ends = asyncio.Event(), asyncio.Queue[Result]()

        async def act(tx: Part, notification: Notification) -> None:
            tx.usub(P)
            called.set()
            await tx.ended

        d.on_tcm(None, act)
        d.on_end(ends.put_nowait)

        async def hand_over() -> None:
            async with e.transaction(engine, deadline_s=3.0) as tx:
                tx.tcm(P)

        under_way = asyncio.create_task(hand_over())
        await called.wait()
        running.kill("B2")
        overlapping = asyncio.create_task(d.subscribe(P))
        ended = await ends.get()
        assert (ended.status, ended.code) == ("aborted", "deadline")
        assert "B2 (no link from B3)" in ended.reason
        await overlapping
        with pytest.raises(TransactionAborted, match=r"B2 \(no link from B1\)"):
            await under_way

    played("three", play)


@pytest.mark.slow
def test_after_its_yes_a_participant_is_told_that_it_waits_and_then_the_outcome() -> None:
    async def play(running: launcher.Running, stack: AsyncExitStack) -> None:
        e = await client(running, stack, "E", "B1", reconnect_s=PATIENCE_S)
        d = await client(running, stack, "D", "B4")
        await e.advertise(P)
        await d.subscribe(P)
        doubts, ends = asyncio.Queue[Doubt](), asyncio.Queue[Result]()
        d.on_tcm(None, lambda tx, notification: None)
        d.on_doubt(doubts.put_nowait)
        d.on_end(ends.put_nowait)
        pids = {name: running.process(name).pid for name in ("B1", "B3")}
        for pid in pids.values():
            stack.callback(os.kill, pid, signal.SIGCONT)
        os.kill(pids["B3"], signal.SIGSTOP)  # Its vote is missing.
        tx = await e.beginTX("d-tx", deadline_s=3.0)
        e.txTCM(tx, P)
        committing = asyncio.create_task(e.commitTX(tx))

        async def voted() -> bool:
            lines = await asked(running, "B4", "d-tx")
            return [line["status"] for line in lines] == ["preparing"]

        await until(voted)
        os.kill(pids["B1"], signal.SIGSTOP)  # It decides, and does not get to it.
        doubt = await doubts.get()
        assert (doubt.tx, doubt.awaited) == (tx, "B1")
        assert doubt.reason.startswith("voted yes, waits for the decision from B1 via B2")
        [line] = await asked(running, "B4", "d-tx")
        assert line["waits_for"].startswith("in doubt: voted yes")
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        assert (await ends.get()).status == (await committing).status

    played("five", play)
