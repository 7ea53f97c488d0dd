"""The notifications of a client: to its callbacks, or into a queue for its iterator.

A notification goes to the callbacks of the subscriptions that match it
(`padres_tx.client.holdings`), and to the callback of `notify`. One that no callback takes waits for
the iterator. Both queues have limits. A client that does not keep up stops acknowledging, its
broker's queue fills, and the broker disconnects it.

Publications with a certain attribute can be intercepted (`Notifications.intercept`): an engine
without a half at brokers sends its tcms as such publications.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from padres_tx.client.asyncio.callbacks import Callbacks
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
        self._queue: deque[Notification] = deque()
        #: Called with every notification (Table 2's `notify`).
        self.notify: Callable[[Notification], Any] | None = None
        self._interceptors: dict[str, Callable[[Notification], bool]] = {}
        requests.handle(Notification, self.add)
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

    async def take(self, limit: int, *, timeout_s: float | None) -> list[Notification]:
        """At least one notification, and as many as there are, up to the limit.

        Raises CallTimeout, ClientClosed, ConnectionLost, SlowReader.
        """
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
        self._make_room(sum(len(notification.payload) for notification in taken))
        return taken

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
