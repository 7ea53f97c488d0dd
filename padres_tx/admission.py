"""Working out, at an edge broker, what a plan changes on behalf of a client.

The steps of a static transaction are admitted before any of them is carried out, so each is judged
on what the client holds now and what the steps before it will have changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import msgspec

from overlay.broker import Broker
from overlay.errors import NotAdvertised, OperationError
from overlay.filters import Filter, check_point
from overlay.lastword import reaches, settle
from overlay.messages import Hop, Operation
from overlay.notation import format_publication
from overlay.routing import not_held
from overlay.space import Entry, Space
from padres_tx.compensation import Undo
from padres_tx.wire import Step


class Conflict(OperationError):
    """Another undecided transaction uses the same words of a client."""

    code = "conflict"


class Words:
    """What one client holds, with the steps of a plan that come before."""

    def __init__(self, broker: Broker, hop: Hop) -> None:
        self._broker = broker
        self._hop = hop
        self._client = hop[1:]
        self._planned: dict[Space, list[Entry]] = {}
        self._gone: dict[Space, set[int]] = {}

    def say(self, step: Step) -> Undo:
        """The operation that a step comes to. Raises NotHeld."""
        assert step.filter is not None and step.kind != "pub" and step.kind != "tcm"
        space = self._broker.routing.space(step.kind, self._hop)
        seq = self._broker.next_number(self._hop)
        operation = Operation(0, step.kind, self._client, seq, step.filter, events=step.events)
        if not operation.positive and not self._holds(space, step.filter):
            raise not_held(operation)
        settled = settle(lambda f: self._near(space, f), step.filter, operation.positive)
        operation = msgspec.structs.replace(operation, store=settled.store, drop=settled.drop)
        near = self._near(space, step.filter)
        dropped = [entry for entry in near if entry.seq in settled.drop]
        self._gone.setdefault(space, set()).update(settled.drop)
        if settled.store:
            self._planned.setdefault(space, []).append(Entry(operation, self._hop))
        return Undo(self._hop, operation, dropped)

    def check_publication(self, step: Step) -> None:
        """Raises NotAdvertised or FilterError."""
        point = check_point(step.point)
        space = self._broker.routing.space("adv", self._hop)
        last = self._last(space, point)
        if last is None or not last.positive:
            text = format_publication(point)
            raise NotAdvertised(f"{self._client} has not advertised {text}")

    def check_hears(self, step: Step) -> None:
        """Raises OperationError if a tcm does not reach the client."""
        point = check_point(step.point)
        last = self._last(self._broker.routing.prt, point)
        text = format_publication(point)
        if last is None or not last.positive:
            raise Unheard(f"{self._client} does not receive the tcm {text}")
        if last.events:
            raise Unheard(f"{self._client} is subscribed to the tcm {text} for events only")

    def _near(self, space: Space, filter: Filter) -> list[Entry]:
        view = self._broker.versions.view()
        gone = self._gone.get(space, set())
        present = [e for e in space.overlapping(filter, view) if e.client == self._client]
        planned = [e for e in self._planned.get(space, ()) if e.filter.overlaps(filter)]
        return [entry for entry in present + planned if entry.seq not in gone]

    def _holds(self, space: Space, filter: Filter) -> bool:
        near = self._near(space, filter)
        holes = [entry for entry in near if not entry.positive]
        return any(entry.positive and reaches(entry, filter, holes) for entry in near)

    def _last(self, space: Space, point: Any) -> Entry | None:
        """The client's last word on a point."""
        at = Filter(point)
        return max(
            (e for e in self._near(space, at) if e.filter.matches(point)),
            key=lambda entry: entry.seq,
            default=None,
        )


class Unheard(OperationError):
    """A tcm does not reach a client that is to act on it."""

    code = "unheard"


def in_order(steps: Iterable[Step]) -> list[int] | None:
    """The positions of the steps, each after those it depends on; None if there is no order.

    Whoever may go first in the plan does. A broker does nothing else meanwhile, so the time must
    not grow faster than the plan.
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
