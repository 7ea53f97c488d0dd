"""The plan of a static transaction: all operations, and which must come before which.

    static.tcm({"class": "p1", "x": "x1"}, ops={
        "D": [static.tcm({"class": "assign", "to": "A1"}, ops={"A1": [static.sub(X1)]}),
              static.usub(X1)],
    })

A tcm in a static transaction says what each of its receivers does on it, in that receiver's order.
`StaticPlan` collects what the coordinator does and computes for each operation which others must
come before it (Definition 3.4), so that no program has to write dependency lists:

    Thread     the operations of one client keep the order of its list;
    Trigger    the operations that a tcm triggers come after the tcm;
    Trigger*   a client's next operation comes after all that its tcm has triggered.

Two receivers of one tcm are not ordered among each other. For more freedom give an operation
`after=`: it then comes after just those operations (and all that they trigger) and after its tcm,
whatever precedes it in the list; `after=[]` waits for nothing else. An operation without it still
comes after everything that precedes it in the list.

Only direct predecessors are kept, and each step follows all its predecessors: a reader of the steps
in their order never meets an unknown one.

Pure; it knows no session and no message but the `Step` that it returns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from overlay.wire.codec import FRAME_LIMIT
from padres_tx.client.operations import Op
from padres_tx.client_messages import STEP_LIMIT, Step
from padres_tx.errors import BadTransaction


class StaticPlan:
    """The operations of one static transaction: the coordinator's, and those they trigger."""

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        #: All operations, each tcm before what it triggers. For each: its client, and the positions
        #: of those that come directly before it.
        self._ops: list[Op] = []
        self._clients: list[str] = []
        self._before: list[list[int]] = []
        #: The coordinator's numbers for its own routing operations, by position.
        self._calls: dict[int, int] = {}
        #: The operations that end each operation: itself, or the last that it triggers.
        self._ends: dict[Op, list[int]] = {}
        #: The operations that end everything that the coordinator has done so far.
        self._last: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ops)

    def add(self, op: Op, call: int = 0) -> None:
        """Add the coordinator's next operation, with the number of the call.

        `after` may name operations that were added before.

        Raises BadTransaction if there is no order, and has then added nothing.
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

    # --- dependencies ---

    def _next(self, client: str, op: Op, trigger: int | None, thread: list[int]) -> list[int]:
        """Add an operation after its client's others; returns the operations that end them all."""
        if op in self._ends:
            raise BadTransaction(f"{op} is in the transaction already; make another one")
        if op.to is not None:
            raise BadTransaction(
                f"{op} cannot take `to`: in a static transaction the receivers of a tcm are those "
                "for which `ops` says what they do"
            )
        if op.kind == "tcm" and not op.ops:
            raise BadTransaction(
                f"{op} has no receivers: in a static transaction a tcm says what its receivers do, "
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
        """Resolve the operations that `after` names."""
        op = self._ops[at]
        for other in op.after or ():
            if other not in self._ends:
                raise BadTransaction(
                    f"{self._text(at)} is to come after {other}, "
                    "which is not in the transaction; add that first"
                )
            self._before[at] = self._before[at] + self._ends[other]

    def _in_order(self, start: int) -> list[int]:
        """The positions from `start` on, each after its predecessors.

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
