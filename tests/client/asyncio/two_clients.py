"""Clients for the asyncio tests: A1 receives, E publishes; or a channel that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from overlay.messages import Done
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.session import Notification, Session
from padres_tx.testing.inprocess import InProcessOverlay

P1 = {"class": "p1"}
X1 = {"class": "p1", "x": "x1"}


def asynchronous(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


@asynccontextmanager
async def two_clients() -> AsyncIterator[tuple[Client, Client]]:
    """A1 at one end of the overlay, and E at the other, having advertised all of p1."""
    overlay = InProcessOverlay("three")
    async with overlay.connect_async("A1", at="B1") as a1, overlay.connect_async("E", at="B3") as e:
        await e.advertise(P1)
        yield a1, e


class ManualChannel:
    """A channel whose broker is the test: it sees what is sent, and says what comes."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.full = False
        self.outage = ""
        self.waiting = 0
        self.closed = False

    async def open(self, end: Client, timeout_s: float, *, retry: bool) -> None:
        self.end = end

    def send(self, message: object) -> None:
        self.sent.append(message)
        if len(self.sent) == 1:  # The join.
            self.end.receive(Done(1))

    def pull(self) -> None: ...

    async def close(self) -> None:
        self.closed = True

    def abort(self, error: Exception) -> None:
        self.closed = True


def on_channel(channel: ManualChannel, **options: Any) -> Client:
    """A client on the test's own channel, which stands in for a real one."""
    stand_in: Any = channel
    return Client(Session("A1"), stand_in, **options)


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[Client, ManualChannel]]:
    """A client whose broker is the test."""
    channel = ManualChannel()
    async with Connecting(on_channel(channel), 1) as client:
        yield client, channel


async def received(client: Client) -> list[Notification]:
    """All that has arrived for the iterator."""
    return [notification async for notification in client.notifications(timeout_s=0)]
