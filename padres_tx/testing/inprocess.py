"""An overlay in the test's own process, with the same clients as over TCP.

    with InProcessOverlay("three") as overlay:
        a1 = overlay.connect("A1", at="B1")

Nothing is emulated: the brokers are the real cores and the clients the real clients; only the
way between them has no sockets (`LocalChannel`). The overlay comes to rest within each call, so
that a test needs no sleeps: what a publication leads to has arrived when `publish` returns, and
`client.next(timeout_s=0)` finds it, or shows that there is nothing. Transactions work as over TCP;
only, since nobody waits here, deadlines pass when the test says so (`overlay.core.advance`).

`padres_tx.testing` gives it to pytest as a fixture; this module does not know pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from overlay.errors import OverlayError, PeerError, ProtocolError, SlowReader
from overlay.hosts.inprocess import Attachment, InProcess
from overlay.messages import AnyMessage, Hop, client_hop
from overlay.wire.link import OUTBOX_MESSAGES, WINDOW_MESSAGES
from padres_tx.client.asyncio.channel import CONNECT_TIMEOUT_S, ChannelEnd
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.close_report import OnClose
from padres_tx.client.asyncio.connecting import Connecting, unique_name
from padres_tx.client.asyncio.error_reports import OnError
from padres_tx.client.asyncio.notifications import QUEUE_MESSAGES
from padres_tx.client.asyncio.operator import Operator
from padres_tx.client.session import Session
from padres_tx.errors import ConnectionLost
from padres_tx.registry import broker_factories, service_factories
from topologies import Topology, load

if TYPE_CHECKING:
    from padres_tx import sync

#: Messages that may wait for a client that does not read: as many as over TCP.
INBOX_MESSAGES = WINDOW_MESSAGES + OUTBOX_MESSAGES


class LocalChannel:
    """A channel to a broker of an in-process overlay."""

    def __init__(
        self, overlay: InProcess, broker: str, hop: Hop, *, inbox_messages: int = INBOX_MESSAGES
    ) -> None:
        self._overlay = overlay
        self._broker = broker
        self._hop = hop
        self._inbox_messages = inbox_messages
        self._inbox: deque[AnyMessage] = deque()
        self._attachment: Attachment | None = None

    # --- the client's side (padres_tx.client.asyncio.channel.Channel) ---

    async def open(self, end: ChannelEnd, timeout_s: float, *, retry: bool) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._attachment = self._overlay.attach(self._broker, self._hop, self)

    def send(self, message: AnyMessage) -> None:
        assert self._attachment is not None
        self._attachment.send(message)

    @property
    def full(self) -> bool:
        return False

    @property
    def waiting(self) -> int:
        return len(self._inbox)

    @property
    def outage(self) -> str:
        return ""

    def pull(self) -> None:
        try:
            while self._inbox and self._end.ready:
                self._end.receive(self._inbox.popleft())
        except ProtocolError as error:
            self._inbox.clear()
            self.abort(error)

    async def close(self) -> None:
        self._detach()

    def abort(self, error: OverlayError) -> None:
        self._detach()
        self._end.lost(error)

    def _detach(self) -> None:
        if self._attachment is not None:
            self._attachment.detach()

    # --- the overlay's side (overlay.hosts.inprocess.Port), from any thread ---

    def deliver(self, message: AnyMessage) -> None:
        if len(self._inbox) >= self._inbox_messages:
            raise SlowReader(f"{self._hop[1:]} has {len(self._inbox)} messages to read")
        self._inbox.append(message)
        try:
            # Never at once: a client must not receive while it sends.
            self._loop.call_soon_threadsafe(self.pull)
        except RuntimeError:
            raise PeerError(f"the event loop of {self._hop[1:]} has ended") from None

    def closed(self, error: OverlayError) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended, and the client with it.
            self._loop.call_soon_threadsafe(self._end.lost, error)


class InProcessOverlay:
    """The brokers of a topology in this process. `close` it, or use it with `with`."""

    def __init__(self, topology: Topology | str = "three", *, trace: bool = False) -> None:
        self.topology = load(topology) if isinstance(topology, str) else topology
        names = [broker.name for broker in self.topology.brokers]
        #: The brokers themselves, for a test that looks into their tables.
        self.core = InProcess(
            {name: self.topology.neighbours(name) for name in names},
            engines=broker_factories(),
            services=service_factories(self.topology.services),
            trace=trace,
        )
        self._blocking: list[sync.Client] = []

    def connect(
        self,
        name: str | None = None,
        *,
        at: str | None = None,
        on_error: OnError | None = None,
        on_close: sync.OnClose | None = None,
        queue_messages: int = QUEUE_MESSAGES,
    ) -> sync.Client:
        """A blocking client, connected to the broker `at`.

        Without `at` it goes where the topology places it, or else to the topology's first broker.

        Raises as `padres_tx.connect` does; TopologyError if there is no such broker.
        """
        # Here, because most asyncio tests need no thread.
        from padres_tx import sync

        client = sync.Client(
            self.connect_async(name, at=at, on_error=on_error, queue_messages=queue_messages),
            on_close=on_close,
        )
        self._blocking.append(client)
        return client

    def connect_async(
        self,
        name: str | None = None,
        *,
        at: str | None = None,
        on_error: OnError | None = None,
        on_close: OnClose | None = None,
        queue_messages: int = QUEUE_MESSAGES,
    ) -> Connecting[Client]:
        """An asyncio client, to be awaited or entered with `async with`, as `padres_tx.connect`."""
        session = Session(unique_name("client") if name is None else name)
        channel = LocalChannel(self.core, self._broker(session.name, at), client_hop(session.name))
        client = Client(
            session, channel, on_error=on_error, on_close=on_close, queue_messages=queue_messages
        )
        return Connecting(client, CONNECT_TIMEOUT_S)

    def operator_async(self, *, at: str | None = None) -> Connecting[Operator]:
        """An operator, as `padres_tx.operator`."""
        session = Session(unique_name("operator"))
        hop = Hop("?" + session.name)
        channel = LocalChannel(self.core, self._broker(session.name, at), hop)
        return Connecting(Operator(session, channel), CONNECT_TIMEOUT_S)

    def stop(self) -> None:
        """End all brokers, as if they had been shut down: clients see ConnectionLost."""
        self.core.stop(ConnectionLost("the overlay has been stopped"))

    def close(self) -> None:
        """Close the blocking clients that are still open, and stop."""
        with contextlib.ExitStack() as stack:  # All of them, even if one raises.
            stack.callback(self.stop)
            for client in self._blocking:
                stack.callback(client.close)
            self._blocking.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _broker(self, name: str, at: str | None) -> str:
        if at is None:
            at = self.topology.clients.get(name, self.topology.brokers[0].name)
        return self.topology.broker(at).name
