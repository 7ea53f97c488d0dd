"""Injected bugs about waiting: each breaks one rule on operations that are held for a decision.

D-TX isolates itself from all operations on the shared tables, plain ones and those of other
engines, by letting them wait, and by aborting where that is too late. Each of these rules exists
because of an interleaving of three or four parties. These bugs test whether random runs reach such
interleavings. `injected_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from overlay.broker.core import Broker
from overlay.broker.waiting import WaitingOperations
from overlay.effects import Effect
from overlay.messages import Hop, Leave, Operation
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol import static_state
from padres_tx.protocol.compensation import Undo
from padres_tx.protocol.dynamic import YES, DynamicState, Verdict


class _HidesHeld(WaitingOperations):
    """Held operations that can be hidden."""

    unseen = False

    @property
    def operations(self) -> list[tuple[Hop, Operation | Leave]]:
        return [] if self.unseen else super().operations


@contextmanager
def _held_hidden(broker: Broker) -> Iterator[None]:
    waiting = broker.waiting
    assert isinstance(waiting, _HidesHeld)
    waiting.unseen = True
    try:
        yield
    finally:
        waiting.unseen = False


# --- operations that have to wait ---


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
    """A plan is admitted although an earlier operation of its client waits."""

    def __init__(self, broker: Broker) -> None:
        broker.waiting.__class__ = _HidesHeld
        super().__init__(broker)

    def _check_free(self, tx: static_state.StaticState, undo: Undo) -> None:
        with _held_hidden(self.broker):
            super()._check_free(tx, undo)


# --- transactions that have to abort ---


class CountsEveryYes(DTx):
    """A neighbour's yes counts, even if an operation that came from there before it is held."""

    def accepts_yes(self, tx: DynamicState, neighbour: Hop) -> Verdict:
        return YES


class _HidesUnderWay(Broker):
    @property
    def under_way(self) -> list[tuple[Hop, Operation]]:
        return []


class ReadsUnderWay(DTx):
    """Reads plain operations that are not yet applied everywhere."""

    def __init__(self, broker: Broker) -> None:
        broker.__class__ = _HidesUnderWay
        super().__init__(broker)
