"""Injected bugs in work that is split into slices: each breaks a rule of `overlay.broker.turns`.

Slices of one or two units, which split all work, show them in a run; `in_slices` makes a broker do
so. `injected_bugs` lists them.
"""

from __future__ import annotations

from typing import Any

from overlay.broker.core import Broker
from overlay.effects import Effect
from overlay.messages import Hop, Operation
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol import static_state


def in_slices(broker: Broker) -> None:
    """Let a broker split all work longer than one operation."""
    broker.slice = 1


class LetsOperationsPass(STx):
    """Operations of neighbours overtake a long plan that they come after."""

    def lets_pass(self, context: Any, source: Hop, operation: Operation) -> bool:
        return True


class ReportsWhenDoneHere(STx):
    """Clients learn the outcome of a long plan when their own broker has carried it out."""

    def _finish(self, tx: static_state.StaticState, now: float) -> list[Effect]:
        if tx.complete and tx.status == "committed":
            tx.long = False
        return super()._finish(tx, now)
