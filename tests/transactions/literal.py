"""The paper's rules as printed, and other rules that look right, as engines: for tests only.

Each class is one of ours with one rule replaced, as small as possible, so that a test can show what
the rule leads to. The product has no switch for them. S-TX is different enough to be written out,
from Algorithm 4, without its commit phase: it goes wrong long before that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from overlay.broker import Broker
from overlay.codec import StructCodec
from overlay.effects import Effect, Send
from overlay.filters import Filter
from overlay.messages import ClientName, Hop, Leave, Operation, Pub, client_hop, is_client
from overlay.routing import PLAIN, Outcome
from overlay.versions import Seen
from padres_tx.compensation import Undo
from padres_tx.dynamic import YES, OpTask, Tx, Verdict
from padres_tx.engines import broker_factories
from padres_tx.engines.d_tx import CONFLICT, DTx
from padres_tx.engines.d_tx_ni import DTxNI
from padres_tx.engines.s_tx import STx
from padres_tx.wire import FromClient, Step, Submit, TxID, engine_message, tx_text


def ours(**replaced: Any) -> dict[str, Any]:
    """All engines, with some replaced: `ours(d_tx=Other)`."""
    factories: dict[str, Any] = dict(broker_factories())
    factories.update({name.replace("_", "-"): other for name, other in replaced.items()})
    return factories


# --- Definition 2.1 ---


def exists_overlap(one: Filter, other: Filter) -> bool:
    """The overlap of Definition 2.1 as printed: one attribute in common is enough."""
    named = [name for name in one if name in other]
    return len(named) < len(set(one) | set(other)) or any(
        Filter({name: one[name]}).overlaps(Filter({name: other[name]})) for name in named
    )


# --- Algorithm 2, line 19 ---


class AckAsPrinted(DTx):
    """Line 19: acknowledge at once if both sets are *not* empty. Who has neither never does."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._begun: dict[int, OpTask] = {}
        self._outcome = Outcome([], [], [])

    def applied(self, tx: Tx, source: Hop, operation: Operation, outcome: Outcome) -> None:
        self._outcome = outcome

    def acknowledges_at_once(self, outcome: Outcome) -> bool:
        return bool(outcome.forward) and bool(outcome.triggered)

    def _finished(self, task: OpTask, now: float) -> list[Effect]:
        if task.pub is not None or task.frame is not None or not task.tx.open:
            return super()._finished(task, now)
        if id(task) in self._begun:  # Line 27; what was acknowledged is not acknowledged again.
            return [] if task.waiting or not task.req else super()._finished(task, now)
        self._begun[id(task)] = task
        if not self.acknowledges_at_once(self._outcome):
            return []
        waiting, task.waiting = task.waiting, 0
        effects = super()._finished(task, now)
        task.waiting, task.req = waiting, 0
        return effects


class AckEarly(AckAsPrinted):
    """Line 19 as printed, and the evident rule for who has neither."""

    def acknowledges_at_once(self, outcome: Outcome) -> bool:
        return bool(outcome.forward) == bool(outcome.triggered)


# --- compensation (6.2) ---


class OriginalOrder(DTxNI):
    """An abort issues the inverse of every operation, in the original order."""

    def decided(self, tx: Tx, now: float) -> list[Effect]:
        undos = self.reserved.pop(tx.id, [])
        if tx.status != "aborted":
            return []
        effects: list[Effect] = []
        for undo in self.ordered([undo for undo in undos if undo.operation.seq]):
            inverse = _INVERSE[undo.operation.kind]
            plain = Operation(0, inverse, undo.operation.client, 0, undo.operation.filter)  # type: ignore[arg-type]
            effects += self.broker.receive(undo.source, plain, now)
        return effects

    def ordered(self, undos: list[Undo]) -> list[Undo]:
        return undos


class InverseOfEverything(OriginalOrder):
    """In reverse order, but not only of what really changed something."""

    def ordered(self, undos: list[Undo]) -> list[Undo]:
        return undos[::-1]


_INVERSE = {"sub": "usub", "usub": "sub", "adv": "uadv", "uadv": "adv"}


# --- snapshots (Algorithm 1), and how long old versions live ---


class LatestCommitted(DTx):
    """The snapshot is "the latest committed txID": here, all that was committed up to that one."""

    def start(self, tx: Tx, begin: Any, now: float) -> list[Effect]:
        versions, opened = self.broker.versions, dict(self.broker.versions.open)
        versions.open = dict.fromkeys(list(versions.committed)[-1:])  # What Init will carry.
        try:
            return super().start(tx, begin, now)
        finally:
            versions.open = {**opened, tx.id: None}

    def begun(self, tx: Tx, undecided: tuple[TxID, ...]) -> None:
        super().begun(tx, ())
        committed = list(self.broker.versions.committed)
        if not undecided:
            committed = []
        elif undecided[0] in committed:
            del committed[committed.index(undecided[0]) + 1 :]
        self._views[tx.id] = Seen({*committed, tx.id})


class DropAtCommit(DTx):
    """What a commit supersedes goes at once."""

    def decided(self, tx: Tx, now: float) -> list[Effect]:
        effects = super().decided(tx, now)
        if tx.status == "committed":
            self.routing.fold(tx.id)
        return effects


# --- validation (Algorithm 3) ---


class PublicationsOnly(DTx):
    """Algorithm 3 compares the routing of publications with what was committed meanwhile."""

    def judge(self, tx: Tx) -> Verdict | None:
        view = self._views[tx.id]
        for other, wrote in self._wrote.items():
            for _, filter in wrote.wrote_sub if not view.includes(other) else ():
                if any(filter.matches(point) for point in tx.footprint.points):
                    return Verdict(CONFLICT, tx_text(other))
        return YES


