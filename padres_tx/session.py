"""One client's conversation with its broker, as a state machine: calls and messages in, events out.

There is no socket, clock, thread or event loop here, so that the same object runs under asyncio,
behind the blocking client and in the simulator. A call returns the one message that has to be sent
for it, or raises and changes nothing; `receive` takes one message from the broker and returns what
it means. The order of messages is the link's business, waiting is the shell's.

One numbering serves everything that the client says: operations, publications and requests alike.
So (client, seq) names one of them for good, and their order is the order of the client's program,
publications included. Numbers may have gaps.

What the client holds follows the rule that the last word decides (`overlay.lastword`), over
what was acknowledged and what is still on its way. A word on its way already counts, since the
link keeps the order; it makes others obsolete only once it is acknowledged, since it might be
refused. With this the caller's mistakes raise at the call. The edge broker checks again and has
the last say.

Transactions are spoken by engines: `extend` gives an engine its seat, and the session hands its
messages over unread. What a transaction makes of the client's words comes back by `adopt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from overlay.broker import NAME_PATTERN
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
from overlay.lastword import settle
from overlay.messages import (
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
    client_hop,
)
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from overlay.space import Entry, Space
from padres_tx.errors import BadName, TooManyRequests

#: Requests that may wait for their answers at once. A broker keeps a task for each, and a program
#: that has a thousand calls in the air is ahead of the overlay anyway.
PENDING_LIMIT = 1024

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

    #: Who published it, and its number there: the two name the publication.
    publisher: ClientName
    seq: int
    point: dict[str, Value]
    payload: bytes

    def __getitem__(self, attribute: str) -> Value:
        return self.point[attribute]

    def json(self) -> Any:
        """The payload as JSON data.

        Raises ValueError if it is none.
        """
        try:
            return msgspec.json.decode(self.payload)
        except msgspec.DecodeError as error:
            raise ValueError(f"the payload of {self.publisher}:{self.seq}: {error}") from None


class Refused(msgspec.Struct, frozen=True):
    """A publication of this client went nowhere; there is no call left that could raise it.

    An engine without a half at brokers says the same of an operation in somebody's transaction.
    """

    #: The publication's number; 0 for an operation.
    seq: int
    error: OverlayError


class Say(msgspec.Struct, frozen=True):
    """An engine wants this message sent."""

    message: AnyMessage


class EngineEvent(msgspec.Struct, frozen=True):
    """Base of what engines tell the client's transactions; a session passes it on."""


Event: TypeAlias = Answered | Notification | Refused | Say | EngineEvent


