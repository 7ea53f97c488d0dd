"""Streams change hands on a random tree while connections break, a worker is killed, a broker dies.

    python -m tests.trials.handovers --brokers 12 --moves 60 --seed 1

Two publishers stream numbered events for some keys. Three workers, each a process of its own with
callbacks, write down what they get. Two coordinators move keys between the workers by D-TX and get
in each other's way on purpose. Clients' connections go through proxies that cut them at random.
After two thirds of the moves a worker is killed. At last a leaf broker is killed and stays dead:
clients come, streams and S-TX go on, and D-TX says which broker is missing.

The judge knows the events that were published, what each worker has written down, and the order in
which the moves were committed:

    lost        no worker has the event; not counted if the killed worker may have owned it
                and it was published less than KILL_MARGIN_S before the kill, or after
    doubled     two workers have it, or one has it twice
    misrouted   the owners of one publisher's events for a key do not follow the committed moves
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import padres_tx
from padres_tx import Client, TransactionAborted, static
from padres_tx.launcher import Running, overlay
from tests.trials.cutting import CuttingProxy
from tests.trials.worker import RECONNECT_S
from topologies.generators import random_tree

KEYS = ("k0", "k1", "k2", "k3")

#: What the coordinators move; the other key stays with the worker that is killed.
MOVED_KEYS = ("k0", "k1", "k3")
WORKERS = {"W1": "plain", "W2": "slow", "W3": "blocking"}
KILLED = "W3"
PUBLISHERS = ("P1", "P2")
COORDINATORS = ("C1", "C2")

#: Emulated delay of a link: operations of several brokers overlap, as they would on a network.
DELAY_MS = 3.0

#: A publisher pauses so long between two rounds over the keys.
PAUSE_S = 0.015

#: What a move may take, with all its attempts; the overlay notices a killed client after 10 s.
DEADLINE_S = 15.0
RETRIES = 20

#: An event may take so long from its publisher to the notes of its worker.
KILL_MARGIN_S = 2.0

#: How long the streams go on without the dead broker, and the last events may take to arrive.
AFTERWARDS_S = 3.0


class Event(NamedTuple):
    publisher: str
    key: str
    number: int


class Move(NamedTuple):
    """A committed transaction that gave a key to a worker."""

    tx: str
    key: str
    to: str


class Findings(NamedTuple):
    events: int
    moves: int
    cuts: int
    lost: list[Event]
    lost_with_killed: int
    doubled: list[Event]
    misrouted: list[Event]
    #: What else was not as promised.
    broken: list[str]

    @property
    def is_fine(self) -> bool:
        return not (self.lost or self.doubled or self.misrouted or self.broken)

    def __str__(self) -> str:
        counts = {
            name: len(value) if isinstance(value, list) else value
            for name, value in self._asdict().items()
        }
        shown = [
            f"{name}: {value[:5]}"
            for name, value in self._asdict().items()
            if isinstance(value, list) and value
        ]
        return "\n".join([json.dumps(counts), *shown])


# --- the judge ---


def judge(
    published: Mapping[tuple[str, str], int],
    received: Mapping[str, Sequence[Event]],
    first_owners: Mapping[str, str],
    moves: Sequence[Move],
    before_kill: Mapping[tuple[str, str], int],
) -> tuple[list[Event], int, list[Event], list[Event]]:
    """What is lost, lost with the killed worker, doubled, misrouted.

    `moves` are in the order of their commits; `before_kill` are the events that every worker was
    sure to have written down when one was killed.
    """
    owners_of: dict[Event, list[str]] = {}
    for worker, events in received.items():
        for event in events:
            owners_of.setdefault(event, []).append(worker)
    lost: list[Event] = []
    lost_with_killed = 0
    doubled = [event for event, owners in owners_of.items() if len(owners) > 1]
    misrouted: list[Event] = []
    for (publisher, key), count in sorted(published.items()):
        owners = [first_owners[key]]
        for move in moves:
            if move.key == key and move.to != owners[-1]:
                owners.append(move.to)
        at = 0
        for number in range(1, count + 1):
            event = Event(publisher, key, number)
            found = owners_of.get(event, [])
            if not found and KILLED in owners[at:] and number > before_kill[publisher, key]:
                lost_with_killed += 1
            elif not found:
                lost.append(event)
            elif found[0] in owners[at:]:
                at = owners.index(found[0], at)
            else:
                misrouted.append(event)
    return lost, lost_with_killed, doubled, misrouted


def read_notes(path: Path) -> tuple[list[Event], list[str], list[str]]:
    """The events, committed transactions and failures that a worker has written down."""
    events: list[Event] = []
    commits: list[str] = []
    failures: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            note = json.loads(line)
        except ValueError:
            continue  # The last line of a worker that was killed.
        if "event" in note:
            events.append(Event(*note["event"]))
        elif "end" in note and note["end"][1] == "committed":
            commits.append(note["end"][0])
        elif "failed" in note:
            failures.append(f"{path.stem} failed: {note['failed']}")
    return events, commits, failures


# --- the trial ---


class Trial:
    """One run; `run` plays it and returns the findings."""

    def __init__(self, running: Running, directory: Path, *, moves: int, seed: int) -> None:
        self._running = running
        self._directory = directory
        self._moves_wanted = moves
        self._random = random.Random(seed)
        brokers = [broker.name for broker in running.topology.brokers]
        leaves = [name for name in brokers if len(running.topology.neighbours(name)) == 1]
        #: The broker that dies at last; no client is there.
        self._leaf = self._random.choice(leaves)
        self._homes = [name for name in brokers if name != self._leaf]
        self._proxies: dict[str, CuttingProxy] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._first_owners = {key: list(WORKERS)[at % 3] for at, key in enumerate(KEYS)}
        self._published: Counter[tuple[str, str]] = Counter()
        self._before_kill: dict[tuple[str, str], int] = {}
        self._alive = list(WORKERS)
        self._begun = 0
        self._moves: list[Move] = []
        self._broken: list[str] = []
        self._over = asyncio.Event()

    async def run(self) -> Findings:
        async with contextlib.AsyncExitStack() as stack:
            for name in (*WORKERS, *PUBLISHERS, *COORDINATORS):
                home = self._running.address(self._random.choice(self._homes))
                self._proxies[name] = await stack.enter_async_context(CuttingProxy(home))
            stack.push_async_callback(self._end_workers)
            for worker, style in WORKERS.items():
                await self._start_worker(worker, style)
            publishers = [await self._connect(stack, name, "job") for name in PUBLISHERS]
            first, second = [await self._connect(stack, name, "move") for name in COORDINATORS]
            streams = [asyncio.create_task(self._stream(client)) for client in publishers]
            cutting = asyncio.create_task(self._cut_now_and_then())
            await asyncio.gather(self._coordinate(first), self._coordinate(second), self._kill())
            for key in KEYS:
                await self._rescue(first, key)
            await self._go_on_without_a_leaf(second)
            cutting.cancel()
            await asyncio.sleep(AFTERWARDS_S)
            self._over.set()
            await asyncio.gather(*streams)
            for client in publishers:
                await client.close()
            await asyncio.sleep(AFTERWARDS_S)
            await self._end_workers()
            self._broken += [str(crash) for crash in self._running.crashes()]
        return self._findings()

    async def _connect(self, stack: contextlib.AsyncExitStack, name: str, says: str) -> Client:
        at = self._proxies[name].address
        connecting = padres_tx.connect(at, name=name, reconnect_s=RECONNECT_S)
        client = await stack.enter_async_context(connecting)
        await client.advertise(f"[class,eq,'{says}']")
        return client

    # --- workers ---

    def _notes(self, worker: str) -> Path:
        return self._directory / f"{worker}.jsonl"

    async def _start_worker(self, worker: str, style: str) -> None:
        owns = ",".join(key for key, owner in self._first_owners.items() if owner == worker)
        command = [sys.executable, "-m", "tests.trials.worker", worker]
        command += [self._proxies[worker].address, str(self._notes(worker))]
        command += ["--style", style, "--owns", owns]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._processes[worker] = process
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        assert line == b"ready\n", f"{worker} did not start"

    async def _end_workers(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 20)
                except TimeoutError:
                    process.kill()

    async def _kill(self) -> None:
        while self._begun < self._moves_wanted * 2 // 3:
            await asyncio.sleep(0.05)
        self._before_kill = dict(self._published)
        self._alive.remove(KILLED)
        await asyncio.sleep(KILL_MARGIN_S)
        self._processes[KILLED].kill()
        await self._processes[KILLED].wait()

    # --- streams, cuts and moves ---

    async def _stream(self, client: Client) -> None:
        while not self._over.is_set():
            for key in KEYS:
                self._published[client.name, key] += 1
                number = self._published[client.name, key]
                await client.publish({"class": "job", "key": key, "n": number})
            await asyncio.sleep(PAUSE_S)

    async def _cut_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.2, 0.8))
            self._random.choice(list(self._proxies.values())).cut()

    async def _coordinate(self, client: Client) -> None:
        while self._begun < self._moves_wanted:
            self._begun += 1
            # Mostly the same two keys, so that the coordinators meet.
            keys = MOVED_KEYS[:2] if self._random.random() < 0.6 else MOVED_KEYS
            try:
                await self._move(
                    client, self._random.choice(keys), self._random.choice(self._alive)
                )
            except TransactionAborted as error:
                # The killed worker takes part in every move until the overlay misses it.
                if KILLED in self._alive or error.code != "left":
                    self._broken.append(str(error))
            await asyncio.sleep(self._random.uniform(0, 0.15))

    async def _move(self, client: Client, key: str, to: str) -> None:
        async for tx in client.transaction("d-tx", retries=RETRIES, deadline_s=DEADLINE_S):
            async with tx:
                tx.tcm({"class": "move", "key": key, "to": to})
                name = tx.id
        self._moves.append(Move(name, key, to))

    async def _rescue(self, client: Client, key: str) -> None:
        """Give a key to a worker that lives, as soon as the overlay misses the killed one."""
        to = self._random.choice(self._alive)
        try:
            await self._move(client, key, to)
        except TransactionAborted as error:
            if error.code != "left":
                raise
            await self._move(client, key, to)

    # --- one broker less ---

    async def _go_on_without_a_leaf(self, coordinator: Client) -> None:
        before = sum(self._published.values())
        self._running.kill(self._leaf)
        await asyncio.sleep(AFTERWARDS_S)
        at = self._running.address(self._random.choice(self._homes))
        async with padres_tx.connect(at, name="newcomer") as newcomer:
            await newcomer.advertise("[class,eq,'news']")
            await newcomer.subscribe("[class,eq,'job'],[key,eq,'none']")
        try:
            async with coordinator.transaction("d-tx", deadline_s=3) as tx:
                tx.tcm({"class": "move", "key": KEYS[0], "to": self._alive[0]})
            self._broken.append("a D-TX was committed without the vote of a dead broker")
        except TransactionAborted as error:
            if self._leaf not in error.reason:
                self._broken.append(f"the missing broker {self._leaf} is not named: {error}")
        async with coordinator.transaction("s-tx", deadline_s=10) as tx:
            planned = {self._alive[0]: [static.sub("[class,eq,'spare']")]}
            tx.tcm({"class": "move", "key": "none", "to": self._alive[0]}, ops=planned)
        if sum(self._published.values()) <= before:
            self._broken.append("the streams stood still without a leaf broker")

    def _findings(self) -> Findings:
        received: dict[str, list[Event]] = {}
        order: list[str] = []
        for worker in WORKERS:
            received[worker], commits, failures = read_notes(self._notes(worker))
            self._broken += failures
            # Every worker takes part in every move, so any that lived knows their order.
            order = commits if worker == self._alive[0] else order
        by_tx = {move.tx: move for move in self._moves}
        moves = [by_tx[tx] for tx in order if tx in by_tx]
        if len(moves) != len(self._moves):
            self._broken.append(f"{self._alive[0]} heard of {len(moves)} of {len(by_tx)} commits")
        found = judge(self._published, received, self._first_owners, moves, self._before_kill)
        return Findings(
            sum(self._published.values()),
            len(self._moves),
            sum(proxy.cuts for proxy in self._proxies.values()),
            *found,
            self._broken,
        )


@contextlib.asynccontextmanager
async def in_overlay(brokers: int, seed: int) -> AsyncIterator[tuple[Running, Path]]:
    topology = random_tree(brokers, seed=seed, delay_ms=DELAY_MS)
    with tempfile.TemporaryDirectory(prefix="trial-") as directory, overlay(topology) as running:
        yield running, Path(directory)


async def play(*, brokers: int, moves: int, seed: int) -> Findings:
    """Run the trial on a random tree."""
    async with in_overlay(brokers, seed) as (running, directory):
        return await Trial(running, directory, moves=moves, seed=seed).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", type=int, default=12)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    findings = asyncio.run(play(brokers=args.brokers, moves=args.moves, seed=args.seed))
    print(findings)
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(not findings.is_fine)


if __name__ == "__main__":
    main()
