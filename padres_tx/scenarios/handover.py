"""The handover scenario: a stream of plain events changes hands between two workers, repeatedly.

Two publishers number their events. A coordinator hands the stream from one worker to the other with
transactions: a tcm "take", a tcm "give" and a notice, the same program for every engine. Each event
should reach one worker, and the worker should change once per commit; `handover_judge` counts the
events for which that does not hold.

A strict verdict is possible because each publisher's events are divided into handovers + 2
segments. Handover k begins when an event of segment k has arrived, and segment k + 1 begins when
handover k is over. So the owner has to change exactly once between the first event of segment k and
the first event of segment k + 1, and nowhere else. The stream does not pause meanwhile: a publisher
spreads the events of a segment over the handover, and catches up when it is over.

In the last handover the old worker retires as soon as it learns that it may; later events for it
are lost. Brokers may be killed and started again during a run (`broker_kills`); in disk mode that
changes nothing but the time it takes.

No step waits for time to pass in order to know that all events have arrived: links are FIFO, so
when a publisher's last publication has arrived, everything before it has arrived as well.

The brokers are real ones that run anywhere; this module must not know who started them. The clients
(`handover_clients`) all run in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import msgspec

from padres_tx import registry
from padres_tx.client.asyncio.client import Client, connect
from padres_tx.launcher import Running
from padres_tx.scenarios.broker_kills import BrokerKills
from padres_tx.scenarios.handover_clients import (
    DRAIN_S,
    Changed,
    Coordinator,
    StreamPublisher,
    Topics,
    Worker,
)
from padres_tx.scenarios.handover_judge import FAULTS_SHOWN, EventStream, judge, promises_broken
from padres_tx.scenarios.placement import spread

#: Interval of progress reports: as often as a person sees a difference.
REPORT_S = 0.1

PUBLISHERS = 2

#: Called with an engine and the number of events that its run has published so far.
HandoverProgress: TypeAlias = Callable[[str, int], None]


class HandoverError(Exception):
    """The arguments of a run are invalid; the message is one line for the user."""


class HandoverCounts(msgspec.Struct, frozen=True):
    """The result of one engine's run, in numbers."""

    engine: str
    events: int
    #: Committed ones.
    handovers: int
    lost: int
    doubled: int
    misrouted: int
    #: Of the doubled events, those that one worker received twice.
    redelivered: int
    #: Brokers that were killed and started again.
    kills: int
    events_per_s: float


class HandoverOutcome(msgspec.Struct, frozen=True):
    """The result of one engine's run."""

    counts: HandoverCounts
    #: Promises of the engine that were broken.
    broken: list[str]
    #: The first faults, whether or not the engine promises that there are none.
    faults: list[str]


def check(names: Iterable[str], *, events: int, handovers: int) -> None:
    """Raise UnknownEngine, or HandoverError if there are too few events for the handovers."""
    for name in names:
        registry.load(name)
    needed = PUBLISHERS * (handovers + 2)
    if handovers < 1 or events < needed:
        raise HandoverError(
            f"{events} events are too few for {handovers} handovers: expected at least {needed}"
        )


async def run(
    running: Running,
    names: Sequence[str],
    *,
    events: int,
    handovers: int,
    rate: float | None = None,
    seed: int | None = None,
    wait_s: float | None = None,
    kill_brokers: int = 0,
    kill_all: bool = False,
    progress: HandoverProgress = lambda engine, published: None,
) -> list[HandoverOutcome]:
    """Run the scenario with each engine, one after the other, on a running overlay.

    The publishers publish `events` in total, at `rate` events per second or as fast as possible.
    Clients connect to distant brokers, or to random ones with a `seed`. `wait_s` is the wait of
    engines that have one. `kill_brokers` times in each run a broker is killed and started again,
    and with `kill_all` once all of them; which ones and when depends on the `seed` only.

    Raises HandoverError, UnknownEngine, the errors of clients whose broker has gone, and
    LaunchError if a broker that was killed does not come back.
    """
    check(names, events=events, handovers=handovers)
    outcomes = []
    for name in names:
        kills = BrokerKills(running, singly=kill_brokers, everyone=kill_all, seed=f"{name} {seed}")
        options = {"wait_s": wait_s} if wait_s and "wait_s" in registry.load(name).options else {}
        outcomes.append(
            await _run_one(
                running,
                Topics(name),
                events,
                handovers,
                None if rate is None else rate / PUBLISHERS,
                spread(running.topology, PUBLISHERS + 3, seed),
                options,
                kills,
                progress,
            )
        )
    return outcomes


