"""The messages of brokers and clients, as typed structs.

There are two families. Messages are what the cores exchange: a link numbers them, resends
them after a reconnect and hands each over once, in order. Signals belong to one TCP connection:
they open it, keep it alive, acknowledge messages and end it, and never reach a core.

A publication keeps one shape from its publisher to its last subscriber, so that a broker can
forward the very bytes that it received. A routing operation changes once, at the client's edge
broker, which alone sees all operations of the client: it computes what the operation adds to the
tables and what it makes obsolete (`store`, `drop`), and the brokers further on apply that.

This module knows the shapes only: no routing, no transport, no transaction.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NewType, TypeAlias

import msgspec

from overlay.filters import Filter, Value
from overlay.stored import stored_values

#: The length of the longest name of a client or a broker.
NAME_LIMIT = 64

#: What a client may be called; a name stands in tables, traces and error messages.
NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:-]{{0,{NAME_LIMIT - 1}}}")

#: What names and numbers may be at all: whatever else a message has in their place does not decode.
#: Only the length of a name is checked here; whether it is one, where a client joins.
NameText: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_LIMIT)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

BrokerName = NewType("BrokerName", str)
ClientName = NewType("ClientName", str)

#: Where a message comes from or goes to: a neighbour broker's name, or "@" and a client's name.
Hop = NewType("Hop", str)

#: The hops of successive publications that go the same way, and how many these are.
Run: TypeAlias = tuple[tuple[Hop, ...], int]

#: One version of the routing state, by the transaction that made it: its coordinator, which life of
#: that, and a number (`overlay.identity`). Otherwise opaque to the overlay.
Version: TypeAlias = tuple[NameText, Natural, Natural]

#: Raised with every change that an older broker or client would not understand.
PROTOCOL_VERSION = 3

Kind: TypeAlias = Literal["adv", "uadv", "sub", "usub"]


def client_hop(client: str) -> Hop:
    return Hop("@" + client)


def is_client(hop: Hop) -> bool:
    return hop.startswith("@")


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what cores exchange."""


class Pub(Message, frozen=True, array_like=True, gc=False, tag=1):
    """A publication: a point in the event space and an opaque payload."""

    client: str
    seq: int
    point: dict[str, Value]
    payload: bytes = b""
    #: Versions that this publication must not see, stamped by the publisher's edge broker.
    hidden: tuple[Version, ...] = ()
    #: Which life of the client it belongs to: (client, life, seq) names the publication for good.
    #: If the client leaves it at 0, its edge broker fills it in.
    life: Natural = 0


class Operation(Message, frozen=True, array_like=True, gc=False, tag=2):
    """(Un-)subscribing or (un-)advertising; answered by `Done` when it is where it has to go."""

    req: Natural
    kind: Kind
    client: NameText
    #: Numbers the client's operations in its own order: of those that contain a point, the last
    #: decides. Given by the edge broker, in the order of arrival.
    seq: Natural
    filter: Filter
    #: Whether the receiver keeps the operation as a table entry. Decided by the edge broker.
    store: bool = True
    #: Numbers of this client's earlier entries that are obsolete. Decided by the edge broker.
    drop: tuple[Natural, ...] = ()
    #: Of a subscription: whether it is for events only, and not for what asks its client to act.
    events: bool = False

    @property
    def positive(self) -> bool:
        return self.kind in ("adv", "sub")


class Join(Message, frozen=True, array_like=True, gc=False, tag=3):
    """A client has come to the broker `edge`; flooded, answered by `Done`."""

    req: Natural
    client: NameText
    edge: NameText
    #: Issued by the edge broker, which answers its client with it (`overlay.identity`).
    life: Natural = 0


class Leave(Message, frozen=True, array_like=True, gc=False, tag=4):
    """A client has gone, and its entries with it; flooded, answered by `Done`."""

    req: Natural
    client: NameText
    edge: NameText
    life: Natural = 0


class Done(Message, frozen=True, array_like=True, gc=False, tag=5):
    """Request `req` is done everywhere behind the sender, or was refused (`code` not empty)."""

    req: int
    code: str = ""
    reason: str = ""
    #: To a client: the number that its edge broker has given to its operation (`Operation.seq`), or
    #: the life that it has given to a client that joins.
    number: int = 0


