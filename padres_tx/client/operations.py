"""Operations of a transaction as data, for every engine.

    tcm({"class": "p1", "x": "x1"})
    sub("[class,eq,'p1']", events_only=True)

An `Op` describes one operation. A client's handles make them (`tx.sub(...)`). A program can make
them itself, with the functions below, which `padres_tx.static` makes public, and pass them to
`tx.do`. Two arguments are for static transactions only: `ops` says what the receivers of a tcm do,
and `after` what an operation comes after (`padres_tx.client.static_plan`).

Pure; it knows no session and no message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from overlay.filters import Filter, Value
from overlay.notation import format_filter, format_publication
from padres_tx.client.session import (
    FilterLike,
    PointLike,
    as_bytes,
    as_filter,
    as_point,
    check_client_name,
)
from padres_tx.client_messages import RECEIVERS_LIMIT, OpKind
from padres_tx.errors import BadTransaction

#: Tcms inside tcms. A chain of assignments has two or three; more than this is a loop that a
#: program has unrolled by mistake.
DEPTH_LIMIT = 50

#: What the receivers of a tcm do, by client.
Ops: TypeAlias = "Mapping[str, Sequence[Op]]"


class Op:
    """One operation: a filter for (un-)sub and (un-)adv, a point and a payload for pub and tcm.

    Two operations are the same only if they are one object, so that `after` can name them.
    """

    __slots__ = ("after", "depth", "events", "filter", "kind", "ops", "payload", "point", "to")

    def __init__(
        self,
        kind: OpKind,
        *,
        filter: Filter | None = None,
        point: dict[str, Value] | None = None,
        payload: bytes = b"",
        ops: Ops | None = None,
        after: Iterable[Op] | None = None,
        events: bool = False,
        to: Iterable[str] | None = None,
    ) -> None:
        self.kind: OpKind = kind
        self.filter = filter
        self.point = point
        self.payload = as_bytes(payload)
        self.ops = _by_client({} if ops is None else ops)
        self.after = None if after is None else _ops("after", list(after))
        #: Of a subscription: whether it is for events only.
        self.events = events
        #: Of a tcm in a dynamic transaction: the clients that it is for; None for all that take it.
        self.to = None if to is None else _receivers(to)
        inner: list[int] = [op.depth for each in self.ops.values() for op in each]
        self.depth: int = 1 + max(inner, default=0)
        if self.depth > DEPTH_LIMIT:
            raise BadTransaction(f"tcms are nested more than {DEPTH_LIMIT} deep")

    @property
    def is_static(self) -> bool:
        """Whether only a static transaction can carry it out."""
        return bool(self.ops) or self.after is not None

    def __str__(self) -> str:
        if self.filter is not None:
            return f"{self.kind}({format_filter(self.filter)})"
        assert self.point is not None
        return f"{self.kind}({format_publication(self.point)})"

    def __repr__(self) -> str:
        return f"<{self}>"


def _by_client(ops: object) -> dict[str, tuple[Op, ...]]:
    if not isinstance(ops, Mapping):
        raise BadTransaction(f"ops: expected a mapping from clients to operations, got {ops!r}")
    return {check_client_name(client): _ops(client, listed) for client, listed in ops.items()}


def _ops(where: str, ops: object) -> tuple[Op, ...]:
    if not isinstance(ops, Sequence) or not all(isinstance(op, Op) for op in ops):
        raise BadTransaction(f"{where}: expected a list of operations, got {ops!r}")
    return tuple(ops)


def _receivers(to: object) -> tuple[str, ...]:
    if isinstance(to, str) or not isinstance(to, Iterable):
        raise BadTransaction(f"to: expected a list of clients' names, got {to!r}")
    names = tuple(dict.fromkeys(check_client_name(name) for name in to))
    if not names:
        raise BadTransaction(
            "to: empty list of receivers; leave it out for all clients subscribed to the tcm"
        )
    if len(names) > RECEIVERS_LIMIT:
        raise BadTransaction(
            f"to: a tcm may name at most {RECEIVERS_LIMIT} receivers, got {len(names)}"
        )
    return names


def sub(filter: FilterLike, *, events_only: bool = False, after: Iterable[Op] | None = None) -> Op:
    """Subscribe; with `events_only` not to tcms. Raises FilterError."""
    return Op("sub", filter=as_filter(filter), after=after, events=events_only)


def usub(filter: FilterLike, *, after: Iterable[Op] | None = None) -> Op:
    """Un-subscribe, a part or all. Raises FilterError."""
    return Op("usub", filter=as_filter(filter), after=after)


def adv(filter: FilterLike, *, after: Iterable[Op] | None = None) -> Op:
    """Advertise. Raises FilterError."""
    return Op("adv", filter=as_filter(filter), after=after)


def uadv(filter: FilterLike, *, after: Iterable[Op] | None = None) -> Op:
    """Un-advertise, a part or all. Raises FilterError."""
    return Op("uadv", filter=as_filter(filter), after=after)


def pub(point: PointLike, payload: bytes = b"", *, after: Iterable[Op] | None = None) -> Op:
    """Publish. Raises FilterError."""
    return Op("pub", point=as_point(point), payload=payload, after=after)


def tcm(
    point: PointLike,
    payload: bytes = b"",
    *,
    ops: Ops | None = None,
    after: Iterable[Op] | None = None,
    to: Iterable[str] | None = None,
) -> Op:
    """Send a transaction control message: with what its receivers do on it (`ops`, in a static
    transaction), or to certain clients (`to`, in a dynamic one).

    Raises FilterError, BadName for a receiver, BadTransaction.
    """
    return Op("tcm", point=as_point(point), payload=payload, ops=ops, after=after, to=to)
