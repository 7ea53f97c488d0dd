"""One client's session with its broker, as a state machine: calls and messages in, events out.

There is no socket, clock, thread or event loop here, so that the same object runs under asyncio,
behind the blocking client and in the simulator. A call returns the one message that has to be sent
for it, or raises and changes nothing. `receive` takes one message from the broker and returns the
events that follow from it. The link keeps the order of messages; the shell waits.

Operations, publications and requests share one numbering, in the order of the client's calls.
Numbers may have gaps. They begin anew with each session. The broker's answer to the join says which
life of the client this is, and (client, life, seq) names one of them for good.

`padres_tx.client.holdings` knows what the client holds, and which callbacks a publication is for,
by the numbers that the edge broker gives to routing operations. So the caller's mistakes raise at
the call. The edge broker checks again, and its decision counts.

The messages of transactions belong to engines: `extend` registers the client half of an engine,
which gets them unread. What a transaction changes for the client is applied by `commit`.
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
    Gap,
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
#: with a thousand pending calls is ahead of the overlay anyway.
PENDING_LIMIT = CALLS_LIMIT

#: A filter as a caller may give it: a Filter, its mapping, or PADRES text.
FilterLike: TypeAlias = Filter | Mapping[str, Any] | str

#: A publication's attributes as a caller may give them: a mapping, or PADRES text.
PointLike: TypeAlias = Mapping[str, Value] | str


# --- events -------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """A request was carried out, or refused with an error; `body` is what was inspected."""

    req: int
    error: OverlayError | None = None
    body: Any = None


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A publication that matches a subscription of the client; `n["class"]` reads its point."""

    publisher: ClientName
    #: Its number, in the order of its publisher.
    seq: int
    point: dict[str, Value]
    payload: bytes
    #: The transactions that it comes before; `Session.callbacks` needs them.
    hidden: tuple[Version, ...] = ()
    #: The life of its publisher: each connecting program begins a new one.
    life: int = 0

    @property
    def name(self) -> str:
        """The unique name of this publication: its publisher, the life of that, and its number."""
        return name_text(self.publisher, self.life, self.seq)

    def __getitem__(self, attribute: str) -> Value:
        return self.point[attribute]

    def json(self) -> Any:
        """The payload, decoded from JSON.

        Raises ValueError if it is not JSON.
        """
        try:
            return msgspec.json.decode(self.payload)
        except msgspec.DecodeError as error:
            raise ValueError(f"the payload of {self.name}: {error}") from None


class PublicationRefused(msgspec.Struct, frozen=True):
    """The broker has refused a publication of this client, after the call has returned.

    An engine without a half at brokers reports an operation in another client's transaction so.
    """

    #: The publication's number; 0 for an operation.
    seq: int
    error: OverlayError


class SendMessage(msgspec.Struct, frozen=True):
    """Send this message."""

    message: AnyMessage


class EngineEvent(msgspec.Struct, frozen=True):
    """Base of the events of engines; a session passes them on."""


Event: TypeAlias = Answered | Notification | Gap | PublicationRefused | SendMessage | EngineEvent


class EngineReceiver(Protocol):
    """The client half of a transaction engine, as far as a session needs it."""

    def receive(self, body: msgspec.Raw) -> list[Event]:
        """Take one message of the engine's broker half.

        Raises ProtocolError if a broker may not send it.
        """
        ...


# --- the session --------------------------------------------------------------------------------


