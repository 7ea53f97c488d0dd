"""Injected bugs: for every anomaly, engines with one error that its checker must find.

Each is the real engine or broker with one rule broken, as small as possible. Tests pass them to a
run (`RandomRun(shape, ..., factories=BUGS[name].factories())`); the product has no switch for them.
`paper_rules` has the errors of the paper.

    BUGS["split-s-tx"].kind    the anomaly that its checker must find
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from overlay.broker.core import Broker
from overlay.broker.engine import Engine, EngineFactory
from overlay.effects import Effect, Send
from overlay.filters import Filter
from overlay.messages import Hop, Pub
from overlay.tables.routing import Routing, Scope
from overlay.tables.versions import Seen
from padres_tx.client_messages import TxID, tx_text
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.engines.d_tx_ni.broker import DTxNI
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol import static_state
from padres_tx.protocol.dynamic import YES, Dynamic, DynamicState, OpTask, Verdict
from padres_tx.protocol.dynamic_messages import Decide, Decided
from proofs.checkers import AnomalyKind
from proofs.faults import absent_broker_bugs, held_operation_bugs, slicing_bugs
from proofs.faults.paper_rules import DropAtCommit, UnheldOperations, UnstampedVersions
from proofs.sim.program import RESTART, Shape
from proofs.sim.simulated_overlay import all_engines

Maker: TypeAlias = Callable[[Broker], Engine]


class Bug(NamedTuple):
    """An engine with an error, and the anomaly that it leads to."""

    kind: AnomalyKind
    engine: str
    make: Maker
    #: The shape of the runs that show it, if not the usual one of the engine.
    runs: Shape | None = None

    @property
    def shape(self) -> Shape:
        return self.runs or Shape(self.engine)

    def factories(self) -> dict[str, EngineFactory]:
        """All engines, one of them with the error."""
        return {**all_engines(), self.engine: self.make}


# --- order ---


class _StartsNextEarly(Dynamic):
    """Starts a client's next operation when the one before it has left its edge broker."""

    def _finished(self, task: OpTask, now: float) -> list[Effect]:
        gone: set[int] = self.__dict__.setdefault("_gone_on", set())
        if id(task) in gone:
            return []
        if task.frame is None or task.tcm or not task.waiting:
            return super()._finished(task, now)
        gone.add(id(task))
        # Kept alive, so that no other task gets its id.
        self.__dict__.setdefault("_kept", []).append(task)
        waiting, task.waiting = task.waiting, 0
        effects = super()._finished(task, now)
        task.waiting = waiting
        return effects


class StartsNextEarlyDTx(_StartsNextEarly, DTx):
    pass


class StartsNextEarlyDTxNI(_StartsNextEarly, DTxNI):
    pass


class ReversesPlan(STx):
    """Carries out a plan in reverse order."""

    def _next(self, tx: static_state.StaticState) -> int:
        at = max(at for at in tx.order if at not in tx.started)
        tx.started.add(at)
        return at


# --- partial ---


class _DropsDeliveries(Dynamic):
    """Delivers only the first of several publications."""

    def _deliver(self, tx: DynamicState, now: float) -> list[Effect]:
        del tx.deliveries[1:]
        return super()._deliver(tx, now)


class DropsDeliveriesDTx(_DropsDeliveries, DTx):
    pass


class _DeliversEarly(Dynamic):
    """Delivers publications as they arrive, before the decision."""

    def _publish(
        self, tx: DynamicState, source: Hop, pub: Pub, task: OpTask, now: float, *, tcm: bool
    ) -> list[Effect]:
        effects = super()._publish(tx, source, pub, task, now, tcm=tcm)
        effects += self._deliver(tx, now)
        tx.deliveries.clear()
        return effects


class DeliversEarlyDTxNI(_DeliversEarly, DTxNI):
    pass


class KeepsInSpan(STx):
    """Sends no publication to brokers outside its span."""

    def _publish(self, tx: static_state.StaticState, at: int, now: float) -> list[Effect]:
        effects = super()._publish(tx, at, now)
        return [_without_brokers(e) if isinstance(e, Send) else e for e in effects]


def _without_brokers(send: Send) -> Send:
    return Send(tuple(hop for hop in send.hops if hop.startswith("@")), send.message)


# --- split ---


class _FlipsDecision(Dynamic):
    """A broker in the middle forwards a commit as an abort."""

    def _decide_here(self, source: Hop, decide: Decide, now: float) -> list[Effect]:
        if self.others(self.txs[decide.tx]) and decide.committed:
            decide = Decide(decide.tx, False, "split", "injected")
        return super()._decide_here(source, decide, now)


class FlipsDecisionDTx(_FlipsDecision, DTx):
    pass


class FlipsDecisionDTxNI(_FlipsDecision, DTxNI):
    pass


