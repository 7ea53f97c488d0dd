"""The overlay in one thread and virtual time: same cores, same codec, every choice on a tape.

Brokers and clients are joined by reliable FIFO links whose delays are chosen message by message.
All that is open in a run comes from one function `choose(n)`, which answers with 0 to n-1: the
delays here, and whatever the test decides with it. A run is therefore determined by its tape, the
list of answers; a failing one replays from the tape and shrinks with it.

Links keep what a TCP connection may lose (see `link`), so a cut connection is only a longer delay
here (`cut`); if it lasts, both ends are told (`link_down`), as a host would, and again when it is
over. What ends is a client (`crash`), a broker's life (`restart`), or that of a link which was
down for so long that its ends have given it up (`reset`). Then each end keeps what the other may
not have received, as a node does (`overlay.node`): all that is on its way, and some of what came
last, since acknowledgements ride late.

A client is any function from a message to the messages that it answers with; the simulator knows
no sessions and no transactions.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Close, Effect, Forward, Resend, Send, SetTimer
from overlay.errors import PeerError
from overlay.hosts.settings import ABSENT_AFTER_S
from overlay.identity import Lives
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Hop,
    Pub,
    client_hop,
    is_client,
)
from overlay.node.received import Received
from overlay.trace import Record
from overlay.wire.codec import decode_message, encode

_Link: TypeAlias = tuple[Hop, Hop]
Choose: TypeAlias = Callable[[int], int]
Client: TypeAlias = Callable[[AnyMessage, float], Iterable[AnyMessage]]
#: When a message to this end of a link arrives that is sent at this time.
Arrival: TypeAlias = Callable[[Hop, float], float]
BrokerFactory: TypeAlias = Callable[[BrokerName, Iterable[BrokerName]], Broker]

#: Delays are chosen among so many steps: enough for messages on different ways to overtake each
#: other by several hops, few enough for a tape to shrink well.
DELAY_STEPS = 8
DELAY_STEP_S = 0.001

#: Two times that differ by less are the same but for rounding.
SAME_MOMENT_S = 1e-9

#: Of how many messages that came last over a link the acknowledgement may be missing.
UNACKNOWLEDGED = 8

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


class _Arrival:
    """A frame, or something else, that comes to the end of a link; an event of the simulator."""

    __slots__ = ("_arrive", "life", "link", "what")

    def __init__(
        self,
        arrive: Callable[[_Arrival], None],
        link: _Link,
        life: int,
        what: bytes | Callable[[], None],
    ) -> None:
        self._arrive = arrive
        self.link = link
        #: The life of the link that it belongs to: what is on a broken link is lost.
        self.life = life
        self.what = what

    def __call__(self) -> None:
        self._arrive(self)


class _NeighbourLink:
    """One direction of a link between two brokers: what a new life of it has to repeat."""

    def __init__(self, received: Received) -> None:
        #: Frames on their way, and those that came last.
        self.sent: deque[bytes] = deque()
        self.came: deque[bytes] = deque(maxlen=UNACKNOWLEDGED)
        #: Publications that wait until the receiver's new life has the tables.
        self.kept: list[bytes] = []
        #: What the receiver has got over it.
        self.received = received

    def arrived(self, count: int) -> None:
        """The receiver has so many messages more."""
        for _ in range(count):
            self.came.append(self.sent.popleft())

    def keep(self, unacknowledged: int) -> None:
        """The receiver lives a new life, and has not acknowledged so many that have come."""
        came = list(self.came)
        frames = [*came[len(came) - unacknowledged :], *self.sent]
        self.kept += [frame for frame in frames if type(decode_message(frame)) is Pub]
        self.sent.clear()
        self.came.clear()


class NeverSettles(AssertionError):
    """The overlay still sends messages after more steps than a run should have."""


class Simulator:
    """Brokers of a tree and clients at them, run message by message.

    `connect` clients, `send` in their names, and `run`; what the cores recorded is in `records`,
    and `digest` names the whole run.
    """

    #: How repetitions after a reset are recognised.
    received: Callable[[], Received] = Received

    def __init__(
        self,
        neighbours: Mapping[str, Iterable[str]],
        choose: Choose,
        *,
        broker: BrokerFactory = Broker,
        delay_steps: int = DELAY_STEPS,
        absent_after_s: float = ABSENT_AFTER_S,
        arrival: Arrival | None = None,
    ) -> None:
        """`arrival` says when what is sent now arrives; then no delay is chosen."""
        self.now = 0.0
        #: What has happened so far: messages delivered, timers rung, actions done.
        self.steps = 0
        #: The most messages that a broker has found in its inbox at once.
        self.largest_batch = 0
        self.records: list[Record] = []
        #: Among how many delays one is chosen for each message; with one, nothing is chosen.
        self.delay_steps = delay_steps
        #: How long a link is cut before its ends are told.
        self.absent_after_s = absent_after_s
        #: The clients that brokers have closed on: at which broker, who, and the code and reason.
        self.closed: list[tuple[BrokerName, Hop, str, str]] = []
        #: Called with every effect of a broker, before it is carried out.
        self.observe: Callable[[BrokerName, Effect], None] | None = None
        self._choose = choose
        self._arrival = arrival
        self._make_broker = broker
        self._tree = {
            BrokerName(name): tuple(BrokerName(other) for other in sorted(others))
            for name, others in sorted(neighbours.items())
        }
        self.brokers = {name: broker(name, others) for name, others in self._tree.items()}
        #: There can be two of one name, at two brokers.
        self._clients: dict[tuple[Hop, BrokerName], Client] = {}
        self._hash = hashlib.sha256()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = 0
        #: When the last message of each link arrives, so that none overtakes it; and which life of
        #: the link messages belong to, so that a broken link's messages are lost with it.
        self._arrives: dict[tuple[Hop, Hop], float] = {}
        self._lives: dict[tuple[Hop, Hop], int] = {}
        self._neighbour_links = {
            (Hop(name), Hop(other)): _NeighbourLink(self.received())
            for name, others in self._tree.items()
            for other in others
        }
        #: Timers that are set: which of the same key is the last one, and when it rings.
        self._timers: dict[tuple[BrokerName, str], tuple[int, float]] = {}
        #: Until when links are cut, which ends have been told so, and brokers that are dead.
        self._cut_until: dict[tuple[BrokerName, BrokerName], float] = {}
        self._absent: set[tuple[BrokerName, BrokerName]] = set()
        self._dead: set[BrokerName] = set()
        self._restarts = 0

    # --- what a test does ---

    def connect(self, client: str, at: str, receive: Client) -> None:
        """Attach a client to a broker; the client has to join, with its first message."""
        self._clients[client_hop(client), BrokerName(at)] = receive

    def connected(self, client: str, at: str | None = None) -> bool:
        """Whether there is a client of that name, at that broker or at any."""
        return self._place(client_hop(client), at) is not None

    def send(self, client: str, message: AnyMessage, at: str | None = None) -> None:
        """Let a client say something to its broker; of two of one name, the last that came."""
        hop = client_hop(client)
        place = self._place(hop, at)
        assert place is not None, f"{client} is not connected"
        self._post(hop, Hop(place), encode(message))

    def crash(self, client: str, at: str | None = None, *, lost: bool = False) -> None:
        """End a client's link; what it sent before still arrives, unless that is `lost`, and then
        its end is noticed."""
        hop = client_hop(client)
        broker = self._place(hop, at)
        assert broker is not None, f"{client} is not connected"
        del self._clients[hop, broker]
        self._break(Hop(broker), hop)
        if lost:
            self._break(hop, Hop(broker))

        def notice() -> None:
            # What the broker has said to it does not reach another one that has come meanwhile.
            self._break(Hop(broker), hop)
            self._carry_out(broker, self.brokers[broker].client_left(client, self.now))

        self._transmit(hop, Hop(broker), notice)

    def leave(self, client: str, at: str | None = None) -> None:
        """Let a client say goodbye; it is gone when every broker has forgotten it."""
        hop = client_hop(client)
        broker = self._place(hop, at)
        assert broker is not None, f"{client} is not connected"

        def notice() -> None:
            self._carry_out(broker, self.brokers[broker].client_leaves(client, self.now))

        self._transmit(hop, Hop(broker), notice)

    def _place(self, hop: Hop, at: str | None) -> BrokerName | None:
        places = [place for name, place in self._clients if name == hop and at in (None, place)]
        return places[-1] if places else None

    def cut(self, one: str, other: str, outage_s: float, *, reset: bool = False) -> None:
        """Hold back what two neighbours, or a broker and "@" and its client, say for a while.

        With `reset`, what two neighbours have said meanwhile is lost: their link begins anew.
        """
        back = self.now + outage_s
        for link in ((Hop(one), Hop(other)), (Hop(other), Hop(one))):
            self._arrives[link] = max(back, self._arrives.get(link, 0.0))
        if is_client(Hop(one)) or is_client(Hop(other)):
            return
        ends = (BrokerName(one), BrokerName(other))
        for end, neighbour in (ends, ends[::-1]):
            until = self._cut_until.get((end, neighbour), 0.0)
            self._cut_until[end, neighbour] = max(back, until)
            if outage_s > self.absent_after_s:
                self._schedule(self.now + self.absent_after_s, partial(self._lose, end, neighbour))
        # Scheduled now, so before any message that is sent from now on arrives.
        if reset:
            self._schedule(back, partial(self.reset, one, other))
        else:
            for end, neighbour in (ends, ends[::-1]):
                self._schedule(back, partial(self._find, end, neighbour))

    def _lose(self, end: BrokerName, neighbour: BrokerName) -> None:
        """One end of a link notices that the other cannot be reached, if that is still so."""
        is_cut = self.now < self._cut_until.get((end, neighbour), 0.0) or neighbour in self._dead
        if is_cut and (end, neighbour) not in self._absent and end not in self._dead:
            self._absent.add((end, neighbour))
            self._carry_out(end, self.brokers[end].link_down(neighbour, self.now))

    def _find(self, end: BrokerName, neighbour: BrokerName, *, heard: bool = False) -> None:
        """One end of a link has the other back; for sure if something of it has been heard."""
        if (end, neighbour) not in self._absent:
            return
        if heard or self.now >= self._cut_until.get((end, neighbour), 0.0):
            self._absent.remove((end, neighbour))
            self._carry_out(end, self.brokers[end].link_up(neighbour, self.now))

    def restart(self, name: str, outage_s: float = 0.0) -> None:
        """End a broker's life and begin a new one: its state, clients and messages are gone."""
        broker = BrokerName(name)
        for hop, edge in [place for place in self._clients if place[1] == broker]:
            del self._clients[hop, edge]
            self._break(hop, Hop(broker))
            self._break(Hop(broker), hop)
        for key in [key for key in self._timers if key[0] == broker]:
            del self._timers[key]
        for other in self._tree[broker]:
            self._break(Hop(broker), Hop(other))
            self._break(Hop(other), Hop(broker))
            link = self._neighbour_links[Hop(broker), Hop(other)]
            # It knows nothing that it sent, and nothing that it got; the others still know.
            link.sent.clear()
            link.came.clear()
            link.kept.clear()
            self._neighbour_links[Hop(other), Hop(broker)].received = self.received()
        if not outage_s:
            self._begin_anew(broker)
            return
        self._dead.add(broker)
        if outage_s > self.absent_after_s:
            for other in self._tree[broker]:
                self._schedule(self.now + self.absent_after_s, partial(self._lose, other, broker))
        self._schedule(self.now + outage_s, partial(self._begin_anew, broker))

    def _begin_anew(self, broker: BrokerName) -> None:
        self._dead.discard(broker)
        made = self.brokers[broker] = self._make_broker(broker, self._tree[broker])
        self._restarts += 1
        made.lives = Lives(self._restarts)  # As another process would have another salt.
        for other in self._tree[broker]:
            self._absent.discard((broker, other))
            self._end_life(broker, other)
            if other in self._dead:
                self._schedule(self.now + self.absent_after_s, partial(self._lose, broker, other))
            else:
                self._reset_end(other, broker)

    def reset(self, one: str, other: str) -> None:
        """Begin a new life of a link between two brokers: what is on it is gone."""
        ends = (BrokerName(one), BrokerName(other))
        if self._dead.isdisjoint(ends):
            self._end_life(*ends)
            for end, neighbour in (ends, ends[::-1]):
                self._reset_end(end, neighbour)

    def _end_life(self, one: BrokerName, other: BrokerName) -> None:
        for source, dest in ((one, other), (other, one)):
            self._break(Hop(source), Hop(dest))
            self._cut_until.pop((source, dest), None)

    def _reset_end(self, end: BrokerName, neighbour: BrokerName) -> None:
        self._absent.discard((end, neighbour))
        link = self._neighbour_links[Hop(end), Hop(neighbour)]
        link.keep(self._choose(len(link.came) + 1) if link.came else 0)
        self._neighbour_links[Hop(neighbour), Hop(end)].received.reset()
        self._carry_out(end, self.brokers[end].link_reset(neighbour, self.now))

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
        if (source, dest) in self._neighbour_links:
            self._neighbour_links[source, dest].sent.append(frame)
        self._transmit(source, dest, frame)

    def _deliver_all(self, link: _Link, life: int, frame: bytes) -> None:
        """Deliver a message, together with those right behind it on its link.

        A host finds messages in its inbox together if nothing else happens between their arrivals;
        the same happens here. So what is simulated is what runs, and every run is as if messages
        were delivered one by one.
        """
        (source, dest), frames = link, [frame]
        while not is_client(dest) and self._events and self._events[0][0] <= self.now:
            following = self._events[0][2]
            if not isinstance(following, _Arrival) or (following.link, following.life) != (
                link,
                life,
            ):
                break
            if not isinstance(following.what, bytes):
                break
            heapq.heappop(self._events)
            self.steps += 1
            frames.append(following.what)
        self.largest_batch = max(self.largest_batch, len(frames))
        messages, at = [decode_message(one) for one in frames], 0
        neighbour_link = self._neighbour_links.get(link)
        if neighbour_link is not None:
            if BrokerName(dest) in self._dead:
                return
            neighbour_link.arrived(len(frames))
            new, new_frames = neighbour_link.received.new(messages, frames)
            messages, frames = list(new), list(new_frames)
        while at < len(messages) and self._lives.get(link, 0) == life:
            count = self._deliver(source, dest, messages, frames, at)
            for one in frames[at : at + count]:
                self._hash.update(f"{source}>{dest}:".encode() + one)
            at += count

    def _deliver(
        self, source: Hop, dest: Hop, messages: list[AnyMessage], frames: list[bytes], at: int
    ) -> int:
        """Deliver the next messages; returns how many that were."""
        if is_client(dest):
            message = messages[at]
            receive = self._clients.get((dest, BrokerName(source)))
            if receive is not None:
                for answer in receive(message, self.now):
                    self.send(dest[1:], answer, source)
            return 1
        broker = BrokerName(dest)
        if broker in self._dead:
            return 1
        self._find(broker, BrokerName(source), heard=True)
        try:
            taken = self.brokers[broker].take(source, messages, self.now, at)
        except PeerError as error:
            if not is_client(source):
                raise
            self._carry_out(broker, [Close(source, error.code, str(error))])
            return 1
        self._carry_out(broker, taken.effects, frames)
        return taken.consumed

    def _carry_out(
        self, broker: BrokerName, effects: Iterable[Effect], frames: Sequence[bytes] = ()
    ) -> None:
        for effect in effects:
            if self.observe is not None:
                self.observe(broker, effect)
            match effect:
                case Forward(hops, start, count):
                    for frame in frames[start : start + count]:
                        for hop in hops:
                            self._post(Hop(broker), hop, frame)
                case Send(hops, message):
                    frame = encode(message)
                    for hop in hops:
                        self._post(Hop(broker), hop, frame)
                case Resend(hop, given_up):
                    link = self._neighbour_links[Hop(broker), hop]
                    kept, link.kept = link.kept, []
                    for frame in () if given_up else kept:
                        self._post(Hop(broker), hop, frame)
                case Close(hop, code, reason):
                    if (hop, broker) in self._clients:
                        self.closed.append((broker, hop, code, reason))
                        self.crash(hop[1:], broker)
                case SetTimer(key, delay_s):
                    self._set_timer(broker, key, delay_s)
                case CancelTimer(key):
                    self._timers.pop((broker, key), None)
                case Record():
                    self.records.append(effect)

    def replace_timers(self, broker: BrokerName, prefix: str, effects: Iterable[Effect]) -> None:
        """Forget the timers of a broker whose keys begin so, and set others; nothing observes it.

        For a service that was replaced by another one in the same state.
        """
        again: dict[str, float] = {}
        for effect in effects:
            assert isinstance(effect, SetTimer), f"restoring a state sets timers, and no {effect}"
            again[effect.key] = effect.delay_s
        for owner, key in list(self._timers):
            if owner != broker or not key.startswith(prefix):
                continue
            rings_at = self._timers[owner, key][1]
            if key in again and abs(self.now + again[key] - rings_at) < SAME_MOMENT_S:
                del again[key]  # It keeps its place among what happens at that moment.
            else:
                del self._timers[owner, key]
        for key, delay_s in again.items():
            self._set_timer(broker, key, delay_s)

    def _set_timer(self, broker: BrokerName, key: str, delay_s: float) -> None:
        self._ties += 1
        tie = self._ties
        if not delay_s and self.delay_steps > 1:
            # Long work goes on when other messages have been taken: how many, is open.
            delay_s = DELAY_STEP_S * self._choose(self.delay_steps)
        mine = self._timers[broker, key] = (tie, self.now + delay_s)

        def ring() -> None:
            if self._timers.get((broker, key)) == mine:
                del self._timers[broker, key]
                self._carry_out(broker, self.brokers[broker].wake(key, self.now))

        self._schedule(self.now + delay_s, ring)

    def _transmit(self, source: Hop, dest: Hop, what: bytes | Callable[[], None]) -> None:
        """Let a message arrive, or something happen, at the end of a link, behind all that is on
        it, while it lives."""
        link = (source, dest)
        if self._arrival is not None:
            arrives = self._arrival(dest, self.now)
        else:
            chosen = self._choose(self.delay_steps) if self.delay_steps > 1 else 0
            arrives = self.now + DELAY_STEP_S * (1 + chosen)
        arrives = max(arrives, self._arrives.get(link, 0.0))
        self._arrives[link] = arrives
        self._schedule(arrives, _Arrival(self._arrive, link, self._lives.get(link, 0), what))

    def _arrive(self, arrival: _Arrival) -> None:
        if self._lives.get(arrival.link, 0) != arrival.life:
            return
        if isinstance(arrival.what, bytes):
            self._deliver_all(arrival.link, arrival.life, arrival.what)
        else:
            arrival.what()

    def _break(self, source: Hop, dest: Hop) -> None:
        self._lives[source, dest] = self._lives.get((source, dest), 0) + 1

    def _schedule(self, at: float, action: Callable[[], None]) -> None:
        self._ties += 1
        heapq.heappush(self._events, (at, self._ties, action))
