"""The brokers of a tree in one process, without sockets, for tests.

Every message goes through the codec and through one queue, so each link is FIFO, and each call
runs until nothing is left to do: when it returns, the overlay is at rest. There is no clock: time
moves when somebody moves it (`advance`), and only then do timers run out.

It can be used from several threads: one works at a time, and the others wait. A port is called
from whichever thread that is.

This module knows no sessions. For links that are slow, cut or reordered there is the simulator.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from overlay.broker import Broker
from overlay.codec import decode
from overlay.effects import CancelTimer, Close, Effect, Send, SetTimer
from overlay.errors import NameTaken, OverlayError, PeerError, from_code
from overlay.frames import PREFIX_SIZE, pack
from overlay.messages import AnyMessage, BrokerName, Hop, Message, is_client
from overlay.trace import Record


class Port(Protocol):
    """What the overlay needs of a client or operator that is attached to it."""

    def deliver(self, message: AnyMessage) -> None:
        """Take a message. Raises PeerError (SlowReader, say) to be detached with that reason."""
        ...

    def closed(self, error: OverlayError) -> None:
        """The overlay has detached the port, for this reason."""
        ...


class InProcess:
    """An overlay in one process. `attach` a port, then `send` in its name, first of all a Join."""

    def __init__(self, neighbours: Mapping[str, Iterable[str]], *, trace: bool = False) -> None:
        self.now = 0.0
        self.brokers = {
            BrokerName(name): Broker(BrokerName(name), map(BrokerName, others), trace=trace)
            for name, others in neighbours.items()
        }
        #: What the brokers recorded, with `trace`.
        self.records: list[Record] = []
        self._ports: dict[tuple[BrokerName, Hop], Port] = {}
        # What is left to do while a call runs; empty between calls, and never longer than what
        # one message from outside sets off.
        self._queue: deque[tuple[BrokerName, Hop, bytes]] = deque()
        self._timers: dict[tuple[BrokerName, str], float] = {}
        self._lock = threading.RLock()
        self._running = False

    def attach(self, broker: str, hop: Hop, port: Port) -> None:
        """Connect a client ("@" and its name) or an operator ("?" and anything) to a broker.

        Raises NameTaken if the broker has it already, KeyError if there is no such broker.
        """
        with self._lock:
            name = BrokerName(broker)
            if name not in self.brokers:
                raise KeyError(f"no broker {broker!r}; there are {', '.join(self.brokers)}")
            if (name, hop) in self._ports:
                raise NameTaken(f"{hop[1:]!r} is connected to {broker} already")
            self._ports[name, hop] = port

    def detach(self, broker: str, hop: Hop) -> None:
        """A client leaves, or an operator; nothing happens if it has left already."""
        with self._lock:
            if self._ports.pop((BrokerName(broker), hop), None) is not None:
                self._left(BrokerName(broker), hop)
                self._run()

    def send(self, broker: str, hop: Hop, message: AnyMessage) -> None:
        """Let a port say something, and the overlay come to rest.

        Nobody hears a port that has been detached; it has been told.

        Raises FrameTooLarge.
        """
        frame = pack(message)
        with self._lock:
            self._queue.append((BrokerName(broker), hop, frame))
            self._run()

    def advance(self, seconds: float) -> None:
        """Let time pass: timers run out in their order, and the overlay comes to rest each time."""
        with self._lock:
            until = self.now + seconds
            while self._timers:
                due = min(self._timers, key=self._timers.__getitem__)
                if self._timers[due] > until:
                    break
                self.now = max(self.now, self._timers.pop(due))
                broker, key = due
                self._carry_out(broker, self.brokers[broker].wake(key, self.now))
                self._run()
            self.now = until

    def stop(self, error: OverlayError) -> None:
        """Detach everybody with this reason."""
        with self._lock:
            for (broker, hop), port in list(self._ports.items()):
                self._close(broker, hop, port, error)
            self._run()

    # --- running ---

    def _run(self) -> None:
        if self._running:
            return  # A port has called us from `deliver`: the call that runs will do it.
        self._running = True
        try:
            while self._queue:
                broker, source, frame = self._queue.popleft()
                self._receive(broker, source, _read(frame))
        finally:
            self._running = False

    def _receive(self, broker: BrokerName, source: Hop, message: AnyMessage) -> None:
        port = self._ports.get((broker, source))
        if port is None and BrokerName(source) not in self.brokers:
            return
        try:
            effects = self.brokers[broker].receive(source, message, self.now)
        except PeerError as error:
            assert port is not None, f"{source} and {broker} do not understand each other: {error}"
            self._close(broker, source, port, error)
        else:
            self._carry_out(broker, effects)

    def _carry_out(self, broker: BrokerName, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    frame = pack(effect.message)
                    for hop in effect.hops:
                        self._forward(broker, hop, frame)
                case Close():
                    port = self._ports.get((broker, effect.hop))
                    if port is not None:
                        error = from_code(effect.code, effect.reason)
                        self._close(broker, effect.hop, port, error)
                case SetTimer():
                    self._timers[broker, effect.key] = self.now + effect.delay_s
                case CancelTimer():
                    self._timers.pop((broker, effect.key), None)
                case Record():
                    self.records.append(effect)

    def _forward(self, broker: BrokerName, hop: Hop, frame: bytes) -> None:
        if (neighbour := BrokerName(hop)) in self.brokers:
            self._queue.append((neighbour, Hop(broker), frame))
            return
        port = self._ports.get((broker, hop))
        if port is not None:
            try:
                port.deliver(_read(frame))
            except PeerError as error:
                self._close(broker, hop, port, error)

    def _close(self, broker: BrokerName, hop: Hop, port: Port, error: OverlayError) -> None:
        del self._ports[broker, hop]
        self._left(broker, hop)
        port.closed(error)

    def _left(self, broker: BrokerName, hop: Hop) -> None:
        if is_client(hop):
            self._carry_out(broker, self.brokers[broker].client_left(hop[1:], self.now))


def _read(frame: bytes) -> AnyMessage:
    """Each receiver reads its own copy, as from a wire: nobody shares what another may change."""
    message = decode(frame[PREFIX_SIZE:])
    assert isinstance(message, Message)
    return message
