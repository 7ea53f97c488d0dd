"""The handover: a stream of plain events changes hands between two workers, again and again.

Two publishers number their events. A coordinator hands the stream from one worker to the other by
transactions: "take", "give" and a notice, the same program for every engine. Each event should
reach one worker, and the worker should change once for each commit. `judge` says how far that is
so (`padres_tx.scenarios.handover_judge`); in its words, an event is

    lost        neither worker has it
    doubled     both have it, or one has it twice
    misrouted   of one publisher's events, the owner changes other than once per commit

How the judge can be strict: each publisher's events are cut into handovers + 2 segments. Handover k
begins when an event of segment k has arrived, and segment k + 1 begins when handover k is over. So
the owner has to change just once between the first event of segment k and that of segment k + 1,
and nowhere else. The stream does not rest meanwhile: a publisher takes its time over the segment
while the handover is under way, and makes up for it when that is over.

Programs read in two ways, and so do the workers: ann by the callback that it subscribes with, ben
by its client's iterator. What comes to the way that a worker does not read is lost. (A static
transaction subscribes on a worker's behalf, and so without a callback: then ann reads both ways.)

At the last handover the old worker retires, as soon as it is told that it may: what comes for it
after that is lost. Nobody waits for time to pass to know that all has arrived: when a publisher's
last word, the bell, has come, links being FIFO, so has everything before it.

The brokers are real ones, wherever they run; who started them is not known here. The clients all
live in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from padres_tx import registry, static
from padres_tx.client.asyncio.client import Client, connect
from padres_tx.client.session import Notification
from padres_tx.errors import CallTimeout, TransactionAborted
from padres_tx.launcher import Running
from padres_tx.scenarios.handover_judge import FAULTS_SHOWN, Event, Stream, Verdict, judge
from padres_tx.scenarios.placement import spread

#: Conflicts that a handover gives way to. Nothing here conflicts with it but what clients of the
#: run before it still leave behind, so one that loses so often does not get on at all.
RETRIES = 10

#: How long a handover waits for an event of its segment. They are on their way already; that none
#: comes means that the engine has lost them all, and then the run goes on to say so.
ARRIVAL_S = 10.0

#: How long all that was published may take to arrive, and a worker to be told that it may go.
DRAIN_S = 60.0

#: What a publisher takes for a segment while its handover is under way, in durations of the last
#: handover: so the stream is dense where it is cut, and outlasts the cut. The first is a guess.
OUTLASTS = 2.0
FIRST_HANDOVER_S = 0.02

#: A publisher that is in the last quarter of its segment, the handover still under way, pauses so
#: long after each event. That is also the shortest pause that an event loop is good for.
TRICKLE_S = 0.001

#: How often progress is told: as often as a person sees a difference.
REPORT_S = 0.1

PUBLISHERS = 2

#: Notifications that a worker takes from its client's iterator at once.
READ = 256

#: Told how many events an engine's run has published so far.
Progress: TypeAlias = Callable[[str, int], None]


class HandoverError(Exception):
    """What was asked for cannot be run; the message is a line for the person who asked."""


# --- what comes of a run ------------------------------------------------------------------------


class Row(msgspec.Struct, frozen=True):
    """What one engine has shown."""

    engine: str
    events: int
    #: Those that were committed.
    handovers: int
    lost: int
    doubled: int
    misrouted: int
    events_per_s: float


class Outcome(msgspec.Struct, frozen=True):
    """A row, and what stands behind it."""

    row: Row
    #: Promises of the engine that were not kept.
    broken: list[str]
    #: What went wrong, whether or not anybody had promised that it would not.
    faults: list[str]


def promises_broken(
    engine: str, verdict: Verdict, aborted: Sequence[str], late: int, timed_out: str
) -> list[str]:
    """What an engine has promised and not kept (the table of guarantees in the README)."""
    broken: list[str] = []
    if verdict.twice:
        broken.append(f"{verdict.twice} events came to one worker twice")
    for reason in aborted:
        broken.append(f"a handover was not committed: {reason}")
    if timed_out:
        broken.append(timed_out)
    if "handover" not in registry.properties(engine).promises:
        return broken
    for count, what in (
        (verdict.lost, "lost"),
        (verdict.doubled - verdict.twice, "doubled"),
        (verdict.misrouted, "misrouted"),
        (late, "late: they came to a worker that had been told that no more would come"),
    ):
        if count:
            broken.append(f"{count} events were {what}")
    return broken


# --- who takes part -----------------------------------------------------------------------------


class News:
    """Something has changed that somebody may wait for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def pulse(self) -> None:
        self._event.set()
        self._event.clear()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; False if it does not come about in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._event.wait()
        except TimeoutError:
            return False
        return True


