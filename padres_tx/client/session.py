"""One client's conversation with its broker, as a state machine: calls and messages in, events out.

There is no socket, clock, thread or event loop here, so that the same object runs under asyncio,
behind the blocking client and in the simulator. A call returns the one message that has to be sent
for it, or raises and changes nothing; `receive` takes one message from the broker and returns what
it means. The order of messages is the link's business, waiting is the shell's.

One numbering serves everything that the client says: operations, publications and requests alike.
Their order is the order of the client's program, publications included. Numbers may have gaps. The
numbers begin anew with each session; the broker's answer to the join says which life of the client
this is, and (client, life, seq) names one of them for good.

What the client holds, and which callbacks a publication is for, is in `padres_tx.client.holdings`,
by the numbers that the edge broker gives to routing operations. With this the caller's mistakes
raise at the call. The edge broker checks again and has the last say.

Transactions are spoken by engines: `extend` gives an engine its half, and the session hands its
messages over unread. What a transaction changes for the client comes back by `commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from overlay.errors import (
    FilterError,
    NotAdvertised,
    NotHeld,
    OperationError,
    OverlayError,
    ProtocolError,
    from_code,
)
from overlay.filters import Filter, Value, check_point
from overlay.identity import name_text
from overlay.messages import (
    NAME_PATTERN,
    AnyMessage,
    ClientName,
    Done,
    EngineMessage,
    Inspect,
    Join,
    Kind,
    Operation,
    Pub,
    PubRefused,
    Report,
    Version,
    client_hop,
)
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from padres_tx.client.holdings import CALLS_LIMIT, HoldingChange, Holdings
from padres_tx.errors import BadName, TooManyRequests

#: Requests that may wait for their answers at once. A broker keeps a task for each, and a program
#: that has a thousand calls in the air is ahead of the overlay anyway.
PENDING_LIMIT = CALLS_LIMIT

#: What a caller may give where a filter is asked for: a Filter, its mapping, or PADRES text.
FilterLike: TypeAlias = Filter | Mapping[str, Any] | str

#: What a caller may give as a publication's attributes: a mapping, or PADRES text.
PointLike: TypeAlias = Mapping[str, Value] | str


# --- events -------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """A request is through: done, or refused with an error. `body` answers an inspection."""

    req: int
    error: OverlayError | None = None
    body: Any = None


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A publication that one of the client's subscriptions wants; `n["class"]` is n.point's."""

    publisher: ClientName
    #: Its number in its publisher's own order.
    seq: int
    point: dict[str, Value]
    payload: bytes
    #: The transactions that it comes before; `Session.callbacks` needs them.
    hidden: tuple[Version, ...] = ()
    #: Which life of its publisher it belongs to: a program that connects begins a new one.
    life: int = 0

    @property
    def name(self) -> str:
        """What names this publication for good: its publisher, that one's life, and its number."""
        return name_text(self.publisher, self.life, self.seq)

    def __getitem__(self, attribute: str) -> Value:
        return self.point[attribute]

    def json(self) -> Any:
        """The payload as JSON data.

        Raises ValueError if it is none.
        """
        try:
            return msgspec.json.decode(self.payload)
        except msgspec.DecodeError as error:
            raise ValueError(f"the payload of {self.name}: {error}") from None


class PublicationRefused(msgspec.Struct, frozen=True):
    """A publication of this client went nowhere; there is no call left that could raise it.

    An engine without a half at brokers says the same of an operation in somebody's transaction.
    """

    #: The publication's number; 0 for an operation.
    seq: int
    error: OverlayError


class SendMessage(msgspec.Struct, frozen=True):
    """An engine wants this message sent."""

    message: AnyMessage


class EngineEvent(msgspec.Struct, frozen=True):
    """Base of what engines tell the client's transactions; a session passes it on."""


Event: TypeAlias = Answered | Notification | PublicationRefused | SendMessage | EngineEvent


class EngineReceiver(Protocol):
    """The client's half of a transaction engine, as far as a session has to know it."""

    def receive(self, body: msgspec.Raw) -> list[Event]:
        """Take one message of the engine's broker half.

        Raises ProtocolError when the broker may not say that.
        """
        ...


# --- the session --------------------------------------------------------------------------------


