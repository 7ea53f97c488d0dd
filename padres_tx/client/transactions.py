"""A client's transactions, as a state machine: calls and messages in, events out.

It stands beside `padres_tx.client.session`, as pure as that: no I/O, clock or event loop, so that
the same object runs under asyncio, behind the blocking client and in the simulator. A call returns
the events that follow from it, to be carried out in order, or raises and changes nothing.

    open ──commit──▶ committing ──┐
      └─────abort──▶ aborting ────┴──▶ ended      and from any state to ended, when others abort it

The client that began a transaction coordinates it, and acts in frame 0 until it asks for the
commit. Others take part: a tcm opens a frame, in which the client acts until it finishes the frame
(`padres_tx.client_messages`). The caller's mistakes raise at the call. If others have aborted the
transaction, the next operation raises TransactionAborted, once. An operation after the client's own
commit or abort raises TransactionFinished.

The engine decides which messages a transaction needs (`padres_tx.client.engine_halves`); this
module has what all engines share.

An operation is a `padres_tx.client.operations.Op`, whatever the engine. A commit's changes for this
client go into the session, under the numbers of its edge broker, so that it knows what it holds.
Callbacks count from the call on, as for plain subscriptions. An abort removes them, and an
un-subscription silences them only for what comes after it (`padres_tx.client.holdings`).
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

#: The default deadline of a transaction. Others may have to wait for its decision; a transaction
#: that needs longer than a call may take is stuck.
DEADLINE_S = 30.0

#: Transactions that a client may coordinate at once, and operations that may be pending in one of
#: them: a program that has more pending is ahead of its overlay anyway.
OPEN_LIMIT = TX_PER_CLIENT_LIMIT
OPERATIONS_LIMIT = 1024

#: Bytes of payloads that may be pending in all of them: a size that any process can hold.
BYTES_LIMIT = 32 << 20

#: Tcms that may wait for this client's handlers. A transaction with another one is aborted, which
#: is better than to delay all that wait.
FRAMES_LIMIT = 1024

#: Ended transactions that are remembered, so that a late call learns their outcome.
ENDED_LIMIT = 1024

#: Characters of a reason that are sent: people read it in one line.
REASON_LIMIT = 500

#: Why a client without a handler for a tcm aborts its transaction.
NO_HANDLER = "no handler for this tcm"

#: A plain publication with this attribute is a tcm of an engine without a half at brokers; its
#: value names the engine and the transaction. Filters that do not name it match as before.
TCM_MARK = "$tcm"

Status: TypeAlias = Literal["committed", "aborted"]


class Result(msgspec.Struct, frozen=True):
    """The outcome of a transaction; `code` and `reason` say why it was aborted.

    After a "conflict" another attempt may succeed; its reason names the conflicting transaction.
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
    """Send this message of an operation; call `unsent` if it cannot be sent."""

    tx: ClientTransaction
    number: int
    message: AnyMessage


class OperationDone(EngineEvent, frozen=True):
    """An operation is done everywhere, or has failed alone."""

    tx: ClientTransaction
    number: int
    error: OverlayError | None = None


class TcmReceived(EngineEvent, frozen=True):
    """A tcm has arrived: act in this frame, and finish it."""

    tx: ClientTransaction
    frame: int
    notification: Notification


class SetTransactionTimer(EngineEvent, frozen=True):
    """Call `wake` for the transaction after this time."""

    tx: ClientTransaction
    delay_s: float


class TransactionEnded(EngineEvent, frozen=True):
    """A transaction has ended that this client coordinates or takes part in."""

    tx: ClientTransaction
    result: Result


class CommitApplied(EngineEvent, frozen=True):
    """Every broker has applied the commit."""

    tx: str


class Doubt(EngineEvent, frozen=True):
    """A transaction's deadline has passed, and the client's broker cannot end it by itself.

    It waits for the broker `awaited`, which decides; `reason` names brokers that cannot be reached.
    The client gets the outcome when it is known.
    """

    tx: str
    awaited: str
    reason: str


class DrainedTx(str):
    """The name of a transaction that is drained, with what this client has changed in it."""

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
    """A routing operation that this client has sent in a transaction."""

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
        #: This client's pending operations, with the sizes of their payloads.
        self.pending: dict[int, int] = {}
        self.sent: list[SentOperation] = []
        self.looks = Looks(id)
        self.result: Result | None = None
        #: Whether no publication from before its commit will come any more.
        self.drained = False
        #: Whether the caller has asked for the end, and so learns the outcome.
        self.end_requested = False

    @property
    def engine(self) -> str:
        return self.half.engine

    def __repr__(self) -> str:
        return f"<{self.engine} transaction {self.name}, {self.state}>"