class OwnReadsOnly(DTx):
    """Own reads against what is committed and what is prepared, and not the other way round."""

    def judge(self, tx: Tx) -> Verdict | None:
        view, mine = self._views[tx.id], tx.footprint
        wrote = [wrote for other, wrote in self._wrote.items() if not view.includes(other)]
        wrote += self._plain_since[tx.id]
        wrote += [other.footprint for other in self._preparing() if other is not tx]
        return Verdict(CONFLICT, "") if any(map(mine.reads_what, wrote)) else YES


# --- plain operations ---


class NeverHeld(DTx):
    """Plain operations count as committed on arrival, and never wait."""

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return False


# --- Algorithm 4 ---


class OpMsg(msgspec.Struct, frozen=True, array_like=True, tag=90):
    """opMsg(txID, opID, op, D): the whole list of steps stands for its dependencies."""

    tx: TxID
    at: int
    steps: tuple[Step, ...]
    operation: Operation | None = None


_codec: StructCodec[Any] = StructCodec(FromClient | OpMsg)


class Buffered(NamedTuple):
    source: Hop
    message: OpMsg
    waits_for: set[int]


class DependenciesAsPrinted(STx):
    """Algorithm 4 without commit: what waits for what is guessed from the tables.

    The edge broker of a client that a tcm names issues that client's steps when the tcm arrives.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.processed: dict[TxID, list[int]] = {}
        self.buffer: list[Buffered] = []

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        message = _codec.decode(body)
        if isinstance(message, Submit):
            return self._issue(source[1:], message.tx, message.steps, now)
        assert isinstance(message, OpMsg)
        return self._handle_op(source, message, now)

    def _issue(self, client: str, tx: TxID, steps: tuple[Step, ...], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for at, step in enumerate(steps):
            if step.client == client:
                effects += self._handle_op(client_hop(client), OpMsg(tx, at, steps), now)
        return effects

    def _handle_op(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        processed = self.processed.setdefault(message.tx, [])
        needed = {
            before
            for before in all_before(message.steps, message.at)
            if before not in processed and self._is_satisfiable(message.steps[before])
        }
        if needed:
            self.buffer.append(Buffered(source, message, needed))
            return []
        return self._process(source, message, now)

    def _is_satisfiable(self, step: Step) -> bool:
        """Whether the operation will come here, as far as the tables tell."""
        if step.kind not in ("sub", "usub"):
            return False
        assert step.filter is not None
        home = self.routing.crt[ClientName(step.client)].hop
        return any(
            self.leads(hop, home) and space.reaches(step.filter)
            for hop, space in self.routing.srt.items()
        )

    def leads(self, last_hop: Hop, home: Hop) -> bool:
        return last_hop == home

    def _process(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        step = message.steps[message.at]
        if step.filter is not None:
            effects = self._process_operation(source, message, now)
        else:
            effects = self._process_publication(source, message, now)
        self.processed[message.tx].append(message.at)
        for buffered in list(self.buffer):
            if buffered.message.tx == message.tx and message.at in buffered.waits_for:
                buffered.waits_for.discard(message.at)
                if not buffered.waits_for:
                    self.buffer.remove(buffered)
                    effects += self._process(buffered.source, buffered.message, now)
        return effects

    def _process_operation(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        step, operation = message.steps[message.at], message.operation
        if operation is None:
            asked = Operation(0, step.kind, step.client, 0, step.filter)  # type: ignore[arg-type]
            operation = self.broker.admit(source, asked, PLAIN)
        outcome = self.routing.apply(source, operation)
        effects: list[Effect] = [self.broker.record("apply", now, operation, source)]
        for hop, sent in outcome.forward:
            effects += self._pass_on((hop,), msgspec.structs.replace(message, operation=sent))
        return effects + [Send((hop,), sent) for hop, sent in outcome.triggered]

    def _process_publication(self, source: Hop, message: OpMsg, now: float) -> list[Effect]:
        step = message.steps[message.at]
        assert step.point is not None
        pub = Pub(step.client, step.seq, step.point, step.payload)
        hops = [hop for hop in self.routing.prt.hops(pub.point) if is_client(hop) or hop != source]
        effects: list[Effect] = [
            self.broker.record("match", now, pub, source, tuple(hops), op_kind=step.kind)
        ]
        for hop in hops:
            if not is_client(hop):
                effects += self._pass_on((hop,), message)
            elif step.kind == "pub":
                effects.append(Send((hop,), pub))
            elif hop[1:] in step.receivers:
                effects += self._issue(hop[1:], message.tx, message.steps, now)
        return effects

    def _pass_on(self, hops: tuple[Hop, ...], message: OpMsg) -> list[Effect]:
        return [Send(hops, engine_message(self.name, _codec.encode(message)))]


class DependenciesCorrected(DependenciesAsPrinted):
    """Algorithm 4 with the advertisement on the other side, as Section 6.2 (2) says."""

    def leads(self, last_hop: Hop, home: Hop) -> bool:
        return last_hop != home


def all_before(steps: tuple[Step, ...], at: int) -> set[int]:
    """The positions of all steps that come before one (Transitivity)."""
    found: set[int] = set()
    todo = list(steps[at].after)
    while todo:
        before = todo.pop()
        if before not in found:
            found.add(before)
            todo += steps[before].after
    return found