class Session:
    """What one client has said, what it waits for, and what it holds.

    Send what a call returns, in the order of the calls. `join` comes first, and its answer before
    anything else; an operator, who only inspects, does not join.
    """

    def __init__(self, name: str) -> None:
        self.name = check_client_name(name)
        #: Which life the client lives; its broker tells it with the answer to the join. What the
        #: client says is numbered from 1 in each life.
        self.life = 0
        self._last = 0
        self._join = 0
        #: Unanswered requests, and what each of them changes, if it is a routing operation.
        self._pending: dict[int, Holdings | None] = {}
        self.advertised = Holdings(name, client_hop(name))
        self.subscribed = Holdings(name, client_hop(name))
        self._halves: dict[str, EngineReceiver] = {}
        #: Makes the half of an engine that speaks first, with somebody else's transaction.
        self.open_half: Callable[[str], EngineReceiver | None] = lambda engine: None

    @property
    def pending(self) -> int:
        """How many requests wait for their answers; `PENDING_LIMIT` is the most."""
        return len(self._pending)

    # --- calls ---

    def join(self) -> Join:
        """Ask to be let in; the answer decides whether the name is free."""
        self._join = self._request(None)
        return Join(self._join, self.name, edge="")

    def operate(
        self, kind: Kind, filter: FilterLike, callback: Any = None, *, events: bool = False
    ) -> Operation:
        """(Un-)subscribe or (un-)advertise; `Answered` follows. A subscription may have a callback,
        and may be for events only.

        Raises FilterError; NotHeld for taking back what is not held in any part; TooManyRequests.
        """
        box = as_filter(filter)
        holdings = self._holdings(kind)
        if kind in ("usub", "uadv") and not holdings.reaches(box):
            raise self.not_held(kind, box)
        req = self._request(holdings)
        holdings.ask(req, kind, box, callback, events=events)
        return Operation(req, kind, self.name, req, box, events=events)

    def publish(self, point: PointLike, payload: bytes = b"") -> Pub:
        """Publish; only a refusal is answered (`PublicationRefused`).

        Raises FilterError; NotAdvertised for a point outside what the client advertised; TypeError
        for a payload that is no bytes.
        """
        at = as_point(point)
        if not self.advertises(at):
            raise self.not_advertised(at)
        data = as_bytes(payload)
        return Pub(self.name, self.number(), at, data, life=self.life)

    def inspect(self, what: str, argument: str = "") -> Inspect:
        """Ask for a part of the broker's state; `Answered` follows, with a body."""
        return Inspect(self._request(None), what, argument)

    def unsent(self, message: Operation | Join | Inspect, error: OverlayError) -> None:
        """Take a call back whose message could not be sent at all."""
        self._answer(message.req, error)

    def extend(self, engine: str, half: EngineReceiver) -> None:
        """Hand over what this engine's broker half sends from now on."""
        assert engine not in self._halves, f"{engine} has its half already"
        self._halves[engine] = half

    # --- for engines ---

    def number(self) -> int:
        """The next number of the client's own order, for something that an engine says."""
        self._last += 1
        return self._last

    def listen(
        self, tx: Version, call: int, filter: Filter, callback: Any, *, events: bool = False
    ) -> None:
        """The client has subscribed in a transaction, with a callback."""
        self.subscribed.listen(tx, call, filter, callback, events=events)

    def withdraw(self, tx: Version, call: int) -> None:
        """An operation in a transaction was not sent after all."""
        self.subscribed.withdraw(tx, call)

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        """A transaction has changed what the client holds; `drained` follows if it drains.

        Raises ProtocolError for numbers that an edge broker cannot have given.
        """
        for holdings, kinds in (
            (self.subscribed, ("sub", "usub")),
            (self.advertised, ("adv", "uadv")),
        ):
            mine = [change for change in changes if change.kind in kinds]
            numbers = {change.number for change in mine}
            if len(numbers) < len(mine) or not all(map(holdings.is_free, numbers)):
                raise ProtocolError(f"{name_text(*tx)} ends with a wrong number of an operation")
            # Who may publish where does not depend on what comes to the client.
            holdings.commit(tx, mine, drains=drains and holdings is self.subscribed)

    def abort(self, tx: Version) -> None:
        """A transaction has changed nothing."""
        self.subscribed.abort(tx)

    def drained(self, tx: Version) -> None:
        """No publication from before a committed transaction will come any more."""
        self.subscribed.drained(tx)

    def callbacks(self, notification: Notification) -> list[Any]:
        """The callbacks that a publication is for, each once, at the moment of its arrival."""
        return self.subscribed.callbacks(notification.point, notification.hidden)

    def advertises(
        self, point: Mapping[str, Value], after: Sequence[tuple[bool, Filter]] = ()
    ) -> bool:
        """Whether the client may publish there, as far as it knows.

        `after` are operations, each yes or no, that come after all that the client knows of.
        """
        return self.advertised.contains(point, after)

    def holds(self, kind: Kind, filter: Filter, after: Sequence[tuple[bool, Filter]] = ()) -> bool:
        """Whether there is something to take back, as far as the client knows; `after` as above."""
        return self._holdings(kind).reaches(filter, after)

    def not_advertised(self, point: Mapping[str, Value]) -> NotAdvertised:
        return NotAdvertised(f"{self.name} has not advertised {format_publication(point)}")

    def not_held(self, kind: Kind, filter: Filter) -> NotHeld:
        verb = "un-subscribe from" if kind == "usub" else "un-advertise"
        return NotHeld(f"{self.name} holds no part of {format_filter(filter)} to {verb}")

    def _holdings(self, kind: Kind) -> Holdings:
        return self.subscribed if kind in ("sub", "usub") else self.advertised

    # --- messages ---

    def receive(self, message: AnyMessage) -> list[Event]:
        """Take one message from the broker.

        Raises ProtocolError when a broker may not say that to a client.
        """
        match message:
            case Pub():
                name, seq, point = ClientName(message.client), message.seq, message.point
                hidden, life = message.hidden, message.life
                return [Notification(name, seq, point, message.payload, hidden, life)]
            case Done():
                error = from_code(message.code, message.reason) if message.code else None
                answered = self._answer(message.req, error, number=message.number)
                if message.req == self._join and error is None:
                    self.life = message.number
                return [answered]
            case PubRefused():
                return [PublicationRefused(message.seq, from_code(message.code, message.reason))]
            case Report():
                return [self._answer(message.req, _fault(message.body), message.body)]
            case EngineMessage():
                half = self._halves.get(message.engine) or self.open_half(message.engine)
                if half is None:
                    raise ProtocolError(f"{self.name} uses no engine {message.engine!r}")
                return half.receive(message.body)
        raise ProtocolError(f"a client takes no {type(message).__name__}")

    # --- requests and what is held ---

    def _request(self, holdings: Holdings | None) -> int:
        self._check_room()
        self._last += 1
        self._pending[self._last] = holdings
        return self._last

    def _check_room(self) -> None:
        if len(self._pending) >= PENDING_LIMIT:
            raise TooManyRequests(
                f"{self.name} waits for {PENDING_LIMIT} answers already; await some first"
            )

    def _answer(
        self, req: int, error: OverlayError | None, body: Any = None, *, number: int = 0
    ) -> Answered:
        if req not in self._pending:
            raise ProtocolError(f"an answer to request {req}, which {self.name} did not make")
        holdings = self._pending[req]
        if holdings is not None and error is not None:
            holdings.refuse(req)
        elif holdings is not None:
            if not holdings.is_free(number):
                raise ProtocolError(f"an answer to request {req} with number {number}")
            holdings.settle(req, number)
        del self._pending[req]
        return Answered(req, error, body)


