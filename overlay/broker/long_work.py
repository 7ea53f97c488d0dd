"""Plain work that is too much for one turn, cut into operations and slices that are not.

A client with a hundred thousand entries un-subscribes from all of them, or leaves; an advertisement
attracts as many subscriptions. Here is how this is done in parts, and why the
parts differ from one step in nothing but the time.

**A client's operation that concerns very many of its own entries** (`LongOperation`), at its edge
broker. The last word decides: an operation covers those before it. So it is stored first, as any
other, an un-subscription as a hole even if it will carve nothing in the end. From
that moment on every publication is routed as if all were done: what it covers decides nothing any
more. Then the covered entries are dropped, so many at a time, and at last the hole, if it carves
nothing. Each part is a plain operation of its own, with the filter of the whole: neighbours carry
it out as ever, a transaction that it conflicts with is protected from it as ever, and one that
looks in between finds tables that decide the same. Whether the client holds any part of what it
takes back is found out before, slice by slice, when nothing is changed yet.

An un-advertisement is stored last, and only if it carves something. What is advertised decides
where subscriptions have to be, and what its own client may publish; the client publishes nothing
before all is done, and subscriptions follow each part as they follow any other un-advertisement.
(With the hole first, each look at what is advertised would have to pass all that it covers.)

All messages of the client wait until this is done: its link is *busy* (`Broker.is_busy`), the host
hands nothing over from it, and what comes all the same waits here. So the order of the client's
messages is kept, and its entries do not change under the search. Others go on. The client is
answered when all parts are done everywhere, since all belong to one task.

**A client that leaves with very many entries** (`LongLeave`), at its edge broker: they are taken
back part by part, each a plain operation again, and when few are left it leaves as any other. A
client of this name that comes meanwhile waits on the busy link; elsewhere the name is taken until
all brokers have forgotten the client, as ever. That the client is gone in part shows only in what
is not sent to it any more.

**Subscriptions that an (un-)advertisement moves** (`MovingSubscriptions`), at every broker. The
advertisement counts at once, and the subscriptions follow in slices; why that comes to the same is
said in `overlay.tables.routing.Retargeting`. The task is not done before.

Here is what the work consists of; how it is begun, paused and ended at a broker, and what waits
for it meanwhile, is in `overlay.broker.busy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from overlay.broker.requests import Task
from overlay.broker.turns import Worked
from overlay.effects import Effect
from overlay.filters import Filter, Interval
from overlay.matching.index import Search, is_visible
from overlay.messages import Hop, Kind, Leave, Operation
from overlay.stored import stored
from overlay.tables.client_entries import LookBudget, TooManyLooks
from overlay.tables.routing import Retargeting, not_held
from overlay.tables.space import Entry
from overlay.trace import TraceKind

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: Units of work (`overlay.broker.turns`) for an entry that is dropped: to find out which neighbours
#: know it, and to take it out of the index.
DROP_UNITS = 6

#: Units for a subscription that may have to be moved: to compare what is advertised before and
#: after, and to send it.
MOVE_UNITS = 6

#: Answers of neighbours for which long work waits before it goes on, and those up to which it need
#: not. What it sends shares the links with all publications: a slower neighbour would have
#: all of it in front of them.
ANSWERS_AWAITED = 64
ANSWERS_FEW = 32

#: Entries that are looked at, to see whether a filter covers them, for a unit of work.
LOOKS_PER_UNIT = 8


@stored("long-work", fields=("broker", "source", "task", "pauses"))
class LongWork(ABC):
    """Work that the broker goes on with slice by slice."""

    def __init__(self, broker: Broker, source: Hop, task: Task) -> None:
        self.broker = broker
        self.source = source
        self.task = task
        #: It waits in the queue of operations, or is over: there is nothing to do for it now.
        self.pauses = False

    @property
    def awaits_answers(self) -> bool:
        """Whether neighbours have to answer before it goes on. Its task waits for itself, too."""
        return self.task.waiting > ANSWERS_AWAITED

    @property
    def may_go_on(self) -> bool:
        return self.task.waiting <= ANSWERS_FEW

    @abstractmethod
    def work(self, now: float) -> Worked:
        """Do the next slice."""

    def resumed(self, operation: Operation, now: float) -> list[Effect]:
        """A part of it that had to wait may be carried out."""
        raise AssertionError("nothing of this kind waits")

    def parts(self, units: int) -> int:
        """How many things of so many units make a slice."""
        return max(self.broker.slice // units, 1)


@stored(
    "long-operation",
    fields=(
        *("operation", "_space", "_covers", "_near", "_search_yes", "_search_no", "_stored"),
        *("_is_stored_last", "_covered", "_loses", "_doubtful", "_search_hole", "_is_held"),
        "_carves",
    ),
)
class LongOperation(LongWork):
    """A client's operation that concerns very many of its entries; see the module's docstring."""

    def __init__(self, broker: Broker, source: Hop, operation: Operation, task: Task) -> None:
        super().__init__(broker, source, task)
        self.operation = msgspec.structs.replace(operation, seq=0)
        self._space = broker.routing.space(operation.kind, source)
        self._covers = self._space.covered_entries(operation.client)
        #: What is still to be looked at: the entries that the filter may cover, and the searches
        #: for those that it overlaps.
        self._near = self._covers.near(operation.filter)
        self._search_yes, *self._search_no = self._space.searches(operation.filter)
        self._stored = False
        #: An un-advertisement is stored at last; see the module's docstring.
        self._is_stored_last = operation.kind == "uadv"
        #: The client's entries that the filter covers, and whether one of them says yes.
        self._covered: list[int] = []
        self._loses = False
        #: Holes that the filter does not cover, and that may carve nothing any more.
        self._doubtful: list[Entry] = []
        self._search_hole: Search[Entry] | None = None
        #: Whether the client holds a part of what it takes back, and entries that this carves.
        #: For an operation that says yes neither matters.
        self._is_held = operation.positive
        self._carves = operation.positive

    def work(self, now: float) -> Worked:
        if self.pauses:
            return Worked([])
        if self._near:
            self._look_for_covered()
        elif self._loses and any(not search.done for search in self._search_no):
            self._look_for_holes()
        elif not (self._search_yes.done or (self._is_held and self._carves)):
            self._look_for_yes()
        elif not self._is_held:
            return Worked(self.broker.busy.failed(self, not_held(self.operation), now))
        elif not (self._stored or self._is_stored_last):
            return self._store(True, now)
        elif self._covered:
            size = self.parts(DROP_UNITS)
            some = self._covered[-size:]
            del self._covered[-size:]
            return self._part(self._dropping(some), now)
        elif self._doubtful:
            return self._doubt(now)
        elif not self._stored:
            return self._store(self._carves, now)
        elif not (self._is_stored_last or self.operation.positive or self._carves):
            self._carves = True
            return self._part(self._dropping([self.operation.seq]), now)
        else:
            return Worked(self.broker.busy.done(self, now))
        return Worked([], self.broker.slice, True)

    def _store(self, store: bool, now: float) -> Worked:
        """Carry out the operation itself."""
        self._stored = True
        return self._part(msgspec.structs.replace(self.operation, store=store, drop=()), now)

    def _look_for_covered(self) -> None:
        """Look at some of the client's entries that the filter may cover."""
        size, view = self.broker.slice * LOOKS_PER_UNIT, self.broker.versions.view()
        some = self._near[-size:]
        del self._near[-size:]
        for number in some:
            entry = self._covers.get(number)
            if (
                entry is not None
                and self.operation.filter.covers(entry.filter)
                and is_visible(entry, view)
            ):
                self._covered.append(entry.seq)
                self._loses = self._loses or entry.positive

    def _look_for_holes(self) -> None:
        """Look for holes of the client that overlap the filter."""
        for entry in self._some_own(self._search_no[0], self.broker.slice * LOOKS_PER_UNIT):
            if not self.operation.filter.covers(entry.filter):
                self._doubtful.append(entry)

    def _look_for_yes(self) -> None:
        """Look for what the client holds of what it takes back, until one knows enough."""
        filter, view = self.operation.filter, self.broker.versions.view()
        for entry in self._some_own(self._search_yes, self.broker.slice):
            self._carves = self._carves or not filter.covers(entry.filter)
            self._is_held = self._is_held or self._space.holds_a_part(entry, filter, view)
            if self._carves and self._is_held:
                return

    def _some_own(self, search: Search[Entry], limit: int) -> list[Entry]:
        view, client = self.broker.versions.view(), self.operation.client
        return [e for e in search.some(limit) if e.client == client and is_visible(e, view)]

    def _doubt(self, now: float) -> Worked:
        """Find a hole that carves nothing any more, and drop it."""
        looks = LookBudget(self.broker.slice * LOOKS_PER_UNIT)
        while self._doubtful:
            hole = self._doubtful[-1]
            carves = self._carves_something(hole, looks)
            if carves is None:
                break  # Others before it; the next slice goes on here.
            self._doubtful.pop()
            self._search_hole = None
            if not carves:
                return self._part(self._dropping([hole.seq]), now)
        return Worked([], self.broker.slice, True)

    def _carves_something(self, hole: Entry, looks: LookBudget) -> bool | None:
        """Whether a hole carves an earlier entry; None if more entries have to be looked at."""
        client, view = hole.client, self.broker.versions.view()
        if self._search_hole is None:
            try:
                near = self._space.some_of(client, hole.filter, view, looks, yes=True)
                return any(entry.seq < hole.seq for entry in near)
            except TooManyLooks:
                self._search_hole = self._space.searches(hole.filter)[0]
                return None
        near = iter(self._some_own(self._search_hole, self.broker.slice * LOOKS_PER_UNIT))
        if any(entry.seq < hole.seq for entry in near):
            return True
        return False if self._search_hole.done else None

    def _dropping(self, numbers: list[int]) -> Operation:
        drop = tuple(sorted(numbers))
        return msgspec.structs.replace(self.operation, req=0, store=False, drop=drop)

    def _part(self, part: Operation, now: float) -> Worked:
        """Carry a part out, now or when no transaction is in its way."""
        effects = self.broker.busy.part(self, part, now)
        return Worked(effects, self.broker.slice, not self.pauses)

    def resumed(self, operation: Operation, now: float) -> list[Effect]:
        self.pauses = False
        if not self.operation.seq:
            number = self.task.number = self.broker.next_number(self.source)
            self.operation = msgspec.structs.replace(self.operation, seq=number)
        operation = msgspec.structs.replace(operation, seq=self.operation.seq)
        kind: TraceKind = "undo" if operation.drop else "apply"
        return self.broker.busy.apply_part(self.task, operation, now, kind)


