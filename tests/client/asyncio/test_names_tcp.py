"""Names over real broker processes: free when `close` returns, and kept through an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import padres_tx
from overlay.errors import NameAway, NameTaken
from padres_tx import launcher
from tests.client.asyncio.test_tcp import proxy_to, run
from tests.overlay.broker_processes import Process, one, running
from topologies import generators

#: Enough to fail without fail: before, four of five connections were refused.
CYCLES = 100

OUTAGE_S = 0.3


@pytest.fixture(scope="module")
def tree() -> Iterator[launcher.Running]:
    with launcher.overlay(generators.balanced(2, 2, delay_ms=3.0)) as running:
        yield running


@pytest.mark.slow
def test_a_name_is_free_everywhere_when_close_returns(tree: launcher.Running) -> None:
    brokers = [broker.name for broker in tree.topology.brokers]

    async def test() -> None:
        for cycle in range(CYCLES):
            at = tree.address(brokers[cycle * 3 % len(brokers)])
            async with padres_tx.connect(at, name="C") as c:
                if cycle % 10 == 0:
                    await c.subscribe({"class": "p1"})

    asyncio.run(test())


def test_a_name_is_kept_through_a_short_outage(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        async with proxy_to(process) as (proxy, address):
            a1 = await padres_tx.connect(address, name="A1")
            await a1.subscribe({"class": "p1"})
            proxy.down = True
            proxy.cut()
            asyncio.get_running_loop().call_later(OUTAGE_S, setattr, proxy, "down", False)
            while proxy.down:
                with pytest.raises(NameTaken):
                    await padres_tx.connect(f"127.0.0.1:{process.port}", name="A1")
            await a1.advertise({"class": "p1"})
            await a1.publish({"class": "p1"})
            assert (await a1.next())["class"] == "p1"
            await a1.close()

    with running(tmp_path, "B1", one()) as process:
        run(lambda: test(process))


@pytest.mark.slow
def test_a_program_that_was_killed_gets_its_name_back_by_itself(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        at = f"127.0.0.1:{process.port}"
        async with proxy_to(process) as (proxy, address):
            killed = await padres_tx.connect(address, name="A1", reconnect_s=0)
            proxy.cut()
            while not process.events("client lost its connection"):
                await asyncio.sleep(0.01)
            with pytest.raises(NameAway, match="may come back"):
                await padres_tx.connect(at, name="A1", retry=False)
            async with padres_tx.connect(at, name="A1") as again:
                await again.subscribe({"class": "p1"})
            assert killed.closed

    with running(tmp_path, "B1", one(), settings={"takeover_s": 0.5}) as process:
        run(lambda: test(process))