class PubRefused(Message, frozen=True, array_like=True, gc=False, tag=6):
    """To the publisher: its publication `seq` was refused."""

    seq: int
    code: str
    reason: str


class EngineMessage(Message, frozen=True, array_like=True, gc=False, tag=7):
    """A message of a transaction engine; the overlay passes it on unread."""

    engine: str
    body: msgspec.Raw


class Inspect(Message, frozen=True, array_like=True, gc=False, tag=8):
    """An operator asks a broker for a part of its state: "tables", "status", or an engine's."""

    req: int
    what: str
    argument: str = ""


class Report(Message, frozen=True, array_like=True, gc=False, tag=9):
    """The answer to `Inspect`, as JSON-like data."""

    req: int
    body: Any


class Reachability(Message, frozen=True, array_like=True, gc=False, tag=10):
    """A broker has lost a neighbour or found it again; flooded to the brokers in reach."""

    broker: NameText
    neighbour: NameText
    up: bool


class Backlog(Message, frozen=True, array_like=True, gc=False, tag=13):
    """A broker has no room for more that waits for a neighbour, or has room again; flooded to the
    brokers in reach.

    While it is full, publications for clients of these edge brokers are refused.
    """

    broker: NameText
    neighbour: NameText
    full: bool
    #: The edge brokers of all clients behind the link.
    edges: tuple[NameText, ...] = ()
    #: How many messages wait, and their bytes.
    messages: Natural = 0
    size: Natural = 0


class LinkReset(Message, frozen=True, array_like=True, gc=False, tag=11):
    """A link was reset; flooded on one side of it, and again when the routes are back (`restored`).

    What was published before `time` and on its way between this side and the clients of the edge
    brokers beyond (`edges`) may be lost.
    """

    #: Who reports it, and which neighbour was at the other end.
    broker: NameText
    neighbour: NameText
    time: float
    edges: tuple[NameText, ...]
    restored: bool = False


#: Whether publications that a client should have received may be lost, or its own, or both.
Direction: TypeAlias = Literal["in", "out", "both"]


class Gap(Message, frozen=True, array_like=True, gc=False, tag=12):
    """To a client: publications may be lost.

    A link to `broker` was reset, mostly because that broker was restarted and is not durable. What
    was published before `time`, in seconds since 1970, may be missing: of what this client should
    have received ("in"), of what it has published ("out"), or of both ("both").
    """

    broker: str
    time: float
    direction: Direction


class Signal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what concerns one connection only."""


Role: TypeAlias = Literal["broker", "client", "operator"]


class Hello(Signal, frozen=True, array_like=True, gc=False, tag=100):
    """The first frame in both directions.

    `incarnation` names this life of the sender's end of the link; `peer` is the life of the
    receiver's end that it belongs to ("" for none yet) and `received` how many of its messages have
    come through. Both ends compare: the link goes on where it was only if both still know it.
    """

    version: int
    role: Role
    name: str
    incarnation: str
    peer: str = ""
    received: int = 0
    secret: str = ""


class Ack(Signal, frozen=True, array_like=True, gc=False, tag=101):
    """How many messages of this link have been handed over, counted from its first."""

    received: int


class Ping(Signal, frozen=True, array_like=True, gc=False, tag=102):
    """The sender is alive; `note` is for the log of a neighbour's process, and mostly empty."""

    note: str = ""


class Goodbye(Signal, frozen=True, array_like=True, gc=False, tag=103):
    """The last frame: the sender leaves for good, or closes on the receiver (`code` not empty)."""

    code: str = ""
    reason: str = ""


AnyMessage: TypeAlias = (
    Pub
    | Operation
    | Join
    | Leave
    | Done
    | PubRefused
    | EngineMessage
    | Inspect
    | Report
    | Reachability
    | Backlog
    | LinkReset
    | Gap
)
AnySignal: TypeAlias = Hello | Ack | Ping | Goodbye

#: What may wait at a broker.
stored_values(
    *(Pub, Operation, Join, Leave, Done, PubRefused),
    *(EngineMessage, Inspect, Report, Reachability, Backlog, LinkReset, Gap),
)