@stored("long-leave", fields=("leave", "_left"))
class LongLeave(LongWork):
    """A client that leaves and has very many entries; see the module's docstring."""

    def __init__(self, broker: Broker, source: Hop, leave: Leave) -> None:
        super().__init__(broker, source, Task(source, 0))
        self.leave = leave
        #: What is to be taken back: in which table, which numbers, and whether the holes as well.
        #: Those go last, or they would uncover what they have carved out.
        self._left: list[tuple[Kind, list[int], bool]] = []
        for kind, holes in (("uadv", True), ("uadv", False), ("usub", True), ("usub", False)):
            numbers = broker.routing.space(kind, source).numbers_of(leave.client)
            self._left.append(("uadv" if kind == "uadv" else "usub", numbers, holes))

    def work(self, now: float) -> Worked:
        if self.pauses:
            return Worked([])
        if not self._left:
            return Worked(self.broker.busy.done(self, now))
        kind, numbers, holes = self._left[-1]
        space, view = self.broker.routing.space(kind, self.source), self.broker.versions.view()
        some: list[Entry] = []
        common: dict[str, Interval] = {}
        for _ in range(self.parts(DROP_UNITS)):
            if not numbers:
                self._left.pop()
                break
            entry = space.get(self.leave.client, numbers[-1], view)
            if entry is not None and (entry.positive or holes):
                shared = _shared(common, entry) if some else dict(entry.filter.predicates)
                if not shared:
                    break  # The next part begins with it.
                common = shared
                some.append(entry)
            numbers.pop()
        if not some:
            return Worked([], self.broker.slice, True)
        return self._take_back(kind, some, Filter(common), now)

    def _take_back(self, kind: Kind, some: Sequence[Entry], around: Filter, now: float) -> Worked:
        """Drop entries by an operation around all of them."""
        drop = tuple(sorted(entry.seq for entry in some))
        part = Operation(0, kind, self.leave.client, drop[-1], around, store=False, drop=drop)
        effects = self.broker.busy.part(self, part, now)
        return Worked(effects, self.broker.slice, not self.pauses)

    def resumed(self, operation: Operation, now: float) -> list[Effect]:
        self.pauses = False
        return self.broker.busy.apply_part(self.task, operation, now, "undo")