class Words(NamedTuple):
    """What is said in one engine's run, apart from those of other runs on the same overlay."""

    engine: str

    def point(self, kind: str, **attributes: Any) -> dict[str, Any]:
        return {"class": kind, "engine": self.engine, **attributes}

    def filter(self, kind: str, worker: str = "") -> str:
        text = f"[class,eq,'{kind}'],[engine,eq,'{self.engine}']"
        return f"{text},[worker,eq,'{worker}']" if worker else text

    @property
    def work(self) -> str:
        return self.filter("work")


class Worker:
    """A client that takes the stream, and gives it away."""

    def __init__(self, client: Client, words: Words, news: News, *, by_callback: bool) -> None:
        self.client = client
        self.received: list[Event] = []
        #: By publisher, its latest event here.
        self.latest: dict[str, int] = {}
        self.bells: set[str] = set()
        #: Transactions of which it was told the end, and that nothing older will come.
        self.ended: set[str] = set()
        self.drained: set[str] = set()
        self.late = 0
        self._words = words
        self._news = news
        #: What it subscribes with; and whether it reads what no callback takes.
        self._callback = self._notified if by_callback else None
        self._iterates = not by_callback or is_static(words.engine)
        #: The transaction in which it gave the stream away, until it takes it again.
        self.gave = ""

    @property
    def name(self) -> str:
        return self.client.name

    async def start(self) -> None:
        self.client.on_end(lambda result: self._told(self.ended, result.tx))
        self.client.on_drained(self._is_drained)
        self.client.on_tcm(self._words.filter("call"), self._called)
        await self.client.subscribe(self._words.filter("call", self.name))
        await self.client.subscribe(self._words.filter("notice"), self._callback)

    async def own(self) -> None:
        """Have the stream from the beginning."""
        await self.client.subscribe(self._words.work, self._callback)

    async def read(self) -> None:
        """Read what no callback takes, until the client is closed."""
        if self._iterates:
            async for notification in self.client:
                self._notified(notification)

    def _called(self, tx: Any, call: Notification) -> None:
        """Act on a tcm: take the stream, or give it away."""
        if call["do"] == "take":
            self.gave = ""
            tx.sub(self._words.work, self._callback)
        else:
            self.gave = tx.id
            tx.usub(self._words.work)

    def _notified(self, notification: Notification) -> None:
        publisher = notification.publisher
        if notification["class"] == "work":
            number = notification["n"]
            assert isinstance(number, int)
            self.received.append((publisher, number))
            self.latest[publisher] = number
            self.late += bool(self.gave) and self.gave in self.drained
        elif notification["what"] == "bell":
            self.bells.add(publisher)
        self._news.pulse()

    async def _is_drained(self, tx: str) -> None:
        """Read what has come before, and take note."""
        with contextlib.suppress(CallTimeout):
            while self._iterates:
                for notification in await self.client.take(READ, timeout_s=0):
                    self._notified(notification)
        self._told(self.drained, tx)

    def _told(self, of: set[str], tx: str) -> None:
        of.add(tx)
        self._news.pulse()

    def may_go(self, tx: str) -> bool:
        """Whether it has been told all that its engine tells one who gave the stream away."""
        return tx in (self.drained if self.gave else self.ended)


class Publisher:
    """A client that publishes its stream as fast as the overlay takes it, or at a rate."""

    def __init__(self, client: Client, stream: Stream, words: Words, rate: float | None) -> None:
        self.client = client
        self.stream = stream
        self.published = 0
        self._words = words
        self._rate = rate

    async def run(self, desk: Desk) -> None:
        began_at = time.monotonic()
        for segment in range(self.stream.handovers + 2):
            await desk.until_open(segment)
            first, end = self.stream.first(segment), self.stream.first(segment + 1)
            opened_at = time.monotonic()
            for number in range(first, end):
                await self.client.publish(self._words.point("work", n=number))
                self.published = number
                pause_s = 0.0
                if self._rate is not None:
                    pause_s = began_at + number / self._rate - time.monotonic()
                if not desk.is_over(segment):
                    share = (number - first) / (end - first)
                    ahead_s = opened_at + share * OUTLASTS * desk.handover_s - time.monotonic()
                    pause_s = max(pause_s, ahead_s, TRICKLE_S if share > 3 / 4 else 0.0)
                if pause_s >= TRICKLE_S:
                    await asyncio.sleep(pause_s)
        await self.client.publish(self._words.point("notice", what="bell"))


