"""Kill brokers of a running overlay at random moments of a run, and start them again at once.

The moments are shares of the run's progress and are drawn beforehand, so a seed gives the same
brokers at the same events. A broker is killed with SIGKILL, as a crash would end it: it has no
chance to write anything. It may be killed again while it is still reading its log.

This module must not know what runs meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from padres_tx.launcher import Running

#: How often the progress of the run is looked at: much shorter than a handover between brokers that
#: have to be started again.
LOOK_S = 0.005

#: All kills are over by this share of the run, so that brokers are back before clients leave: with
#: a single handover only two thirds of the events are published before a client may leave.
LAST_MOMENT = 0.6


class Kill(NamedTuple):
    """Brokers that are killed together when a run has come this far."""

    moment: float
    brokers: tuple[str, ...]


class BrokerKills:
    """The kills of one run: some of single brokers, and perhaps one of all of them."""

    def __init__(self, running: Running, *, singly: int, everyone: bool, seed: str) -> None:
        choose = random.Random(seed)
        names = tuple(broker.name for broker in running.topology.brokers)
        self._running = running
        plan = [
            Kill(choose.uniform(0, LAST_MOMENT), (choose.choice(names),)) for _ in range(singly)
        ]
        plan += [Kill(choose.uniform(0, LAST_MOMENT), names)] if everyone else []
        self._plan = sorted(plan)
        #: Brokers killed so far.
        self.count = 0
        self._over = asyncio.Event()
        if not plan:
            self._over.set()

    async def run(self, progress: Callable[[], float]) -> None:
        """Kill as planned; `progress` is what share of the run is done. Then wait until all is up.

        Raises LaunchError if a broker does not come back.
        """
        for kill in self._plan:
            while progress() < kill.moment:
                await asyncio.sleep(LOOK_S)
            # On a thread: the clients of the run go on meanwhile.
            await asyncio.to_thread(self._carry_out, kill.brokers)
            self.count += len(kill.brokers)
        if self._plan:
            await asyncio.to_thread(self._running.wait_up)
        self._over.set()

    async def over(self) -> None:
        """Wait until the last kill is over and all brokers are back."""
        await self._over.wait()

    def _carry_out(self, brokers: tuple[str, ...]) -> None:
        self._running.kill(*brokers)
        for broker in brokers:
            self._running.restart(broker)
