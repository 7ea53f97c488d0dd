"""D-TX that grants a fence to some transactions at once, as if they had lost often.

For tests of fences that cannot wait for losses. All else is the real engine.
"""

from __future__ import annotations

from padres_tx.engines.d_tx.broker import DTx
from padres_tx.protocol.dynamic import DynamicState


class FencesAll(DTx):
    """Every transaction gets a fence."""

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        return True


class FencesA(DTx):
    """Every transaction of client A gets a fence."""

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        return tx.id[0] == "A"


class FencesSome(DTx):
    """Every third transaction of a client gets a fence."""

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        return tx.id[-1] % 3 == 0
