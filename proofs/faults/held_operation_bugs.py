"""Planted bugs in what waits: each undoes one rule on operations that are held for a decision.

D-TX isolates itself from whatever works on the shared tables, plain operations and the other
engines, by letting them wait, and by giving up where that comes too late. Each of these rules is
there because of some interleaving of three or four parties. That random runs come to such
interleavings is not evident; it is tried with these. `injected_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from overlay.broker.core import Broker
from overlay.effects import Effect
from overlay.messages import Hop, Leave, Operation
from padres_tx.engines.d_tx import DTx
from padres_tx.engines.s_tx import STx
from padres_tx.protocol import static_state
from padres_tx.protocol.compensation import Undo
from padres_tx.protocol.dynamic import YES, Tx, Verdict


class _HidesHeld(Broker):
    """Can be made not to tell what it holds."""

    unseen = False

    @property
    def held(self) -> list[tuple[Hop, Operation | Leave]]:
        return [] if self.unseen else super().held


@contextmanager
def _held_hidden(broker: Broker) -> Iterator[None]:
    assert isinstance(broker, _HidesHeld)
    broker.unseen = True
    try:
        yield
    finally:
        broker.unseen = False


# --- who has to wait ---


class HoldsNothing(DTx):
    """Operations on the shared tables pass, whatever is prepared."""

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return False


class _NeverWaits(Broker):
    def submit(
        self, engine: str, source: Hop, operation: Operation, context: Any, now: float
    ) -> list[Effect]:
        return self.engines[engine].resume(source, operation, context, now)


class OthersAtOnce(DTx):
    """Only plain operations wait; those of other engines do not."""

    def __init__(self, broker: Broker) -> None:
        broker.__class__ = _NeverWaits
        super().__init__(broker)


class Overtakes(STx):
    """A plan is admitted though its client has said something before that waits."""

    def __init__(self, broker: Broker) -> None:
        broker.__class__ = _HidesHeld
        super().__init__(broker)

    def _check_free(self, tx: static_state.Tx, undo: Undo) -> None:
        with _held_hidden(self.broker):
            super()._check_free(tx, undo)


# --- who has to give up ---


class CountsEveryYes(DTx):
    """A neighbour's yes counts, whatever came from there before it and is held."""

    def accepts_yes(self, tx: Tx, neighbour: Hop) -> Verdict:
        return YES


class _HidesUnderWay(Broker):
    @property
    def under_way(self) -> list[tuple[Hop, Operation]]:
        return []


class ReadsUnderWay(DTx):
    """Reads plain operations that are not done everywhere."""

    def __init__(self, broker: Broker) -> None:
        broker.__class__ = _HidesUnderWay
        super().__init__(broker)
