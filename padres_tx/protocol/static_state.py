"""A static transaction at the brokers of its span: what they say of it, and what one knows.

Messages and state only; what is done with them is the engine's business (`engines.s_tx.broker`).
"""

from __future__ import annotations

import heapq
import operator
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from overlay.identity import name_text
from overlay.messages import Hop, NameText, Natural, Operation, Pub, is_client
from overlay.stored import stored, stored_value
from overlay.tables.footprints import Footprint
from overlay.wire.codec import StructCodec
from padres_tx.client_messages import FromClient, Step, Submit, TransactionMessage, TxID
from padres_tx.protocol.admission import PlannedEntries
from padres_tx.protocol.broker_messages import Answer, Ask, BrokerMessage, CodeText, ReasonText
from padres_tx.protocol.outcomes import EndedTx


class Plan(BrokerMessage, frozen=True, array_like=True, gc=False, tag=50):
    tx: TxID
    steps: tuple[Step, ...]
    #: The edge broker of each client, as the coordinator's edge broker knows it.
    edges: dict[NameText, NameText]
    #: The time that it has; an edge broker that is cut off tells its clients then. 0: any.
    deadline_s: float = 0.0


class Admitted(BrokerMessage, frozen=True, array_like=True, gc=False, tag=51):
    """What the steps of the clients at one edge broker change, by position; or why not.

    Of a long plan it comes in parts, slice by slice; only the last one is the vote.
    """

    tx: TxID
    edge: NameText
    operations: dict[Natural, Operation]
    #: The life and number of each publication of these clients, by position.
    numbers: dict[Natural, tuple[Natural, Natural]] = msgspec.field(default_factory=dict)
    code: CodeText = ""
    reason: ReasonText = ""
    #: Whether there are parts to come.
    more: bool = False


class DecidePlan(BrokerMessage, frozen=True, array_like=True, gc=False, tag=52):
    tx: TxID
    committed: bool
    code: CodeText = ""
    reason: ReasonText = ""


class Complete(BrokerMessage, frozen=True, array_like=True, gc=False, tag=53):
    """An (un-)advertisement is everywhere, with all that it triggered."""

    tx: TxID
    step: int


class PlanCarriedOut(BrokerMessage, frozen=True, array_like=True, gc=False, tag=54):
    """It is carried out here, behind here, and outside the span where that was told of it."""

    tx: TxID


class PlanSettled(BrokerMessage, frozen=True, array_like=True, gc=False, tag=55):
    """It is carried out everywhere: who reads it in one place finds it in all."""

    tx: TxID


AnyStaticMessage: TypeAlias = (
    Plan | Admitted | DecidePlan | Complete | PlanCarriedOut | PlanSettled | Ask | Answer
)

codec: StructCodec[Any] = StructCodec(FromClient | AnyStaticMessage)


# --- plans that are read step by step ---


class UnreadSubmit(TransactionMessage, frozen=True, array_like=True, gc=False, tag=6):
    """A `Submit` whose steps are not decoded yet: that takes long, and is done in slices."""

    tx: TxID
    deadline_s: float
    steps: tuple[msgspec.Raw, ...]


class UnreadPlan(BrokerMessage, frozen=True, array_like=True, gc=False, tag=50):
    """A `Plan` whose steps are not decoded yet; they go on to the next broker as they are."""

    tx: TxID
    steps: tuple[msgspec.Raw, ...]
    edges: dict[NameText, NameText]
    deadline_s: float = 0.0


_READ_LATER: dict[Any, Any] = {Submit: UnreadSubmit, Plan: UnreadPlan}

#: The same messages for who reads plans step by step (`steps`).
unread: StructCodec[Any] = StructCodec(
    reduce(operator.or_, (_READ_LATER.get(t, t) for t in get_args(FromClient | AnyStaticMessage)))
)

steps: StructCodec[Step] = StructCodec(Step)


class Refusal(NamedTuple):
    code: str
    reason: str


@stored_value("routed")
class Routed(NamedTuple):
    """A publication of a step, and where it has to go."""

    at: int
    pub: Pub
    hops: tuple[Hop, ...]


@stored("preparation")
class Preparation:
    """The job of reading a plan, and of admitting steps of it."""

    __slots__ = ("tx",)

    def __init__(self, tx: StaticState) -> None:
        self.tx = tx


