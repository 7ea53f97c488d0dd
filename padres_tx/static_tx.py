"""A static transaction at the brokers of its span: what they say of it, and what one knows.

Messages and state only; what is done with them is the engine's business (`engines.s_tx`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import msgspec

from overlay.codec import StructCodec
from overlay.identity import name_text
from overlay.messages import Hop, Operation, is_client
from padres_tx.admission import in_order
from padres_tx.broker_wire import Answer, Ask, Between
from padres_tx.outcomes import EndedTx
from padres_tx.wire import FromClient, Step, TxID


class Plan(Between, frozen=True, array_like=True, gc=False, tag=50):
    tx: TxID
    steps: tuple[Step, ...]
    #: The edge broker of each client, as the coordinator's edge broker knows it.
    edges: dict[str, str]
    #: The time that it has; an edge broker that is cut off tells its clients then. 0: any.
    deadline_s: float = 0.0


class Admitted(Between, frozen=True, array_like=True, gc=False, tag=51):
    """What the steps of the clients at one edge broker change, by position; or why not."""

    tx: TxID
    edge: str
    operations: dict[int, Operation]
    #: The life and number of each publication of these clients, by position.
    numbers: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    code: str = ""
    reason: str = ""


class Decide(Between, frozen=True, array_like=True, gc=False, tag=52):
    tx: TxID
    committed: bool
    code: str = ""
    reason: str = ""


class Complete(Between, frozen=True, array_like=True, gc=False, tag=53):
    """An (un-)advertisement is everywhere, with all that it triggered."""

    tx: TxID
    step: int


class Decided(Between, frozen=True, array_like=True, gc=False, tag=54):
    """It is carried out here, behind here, and outside the span where that was told of it."""

    tx: TxID


class Settled(Between, frozen=True, array_like=True, gc=False, tag=55):
    """It is carried out everywhere: who reads it in one place finds it in all."""

    tx: TxID


AnyBetween: TypeAlias = Plan | Admitted | Decide | Complete | Decided | Settled | Ask | Answer

codec: StructCodec[Any] = StructCodec(FromClient | AnyBetween)


class Refusal(NamedTuple):
    code: str
    reason: str


class Tx:
    """One static transaction at one broker of its span."""

    def __init__(self, plan: Plan, upstream: Hop, now: float) -> None:
        self.id = plan.tx
        self.steps = plan.steps
        self.edges = plan.edges
        #: Clients that were behind a broker that has lost its memory.
        self.lost: set[str] = set()
        self.upstream = upstream
        self.began_at = now
        self.status = "planned"
        #: The neighbours in the span, the upstream one included.
        self.span: tuple[Hop, ...] = ()
        #: At the coordinator's edge: the edge brokers that have not answered yet.
        self.unanswered: set[str] = set()
        self.operations: dict[int, Operation] = {}
        self.numbers: dict[int, tuple[int, int]] = {}
        #: Steps that have been carried out here, and those under way.
        self.handled: set[int] = set()
        self.started: set[int] = set()
        self.order = in_order(plan.steps) or []
        self.running = False
        self.awaited: set[Hop] = set()
        #: Operations of which neighbours outside the span were told, and have not answered yet.
        self.outside = 0
        self.acknowledged = False
        #: How it has ended, once that is decided.
        self.ended: EndedTx | None = None
        #: Whether this side has ended it without the coordinator's edge broker.
        self.alone = False

    def named(self, at: int) -> str:
        """The name of a publication, as records call it."""
        return name_text(self.steps[at].client, *self.numbers[at])

    @property
    def at_edge(self) -> bool:
        return is_client(self.upstream)

    @property
    def open(self) -> bool:
        return self.status == "planned"

    @property
    def complete(self) -> bool:
        return len(self.handled) == len(self.steps)
