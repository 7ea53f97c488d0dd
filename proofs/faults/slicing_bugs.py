"""Planted bugs in long work that is cut into slices: each undoes a rule of `broker.turns`.

In a run they show themselves with slices of a unit or two, so that everything is cut;
`injected_bugs` lists them, and `in_slices` makes brokers do that.
"""

from __future__ import annotations

from typing import Any

from overlay.broker.core import Broker
from overlay.effects import Effect
from overlay.messages import Hop, Operation
from padres_tx.engines.s_tx import STx
from padres_tx.protocol import static_state


def in_slices(broker: Broker) -> None:
    """Let a broker cut everything that takes longer than one operation."""
    broker.slice = 1


class LetsOperationsPass(STx):
    """Operations of neighbours pass a long plan that they come after."""

    def lets_pass(self, context: Any, source: Hop, operation: Operation) -> bool:
        return True


class ReportsWhenDoneHere(STx):
    """Clients hear of a long plan when their own broker has carried it out."""

    def _finish(self, tx: static_state.Tx, now: float) -> list[Effect]:
        if tx.complete and tx.status == "committed":
            tx.long = False
        return super()._finish(tx, now)
