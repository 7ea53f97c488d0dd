"""The overlay in one thread and virtual time: same cores, same codec, every choice on a tape.

Brokers and clients are joined by reliable FIFO links whose delays are chosen message by message.
All that is open in a run comes from one function `choose(n)`, which answers with 0 to n-1: the
delays here, and whatever the test decides with it. A run is therefore determined by its tape, the
list of answers; a failing one replays from the tape and shrinks with it.

Links keep what a TCP connection may lose (see `link`), so a cut connection is only a longer delay
here (`cut`). What ends is a client (`crash`), a broker's life (`restart`), or that of a link which
was down for so long that its ends have given it up (`reset`).

A client is any function from a message to the messages that it answers with; the simulator knows
no sessions and no transactions.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from overlay.broker import Broker
from overlay.codec import decode_message, encode
from overlay.effects import CancelTimer, Close, Effect, Send, SetTimer
from overlay.errors import PeerError
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Hop,
    client_hop,
    is_client,
)
from overlay.trace import Record

Choose: TypeAlias = Callable[[int], int]
Client: TypeAlias = Callable[[AnyMessage, float], Iterable[AnyMessage]]
BrokerFactory: TypeAlias = Callable[[BrokerName, Iterable[BrokerName]], Broker]

#: Delays are chosen among so many steps: enough for messages on different ways to overtake each
#: other by several hops, few enough for a tape to shrink well.
DELAY_STEPS = 8
DELAY_STEP_S = 0.001

#: An overlay of some brokers settles in thousands of steps; a run that has not come to rest by
#: then never will.
STEP_LIMIT = 1_000_000


class Tape:
    """The choices of one run: drawn from a seed, or replayed and then 0 for ever."""

    def __init__(self, *, seed: int | None = None, choices: Sequence[int] = ()) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._replay = list(choices)
        self.choices: list[int] = []

    def choose(self, n: int) -> int:
        """One of 0 to n-1."""
        assert n > 0
        at = len(self.choices)
        if at < len(self._replay):
            choice = self._replay[at] % n
        elif self._random is None:
            choice = 0
        else:
            # Close enough to even for small n, and a third of the price of randrange.
            choice = int(self._random.random() * n)
        self.choices.append(choice)
        return choice


class NeverSettles(AssertionError):
    """The overlay still sends messages after more steps than a run should have."""


class Simulator:
    """Brokers of a tree and clients at them, run message by message.

    `connect` clients, `send` in their names, and `run`; what the cores recorded is in `records`,
    and `digest` names the whole run.
    """

    def __init__(
        self,
        neighbours: Mapping[str, Iterable[str]],
        choose: Choose,
        *,
        broker: BrokerFactory = Broker,
        delay_steps: int = DELAY_STEPS,
    ) -> None:
        self.now = 0.0
        #: What has happened so far: messages delivered, timers rung, actions done.
        self.steps = 0
        self.records: list[Record] = []
        #: Among how many delays one is chosen for each message; with one, nothing is chosen.
        self.delay_steps = delay_steps
        self._choose = choose
        self._make_broker = broker
        self._tree = {
            BrokerName(name): tuple(BrokerName(other) for other in sorted(others))
            for name, others in sorted(neighbours.items())
        }
        self.brokers = {name: broker(name, others) for name, others in self._tree.items()}
        self._clients: dict[Hop, tuple[BrokerName, Client]] = {}
        self._hash = hashlib.sha256()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = 0
        #: When the last message of each link arrives, so that none overtakes it; and which life of
        #: the link messages belong to, so that a broken link's messages are lost with it.
        self._arrives: dict[tuple[Hop, Hop], float] = {}
        self._lives: dict[tuple[Hop, Hop], int] = {}
        self._timers: dict[tuple[BrokerName, str], int] = {}

    # --- what a test does ---

    def connect(self, client: str, at: str, receive: Client) -> None:
        """Attach a client to a broker; the client has to join, with its first message."""
        self._clients[client_hop(client)] = (BrokerName(at), receive)

    def connected(self, client: str) -> bool:
        return client_hop(client) in self._clients

    def send(self, client: str, message: AnyMessage) -> None:
        """Let a client say something to its broker."""
        hop = client_hop(client)
        self._post(hop, Hop(self._clients[hop][0]), encode(message))

    def crash(self, client: str, *, lost: bool = False) -> None:
        """End a client's link; what it sent before still arrives, unless that is `lost`, and then
        its end is noticed."""
        hop = client_hop(client)
        broker, _ = self._clients.pop(hop)
        self._break(Hop(broker), hop)
        if lost:
            self._break(hop, Hop(broker))

        def notice() -> None:
            self._carry_out(broker, self.brokers[broker].client_left(client, self.now))

        self._transmit(hop, Hop(broker), notice)

    def leave(self, client: str) -> None:
        """Let a client say goodbye; it is gone when every broker has forgotten it."""
        hop = client_hop(client)
        broker, _ = self._clients[hop]

        def notice() -> None:
            self._carry_out(broker, self.brokers[broker].client_leaves(client, self.now))

        self._transmit(hop, Hop(broker), notice)

    def cut(self, one: str, other: str, outage_s: float) -> None:
        """Hold back what two neighbours, or a broker and "@" and its client, say for a while."""
        back = self.now + outage_s
        for link in ((Hop(one), Hop(other)), (Hop(other), Hop(one))):
            self._arrives[link] = max(back, self._arrives.get(link, 0.0))

    def restart(self, name: str) -> None:
        """End a broker's life and begin a new one: its state, clients and messages are gone."""
        broker = BrokerName(name)
        for hop in [hop for hop, (edge, _) in self._clients.items() if edge == broker]:
            del self._clients[hop]
            self._break(hop, Hop(broker))
            self._break(Hop(broker), hop)
        for key in [key for key in self._timers if key[0] == broker]:
            del self._timers[key]
        self.brokers[broker] = self._make_broker(broker, self._tree[broker])
        for other in self._tree[broker]:
            self._break(Hop(broker), Hop(other))
            self._break(Hop(other), Hop(broker))
            self._carry_out(other, self.brokers[other].link_reset(broker, self.now))

    def reset(self, one: str, other: str) -> None:
        """Begin a new life of a link between two brokers that live: what is on it is gone."""
        self._break(Hop(one), Hop(other))
        self._break(Hop(other), Hop(one))
        for end, neighbour in ((one, other), (other, one)):
            broker = self.brokers[BrokerName(end)]
            effects = broker.link_reset(BrokerName(neighbour), self.now)
            self._carry_out(BrokerName(end), effects)

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later in virtual time."""
        self._schedule(self.now + delay_s, action)

    def run(self, *, until: float | None = None, steps: int = STEP_LIMIT) -> None:
        """Deliver messages in the order of their arrival until there are none left, or a time.

        Raises NeverSettles after too many steps.
        """
        events, last = self._events, self.steps + steps
        while events and (until is None or events[0][0] <= until):
            if self.steps == last:
                raise NeverSettles(f"{len(events)} messages on their way after {steps} steps")
            self.steps += 1
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = max(self.now, until or 0.0)

    @property
    def digest(self) -> str:
        """A name for all that was delivered so far, in its order."""
        return self._hash.hexdigest()

    # --- links ---

    def _post(self, source: Hop, dest: Hop, frame: bytes) -> None:
        def deliver() -> None:
            self._hash.update(f"{source}>{dest}:".encode() + frame)
            self._deliver(source, dest, decode_message(frame))

        self._transmit(source, dest, deliver)

    def _deliver(self, source: Hop, dest: Hop, message: AnyMessage) -> None:
        if is_client(dest):
            if dest in self._clients:
                for answer in self._clients[dest][1](message, self.now):
                    self.send(dest[1:], answer)
            return
        broker = BrokerName(dest)
        try:
            effects = self.brokers[broker].receive(source, message, self.now)
        except PeerError as error:
            if not is_client(source):
                raise
            effects = [Close(source, error.code, str(error))]
        self._carry_out(broker, effects)

    def _carry_out(self, broker: BrokerName, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(hops, message):
                    frame = encode(message)
                    for hop in hops:
                        self._post(Hop(broker), hop, frame)
                case Close(hop):
                    if hop in self._clients:
                        self.crash(hop[1:])
                case SetTimer(key, delay_s):
                    self._set_timer(broker, key, delay_s)
                case CancelTimer(key):
                    self._timers.pop((broker, key), None)
                case Record():
                    self.records.append(effect)

    def _set_timer(self, broker: BrokerName, key: str, delay_s: float) -> None:
        self._ties += 1
        mine = self._timers[broker, key] = self._ties

        def ring() -> None:
            if self._timers.get((broker, key)) == mine:
                del self._timers[broker, key]
                self._carry_out(broker, self.brokers[broker].wake(key, self.now))

        self._schedule(self.now + delay_s, ring)

    def _transmit(self, source: Hop, dest: Hop, action: Callable[[], None]) -> None:
        """Let something happen at the end of a link, behind all that is on it, while it lives."""
        link = (source, dest)
        chosen = self._choose(self.delay_steps) if self.delay_steps > 1 else 0
        arrives = max(self.now + DELAY_STEP_S * (1 + chosen), self._arrives.get(link, 0.0))
        self._arrives[link] = arrives
        life = self._lives.get(link, 0)

        def act() -> None:
            if self._lives.get(link, 0) == life:
                action()

        self._schedule(arrives, act)

    def _break(self, source: Hop, dest: Hop) -> None:
        self._lives[source, dest] = self._lives.get((source, dest), 0) + 1

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        self._ties += 1
        heapq.heappush(self._events, (at, self._ties, action))
