"""A stream changes hands every second while brokers on disk are killed, and at last all at once.

    python -m tests.trials.crashes --seconds 300 --seed 1

What a new user would try: `padres-tx up five --durability disk`, `kill -9` for brokers at random,
`padres-tx broker restart NAME` after a moment; then all brokers at once. Two publishers stream
numbered events; four workers hand the stream to each other by D-TX. One publisher and two workers
use asyncio, the others the blocking client; of each kind one worker reads with a callback and one
with its client's iterator. No program has a line of recovery code.

A crash is only a pause, so the counts are exact:

    lost        no worker has the event
    doubled     two workers have it, or one has it twice
    misrouted   the owners of one publisher's events do not follow the committed moves
    disordered  a worker has an event of a publisher after a later one
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import padres_tx
from padres_tx import Notification, TransactionAborted
from padres_tx.launcher.overlay_files import DIRECTORY_ENV, OverlayFiles
from tests.trials.handovers import Event, Move, judge
from tests.trials.worker import MOVE, catching, jobs_of

KEY = "k0"
PUBLISHERS = ("P1", "P2")

#: Worker -> how it reads.
WORKERS = {
    "A1": "asyncio, callback",
    "A2": "asyncio, iterator",
    "T1": "blocking, callback",
    "T2": "blocking, iterator",
}

#: A publisher pauses so long between two events.
PAUSE_S = 0.004

#: From one handover to the next, if brokers are up.
HANDOVER_S = 1.0

#: The first handovers may conflict with the advertisements of the publishers.
RETRIES = 10

#: Between two kills, and how long a broker stays dead before it is restarted.
BETWEEN_S = (0.3, 2.5)
DEAD_S = (0.0, 1.5)

#: How long all published events may take to arrive, once all brokers are back.
ARRIVAL_S = 60.0
LOOK_S = 0.05

#: How long a client waits for its broker: a machine with other work may need long to start five.
PATIENCE_S = 120.0


class Findings(NamedTuple):
    events: int
    moves: int
    kills: int
    lost: list[Event]
    doubled: list[Event]
    misrouted: list[Event]
    disordered: list[Event]
    #: What else was not as promised.
    broken: list[str]

    @property
    def is_fine(self) -> bool:
        return not (self.lost or self.doubled or self.misrouted or self.disordered or self.broken)

    def __str__(self) -> str:
        fields = self._asdict()
        counts = {name: len(v) if isinstance(v, list) else v for name, v in fields.items()}
        shown = [f"{name}: {v[:5]}" for name, v in fields.items() if isinstance(v, list) and v]
        return "\n".join([json.dumps(counts), *shown])


def disordered(received: Mapping[str, Sequence[Event]]) -> list[Event]:
    """The events that came to a worker after a later one of their publisher."""
    found = []
    for events in received.values():
        latest: dict[str, int] = {}
        for event in events:
            if event.number < latest.get(event.publisher, 0):
                found.append(event)
            latest[event.publisher] = max(event.number, latest.get(event.publisher, 0))
    return found


# --- the programs ---


class AsyncioPublisher:
    def __init__(self, name: str, at: str, over: threading.Event) -> None:
        self.name, self.published = name, 0
        self._at, self._over = at, over

    async def run(self) -> None:
        async with padres_tx.connect(self._at, name=self.name, reconnect_s=PATIENCE_S) as client:
            await client.advertise("[class,eq,'job']")
            while not self._over.is_set():
                await client.publish({"class": "job", "key": KEY, "n": self.published + 1})
                self.published += 1
                await asyncio.sleep(PAUSE_S)


class BlockingPublisher(AsyncioPublisher):
    async def run(self) -> None:
        await asyncio.to_thread(self._run)

    def _run(self) -> None:
        with padres_tx.sync.connect(self._at, name=self.name, reconnect_s=PATIENCE_S) as client:
            client.advertise("[class,eq,'job']")
            while not self._over.is_set():
                client.publish({"class": "job", "key": KEY, "n": self.published + 1})
                self.published += 1
                time.sleep(PAUSE_S)


class AsyncioWorker:
    """It takes and gives the stream as tcms ask for it, and keeps what it gets."""

    def __init__(
        self, name: str, at: str, over: threading.Event, *, by_callback: bool, owns: bool
    ) -> None:
        self.name = name
        self.received: list[Event] = []
        self.ready = threading.Event()
        self._at, self._over = at, over
        self._callback: Callable[[Notification], Any] | None = self._note if by_callback else None
        self._owns = owns

    def _note(self, n: Notification) -> None:
        if n["class"] == "job":
            self.received.append(Event(n.publisher, str(n["key"]), int(n["n"])))

    async def run(self) -> None:
        async with padres_tx.connect(self._at, name=self.name, reconnect_s=PATIENCE_S) as client:
            client.on_tcm(MOVE, catching(self.name, self._callback))
            await client.subscribe(MOVE)
            if self._owns:
                await client.subscribe(jobs_of(KEY), self._callback)
            self.ready.set()
            reading = asyncio.create_task(self._read(client))
            while not self._over.is_set() and not reading.done():
                await asyncio.sleep(LOOK_S)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, client: padres_tx.Client) -> None:
        async for n in client:
            self._note(n)


class BlockingWorker(AsyncioWorker):
    async def run(self) -> None:
        await asyncio.to_thread(self._run)

    def _run(self) -> None:
        with padres_tx.sync.connect(self._at, name=self.name, reconnect_s=PATIENCE_S) as client:
            client.on_tcm(MOVE, catching(self.name, self._callback))
            client.subscribe(MOVE)
            if self._owns:
                client.subscribe(jobs_of(KEY), self._callback)
            self.ready.set()
            while not self._over.is_set():
                with contextlib.suppress(padres_tx.CallTimeout):
                    self._note(client.next(timeout_s=LOOK_S))


# --- the trial ---


class Overlay:
    """`padres-tx` commands about one overlay, as processes with a state directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._environment = {**os.environ, DIRECTORY_ENV: str(directory)}
        self._files = OverlayFiles(directory)

    async def command(self, *arguments: str) -> str:
        """Run a command; returns its output. Raises RuntimeError with its error if it fails."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "padres_tx.cli.main", *arguments),
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, told = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"padres-tx {' '.join(arguments)}: {told.decode()}")
        return printed.decode()

    def kill(self, brokers: Iterable[str]) -> None:
        record = self._files.find()
        for pid in [record.broker(name).process.pid for name in brokers]:
            os.kill(pid, signal.SIGKILL)

    def addresses(self) -> dict[str, str]:
        return {broker.name: broker.address for broker in self._files.find().brokers}


class Trial:
    """One run; `run` plays it and returns the findings."""

    def __init__(self, overlay: Overlay, *, seconds: float, seed: int) -> None:
        self._overlay = overlay
        self._seconds = seconds
        self._random = random.Random(seed)
        self._addresses = overlay.addresses()
        self._stopped = threading.Event()
        self._over = threading.Event()
        homes = [self._random.choice(sorted(self._addresses)) for _ in range(7)]
        at = [self._addresses[home] for home in homes]
        self._publishers = [
            AsyncioPublisher(PUBLISHERS[0], at[0], self._stopped),
            BlockingPublisher(PUBLISHERS[1], at[1], self._stopped),
        ]
        self._workers = [
            (AsyncioWorker if style.startswith("asyncio") else BlockingWorker)(
                name,
                at[2 + number],
                self._over,
                by_callback=style.endswith("callback"),
                owns=number == 0,
            )
            for number, (name, style) in enumerate(WORKERS.items())
        ]
        self._coordinator_at = at[6]
        self._moves: list[Move] = []
        self._kills = 0
        self._broken: list[str] = []

    async def run(self) -> Findings:
        workers = [asyncio.create_task(self._carry_on(worker)) for worker in self._workers]
        for worker in self._workers:
            assert await asyncio.to_thread(worker.ready.wait, PATIENCE_S), "a worker does not start"
        parts = [
            *(asyncio.create_task(self._carry_on(publisher)) for publisher in self._publishers),
            asyncio.create_task(self._hand_over()),
        ]
        await self._kill_brokers()
        self._stopped.set()
        await asyncio.gather(*parts)
        await self._until_all_arrived()
        self._over.set()
        await asyncio.gather(*workers)
        return self._findings()

    async def _carry_on(self, program: AsyncioPublisher | AsyncioWorker) -> None:
        try:
            await program.run()
        except Exception as error:
            self._broken.append(f"{program.name} failed: {error!r}")

    async def _hand_over(self) -> None:
        """Give the stream to a random worker every second."""
        connecting = padres_tx.connect(self._coordinator_at, name="C", reconnect_s=PATIENCE_S)
        try:
            async with connecting as client:
                await client.advertise("[class,eq,'move']")
                while not self._stopped.is_set():
                    to = self._random.choice(list(WORKERS))
                    try:
                        async for tx in client.transaction("d-tx", retries=RETRIES, wait="applied"):
                            async with tx:
                                tx.tcm({"class": "move", "key": KEY, "to": to})
                                name = tx.id
                        self._moves.append(Move(name, KEY, to))
                    except TransactionAborted as error:
                        self._broken.append(f"a handover was aborted: {error}")
                    await asyncio.sleep(HANDOVER_S)
        except Exception as error:
            self._broken.append(f"the coordinator failed: {error!r}")

    async def _kill_brokers(self) -> None:
        names = sorted(self._addresses)
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            await asyncio.sleep(self._random.uniform(*BETWEEN_S))
            await self._kill([self._random.choice(names)])
        await self._kill(names)
        # What comes after the last crash goes through as well.
        await asyncio.sleep(2 * HANDOVER_S)

    async def _kill(self, brokers: list[str]) -> None:
        self._overlay.kill(brokers)
        self._kills += len(brokers)
        await asyncio.sleep(self._random.uniform(*DEAD_S))
        await self._overlay.command("broker", "restart", *brokers)

    async def _until_all_arrived(self) -> None:
        deadline = time.monotonic() + ARRIVAL_S
        wanted = sum(publisher.published for publisher in self._publishers)
        while (
            len({event for worker in self._workers for event in worker.received}) < wanted
            and time.monotonic() < deadline
        ):
            await asyncio.sleep(LOOK_S)

    def _findings(self) -> Findings:
        received = {worker.name: worker.received for worker in self._workers}
        published = {(each.name, KEY): each.published for each in self._publishers}
        first_owners = {KEY: self._workers[0].name}
        lost, _, doubled, misrouted = judge(
            published, received, first_owners, self._moves, published
        )
        return Findings(
            sum(published.values()),
            len(self._moves),
            self._kills,
            lost,
            doubled,
            misrouted,
            disordered(received),
            self._broken,
        )


async def play(*, seconds: float, seed: int) -> Findings:
    with tempfile.TemporaryDirectory(prefix="trial-") as directory:
        overlay = Overlay(Path(directory))
        await overlay.command("up", "five", "--durability", "disk", "--free-ports", "--detach")
        try:
            return await Trial(overlay, seconds=seconds, seed=seed).run()
        finally:
            await overlay.command("down")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    findings = asyncio.run(play(seconds=args.seconds, seed=args.seed))
    print(findings)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(not findings.is_fine)


if __name__ == "__main__":
    main()
