"""Broker processes that are killed and started again with what they have kept."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import padres_tx
from overlay.filters import Filter, Value
from overlay.log.file_log import FileLog
from overlay.messages import Pub, PubRefused
from overlay.wire.link import Opening
from tests.overlay.broker_processes import (
    Process,
    RawClient,
    free_ports,
    inspect,
    start,
    started,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("durable-processes")]

X = "[class,eq,'x']"


class Brokers:
    """A chain of brokers, each with a state directory, that can be ended and started again."""

    def __init__(self, directory: Path, durability: str, count: int, **options: Any) -> None:
        self._directory = directory
        names = [f"B{n}" for n in range(1, count + 1)]
        self.ports = dict(zip(names, free_ports(count), strict=True))
        self.options = {
            "topology": {
                "name": "t",
                "brokers": [{"name": name, "port": port} for name, port in self.ports.items()],
                "edges": [{"a": a, "b": b} for a, b in itertools.pairwise(names)],
            },
            "durability": durability,
            **options,
        }
        self.processes: dict[str, Process] = {}

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def state(self, name: str) -> Path:
        return self._directory / name

    async def start(self, *names: str) -> None:
        starting = {
            name: start(self._directory, name, {**self.options, "state": str(self.state(name))})
            for name in names
        }
        for name, popen in starting.items():
            self.processes[name] = await asyncio.to_thread(started, *popen)

    async def end(self, how: signal.Signals, *names: str) -> None:
        for name in names:
            self.processes[name].popen.send_signal(how)
        for name in names:
            await asyncio.to_thread(self.processes[name].popen.wait)


@asynccontextmanager
async def brokers(
    directory: Path, durability: str, count: int = 3, **options: Any
) -> AsyncIterator[Brokers]:
    those = Brokers(directory, durability, count, **options)
    try:
        await those.start(*those.ports)
        yield those
    finally:
        for process in those.processes.values():
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()


async def stream(those: Brokers, disturb: Any) -> tuple[int, list[int], list[int]]:
    """Publish from the first broker while something happens; what two subscribers have received,
    one at the last broker with a callback, one at the second with an iterator."""
    called: list[int] = []
    iterated: list[int] = []
    first, second, *_, last = [those.address(name) for name in those.ports]
    async with (
        padres_tx.connect(first, name="P", reconnect_s=60) as publisher,
        padres_tx.connect(last, name="S1", reconnect_s=60) as with_callback,
        padres_tx.connect(second, name="S2", reconnect_s=60) as with_iterator,
    ):
        await publisher.advertise(X)
        await with_callback.subscribe(X, lambda n: called.append(n["n"]))
        await with_iterator.subscribe(X)

        async def iterate() -> None:
            async for notification in with_iterator.notifications():
                iterated.append(notification["n"])

        iterating = asyncio.create_task(iterate())
        disturbing = asyncio.create_task(disturb)
        number = 0
        while not disturbing.done():
            await publisher.publish({"class": "x", "n": number})
            number += 1
            await asyncio.sleep(0.001)
        await disturbing
        while min(len(called), len(iterated)) < number:
            await asyncio.sleep(0.01)  # What is lost runs into the test's timeout.
        iterating.cancel()
    return number, called, iterated


@pytest.mark.parametrize(
    ("durability", "how"),
    [("disk", signal.SIGKILL), ("disk", signal.SIGTERM), ("memory", signal.SIGTERM)],
)
def test_a_stream_passes_brokers_that_are_started_again(
    tmp_path: Path, durability: str, how: signal.Signals
) -> None:
    async def restart(those: Brokers) -> None:
        for victims in (["B2"], ["B3"], ["B1"], list(those.ports)):
            await those.end(how, *victims)
            await those.start(*victims)

    async def run() -> tuple[int, list[int], list[int]]:
        async with brokers(tmp_path, durability) as those:
            return await stream(those, restart(those))

    number, called, iterated = asyncio.run(run())
    assert called == list(range(number))
    assert iterated == list(range(number))


def test_a_broker_that_is_away_holds_up_only_publications_for_its_clients(tmp_path: Path) -> None:
    """What was accepted for them arrives when it is back; what is too much is refused with its
    name."""

    async def run() -> None:
        settings = {"neighbour_outbox_messages": 100}
        async with brokers(tmp_path, "disk", settings=settings) as those:
            near, away = RawClient("near"), RawClient("away")
            publisher = RawClient("p").join(those.ports["B1"])
            publisher.operate("adv", Filter(cls="x"))
            near.join(those.ports["B2"]).operate("sub", Filter(cls="x", to="near"))
            away.join(those.ports["B3"]).operate("sub", Filter(cls="x", to="away"))
            refusals: list[PubRefused] = []
            accepted: list[int] = []

            def publish(count: int) -> None:
                """Publish so many for each of the two subscribers."""
                first, known = publisher.seq + 1, len(refusals)
                publisher.seq += count
                numbers = range(first, first + count)
                for n in numbers:
                    for to in ("near", "away"):
                        point: dict[str, Value] = {"cls": "x", "to": to}
                        publisher.send(Pub("p", n, point, life=publisher.life))
                publisher.settle()
                while publisher.link.inbox:
                    refused = publisher.receive()
                    assert isinstance(refused, PubRefused)
                    refusals.append(refused)
                gone = {refused.seq for refused in refusals[known:]}
                accepted.extend(n for n in numbers if n not in gone)

            publish(10)
            assert away.numbers(10) == accepted
            away.settle()
            await those.end(signal.SIGKILL, "B3")
            away.cut()
            while not refusals:
                publish(10)
            publish(200)
            sent = list(range(accepted[0], publisher.seq + 1))
            assert near.numbers(len(sent)) == sent, "the others miss nothing"
            assert {refused.code for refused in refusals} == {"broker-away"}
            assert all("wait at broker B2 for B3" in refused.reason for refused in refusals)
            assert refusals[-1].seq == publisher.seq
            [shown] = [
                link
                for link in inspect(those.ports["B2"], "status")["links"]
                if link["neighbour"] == "B3"
            ]
            assert shown["full"] and not shown["up"]
            await those.start("B3")
            assert away.connect(those.ports["B3"]).value == "resumed"
            assert away.numbers(len(accepted) - 10) == accepted[10:]
            while accepted[-1] != publisher.seq:
                publish(1)
            assert away.numbers(1) == [publisher.seq]
            for event in ("neighbour too far behind", "messages given up"):
                assert not any(process.events(event) for process in those.processes.values())

    asyncio.run(run())


def test_an_input_that_makes_the_core_fail_ends_the_broker_once(tmp_path: Path) -> None:
    """The next start leaves it out, and closes on the client that has sent it."""

    async def run() -> None:
        async with brokers(tmp_path, "disk", 1, fragile=True) as those:
            good, bad = RawClient("good").join(those.ports["B1"]), RawClient("bad")
            bad.join(those.ports["B1"])
            bad.operate("adv", Filter(cls="x"))
            bad.send(Pub("bad", 1, {"cls": "x"}, b"bug", life=bad.life))
            assert await asyncio.to_thread(those.processes["B1"].popen.wait) == 1
            await those.start("B1")
            clients = inspect(those.ports["B1"], "tables")["clients"]
            assert [entry["client"] for entry in clients] == ["good"]
            good.cut()
            assert good.connect(those.ports["B1"]).value == "resumed"

    asyncio.run(run())


def test_a_snapshot_child_that_outlives_its_broker_keeps_neither_port_nor_clients(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "released"
    os.mkfifo(pipe)

    async def run() -> None:
        async with brokers(tmp_path, "disk", 1, snapshots_wait=str(pipe)) as those:
            client = RawClient("c").join(those.ports["B1"])
            # Opened as soon as the child waits for it.
            with await asyncio.to_thread(pipe.open, "wb"):
                await those.end(signal.SIGKILL, "B1")
                with pytest.raises(ConnectionError):
                    client.goodbye()
                client.cut()
                del those.options["snapshots_wait"]
                await those.start("B1")
                assert client.connect(those.ports["B1"]) is Opening.RESUMED

    asyncio.run(run())


def test_a_checkpoint_leaves_nothing_to_replay(tmp_path: Path) -> None:
    async def run() -> None:
        async with brokers(tmp_path, "disk", 1) as those:
            client = RawClient("c").join(those.ports["B1"])
            client.operate("sub", Filter(cls="x"))
            await those.end(signal.SIGKILL, "B1")
            options = {**those.options, "state": str(those.state("B1")), "checkpoint": True}
            popen, _, _ = start(tmp_path, "B1", options)
            assert await asyncio.to_thread(popen.wait) == 0
            log = FileLog(those.state("B1"), broker="B1", version="any", birth="")
            latest = log.latest_snapshot()
            assert latest is not None
            assert latest[0] == log.last > 0
            log.close()
            await those.start("B1")
            subs = inspect(those.ports["B1"], "tables")["prt"]
            assert [entry["client"] for entry in subs] == ["c"]

    asyncio.run(run())


def test_in_memory_a_killed_broker_doubles_nothing_and_no_loss_is_silent(tmp_path: Path) -> None:
    """The middle broker of three is killed under a stream, and comes back without its memory."""
    sent: dict[int, float] = {}
    received: list[int] = []
    published_gaps: list[padres_tx.Gap] = []
    received_gaps: list[padres_tx.Gap] = []

    async def run() -> None:
        async with brokers(tmp_path, "memory") as those:
            first, _, last = [those.address(name) for name in those.ports]
            async with (
                padres_tx.connect(first, name="P") as publisher,
                padres_tx.connect(last, name="S") as subscriber,
            ):
                publisher.on_gap(published_gaps.append)
                subscriber.on_gap(received_gaps.append)
                await publisher.advertise(X)
                await subscriber.subscribe(X, lambda n: received.append(n["n"]))

                async def restart() -> None:
                    await those.end(signal.SIGKILL, "B2")
                    await those.start("B2")

                number, restarting = 0, asyncio.create_task(restart())
                # A while longer: what comes now is published after the last loss.
                while not (restarting.done() and published_gaps and received_gaps):
                    sent[number] = time.time()
                    await publisher.publish({"class": "x", "n": number})
                    number += 1
                    await asyncio.sleep(0.0005)
                await restarting
                await publisher.publish({"class": "x", "n": number})
                while number not in received:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    assert received == sorted(set(received)), "none twice, and in order"
    for gaps, direction in ((published_gaps, "out"), (received_gaps, "in")):
        assert {(gap.broker, gap.direction) for gap in gaps} == {("B2", direction)}
        covered = max(gap.time for gap in gaps)
        assert all(at <= covered for n, at in sent.items() if n not in set(received))


def test_a_broker_that_cannot_listen_leaves_its_checkpoint_to_the_next(tmp_path: Path) -> None:
    """In memory mode the checkpoint is all that there is of the broker."""

    async def run() -> None:
        async with brokers(tmp_path, "memory", 1) as those:
            port = those.ports["B1"]
            client = RawClient("c").join(port)
            client.operate("sub", Filter(cls="x"))
            await those.end(signal.SIGTERM, "B1")
            with socket.create_server(("127.0.0.1", port)):
                options = {**those.options, "state": str(those.state("B1"))}
                popen, _, _ = start(tmp_path, "B1", options)
                assert await asyncio.to_thread(popen.wait) != 0
            await those.start("B1")
            assert [entry["client"] for entry in inspect(port, "tables")["prt"]] == ["c"]

    asyncio.run(run())