class Desk:
    """Where the handovers are ordered, and publishers see how far they may go."""

    def __init__(self, words: Words, coordinator: Client, handovers: int, news: News) -> None:
        self.engine = words.engine
        self._words = words
        self._coordinator = coordinator
        self._handovers = handovers
        self._news = news
        self._over = 0
        #: What the last handover took.
        self.handover_s = FIRST_HANDOVER_S
        self.committed: list[bool] = []
        #: Why handovers were not.
        self.aborted: list[str] = []

    def is_over(self, handover: int) -> bool:
        return handover <= self._over or handover > self._handovers

    async def until_open(self, segment: int) -> None:
        """Wait until events of this segment may be published."""
        while not self.is_over(segment - 1):
            # Each handover has its deadline, so each wait has.
            await self._news.until(lambda: self.is_over(segment - 1), DRAIN_S)

    async def run(
        self, streams: Sequence[Stream], workers: tuple[Worker, Worker], options: dict[str, Any]
    ) -> str:
        """Make all handovers; answers what did not come in time, or ""."""
        old, new = workers
        timed_out = ""
        for handover in range(1, self._handovers + 1):
            await self._news.until(partial(_arrived, streams, workers, handover), ARRIVAL_S)
            began_at = time.monotonic()
            tx = await self._hand_over(old, new, options)
            self.handover_s = time.monotonic() - began_at
            self.committed.append(bool(tx))
            if tx:
                old, new = new, old
            if tx and handover == self._handovers and not await self._retire(new, tx):
                timed_out = f"{new.name} was not told within {DRAIN_S:g} s that it may go"
            self._over = handover
            self._news.pulse()
        return timed_out

    async def _hand_over(self, old: Worker, new: Worker, options: dict[str, Any]) -> str:
        """One handover; answers the transaction's name, or "" if it was aborted."""
        words = self._words
        planned = is_static(words.engine)
        take = {new.name: [static.sub(words.work)]} if planned else None
        give = {old.name: [static.usub(words.work)]} if planned else None
        name = ""
        try:
            async for tx in self._coordinator.transaction(
                words.engine, retries=RETRIES, wait="applied", **options
            ):
                async with tx:
                    name = tx.id
                    tx.tcm(words.point("call", worker=new.name, do="take"), ops=take)
                    tx.tcm(words.point("call", worker=old.name, do="give"), ops=give)
                    tx.pub(words.point("notice", what="handed", to=new.name))
        except TransactionAborted as aborted:
            self.aborted.append(aborted.reason)
            return ""
        return name

    async def _retire(self, worker: Worker, tx: str) -> bool:
        """Let a worker go that has given the stream away, when it knows that it may."""
        told = await self._news.until(lambda: worker.may_go(tx), DRAIN_S)
        await worker.client.close()
        return told


def is_static(engine: str) -> bool:
    """Whether the coordinator of a transaction plans what others do."""
    return registry.load(engine).is_static


def _arrived(streams: Sequence[Stream], workers: Iterable[Worker], segment: int) -> bool:
    """Whether of each stream an event of this segment, or a later one, has come to somebody."""
    return all(
        max(worker.latest.get(stream.publisher, 0) for worker in workers) >= stream.first(segment)
        for stream in streams
    )


# --- a run --------------------------------------------------------------------------------------


def check(names: Iterable[str], *, events: int, handovers: int) -> None:
    """Raises UnknownEngine, and HandoverError if there are too few events for the handovers."""
    for name in names:
        registry.load(name)
    needed = PUBLISHERS * (handovers + 2)
    if handovers < 1 or events < needed:
        raise HandoverError(
            f"{handovers} handovers need at least {needed} events to be judged by, not {events}"
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
    progress: Progress = lambda engine, published: None,
) -> list[Outcome]:
    """Try engines on a running overlay, one after the other.

    `events` are published in all, at `rate` a second or as fast as it goes. Clients sit far apart,
    or where a `seed` draws them. `wait_s` is the wait of engines that have one.

    Raises HandoverError, UnknownEngine, and what clients raise if a broker goes.
    """
    check(names, events=events, handovers=handovers)
    outcomes = []
    for name in names:
        options = {"wait_s": wait_s} if wait_s and "wait_s" in registry.load(name).options else {}
        outcomes.append(
            await _run_one(
                running,
                Words(name),
                events,
                handovers,
                None if rate is None else rate / PUBLISHERS,
                spread(running.topology, PUBLISHERS + 3, seed),
                options,
                progress,
            )
        )
    return outcomes