class Session:
    """The state of one client: its numbering, its pending requests, and what it holds.

    Send what the calls return, in their order. `join` comes first, and its answer before anything
    else. An operator, which only inspects, does not join.
    """

    def __init__(self, name: str) -> None:
        self.name = check_client_name(name)
        #: The life of the client, from the answer to the join. Numbers begin at 1 in each life.
        self.life = 0
        self._last = 0
        self._join = 0
        #: Unanswered requests, and what each of them changes, if it is a routing operation.
        self._pending: dict[int, Holdings | None] = {}
        self.advertised = Holdings(name, client_hop(name))
        self.subscribed = Holdings(name, client_hop(name))
        self._halves: dict[str, EngineReceiver] = {}
        #: Opens the client half of an engine whose first message comes from the broker.
        self.open_half: Callable[[str], EngineReceiver | None] = lambda engine: None

    @property
    def pending(self) -> int:
        """How many requests wait for their answers; `PENDING_LIMIT` is the most."""
        return len(self._pending)

    # --- calls ---

    def join(self) -> Join:
        """Ask to join the overlay; the answer says whether the name is free."""
        self._join = self._request(None)
        return Join(self._join, self.name, edge="")

    def operate(
        self, kind: Kind, filter: FilterLike, callback: Any = None, *, events: bool = False
    ) -> Operation:
        """(Un-)subscribe or (un-)advertise; `Answered` follows. A subscription may have a callback,
        and may be for events only.

        Raises FilterError; NotHeld for taking back something of which no part is held;
        TooManyRequests.
        """
        box = as_filter(filter)
        holdings = self._holdings(kind)
        if kind in ("usub", "uadv") and not holdings.reaches(box):
            raise self.not_held(kind, box)
        req = self._request(holdings)
        holdings.ask(req, kind, box, callback, events=events)
        return Operation(req, kind, self.name, req, box, events=events)

    def publish(self, point: PointLike, payload: bytes = b"") -> Pub:
        """Publish; the broker answers only if it refuses (`PublicationRefused`).

        Raises FilterError; NotAdvertised for a point that the client has not advertised; TypeError
        for a payload that is not bytes.
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
        """Undo a call whose message could not be sent."""
        self._answer(message.req, error)

    def extend(self, engine: str, half: EngineReceiver) -> None:
        """Give the messages of this engine's broker half to its client half from now on."""
        assert engine not in self._halves, f"{engine} has a client half already"
        self._halves[engine] = half

    # --- for engines ---

    def number(self) -> int:
        """The next number of the client, for a message of an engine."""
        self._last += 1
        return self._last

    def listen(
        self, tx: Version, call: int, filter: Filter, callback: Any, *, events: bool = False
    ) -> None:
        """Add a subscription with a callback, made in a transaction."""
        self.subscribed.listen(tx, call, filter, callback, events=events)

    def withdraw(self, tx: Version, call: int) -> None:
        """Remove an operation in a transaction that could not be sent."""
        self.subscribed.withdraw(tx, call)

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        """Apply what a committed transaction has changed; `drained` follows if it drains.

        Raises ProtocolError for numbers that an edge broker cannot have given.
        """
        for holdings, kinds in (
            (self.subscribed, ("sub", "usub")),
            (self.advertised, ("adv", "uadv")),
        ):
            mine = [change for change in changes if change.kind in kinds]
            numbers = {change.number for change in mine}
            if len(numbers) < len(mine) or not all(map(holdings.is_free, numbers)):
                raise ProtocolError(
                    f"invalid number of an operation in the end of {name_text(*tx)}"
                )
            # What may be published does not depend on what still comes to the client.
            holdings.commit(tx, mine, drains=drains and holdings is self.subscribed)

    def abort(self, tx: Version) -> None:
        """A transaction was aborted: it has changed nothing."""
        self.subscribed.abort(tx)

    def drained(self, tx: Version) -> None:
        """No publication from before a committed transaction will come any more."""
        self.subscribed.drained(tx)

    def callbacks(self, notification: Notification) -> list[Any]:
        """The callbacks for a publication that has just arrived, each once."""
        return self.subscribed.callbacks(notification.point, notification.hidden)

    def advertises(
        self, point: Mapping[str, Value], after: Sequence[tuple[bool, Filter]] = ()
    ) -> bool:
        """Whether the client may publish there, as far as it knows.

        `after` are operations (True adds, False removes) that follow all that the client knows of.
        """
        return self.advertised.contains(point, after)

    def holds(self, kind: Kind, filter: Filter, after: Sequence[tuple[bool, Filter]] = ()) -> bool:
        """Whether the client holds a part of the filter, as far as it knows; `after` as above."""
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

        Raises ProtocolError if a broker may not send it to a client.
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
            case Gap():
                return [message]
            case PubRefused():
                return [PublicationRefused(message.seq, from_code(message.code, message.reason))]
            case Report():
                return [self._answer(message.req, _fault(message.body), message.body)]
            case EngineMessage():
                half = self._halves.get(message.engine) or self.open_half(message.engine)
                if half is None:
                    raise ProtocolError(
                        f"message for {message.engine!r}, an engine that {self.name} has not"
                    )
                return half.receive(message.body)
        raise ProtocolError(f"unexpected {type(message).__name__} from the broker")

    # --- requests and what is held ---

    def _request(self, holdings: Holdings | None) -> int:
        self._check_room()
        self._last += 1
        self._pending[self._last] = holdings
        return self._last

    def _check_room(self) -> None:
        if len(self._pending) >= PENDING_LIMIT:
            raise TooManyRequests(
                f"{self.name} has {PENDING_LIMIT} pending requests; await some first"
            )

    def _answer(
        self, req: int, error: OverlayError | None, body: Any = None, *, number: int = 0
    ) -> Answered:
        if req not in self._pending:
            raise ProtocolError(f"answer to request {req}, which {self.name} did not make")
        holdings = self._pending[req]
        if holdings is not None and error is not None:
            holdings.refuse(req)
        elif holdings is not None:
            if not holdings.is_free(number):
                raise ProtocolError(f"answer to request {req} with the invalid number {number}")
            holdings.settle(req, number)
        del self._pending[req]
        return Answered(req, error, body)


def _fault(body: Any) -> OverlayError | None:
    """The error that a broker sends instead of a report."""
    if isinstance(body, dict) and body.keys() == {"error"}:
        return OperationError(str(body["error"]))
    return None


def check_client_name(name: str) -> ClientName:
    """Check a name for a client.

    Raises BadName.
    """
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise BadName(f"invalid client name {name!r}: expected {NAME_PATTERN.pattern}")
    return ClientName(name)


def as_filter(what: FilterLike) -> Filter:
    """The filter from a Filter, a mapping or PADRES text.

    Raises FilterError.
    """
    if isinstance(what, Filter):
        return what
    if isinstance(what, str):
        return parse_filter(what)
    if isinstance(what, Mapping):
        return Filter(what)
    raise FilterError(None, f"expected a Filter, mapping or text, got {type(what).__name__}")


def as_point(what: PointLike) -> dict[str, Value]:
    """The attributes from a mapping or PADRES text, checked, as a new dict.

    Raises FilterError.
    """
    return parse_publication(what) if isinstance(what, str) else check_point(what)


def as_bytes(payload: object) -> bytes:
    """The payload as bytes.

    Raises TypeError for anything else: a broker would take that for a broken client.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise TypeError(
        f"expected bytes as payload, got {type(payload).__name__}: encode it, or use json="
    )