@stored(
    "static-state",
    fields=(
        *("id", "deadline_s", "unread", "steps", "attributes", "edges", "long", "lost"),
        *("upstream", "began_at", "status", "span", "unanswered", "towards", "operations"),
        *("numbers", "entries", "footprint", "own_footprint", "order", "planned", "admitted"),
        *("handled", "started", "_waits_for", "_waiting", "_ready", "queued", "running"),
        *("kept", "awaited", "outside", "acknowledged", "ended", "alone"),
    ),
)
class StaticState:
    """One static transaction at one broker of its span."""

    def __init__(
        self,
        tx: TxID,
        unread: tuple[msgspec.Raw, ...],
        edges: dict[str, str],
        upstream: Hop,
        now: float,
        *,
        long: bool,
        deadline_s: float = 0.0,
    ) -> None:
        self.id = tx
        self.deadline_s = deadline_s
        #: The steps as they came, and those that have been read.
        self.unread = unread
        self.steps: list[Step] = []
        self.attributes = 0
        self.edges = edges
        #: Whether it is carried out in slices. All brokers must agree on that, so it follows from
        #: the number of steps: clients hear of it when all have carried it out.
        self.long = long
        #: Clients that were behind a broker that has lost its memory.
        self.lost: set[str] = set()
        self.upstream = upstream
        self.began_at = now
        self.status = "planned"
        #: The neighbours in the span, the upstream one included.
        self.span: tuple[Hop, ...] = ()
        #: The edge brokers that have not answered yet, and the hop that leads to each.
        self.unanswered: set[str] = set()
        self.towards: dict[str, Hop] = {}
        self.operations: dict[int, Operation] = {}
        self.numbers: dict[int, tuple[int, int]] = {}
        #: The entries that the operations bring or drop, by client and number.
        self.entries: set[tuple[str, int]] = set()
        #: What the operations read and write: all of them, and those of clients of this broker.
        self.footprint = Footprint()
        self.own_footprint = Footprint()
        #: The positions of the steps, each after those it depends on; empty until all are read.
        self.order: list[int] = []
        #: While this broker works out what its clients' steps change: what they hold, and how many
        #: steps have been looked at.
        self.planned: dict[str, PlannedEntries] | None = None
        self.admitted = 0
        #: Steps that have been carried out here, and those under way.
        self.handled: set[int] = set()
        self.started: set[int] = set()
        #: From the commit on: how many steps each one waits for, who waits for it, and a heap of
        #: those that wait for no other.
        self._waits_for: dict[int, int] | None = None
        self._waiting: dict[int, list[int]] = {}
        self._ready: list[int] = []
        #: Whether it has a place in the broker's queue of operations, and whether it is at work.
        self.queued = False
        self.running = False
        #: In a long one: publications to hand over when all brokers have carried it out.
        self.kept: list[Routed] = []
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
        return len(self.handled) == len(self.unread)

    # --- who may go next ---

    def arm(self) -> None:
        """Work out who waits for whom; once, when all steps are read and it is committed."""
        if self._waits_for is not None:
            return
        self._waits_for = {}
        for at, step in enumerate(self.steps):
            before = set(step.after) - self.handled
            self._waits_for[at] = len(before)
            for other in sorted(before):
                self._waiting.setdefault(other, []).append(at)
            if not before and at not in self.started:
                self._ready.append(at)  # In rising order, which is a heap.

    def handle(self, at: int) -> None:
        """A step has been carried out: those that waited for it alone may go."""
        self.started.add(at)
        if at in self.handled:
            return
        self.handled.add(at)
        if self._waits_for is None:
            return
        for other in self._waiting.get(at, ()):
            self._waits_for[other] -= 1
            if not self._waits_for[other] and other not in self.started:
                heapq.heappush(self._ready, other)

    @property
    def ready(self) -> bool:
        """Whether a step may go."""
        while self._ready and self._ready[0] in self.started:
            heapq.heappop(self._ready)
        return bool(self._ready)

    def start(self) -> int:
        """The first step that may go; it is under way from now on."""
        assert self.ready
        at = heapq.heappop(self._ready)
        self.started.add(at)
        return at