async def _run_one(
    running: Running,
    words: Words,
    events: int,
    handovers: int,
    rate: float | None,
    places: list[str],
    options: dict[str, Any],
    progress: Progress,
) -> Outcome:
    errors: list[Exception] = []
    async with AsyncExitStack() as stack:

        async def client(role: str, place: str) -> Client:
            # Names of their own for each run: those of the run before may still be leaving.
            at = running.address(place)
            connecting = connect(at, name=f"{role}-{words.engine}", on_error=errors.append)
            return await stack.enter_async_context(connecting)

        news = News()
        # The first places are furthest apart: for a publisher and the workers.
        first, ann_at, ben_at, coordinator_at, *others = places
        publishers = []
        shares = zip([first, *others], _shares(events), strict=True)
        for number, (place, count) in enumerate(shares, 1):
            joined = await client(f"publisher{number}", place)
            stream = Stream(joined.name, count, handovers)
            publishers.append(Publisher(joined, stream, words, rate))
        ann = Worker(await client("ann", ann_at), words, news, by_callback=True)
        ben = Worker(await client("ben", ben_at), words, news, by_callback=False)
        coordinator = await client("coordinator", coordinator_at)
        desk = Desk(words, coordinator, handovers, news)

        for publisher in publishers:
            await publisher.client.advertise(words.work)
            await publisher.client.advertise(words.filter("notice"))
        await coordinator.advertise(words.filter("call"))
        await coordinator.advertise(words.filter("notice"))
        for worker in (ann, ben):
            await worker.start()
        await ann.own()

        began_at = time.monotonic()
        timed_out = await _guarded(
            _play(desk, publishers, (ann, ben), options, news, progress),
            [coordinator, ann.client, ben.client, *(each.client for each in publishers)],
        )
        took_s = time.monotonic() - began_at

    streams = [publisher.stream for publisher in publishers]
    received = {worker.name: worker.received for worker in (ann, ben)}
    verdict = judge(streams, received, desk.committed)
    late = ann.late + ben.late
    return Outcome(
        Row(
            words.engine,
            events,
            sum(desk.committed),
            verdict.lost,
            verdict.doubled,
            verdict.misrouted,
            round(events / took_s, 1),
        ),
        promises_broken(words.engine, verdict, desk.aborted, late, timed_out),
        verdict.faults + [str(error) for error in errors[:FAULTS_SHOWN]],
    )


def _shares(events: int) -> list[int]:
    """How many events each publisher has."""
    return [(events + at) // PUBLISHERS for at in range(PUBLISHERS)]


async def _play(
    desk: Desk,
    publishers: Sequence[Publisher],
    workers: tuple[Worker, Worker],
    options: dict[str, Any],
    news: News,
    progress: Progress,
) -> str:
    """Publish and hand over, until all has arrived; answers what did not come in time, or ""."""
    reading = [asyncio.ensure_future(worker.read()) for worker in workers]
    try:
        return await _until_all_is_read(desk, publishers, workers, options, news, progress)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _until_all_is_read(
    desk: Desk,
    publishers: Sequence[Publisher],
    workers: tuple[Worker, Worker],
    options: dict[str, Any],
    news: News,
    progress: Progress,
) -> str:
    streams = [publisher.stream for publisher in publishers]
    timed_out, *_ = await _together(
        desk.run(streams, workers, options),
        *(publisher.run(desk) for publisher in publishers),
        _report(publishers, desk.engine, progress),
    )
    staying = [worker for worker in workers if not worker.client.closed]
    bells = {stream.publisher for stream in streams}
    if await news.until(lambda: all(worker.bells == bells for worker in staying), DRAIN_S):
        return str(timed_out)
    silent = [worker.name for worker in staying if worker.bells != bells]
    return f"{' and '.join(silent)} had not got everything after {DRAIN_S:g} s"


async def _together(*parts: Awaitable[Any]) -> list[Any]:
    """Run all at once, and end all if one fails."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _guarded(play: Awaitable[str], clients: Iterable[Client]) -> str:
    """The play, or why one of the clients in it has lost its broker."""
    playing = asyncio.ensure_future(play)
    tasks = [playing, *(asyncio.ensure_future(client.wait_closed()) for client in clients)]
    waiting = set(tasks)
    try:
        while not playing.done():
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                await task
        return await playing
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report(publishers: Sequence[Publisher], engine: str, progress: Progress) -> None:
    """Tell how far the publishers are, until they are through."""
    events = sum(publisher.stream.events for publisher in publishers)
    published = -1
    while published < events:
        published = sum(publisher.published for publisher in publishers)
        progress(engine, published)
        await asyncio.sleep(REPORT_S)
