"""The two use cases with every engine, over real broker processes of every named topology."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import padres_tx
from padres_tx import Client, engines, launcher
from padres_tx.examples import consolidation, dispatching

ENGINES = ["bl-wait", "d-tx", "d-tx-ni", "s-tx"]
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


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_dispatching_and_consolidation_with_every_engine(topology: str) -> None:
    assert set(ENGINES) <= set(engines.names())
    with launcher.overlay(topology) as running:
        for engine in ENGINES:
            got = asyncio.run(play(running, ["E", "D", "A1"], dispatching.run, engine))
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
