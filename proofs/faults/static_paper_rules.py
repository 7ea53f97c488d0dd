"""Algorithm 4 as an engine: static transactions whose brokers guess what will reach them.

Every operation carries its dependencies. A broker waits for those that, by its tables, will reach
it, and works on the shared tables at once. The edge broker of a client that a tcm names issues that
client's operations when the tcm arrives, which saves modelling the client; the paper's clients do
the same some time later (`GuessedWithClients`). The commit is an operation that depends on all
others, is broadcast, and whose acknowledgements converge (Section 6.2). Aborts are not modelled.

`paper_rules` has the variants of the dynamic engines.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from overlay.broker.core import Broker
from overlay.effects import Effect, Send, SetTimer
from overlay.identity import name_text
from overlay.messages import ClientName, Hop, Operation, Pub, client_hop, is_client
from overlay.tables.routing import PLAIN
from overlay.wire.codec import StructCodec
from padres_tx.client_messages import Ended, FromClient, Step, Submit, TxID, engine_message, tx_text
from padres_tx.engines.s_tx.broker import STx

#: The time that a client takes to act; in an exploration it takes any time.
CLIENT_DELAY_S = 0.001


class OpMsg(msgspec.Struct, frozen=True, array_like=True, tag=90):
    """An operation of a transaction, by its place; the place after the last one is the commit.

    Each message carries all steps, so that every broker knows their dependencies.
    """

    tx: TxID
    at: int
    steps: tuple[Step, ...]
    operation: Operation | None = None


class CmtAck(msgspec.Struct, frozen=True, array_like=True, tag=91):
    """The commit was handled by all brokers behind the sender."""

    tx: TxID


codec: StructCodec[Any] = StructCodec(FromClient | OpMsg | CmtAck)


class Buffered(NamedTuple):
    source: Hop
    message: OpMsg
    waits_for: set[int]


class PrintedDependencies(STx):
    """Algorithm 4 as printed: a dependency arrives if its advertisement is on *its* side."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._processed: dict[TxID, list[int]] = {}
        self._buffer: list[Buffered] = []
        #: Commits that this broker has forwarded: where they came from, and who has not answered.
        self._committing: dict[TxID, tuple[Hop, set[Hop]]] = {}

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = codec.decode(body)
        if isinstance(message, Submit):
            steps, tx = message.steps, message.tx
            effects = self._issue(source[1:], tx, steps, now)
            return effects + self._handle_op(source, OpMsg(tx, len(steps), steps), now)
        if isinstance(message, CmtAck):
            self._committing[message.tx][1].discard(source)
            return self._acknowledge_commit(message.tx)
        assert isinstance(message, OpMsg)
        return self._handle_op(source, message, now)

    def _issue(self, client: str, tx: TxID, steps: tuple[Step, ...], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for at, step in enumerate(steps):
            if step.client == client:
                effects += self._handle_op(client_hop(client), OpMsg(tx, at, steps), now)
        return effects

    def _handle_op(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        """Lines 1 to 10."""
        processed = self._processed.setdefault(message.tx, [])
        needed = {
            before
            for before in _all_before(message.steps, message.at)
            if before not in processed and self._is_satisfiable(message.steps[before])
        }
        if needed:
            self._buffer.append(Buffered(source, message, needed))
            return []
        return self._process(source, message, now)

    def _is_satisfiable(self, step: Step) -> bool:
        """Whether the operation will arrive here, according to the tables (lines 31 to 41)."""
        if step.kind not in ("sub", "usub"):
            return False
        assert step.filter is not None
        home = self.routing.crt[ClientName(step.client)].hop
        return any(
            self._leads(hop, home) and space.reaches(step.filter)
            for hop, space in self.routing.srt.items()
        )

    def _leads(self, last_hop: Hop, home: Hop) -> bool:
        return last_hop == home

    def _process(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        """Lines 12 to 29."""
        if message.at == len(message.steps):
            return self._commit(source, message, now)
        if message.steps[message.at].filter is not None:
            effects = self._change(source, message, now)
        else:
            effects = self._route(source, message, now)
        self._processed[message.tx].append(message.at)
        ready: list[Buffered] = []
        for buffered in list(self._buffer):
            if buffered.message.tx == message.tx and message.at in buffered.waits_for:
                buffered.waits_for.discard(message.at)
                if not buffered.waits_for:
                    self._buffer.remove(buffered)
                    ready.append(buffered)
        for buffered in ready:
            effects += self._process(buffered.source, buffered.message, now)
        return effects

    def _change(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        step, operation = message.steps[message.at], message.operation
        if operation is None:
            assert step.filter is not None and step.kind != "pub" and step.kind != "tcm"
            asked = Operation(0, step.kind, step.client, 0, step.filter)
            operation = self.broker.admit(source, asked, PLAIN)
        outcome = self.routing.apply(source, operation)
        whose = tx_text(message.tx), self.name
        place = _place(message) if is_client(source) else ((), "")
        effects: list[Effect] = [
            self.broker.record_change(
                "apply", now, source, operation, outcome, None, *whose, *place
            )
        ]
        for hop, sent in outcome.forward:
            effects += self._pass_on((hop,), msgspec.structs.replace(message, operation=sent))
        return effects + [Send((hop,), sent) for hop, sent in outcome.triggered]

    def _route(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        step = message.steps[message.at]
        assert step.point is not None
        pub = Pub(step.client, step.seq, step.point, step.payload)
        found = self.routing.prt.hops(pub.point)
        hops = tuple(hop for hop in found if is_client(hop) or hop != source)
        whose: dict[str, Any] = {"tx": tx_text(message.tx), "op_kind": step.kind}
        effects: list[Effect] = []
        if is_client(source):
            after, trigger = _place(message)
            effects.append(
                self.broker.record(
                    "publish",
                    now,
                    pub,
                    source,
                    engine=self.name,
                    after=after,
                    trigger=trigger,
                    **whose,
                )
            )
        effects.append(
            self.broker.record("match", now, pub, source, hops, engine=self.name, **whose)
        )
        for hop in hops:
            if not is_client(hop):
                effects += self._pass_on((hop,), message)
            elif step.kind == "pub":
                effects.append(Send((hop,), pub))
            elif hop[1:] in step.receivers:
                effects += self._ask(hop[1:], message, now)
        return effects

    def _ask(self, client: str, message: OpMsg, now: float) -> list[Effect]:
        """A client has received the tcm that asks it to act."""
        return self._issue(client, message.tx, message.steps, now)

    def _pass_on(self, hops: tuple[Hop, ...], message: OpMsg | CmtAck) -> list[Effect]:
        return [Send(hops, engine_message(self.name, codec.encode(message)))] if hops else []

    # --- the commit ---

    def _commit(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        others = tuple(hop for hop in self.routing.neighbours if hop != source)
        self._committing[message.tx] = (source, set(others))
        whose: dict[str, Any] = {"tx": tx_text(message.tx), "outcome": "committed"}
        decided = self.broker.record("decide", now, None, source, others, engine=self.name, **whose)
        return [
            decided,
            *self._pass_on(others, message),
            *self._acknowledge_commit(message.tx),
        ]

    def _acknowledge_commit(self, tx: TxID) -> list[Effect]:
        source, awaited = self._committing[tx]
        if awaited:
            return []
        if is_client(source):
            return [self._tell(source, Ended(tx, committed=True))]
        return self._pass_on((source,), CmtAck(tx))


class GuessedDependencies(PrintedDependencies):
    """Algorithm 4 with the advertisement on the other side, as the text of Section 6.2 has it."""

    def _leads(self, last_hop: Hop, home: Hop) -> bool:
        return last_hop != home


class GuessedWithClients(GuessedDependencies):
    """The same with clients that act in their own time, when they have received a tcm."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: By timer: the client that has still to act, and the tcm.
        self._asked: dict[str, tuple[str, OpMsg]] = {}

    def _ask(self, client: str, message: OpMsg, now: float) -> list[Effect]:
        key = f"{client}:{message.at}"
        self._asked[key] = client, message
        return [SetTimer(f"{self.name}/{key}", CLIENT_DELAY_S)]

    def wake(self, key: str, now: float) -> list[Effect]:
        client, message = self._asked.pop(key)
        return self._issue(client, message.tx, message.steps, now)


def _place(message: OpMsg) -> tuple[tuple[str, ...], str]:
    """For records: the publications of the same client that an operation comes after, and the tcm
    that it reacts to. All other orders follow from these."""
    step = message.steps[message.at]
    before = [message.steps[at] for at in sorted(_all_before(message.steps, message.at))]
    published = [each for each in before if each.filter is None]
    after = tuple(_named(each) for each in published if each.client == step.client)
    asked = [_named(each) for each in published if step.client in each.receivers]
    return after, asked[-1] if asked else ""


def _named(step: Step) -> str:
    """The name of a publication in records; clients of the paper have no lives."""
    return name_text(step.client, 0, step.seq)


def _all_before(steps: tuple[Step, ...], at: int) -> set[int]:
    """The places of all steps that come before one (Transitivity); all, before the commit."""
    if at == len(steps):
        return set(range(at))
    found: set[int] = set()
    todo = list(steps[at].after)
    while todo:
        before = todo.pop()
        if before not in found:
            found.add(before)
            todo += steps[before].after
    return found
