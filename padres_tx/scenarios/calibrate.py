"""Find the smallest wait with which BL-WAIT happens to work on an overlay (Section 7).

BL-WAIT is only as good as its wait, and the wait depends on the overlay. What is tried is
dispatching (Figure 1b): E's publication must reach the agent that D has assigned it to, and nobody
else. A wait is good if so many transactions in a row have gone right with it, and if the wait that
is one step smaller has failed; one that has ever failed is not good, whatever it did later.

From a high start the wait is halved until it fails, then bisected down to a step. These are short
trials, whose failures count and whose successes do not. From there it goes up, step by step, to
the first wait that passes a whole trial.

That a publication did *not* come is known without waiting: E rings a bell after it, and links are
FIFO.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import msgspec
import networkx as nx

from padres_tx.client.asyncio.client import Client, connect
from padres_tx.client.session import Notification
from padres_tx.engines.bl_wait import WAIT_LIMIT_S
from padres_tx.errors import CallTimeout
from padres_tx.launcher import Running
from padres_tx.scenarios.placement import spread
from topologies import Topology

#: Where the search begins, and how many transactions have to go right; the paper's were 2 s and
#: 1000, with a step of 50 ms.
START_MS = 2000.0
TRANSACTIONS = 100

#: The step, in parts of the longest way through the overlay. Timers are no finer than a
#: millisecond, so neither is the smallest step.
STEP_SHARE = 0.1
STEP_MS = 1.0

#: How long a short trial may take: with a wait of seconds it is one transaction, with few
#: milliseconds a hundred or so.
PROBE_S = 1.0

#: No wait at all is not among the engine's, but as good as.
NO_WAIT_S = 1e-6

#: On a quiet machine each step takes milliseconds; a calibration must end all the same.
ANSWER_S = 30.0

INSTANCES = "[class,eq,'p1']"
BELLS = "[class,eq,'bell']"

#: Told which wait is tried, and how many transactions have gone right with it.
Progress: TypeAlias = Callable[[float, int], None]


class CalibrationError(Exception):
    """No wait works; the message is a line for the person who asked."""


class Trial(msgspec.Struct, frozen=True):
    """One wait, how many transactions were tried with it, and what went wrong in the last."""

    wait_ms: float
    transactions: int
    failure: str = ""


class Calibration(msgspec.Struct, frozen=True):
    """The smallest wait that works, and how it was found."""

    topology: str
    wait_ms: float
    step_ms: float
    transactions: int
    #: The trial one step below, which has failed; None if no wait is needed.
    failed: Trial | None
    trials: list[Trial]
    took_s: float


async def run(
    running: Running,
    *,
    transactions: int = TRANSACTIONS,
    step_ms: float | None = None,
    start_ms: float = START_MS,
    progress: Progress = lambda wait_ms, done: None,
) -> Calibration:
    """Calibrate BL-WAIT on a running overlay; the step fits the topology unless it is given.

    Raises CalibrationError, and what clients raise if a broker goes.
    """
    began_at = time.monotonic()
    step_ms = fitting_step_ms(running.topology) if step_ms is None else step_ms
    trials: list[Trial] = []
    async with AsyncExitStack() as stack:
        dispatching = Dispatching(*await _clients(stack, running))
        await dispatching.start()

        async def works(steps: int, count: int) -> bool:
            wait_ms = round(steps * step_ms, 3)
            trials.append(await dispatching.trial(wait_ms, count, progress))
            return not trials[-1].failure

        steps = await search(works, _steps(start_ms, step_ms), transactions, step_ms)
    wait_ms = round(steps * step_ms, 3)
    below = round((steps - 1) * step_ms, 3)
    return Calibration(
        running.topology.name,
        wait_ms,
        step_ms,
        transactions,
        next((trial for trial in trials if trial.wait_ms == below and trial.failure), None),
        trials,
        round(time.monotonic() - began_at, 3),
    )


async def search(works: Any, start: int, transactions: int, step_ms: float) -> int:
    """The smallest wait, in steps, with which `works(steps, transactions)`.

    Raises CalibrationError if there is none.
    """

    def probe(steps: int) -> int:
        wait_ms = max(steps * step_ms, STEP_MS)
        return max(1, min(transactions, int(PROBE_S * 1000 / wait_ms)))

    limit = _steps(WAIT_LIMIT_S * 1000, step_ms)
    good = min(start, limit)
    while not await works(good, probe(good)):
        if good == limit:
            raise CalibrationError(f"not even a wait of {WAIT_LIMIT_S:g} s works")
        good = min(2 * good, limit)
    # What fails lies between `bad` and `good`; -1 is below what can be tried.
    bad = -1
    while good - bad > 1:
        middle = good // 2 if bad < 0 else (good + bad) // 2
        if await works(middle, probe(middle)):
            good = middle
        else:
            bad = middle
    while not await works(good, transactions):
        if good == limit:
            raise CalibrationError(f"not even a wait of {WAIT_LIMIT_S:g} s works")
        good += 1
    return good


def fitting_step_ms(topology: Topology) -> float:
    """A share of the delay on the longest way from client to client."""
    lengths = nx.all_pairs_dijkstra_path_length(topology.graph(), weight="delay_ms")
    longest_ms = max(max(to.values()) for _, to in lengths) + 2 * topology.client_delay_ms
    return round(max(longest_ms * STEP_SHARE, STEP_MS), 1)


def _steps(wait_ms: float, step_ms: float) -> int:
    return max(1, math.ceil(wait_ms / step_ms))


# --- dispatching --------------------------------------------------------------------------------


async def _clients(stack: AsyncExitStack, running: Running) -> list[Client]:
    names = ("E", "D", "A1", "A2")
    places = spread(running.topology, len(names))
    return [
        # An operation that comes too late may well be refused: that is what is tried here.
        await stack.enter_async_context(
            connect(running.address(place), name=name, on_error=lambda error: None)
        )
        for name, place in zip(names, places, strict=True)
    ]


class Dispatching:
    """Figure 1b with BL-WAIT, again and again, with two agents in turn."""

    def __init__(self, environment: Client, dispatcher: Client, *agents: Client) -> None:
        self._environment = environment
        self._dispatcher = dispatcher
        self._agents = {agent.name: agent for agent in agents}
        self._hearers = {client.name: client for client in (dispatcher, *agents)}
        self._news = asyncio.Event()
        #: Who has received what: operation 5 of an instance, its bell, a transaction's end.
        self._seen: set[tuple[str, str, Any]] = set()
        self._number = 0

    async def start(self) -> None:
        """Let everybody say what they publish and want."""
        environment, dispatcher = self._environment, self._dispatcher
        await environment.advertise(INSTANCES)
        await environment.advertise(BELLS)
        await dispatcher.advertise("[class,eq,'assign']")
        for client in self._hearers.values():
            self._listen(client)
            await client.subscribe(BELLS)
        for agent in self._agents.values():
            await agent.subscribe(f"[class,eq,'assign'],[agent,eq,'{agent.name}']")
            agent.on_tcm(None, lambda tx, tcm: tx.sub(_instance(tcm["x"])) and None)
        dispatcher.on_tcm(None, self._dispatch)
        await dispatcher.subscribe(INSTANCES)

    def _listen(self, client: Client) -> None:
        def notified(notification: Notification) -> None:
            self._see(client.name, str(notification["class"]), notification["x"])

        client.notify(notified)
        client.on_end(lambda result: self._see(client.name, "end", result.tx))

    def _see(self, name: str, what: str, of: Any) -> None:
        self._seen.add((name, what, of))
        self._news.set()
        self._news.clear()

    def _dispatch(self, tx: Any, tcm: Notification) -> None:
        tx.tcm({"class": "assign", "agent": self._agent(tcm["x"]), "x": tcm["x"]})
        tx.usub(_instance(tcm["x"]))

    def _agent(self, number: Any) -> str:
        return list(self._agents)[int(number) % len(self._agents)]

    async def trial(self, wait_ms: float, count: int, progress: Progress) -> Trial:
        """Try a wait, up to the first transaction that goes wrong."""
        for done in range(count):
            progress(wait_ms, done)
            failure = await self._transaction(max(wait_ms / 1000, NO_WAIT_S))
            if failure:
                return Trial(wait_ms, done + 1, failure)
        return Trial(wait_ms, count)

    async def _transaction(self, wait_s: float) -> str:
        """One dispatching; answers what went wrong, or ""."""
        self._number += 1
        number, agent = self._number, self._agent(self._number)
        async with self._environment.transaction("bl-wait", wait_s=wait_s) as tx:
            tx.tcm({"class": "p1", "x": number, "op": 1})
            tx.pub({"class": "p1", "x": number, "op": 5})
        await self._environment.publish({"class": "bell", "x": number})
        await self._until({(name, "bell", number) for name in self._hearers})
        got = [name for name in self._hearers if (name, "p1", number) in self._seen]
        # The rest is to have all as before: whoever acts late must have acted.
        await self._until({(self._dispatcher.name, "end", tx.id), (agent, "end", tx.id)})
        await self._agents[agent].unsubscribe(_instance(number))
        await self._dispatcher.subscribe(INSTANCES)
        self._seen.clear()
        if got == [agent]:
            return ""
        return f"the publication went to {' and '.join(got) or 'nobody'}, not to {agent}"

    async def _until(self, seen: set[tuple[str, str, Any]]) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                while not seen <= self._seen:
                    await self._news.wait()
        except TimeoutError:
            missing = ", ".join(sorted({f"{name}'s {what}" for name, what, _ in seen - self._seen}))
            raise CallTimeout(f"after {ANSWER_S:g} s without {missing}") from None


def _instance(number: Any) -> str:
    return f"[class,eq,'p1'],[x,eq,{number}]"
