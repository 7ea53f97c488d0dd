"""Over real broker processes: the two use cases with every engine on every named topology, and
what becomes of transactions when a broker dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import padres_tx
from padres_tx import (
    Client,
    ConnectionLost,
    Part,
    TransactionAborted,
    launcher,
    registry,
    static,
)
from padres_tx.examples import consolidation, dispatching

ENGINES = registry.names()
TOPOLOGIES = ["one", "three", "five", "nine"]

#: Nothing here takes seconds; a machine may be busy all the same.
PATIENCE_S = 60.0


async def clients(
    running: launcher.Running, names: list[str], stack: AsyncExitStack
) -> list[Client]:
    """Clients spread over the brokers, so that messages have some way to go."""
    brokers = [broker.name for broker in running.topology.brokers]
    step = max(1, len(brokers) // len(names))
    at = [brokers[(n * step) % len(brokers)] for n in range(len(names))]
    return [
        await stack.enter_async_context(padres_tx.connect(running.address(broker), name=name))
        for name, broker in zip(names, at, strict=True)
    ]


async def play(
    running: launcher.Running, names: list[str], run: Callable[..., Awaitable[Any]], engine: str
) -> dict[str, list[dict[str, Any]]]:
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        received = await run(*await clients(running, names, stack), engine=engine)
    return {name: [n.point for n in came] for name, came in received.items()}


async def tables(running: launcher.Running) -> list[int]:
    """How many entries and clients each broker has."""
    found = []
    for broker in running.topology.brokers:
        async with padres_tx.operator(running.address(broker.name)) as operator:
            body = await operator.inspect("tables")
            found.append(len(body["srt"]) + len(body["prt"]) + len(body["clients"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_dispatching_and_consolidation_with_every_engine(topology: str) -> None:
    with launcher.overlay(topology) as running:
        for engine in ENGINES:
            got = asyncio.run(play(running, ["E", "D", "A1"], dispatching.run, engine))
            if engine == "bl-wait":
                # It runs, and promises nothing on a busy machine but that nothing comes twice.
                asyncio.run(play(running, ["E", "C", "A1", "A2"], consolidation.run, engine))
                assert all(len({str(p) for p in points}) == len(points) for points in got.values())
                continue
            assert [point["n"] for point in got["A1"]] == [1, 2], engine
            assert [point["x"] for point in got["D"]] == ["x2"], engine
            got = asyncio.run(play(running, ["E", "C", "A1", "A2"], consolidation.run, engine))
            later = [(point["x"], who) for who in got for point in got[who] if point["n"] == 2]
            assert sorted(later) == [("x1", "C"), ("x2", "C")], engine
            # What E published just before may meet the transaction on its way.
            before = [point["x"] for who in got for point in got[who] if point["n"] == 1]
            if engine == "d-tx":
                assert sorted(before) == ["x1", "x2"], "each on exactly one side"
        assert set(asyncio.run(tables(running))) == {0}, "clients that left leave nothing behind"


async def hand_over(d: Client, e: Client, engine: str) -> None:
    """E makes D let go of p; a transaction that needs D's broker and those in between."""
    ops = {"D": [static.usub({"class": "p"})]} if engine == "s-tx" else None
    async with e.transaction(engine, deadline_s=1.0, wait="applied") as tx:
        tx.tcm({"class": "p"}, ops=ops)


@pytest.mark.slow
def test_a_broker_that_dies_ends_transactions_and_nobody_waits_for_ever() -> None:
    async def run(running: launcher.Running, stack: AsyncExitStack) -> None:
        lost: list[Exception] = []
        e, d = [
            await stack.enter_async_context(
                padres_tx.connect(
                    running.address(at), name=name, on_error=lost.append, reconnect_s=1
                )
            )
            for name, at in (("E", "B1"), ("D", "B3"))
        ]
        await e.advertise({"class": "p"})
        await d.subscribe({"class": "p"})
        called = asyncio.Event()

        async def on_call(tx: Part, notification: object) -> None:
            tx.usub({"class": "p"})
            called.set()
            await tx.ended  # It would finish its part never.

        d.on_tcm(None, on_call)
        # In the middle of a transaction,
        under_way = asyncio.create_task(hand_over(d, e, "d-tx"))
        await called.wait()
        running.kill("B2")
        with pytest.raises(TransactionAborted) as aborted:
            await under_way
        assert aborted.value.code == "deadline"
        # and before one begins.
        for engine in ("d-tx", "d-tx-ni", "s-tx"):
            with pytest.raises(TransactionAborted) as aborted:
                await hand_over(d, e, engine)
            assert aborted.value.code == "deadline", engine
        # The coordinator's own broker.
        tx = await e.beginTX("d-tx")
        running.kill("B1")
        with pytest.raises(ConnectionLost):
            await e.commitTX(tx)
        with pytest.raises(ConnectionLost):
            e.txSub(tx, {"class": "p"})

    async def play_it(running: launcher.Running) -> None:
        async with asyncio.timeout(PATIENCE_S):
            stack = AsyncExitStack()
            try:
                await run(running, stack)
            finally:
                # What was on its way to brokers that are gone is lost, and closing says so.
                with contextlib.suppress(ConnectionLost):
                    await stack.aclose()

    with launcher.overlay("three") as running:
        asyncio.run(play_it(running))


def test_a_commit_while_the_broker_in_the_middle_is_dead_has_one_outcome() -> None:
    """D-TX-NI decides without votes: the commit is decided at B1 when B2 cannot tell B3."""

    async def run(running: launcher.Running) -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            e, d = [
                await stack.enter_async_context(
                    padres_tx.connect(running.address(at), name=name, reconnect_s=PATIENCE_S)
                )
                for name, at in (("E", "B1"), ("D", "B3"))
            ]
            await e.advertise({"class": "p"})
            await d.subscribe({"class": "p"})
            parts: list[Part] = []

            def let_go(tx: Part, notification: object) -> None:
                parts.append(tx)
                tx.usub({"class": "p", "x": 1})

            d.on_tcm(None, let_go)
            tx = await e.beginTX("d-tx-ni")
            await e.txTCM(tx, {"class": "p", "x": 1})
            await asyncio.to_thread(running.kill, "B2")
            assert (await e.commitTX(tx)).committed
            await asyncio.to_thread(running.restart, "B2")
            assert (await parts[0].ended).committed, "B3 has asked, and B1 has answered"
            # When B2 has learned the routes, D gets what it has not let go of.
            came: list[object] = []
            while not came:
                for x in (1, 2):
                    await e.publish({"class": "p", "x": x})
                came = [n["x"] async for n in d.notifications(timeout_s=0.05)]
            assert set(came) == {2}

    with launcher.overlay("three") as running:
        asyncio.run(run(running))
