"""Operations as data, and a static transaction made of them, with who waits for whom worked out.

    static.tcm({"class": "p1", "x": "x1"}, ops={
        "D": [static.tcm({"class": "assign", "to": "A1"}, ops={"A1": [static.sub(X1)]}),
              static.usub(X1)],
    })

An operation describes itself; a tcm in a static transaction also says what each of its receivers
does on it, in that receiver's order. `Plan` gathers what the coordinator does and computes for
each operation which others must come before it (Definition 3.4), so that nobody has to write
dependency lists:

    Thread     what one client does stands in the order of its list;
    Trigger    what a tcm makes others do comes after the tcm;
    Trigger*   what a client does next comes after all that its tcm has made others do.

Two receivers of one tcm are not ordered among each other. For more freedom give an operation
`after=`: it then comes after just those operations (and all that they make others do) and
after its tcm, whatever stands before it in the list; `after=[]` waits for nothing else. An
operation without it still comes after everything that stands before it.

Only direct predecessors are kept, and each operation stands behind all its predecessors: who
reads the steps in their order never meets an unknown one.

Pure; it knows no session and no message but the `Step` that comes out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from overlay.filters import Filter, Value
from overlay.notation import format_filter, format_publication
from overlay.wire.codec import FRAME_LIMIT
from padres_tx.client.session import (
    FilterLike,
    PointLike,
    as_bytes,
    as_filter,
    as_point,
    check_client_name,
)
from padres_tx.client_messages import RECEIVERS_LIMIT, STEP_LIMIT, OpKind, Step
from padres_tx.errors import BadTransaction

#: Tcms inside tcms. A chain of assignments has two or three; what is deeper is a loop that a
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
            raise BadTransaction(f"tcms within tcms, more than {DEPTH_LIMIT} deep")

    @property
    def is_static(self) -> bool:
        """Whether it says what only a static transaction can do."""
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
        raise BadTransaction(f"ops: a mapping from clients to operations is needed, not {ops!r}")
    return {check_client_name(client): _ops(client, listed) for client, listed in ops.items()}


def _ops(where: str, ops: object) -> tuple[Op, ...]:
    if not isinstance(ops, Sequence) or not all(isinstance(op, Op) for op in ops):
        raise BadTransaction(f"{where}: a list of operations is needed, not {ops!r}")
    return tuple(ops)


def _receivers(to: object) -> tuple[str, ...]:
    if isinstance(to, str) or not isinstance(to, Iterable):
        raise BadTransaction(f"to: a list of clients' names is needed, not {to!r}")
    names = tuple(dict.fromkeys(check_client_name(name) for name in to))
    if not names:
        raise BadTransaction("to: a tcm for nobody; leave it out for all that take the tcm")
    if len(names) > RECEIVERS_LIMIT:
        raise BadTransaction(f"to: a tcm may name {RECEIVERS_LIMIT} receivers, not {len(names)}")
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


class Plan:
    """What a coordinator does in one static transaction, and what it makes others do."""

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        #: All operations, each tcm before what it triggers, with their clients and the positions
        #: of those that come directly before.
        self._ops: list[Op] = []
        self._clients: list[str] = []
        self._before: list[list[int]] = []
        #: The coordinator's numbers for its own routing operations, by position.
        self._calls: dict[int, int] = {}
        #: With what each operation is over: itself, or the last that it has made others do.
        self._ends: dict[Op, list[int]] = {}
        #: With what all that the coordinator has done so far is over.
        self._last: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, op: Op, call: int = 0) -> None:
        """The coordinator does this next, as its call of this number.

        `after` may name what it has done before.

        Raises BadTransaction for what cannot be put in an order, and has then added nothing.
        """
        start, last = len(self._ops), self._last
        try:
            self._last = self._next(self._coordinator, op, None, last)
            size = self._bytes + sum(len(added.payload) for added in self._ops[start:])
            if len(self._ops) > STEP_LIMIT or size > FRAME_LIMIT:
                raise BadTransaction(
                    f"more than {STEP_LIMIT} operations, or {FRAME_LIMIT} bytes of payloads: "
                    "a static transaction has to fit in one frame"
                )
            for at in range(start, len(self._ops)):
                self._resolve(at)
            self._in_order(start)
        except BadTransaction:
            for added in self._ops[start:]:
                self._ends.pop(added, None)
            del self._ops[start:], self._clients[start:], self._before[start:]
            self._last = last
            raise
        self._bytes = size
        if op.filter is not None:
            self._calls[start] = call

    def steps(self, number: Callable[[], int]) -> tuple[Step, ...]:
        """All operations in an order that respects the dependencies.

        `number` numbers the coordinator's publications; others' are numbered by their brokers.
        """
        order = self._in_order(0)
        position = {at: index for index, at in enumerate(order)}
        direct = self._direct(order)
        return tuple(
            Step(
                client=self._clients[at],
                kind=self._ops[at].kind,
                filter=self._ops[at].filter,
                point=self._ops[at].point,
                payload=self._ops[at].payload,
                seq=number() if self._is_own_publication(at) else self._calls.get(at, 0),
                after=tuple(sorted(position[before] for before in direct[at])),
                receivers=tuple(self._ops[at].ops),
                events=self._ops[at].events,
            )
            for at in order
        )

    def _is_own_publication(self, at: int) -> bool:
        return self._clients[at] == self._coordinator and self._ops[at].kind in ("pub", "tcm")

    # --- who waits for whom ---

    def _next(self, client: str, op: Op, trigger: int | None, thread: list[int]) -> list[int]:
        """Add an operation behind its client's others; answers with what all is over then."""
        if op in self._ends:
            raise BadTransaction(f"{op} is in the transaction already; make another one")
        if op.to is not None:
            raise BadTransaction(
                f"{op} cannot take `to`: in a static transaction the receivers of a tcm are those "
                "for which `ops` says what they do"
            )
        if op.kind == "tcm" and not op.ops:
            raise BadTransaction(
                f"{op} is for nobody: in a static transaction a tcm says what its receivers do, "
                "as in ops={'D': [static.usub(...)]}"
            )
        at = len(self._ops)
        self._ops.append(op)
        self._clients.append(client)
        before = thread if op.after is None else []
        # What came before in the thread came after the trigger, too.
        self._before.append(before or ([] if trigger is None else [trigger]))
        self._ends[op] = []
        ends: list[int] = []
        for receiver, ops in op.ops.items():
            done: list[int] = []
            for each in ops:
                done = self._next(receiver, each, at, done)
            ends += done
        self._ends[op] = ends or [at]
        return self._ends[op] if op.after is None else thread + self._ends[op]

    def _resolve(self, at: int) -> None:
        """Let an operation wait for those that it names."""
        op = self._ops[at]
        for other in op.after or ():
            if other not in self._ends:
                raise BadTransaction(
                    f"{self._text(at)} is to come after {other}, "
                    "which is not in the transaction; add that first"
                )
            self._before[at] = self._before[at] + self._ends[other]

    def _in_order(self, start: int) -> list[int]:
        """The positions from `start` on, each behind its predecessors.

        Raises BadTransaction if there is no such order.
        """
        waits = {
            at: {before for before in self._before[at] if before >= start}
            for at in range(start, len(self._ops))
        }
        waiting_for: dict[int, list[int]] = {at: [] for at in waits}
        for at, before in waits.items():
            for other in before:
                waiting_for[other].append(at)
        ready = [at for at, before in waits.items() if not before]
        order: list[int] = []
        while ready:
            at = heapq.heappop(ready)
            order.append(at)
            del waits[at]
            for other in waiting_for[at]:
                waits[other].discard(at)
                if not waits[other]:
                    heapq.heappush(ready, other)
        if waits:
            raise BadTransaction(self._circle(waits))
        return order

    def _circle(self, waits: Mapping[int, set[int]]) -> str:
        at = min(waits)
        seen: list[int] = []
        while at not in seen:
            seen.append(at)
            at = min(waits[at])
        circle = [*seen[seen.index(at) :], at]
        return "operations wait for each other: " + ", after ".join(map(self._text, circle))

    def _direct(self, order: list[int]) -> dict[int, list[int]]:
        """The predecessors without those that are predecessors of others (transitive reduction)."""
        # All that comes before an operation, as the bits of a number.
        all_before: dict[int, int] = {}
        direct: dict[int, list[int]] = {}
        for at in order:
            before = set(self._before[at])
            beyond = 0
            for other in before:
                beyond |= all_before[other]
            direct[at] = [other for other in before if not beyond >> other & 1]
            all_before[at] = beyond
            for other in before:
                all_before[at] |= 1 << other
        return direct

    def _text(self, at: int) -> str:
        return f"{self._clients[at]}'s {self._ops[at]}"
