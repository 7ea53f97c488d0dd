"""D-TX that gives fences to certain clients at once, as if they had lost often.

For what has to be tried with fences and cannot wait for losses. The engine is ours but for that.
"""

from __future__ import annotations

from padres_tx.engines.d_tx import DTx
from padres_tx.protocol.dynamic import Tx


class FencesAll(DTx):
    """Every transaction gets a fence."""

    def grants_fence(self, tx: Tx, now: float) -> bool:
        return True


class FencesA(DTx):
    """Transactions of the client A do."""

    def grants_fence(self, tx: Tx, now: float) -> bool:
        return tx.id[0] == "A"


class FencesSome(DTx):
    """Every third transaction of a client does."""

    def grants_fence(self, tx: Tx, now: float) -> bool:
        return tx.id[-1] % 3 == 0
