"""The nodes of an exploration: brokers and scripted clients, each a table of steps.

What a node does depends on its own state and the message that it is given, on nothing else. So a
node's states are numbered as they are met, and the real code runs once for each state and message;
after that the step is looked up. An exploration of millions of global states runs the brokers'
code some thousands of times.

A broker's state is its core, the timers it has set, and what has to be known of its past to judge
it (`BrokerPast`): what its clients have said, and its records, each transaction's in their order.
How those of different transactions interleave is left out: what came of it is in the tables and
with the clients. A node whose code raises is in a state of its own, from which it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from overlay.broker.core import Broker
from overlay.broker.turns import WORK
from overlay.effects import CancelTimer, Close, Effect, Send, SetTimer
from overlay.messages import Hop, client_hop, is_client
from overlay.trace import Record
from overlay.wire.codec import decode_message, encode
from proofs.explore.scripted_clients import Script, ScriptedClient
from proofs.explore.snapshot import canonical, digest, freeze, thaw

#: The last frame of a client's link: it has gone.
GONE = b""

#: What a client may do at any moment, if its role lets it.
LEAVE = "leave"

#: Deliveries take no time here; deadlines ring when they are let, not when they are due.
NOW = 0.0


T = TypeVar("T")


class NodeStep(NamedTuple):
    """Where a step leads, and what it sends and records, in order."""

    state: int
    sent: tuple[tuple[Hop, bytes], ...] = ()
    records: tuple[Record, ...] = ()


class Numbering(Generic[T]):
    """Things numbered as they are met."""

    def __init__(self) -> None:
        self._things: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, thing: T) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self._things)
            self._things.append(thing)
        return number

    def __getitem__(self, number: int) -> T:
        return self._things[number]

    def __len__(self) -> int:
        return len(self._things)


class ExploredNode(Protocol):
    """A broker or a client."""

    hop: Hop

    def receive(self, state: int, source: Hop, frame: bytes) -> NodeStep:
        """Take a frame."""
        ...

    def urge(self, state: int, urge: str) -> NodeStep:
        """Do something unasked: let a timer ring, leave."""
        ...

    def urges(self, state: int) -> tuple[str, ...]:
        """What the node may do unasked."""
        ...

    def fault(self, state: int) -> str:
        """What the code raised, if it did."""
        ...

    def key(self, state: int) -> bytes:
        """A name of the state that is the same in every process."""
        ...

    def __len__(self) -> int:
        """In how many states it was met."""
        ...


# --- brokers ---


class AppliedOperation(NamedTuple):
    """A routing operation that a client of this broker has done."""

    client: str
    number: int
    kind: str
    filter: str
    tx: str


class BrokerPast(NamedTuple):
    """What has to be known of a broker's past to judge it."""

    words: tuple[AppliedOperation, ...] = ()
    #: The records of each transaction, and of each client's plain traffic, in their order; without
    #: numbers and times, which say nothing that their order does not.
    records: tuple[tuple[str, tuple[Record, ...]], ...] = ()

    def after(self, records: Iterable[Record]) -> BrokerPast:
        words, kept = dict.fromkeys(self.words), dict(self.records)
        for record in records:
            if record.kind == "apply" and record.source == client_hop(record.client):
                number = int(record.op_id.rpartition("#")[2])
                words[
                    AppliedOperation(
                        record.client, number, record.op_kind, record.filter, record.tx
                    )
                ] = None
            if record.kind not in ("begin", "end"):
                whose = record.tx or client_hop(record.client)
                # Only who routes looks at the tables in a version.
                view = record.version if record.kind in ("apply", "match") else ""
                same = msgspec.structs.replace(record, seq=0, at_ns=0, version=view)
                kept[whose] = (*kept.get(whose, ()), same)
                if record.kind == "apply" and not record.tx and not is_client(Hop(record.source)):
                    # It may be here because of a transaction, so its place among that one's counts.
                    for tx in [tx for tx in kept if not is_client(Hop(tx))]:
                        kept[tx] = (*kept[tx], same)
        return BrokerPast(tuple(sorted(words)), tuple(sorted(kept.items())))

    def of(self, whose: str) -> tuple[Record, ...]:
        """The records of a transaction, or of a client's plain traffic (by its hop)."""
        return dict(self.records).get(whose, ())


class CoreState(NamedTuple):
    """A broker without its past."""

    image: bytes
    timers: tuple[str, ...]
    key: bytes
    fault: str = ""


class CoreStep(NamedTuple):
    core: int
    sent: tuple[tuple[Hop, bytes], ...] = ()
    records: tuple[Record, ...] = ()


