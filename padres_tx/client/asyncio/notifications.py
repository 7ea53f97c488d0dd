"""The notifications and gaps of a client: to its callbacks, or into a queue for its iterator.

A notification goes to the callbacks of the subscriptions that match it
(`padres_tx.client.holdings`), and to the callback of `notify`. One that no callback takes waits for
the iterator. Both queues have limits. A client that does not keep up stops acknowledging, its
broker's queue fills, and the broker disconnects it.

A gap (`overlay.messages.Gap`) goes to the callbacks of `on_gap`, and to the iterator only if that
asks for gaps: a program that does not know of them is not surprised, and a warning is logged.

Publications with a certain attribute can be intercepted (`Notifications.intercept`): an engine
without a half at brokers sends its tcms as such publications.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from overlay.messages import Gap
from padres_tx.client.asyncio.callbacks import Callbacks
from padres_tx.client.asyncio.error_reports import logger
from padres_tx.client.asyncio.requests import Requests
from padres_tx.client.session import Notification
from padres_tx.errors import CallTimeout, ClientClosed

#: Notifications that wait for the program, and the bytes of their payloads: a burst of a second or
#: so, in a size that any process can hold.
QUEUE_MESSAGES = 10_000
QUEUE_BYTES = 64 << 20


class Notifications:
    """The notifications of one client that the program has not taken yet."""

    def __init__(
        self,
        requests: Requests,
        callbacks: Callbacks,
        *,
        queue_messages: int = QUEUE_MESSAGES,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self._requests = requests
        self._callbacks = callbacks
        self._queue_messages = queue_messages
        self._queue_bytes = queue_bytes
        #: Bytes of the payloads in both queues.
        self._queued_bytes = 0
        #: For the iterator.
        self._queue: deque[Notification | Gap] = deque()
        #: Whether an iterator has asked for gaps.
        self._gaps_wanted = False
        #: Called with every gap.
        self.on_gap: list[Callable[[Gap], Any]] = []
        #: Called with every notification (Table 2's `notify`).
        self.notify: Callable[[Notification], Any] | None = None
        self._interceptors: dict[str, Callable[[Notification], bool]] = {}
        requests.handle(Notification, self.add)
        requests.handle(Gap, self.add_gap)
        requests.has_room = self.has_room
        callbacks.when_called = self._called

    def __len__(self) -> int:
        """How many wait for the iterator."""
        return len(self._queue)

    def has_room(self) -> bool:
        """Whether another notification may be added."""
        return (
            len(self._queue) < self._queue_messages
            and len(self._callbacks.waiting) < self._queue_messages
            and self._queued_bytes < self._queue_bytes
        )

    def intercept(self, attribute: str, interceptor: Callable[[Notification], bool]) -> None:
        """Call this first with notifications that have the attribute.

        A notification for which it returns True goes no further.
        """
        self._interceptors[attribute] = interceptor

    def add(self, notification: Notification) -> None:
        """Take a notification that has arrived."""
        for attribute, interceptor in self._interceptors.items():
            if attribute in notification.point and interceptor(notification):
                return
        self._queued_bytes += len(notification.payload)
        callbacks = self._requests.session.callbacks(notification)
        if self.notify is not None and self.notify not in callbacks:
            callbacks.append(self.notify)
        if callbacks:
            self._callbacks.add(notification, callbacks)
        else:
            self._queue.append(notification)
        self._requests.changed()

    def add_gap(self, gap: Gap) -> None:
        """Take a gap that has arrived."""
        self._callbacks.add(gap, list(self.on_gap))
        if self._gaps_wanted:
            self._queue_gap(gap)
        elif not self.on_gap:
            logger.warning("client %s: %s", self._requests.name, describe(gap))
        self._requests.changed()

    def _queue_gap(self, gap: Gap) -> None:
        """Queue a gap behind the last notification, or merge it with one that waits there: so gaps
        need no limit of their own."""
        for at in range(len(self._queue) - 1, -1, -1):
            other = self._queue[at]
            if not isinstance(other, Gap):
                break
            if other.broker == gap.broker:
                direction = gap.direction if other.direction == gap.direction else "both"
                self._queue[at] = Gap(gap.broker, gap.time, direction)
                return
        self._queue.append(gap)

    async def take(self, limit: int, *, timeout_s: float | None) -> list[Notification]:
        """At least one notification, and as many as there are, up to the limit.

        Raises CallTimeout, ClientClosed, ConnectionLost, SlowReader.
        """
        while True:
            taken = await self.take_all(limit, timeout_s=timeout_s, gaps=False)
            notifications = [each for each in taken if isinstance(each, Notification)]
            if notifications:
                return notifications

    async def take_all(
        self, limit: int, *, timeout_s: float | None, gaps: bool = True
    ) -> list[Notification | Gap]:
        """The same with gaps, if they are wanted; without, those that wait are dropped.

        Raises CallTimeout, ClientClosed, ConnectionLost, SlowReader.
        """
        if gaps:
            self._gaps_wanted = True
        else:
            self._drop_gaps()
        if not self._queue:
            # What has arrived but was not handed over counts, even if there is no time to wait.
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wait_for_one()
            except TimeoutError:
                name = self._requests.name
                raise CallTimeout(f"nothing came to {name} within {timeout_s:g} s") from None
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._make_room(sum(len(each.payload) for each in taken if isinstance(each, Notification)))
        return taken

    def _drop_gaps(self) -> None:
        while self._queue and isinstance(self._queue[0], Gap):
            self._queue.popleft()

    async def _wait_for_one(self) -> None:
        while not self._queue:
            if self._handed_over:
                self._requests.check()
            await self._requests.wait_change()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection, and for the callbacks of what came before it.

        Returns when the client is closed. Raises ConnectionLost, SlowReader.
        """
        while True:
            if self._handed_over and not self._callbacks.busy:
                try:
                    self._requests.check()
                except ClientClosed:
                    return
            await self._requests.wait_change()

    @property
    def _handed_over(self) -> bool:
        """Whether the channel has handed over all that has arrived."""
        return self._requests.closed or not self._requests.channel.waiting

    def _called(self, event: object) -> None:
        self._make_room(len(event.payload) if isinstance(event, Notification) else 0)

    def _make_room(self, size: int) -> None:
        self._queued_bytes -= size
        if self._requests.channel.waiting:
            self._requests.channel.pull()


def describe(gap: Gap) -> str:
    """A gap in words, for a log or a terminal."""
    what = {
        "in": "publications for it",
        "out": "publications of it",
        "both": "publications for it and of it",
    }[gap.direction]
    at = datetime.fromtimestamp(gap.time, UTC).isoformat(timespec="milliseconds")
    return f"{what} from before {at} may be lost: broker {gap.broker} has lost its memory"