def _shared(common: dict[str, Interval], entry: Entry) -> dict[str, Interval]:
    """What the filters of a group and one more have in common: a filter around all of them."""
    theirs = entry.filter.predicates
    return {name: one for name, one in common.items() if theirs.get(name) == one}


@stored("catching-up", fields=())
class CatchingUp(LongWork):
    """What a source has said while it was busy, if that is too much for one turn."""

    def work(self, now: float) -> Worked:
        return Worked([] if self.pauses else self.broker.busy.done(self, now))


@stored("moving-subscriptions", fields=("_rest", "_operation"))
class MovingSubscriptions(LongWork):
    """Subscriptions that a change of what is advertised attracts or sends back."""

    def __init__(
        self, broker: Broker, task: Task, rest: Retargeting, operation: Operation | None = None
    ) -> None:
        super().__init__(broker, rest.source, task)
        self._rest = rest
        self._operation = operation

    def work(self, now: float) -> Worked:
        broker, rest = self.broker, self._rest
        moved = rest.some(broker.routing, broker.versions.view(), self.parts(MOVE_UNITS))
        effects = broker.busy.move(self.task, self.source, self._operation, moved, now)
        if not rest.done:
            return Worked(effects, broker.slice, True)
        del broker.routing.retargeting[rest]
        return Worked(effects + broker.busy.done(self, now))
