"""What a broker knows of one dynamic transaction (D-TX and D-TX-NI): state, and no rules.

A `DynamicState` is one transaction at one broker, from Init to Forget. In it are the *frames* of
the clients of this broker, each a queue of operations that are done one by one, and the operations
that are *under way* here and behind this broker. `padres_tx.protocol.dynamic` says how operations
change it, and `padres_tx.protocol.two_phase` how it comes to its decision; this module knows
neither.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from overlay.broker.requests import Tasks
from overlay.broker.service import RouteChange
from overlay.messages import Hop, Operation, Pub, is_client
from overlay.stored import stored, stored_value
from overlay.tables.footprints import Footprint
from padres_tx.client_messages import Commit, Effective, Finish, Look, Operate, TxID
from padres_tx.protocol.compensation import Undo
from padres_tx.protocol.dynamic_messages import AnyDynamicMessage
from padres_tx.protocol.outcomes import EndedTx
from padres_tx.protocol.validation.losses import LossRecord


@stored_value("verdict")
class Verdict(NamedTuple):
    """A broker's vote: an empty code is a yes."""

    code: str = ""
    reason: str = ""
    #: The client whose transaction or operation it has lost to, if one is known.
    to: str = ""


YES = Verdict()


@stored("frame")
class Frame:
    """Operations of one client that are carried out one after the other."""

    __slots__ = ("busy", "hop", "last", "looks", "number", "pumping", "queue", "trigger", "tx")

    def __init__(self, tx: DynamicState, hop: Hop, number: int, trigger: str = "") -> None:
        self.tx = tx
        self.hop = hop
        self.number = number
        #: For records: the tcm that opened the frame, and the last operation in it.
        self.trigger = trigger
        self.last: tuple[str, ...] = ()
        self.queue: deque[Operate | Look | Finish | Commit] = deque()
        #: Whether an operation of it is under way, and whether this is its turn.
        self.busy = False
        self.pumping = False
        #: How many looks there were in it.
        self.looks = 0


@stored("op-task")
class OpTask:
    """An operation under way here and behind this broker.

    It came from a neighbour, with a request number if that wants an answer, or from a frame of a
    client of this broker.
    """

    __slots__ = (
        "frame",
        "number",
        "origin",
        "pub",
        "receivers",
        "req",
        "tcm",
        "to",
        "tx",
        "waiting",
    )

    def __init__(
        self,
        tx: DynamicState,
        origin: Hop,
        req: int,
        *,
        frame: Frame | None = None,
        number: int = 0,
        to: tuple[str, ...] = (),
    ) -> None:
        self.tx = tx
        self.origin = origin
        self.req = req
        self.frame = frame
        self.number = number
        self.waiting = 0
        #: How many clients have finished what a tcm asks for.
        self.receivers = 0
        self.tcm = False
        #: The clients that a tcm is for, if it names them.
        self.to = to
        self.pub: Pub | None = None


@stored(
    "dynamic-state",
    fields=(
        *("id", "age", "upstream", "began_at", "deadline_at", "status", "awaited", "verdict"),
        *("voted", "abort_requested", "standing", "fenced", "ended", "forgotten", "orphan"),
        *("gave_up", "in_doubt", "alone", "owes", "footprint", "operations", "frames", "tasks"),
        *("behind", "undoing", "back", "changes", "deliveries", "kept"),
        *("effective", "effective_bytes"),
    ),
)
class DynamicState:
    """One transaction at one broker."""

    def __init__(self, tx: TxID, age: int, upstream: Hop, now: float) -> None:
        self.id = tx
        self.age = age
        #: Where the coordinator is; its own hop at its edge broker.
        self.upstream = upstream
        self.began_at = now
        #: At the coordinator's edge: when it has to be decided.
        self.deadline_at = now
        self.status = "active"
        #: The neighbours whose votes or acknowledgements are outstanding.
        self.awaited: set[Hop] = set()
        self.verdict: Verdict | None = None
        self.voted = False
        self.abort_requested = False
        #: At the edge: what earlier attempts have earned it, and whether it has got a fence.
        self.standing = LossRecord()
        self.fenced = False
        #: How it has ended, once that is decided.
        self.ended: EndedTx | None = None
        self.forgotten = False
        #: Whether the neighbour towards the coordinator has lost its memory of it: here it ends.
        self.orphan = False
        #: Whether this broker has ended it by itself at its deadline, before its yes, and has not
        #: heard the decision.
        self.gave_up = False
        #: Whether clients of this broker have been told that they have to wait for the decision.
        self.in_doubt = False
        #: D-TX: whether this side has then ended it alone, after its yes.
        self.alone = False
        #: D-TX-NI: whether that neighbour waited for an acknowledgement: no broker has committed
        #: it.
        self.owes = False
        self.footprint = Footprint()
        #: How many operations of it were carried out here.
        self.operations = 0
        self.frames: dict[tuple[Hop, int], Frame] = {}
        #: What this broker has asked of others and of clients in it.
        self.tasks: Tasks[OpTask] = Tasks()
        #: D-TX-NI: operations of neighbours that have to wait here, and what came behind them.
        self.behind: deque[tuple[Hop, AnyDynamicMessage | OpTask]] = deque()
        #: D-TX-NI: what this broker undoes, and is not undone everywhere yet.
        self.undoing = 0
        #: D-TX-NI: what is still to be undone by this broker: operations that clients have done,
        #: in front the inverses of the one that is being undone.
        self.back: deque[Undo | tuple[Hop, Operation]] = deque()
        #: The changes that others see from the commit on, if it is isolated.
        self.changes: list[RouteChange] = []
        #: Publications that clients of this broker get at commit, in order.
        self.deliveries: list[tuple[Hop, Pub]] = []
        #: How many of them there are for each client, and their bytes.
        self.kept: dict[Hop, tuple[int, int]] = {}
        #: What clients of this broker have said in it, by client; also those that only received.
        self.effective: dict[Hop, list[Effective]] = {}
        self.effective_bytes = 0

    def clear(self) -> None:
        """Drop what is not needed after the decision: while a broker is away, transactions are
        kept that it has not heard the end of."""
        self.deliveries, self.kept, self.changes = [], {}, []
        self.effective = {hop: [] for hop in self.effective}

    @property
    def at_edge(self) -> bool:
        """Whether this is the coordinator's edge broker."""
        return is_client(self.upstream)

    @property
    def open(self) -> bool:
        return self.status not in ("committed", "aborted")

    @property
    def precedence(self) -> tuple[int, TxID]:
        """Who is older: by the age of the first attempt, then by name."""
        return self.age, self.id
