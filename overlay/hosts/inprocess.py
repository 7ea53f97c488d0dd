"""The brokers of a tree in one process, without sockets, for tests.

Every message goes through the codec and through one queue, so each link is FIFO, and each call
runs until nothing is left to do: when it returns, the overlay is at rest. There is no clock: time
moves when somebody moves it (`advance`), and only then do timers run out; those without delay,
which cut long work into slices, run out within the call.

It can be used from several threads: one works at a time, and the others wait. A port is called
from whichever thread that is.

A link between two brokers can be cut and mended (`cut`, `mend`); it keeps what it is given.

This module knows no sessions. For links that are slow or reordered there is the simulator.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from overlay.broker.core import Broker
from overlay.broker.engine import EngineFactory
from overlay.broker.service import ServiceFactory
from overlay.effects import CancelTimer, Close, Effect, Forward, Send, SetTimer
from overlay.errors import NameTaken, OverlayError, PeerError, from_code
from overlay.hosts.settings import ABSENT_AFTER_S
from overlay.messages import AnyMessage, BrokerName, Hop, Message, is_client
from overlay.trace import Record
from overlay.wire.codec import decode, encode
from overlay.wire.frames import PREFIX_SIZE, pack


class Port(Protocol):
    """What the overlay needs of a client or operator that is attached to it."""

    def deliver(self, message: AnyMessage) -> None:
        """Take a message. Raises PeerError (SlowReader, say) to be detached with that reason."""
        ...

    def closed(self, error: OverlayError) -> None:
        """The overlay has detached the port, for this reason."""
        ...


class Attachment:
    """A port at a broker. What it says after it was detached is heard by nobody."""

    __slots__ = ("_overlay", "broker", "hop", "port")

    def __init__(self, overlay: InProcess, broker: BrokerName, hop: Hop, port: Port) -> None:
        self._overlay = overlay
        self.broker = broker
        self.hop = hop
        self.port = port

    def send(self, message: AnyMessage) -> None:
        """Say something to the broker, and let the overlay come to rest.

        Raises FrameTooLarge.
        """
        # Packed, for the limit on what a client may send.
        self._overlay.take(self, pack(message)[PREFIX_SIZE:])

    def detach(self) -> None:
        """Leave; nothing happens if that has happened already."""
        self._overlay.leave(self)


class InProcess:
    """An overlay in one process. `attach` a port and let it say something, first of all a Join."""

    def __init__(
        self,
        neighbours: Mapping[str, Iterable[str]],
        *,
        engines: Mapping[str, EngineFactory] | None = None,
        services: Mapping[str, ServiceFactory] | None = None,
        trace: bool = False,
    ) -> None:
        self.now = 0.0
        self.brokers = {
            BrokerName(name): Broker(
                BrokerName(name),
                map(BrokerName, others),
                engines=engines,
                services=services,
                trace=trace,
            )
            for name, others in neighbours.items()
        }
        #: What the brokers recorded, with `trace`.
        self.records: list[Record] = []
        self._attached: dict[tuple[BrokerName, Hop], Attachment] = {}
        # What is left to do while a call runs: who has something to be received, from whom. Empty
        # between calls, and never longer than what one message from outside sets off.
        self._queue: deque[tuple[BrokerName, BrokerName | Attachment, bytes]] = deque()
        self._timers: dict[tuple[BrokerName, str], float] = {}
        # What links that are cut keep, by source and destination, and when each end will be told
        # that the other cannot be reached; None when it has been.
        self._kept: dict[tuple[BrokerName, BrokerName], deque[bytes]] = {}
        self._absences: dict[tuple[BrokerName, BrokerName], float | None] = {}
        self._lock = threading.RLock()
        self._running = False

    def attach(self, broker: str, hop: Hop, port: Port) -> Attachment:
        """Connect a client ("@" and its name) or an operator ("?" and anything) to a broker.

        Raises NameTaken if the broker has it already, KeyError if there is no such broker.
        """
        with self._lock:
            name = BrokerName(broker)
            if name not in self.brokers:
                raise KeyError(f"no broker {broker!r}; there are {', '.join(self.brokers)}")
            if (name, hop) in self._attached:
                raise NameTaken(f"{hop[1:]!r} is connected to {broker} already")
            attachment = self._attached[name, hop] = Attachment(self, name, hop, port)
            return attachment

    def cut(self, one: str, other: str) -> None:
        """Cut the link between two brokers, until `mend`; it keeps what they say to each other.

        They go on without each other when so much time has passed as in production.

        Raises KeyError if they are no neighbours.
        """
        with self._lock:
            for end, neighbour in self._ends(one, other):
                self._kept.setdefault((end, neighbour), deque())
                self._absences.setdefault((end, neighbour), self.now + ABSENT_AFTER_S)

    def mend(self, one: str, other: str) -> None:
        """Let a link that was cut go on where it was; the overlay comes to rest.

        Raises KeyError if they are no neighbours.
        """
        with self._lock:
            ends = self._ends(one, other)
            kept = {pair: self._kept.pop(pair, deque()) for pair in ends}
            for end, neighbour in ends:
                if self._absences.pop((end, neighbour), self.now) is None:
                    self._carry_out(end, self.brokers[end].link_up(neighbour, self.now))
            for (source, dest), bodies in kept.items():
                self._queue.extend((dest, source, body) for body in bodies)
            self._run()

    def _ends(self, one: str, other: str) -> list[tuple[BrokerName, BrokerName]]:
        for end, neighbour in ((one, other), (other, one)):
            if Hop(neighbour) not in self.brokers[BrokerName(end)].routing.neighbours:
                raise KeyError(f"{neighbour} is no neighbour of {end}")
        ends = (BrokerName(one), BrokerName(other))
        return [ends, ends[::-1]]

    def advance(self, seconds: float) -> None:
        """Let time pass: timers run out in their order, and the overlay comes to rest each time."""
        with self._lock:
            until = self.now + seconds
            while (due := self._next_due()) is not None and due <= until:
                self.now = max(self.now, due)
                self._ring(due)
                self._run()
            self.now = until

    def _next_due(self) -> float | None:
        absences = (at for at in self._absences.values() if at is not None)
        return min((*self._timers.values(), *absences), default=None)

    def _ring(self, due: float) -> None:
        """Let the first of those run out that are due."""
        for ends, at in self._absences.items():
            if at == due:
                self._absences[ends] = None
                end, neighbour = ends
                self._carry_out(end, self.brokers[end].link_down(neighbour, self.now))
                return
        self._wake(next(timer for timer, at in self._timers.items() if at == due))

    def stop(self, error: OverlayError) -> None:
        """Detach everybody with this reason."""
        with self._lock:
            for attachment in list(self._attached.values()):
                self._close(attachment, error)
            self._run()

    # --- for attachments ---

    def take(self, attachment: Attachment, body: bytes) -> None:
        """A port has said something."""
        with self._lock:
            self._queue.append((attachment.broker, attachment, body))
            self._run()

    def leave(self, attachment: Attachment) -> None:
        """A port goes, if it is there."""
        with self._lock:
            if self._is_attached(attachment):
                self._forget(attachment)
                self._run()

    def _is_attached(self, attachment: Attachment) -> bool:
        return self._attached.get((attachment.broker, attachment.hop)) is attachment

    # --- running ---

    def _run(self) -> None:
        if self._running:
            return  # A port has called us from `deliver`: the call that runs will do it.
        self._running = True
        try:
            while True:
                while self._queue:
                    broker, source, body = self._queue.popleft()
                    if isinstance(source, Attachment):
                        self._receive(source, body)
                    else:
                        taken = self.brokers[broker].take(Hop(source), [_read(body)], self.now)
                        self._carry_out(broker, taken.effects, body)
                # A timer without delay is long work that goes on, behind what is on its way.
                due = next((key for key, at in self._timers.items() if at <= self.now), None)
                if due is None:
                    break
                self._wake(due)
        finally:
            self._running = False

    def _wake(self, timer: tuple[BrokerName, str]) -> None:
        del self._timers[timer]
        broker, key = timer
        self._carry_out(broker, self.brokers[broker].wake(key, self.now))

    def _receive(self, source: Attachment, body: bytes) -> None:
        if not self._is_attached(source):
            return
        core = self.brokers[source.broker]
        try:
            taken = core.take(source.hop, [_read(body)], self.now)
        except PeerError as error:
            self._close(source, error)
        else:
            self._carry_out(source.broker, taken.effects, body)

    def _carry_out(self, broker: BrokerName, effects: list[Effect], body: bytes = b"") -> None:
        """Carry out effects in their order; `body` is the message that led to them."""
        for effect in effects:
            match effect:
                case Forward():
                    for hop in effect.hops:
                        self._forward(broker, hop, body)
                case Send():
                    body = encode(effect.message)
                    for hop in effect.hops:
                        self._forward(broker, hop, body)
                case Close():
                    attachment = self._attached.get((broker, effect.hop))
                    if attachment is not None:
                        self._close(attachment, from_code(effect.code, effect.reason))
                case SetTimer():
                    self._timers[broker, effect.key] = self.now + effect.delay_s
                case CancelTimer():
                    self._timers.pop((broker, effect.key), None)
                case Record():
                    self.records.append(effect)

    def _forward(self, broker: BrokerName, hop: Hop, body: bytes) -> None:
        if (neighbour := BrokerName(hop)) in self.brokers:
            kept = self._kept.get((broker, neighbour))
            if kept is not None:
                kept.append(body)
            else:
                self._queue.append((neighbour, broker, body))
            return
        attachment = self._attached.get((broker, hop))
        if attachment is not None:
            try:
                attachment.port.deliver(_read(body))
            except PeerError as error:
                self._close(attachment, error)

    def _close(self, attachment: Attachment, error: OverlayError) -> None:
        self._forget(attachment)
        attachment.port.closed(error)

    def _forget(self, attachment: Attachment) -> None:
        broker, hop = attachment.broker, attachment.hop
        del self._attached[broker, hop]
        if is_client(hop):
            self._carry_out(broker, self.brokers[broker].client_left(hop[1:], self.now))


def _read(body: bytes) -> AnyMessage:
    """Each receiver reads its own copy, as from a wire: nobody shares what another may change."""
    message = decode(body)
    assert isinstance(message, Message)
    return message
