"""Find the smallest wait with which BL-WAIT works on an overlay (Section 7 of the paper).

The wait that BL-WAIT needs depends on the overlay. It is tested with dispatching (Figure 1b): E's
publication must reach the agent that D assigned, and no other client. A wait is accepted if a given
number of transactions in a row succeed with it, and if the wait that is one step smaller has
failed; a wait that has ever failed is not accepted.

From a high start the wait is halved until it fails, then bisected down to one step. These trials
are short; only their failures count. From there the wait is increased step by step to the first one
that passes a full trial.

That a publication did *not* arrive is known without waiting: E publishes an end mark after it, and
links are FIFO.
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

#: The first wait of the search, and how many transactions must succeed; the paper used 2 s and
#: 1000, with a step of 50 ms.
START_MS = 2000.0
TRANSACTIONS = 100

#: The step as a share of the delay of the longest path, and the smallest step: timers are no finer
#: than a millisecond.
STEP_SHARE = 0.1
STEP_MS = 1.0

#: How long a short trial may take: one transaction with a wait of seconds, about a hundred with a
#: wait of a few milliseconds.
PROBE_S = 1.0

#: The engine accepts no wait of 0; this is as good.
NO_WAIT_S = 1e-6

#: How long one transaction may take: milliseconds on a quiet machine, but a calibration must end.
TRANSACTION_S = 30.0

INSTANCES = "[class,eq,'p1']"
END_MARKS = "[class,eq,'end mark']"

#: Called with the wait of the current trial and the number of transactions that have succeeded.
CalibrationProgress: TypeAlias = Callable[[float, int], None]


class CalibrationError(Exception):
    """No wait works; the message is one line for the user."""


class WaitTrial(msgspec.Struct, frozen=True):
    """One wait, the number of transactions tried with it, and how the last one failed."""

    wait_ms: float
    transactions: int
    failure: str = ""


class Calibration(msgspec.Struct, frozen=True):
    """The smallest wait that works, and how it was found."""

    topology: str
    wait_ms: float
    step_ms: float
    transactions: int
    #: The trial one step below, which failed; None if no wait is needed.
    failed: WaitTrial | None
    trials: list[WaitTrial]
    took_s: float


async def run(
    running: Running,
    *,
    transactions: int = TRANSACTIONS,
    step_ms: float | None = None,
    start_ms: float = START_MS,
    progress: CalibrationProgress = lambda wait_ms, done: None,
) -> Calibration:
    """Calibrate BL-WAIT on a running overlay; by default the step fits the topology.

    Raises CalibrationError, and the errors of clients whose broker has gone.
    """
    began_at = time.monotonic()
    step_ms = fitting_step_ms(running.topology) if step_ms is None else step_ms
    trials: list[WaitTrial] = []
    async with AsyncExitStack() as stack:
        dispatching = CalibrationClients(*await _clients(stack, running))
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
    """Return the smallest wait, in steps, for which `works(steps, transactions)` is true.

    Raises CalibrationError if there is none.
    """

    def probe(steps: int) -> int:
        wait_ms = max(steps * step_ms, STEP_MS)
        return max(1, min(transactions, int(PROBE_S * 1000 / wait_ms)))

    limit = _steps(WAIT_LIMIT_S * 1000, step_ms)
    good = min(start, limit)
    while not await works(good, probe(good)):
        if good == limit:
            raise CalibrationError(f"even the longest wait, {WAIT_LIMIT_S:g} s, does not work")
        good = min(2 * good, limit)
    # `bad` has failed, or is -1, which is below the smallest wait; `good` has not failed yet.
    bad = -1
    while good - bad > 1:
        middle = good // 2 if bad < 0 else (good + bad) // 2
        if await works(middle, probe(middle)):
            good = middle
        else:
            bad = middle
    while not await works(good, transactions):
        if good == limit:
            raise CalibrationError(f"even the longest wait, {WAIT_LIMIT_S:g} s, does not work")
        good += 1
    return good


def fitting_step_ms(topology: Topology) -> float:
    """Return a share of the delay of the longest path between two clients."""
    lengths = nx.all_pairs_dijkstra_path_length(topology.graph(), weight="delay_ms")
    longest_ms = max(max(to.values()) for _, to in lengths) + 2 * topology.client_delay_ms
    return round(max(longest_ms * STEP_SHARE, STEP_MS), 1)


def _steps(wait_ms: float, step_ms: float) -> int:
    return max(1, math.ceil(wait_ms / step_ms))


# --- dispatching --------------------------------------------------------------------------------


async def _clients(stack: AsyncExitStack, running: Running) -> list[Client]:
    names = ("E", "D", "A1", "A2")
    brokers = spread(running.topology, len(names))
    return [
        # An operation that comes too late may be refused: that is what a trial finds out.
        await stack.enter_async_context(
            connect(running.address(broker), name=name, on_error=lambda error: None)
        )
        for name, broker in zip(names, brokers, strict=True)
    ]


class CalibrationClients:
    """The clients of Figure 1b, which repeat dispatching with BL-WAIT and two agents in turn."""

    def __init__(self, environment: Client, dispatcher: Client, *agents: Client) -> None:
        self._environment = environment
        self._dispatcher = dispatcher
        self._agents = {agent.name: agent for agent in agents}
        self._receivers = {client.name: client for client in (dispatcher, *agents)}
        self._changed = asyncio.Event()
        #: What each client has received: operation 5 of an instance, its end mark, and the end of a
        #: transaction.
        self._seen: set[tuple[str, str, Any]] = set()
        self._number = 0

    async def start(self) -> None:
        """Advertise and subscribe."""
        environment, dispatcher = self._environment, self._dispatcher
        await environment.advertise(INSTANCES)
        await environment.advertise(END_MARKS)
        await dispatcher.advertise("[class,eq,'assign']")
        for client in self._receivers.values():
            self._listen(client)
            await client.subscribe(END_MARKS)
        for agent in self._agents.values():
            await agent.subscribe(f"[class,eq,'assign'],[agent,eq,'{agent.name}']")
            agent.on_tcm(None, lambda tx, tcm: tx.sub(_instance(tcm["x"])) and None)
        dispatcher.on_tcm(None, self._dispatch)
        await dispatcher.subscribe(INSTANCES)

    def _listen(self, client: Client) -> None:
        def notified(notification: Notification) -> None:
            self._note(client.name, str(notification["class"]), notification["x"])

        client.notify(notified)
        client.on_end(lambda result: self._note(client.name, "end", result.tx))

    def _note(self, name: str, what: str, of: Any) -> None:
        self._seen.add((name, what, of))
        self._changed.set()
        self._changed.clear()

    def _dispatch(self, tx: Any, tcm: Notification) -> None:
        tx.tcm({"class": "assign", "agent": self._agent(tcm["x"]), "x": tcm["x"]})
        tx.usub(_instance(tcm["x"]))

    def _agent(self, number: Any) -> str:
        return list(self._agents)[int(number) % len(self._agents)]

    async def trial(self, wait_ms: float, count: int, progress: CalibrationProgress) -> WaitTrial:
        """Try a wait until the first transaction that fails."""
        for done in range(count):
            progress(wait_ms, done)
            failure = await self._transaction(max(wait_ms / 1000, NO_WAIT_S))
            if failure:
                return WaitTrial(wait_ms, done + 1, failure)
        return WaitTrial(wait_ms, count)

    async def _transaction(self, wait_s: float) -> str:
        """Run one dispatching transaction; returns how it failed, or ""."""
        self._number += 1
        number, agent = self._number, self._agent(self._number)
        async with self._environment.transaction("bl-wait", wait_s=wait_s) as tx:
            tx.tcm({"class": "p1", "x": number, "op": 1})
            tx.pub({"class": "p1", "x": number, "op": 5})
        await self._environment.publish({"class": "end mark", "x": number})
        await self._until({(name, "end mark", number) for name in self._receivers})
        got = [name for name in self._receivers if (name, "p1", number) in self._seen]
        # Restore the initial state, after clients that act late have acted.
        await self._until({(self._dispatcher.name, "end", tx.id), (agent, "end", tx.id)})
        await self._agents[agent].unsubscribe(_instance(number))
        await self._dispatcher.subscribe(INSTANCES)
        self._seen.clear()
        if got == [agent]:
            return ""
        return f"the publication reached {' and '.join(got) or 'no client'} instead of {agent}"

    async def _until(self, seen: set[tuple[str, str, Any]]) -> None:
        try:
            async with asyncio.timeout(TRANSACTION_S):
                while not seen <= self._seen:
                    await self._changed.wait()
        except TimeoutError:
            missing = ", ".join(sorted({f"{name}'s {what}" for name, what, _ in seen - self._seen}))
            raise CallTimeout(
                f"timed out after {TRANSACTION_S:g} s waiting for {missing}"
            ) from None


def _instance(number: Any) -> str:
    return f"[class,eq,'p1'],[x,eq,{number}]"
