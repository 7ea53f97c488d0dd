"""Ended transactions that an engine at a broker remembers for a while.

A broker lets a transaction go when every broker has its decision. Its outcome stays here, counted
from then on. So a client that lost its connection inside a commit can ask for it, an operator can
look at it, and a side of the tree that was cut off learns the decision
(`padres_tx.protocol.questions`).

Time is what the core is given as `now`; this module knows neither clocks nor messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from overlay.stored import stored, stored_value
from padres_tx.client_messages import TxID, tx_text

#: How many ended transactions an engine remembers at a broker: some megabytes at most.
OUTCOMES_LIMIT = 10_000

#: For how long: longer than a client needs to be started again, or a broker to come back.
OUTCOME_AGE_S = 600.0

#: Of a reason and of the participants, what is kept: they are for people, and take memory.
REASON_LIMIT = 500
CLIENTS_LIMIT = 20

#: How many an operator is shown at once: they have to fit in one frame.
SHOWN_LIMIT = 500

#: Why a transaction cannot begin: an earlier client of that name has given the same number.
REUSED = "brokers still know an earlier transaction of this name"


@stored_value("ended-tx")
class EndedTx(NamedTuple):
    """How a transaction has ended, as one broker knows it."""

    tx: TxID
    committed: bool
    code: str
    reason: str
    began_at: float
    ended_at: float
    #: Whether this is the coordinator's edge broker, which decided it.
    edge: bool = False
    #: The clients of this broker that took part, or those that it knows of.
    clients: tuple[str, ...] = ()
    #: Whether this broker aborted it by itself, when it had agreed to a commit: the coordinator's
    #: edge broker may have decided otherwise.
    alone: bool = False

    @property
    def status(self) -> str:
        return "committed" if self.committed else "aborted"

    def as_data(self, *, engine: str, now: float) -> dict[str, Any]:
        """For an operator, with the fields of an open one (`protocol.inspection`) and more."""
        return {
            "tx": tx_text(self.tx),
            "engine": engine,
            "coordinator": self.tx[0],
            "edge": self.edge,
            "status": self.status,
            "since_s": round(now - self.began_at, 3),
            "waits_for": "nothing",
            "clients": list(self.clients),
            "ended_s": round(now - self.ended_at, 3),
            "code": self.code,
            "reason": self.reason,
        }


@stored("outcomes", fields=("_ended",))
class Outcomes:
    """The ended transactions of one engine at one broker, the oldest first."""

    def __init__(self) -> None:
        #: With the time from which on each is kept. A plain dict would take ever longer to find its
        #: first key while the first ones are deleted.
        self._ended: OrderedDict[TxID, tuple[float, EndedTx]] = OrderedDict()

    def add(
        self,
        tx: TxID,
        *,
        committed: bool,
        code: str,
        reason: str,
        began_at: float,
        now: float,
        edge: bool = False,
        clients: Iterable[str] = (),
        alone: bool = False,
    ) -> EndedTx:
        """Remember how a transaction has ended; what is too old or too much is forgotten."""
        some = tuple(islice(sorted(clients), CLIENTS_LIMIT))
        ended = EndedTx(
            tx, committed, code, reason[:REASON_LIMIT], began_at, now, edge, some, alone
        )
        self.keep(ended, now)
        return ended

    def keep(self, ended: EndedTx, now: float) -> None:
        """Remember an outcome from now on, whether or not it is still remembered."""
        self._ended.pop(ended.tx, None)
        self._expire(now)
        while len(self._ended) >= OUTCOMES_LIMIT:
            self._ended.popitem(last=False)
        self._ended[ended.tx] = now, ended

    def get(self, tx: TxID, now: float) -> EndedTx | None:
        self._expire(now)
        return self._ended[tx][1] if tx in self._ended else None

    def newest(self, now: float) -> list[EndedTx]:
        """Those that are kept longest, the last one first, as many as an operator is shown."""
        self._expire(now)
        return [ended for _, ended in islice(reversed(self._ended.values()), SHOWN_LIMIT)]

    def _expire(self, now: float) -> None:
        while self._ended:
            kept_at, _ = next(iter(self._ended.values()))
            if now - kept_at <= OUTCOME_AGE_S:
                return
            self._ended.popitem(last=False)
