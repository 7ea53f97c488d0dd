"""What one client holds in one table of its edge broker, and the callbacks that go with it.

Two questions are answered here: what may the client publish or take back, and which callbacks is a
publication for. Both follow from the client's routing operations by the rule that the last one
decides (`overlay.tables.last_word`), and "last" is by the numbers that the client's edge broker has
given to them. Only the edge broker knows the order of what the client asks itself and of what
others' transactions do on its behalf. So when nothing is under way, this is what the edge broker's
tables have (but for entries that make no difference).

**Order.** An operation without an answer has no number yet. It counts already, since it will be
carried out unless it is refused. Its place is above all numbers, or just below that of a later
call of the client that was answered before it, since an edge broker numbers a client's calls in
their order. It makes others obsolete only when it has its number.

**Callbacks.** A publication reaches a client once, however many of its subscriptions want it. Of
these, each one that came with a callback gets it, in the order of subscribing, a callback that came
several times once. An un-subscription silences, in the part of the space that it names, the
callbacks subscribed before it. A later subscription does not bring them back. A callback counts
from the call on, since publications may come before the answer; it is silenced by the answer to the
un-subscription, since until then they may come.

**Versions.** A commit does not end the stream of publications from before it: those go on to come
to whoever was subscribed then, up to `drained`. They carry the transaction in their stamp
(`Pub.hidden`), and none of those from after the commit does. So the operations of a committed
transaction are hidden from publications with that stamp, and so is what the client does later in
the same part of the space: a worker that has given its stream away still gets the rest of it, even
if it has subscribed again meanwhile. When the transaction is drained, its changes are permanent.

Publications of the transaction itself come before its end. So the callbacks of an undecided
transaction count as well, from the call on; an abort removes them.

Pure: it knows neither what a callback is nor who calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from overlay.filters import Filter, Value
from overlay.matching.index import View, is_visible
from overlay.messages import Hop, Kind, Operation, Version
from overlay.tables.space import Entry, Space

#: Calls of one client that may wait for their answers at once.
CALLS_LIMIT = 1024

#: Places between two numbers: there are enough for all calls without an answer.
GAP = 2 * CALLS_LIMIT

#: The places of calls without an answer begin here, and an edge broker's numbers end before.
UNANSWERED = 1 << 62
NUMBER_LIMIT = UNANSWERED // GAP

#: Committed transactions whose old publications may still come. A broker that is away keeps them
#: all from being drained; the oldest then counts as drained, since most of its publications have
#: come long ago.
UNDRAINED_LIMIT = 256

#: Hides an un-subscription from publications, while it has no answer: they may still come.
NO_ANSWER: Version = ("", 0, 0)


class Holding(Entry):
    """One routing operation of the client; its `seq` is its place in the order."""

    __slots__ = ("call", "callback")

    def __init__(
        self, operation: Operation, hop: Hop, version: Version | None, call: int, callback: Any
    ) -> None:
        super().__init__(operation, hop, version)
        self.call = call
        self.callback = callback

    @property
    def number(self) -> int:
        """The edge broker's number; 0 while there is none."""
        return 0 if self.seq % GAP or self.seq >= UNANSWERED else self.seq // GAP


class HoldingChange(NamedTuple):
    """A routing operation that a commit has made effective; `call` is 0 if it is not the client's
    own."""

    kind: Kind
    filter: Filter
    number: int
    call: int = 0
    #: Of a subscription: whether it is for events only.
    events: bool = False


class _Without:
    """A view without what is hidden by one of these transactions.

    A version of an entry stands for a set of transactions, each of which hides it (`Holdings`).
    """

    def __init__(
        self, hidden: Collection[Version], hiders: Mapping[Version, frozenset[Version]]
    ) -> None:
        self._hidden = hidden
        self._hiders = hiders

    def includes(self, version: Version) -> bool:
        return not any(tx in self._hidden for tx in self._hiders[version])


