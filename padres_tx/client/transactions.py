"""A client's transactions, as a state machine: calls and messages in, events out.

It stands beside `padres_tx.client.session`, as pure as that: no I/O, clock or event loop, so that
the same object runs under asyncio, behind the blocking client and in the simulator. A call answers
with the events that follow from it, to be carried out in order, or raises and changes nothing.

    open ──commit──▶ committing ──┐
      └─────abort──▶ aborting ────┴──▶ ended      and from anywhere to ended, when others abort it

Who began a transaction coordinates it and acts in frame 0 until it asks for the commit. Others
take part: a tcm opens a frame, in which the client acts until it finishes that
(`padres_tx.client_messages`). The caller's mistakes raise at the call. What others have aborted
raises TransactionAborted at the next operation, once; acting in what one has ended oneself raises
TransactionFinished.

How a transaction travels is its engine's business (`padres_tx.client.engine_halves`); here is what
all have in common.

Operations are described by `padres_tx.static.Op` whatever the engine. What a commit has changed for
this client goes into the session, so that it knows what it holds, under the numbers of its edge
broker. Callbacks count from the call on, as for plain subscriptions; an abort takes them back, and
an un-subscription silences them only for what comes after it (`padres_tx.client.holdings`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from overlay.errors import OverlayError
from overlay.filters import Filter, Value
from overlay.messages import AnyMessage, Kind
from padres_tx import registry
from padres_tx.client.asking import OutcomeQuestions
from padres_tx.client.holdings import HoldingChange
from padres_tx.client.operations import Op
from padres_tx.client.session import EngineEvent, Event, Notification, Session
from padres_tx.client_messages import DEADLINE_LIMIT_S, TX_PER_CLIENT_LIMIT, TxID, parse_tx, tx_text
from padres_tx.errors import (
    BadTransaction,
    NotCoordinator,
    TooManyRequests,
    TransactionAborted,
    TransactionFinished,
    UnknownEngine,
    UnknownTransaction,
    no_name,
)
from padres_tx.looks import Looks, Table

if TYPE_CHECKING:
    from padres_tx.client.engine_halves import ClientHalf

#: The time a transaction has, unless it says otherwise. What it touches may hold up others until
#: it is decided; one that needs longer than a call may take is stuck.
DEADLINE_S = 30.0

#: Transactions that a client may coordinate at once, and operations that may be under way in one
#: of them: a program that has more in the air is ahead of its overlay anyway.
OPEN_LIMIT = TX_PER_CLIENT_LIMIT
OPERATIONS_LIMIT = 1024

#: Bytes of payloads that may be under way in all of them: what any process can hold.
BYTES_LIMIT = 32 << 20

#: Tcms that may wait for this client's handlers. A transaction that comes on top is told so and
#: aborts: that is better than to hold up all that wait.
FRAMES_LIMIT = 1024

#: Ended transactions that are remembered, so that a late call hears what has become of them.
ENDED_LIMIT = 1024

#: Characters of a reason that travel: it is read by people, in one line.
REASON_LIMIT = 500

#: Why a client without a handler for a tcm aborts its transaction.
NO_HANDLER = "no handler for this tcm"

#: A plain publication with this attribute is a tcm of an engine without a half at brokers; its
#: value names the engine and the transaction. Filters that do not name it are not disturbed.
TCM_MARK = "$tcm"

Status: TypeAlias = Literal["committed", "aborted"]


class Result(msgspec.Struct, frozen=True):
    """How a transaction has ended; `code` and `reason` say why it was aborted.

    A code of "conflict" is worth another attempt; its reason names what it conflicted with.
    """

    tx: str
    engine: str
    status: Status
    code: str = ""
    reason: str = ""

    @property
    def committed(self) -> bool:
        return self.status == "committed"

    def error(self) -> TransactionAborted:
        """The exception for an abort."""
        return TransactionAborted(self.reason, code=self.code, tx=self.tx)


# --- events -------------------------------------------------------------------------------------


class SendForOperation(EngineEvent, frozen=True):
    """Send this for an operation, or tell `unsent` that it cannot be sent."""

    tx: ClientTransaction
    number: int
    message: AnyMessage


class OperationDone(EngineEvent, frozen=True):
    """An operation is done everywhere, or has failed by itself."""

    tx: ClientTransaction
    number: int
    error: OverlayError | None = None


class TcmReceived(EngineEvent, frozen=True):
    """A tcm has come: act in this frame, and finish it."""

    tx: ClientTransaction
    frame: int
    notification: Notification


class SetTransactionTimer(EngineEvent, frozen=True):
    """Call `wake` for the transaction after so long."""

    tx: ClientTransaction
    delay_s: float


class TransactionEnded(EngineEvent, frozen=True):
    """A transaction has ended, one that this client coordinates or has to do with."""

    tx: ClientTransaction
    result: Result


class CommitApplied(EngineEvent, frozen=True):
    """Every broker has carried the commit out."""

    tx: str


class Doubt(EngineEvent, frozen=True):
    """A transaction's deadline has passed, and the client's broker cannot end it by itself.

    It waits for the broker `awaited`, which decides; `reason` names brokers that cannot be reached.
    The client is told the outcome when it is known.
    """

    tx: str
    awaited: str
    reason: str


class DrainedTx(str):
    """The name of a transaction that is drained, and what this client has changed by it."""

    #: The filters that the client has un-subscribed from or un-advertised, in order.
    gave: tuple[Filter, ...]
    #: The filters that it has subscribed to or advertised.
    took: tuple[Filter, ...]

    def __new__(cls, name: str, changes: Iterable[tuple[Kind, Filter]] = ()) -> DrainedTx:
        drained = super().__new__(cls, name)
        listed = list(changes)
        drained.gave = tuple(filter for kind, filter in listed if kind in ("usub", "uadv"))
        drained.took = tuple(filter for kind, filter in listed if kind in ("sub", "adv"))
        return drained


class CommitDrained(EngineEvent, frozen=True):
    """No publication from before the commit will come any more."""

    tx: DrainedTx


# --- transactions -------------------------------------------------------------------------------


class SentOperation(NamedTuple):
    """A routing operation that this client has said in a transaction."""

    number: int
    kind: Kind
    filter: Filter
    frame: int = 0


class ClientTransaction:
    """One transaction, as this client sees it."""

    def __init__(self, id: TxID, half: ClientHalf, *, coordinator: bool) -> None:
        self.id = id
        self.name = tx_text(id)
        self.half = half
        self.coordinator = coordinator
        self.state: Literal["open", "committing", "aborting", "ended"] = "open"
        self.deadline_s = DEADLINE_S
        #: The age of its first attempt, for the next one; 0 until it is known.
        self.age = 0
        #: The frames that this client acts in. A dict, for its order.
        self.frames: dict[int, None] = {0: None} if coordinator else {}
        #: This client's operations that are not done yet, with the sizes of their payloads.
        self.under_way: dict[int, int] = {}
        self.sent: list[SentOperation] = []
        self.looks = Looks(id)
        self.result: Result | None = None
        #: Whether no publication from before its commit will come any more.
        self.drained = False
        #: Whether the caller has asked for the end, and so learns how it came.
        self.end_requested = False

    @property
    def engine(self) -> str:
        return self.half.engine

    def __repr__(self) -> str:
        return f"<{self.engine} transaction {self.name}, {self.state}>"


class Terms(NamedTuple):
    """On what terms a transaction is begun."""

    deadline_s: float
    age: int
    #: What only this engine takes.
    options: Mapping[str, Any]


class Transactions:
    """All transactions of one client, whatever their engines."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._halves: dict[str, ClientHalf] = {}
        self.questions = OutcomeQuestions(self)
        #: By name: those that are not ended, and the last ENDED_LIMIT that are.
        self._txs: dict[str, ClientTransaction] = {}
        self._ended: deque[ClientTransaction] = deque()
        #: Committed ones in which this client has changed something, until they are drained; the
        #: last ENDED_LIMIT of them.
        self._undrained: dict[str, DrainedTx] = {}
        self._coordinated = 0
        self._called = 0
        self._bytes_under_way = 0
        session.open_half = self._open_half

    # --- calls of a coordinator ---

    def begin(
        self,
        engine: str,
        *,
        deadline_s: float = DEADLINE_S,
        age: int = 0,
        **options: Any,
    ) -> tuple[ClientTransaction, list[Event]]:
        """Begin a transaction; `age` is for another attempt at one that has lost.

        Raises UnknownEngine, BadTransaction, TooManyRequests.
        """
        half = self.half(engine)
        for name in options:
            if name not in half.options:
                raise BadTransaction(
                    f"a {engine} transaction has no {name!r}{_there(half.options)}"
                )
        check_seconds("deadline_s", deadline_s, DEADLINE_LIMIT_S)
        if self._coordinated >= OPEN_LIMIT:
            raise TooManyRequests(
                f"{self.session.name} has {OPEN_LIMIT} open transactions; end some first"
            )
        session = self.session
        tx_id = (session.name, session.life, session.number())
        tx = half.transaction_class(tx_id, half, coordinator=True)
        tx.deadline_s = deadline_s
        events = half.begin(tx, Terms(deadline_s, age, options))
        self._txs[tx.name] = tx
        self._coordinated += 1
        return tx, events

    def commit(self, tx: ClientTransaction) -> list[Event]:
        """Ask for the commit; `TransactionEnded` follows, if there is no result already.

        Raises NotCoordinator, TransactionFinished.
        """
        if not tx.coordinator:
            raise NotCoordinator(
                f"{self.session.name} takes part in {tx.name}; only {tx.id[0]} can commit it"
            )
        if self._learns(tx):
            return []
        if tx.state != "open":
            raise TransactionFinished(f"{tx.name} is {tx.state} already")
        events = tx.half.commit(tx)
        if tx.result is None:
            tx.state = "committing"
        tx.end_requested = True
        return events

    # --- calls of everybody in it ---

    def operate(
        self, tx: ClientTransaction, frame: int, op: Op, callback: Any = None
    ) -> tuple[int, list[Event]]:
        """Do something in a frame; `OperationDone` follows, except in a static transaction.

        Raises TransactionFinished, TransactionAborted, BadTransaction, NotAdvertised, NotHeld,
        TooManyRequests.
        """
        self._check_open(tx, frame)
        if op.is_static and not tx.half.is_static:
            raise BadTransaction(
                f"{tx.engine} cannot take `ops` or `after`: these are for static transactions "
                "(s-tx); here receivers act in their own handlers (on_tcm)"
            )
        if len(tx.under_way) >= OPERATIONS_LIMIT:
            raise TooManyRequests(
                f"{tx.name} waits for {OPERATIONS_LIMIT} operations already; await some first"
            )
        if self._bytes_under_way + len(op.payload) > BYTES_LIMIT:
            raise TooManyRequests(
                f"{self.session.name} has {self._bytes_under_way} bytes under way in transactions; "
                "await some operations first"
            )
        self._check_held(tx, frame, op)
        number = self.session.number()
        events = tx.half.operate(tx, frame, number, op, callback)
        if op.filter is not None and op.kind != "pub" and op.kind != "tcm":
            tx.sent.append(SentOperation(number, op.kind, op.filter, frame))
        return number, events

    def holds(self, tx: ClientTransaction, frame: int, filter: Filter) -> bool:
        """Whether the client is subscribed to a part of the filter, in the transaction.

        Raises TransactionFinished, TransactionAborted, TooManyRequests.
        """
        self._check_open(tx, frame)
        found = self.session.holds("sub", filter, self._own_words(tx, frame, "sub"))
        return self._looked(tx, frame, "sub", filter, found=found)

    def advertises(self, tx: ClientTransaction, frame: int, point: Mapping[str, Value]) -> bool:
        """Whether the client may publish there, in the transaction.

        Raises TransactionFinished, TransactionAborted, TooManyRequests.
        """
        self._check_open(tx, frame)
        found = self.session.advertises(point, self._own_words(tx, frame, "adv"))
        return self._looked(tx, frame, "adv", point, found=found)

    def abort(self, tx: ClientTransaction, reason: str = "") -> list[Event]:
        """Ask for the abort; `TransactionEnded` follows, if there is no result already.

        Raises TransactionFinished.
        """
        if self._learns(tx):
            return []
        if tx.state in ("aborting", "ended"):
            raise TransactionFinished(f"{tx.name} is {tx.state} already")
        events = tx.half.abort(tx, _line(reason))
        if tx.result is None:
            tx.state = "aborting"
        tx.end_requested = True
        return events

    def finish(self, tx: ClientTransaction, frame: int, error: str = "") -> list[Event]:
        """What a tcm has asked for is said; with an error, it cannot be done."""
        if frame not in tx.frames:
            return []
        del tx.frames[frame]
        if tx.state == "ended":
            return []
        self._called -= 1
        if tx.state == "aborting":
            return []
        return tx.half.finish(tx, frame, _line(error))

    def find(self, name: str) -> ClientTransaction:
        """The transaction of that name.

        Raises UnknownTransaction.
        """
        tx = self._txs.get(name) if isinstance(name, str) else None
        if tx is not None:
            return tx
        id = parse_tx(name) if isinstance(name, str) else None
        if id is None:
            raise no_name(name)
        if id[0] == self.session.name:
            raise UnknownTransaction(f"{name} is no transaction of ours, or has ended long ago")
        raise UnknownTransaction(f"{self.session.name} takes no part in {name}, which is {id[0]}'s")

    def is_forgotten(self, name: str) -> bool:
        """Whether this is the name of a transaction of ours that this object does not know.

        A client of the same name may have begun it before; its outcome can be asked for.
        """
        id = parse_tx(name) if isinstance(name, str) and name not in self._txs else None
        return id is not None and id[0] == self.session.name

    # --- what the shell has to tell ---

    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]:
        """The message of an operation (0: of the whole) is too large to be sent."""
        return tx.half.unsent(tx, number, error)

    def wake(self, tx: ClientTransaction) -> list[Event]:
        """The time that `SetTransactionTimer` asked for has passed."""
        return tx.half.wake(tx)

    def answered(self, req: int, error: OverlayError | None) -> list[Event]:
        """A plain request is through; it may be an engine's."""
        return [event for half in self._halves.values() for event in half.answered(req, error)]

    def notified(self, notification: Notification) -> list[Event] | None:
        """What a marked publication means (`TCM_MARK`); None if it is a plain one after all."""
        engine, _, name = str(notification.point[TCM_MARK]).partition(" ")
        half = self._open_half(engine)
        return None if half is None else half.notified(name, notification)

    # --- seats ---

    def half(self, engine: str) -> ClientHalf:
        """The half of an engine, taken when it is first asked for.

        Raises UnknownEngine.
        """
        if not isinstance(engine, str):
            raise UnknownEngine(f"an engine has a name, as 'd-tx', and is not {engine!r}")
        half = self._halves.get(engine)
        if half is None:
            # Here, since seats are made of what this module has.
            from padres_tx.client.engine_halves import HALVES

            named = registry.load(engine).client
            made = HALVES[named] if isinstance(named, str) else named
            half = self._halves[engine] = made(engine, self)
            self.session.extend(engine, half)
        return half

    def _open_half(self, engine: str) -> ClientHalf | None:
        try:
            return self.half(engine)
        except UnknownEngine:
            return None

    # --- for seats ---

    def get(self, id: TxID) -> ClientTransaction | None:
        return self._txs.get(tx_text(id))

    def join(self, half: ClientHalf, id: TxID) -> ClientTransaction:
        """Take part in a transaction of another client."""
        tx = half.transaction_class(id, half, coordinator=False)
        self._txs[tx.name] = tx
        return tx

    def call(self, tx: ClientTransaction, frame: int, notification: Notification) -> list[Event]:
        """A tcm has come in the transaction."""
        if tx.state == "aborting":
            return []
        tx.frames[frame] = None
        self._called += 1
        if self._called > FRAMES_LIMIT:
            return self.finish(tx, frame, f"{FRAMES_LIMIT} tcms wait here already")
        return [TcmReceived(tx, frame, notification)]

    def start(self, tx: ClientTransaction, number: int, op: Op) -> None:
        """An operation is under way."""
        tx.under_way[number] = len(op.payload)
        self._bytes_under_way += len(op.payload)

    def over(self, tx: ClientTransaction, number: int) -> None:
        """An operation is done, or has failed."""
        self._bytes_under_way -= tx.under_way.pop(number, 0)

    def end(
        self,
        tx: ClientTransaction,
        committed: bool,
        code: str = "",
        reason: str = "",
        changes: Iterable[HoldingChange] = (),
    ) -> list[Event]:
        """The decision is known here: make the changes of what the client holds count, if any.

        Raises ProtocolError for changes with wrong numbers.
        """
        if tx.state == "ended":
            return []
        tx.state = "ended"
        for number in list(tx.under_way):
            self.over(tx, number)
        tx.result = Result(tx.name, tx.engine, _status(committed), code, reason)
        self._coordinated -= tx.coordinator
        self._called -= sum(1 for frame in tx.frames if frame)
        if committed:
            made = list(changes)
            self.session.commit(tx.id, made, drains=tx.half.drains)
            if tx.half.drains and made:
                drained = DrainedTx(tx.name, [(change.kind, change.filter) for change in made])
                self._undrained[tx.name] = drained
                if len(self._undrained) > ENDED_LIMIT:
                    del self._undrained[next(iter(self._undrained))]
        else:
            self.session.abort(tx.id)
        self._ended.append(tx)
        if len(self._ended) > ENDED_LIMIT:
            oldest = self._ended.popleft()
            if self._txs.get(oldest.name) is oldest:  # Not one that has come again since.
                del self._txs[oldest.name]
        return [TransactionEnded(tx, tx.result)]

    def drained(self, id: TxID, changes: Iterable[tuple[Kind, Filter]] = ()) -> list[Event]:
        """No publication from before a commit will come to this client any more.

        `changes` are what the client has changed by it, if `end` was not told.
        """
        self.session.drained(id)
        tx = self.get(id)
        if tx is not None:
            tx.drained = True
        name = tx_text(id)
        return [CommitDrained(self._undrained.pop(name, DrainedTx(name, changes)))]

    def listen(self, tx: ClientTransaction, number: int, op: Op, callback: Any) -> None:
        """A subscription was made in a transaction, with a callback or without."""
        if callback is not None:
            assert op.filter is not None
            self.session.listen(tx.id, number, op.filter, callback, events=op.events)

    # --- checks ---

    def _learns(self, tx: ClientTransaction) -> bool:
        """Whether all that is left to do is to tell the caller how others have ended it."""
        learns = tx.state == "ended" and not tx.end_requested
        tx.end_requested = tx.end_requested or learns
        return learns

    def _check_open(self, tx: ClientTransaction, frame: int) -> None:
        if frame not in tx.frames:
            raise TransactionFinished(
                f"{self.session.name} has finished its part in {tx.name}: it acts in it only "
                "until its handler returns"
            )
        if tx.result is not None and not tx.end_requested:
            raise tx.result.error()
        # A coordinator that its own tcm calls may have asked for the commit before.
        if tx.state != "open" and not (frame and tx.state == "committing"):
            how = tx.result.status if tx.result is not None else tx.state
            raise TransactionFinished(f"{tx.name} is {how} already")

    def _check_held(self, tx: ClientTransaction, frame: int, op: Op) -> None:
        """What the edge broker would refuse anyway, if the client can tell.

        What the transaction has said itself counts, generously: the broker has the last say.
        """
        if op.point is not None:
            said = any(said.kind == "adv" and said.filter.matches(op.point) for said in tx.sent)
            if not said and not self.session.advertises(op.point):
                self._looked(tx, frame, "adv", op.point, found=False)
                raise self.session.not_advertised(op.point)
        elif op.kind == "usub" or op.kind == "uadv":
            assert op.filter is not None
            yes: Table = "sub" if op.kind == "usub" else "adv"
            said = any(said.kind == yes and said.filter.overlaps(op.filter) for said in tx.sent)
            if not said and not self.session.holds(op.kind, op.filter):
                self._looked(tx, frame, yes, op.filter, found=False)
                raise self.session.not_held(op.kind, op.filter)

    def held_outside(self, op: Op) -> bool:
        """Whether the client's own state, without any transaction, has what an operation needs."""
        if op.point is not None:
            return self.session.advertises(op.point)
        if op.kind == "usub" or op.kind == "uadv":
            assert op.filter is not None
            return self.session.holds(op.kind, op.filter)
        return False

    def _looked(
        self,
        tx: ClientTransaction,
        frame: int,
        table: Table,
        what: Filter | Mapping[str, Value],
        *,
        found: bool,
    ) -> bool:
        if tx.half.reads:
            tx.looks.note(frame, table, what, found=found)
        return found

    @staticmethod
    def _own_words(tx: ClientTransaction, frame: int, table: Table) -> list[tuple[bool, Filter]]:
        """What the transaction has made of the client's words, as a look in this frame finds it."""
        return [
            (said.kind == table, said.filter)
            for said in tx.sent
            if said.kind in (table, f"u{table}")
            and (said.frame == frame or said.number not in tx.under_way)
        ]


# --- small things -------------------------------------------------------------------------------


def check_seconds(name: str, value: float, limit: float) -> float:
    """A number of seconds above 0, up to the limit.

    Raises BadTransaction.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= limit:  # Which NaN is not.
        raise BadTransaction(
            f"{name}: seconds above 0, at most {limit:g}, are needed, not {value!r}"
        )
    return float(value)


def _there(options: tuple[str, ...]) -> str:
    return f"; it has {', '.join(options)}" if options else ""


def _line(text: str) -> str:
    """A reason as it travels: short, and encodable whatever an exception has said."""
    return str(text)[:REASON_LIMIT].encode(errors="replace").decode()


def _status(committed: bool) -> Status:
    return "committed" if committed else "aborted"
