"""The published rules as printed, and rules that are almost right, as variants of engines.

Each class changes one thing of a real engine and names the rule's place in the paper, or the half
of a rule that it leaves out. Each leads to an anomaly that the real engine does not have
(`proofs.explore.scenarios` says which). The rule of the static engine needs an engine of its own,
in `static_paper_rules`.
"""

from __future__ import annotations

from typing import Any

from overlay.broker.core import Broker
from overlay.effects import Effect
from overlay.filters import Filter
from overlay.matching.index import View
from overlay.messages import Hop, Leave, Operation, Version
from overlay.tables.routing import Outcome
from overlay.tables.space import Space
from overlay.tables.versions import Seen, Versions
from padres_tx.client_messages import Look, TxID
from padres_tx.engines.d_tx.broker import CONFLICT, DTx
from padres_tx.engines.d_tx_ni.broker import DTxNI
from padres_tx.protocol.dynamic import YES, Dynamic, DynamicState, OpTask, Verdict
from padres_tx.protocol.dynamic_messages import AnyDynamicMessage, Init, Prepare, TxOperation

#: The origin of an operation that was already acknowledged.
NOWHERE = Hop("")


# --- acknowledgements ---


class PrintedAcknowledgements(DTx):
    """Algorithm 2, line 19: "destinations ≠ ∅ and triggered ≠ ∅" where both must be empty.

    An operation with neither is never acknowledged; one with both is acknowledged too early.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._handled: OpTask | None = None
        self._outcome: Outcome | None = None

    def carry_out(
        self, tx: DynamicState, source: Hop, operation: Operation, task: OpTask, now: float
    ) -> list[Effect]:
        self._handled = task
        return super().carry_out(tx, source, operation, task, now)

    def applied(
        self, tx: DynamicState, source: Hop, operation: Operation, outcome: Outcome
    ) -> None:
        self._outcome = outcome

    def _finished(self, task: OpTask, now: float) -> list[Effect]:
        if task.origin == NOWHERE:
            return []
        if task is self._handled:
            outcome, self._handled, self._outcome = self._outcome, None, None
            assert outcome is not None
            if not (outcome.forward and outcome.triggered):
                return []
            waiting, task.waiting = task.waiting, 0
            effects = super()._finished(task, now)
            task.waiting, task.origin = waiting, NOWHERE
            return effects
        if task.pub is not None and not task.waiting and not task.receivers:
            return []  # It was forwarded nowhere, so no broker acknowledges it.
        return super()._finished(task, now)


class EarlyAcknowledgements(DTx):
    """An operation counts as done when it was forwarded, before what it triggers further on."""

    def is_answered(self, operation: Operation) -> bool:
        return False


# --- snapshots and validation ---


class PrintedIsolation(DTx):
    """Algorithms 1 and 3: the snapshot is named by the latest commit; publications are validated.

    The snapshot at a broker is what it has committed up to that transaction. At Prepare it waits
    for the transactions on the same base whose names sort first, and then checks whether
    publications would be routed differently on what is committed now.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        #: What was committed here, in this broker's order.
        self._order: list[TxID] = []
        self._bases: dict[TxID, tuple[TxID, ...]] = {}
        self._buffered: dict[TxID, Hop] = {}

    def start(self, tx: DynamicState, now: float) -> list[Effect]:
        latest = tuple(self._order[-1:])
        self.begun(tx, latest)
        init = Init(tx.id, tx.age, latest)
        return [*self._trace("begin", tx, now), *self.send(self.others(tx), init)]

    def begun(self, tx: DynamicState, undecided: tuple[TxID, ...]) -> None:
        super().begun(tx, ())
        base = undecided  # The message carries it in this field.
        seen = self._order[: self._order.index(base[0]) + 1] if base else []
        self._views[tx.id] = Seen({*seen, tx.id})
        self._bases[tx.id] = base

    def _prepare(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self._known(prepare.tx, source)
        if tx.open and self._is_behind(tx):
            self._buffered[tx.id] = source
            return []
        return super()._prepare(source, prepare, now)

    def _is_behind(self, tx: DynamicState) -> bool:
        base = self._bases[tx.id]
        others = (o for o in self.txs.values() if o.open and self._bases.get(o.id) == base)
        return any(other.id < tx.id for other in others)

    def judge(self, tx: DynamicState) -> Verdict | None:
        view = self._views[tx.id]
        for other, wrote in self._wrote.items():
            if not view.includes(other) and any(
                tx.footprint.points.meet(filter) for _, filter in wrote.wrote_sub
            ):
                return Verdict(CONFLICT, "a publication would be routed differently now")
        return YES

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        if tx.status == "committed":
            self._order.append(tx.id)
        effects = super().decided(tx, now)
        self._bases.pop(tx.id, None)
        self._buffered.pop(tx.id, None)
        for waiting, source in list(self._buffered.items()):
            if not self._is_behind(self.txs[waiting]):
                del self._buffered[waiting]
                effects += super()._prepare(source, Prepare(waiting), now)
        return effects


class OwnReads(DTx):
    """Validates only a transaction's own reads, against committed and prepared writes."""

    def judge(self, tx: DynamicState) -> Verdict | None:
        view = self._views[tx.id]
        rivals = [wrote for other, wrote in self._wrote.items() if not view.includes(other)]
        rivals += [other.footprint for other in self._preparing() if other is not tx]
        for rival in rivals:
            if filter := tx.footprint.reads_what(rival):
                return self._lost("another", filter)
        return YES


class VotesOfThoseConcerned(DTx):
    """Only brokers that an operation of the transaction has reached vote."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._concerned: dict[TxID, list[Hop]] = {}

    def send(self, hops: tuple[Hop, ...], message: AnyDynamicMessage) -> list[Effect]:
        if isinstance(message, TxOperation):
            self._concerned.setdefault(message.tx, []).extend(hops)
        return super().send(hops, message)

    def _prepare(self, source: Hop, prepare: Prepare, now: float) -> list[Effect]:
        tx = self._known(prepare.tx, source)
        if not tx.open:
            return []
        concerned = self._concerned.get(tx.id, [])
        asked = tuple(hop for hop in self.others(tx) if hop in concerned)
        tx.status = "preparing"
        self.preparing[tx.id] = tx
        tx.awaited = set(asked)
        return [*self.send(asked, prepare), *self._look_again(tx, now)]

    def is_bound(self, tx: DynamicState) -> bool:
        return True  # A broker that is not asked takes whatever the others decide.


class UnreadLooks(DTx):
    """An answer from the client's own state, such as NotHeld, is not validated as a read."""

    def looked(self, tx: DynamicState, hop: Hop, look: Look) -> Verdict:
        return YES


# --- plain traffic beside transactions, on which the paper is silent ---


class UnheldOperations(DTx):
    """Plain operations are applied as soon as they arrive, whatever is prepared here."""

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return False


class DropAtCommit(DTx):
    """A commit drops at once what it supersedes."""

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        effects = super().decided(tx, now)
        if tx.status == "committed":
            self.routing.make_permanent(tx.id)
            self.broker.versions.forget(tx.id)
        return effects


class UnstampedVersions(Versions):
    """Does not stamp publications with the transactions that their edge broker has voted for."""

    def vote(self, version: Version) -> None:
        super().vote(version)
        self.stamp = ()

    def _decide(self, version: Version) -> None:
        super()._decide(version)
        self.stamp = ()


def unstamped(broker: Broker) -> None:
    """Let a broker route plain publications on what is committed there when they arrive."""
    broker.versions = UnstampedVersions()


# --- Definition 2.1 ---


class _ExistsSpace(Space):
    def reaches(self, filter: Filter, view: View | None = None, **_: Any) -> bool:
        return any(entry.positive and exists_overlap(entry.filter, filter) for entry in self)


def exists_overlap(one: Filter, other: Filter) -> bool:
    """Whether two filters overlap in at least one attribute, as the definition says."""
    mine, theirs = one.predicates, other.predicates
    named = [name for name in mine if name in theirs]
    return len(named) < len({*mine, *theirs}) or any(
        Filter({name: mine[name]}).overlaps(Filter({name: theirs[name]})) for name in named
    )


def loosely_attracted(broker: Broker) -> None:
    """Forward subscriptions wherever they overlap an advertisement in one attribute."""
    for hop in broker.routing.neighbours:
        broker.routing.srt[hop] = _ExistsSpace()


# --- operations that have to wait ---


class Overtaken(DTxNI):
    """Messages behind an operation that waits at a broker are handled before it."""

    def take(self, source: Hop, message: Any, now: float) -> list[Effect]:
        return Dynamic.take(self, source, message, now)


# --- compensation ---


class CompensationInOrder(DTxNI):
    """§6.2: operations are compensated in their original order."""

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        self.reserved.of(tx.id).reverse()
        return super().decided(tx, now)
