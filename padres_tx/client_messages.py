"""The messages about transactions between a client and its edge broker.

These structs are sent as the body of an `EngineMessage` that names the engine. All engines that run
at brokers share them; the messages between brokers are each engine's own.

A *frame* is a run of operations of one client in one transaction, carried out one after the other
by the client's edge broker: frame 0 is the coordinator's, and each tcm that reaches a client opens
another one there. So a client can send a whole frame at once, without waiting for each answer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from overlay.filters import Filter, Value
from overlay.identity import name_text, parse_name
from overlay.messages import EngineMessage, Kind, Version
from overlay.stored import stored_values
from overlay.wire.codec import StructCodec

#: A transaction's name: its coordinator, the life of that, and a number that is unique in that life
#: (`overlay.identity`).
TxID: TypeAlias = Version

OpKind: TypeAlias = Literal["adv", "uadv", "sub", "usub", "pub", "tcm"]

#: Transactions that a broker may know at once, and those of one client that may be open, so that
#: one client cannot use up the first limit. A transaction that has only begun costs memory, and
#: does not slow plain traffic.
TX_LIMIT = 100_000
TX_PER_CLIENT_LIMIT = 1024

#: Questions for outcomes that one client may have open: each may go to every broker.
QUESTIONS_PER_CLIENT = 64

#: Clients that a tcm may name as its receivers: each broker on the way looks at all of them.
RECEIVERS_LIMIT = 1000

#: Operations that one static transaction may have: together they must fit in a frame. And the
#: dependencies among them: brokers sort them at once.
STEP_LIMIT = 1000
DEPENDENCY_LIMIT = 20 * STEP_LIMIT

#: The longest deadline that is accepted: others wait for a transaction no longer than this.
DEADLINE_LIMIT_S = 3600.0


#: The answer to a question for an outcome. "unknown": no broker that could be asked knows the
#: transaction. "busy": too many questions are open. "waiting": the reply to a question that
#: asks only why there is no answer yet.
Standing: TypeAlias = Literal["committed", "aborted", "unknown", "busy", "waiting"]


def tx_text(tx: TxID) -> str:
    """A transaction's name for people and records, as in "E:mfq0zk3p.b7c1:17"."""
    return name_text(*tx)


def parse_tx(text: str) -> TxID | None:
    """The transaction with this name; None if the text is not a name."""
    return parse_name(text)


class TransactionMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of these messages."""


class Step(TransactionMessage, frozen=True, array_like=True, gc=False):
    """One operation of a client: a filter for (un-)sub and (un-)adv, a point for pub and tcm."""

    client: str
    kind: OpKind
    filter: Filter | None = None
    point: dict[str, Value] | None = None
    payload: bytes = b""
    #: The coordinator's number for its own operation; of a publication, as for plain ones.
    seq: int = 0
    #: In a static transaction: the steps, by position, that must come before this one.
    after: tuple[int, ...] = ()
    #: The clients that a tcm has to reach. In a dynamic transaction it reaches only these, if any
    #: are named, and otherwise all that take it.
    receivers: tuple[str, ...] = ()
    #: Of a subscription: whether it is for events only.
    events: bool = False


# --- from a client ---


class Begin(TransactionMessage, frozen=True, array_like=True, gc=False, tag=1):
    """Begin a transaction. `age` is that of an attempt that has lost, 0 if this is the first.

    The broker believes an age that it has given to this client
    (`padres_tx.protocol.validation.losses`).
    """

    tx: TxID
    deadline_s: float
    age: int = 0


class Operate(TransactionMessage, frozen=True, array_like=True, gc=False, tag=2):
    """One more operation of a frame; answered by `Operated`."""

    tx: TxID
    frame: int
    number: int
    step: Step
    #: Whether the client's own state, without the transaction, has what the operation needs. If the
    #: snapshot has not, they differ, and another attempt may succeed.
    held: bool = False


class Finish(TransactionMessage, frozen=True, array_like=True, gc=False, tag=3):
    """The frame that a tcm opened is complete; `error` not empty: the client could not do it."""

    tx: TxID
    frame: int
    error: str = ""


class Commit(TransactionMessage, frozen=True, array_like=True, gc=False, tag=4):
    """The coordinator asks for the commit, when frame 0 is done; answered by `Ended`."""

    tx: TxID


class Abort(TransactionMessage, frozen=True, array_like=True, gc=False, tag=5):
    """A client in the transaction asks for the abort; answered by `Ended`."""

    tx: TxID
    reason: str = ""


class Submit(TransactionMessage, frozen=True, array_like=True, gc=False, tag=6):
    """A static transaction as a whole; answered by `Ended`."""

    tx: TxID
    deadline_s: float
    steps: tuple[Step, ...]


class Look(TransactionMessage, frozen=True, array_like=True, gc=False, tag=7):
    """A read of the client's own state in a frame; not answered (`padres_tx.looks`).

    Whether the client holds a part of a filter in a table, or advertises a point.
    """

    tx: TxID
    frame: int
    table: Literal["sub", "adv"]
    found: bool
    filter: Filter | None = None
    point: dict[str, Value] | None = None


class AskOutcome(TransactionMessage, frozen=True, array_like=True, gc=False, tag=8):
    """Ask for the outcome of a transaction. Any client may ask, at any broker; answered by
    `OutcomeReply` when it is decided.

    With `at_once` the reply is immediate and has the status "waiting"; its reason names the
    brokers that are unreachable.
    """

    tx: TxID
    at_once: bool = False


# --- to a client ---


class Began(TransactionMessage, frozen=True, array_like=True, gc=False, tag=20):
    """The transaction is known, with this age."""

    tx: TxID
    age: int


class Operated(TransactionMessage, frozen=True, array_like=True, gc=False, tag=21):
    """An operation of a frame is done: everything after it in the transaction sees its effect.

    What it has triggered, by a tcm or an (un-)advertisement, is done as well.
    """

    tx: TxID
    frame: int
    number: int


class Tcm(TransactionMessage, frozen=True, array_like=True, gc=False, tag=22):
    """A transaction control message has arrived: act in this frame, and finish it."""

    tx: TxID
    frame: int
    publisher: str
    seq: int
    point: dict[str, Value]
    payload: bytes
    #: Which life of the publisher it belongs to.
    life: int = 0


class Effective(NamedTuple):
    """A routing operation of a client that a commit has made effective."""

    kind: Kind
    filter: Filter
    #: The number that the client's edge broker has given to it (`Operation.seq`).
    number: int
    #: The client's own number for it (`Step.seq`); 0 if another client has planned it.
    call: int = 0
    #: Of a subscription: whether it is for events only.
    events: bool = False


class Ended(TransactionMessage, frozen=True, array_like=True, gc=False, tag=23):
    """The decision. `code` says why it was aborted: "conflict" is worth another attempt.

    `effective` are this client's routing operations that have become effective.
    """

    tx: TxID
    committed: bool
    code: str = ""
    reason: str = ""
    effective: tuple[Effective, ...] = ()


class Applied(TransactionMessage, frozen=True, array_like=True, gc=False, tag=24):
    """To the coordinator: every broker has applied the decision."""

    tx: TxID


class Drained(TransactionMessage, frozen=True, array_like=True, gc=False, tag=25):
    """To a participant: no publication from before the commit will come any more."""

    tx: TxID


class OutcomeReply(TransactionMessage, frozen=True, array_like=True, gc=False, tag=27):
    """To a client that has asked: the outcome of a transaction, with the code and the reason of an
    abort."""

    tx: TxID
    status: Standing
    code: str = ""
    reason: str = ""


class InDoubt(TransactionMessage, frozen=True, array_like=True, gc=False, tag=26):
    """To a participant, once: the deadline has passed, and this broker cannot end it alone.

    It waits for the broker `awaited`, which decides; `reason` says what is known of the path there.
    """

    tx: TxID
    awaited: str
    reason: str


FromClient: TypeAlias = Begin | Operate | Finish | Commit | Abort | Submit | Look | AskOutcome
ToClient: TypeAlias = Began | Operated | Tcm | Ended | Applied | Drained | InDoubt | OutcomeReply

to_client: StructCodec[ToClient] = StructCodec(ToClient)
from_client: StructCodec[FromClient] = StructCodec(FromClient)


def engine_message(engine: str, body: bytes) -> EngineMessage:
    """The message that carries a body to the engine at the other end."""
    return EngineMessage(engine, msgspec.Raw(body))


#: What may wait at a broker.
stored_values(Step, Operate, Finish, Commit, Look, Effective)