class Holdings:
    """A client's routing operations in one table: the advertised space, or the subscribed one."""

    def __init__(self, client: str, hop: Hop) -> None:
        self._client = client
        self._hop = hop
        self._space = Space()
        #: Calls without an answer, in their order.
        self._unanswered: dict[int, Holding] = {}
        self._last_call = 0
        #: Subscriptions with a callback in transactions that are not decided, by call.
        self._undecided: dict[Version, dict[int, Holding]] = {}
        #: Committed transactions that are not drained, with what they have changed here.
        self._undrained: dict[Version, list[HoldingChange]] = {}
        #: What is hidden from publications with certain stamps: by a version that stands for these
        #: transactions, the entries and the transactions.
        self._marked: dict[Version, dict[Holding, None]] = {}
        self._hiders: dict[Version, frozenset[Version]] = {}
        self._versions = 0
        #: Un-subscriptions and un-advertisements that may carve nothing, each with the last call
        #: made when that came up: the answers to calls up to that one may show otherwise.
        self._suspects: deque[tuple[int, Holding]] = deque()
        self._holes = 0
        self._with_callback = 0
        self._all = _Without((), self._hiders)
        #: What the client holds: all but what is undecided.
        self._known = _Without(self._undecided, self._hiders)

    # --- questions ---

    def contains(
        self, point: Mapping[str, Value], after: Sequence[tuple[bool, Filter]] = ()
    ) -> bool:
        """Whether the client holds this point, as far as it knows.

        `after` are operations, each yes or no, that come after all that the client knows of.
        """
        for yes, filter in reversed(after):
            if filter.matches(point):
                return yes
        return bool(self._space.matching(point, self._view()))

    def reaches(self, filter: Filter, after: Sequence[tuple[bool, Filter]] = ()) -> bool:
        """Whether the client holds some part of the filter, as far as it knows; `after` as above.

        Holes are not added up, as in `lastword.reaches`.
        """
        if not any(box.overlaps(filter) for _, box in after):
            return self._space.reaches(filter, self._view())
        near = sorted(self._space.overlapping(filter, self._view()), key=_place)
        said = [*((entry.positive, entry.filter) for entry in near), *after]
        for at, (yes, box) in enumerate(said):
            common = box.meet(filter) if yes else None
            if common and not any(not y and hole.covers(common) for y, hole in said[at + 1 :]):
                return True
        return False

    def acts(self, point: Mapping[str, Value]) -> bool:
        """Whether the client is to act on a tcm that has come: not if its last subscription to it
        is for events only."""
        found = self._space.matching(point, self._view())
        return not found or not max(found, key=_place).events

    def callbacks(self, point: Mapping[str, Value], hidden: Collection[Version] = ()) -> list[Any]:
        """The callbacks that a publication with this stamp is for, each once."""
        if not self._with_callback:
            return []
        found = self._wanting(point, hidden)
        if len(found) > 1:
            found.sort(key=_place)
        callbacks: list[Any] = []
        for entry in found:
            assert isinstance(entry, Holding)
            if entry.callback is not None and entry.callback not in callbacks:
                callbacks.append(entry.callback)
        return callbacks

    def _wanting(self, point: Mapping[str, Value], hidden: Collection[Version]) -> list[Entry]:
        """The subscriptions that a publication has come for."""
        if not self._marked:
            return self._space.matching(point)
        found = self._space.matching(point, _Without((*hidden, NO_ANSWER), self._hiders))
        if not found and hidden:
            # An old one that only a later subscription, or one removed since, has brought.
            found = self._space.matching(point, self._known) or self._space.matching(point)
        return found

    def entries(self) -> list[Holding]:
        """All that the client holds, in its order; what is undecided is not held."""
        found = [entry for entry in self._space.of(self._client) if isinstance(entry, Holding)]
        return [entry for entry in found if is_visible(entry, self._view())]

    def _view(self) -> View | None:
        return self._known if self._marked else None

    # --- the client's own calls ---

    def ask(
        self, call: int, kind: Kind, filter: Filter, callback: Any = None, *, events: bool = False
    ) -> None:
        """The client has made a call; `settle` or `refuse` follows."""
        self._last_call = call
        version = self._version(filter, NUMBER_LIMIT, NO_ANSWER if kind == "usub" else None)
        place = UNANSWERED + call
        entry = self._add(kind, filter, place, version, call, callback, events=events)
        self._unanswered[call] = entry

    def refuse(self, call: int) -> None:
        """The call has changed nothing."""
        entry = self._unanswered.pop(call)
        self._remove(entry)
        self._look_again()

    def settle(self, call: int, number: int) -> None:
        """The edge broker has carried the call out, under this number; see `is_free`."""
        entry = self._unanswered.pop(call)
        if next(iter(self._unanswered), call) < call:
            self._lower(call, number)
        self._number(entry, number, self._version(entry.filter, number))
        self._look_again()

    def is_free(self, number: int) -> bool:
        """Whether an edge broker may give this number to an operation."""
        place = number * GAP
        return 0 < number < NUMBER_LIMIT and not self._space.get(self._client, place, self._all)

    def _lower(self, call: int, number: int) -> None:
        """Earlier calls have lower numbers, though they are answered later."""
        place = number * GAP
        for earlier in reversed(list(self._unanswered.values())):
            if earlier.call < call:
                place -= 1
                if earlier.seq <= place:
                    return  # And so have those before it.
                self._move(earlier, place, earlier.added_by)

    # --- transactions ---

    def listen(
        self, tx: Version, call: int, filter: Filter, callback: Any, *, events: bool = False
    ) -> None:
        """The client has subscribed in a transaction, with a callback."""
        version = self._version(filter, NUMBER_LIMIT, tx)
        place = UNANSWERED + call
        entry = self._add("sub", filter, place, version, call, callback, events=events)
        self._undecided.setdefault(tx, {})[call] = entry

    def withdraw(self, tx: Version, call: int) -> None:
        """A call in a transaction was not sent after all."""
        entry = self._undecided.get(tx, {}).pop(call, None)
        if entry is not None:
            self._remove(entry)

    def abort(self, tx: Version) -> None:
        """Nothing of the transaction counts."""
        for entry in self._undecided.pop(tx, {}).values():
            self._remove(entry)

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        """The transaction has ended with these changes; `drained` follows if it drains."""
        said = self._undecided.pop(tx, {})
        for change in sorted(changes, key=_number):
            kind, filter, number, call, events = change
            version = self._version(filter, number, tx if drains else None)
            entry = said.pop(call, None) if kind == "sub" else None
            if entry is None:
                place = UNANSWERED  # For a moment.
                entry = self._add(kind, filter, place, version, 0, None, events=events)
            if drains:
                self._undrained.setdefault(tx, []).append(change)
            self._number(entry, number, version)
        for entry in said.values():
            self._remove(entry)
        if len(self._undrained) > UNDRAINED_LIMIT:
            self.drained(next(iter(self._undrained)))
        self._look_again()

    def drained(self, tx: Version) -> None:
        """No publication from before the transaction will come any more."""
        if self._undrained.pop(tx, None) is None:
            return
        plain: list[Holding] = []
        for version, hiders in list(self._hiders.items()):
            if tx in hiders:
                self._hiders[version] = hiders - {tx}
                if not self._hiders[version]:
                    plain += self._marked.pop(version, ())
        for entry in plain:
            self._space.make_plain(entry)
        for entry in sorted(plain, key=_place):
            if entry.number and entry in self._space:
                self._compact(entry)
        self._look_again()

    def _version(self, filter: Filter, number: int, tx: Version | None = None) -> Version | None:
        """The version of an operation: it is hidden by its own transaction, and by those that have
        changed the same part before and are not drained."""
        hiders = frozenset(
            before
            for before, changes in self._undrained.items()
            if any(one.number < number and one.filter.overlaps(filter) for one in changes)
        )
        if tx is not None:
            hiders |= {tx}
        if not hiders:
            return None
        for version, same in self._hiders.items():
            if same == hiders:
                return version
        for version in [version for version in self._hiders if version not in self._marked]:
            del self._hiders[version]
        self._versions += 1
        version = ("", 0, self._versions)
        self._hiders[version] = hiders
        return version

    # --- what others make obsolete ---

    def _number(self, entry: Holding, number: int, version: Version | None) -> None:
        """Give an operation its number, and let it and others go that make no difference now."""
        self._move(entry, number * GAP, version)
        if version is None:
            self._compact(entry)

    def _compact(self, entry: Holding) -> None:
        """Remove what an operation has made obsolete, or the operation itself."""
        near = [other for other in self._near(entry.filter) if other is not entry and other.number]
        later = [other for other in near if other.seq > entry.seq and other.added_by is None]
        if any(_replaces(other, entry) for other in later):
            gone = [entry]
        else:
            gone = [other for other in near if other.seq < entry.seq and _replaces(entry, other)]
        for lost in gone:
            self._remove(lost)
        if not entry.positive:
            self._suspect(entry)
        if self._holes:
            filters = [entry.filter, *(lost.filter for lost in gone if lost.positive)]
            for hole in {hole: None for filter in filters for hole in self._near(filter)}:
                if not hole.positive:
                    self._suspect(hole)

    def _suspect(self, hole: Holding) -> None:
        self._suspects.append((self._last_call, hole))

    def _look_again(self) -> None:
        """Remove un-subscriptions and un-advertisements that make no difference."""
        while self._suspects:
            last_call, hole = self._suspects[0]
            if next(iter(self._unanswered), last_call + 1) <= last_call:
                return  # What is not answered may turn out to come before it.
            self._suspects.popleft()
            if hole in self._space and hole.added_by is None and self._is_idle(hole):
                self._remove(hole)

    def _is_idle(self, hole: Holding) -> bool:
        """Whether it takes nothing from anything, or only what the client has taken again."""
        near = self._near(hole.filter)
        carved = [entry for entry in near if entry.positive and entry.seq < hole.seq]
        if any(entry.callback is not None for entry in carved):
            return False
        return not carved or any(
            entry.positive
            and entry.seq > hole.seq
            and entry.number
            and entry.added_by is None
            and entry.filter.covers(hole.filter)
            for entry in near
        )

    # --- the space ---

    def _near(self, filter: Filter) -> list[Holding]:
        view = self._all if self._marked else None
        found = self._space.overlapping(filter, view)
        return [entry for entry in found if isinstance(entry, Holding)]

    def _add(
        self,
        kind: Kind,
        filter: Filter,
        place: int,
        version: Version | None,
        call: int,
        callback: Any,
        *,
        events: bool,
    ) -> Holding:
        operation = Operation(0, kind, self._client, place, filter, events=events)
        entry = Holding(operation, self._hop, version, call, callback)
        self._insert(entry)
        return entry

    def _insert(self, entry: Holding) -> None:
        self._space.add(entry)
        self._holes += not entry.positive
        self._with_callback += entry.callback is not None
        if entry.added_by is not None:
            self._marked.setdefault(entry.added_by, {})[entry] = None

    def _remove(self, entry: Holding) -> None:
        self._space.remove(entry)
        mark = entry.added_by
        if mark is not None and mark in self._marked:
            self._marked[mark].pop(entry, None)
            if not self._marked[mark]:
                del self._marked[mark]
        self._holes -= not entry.positive
        self._with_callback -= entry.callback is not None

    def _move(self, entry: Holding, place: int, version: Version | None) -> None:
        if entry.seq == place and entry.added_by == version:
            return
        self._remove(entry)
        entry.seq, entry.added_by = place, version
        self._insert(entry)


def _place(entry: Entry) -> int:
    return entry.seq


def _number(change: HoldingChange) -> int:
    return change.number


def _replaces(later: Holding, earlier: Holding) -> bool:
    """Whether an operation makes no difference any more, a later one being there."""
    if not later.filter.covers(earlier.filter):
        return False
    if not later.positive:
        return True
    same = earlier.callback is None or earlier.callback == later.callback
    return earlier.positive and same