class Terms(NamedTuple):
    """The terms of a transaction."""

    deadline_s: float
    age: int
    #: Options of this engine.
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
        self._bytes_pending = 0
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
        """Begin a transaction; `age` is that of an earlier attempt that was aborted by a conflict.

        Raises UnknownEngine, BadTransaction, TooManyRequests.
        """
        half = self.half(engine)
        for name in options:
            if name not in half.options:
                raise BadTransaction(
                    f"unknown option {name!r} of a {engine} transaction{_known(half.options)}"
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

    # --- calls of coordinators and participants ---

    def operate(
        self, tx: ClientTransaction, frame: int, op: Op, callback: Any = None
    ) -> tuple[int, list[Event]]:
        """Carry out an operation in a frame; `OperationDone` follows, unless it is static.

        Raises TransactionFinished, TransactionAborted, BadTransaction, NotAdvertised, NotHeld,
        TooManyRequests.
        """
        self._check_open(tx, frame)
        if op.is_static and not tx.half.is_static:
            raise BadTransaction(
                f"{tx.engine} cannot take `ops` or `after`: these are for static transactions "
                "(s-tx); here receivers act in their own handlers (on_tcm)"
            )
        if len(tx.pending) >= OPERATIONS_LIMIT:
            raise TooManyRequests(
                f"{tx.name} has {OPERATIONS_LIMIT} pending operations; await some first"
            )
        if self._bytes_pending + len(op.payload) > BYTES_LIMIT:
            raise TooManyRequests(
                f"{self.session.name} has {self._bytes_pending} bytes pending in transactions; "
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
        found = self.session.holds("sub", filter, self._own_changes(tx, frame, "sub"))
        return self._looked(tx, frame, "sub", filter, found=found)

    def advertises(self, tx: ClientTransaction, frame: int, point: Mapping[str, Value]) -> bool:
        """Whether the client may publish there, in the transaction.

        Raises TransactionFinished, TransactionAborted, TooManyRequests.
        """
        self._check_open(tx, frame)
        found = self.session.advertises(point, self._own_changes(tx, frame, "adv"))
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
        """A handler has returned; with an error, it could not do its part."""
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
            raise UnknownTransaction(
                f"{self.session.name} has not begun {name}, or it has ended long ago"
            )
        raise UnknownTransaction(f"{self.session.name} takes no part in {name} of {id[0]}")

    def is_forgotten(self, name: str) -> bool:
        """Whether this names an unknown transaction of this client.

        An earlier client of the same name may have begun it; its outcome can be asked for.
        """
        id = parse_tx(name) if isinstance(name, str) and name not in self._txs else None
        return id is not None and id[0] == self.session.name

    # --- calls of the shell ---

    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]:
        """The message of an operation (0: of the whole transaction) is too large to be sent."""
        return tx.half.unsent(tx, number, error)

    def wake(self, tx: ClientTransaction) -> list[Event]:
        """The time that `SetTransactionTimer` asked for has passed."""
        return tx.half.wake(tx)

    def answered(self, req: int, error: OverlayError | None) -> list[Event]:
        """A plain request was answered; an engine may have made it."""
        return [event for half in self._halves.values() for event in half.answered(req, error)]

    def notified(self, notification: Notification) -> list[Event] | None:
        """The events of a publication with `TCM_MARK`; None if it is a plain one after all."""
        engine, _, name = str(notification.point[TCM_MARK]).partition(" ")
        half = self._open_half(engine)
        return None if half is None else half.notified(name, notification)

    # --- client halves ---

    def half(self, engine: str) -> ClientHalf:
        """The client half of an engine, made when it is first needed.

        Raises UnknownEngine.
        """
        if not isinstance(engine, str):
            raise UnknownEngine(f"invalid engine {engine!r}: expected a name, as 'd-tx'")
        half = self._halves.get(engine)
        if half is None:
            # Here, because client halves import this module.
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

    # --- for client halves ---

    def get(self, id: TxID) -> ClientTransaction | None:
        return self._txs.get(tx_text(id))

    def join(self, half: ClientHalf, id: TxID) -> ClientTransaction:
        """Take part in a transaction of another client."""
        tx = half.transaction_class(id, half, coordinator=False)
        self._txs[tx.name] = tx
        return tx

    def call(self, tx: ClientTransaction, frame: int, notification: Notification) -> list[Event]:
        """A tcm has arrived in the transaction."""
        if tx.state == "aborting":
            return []
        tx.frames[frame] = None
        self._called += 1
        if self._called > FRAMES_LIMIT:
            return self.finish(
                tx, frame, f"{FRAMES_LIMIT} tcms wait at {self.session.name} already"
            )
        return [TcmReceived(tx, frame, notification)]

    def start(self, tx: ClientTransaction, number: int, op: Op) -> None:
        """An operation was sent."""
        tx.pending[number] = len(op.payload)
        self._bytes_pending += len(op.payload)

    def over(self, tx: ClientTransaction, number: int) -> None:
        """An operation is done, or has failed."""
        self._bytes_pending -= tx.pending.pop(number, 0)

    def end(
        self,
        tx: ClientTransaction,
        committed: bool,
        code: str = "",
        reason: str = "",
        changes: Iterable[HoldingChange] = (),
    ) -> list[Event]:
        """The decision is known: apply the changes of what the client holds, if any.

        Raises ProtocolError for changes with wrong numbers.
        """
        if tx.state == "ended":
            return []
        tx.state = "ended"
        for number in list(tx.pending):
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
            if self._txs.get(oldest.name) is oldest:  # Not a later one of the same name.
                del self._txs[oldest.name]
        return [TransactionEnded(tx, tx.result)]

    def drained(self, id: TxID, changes: Iterable[tuple[Kind, Filter]] = ()) -> list[Event]:
        """No publication from before a commit will come to this client any more.

        `changes` are what the client has changed in it, if `end` did not get them.
        """
        self.session.drained(id)
        tx = self.get(id)
        if tx is not None:
            tx.drained = True
        name = tx_text(id)
        return [CommitDrained(self._undrained.pop(name, DrainedTx(name, changes)))]

    def listen(self, tx: ClientTransaction, number: int, op: Op, callback: Any) -> None:
        """Add the callback of a subscription in a transaction, if it has one."""
        if callback is not None:
            assert op.filter is not None
            self.session.listen(tx.id, number, op.filter, callback, events=op.events)

    # --- checks ---

    def _learns(self, tx: ClientTransaction) -> bool:
        """Whether others have ended it and the caller has yet to learn the outcome."""
        learns = tx.state == "ended" and not tx.end_requested
        tx.end_requested = tx.end_requested or learns
        return learns

    def _check_open(self, tx: ClientTransaction, frame: int) -> None:
        if frame not in tx.frames:
            raise TransactionFinished(
                f"{self.session.name} has finished its part in {tx.name}: a handler acts only "
                "until it returns"
            )
        if tx.result is not None and not tx.end_requested:
            raise tx.result.error()
        # A coordinator that receives its own tcm may have asked for the commit before.
        if tx.state != "open" and not (frame and tx.state == "committing"):
            how = tx.result.status if tx.result is not None else tx.state
            raise TransactionFinished(f"{tx.name} is {how} already")

    def _check_held(self, tx: ClientTransaction, frame: int, op: Op) -> None:
        """Raise what the edge broker would refuse, as far as the client knows.

        Operations of the transaction itself count, generously: the broker's decision counts.
        """
        if op.point is not None:
            here = any(sent.kind == "adv" and sent.filter.matches(op.point) for sent in tx.sent)
            if not here and not self.session.advertises(op.point):
                self._looked(tx, frame, "adv", op.point, found=False)
                raise self.session.not_advertised(op.point)
        elif op.kind == "usub" or op.kind == "uadv":
            assert op.filter is not None
            yes: Table = "sub" if op.kind == "usub" else "adv"
            here = any(sent.kind == yes and sent.filter.overlaps(op.filter) for sent in tx.sent)
            if not here and not self.session.holds(op.kind, op.filter):
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
    def _own_changes(tx: ClientTransaction, frame: int, table: Table) -> list[tuple[bool, Filter]]:
        """The transaction's own changes that a look in this frame finds."""
        return [
            (sent.kind == table, sent.filter)
            for sent in tx.sent
            if sent.kind in (table, f"u{table}")
            and (sent.frame == frame or sent.number not in tx.pending)
        ]


# --- small things -------------------------------------------------------------------------------


def check_seconds(name: str, value: float, limit: float) -> float:
    """A number of seconds above 0, up to the limit.

    Raises BadTransaction.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= limit:  # NaN fails this, too.
        raise BadTransaction(
            f"invalid {name} {value!r}: expected seconds above 0, at most {limit:g}"
        )
    return float(value)


def _known(options: tuple[str, ...]) -> str:
    return f": expected {', '.join(options)}" if options else ", which has none"


def _line(text: str) -> str:
    """A reason as it is sent: short, and encodable whatever text an exception has."""
    return str(text)[:REASON_LIMIT].encode(errors="replace").decode()


def _status(committed: bool) -> Status:
    return "committed" if committed else "aborted"
