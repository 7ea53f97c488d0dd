"""Working out, at an edge broker, what a plan changes on behalf of a client.

The steps of a static transaction are admitted before any of them is carried out, so each is judged
on what the client holds now and what the steps before it will have changed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from overlay.broker.core import Broker
from overlay.broker.limits import DROPS_PER_OPERATION, LOOKS_PER_OPERATION, too_many_entries
from overlay.errors import NotAdvertised, OperationError
from overlay.filters import Filter, check_point
from overlay.messages import Hop, Operation
from overlay.notation import format_publication
from overlay.stored import stored
from overlay.tables.client_entries import ClientEntries, LookBudget, TooManyLooks
from overlay.tables.last_word import reaches, settle
from overlay.tables.routing import not_held
from overlay.tables.space import Entry, Space
from padres_tx.client_messages import Step
from padres_tx.protocol.compensation import Undo


class Conflict(OperationError):
    """Another undecided transaction uses the same entries of a client."""

    code = "conflict"


@stored(
    "planned-entries",
    fields=("_broker", "_hop", "_client", "_planned", "_gone", "_looks"),
)
class PlannedEntries:
    """What one client holds, with the steps of a plan that come before."""

    def __init__(self, broker: Broker, hop: Hop) -> None:
        self._broker = broker
        self._hop = hop
        self._client = hop[1:]
        #: By table: the steps that will be kept, and the numbers of what will be gone.
        self._planned = {"sub": Space(), "adv": Space()}
        self._gone: dict[str, set[int]] = {"sub": set(), "adv": set()}
        self._looks = LookBudget()

    def add(self, step: Step) -> Undo:
        """The operation that a step comes to. Raises NotHeld or LimitReached."""
        assert step.filter is not None and step.kind != "pub" and step.kind != "tcm"
        table = "sub" if step.kind in ("sub", "usub") else "adv"
        seq = self._broker.next_number(self._hop)
        operation = Operation(0, step.kind, self._client, seq, step.filter, events=step.events)
        held = self._around(table)
        self._looks.left = LOOKS_PER_OPERATION
        try:
            if not operation.positive and not held.reaches(step.filter):
                raise not_held(operation)
            settled = settle(held, step.filter, operation.positive)
        except TooManyLooks:
            raise too_many_entries(self._client) from None
        finally:
            self._looks.left = math.inf
        if len(settled.drop) > DROPS_PER_OPERATION:
            raise too_many_entries(self._client)
        operation = msgspec.structs.replace(operation, store=settled.store, drop=settled.drop)
        dropped = [entry for seq in settled.drop if (entry := held.get(seq)) is not None]
        self._gone[table] |= set(settled.drop)
        planned = self._planned[table]
        for entry in dropped:
            if entry in planned:
                planned.remove(entry)
        if settled.store:
            planned.add(Entry(operation, self._hop))
        return Undo(self._hop, operation, dropped)

    def check_publication(self, step: Step) -> None:
        """Raises NotAdvertised or FilterError."""
        point = check_point(step.point)
        last = self._last("adv", point)
        if last is None or not last.positive:
            text = format_publication(point)
            raise NotAdvertised(f"{self._client} has not advertised {text}")

    def check_hears(self, step: Step) -> None:
        """Raises OperationError if a tcm does not reach the client."""
        point = check_point(step.point)
        last = self._last("sub", point)
        text = format_publication(point)
        if last is None or not last.positive:
            raise Unheard(f"{self._client} does not receive the tcm {text}")
        if last.events:
            raise Unheard(f"{self._client} is subscribed to the tcm {text} for events only")

    def _around(self, table: str) -> _PlannedEntries:
        view = self._broker.versions.view()
        space = self._broker.routing.space(table, self._hop)
        parts = (
            space.of_client(self._client, view, self._looks),
            self._planned[table].of_client(self._client, None, self._looks),
        )
        return _PlannedEntries(parts, self._gone[table])

    @property
    def looked_at(self) -> int:
        """How many entries were looked at."""
        return self._looks.used

    def _last(self, table: str, point: Any) -> Entry | None:
        """The client's last word on a point."""
        return max(
            (e for e in self._around(table).near(Filter(point)) if e.filter.matches(point)),
            key=lambda entry: entry.seq,
            default=None,
        )


class _PlannedEntries:
    """What a client holds, and what it will hold by the plan, without what will be gone."""

    def __init__(self, parts: Sequence[ClientEntries], gone: Collection[int]) -> None:
        self._parts = parts
        self._gone = gone

    def covered_by(self, filter: Filter) -> list[Entry]:
        return self._left(entry for part in self._parts for entry in part.covered_by(filter))

    def holes(self, filter: Filter) -> list[Entry]:
        return self._left(entry for part in self._parts for entry in part.holes(filter))

    def yes(self, filter: Filter) -> Iterator[Entry]:
        for part in self._parts:
            for entry in part.yes(filter):
                if entry.seq not in self._gone:
                    yield entry

    def near(self, filter: Filter) -> list[Entry]:
        return [*self.yes(filter), *self.holes(filter)]

    def reaches(self, filter: Filter) -> bool:
        """Whether the client holds a part of the filter."""
        holes = self.holes(filter)
        return any(reaches(yes, filter, holes) for yes in self.yes(filter))

    def get(self, seq: int) -> Entry | None:
        found = (part.get(seq) for part in self._parts)
        return next((entry for entry in found if entry is not None), None)

    def _left(self, found: Iterable[Entry]) -> list[Entry]:
        return [entry for entry in found if entry.seq not in self._gone]


class Unheard(OperationError):
    """A tcm does not reach a client that is to act on it."""

    code = "unheard"


def in_order(steps: Iterable[Step]) -> list[int] | None:
    """The positions of the steps, each after those it depends on; None if there is no order.

    Of the steps that may go first, the first in the plan does. A broker does nothing else
    meanwhile, so the time must not grow faster than the plan.
    """
    waits = {at: set(step.after) for at, step in enumerate(steps)}
    waiting_for: dict[int, list[int]] = {at: [] for at in waits}
    for at, before in waits.items():
        for other in before:
            if other not in waits:
                return None
            waiting_for[other].append(at)
    ready = [at for at, before in waits.items() if not before]
    order: list[int] = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for other in waiting_for[at]:
            waits[other].discard(at)
            if not waits[other]:
                heapq.heappush(ready, other)
    return order if len(order) == len(waits) else None