class AbortsAlone(DTxNI):
    """A side that a restart cuts off from the coordinator aborts without asking."""

    def cut_off(self, tx: DynamicState, reason: str, now: float) -> list[Effect]:
        return self.spread(tx, Decide(tx.id, False, "broker", reason), now)


class FlipsDecisionSTx(STx):
    """A broker in the middle forwards a commit as an abort."""

    def _decide(self, source: Hop, decide: static_state.DecidePlan, now: float) -> list[Effect]:
        tx = self.txs.get(decide.tx)
        if tx is not None and decide.committed and self._beyond(tx, source):
            decide = static_state.DecidePlan(decide.tx, False, "split", "injected")
        return super()._decide(source, decide, now)


# --- ghost ---


class _KeepsMarks(Routing):
    """Keeps the entries of an aborted version."""

    def discard(self, version: TxID, limit: int | None = None) -> bool:
        self._marked.pop(version, None)
        return False


class KeepsMarksDTx(DTx):
    def __init__(self, broker: Broker) -> None:
        broker.routing.__class__ = _KeepsMarks
        super().__init__(broker)


class UndoesNothing(DTxNI):
    """Undoes nothing."""

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        self.reserved.release(tx.id)
        return []


class ExecutesAbortedPlan(STx):
    """Carries out the operations of an aborted plan that were admitted here."""

    def spread(
        self, tx: static_state.StaticState, decide: static_state.DecidePlan, now: float
    ) -> list[Effect]:
        admitted = list(self.reserved.of(tx.id))
        effects = super().spread(tx, decide, now)
        for undo in admitted if not decide.committed else ():
            effects += self.broker.start(
                "", undo.source, undo.operation, None, now, tx=tx_text(tx.id)
            )
        return effects


# --- divergence ---


class _KeepsForwarded(Routing):
    """Attracts subscriptions, but does not take them back when no advertisement is left."""

    def _retarget(
        self,
        source: Hop,
        changed: list[Filter],
        change: Callable[[], None],
        scope: Scope,
        limit: int | None,
    ) -> Any:
        moved, read, _ = super()._retarget(source, changed, change, scope, None)
        return [(hop, sent) for hop, sent in moved if sent.store], read, None


class _Diverges:
    """A mixin in front of an engine, whose constructor it calls."""

    def __init__(self, broker: Broker) -> None:
        broker.routing.__class__ = _KeepsForwarded
        engine: Any = super()  # The engine behind the mixin.
        engine.__init__(broker)


class DivergesDTx(_Diverges, DTx):
    pass


class DivergesDTxNI(_Diverges, DTxNI):
    pass


class DivergesSTx(_Diverges, STx):
    pass


# --- undecided ---


