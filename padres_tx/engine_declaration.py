"""What an engine declares: its halves, and its properties.

An engine's module has one object of this kind, called `engine`. Code that has to treat engines
differently (checkers, benchmarks, reports, the simulator, examples) reads it, by
`padres_tx.registry`, and never compares with the name of an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from overlay.broker.engine import Engine
    from padres_tx.client.engine_halves import ClientHalf

#: An anomaly that an engine can promise never to show.
Promise: TypeAlias = Literal[
    "order",
    "partial",
    "split",
    "ghost",
    "divergence",
    "undecided",
    "duplicate",
    "dirty",
    "cycle",
    "handover",
]

#: What each of them is, in the order in which people read about them.
PROMISES: Final[dict[Promise, str]] = {
    "order": "operations out of their order at a broker",
    "partial": "publications of a transaction delivered in part, too early, or after an abort",
    "split": "brokers or clients disagree on an outcome",
    "ghost": "routing entries left by an aborted transaction",
    "divergence": "tables or routes other than what all operations come to",
    "undecided": "a transaction without an outcome",
    "duplicate": "a publication handed to one client twice",
    "dirty": "a transaction's publication routed on uncommitted, or on a part of, changes",
    "cycle": "transactions that no serial order explains, predicate reads included",
    "handover": "a plain publication on both sides of a commit, or on neither",
}

#: What the overlay promises by itself, whatever transactions do.
OVERLAY: Final[frozenset[Promise]] = frozenset({"divergence", "duplicate"})

#: What every engine promises whose transactions are decided by brokers.
ATOMIC: Final[frozenset[Promise]] = OVERLAY | {"order", "partial", "split", "ghost", "undecided"}

#: What an isolated engine promises beside that.
ISOLATED: Final[frozenset[Promise]] = ATOMIC | {"dirty", "cycle", "handover"}


@dataclass(frozen=True, kw_only=True)
class EngineProperties:
    """What others may rely on. The defaults are expected of an engine that is not installed here,
    and of which only records are known."""

    #: The anomalies that no run of this engine ever shows.
    promises: frozenset[Promise] = ATOMIC

    #: Whether changes of the tables carry a version of their own until the decision, so that only
    #: their transaction sees them; the records of such changes carry the transaction's name as
    #: their version. Otherwise all traffic sees a change as soon as it is made.
    versioned: bool = False

    #: Whether each broker concerned carries out a plan of the whole transaction by itself, so that
    #: operations do not travel from broker to broker between them.
    replicated: bool = False

    #: Whether a side that a restarted broker has cut off from the coordinator ends transactions by
    #: itself, perhaps otherwise than the coordinator's side.
    ends_alone: bool = False

    @property
    def isolated(self) -> bool:
        """Whether its transactions come one after the other, as if no others were there."""
        return "cycle" in self.promises


@dataclass(frozen=True, kw_only=True)
class EngineDeclaration(EngineProperties):
    """An engine: `engine = EngineDeclaration(broker=MyEngine, client="dynamic", ...)`."""

    #: The half at brokers: the class, or its place as "module:Class", which clients do not import
    #: then. None if the engine needs nothing at brokers. See `padres_tx.registry.broker_half`.
    broker: type[Engine] | str | None

    #: The client's half: "dynamic" sends each operation as it comes, "static" sends one plan at the
    #: commit; or a class of its own (`padres_tx.client.engine_halves`).
    client: Literal["dynamic", "static"] | type[ClientHalf]

    @property
    def is_static(self) -> bool:
        """Whether the coordinator gives all operations at once, those of other clients included."""
        if isinstance(self.client, str):
            return self.client == "static"
        return self.client.is_static

    @property
    def options(self) -> tuple[str, ...]:
        """What a transaction of this engine can be given when it begins, beside a deadline."""
        return () if isinstance(self.client, str) else self.client.options
