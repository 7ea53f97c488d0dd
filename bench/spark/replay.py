"""A broker's tables, rebuilt from its records step by step, while they stream by in their order.

Runs in executors, on partitions in which each broker's steps stand together and in order
(`spark.steps`): only the tables and what happens at the same time are kept in memory, not the
records. What comes out are rows of `Found`:

    verdict  a publication was not routed on its tables, or was routed on what was not committed
    line     an entry that stands in a table in the end; `tx` if it still has a mark on it
    edge     a unit has read what another wrote, or would have, had that come first (`seen`)

A unit takes effect as one: a transaction, or a plain operation, publication or leaving on its own.
What is read is a predicate, not a row, so who finds nothing has read that, too:

    publication   PRT at its point; at its edge also its client's own advertisements
    sub, usub     SRT entries that overlap it, and its client's own subscriptions there
    adv, uadv     PRT entries that overlap it; for each of them the SRT entries that overlap that
                  one; its client's own advertisements there

Only units are compared that were at a broker at the same time, one of them a transaction; so
the work follows the records and how much happens at once, not the pairs of operations.

Nothing here knows Spark: rows come and go as tuples.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from overlay.filters import Filter, Value
from overlay.matching.index import Index, is_visible
from overlay.matching.recent_accesses import Near
from overlay.notation import parse_filter, parse_publication

if TYPE_CHECKING:
    # Messages do not go with the job.
    from overlay.messages import Hop, Version

#: Filters repeat, and are parsed once; so many of them are remembered.
CACHED_FILTERS: Final = 65_536


class Unit(NamedTuple):
    """What takes effect as one: a "tx", or a plain "op", "pub" or "leave"."""

    kind: str
    name: str
    #: Which life of its client it belongs to; a transaction's name is used once.
    life: int = 0


class Step(NamedTuple):
    """A record with what it belongs to; or, before those of its broker, a transaction.

    Of a transaction `outcome` is the run's, `dests` are its neighbours here, and the numbers tell
    when it was decided here, and its first and last step here.
    """

    run: str
    node: str
    seq: int
    kind: str
    tx: str
    engine: str
    op_id: str
    op_kind: str
    client: str
    filter: str
    source: str
    dests: list[str]
    version: str
    outcome: str
    #: Whose step it is, if anybody's who counts.
    unit_kind: str
    unit_name: str
    unit_life: int
    #: The transaction that has said what an entry holds, or that a publication belongs to.
    said_in: str
    #: Whether a publication came in here.
    entered: bool
    decided_at: int
    decided: str
    first_at: int
    last_at: int


class Found(NamedTuple):
    """What a step, or the end, has shown; what does not apply is empty."""

    run: str
    node: str
    what: str
    kind: str = ""
    engine: str = ""
    tx: str = ""
    table: str = ""
    client: str = ""
    op_id: str = ""
    op_kind: str = ""
    filter: str = ""
    hop: str = ""
    reader_kind: str = ""
    reader_name: str = ""
    reader_life: int = 0
    reader_engine: str = ""
    writer_kind: str = ""
    writer_name: str = ""
    writer_life: int = 0
    writer_engine: str = ""
    seen: bool = False
    #: Whether it was a publication that read.
    routed: bool = False


def replay(steps: Iterable[Step], versioned: Collection[str]) -> Iterator[Found]:
    """All that is found at each broker; its transactions come first, then its steps in order.

    `versioned` are the engines whose changes carry a version until the decision.
    """
    for _, own in groupby(steps, key=lambda step: (step.run, step.node)):
        broker: Broker | None = None
        for step in own:
            if broker is None:
                broker = Broker(step.run, step.node, versioned)
            if step.kind == "tx":
                broker.know(step)
            else:
                yield from broker.take(step)
        if broker is not None:
            yield from broker.rest()


class Tx:
    """A transaction as this broker has it."""

    __slots__ = ("_at", "_decided", "engine", "last_at", "name", "neighbours", "outcome")

    def __init__(self, step: Step) -> None:
        self.name = step.tx
        self.engine = step.engine
        self.outcome = step.outcome
        self.neighbours = frozenset(step.dests)
        self.last_at = step.last_at
        self._at = step.decided_at
        self._decided = step.decided

    @property
    def committed(self) -> bool:
        return self.outcome == "committed"

    def committed_by(self, seq: int) -> bool:
        """Whether it was committed here before a step."""
        return self._decided == "committed" and self._at < seq


class View:
    """What one step saw: what was committed here then, but for what it hides, and its own."""

    __slots__ = ("committed", "hidden", "own", "seen")

    def __init__(self, text: str, own: str, committed: Mapping[str, None]) -> None:
        parts = [part for part in text.split(",") if part]
        self.hidden = frozenset(part[1:] for part in parts if part.startswith("-"))
        self.seen = frozenset(part for part in parts if not part.startswith("-"))
        self.own = own
        #: As it is now; whoever keeps a view asks what is written in it only.
        self.committed = committed

    def includes(self, version: Version) -> bool:
        name = version[0]
        if name == self.own or name in self.seen:
            return True
        return name in self.committed and name not in self.hidden


class Entry:
    """A line of a table, and what it came with."""

    __slots__ = ("added_by", "filter", "hop", "number", "positive", "removed_by", "step")

    def __init__(self, step: Step, number: int, filter: Filter, added_by: Version | None) -> None:
        self.step = step
        self.number = number
        self.filter = filter
        self.hop = cast("Hop", step.source)
        self.positive = step.op_kind in ("sub", "adv")
        self.added_by = added_by
        self.removed_by: tuple[Version, ...] = ()


#: What `overlay.trace` says of an entry for events only; executors have no codec for that module.
EVENTS = "events"


def _takers(entries: list[Entry]) -> list[Entry]:
    """Of each client the last word, if it is not for events only."""
    last: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.number):
        last[entry.step.client] = entry
    return [entry for entry in last.values() if EVENTS not in entry.step.outcome.split()]


def _mark(tx: str) -> Version | None:
    """A version as entries are marked with it; None for what everybody sees."""
    return (tx, 0, 0) if tx else None


class Table:
    """SRT or PRT of one broker."""

    def __init__(self) -> None:
        self._yes: Index[Entry] = Index()
        self._no: Index[Entry] = Index()
        self._of: dict[str, dict[int, list[Entry]]] = {}
        #: The entries that each version has marked.
        self._marked: dict[str, list[Entry]] = {}

    def __iter__(self) -> Iterator[Entry]:
        for numbers in self._of.values():
            for copies in numbers.values():
                yield from copies

    def _index(self, entry: Entry) -> Index[Entry]:
        return self._yes if entry.positive else self._no

    def _copies(self, client: str, number: int) -> list[Entry]:
        return self._of.get(client, {}).get(number, [])

    def add(self, step: Step, number: int, filter: Filter, tx: str) -> None:
        """Bring an entry, for everybody or in a version."""
        mark = _mark(tx)
        for entry in self._copies(step.client, number):
            if mark is not None and mark in entry.removed_by:
                left = tuple(other for other in entry.removed_by if other != mark)
                self._index(entry).remark(entry, removed_by=left)
                return
            if entry.added_by == mark:
                return
        entry = Entry(step, number, filter, mark)
        self._of.setdefault(step.client, {}).setdefault(number, []).append(entry)
        self._index(entry).insert(entry)
        if mark is not None:
            self._marked.setdefault(tx, []).append(entry)

    def drop(self, client: str, number: int, tx: str, view: View) -> None:
        """Take away the entry of that number that the view sees."""
        mark = _mark(tx)
        for entry in self._copies(client, number):
            if not is_visible(entry, view):
                continue
            if mark is None or entry.added_by == mark:
                self._remove(entry)
            else:
                self._index(entry).remark(entry, removed_by=(*entry.removed_by, mark))
                self._marked.setdefault(tx, []).append(entry)
            return

    def _remove(self, entry: Entry) -> None:
        client = entry.step.client
        numbers = self._of[client]
        numbers[entry.number].remove(entry)
        if not numbers[entry.number]:
            del numbers[entry.number]
            if not numbers:
                del self._of[client]
        self._index(entry).remove(entry)

    def forget(self, client: str) -> list[Entry]:
        """Take away all that a client has; answers with it."""
        gone = [entry for copies in self._of.get(client, {}).values() for entry in copies]
        for entry in gone:
            self._remove(entry)
        return gone

    def _unmark(self, tx: str) -> Iterator[Entry]:
        """What a version has marked and is still here."""
        for entry in self._marked.pop(tx, ()):
            if entry in self._copies(entry.step.client, entry.number):
                yield entry

    def discard(self, tx: str) -> None:
        """A version was aborted."""
        mark = _mark(tx)
        for entry in self._unmark(tx):
            if entry.added_by == mark:
                self._remove(entry)
            elif mark in entry.removed_by:
                left = tuple(other for other in entry.removed_by if other != mark)
                self._index(entry).remark(entry, removed_by=left)

    def fold(self, tx: str) -> None:
        """Nobody needs the state before a committed version any more."""
        mark = _mark(tx)
        for entry in self._unmark(tx):
            if mark in entry.removed_by:
                self._remove(entry)
            elif entry.added_by == mark:
                copies = self._copies(entry.step.client, entry.number)
                if any(copy.added_by is None for copy in copies):
                    self._remove(entry)
                else:
                    self._index(entry).remark(entry, added_by=None)

    def matching(self, point: Mapping[str, Value], view: View) -> list[Entry]:
        """The entries whose clients want the point: of each client the last word decides."""
        last_no: dict[str, int] = {}
        for hole in self._no.matching(point, view):
            client = hole.step.client
            last_no[client] = max(hole.number, last_no.get(client, 0))
        found = self._yes.matching(point, view)
        return [entry for entry in found if entry.number > last_no.get(entry.step.client, 0)]

    def overlapping(self, filter: Filter, view: View) -> list[Entry]:
        return self._yes.overlapping(filter, view) + self._no.overlapping(filter, view)


class Access:
    """What a unit read or wrote in one table, as the index takes it."""

    __slots__ = (
        "added_by",
        "client",
        "filter",
        "hop",
        "own",
        "point",
        "removed_by",
        "seq",
        "unit",
        "view",
    )

    def __init__(
        self,
        unit: Unit,
        step: Step,
        filter: Filter,
        view: View | None = None,
        *,
        own: bool = False,
        point: Mapping[str, Value] | None = None,
    ) -> None:
        self.unit = unit
        self.seq = step.seq
        self.client = step.client
        self.filter = filter
        self.view = view
        #: Whether it reads only what its own client has said.
        self.own = own
        #: Of a publication, where it looks.
        self.point = point
        self.hop = cast("Hop", "")  # Nobody asks an access where it came from; an index does.
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()

    def concerns(self, write: Access) -> bool:
        """Whether what was written is part of what this has read; the two overlap."""
        if self.own and self.client != write.client:
            return False
        return self.point is None or write.filter.matches(self.point)


class Broker:
    """One broker of one run."""

    def __init__(self, run: str, node: str, versioned: Collection[str]) -> None:
        self._run, self._node = run, node
        self._versioned = versioned
        self._txs: dict[str, Tx] = {}
        self._tables = {"srt": Table(), "prt": Table()}
        self._boxes: dict[str, Filter] = {}
        #: Committed here, their marks still on entries; and which of them nobody needs any more.
        self._committed: dict[str, None] = {}
        self._open: dict[str, None] = {}
        self._waiting: dict[str, set[str]] = {}
        #: The committed transactions: when they come and go, who is here now.
        self._coming: list[tuple[int, int, str]] = []
        self._leaving: list[tuple[int, str]] = []
        self._present: dict[str, int] = {}
        self._near = Near[Access]()

    def know(self, step: Step) -> None:
        """A transaction of the run; all of them come before the first step."""
        tx = self._txs[step.tx] = Tx(step)
        if tx.committed and step.first_at:
            heapq.heappush(self._coming, (step.first_at, step.last_at, tx.name))

    def take(self, step: Step) -> Iterator[Found]:
        """The next step."""
        unit = self._unit(step)
        self._pass_time(step.seq)
        reads: list[tuple[str, Access]] = []
        writes: list[tuple[str, Access]] = []
        if step.kind == "match":
            view = View(step.version, step.tx, self._committed)
            point = parse_publication(step.filter)
            yield from self._look(step, point, view)
            if unit is not None and self._present:
                here = Filter(point)
                reads.append(("prt", Access(unit, step, here, view, point=point)))
                if step.entered:
                    reads.append(("srt", Access(unit, step, here, view, own=True, point=point)))
        elif step.kind in ("apply", "undo"):
            view = View(step.version, step.tx, self._committed)
            filter = self._box(step.filter)
            name = "prt" if step.op_kind in ("sub", "usub") else "srt"
            if step.kind == "apply" and unit is not None and self._present:
                other = "srt" if name == "prt" else "prt"
                reads.append((other, Access(unit, step, filter, view)))
                reads.append((name, Access(unit, step, filter, view, own=True)))
                writes.append((name, Access(unit, step, filter)))
                if name == "srt" and not step.source.startswith("@"):
                    # Each subscription that it may move asks for the other advertisements.
                    for entry in self._tables["prt"].overlapping(filter, view):
                        if entry.hop != step.source:
                            reads.append(("srt", Access(unit, step, entry.filter, view)))
            self._change(step, self._tables[name], filter, view)
        elif step.kind == "end" and not step.tx:
            for name in ("prt", "srt"):
                for entry in self._tables[name].forget(step.client):
                    if unit is not None and self._present:
                        writes.append((name, Access(unit, step, entry.filter)))
                        if name == "srt":
                            reads.append(("prt", Access(unit, step, entry.filter)))
        elif step.tx and step.engine in self._versioned:
            self._decide(step)
        if reads or writes:
            yield from self._compare(step, reads, writes)

    def rest(self) -> Iterator[Found]:
        """What stands in the tables in the end."""
        for name, table in self._tables.items():
            for entry in table:
                marks = [entry.added_by] if entry.added_by is not None else []
                marked = next((tx for tx, _, _ in (*marks, *entry.removed_by)), "")
                step = entry.step
                yield Found(
                    self._run,
                    self._node,
                    "line",
                    tx=marked,
                    table=name,
                    client=step.client,
                    op_id=step.op_id,
                    op_kind=step.op_kind,
                    filter=step.filter,
                    hop=entry.hop,
                )

    # --- tables ---

    def _box(self, text: str) -> Filter:
        found = self._boxes.get(text)
        if found is None:
            if len(self._boxes) >= CACHED_FILTERS:
                self._boxes.clear()
            found = self._boxes[text] = parse_filter(text)
        return found

    def _change(self, step: Step, table: Table, filter: Filter, view: View) -> None:
        tx = step.tx if step.engine in self._versioned else ""
        told = step.outcome.split()
        for part in told:
            if part.startswith("-"):
                table.drop(step.client, int(part[1:]), tx, view)
        if "+" in told:
            table.add(step, int(step.op_id[len(step.client) + 1 :]), filter, tx)

    def _decide(self, step: Step) -> None:
        """A version begins, is decided, or is over: from when on may nobody hide it?"""
        tx = step.tx
        due: list[str] = []
        if step.kind == "begin":
            self._open[tx] = None
        elif step.kind == "decide":
            if step.outcome == "committed":
                self._committed[tx] = None
            else:
                for table in self._tables.values():
                    table.discard(tx)
            self._open.pop(tx, None)
            for other, waits_for in list(self._waiting.items()):
                waits_for.discard(tx)
                if not waits_for:
                    del self._waiting[other]
                    due.append(other)
        elif step.kind == "end" and self._txs[tx].committed:
            self._waiting.pop(tx, None)
            if self._open:
                self._waiting[tx] = set(self._open)
            else:
                due.append(tx)
        for over in due:
            for table in self._tables.values():
                table.fold(over)
            self._committed.pop(over, None)

    # --- publications ---

    def _look(self, step: Step, point: Mapping[str, Value], view: View) -> Iterator[Found]:
        entries = self._tables["prt"].matching(point, view)
        takers = entries
        if step.op_kind == "tcm":
            names = step.outcome.split()[1:]
            takers = [e for e in _takers(entries) if not names or e.step.client in names]
        hops = {entry.hop for entry in takers}
        tx = self._txs.get(step.tx)
        if tx is not None and tx.engine == "s-tx":
            # Every broker of the span does its own part.
            hops -= {hop for hop in tx.neighbours if not hop.startswith("@")}
            if step.op_kind == "tcm":
                hops = set()
        elif not step.source.startswith("@"):
            hops.discard(step.source)
        reader = self._txs.get(step.said_in)
        went = set(step.dests)
        if went != hops:
            yield self._off_the_tables(step, view, reader, missed=bool(hops - went))
        if reader is None or reader.committed:
            yield from self._uncommitted(step, view, reader, entries)

    def _off_the_tables(self, step: Step, view: View, reader: Tx | None, *, missed: bool) -> Found:
        """Where it went is not where the tables sent it."""
        if reader is not None:
            return self._verdict("partial" if missed else "dirty", reader.engine, reader.name)
        near = sorted({*view.seen, *view.hidden, *view.committed} & self._txs.keys())
        if near:
            return self._verdict("handover", self._txs[near[0]].engine, near[0])
        return self._verdict("divergence", "", step.op_id)

    def _uncommitted(
        self, step: Step, view: View, reader: Tx | None, entries: list[Entry]
    ) -> Iterator[Found]:
        """Nobody is led by what is not committed."""
        seen = [self._txs[name] for name in sorted(view.seen) if name in self._txs]
        wrong = [tx for tx in seen if tx is not reader and not tx.committed_by(step.seq)]
        said = (self._txs.get(entry.step.said_in) for entry in entries)
        wrong += [
            tx for tx in said if tx is not None and tx is not reader and tx.outcome == "aborted"
        ]
        if wrong and reader is None:
            yield self._verdict("handover", wrong[0].engine, wrong[0].name)
        elif wrong and reader is not None:
            yield self._verdict("dirty", reader.engine, reader.name)

    def _verdict(self, kind: str, engine: str, tx: str) -> Found:
        return Found(self._run, self._node, "verdict", kind, engine, tx)

    # --- who comes before whom ---

    def _unit(self, step: Step) -> Unit | None:
        """Whose step it is; nobody's who counts, if it was aborted or undoes something."""
        if not step.unit_kind:
            return None
        if step.unit_kind == "tx" and not self._txs[step.unit_name].committed:
            return None
        return Unit(step.unit_kind, step.unit_name, step.unit_life)

    def _pass_time(self, seq: int) -> None:
        """Who has come and gone before this step; who comes with it is here."""
        while True:
            comes = self._coming[0][0] if self._coming else math.inf
            goes = self._leaving[0][0] if self._leaving else math.inf
            if comes <= goes and comes <= seq:
                first, last, tx = heapq.heappop(self._coming)
                self._present[tx] = first
                heapq.heappush(self._leaving, (last, tx))
            elif goes < comes and goes < seq:
                _, tx = heapq.heappop(self._leaving)
                del self._present[tx]
                self._near.expire(min(self._present.values(), default=math.inf))
            else:
                return

    def _compare(
        self, step: Step, reads: list[tuple[str, Access]], writes: list[tuple[str, Access]]
    ) -> Iterator[Found]:
        near = self._near
        for table, read in reads:
            for write in near.writes[table].overlapping(read.filter):
                if read.concerns(write):
                    yield from self._edge(read, write)
        for table, write in writes:
            for read in near.reads[table].overlapping(write.filter):
                if read.concerns(write):
                    yield from self._edge(read, write)
        over = step.seq
        if step.unit_kind == "tx":
            over = self._txs[step.unit_name].last_at
        for table, read in reads:
            near.add(near.reads[table], read, over)
        for table, write in writes:
            near.add(near.writes[table], write, over)

    def _edge(self, read: Access, write: Access) -> Iterator[Found]:
        reader, writer = read.unit, write.unit
        if reader == writer or "tx" not in (reader.kind, writer.kind):
            return
        yield Found(
            self._run,
            self._node,
            "edge",
            reader_kind=reader.kind,
            reader_name=reader.name,
            reader_life=reader.life,
            reader_engine=self._engine(reader),
            writer_kind=writer.kind,
            writer_name=writer.name,
            writer_life=writer.life,
            writer_engine=self._engine(writer),
            seen=self._sees(read, write),
            routed=read.point is not None,
        )

    def _engine(self, unit: Unit) -> str:
        return self._txs[unit.name].engine if unit.kind == "tx" else ""

    def _sees(self, read: Access, write: Access) -> bool:
        """A versioned change is seen if the view says so, any other if it came earlier."""
        unit, view = write.unit, read.view
        if unit.kind != "tx" or self._txs[unit.name].engine not in self._versioned:
            return write.seq < read.seq
        if view is not None and (unit.name in view.seen or unit.name in view.hidden):
            return unit.name in view.seen
        return self._txs[unit.name].committed_by(read.seq)