class EngineSeat(Protocol):
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
        self._hop = client_hop(name)
        self._last = 0
        #: Unanswered requests, and the word that each of them says, if it says one.
        self._pending: dict[int, tuple[Space, Entry] | None] = {}
        self._advertised = Space()
        self._subscribed = Space()
        self._seats: dict[str, EngineSeat] = {}
        #: Makes the seat of an engine that speaks first, with somebody else's transaction.
        self.open_seat: Callable[[str], EngineSeat | None] = lambda engine: None

    @property
    def pending(self) -> int:
        """How many requests wait for their answers; `PENDING_LIMIT` is the most."""
        return len(self._pending)

    # --- calls ---

    def join(self) -> Join:
        """Ask to be let in; the answer decides whether the name is free."""
        return Join(self._request(None), self.name, edge="")

    def operate(self, kind: Kind, filter: FilterLike) -> Operation:
        """(Un-)subscribe or (un-)advertise; `Answered` follows.

        Raises FilterError; NotHeld for taking back what is not held in any part; TooManyRequests.
        """
        box = as_filter(filter)
        space = self._space(kind)
        if kind in ("usub", "uadv") and not space.reaches(box):
            raise self.not_held(kind, box)
        self._check_room()
        seq = self._last + 1
        operation = Operation(seq, kind, self.name, seq, box)
        word = Entry(operation, self._hop)
        self._request((space, word))
        space.add(word)
        return operation

    def publish(self, point: PointLike, payload: bytes = b"") -> Pub:
        """Publish; only a refusal is answered (`Refused`).

        Raises FilterError; NotAdvertised for a point outside what the client advertised; TypeError
        for a payload that is no bytes.
        """
        at = as_point(point)
        if not self.advertises(at):
            raise self.not_advertised(at)
        data = as_bytes(payload)
        return Pub(self.name, self.number(), at, data)

    def inspect(self, what: str, argument: str = "") -> Inspect:
        """Ask for a part of the broker's state; `Answered` follows, with a body."""
        return Inspect(self._request(None), what, argument)

    def unsent(self, message: Operation | Join | Inspect, error: OverlayError) -> None:
        """Take a call back whose message could not be sent at all."""
        self._answer(message.req, error)

    def extend(self, engine: str, seat: EngineSeat) -> None:
        """Hand over what this engine's broker half sends from now on."""
        assert engine not in self._seats, f"{engine} has its seat already"
        self._seats[engine] = seat

    # --- for engines ---

    def number(self) -> int:
        """The next number of the client's own order, for something that an engine says."""
        self._last += 1
        return self._last

    def adopt(self, kind: Kind, filter: Filter, seq: int) -> None:
        """A word has taken effect in a transaction: the client's own, or one said on its behalf.

        Its number says where it stands among the client's other words.
        """
        space = self._space(kind)
        word = Entry(Operation(0, kind, self.name, seq, filter), self._hop)
        space.add(word)
        _settle(space, word, refused=False)

    def advertises(self, point: Mapping[str, Value]) -> bool:
        """Whether the client may publish there, as far as it knows."""
        return bool(self._advertised.matching(point))

    def holds(self, kind: Kind, filter: Filter) -> bool:
        """Whether there is something to take back, as far as the client knows."""
        return self._space(kind).reaches(filter)

    def not_advertised(self, point: Mapping[str, Value]) -> NotAdvertised:
        return NotAdvertised(f"{self.name} has not advertised {format_publication(point)}")

    def not_held(self, kind: Kind, filter: Filter) -> NotHeld:
        verb = "un-subscribe from" if kind == "usub" else "un-advertise"
        return NotHeld(f"{self.name} holds no part of {format_filter(filter)} to {verb}")

    def _space(self, kind: Kind) -> Space:
        return self._subscribed if kind in ("sub", "usub") else self._advertised

    # --- messages ---

    def receive(self, message: AnyMessage) -> list[Event]:
        """Take one message from the broker.

        Raises ProtocolError when a broker may not say that to a client.
        """
        match message:
            case Pub():
                name = ClientName(message.client)
                return [Notification(name, message.seq, message.point, message.payload)]
            case Done():
                error = from_code(message.code, message.reason) if message.code else None
                return [self._answer(message.req, error)]
            case PubRefused():
                return [Refused(message.seq, from_code(message.code, message.reason))]
            case Report():
                return [self._answer(message.req, _fault(message.body), message.body)]
            case EngineMessage():
                seat = self._seats.get(message.engine) or self.open_seat(message.engine)
                if seat is None:
                    raise ProtocolError(f"{self.name} uses no engine {message.engine!r}")
                return seat.receive(message.body)
        raise ProtocolError(f"a client takes no {type(message).__name__}")

    # --- requests and what is held ---

    def _request(self, word: tuple[Space, Entry] | None) -> int:
        self._check_room()
        self._last += 1
        self._pending[self._last] = word
        return self._last

    def _check_room(self) -> None:
        if len(self._pending) >= PENDING_LIMIT:
            raise TooManyRequests(
                f"{self.name} waits for {PENDING_LIMIT} answers already; await some first"
            )

    def _answer(self, req: int, error: OverlayError | None, body: Any = None) -> Answered:
        if req not in self._pending:
            raise ProtocolError(f"an answer to request {req}, which {self.name} did not make")
        word = self._pending.pop(req)
        if word is not None:
            _settle(*word, refused=error is not None)
        return Answered(req, error, body)


def _settle(space: Space, word: Entry, *, refused: bool) -> None:
    """Make an answered word definite, or take it back.

    Answers may come in another order than the calls were made: a word settles those before it,
    whether they are answered or not, and may itself have been settled by a later one.
    """
    if space.get(word.client, word.seq) is not word:
        return
    if refused:
        space.remove(word)
        return

    def earlier(filter: Filter) -> list[Entry]:
        return [entry for entry in space.overlapping(filter) if entry.seq < word.seq]

    settled = settle(earlier, word.filter, word.positive)
    for seq in settled.drop:
        entry = space.get(word.client, seq)
        assert entry is not None, seq
        space.remove(entry)
    if not settled.store:
        space.remove(word)


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