def _fault(body: Any) -> OverlayError | None:
    """What a broker says instead of a report."""
    if isinstance(body, dict) and body.keys() == {"error"}:
        return OperationError(str(body["error"]))
    return None


def check_client_name(name: str) -> ClientName:
    """The name, if a client may have it.

    Raises BadName.
    """
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise BadName(f"{name!r} is no name for a client: {NAME_PATTERN.pattern}")
    return ClientName(name)


def as_filter(what: FilterLike) -> Filter:
    """The filter that a Filter, a mapping or a PADRES text means.

    Raises FilterError.
    """
    if isinstance(what, Filter):
        return what
    if isinstance(what, str):
        return parse_filter(what)
    if isinstance(what, Mapping):
        return Filter(what)
    raise FilterError(None, f"{type(what).__name__} is no filter: a Filter, a mapping or text is")


def as_point(what: PointLike) -> dict[str, Value]:
    """The attributes that a mapping or a PADRES text means, checked, as a new dict.

    Raises FilterError.
    """
    return parse_publication(what) if isinstance(what, str) else check_point(what)


def as_bytes(payload: object) -> bytes:
    """A payload as it travels.

    Raises TypeError for what is no bytes: a broker would take that for a broken client.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise TypeError(
        f"a payload is bytes, not {type(payload).__name__}: encode it, or publish it as json"
    )