class _WithholdsNo(Dynamic):
    """A broker that would vote no sends nothing, and deadlines never pass."""

    def _answer(self, tx: DynamicState, now: float) -> list[Effect]:
        if tx.verdict is not None and tx.verdict.code:
            return []
        return super()._answer(tx, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        return []


class WithholdsNoDTx(_WithholdsNo, DTx):
    pass


class LosesAcknowledgements(DTxNI):
    """Acknowledgements of the decision are lost, so no broker learns that all have it."""

    def _decided(self, source: Hop, decided: Decided, now: float) -> list[Effect]:
        return []


class WithholdsRefusal(STx):
    """An edge broker that would refuse sends nothing, and deadlines never pass."""

    def _admitted(self, source: Hop, admitted: static_state.Admitted, now: float) -> list[Effect]:
        return [] if admitted.code else super()._admitted(source, admitted, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        return []


# --- duplicate ---


class _DeliversTwice(Dynamic):
    """Delivers every publication twice."""

    def _deliver(self, tx: DynamicState, now: float) -> list[Effect]:
        return super()._deliver(tx, now) * 2


class DeliversTwiceDTx(_DeliversTwice, DTx):
    pass


class DeliversTwiceDTxNI(_DeliversTwice, DTxNI):
    pass


class SendsTwiceSTx(STx):
    """Sends every publication twice."""

    def _publish(self, tx: static_state.StaticState, at: int, now: float) -> list[Effect]:
        effects = super()._publish(tx, at, now)
        return effects + [effect for effect in effects if isinstance(effect, Send)]


# --- dirty ---


class _Everything(Seen):
    """Sees every version, decided or not."""

    __slots__ = ()

    def includes(self, version: TxID) -> bool:
        return True


class SeesEverything(DTx):
    """Reads the tables without a snapshot, including undecided changes."""

    def begun(self, tx: DynamicState, undecided: tuple[TxID, ...]) -> None:
        super().begun(tx, undecided)
        self._views[tx.id] = _Everything(())


# --- cycle ---


class NeverValidates(DTx):
    """Every broker votes yes."""

    def judge(self, tx: DynamicState) -> Verdict | None:
        return YES


# --- handover ---


class Unstamped(DTx):
    def __init__(self, broker: Broker) -> None:
        broker.versions.__class__ = UnstampedVersions
        super().__init__(broker)


CROWD = Shape("d-tx", 4, 6, 6, crowded=True)
LEAVING_CROWD = Shape("d-tx", 4, 6, 6, ("delay", "client-crash"), crowded=True)
RESTARTS = Shape("d-tx-ni", faults=("delay", RESTART))
MIXED_CROWD = Shape("mixed", 4, 6, 6, crowded=True)
ABSENT_CROWD = Shape("s-tx", 4, 6, 6, ("delay", "partition"), crowded=True)
SLICED = Shape("s-tx", 4, 6, 6, slice=1)


def _partitions(engine: str) -> Shape:
    return Shape(engine, 3, 6, 12, ("delay", "partition"))


BUGS: dict[str, Bug] = {
    "order-d-tx": Bug("order", "d-tx", StartsNextEarlyDTx),
    "order-d-tx-ni": Bug("order", "d-tx-ni", StartsNextEarlyDTxNI),
    "order-s-tx": Bug("order", "s-tx", ReversesPlan),
    "partial-d-tx": Bug("partial", "d-tx", DropsDeliveriesDTx),
    "partial-d-tx-ni": Bug("partial", "d-tx-ni", DeliversEarlyDTxNI),
    "partial-s-tx": Bug("partial", "s-tx", KeepsInSpan),
    "split-d-tx": Bug("split", "d-tx", FlipsDecisionDTx),
    "split-d-tx-ni": Bug("split", "d-tx-ni", FlipsDecisionDTxNI),
    "split-alone": Bug("split", "d-tx-ni", AbortsAlone, RESTARTS),
    "split-s-tx": Bug("split", "s-tx", FlipsDecisionSTx),
    "ghost-d-tx": Bug("ghost", "d-tx", KeepsMarksDTx),
    "ghost-d-tx-ni": Bug("ghost", "d-tx-ni", UndoesNothing),
    "ghost-s-tx": Bug("ghost", "s-tx", ExecutesAbortedPlan),
    "divergence-d-tx": Bug("divergence", "d-tx", DivergesDTx),
    "divergence-d-tx-ni": Bug("divergence", "d-tx-ni", DivergesDTxNI),
    "divergence-s-tx": Bug("divergence", "s-tx", DivergesSTx),
    "undecided-d-tx": Bug("undecided", "d-tx", WithholdsNoDTx),
    "undecided-d-tx-ni": Bug("undecided", "d-tx-ni", LosesAcknowledgements),
    "undecided-s-tx": Bug("undecided", "s-tx", WithholdsRefusal),
    "duplicate-d-tx": Bug("duplicate", "d-tx", DeliversTwiceDTx),
    "duplicate-d-tx-ni": Bug("duplicate", "d-tx-ni", DeliversTwiceDTxNI),
    "duplicate-s-tx": Bug("duplicate", "s-tx", SendsTwiceSTx),
    "dirty-d-tx": Bug("dirty", "d-tx", SeesEverything),
    "cycle-d-tx": Bug("cycle", "d-tx", NeverValidates),
    "handover-d-tx": Bug("handover", "d-tx", Unstamped),
    "handover-dropped-d-tx": Bug("handover", "d-tx", DropAtCommit),
    "held-nothing": Bug("cycle", "d-tx", UnheldOperations),
    "held-others-at-once": Bug("divergence", "d-tx", held_operation_bugs.OthersAtOnce, MIXED_CROWD),
    "held-overtaken-by-plan": Bug("divergence", "s-tx", held_operation_bugs.Overtakes, MIXED_CROWD),
    "held-behind-a-yes": Bug("cycle", "d-tx", held_operation_bugs.CountsEveryYes, LEAVING_CROWD),
    "held-further-on": Bug("cycle", "d-tx", held_operation_bugs.ReadsUnderWay, CROWD),
    "absent-after-yes": Bug(
        "split", "d-tx", absent_broker_bugs.EndsAfterItsYes, _partitions("d-tx")
    ),
    "absent-after-answer": Bug(
        "split", "d-tx-ni", absent_broker_bugs.EndsAfterItsAnswer, _partitions("d-tx-ni")
    ),
    "absent-untold": Bug(
        "divergence", "d-tx", absent_broker_bugs.SkipsAbsentNeighbours, _partitions("d-tx")
    ),
    "absent-reordered": Bug(
        "order", "s-tx", absent_broker_bugs.ReordersForAbsentNeighbours, ABSENT_CROWD
    ),
    "absent-unawaited": Bug("order", "s-tx", absent_broker_bugs.WaitsForNoBroker, ABSENT_CROWD),
    "sliced-overtaken": Bug("order", "s-tx", slicing_bugs.LetsOperationsPass, SLICED),
}
