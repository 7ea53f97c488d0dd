"""Injected bugs about unreachable brokers: each breaks one rule of going on without them.

`injected_bugs` lists them; the runs that show them have partitions.
"""

from __future__ import annotations

from typing import Any

from overlay.broker.core import Broker
from overlay.broker.plain_requests import PlainRequests
from overlay.broker.requests import Task
from overlay.effects import Effect, Send
from overlay.messages import BrokerName, Hop, Join, Leave, Operation
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.engines.d_tx_ni.broker import DTxNI
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol.dynamic import Dynamic
from padres_tx.protocol.dynamic_messages import Decide
from padres_tx.protocol.dynamic_state import DynamicState


class _EndsAlone(Dynamic):
    """Ends a transaction at its deadline when cut off, even after its vote or acknowledgement."""

    _is_overdue = False

    def overdue(self, tx: DynamicState, now: float) -> list[Effect]:
        self._is_overdue = True
        try:
            return super().overdue(tx, now)
        finally:
            self._is_overdue = False

    def is_bound(self, tx: DynamicState) -> bool:
        return not self._is_overdue and super().is_bound(tx)

    def _decide_here(self, source: Hop, decide: Decide, now: float) -> list[Effect]:
        # The real engine would treat a later commit as a neighbour's protocol error.
        tx = self.txs.get(decide.tx)
        if tx is not None and tx.gave_up:
            decide = Decide(decide.tx, False, decide.code, decide.reason)
        return super()._decide_here(source, decide, now)


class EndsAfterItsYes(_EndsAlone, DTx):
    pass


class EndsAfterItsAnswer(_EndsAlone, DTxNI):
    pass


class _SkippingRequests(PlainRequests):
    """Sends nothing to a neighbour that cannot be reached, instead of leaving it to the link."""

    def ask(
        self, task: Task, hop: Hop, message: Operation | Join | Leave, *, required: bool = False
    ) -> Effect:
        if self._broker.reach.is_absent(hop):
            return Send((), message)
        return super().ask(task, hop, message, required=required)


class SkipsAbsentNeighbours(DTx):
    def __init__(self, broker: Broker) -> None:
        broker.requests.__class__ = _SkippingRequests
        super().__init__(broker)


class _ReorderingRequests(PlainRequests):
    """Keeps what an absent neighbour is asked, the last operation first."""

    missed: dict[Hop, list[Effect]]

    def ask(
        self, task: Task, hop: Hop, message: Operation | Join | Leave, *, required: bool = False
    ) -> Effect:
        sent = super().ask(task, hop, message, required=required)
        if self._broker.reach.is_absent(hop) and not required and isinstance(message, Operation):
            self.missed.setdefault(hop, []).insert(0, sent)
            return Send((), message)
        return sent


class _ReorderingBroker(Broker):
    """Sends what an absent neighbour has missed when it is back, the last operation first."""

    def link_up(self, neighbour: BrokerName, now: float) -> list[Effect]:
        assert isinstance(self.requests, _ReorderingRequests)
        return super().link_up(neighbour, now) + self.requests.missed.pop(Hop(neighbour), [])


class ReordersForAbsentNeighbours(STx):
    def __init__(self, broker: Broker) -> None:
        broker.__class__ = _ReorderingBroker
        broker.requests.__class__ = _ReorderingRequests
        vars(broker.requests)["missed"] = {}
        super().__init__(broker)


class WaitsForNoBroker(STx):
    """An (un-)advertisement of a plan is complete at once, as if all other brokers were absent."""

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        effects = super().resume(source, operation, context, now)
        if operation.kind in ("adv", "uadv"):
            effects += self.completed(context, now)
        return effects


class LeavesOutTheAbsent(STx):
    """An (un-)advertisement of a plan counts as complete without absent brokers of the span."""

    def requires_answers(self, operation: Operation) -> tuple[Hop, ...]:
        return ()
