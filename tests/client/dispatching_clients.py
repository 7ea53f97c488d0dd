"""The clients of Figure 1b, E, D and A1, each at a broker of its own, for tests of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

from overlay.messages import Done, EngineMessage
from padres_tx import client_messages, static
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.asyncio.handles import Part, Transaction
from padres_tx.client.session import Notification, Session
from padres_tx.testing.inprocess import InProcessOverlay

P = ParamSpec("P")

P1 = {"class": "p1"}
X1 = {"class": "p1", "x": "x1"}
ASSIGN = {"class": "assign"}
ASSIGN_X1 = {"class": "assign", "to": "A1", "x": "x1"}

DYNAMIC = ["d-tx", "d-tx-ni"]
#: The engines whose transactions are decided by a broker.
DECIDED = [*DYNAMIC, "s-tx"]


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **more: P.kwargs) -> None:
        asyncio.run(test(*args, **more))  # type: ignore[arg-type]

    return run


class Figure1bClients(NamedTuple):
    """The overlay, and its clients with what they hold before the dispatch."""

    overlay: InProcessOverlay
    e: Client
    d: Client
    a1: Client


@asynccontextmanager
async def dispatching_clients() -> AsyncIterator[Figure1bClients]:
    """E may publish p1, D receives all of it and may assign, A1 hears assignments."""
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("E", at="B1") as e,
        overlay.connect_async("D", at="B2") as d,
        overlay.connect_async("A1", at="B3") as a1,
    ):
        await e.advertise(P1)
        await d.advertise(ASSIGN)
        await d.subscribe(P1)
        await a1.subscribe({"class": "assign", "to": "A1"})
        d.on_tcm(P1, dispatch)
        a1.on_tcm(ASSIGN, take_over)
        yield Figure1bClients(overlay, e, d, a1)


def dispatch(tx: Part, notification: Notification) -> None:
    tx.tcm(ASSIGN_X1)
    tx.usub(X1)


def take_over(tx: Part, notification: Notification) -> None:
    tx.sub(X1)


def start(tx: Transaction) -> None:
    """Operations 1 to 5 of Figure 1b, as far as E has to say them."""
    ops = None
    if tx.engine == "s-tx":
        ops = {"D": [static.tcm(ASSIGN_X1, ops={"A1": [static.sub(X1)]}), static.usub(X1)]}
    tx.tcm({**X1, "n": 0}, ops=ops)
    tx.pub({**X1, "n": 1})


async def quiet(*clients: Client) -> None:
    """Let the clients take in what has arrived, and their callbacks and handlers run.

    The overlay itself is at rest after each call, so nothing else is under way.
    """
    while any(
        client._requests.channel.waiting
        or client._callbacks.waiting
        or client._driver.handlers._running
        for client in clients
    ):
        await asyncio.sleep(0)


async def numbers(client: Client) -> list[object]:
    """The numbers of all publications that have arrived for the iterator."""
    return [n["n"] async for n in client.notifications(timeout_s=0)]


def tables(overlay: InProcessOverlay) -> dict[str, Any]:
    """What all brokers hold, without the numbers, of which aborted operations leave gaps."""
    found = {}
    for name, broker in overlay.core.brokers.items():
        data = broker.routing.as_data(broker.versions.view())
        found[name] = {
            table: sorted(
                str({key: row[key] for key in sorted(row) if key != "seq"}) for row in data[table]
            )
            for table in ("srt", "prt")
        }
    return found


def assert_at_rest(overlay: InProcessOverlay) -> None:
    """No broker knows of a transaction any more."""
    for name, broker in overlay.core.brokers.items():
        for engine in broker.engines.values():
            assert not engine.transactions(), f"{name}: {engine.transactions()}"
        assert not broker.held and not broker.versions.open, name


class ManualBroker:
    """A channel whose broker is the test: it sees what a client says, and says what comes."""

    def __init__(self, engine: str = "d-tx") -> None:
        self.engine = engine
        self.received: list[Any] = []
        self.full = False
        self.outage = ""
        self.waiting = 0
        self.numbers = 0
        self.answer: Callable[[Any], list[Any]] = lambda message: []

    async def open(self, end: Client, timeout_s: float, *, retry: bool) -> None:
        self.end = end

    def send(self, message: object) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(message, EngineMessage):
            self.numbers += 1
            done = Done(message.req, number=self.numbers)  # type: ignore[attr-defined]
            loop.call_soon(self.end.receive, done)
            return
        assert message.engine == self.engine
        said = client_messages.from_client.decode(message.body)
        self.received.append(said)
        for told in self.answer(said):
            loop.call_soon(self.tell, told)

    def tell(self, message: client_messages.ToClient) -> None:
        body = client_messages.to_client.encode(message)
        self.end.receive(client_messages.engine_message(self.engine, body))

    def pull(self) -> None: ...

    async def close(self) -> None: ...

    def abort(self, error: Exception) -> None: ...


@asynccontextmanager
async def with_manual_broker() -> AsyncIterator[tuple[Client, ManualBroker]]:
    """E, whose broker is the test; it may publish p1."""
    channel = ManualBroker()
    async with Connecting(Client(Session("E"), channel), 1) as client:  # type: ignore[arg-type]
        await client.advertise(P1)
        yield client, channel