async def _run_one(
    running: Running,
    topics: Topics,
    events: int,
    handovers: int,
    rate: float | None,
    brokers: list[str],
    options: dict[str, Any],
    kills: BrokerKills,
    progress: HandoverProgress,
) -> HandoverOutcome:
    errors: list[Exception] = []
    async with AsyncExitStack() as stack:

        async def client(role: str, broker: str) -> Client:
            # Each run has names of its own: clients of the run before may still be leaving.
            name = f"{role}-{topics.engine}"
            connecting = connect(running.address(broker), name=name, on_error=errors.append)
            return await stack.enter_async_context(connecting)

        changed = Changed()
        # The first brokers are furthest apart: for a publisher and the workers.
        first, ann_at, ben_at, coordinator_at, *others = brokers
        publishers = []
        shares = zip([first, *others], _shares(events), strict=True)
        for number, (broker, count) in enumerate(shares, 1):
            joined = await client(f"publisher{number}", broker)
            stream = EventStream(joined.name, count, handovers)
            publishers.append(StreamPublisher(joined, stream, topics, rate))
        ann = Worker(await client("ann", ann_at), topics, changed, by_callback=True)
        ben = Worker(await client("ben", ben_at), topics, changed, by_callback=False)
        coordinator = Coordinator(
            topics, await client("coordinator", coordinator_at), handovers, changed, kills.over
        )

        for publisher in publishers:
            await publisher.client.advertise(topics.work)
            await publisher.client.advertise(topics.filter("notice"))
        await coordinator.client.advertise(topics.filter("call"))
        await coordinator.client.advertise(topics.filter("notice"))
        for worker in (ann, ben):
            await worker.start()
        await ann.own()

        began_at = time.monotonic()
        timed_out = await _while_connected(
            _publish_and_hand_over(
                coordinator, publishers, (ann, ben), options, kills, changed, progress
            ),
            [coordinator.client, ann.client, ben.client, *(each.client for each in publishers)],
        )
        took_s = time.monotonic() - began_at

    streams = [publisher.stream for publisher in publishers]
    received = {worker.name: worker.received for worker in (ann, ben)}
    verdict = judge(streams, received, coordinator.committed)
    late = ann.late + ben.late
    return HandoverOutcome(
        HandoverCounts(
            topics.engine,
            events,
            sum(coordinator.committed),
            verdict.lost,
            verdict.doubled,
            verdict.misrouted,
            verdict.twice,
            kills.count,
            round(events / took_s, 1),
        ),
        promises_broken(topics.engine, verdict, coordinator.aborted, late, timed_out),
        verdict.faults + [str(error) for error in errors[:FAULTS_SHOWN]],
    )


def _shares(events: int) -> list[int]:
    """Return the number of events of each publisher."""
    return [(events + at) // PUBLISHERS for at in range(PUBLISHERS)]


async def _publish_and_hand_over(
    coordinator: Coordinator,
    publishers: Sequence[StreamPublisher],
    workers: tuple[Worker, Worker],
    options: dict[str, Any],
    kills: BrokerKills,
    changed: Changed,
    progress: HandoverProgress,
) -> str:
    """Run until all events have arrived; returns what did not happen in time, or ""."""
    reading = [asyncio.ensure_future(worker.read()) for worker in workers]
    try:
        return await _until_all_arrived(
            coordinator, publishers, workers, options, kills, changed, progress
        )
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _until_all_arrived(
    coordinator: Coordinator,
    publishers: Sequence[StreamPublisher],
    workers: tuple[Worker, Worker],
    options: dict[str, Any],
    kills: BrokerKills,
    changed: Changed,
    progress: HandoverProgress,
) -> str:
    streams = [publisher.stream for publisher in publishers]
    timed_out, *_ = await _together(
        coordinator.run(streams, workers, options),
        *(publisher.run(coordinator) for publisher in publishers),
        kills.run(lambda: _published(publishers) / sum(stream.events for stream in streams)),
        _report(publishers, coordinator.engine, progress),
    )
    staying = [worker for worker in workers if not worker.client.closed]
    names = {stream.publisher for stream in streams}

    def incomplete() -> list[str]:
        return [worker.name for worker in staying if worker.finished_publishers != names]

    if await changed.until(lambda: not incomplete(), DRAIN_S):
        return str(timed_out)
    return f"{' and '.join(incomplete())} did not receive all events within {DRAIN_S:g} s"


async def _together(*parts: Awaitable[Any]) -> list[Any]:
    """Run all concurrently, and cancel all if one fails."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _while_connected(work: Awaitable[str], clients: Iterable[Client]) -> str:
    """Await the work; raises the error of a client that loses its broker meanwhile."""
    working = asyncio.ensure_future(work)
    tasks = [working, *(asyncio.ensure_future(client.wait_closed()) for client in clients)]
    waiting = set(tasks)
    try:
        while not working.done():
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                await task
        return await working
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _published(publishers: Iterable[StreamPublisher]) -> int:
    return sum(publisher.published for publisher in publishers)


async def _report(
    publishers: Sequence[StreamPublisher], engine: str, progress: HandoverProgress
) -> None:
    """Report progress until the publishers have published all events."""
    events = sum(publisher.stream.events for publisher in publishers)
    published = -1
    while published < events:
        published = _published(publishers)
        progress(engine, published)
        await asyncio.sleep(REPORT_S)
