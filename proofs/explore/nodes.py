"""The nodes of an exploration: brokers and scripted clients, each a table of steps.

What a node does depends only on its own state and the message that it receives. So a node's states
are numbered in the order in which they are found, and the real code runs once for each state and
message; after that the step is looked up. An exploration of millions of global states runs the
brokers' code some thousands of times.

A broker's state is its core, the timers that it has set, and the part of its past that the checks
need (`BrokerPast`): the operations of its clients, and its records, in order for each transaction.
How the records of different transactions interleave is left out, because its effects are in the
tables and with the clients. A node whose code raises is in a state of its own, in which it sends
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from overlay.broker.core import Broker
from overlay.broker.turns import WORK
from overlay.effects import CancelTimer, Close, Effect, Forward, Send, SetTimer
from overlay.messages import Hop, client_hop, is_client
from overlay.trace import Record
from overlay.wire.codec import decode_message, encode
from proofs.explore.scripted_clients import Script, ScriptedClient
from proofs.explore.snapshot import canonical, digest, freeze, thaw

#: The last frame on the link of a client that has left.
GONE = b""

#: The move by which a client leaves at any moment, if its script allows it.
LEAVE = "leave"

#: The time of every step: deliveries take none, and a deadline passes at any moment where the
#: scenario allows it, not when it is due.
NOW = 0.0


T = TypeVar("T")


class NodeStep(NamedTuple):
    """The state after a step, and what the step sends and records, in order."""

    state: int
    sent: tuple[tuple[Hop, bytes], ...] = ()
    records: tuple[Record, ...] = ()


class Numbering(Generic[T]):
    """Numbers things in the order in which they are found."""

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

    def move_unasked(self, state: int, own_move: str) -> NodeStep:
        """Act unasked: let a deadline pass, or leave."""
        ...

    def own_moves(self, state: int) -> tuple[str, ...]:
        """The moves that the node may make unasked."""
        ...

    def fault(self, state: int) -> str:
        """The text of the exception that the code raised, or ""."""
        ...

    def key(self, state: int) -> bytes:
        """A key of the state that is the same in every process."""
        ...

    def __len__(self) -> int:
        """The number of states that were found."""
        ...


# --- brokers ---


class AppliedOperation(NamedTuple):
    """A routing operation of a client of this broker, as it was applied there."""

    client: str
    number: int
    kind: str
    filter: str
    tx: str


class BrokerPast(NamedTuple):
    """The part of a broker's past that the checks need."""

    operations: tuple[AppliedOperation, ...] = ()
    #: The records of each transaction, and of each client's plain traffic, in order; without
    #: numbers and times, which add nothing to the order.
    records: tuple[tuple[str, tuple[Record, ...]], ...] = ()

    def after(self, records: Iterable[Record]) -> BrokerPast:
        operations, kept = dict.fromkeys(self.operations), dict(self.records)
        for record in records:
            if record.kind == "apply" and record.source == client_hop(record.client):
                number = int(record.op_id.rpartition("#")[2])
                operations[
                    AppliedOperation(
                        record.client, number, record.op_kind, record.filter, record.tx
                    )
                ] = None
            if record.kind not in ("begin", "end"):
                whose = record.tx or client_hop(record.client)
                # Only records of routing depend on the version of the tables.
                view = record.version if record.kind in ("apply", "match") else ""
                same = msgspec.structs.replace(record, seq=0, at_ns=0, version=view)
                kept[whose] = (*kept.get(whose, ()), same)
                if record.kind == "apply" and not record.tx and not is_client(Hop(record.source)):
                    # A transaction may have moved it here, so its place among that one's counts.
                    for tx in [tx for tx in kept if not is_client(Hop(tx))]:
                        kept[tx] = (*kept[tx], same)
        return BrokerPast(tuple(sorted(operations)), tuple(sorted(kept.items())))

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
    """A broker and its states; the first is the one that it was created in.

    A state is a core and its past. The core's steps do not depend on the past, so they are computed
    once for all pasts.
    """

    def __init__(self, broker: Broker, past: BrokerPast, *, deadlines: bool) -> None:
        self.hop = Hop(broker.name)
        self.cores: list[CoreState] = []
        #: Steps for which the broker's code was run.
        self.runs = 0
        self._states = Numbering[tuple[int, int]]()
        self._pasts = Numbering[BrokerPast]()
        self._known: dict[bytes, int] = {}
        self._steps: dict[tuple[int, Hop | None, bytes | str], CoreStep] = {}
        self._deadlines = deadlines
        self._states.of((self._core_number(broker, ()), self._pasts.of(past)))

    def receive(self, state: int, source: Hop, frame: bytes) -> NodeStep:
        return NodeStep(state) if self.fault(state) else self._step(state, source, frame)

    def move_unasked(self, state: int, own_move: str) -> NodeStep:
        return self._step(state, None, own_move)

    def own_moves(self, state: int) -> tuple[str, ...]:
        timers = self.core(state).timers
        # The next slice of long work always comes; deadlines pass only where the scenario says so.
        return timers if self._deadlines else tuple(key for key in timers if key == WORK)

    def fault(self, state: int) -> str:
        return self.core(state).fault

    def key(self, state: int) -> bytes:
        return digest(self.core(state).key, canonical(self.past(state)))

    def core(self, state: int) -> CoreState:
        return self.cores[self._states[state][0]]

    def past(self, state: int) -> BrokerPast:
        return self._pasts[self._states[state][1]]

    def __len__(self) -> int:
        return len(self._states)

    def _step(self, state: int, source: Hop | None, what: bytes | str) -> NodeStep:
        core, past = self._states[state]
        step = self._steps.get((core, source, what))
        if step is None:
            step = self._steps[core, source, what] = self._run(self.cores[core], source, what)
        if step.records:
            past = self._pasts.of(self._pasts[past].after(step.records))
        return NodeStep(self._states.of((step.core, past)), step.sent, step.records)

    def _run(self, core: CoreState, source: Hop | None, what: bytes | str) -> CoreStep:
        """Run the broker's code."""
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
                effects = broker.take(source, [decode_message(what)], NOW).effects
        except Exception as error:  # Any exception is a finding.
            return self._failed(core, f"{type(error).__name__}: {error}")
        return self._carry_out(broker, core, effects, what)

    def _carry_out(
        self, broker: Broker, before: CoreState, effects: list[Effect], what: bytes | str
    ) -> CoreStep:
        sent: list[tuple[Hop, bytes]] = []
        records: list[Record] = []
        timers = dict.fromkeys(before.timers)
        for effect in effects:
            match effect:
                case Forward(hops):
                    assert isinstance(what, bytes)
                    sent.extend((hop, what) for hop in hops)
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
        core = self._core_number(broker, tuple(sorted(timers)))
        return CoreStep(core, tuple(sent), tuple(records))

    def _failed(self, before: CoreState, fault: str) -> CoreStep:
        key = digest(before.key, fault.encode())
        return CoreStep(self._number(before._replace(key=key, fault=fault)))

    def _core_number(self, broker: Broker, timers: tuple[str, ...]) -> int:
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
    """A scripted client and its states: the client, and whether it is connected."""

    def __init__(self, client: ScriptedClient, edge: Hop, script: Script) -> None:
        self.hop = client_hop(client.name)
        self.edge = edge
        self._script = script
        self._states = Numbering[tuple[ScriptedClient, bool]]()
        client, messages = client.open(script)
        self._states.of((client, True))
        #: The frames on its link in the first state.
        self.opening = tuple(encode(message) for message in messages)

    def receive(self, state: int, source: Hop, frame: bytes) -> NodeStep:
        client, here = self._states[state]
        if not here:
            return NodeStep(state)
        client, answers = client.receive(decode_message(frame), self._script)
        sent = tuple((self.edge, encode(answer)) for answer in answers)
        return NodeStep(self._states.of((client, True)), sent)

    def move_unasked(self, state: int, own_move: str) -> NodeStep:
        assert own_move == LEAVE
        return NodeStep(self._states.of((self.client(state), False)), ((self.edge, GONE),))

    def own_moves(self, state: int) -> tuple[str, ...]:
        return (LEAVE,) if self._script.may_leave and self.is_here(state) else ()

    def fault(self, state: int) -> str:
        return ""

    def key(self, state: int) -> bytes:
        return digest(canonical(self._states[state]))

    def client(self, state: int) -> ScriptedClient:
        return self._states[state][0]

    def is_here(self, state: int) -> bool:
        return self._states[state][1]

    def __len__(self) -> int:
        return len(self._states)