class BrokerNode:
    """A broker and the states in which it was met; the first is the one it is made with.

    A state is a core and its past. The core's steps do not depend on the past, so they are made
    once for all pasts.
    """

    def __init__(self, broker: Broker, facts: BrokerPast, *, ring: bool) -> None:
        self.hop = Hop(broker.name)
        self.cores: list[CoreState] = []
        #: Steps that the broker's code was run for.
        self.runs = 0
        self._states = Numbering[tuple[int, int]]()
        self._facts = Numbering[BrokerPast]()
        self._known: dict[bytes, int] = {}
        self._steps: dict[tuple[int, Hop | None, bytes | str], CoreStep] = {}
        self._ring = ring
        self._states.of((self._learn(broker, ()), self._facts.of(facts)))

    def receive(self, state: int, source: Hop, frame: bytes) -> NodeStep:
        return NodeStep(state) if self.fault(state) else self._step(state, source, frame)

    def urge(self, state: int, urge: str) -> NodeStep:
        return self._step(state, None, urge)

    def urges(self, state: int) -> tuple[str, ...]:
        timers = self.core(state).timers
        # The next slice of long work always comes; deadlines only where they are let.
        return timers if self._ring else tuple(key for key in timers if key == WORK)

    def fault(self, state: int) -> str:
        return self.core(state).fault

    def key(self, state: int) -> bytes:
        return digest(self.core(state).key, canonical(self.facts(state)))

    def core(self, state: int) -> CoreState:
        return self.cores[self._states[state][0]]

    def facts(self, state: int) -> BrokerPast:
        return self._facts[self._states[state][1]]

    def __len__(self) -> int:
        return len(self._states)

    def _step(self, state: int, source: Hop | None, what: bytes | str) -> NodeStep:
        core, facts = self._states[state]
        step = self._steps.get((core, source, what))
        if step is None:
            step = self._steps[core, source, what] = self._run(self.cores[core], source, what)
        if step.records:
            facts = self._facts.of(self._facts[facts].after(step.records))
        return NodeStep(self._states.of((step.core, facts)), step.sent, step.records)

    def _run(self, core: CoreState, source: Hop | None, what: bytes | str) -> CoreStep:
        """Let the code run."""
        self.runs += 1
        broker = thaw(core.image)
        try:
            if isinstance(what, str):
                core = core._replace(timers=tuple(key for key in core.timers if key != what))
                effects = broker.wake(what, NOW)
            elif what == GONE:
                assert source is not None
                effects = broker.client_left(source[1:], NOW)
            else:
                assert source is not None
                effects = broker.receive(source, decode_message(what), NOW)
        except Exception as error:  # Whatever it is, it is a finding.
            return self._failed(core, f"{type(error).__name__}: {error}")
        return self._carry_out(broker, core, effects)

    def _carry_out(self, broker: Broker, before: CoreState, effects: list[Effect]) -> CoreStep:
        sent: list[tuple[Hop, bytes]] = []
        records: list[Record] = []
        timers = dict.fromkeys(before.timers)
        for effect in effects:
            match effect:
                case Send(hops, message):
                    frame = encode(message)
                    sent.extend((hop, frame) for hop in hops)
                case Record():
                    records.append(effect)
                case SetTimer(key):
                    timers[key] = None
                case CancelTimer(key):
                    timers.pop(key, None)
                case Close(hop, code, reason):
                    return self._failed(before, f"closes the link to {hop}: {code}, {reason}")
        core = self._learn(broker, tuple(sorted(timers)))
        return CoreStep(core, tuple(sent), tuple(records))

    def _failed(self, before: CoreState, fault: str) -> CoreStep:
        key = digest(before.key, fault.encode())
        return CoreStep(self._number(before._replace(key=key, fault=fault)))

    def _learn(self, broker: Broker, timers: tuple[str, ...]) -> int:
        key = digest(canonical(broker), canonical(timers))
        known = self._known.get(key)
        return self._number(CoreState(freeze(broker), timers, key)) if known is None else known

    def _number(self, core: CoreState) -> int:
        number = self._known.setdefault(core.key, len(self.cores))
        if number == len(self.cores):
            self.cores.append(core)
        return number


# --- clients ---


class ClientNode:
    """A scripted client and the states in which it was met: the actor, and whether it is there."""

    def __init__(self, actor: ScriptedClient, edge: Hop, role: Script) -> None:
        self.hop = client_hop(actor.name)
        self.edge = edge
        self._role = role
        self._states = Numbering[tuple[ScriptedClient, bool]]()
        actor, said = actor.open(role)
        self._states.of((actor, True))
        #: What is on its link from the beginning.
        self.opening = tuple(encode(message) for message in said)

    def receive(self, state: int, source: Hop, frame: bytes) -> NodeStep:
        actor, here = self._states[state]
        if not here:
            return NodeStep(state)
        actor, answers = actor.receive(decode_message(frame), self._role)
        sent = tuple((self.edge, encode(answer)) for answer in answers)
        return NodeStep(self._states.of((actor, True)), sent)

    def urge(self, state: int, urge: str) -> NodeStep:
        assert urge == LEAVE
        return NodeStep(self._states.of((self.actor(state), False)), ((self.edge, GONE),))

    def urges(self, state: int) -> tuple[str, ...]:
        return (LEAVE,) if self._role.may_leave and self.is_here(state) else ()

    def fault(self, state: int) -> str:
        return ""

    def key(self, state: int) -> bytes:
        return digest(canonical(self._states[state]))

    def actor(self, state: int) -> ScriptedClient:
        return self._states[state][0]

    def is_here(self, state: int) -> bool:
        return self._states[state][1]

    def __len__(self) -> int:
        return len(self._states)
