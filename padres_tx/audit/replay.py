"""The replay of one broker: its tables rebuilt step by step, and what each step shows.

A record of an operation says how it changed the tables, and a record of a publication with which
view it was matched; so the state before every step is known, and whether the broker did what its
tables say. Steps stream through in their order: the tables and the recent accesses are kept in
memory, not the records. A step may yield

    Misrouting       a publication went elsewhere than the tables say
    UncommittedRead  a publication was routed on a change that was not committed
    Dependency       a unit has read what another wrote, or would have, had that come first

What is read is a predicate, not an entry, so a unit that finds nothing has read that, too:

    publication   PRT at its point, at every broker that it visits; at its edge also its client's
                  own advertisements
    sub, usub     SRT entries that overlap it, and its client's own subscriptions there
    adv, uadv     PRT entries that overlap it; for each of them the SRT entries that overlap that
                  one; its client's own advertisements there

At a broker a reader either saw a writer or did not. If it did, the writer comes first (wr);
otherwise the reader does (rw). Two units that write the same operations of a client read them as
well, which covers ww. A versioned change is seen if the record's view says so, any other change if
it came earlier.

Only units that were at the broker at the same time are compared, at least one of them a judged
transaction; a transaction that ends at a broker before another begins there comes before it anyway
(`dependency_graph`). So the work grows with the records and the concurrency, not with the pairs of
operations.

What an engine promises is not known here: the replay reports facts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from overlay.filters import Filter, Value
from padres_tx.audit.dependency_graph import Unit
from padres_tx.audit.recent_accesses import RecentAccesses
from padres_tx.audit.record_fields import change_of, filter_of, point_of, table_of
from padres_tx.audit.replayed_tables import (
    RecordedView,
    ReplayedEntry,
    ReplayedTable,
    ReplayStep,
    tcm_receivers,
)

if TYPE_CHECKING:
    # Executors have no msgspec, which messages need.
    from overlay.messages import Hop, Version


class TransactionAtBroker(NamedTuple):
    """A transaction of the run, as one broker has recorded it."""

    name: str
    engine: str
    #: The outcome in the run.
    outcome: str
    #: The hops here that it went to, and the one that it came from.
    neighbours: frozenset[str]
    #: The step at which it was decided here, and how; 0 and "" if it was not.
    decided_at: int
    decided: str
    #: Its first and last step here; 0 if it has none.
    first_at: int
    last_at: int
    #: Whether its dependencies are wanted; only those of committed transactions ever are.
    judged: bool

    @property
    def committed(self) -> bool:
        return self.outcome == "committed"

    def committed_by(self, seq: int) -> bool:
        """Whether it was committed here before a step."""
        return self.decided == "committed" and self.decided_at < seq


class Access:
    """What a unit read or wrote in one table, as the index takes it."""

    __slots__ = ("added_by", "filter", "hop", "own", "point", "removed_by", "step", "unit", "view")

    def __init__(
        self,
        unit: Unit,
        step: ReplayStep,
        filter: Filter,
        view: RecordedView | None = None,
        *,
        own: bool = False,
        point: Mapping[str, Value] | None = None,
    ) -> None:
        self.unit = unit
        self.step = step
        self.filter = filter
        self.view = view
        #: Whether it reads only operations of its own client.
        self.own = own
        #: The point of a publication.
        self.point = point
        self.hop = cast("Hop", "")  # Required by the index, and never used.
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()

    @property
    def is_publication(self) -> bool:
        return self.point is not None

    def concerns(self, write: Access) -> bool:
        """Whether a write that overlaps this read changes what it has read."""
        if self.own and self.step.client != write.step.client:
            return False
        return self.point is None or write.filter.matches(self.point)


class Misrouting(NamedTuple):
    """A publication went elsewhere than the tables of its view say."""

    step: ReplayStep
    kind: str
    engine: str
    #: The publication's transaction; of a plain one a transaction near, or else the publication.
    tx: str
    #: Hops that it should have gone to, and hops that it should not have gone to.
    missed: tuple[str, ...]
    extra: tuple[str, ...]


class UncommittedRead(NamedTuple):
    """A publication was routed on a change of a transaction that is not committed here."""

    step: ReplayStep
    kind: str
    engine: str
    #: The publication's transaction, or of a plain one the writer.
    tx: str
    writer: str
    #: The entry, if its transaction was aborted; None if the view names the writer.
    entry: ReplayedEntry | None


class Dependency(NamedTuple):
    """At a broker, a reader has seen a writer, or has not: so one comes before the other."""

    read: Access
    write: Access
    seen: bool

    @property
    def units(self) -> tuple[Unit, Unit]:
        """The one that comes first, and the other."""
        reader, writer = self.read.unit, self.write.unit
        return (writer, reader) if self.seen else (reader, writer)


ReplayFinding: TypeAlias = Misrouting | UncommittedRead | Dependency


class BrokerReplay:
    """The replay of one broker of one run."""

    def __init__(self, *, versioned: Collection[str], replicated: Collection[str]) -> None:
        """`versioned` are the engines whose changes carry a version until the decision;
        `replicated` those of which every broker carries out its part of a plan by itself."""
        self._versioned = versioned
        self._replicated = replicated
        self._txs: dict[str, TransactionAtBroker] = {}
        self.tables = {"prt": ReplayedTable(), "srt": ReplayedTable()}
        #: Committed versions whose marks are still on entries.
        self._committed: dict[str, None] = {}
        #: Undecided versions; and by committed version that is over, those that may still hide it.
        self._open: dict[str, None] = {}
        self._waiting: dict[str, set[str]] = {}
        #: The judged transactions that are to come, that are present, and when those leave.
        self._coming: list[tuple[int, int, str]] = []
        self._present: dict[str, int] = {}
        self._leaving: list[tuple[int, str]] = []
        self._recent = RecentAccesses[Access]()

    def add_transaction(self, tx: TransactionAtBroker) -> None:
        """A transaction of the run; all of them come before the first step."""
        self._txs[tx.name] = tx
        if tx.judged and tx.first_at:
            heapq.heappush(self._coming, (tx.first_at, tx.last_at, tx.name))

    def take(self, step: ReplayStep) -> Iterator[ReplayFinding]:
        """The next step."""
        self._advance(step.seq)
        unit = self._unit(step) if self._present else None
        reads: list[tuple[str, Access]] = []
        writes: list[tuple[str, Access]] = []
        if step.kind == "match":
            view = RecordedView(step.version, step.tx, self._committed)
            point = point_of(step.filter)
            yield from self._check_routing(step, point, view)
            if unit is not None:
                here = Filter(point)
                reads.append(("prt", Access(unit, step, here, view, point=point)))
                if step.entered:
                    reads.append(("srt", Access(unit, step, here, view, own=True, point=point)))
        elif step.kind in ("apply", "undo"):
            view = RecordedView(step.version, step.tx, self._committed)
            filter, table = filter_of(step.filter), table_of(step.op_kind)
            if step.kind == "apply" and unit is not None:
                other = "srt" if table == "prt" else "prt"
                reads.append((other, Access(unit, step, filter, view)))
                reads.append((table, Access(unit, step, filter, view, own=True)))
                writes.append((table, Access(unit, step, filter)))
                if table == "srt" and not step.source.startswith("@"):
                    # For each subscription that it may move, the other advertisements are read.
                    for entry in self.tables["prt"].overlapping(filter, view):
                        if entry.hop != step.source:
                            reads.append(("srt", Access(unit, step, entry.filter, view)))
            self._change(step, self.tables[table], filter, view)
        elif step.kind == "end" and not step.tx:
            for table in ("prt", "srt"):
                for entry in self.tables[table].remove_client(step.client):
                    if unit is not None:
                        writes.append((table, Access(unit, step, entry.filter)))
                        if table == "srt":
                            reads.append(("prt", Access(unit, step, entry.filter)))
        elif step.tx and step.engine in self._versioned:
            self._follow_version(step)
        if reads or writes:
            yield from self._compare(step, reads, writes)

    # --- tables ---

    def _change(
        self, step: ReplayStep, table: ReplayedTable, filter: Filter, view: RecordedView
    ) -> None:
        tx = step.tx if step.engine in self._versioned else ""
        change = change_of(step.outcome)
        for number in change.dropped:
            table.drop(step.client, number, tx, view)
        if change.kept:
            table.add(step, int(step.op_id[len(step.client) + 1 :]), filter, tx)

    def _follow_version(self, step: ReplayStep) -> None:
        """A version begins, is decided, or is over.

        A committed version that is over can still be hidden by the views of those that were
        undecided then; when they are decided, the state before it is dropped.
        """
        tx = step.tx
        permanent: list[str] = []
        if step.kind == "begin":
            self._open[tx] = None
        elif step.kind == "decide":
            if step.outcome == "committed":
                self._committed[tx] = None
            else:
                for table in self.tables.values():
                    table.discard(tx)
            self._open.pop(tx, None)
            for other, waits_for in list(self._waiting.items()):
                waits_for.discard(tx)
                if not waits_for:
                    del self._waiting[other]
                    permanent.append(other)
        elif step.kind == "end" and self._txs[tx].committed:
            self._waiting.pop(tx, None)
            if self._open:
                self._waiting[tx] = set(self._open)
            else:
                permanent.append(tx)
        for name in permanent:
            for table in self.tables.values():
                table.make_permanent(name)
            self._committed.pop(name, None)

    # --- publications ---

    def _check_routing(
        self, step: ReplayStep, point: Mapping[str, Value], view: RecordedView
    ) -> Iterator[Misrouting | UncommittedRead]:
        entries = self.tables["prt"].matching(point, view)
        receivers = entries
        if step.op_kind == "tcm":
            names = step.outcome.split()[1:]
            receivers = [e for e in tcm_receivers(entries) if not names or e.client in names]
        hops = {str(entry.hop) for entry in receivers}
        tx = self._txs.get(step.tx)
        if tx is not None and tx.engine in self._replicated:
            # Every broker of the plan's span does its own part.
            hops -= {hop for hop in tx.neighbours if not hop.startswith("@")}
            if step.op_kind == "tcm":
                hops = set()
        elif not step.source.startswith("@"):
            hops.discard(step.source)
        reader = self._txs.get(step.issued_in)
        went = set(step.dests)
        if went != hops:
            yield self._misrouting(step, view, reader, hops - went, went - hops)
        if reader is None or reader.committed:
            yield from self._uncommitted(step, view, reader, entries)

    def _misrouting(
        self,
        step: ReplayStep,
        view: RecordedView,
        reader: TransactionAtBroker | None,
        missed: set[str],
        extra: set[str],
    ) -> Misrouting:
        kind, engine, tx = "divergence", "", step.op_id
        if reader is not None:
            kind, engine, tx = "partial" if missed else "dirty", reader.engine, reader.name
        else:
            near = sorted({*view.seen, *view.hidden, *view.committed} & self._txs.keys())
            if near:
                kind, engine, tx = "handover", self._txs[near[0]].engine, near[0]
        return Misrouting(step, kind, engine, tx, tuple(sorted(missed)), tuple(sorted(extra)))

    def _uncommitted(
        self,
        step: ReplayStep,
        view: RecordedView,
        reader: TransactionAtBroker | None,
        entries: list[ReplayedEntry],
    ) -> Iterator[UncommittedRead]:
        """No publication that counts is routed on a change that is not committed."""
        for name in sorted(view.seen):
            tx = self._txs.get(name)
            if tx is not None and tx is not reader and not tx.committed_by(step.seq):
                yield _uncommitted_read(step, reader, tx, None)
                return
        for entry in entries:
            tx = self._txs.get(entry.step.issued_in)
            if tx is not None and tx is not reader and tx.outcome == "aborted":
                yield _uncommitted_read(step, reader, tx, entry)
                return

    # --- dependencies ---

    def _unit(self, step: ReplayStep) -> Unit | None:
        """The unit that the step belongs to; None if it was aborted, or undoes something."""
        if not step.unit_kind:
            return None
        if step.unit_kind == "tx" and not self._txs[step.unit_name].committed:
            return None
        return Unit(step.unit_kind, step.unit_name, step.unit_life)

    def _advance(self, seq: int) -> None:
        """Let the judged transactions come and leave that do so before this step; those whose
        first step it is are present."""
        while True:
            comes = self._coming[0][0] if self._coming else math.inf
            leaves = self._leaving[0][0] if self._leaving else math.inf
            if comes <= leaves and comes <= seq:
                first, last, tx = heapq.heappop(self._coming)
                self._present[tx] = first
                heapq.heappush(self._leaving, (last, tx))
            elif leaves < comes and leaves < seq:
                _, tx = heapq.heappop(self._leaving)
                del self._present[tx]
                self._recent.expire(min(self._present.values(), default=math.inf))
            else:
                return

    def _compare(
        self, step: ReplayStep, reads: list[tuple[str, Access]], writes: list[tuple[str, Access]]
    ) -> Iterator[Dependency]:
        recent = self._recent
        for table, read in reads:
            for write in recent.writes[table].overlapping(read.filter):
                if read.concerns(write):
                    yield from self._dependency(read, write)
        for table, write in writes:
            for read in recent.reads[table].overlapping(write.filter):
                if read.concerns(write):
                    yield from self._dependency(read, write)
        last_at = step.seq
        if step.unit_kind == "tx":
            last_at = self._txs[step.unit_name].last_at
        for table, read in reads:
            recent.add(recent.reads[table], read, last_at)
        for table, write in writes:
            recent.add(recent.writes[table], write, last_at)

    def _dependency(self, read: Access, write: Access) -> Iterator[Dependency]:
        reader, writer = read.unit, write.unit
        if reader == writer or not (self._judged(reader) or self._judged(writer)):
            return
        if reader.kind == "tx" and not self._judged(reader):
            return  # Without isolation a reader may find anything, also of isolated writers.
        yield Dependency(read, write, self._sees(read, write))

    def _judged(self, unit: Unit) -> bool:
        return unit.kind == "tx" and self._txs[unit.name].judged

    def _sees(self, read: Access, write: Access) -> bool:
        """A versioned change is seen if the view says so, any other if it came earlier."""
        unit, view = write.unit, read.view
        if unit.kind != "tx" or self._txs[unit.name].engine not in self._versioned:
            return write.step.seq < read.step.seq
        if view is not None and (unit.name in view.seen or unit.name in view.hidden):
            return unit.name in view.seen
        return self._txs[unit.name].committed_by(read.step.seq)


def _uncommitted_read(
    step: ReplayStep,
    reader: TransactionAtBroker | None,
    writer: TransactionAtBroker,
    entry: ReplayedEntry | None,
) -> UncommittedRead:
    if reader is None:
        return UncommittedRead(step, "handover", writer.engine, writer.name, writer.name, entry)
    return UncommittedRead(step, "dirty", reader.engine, reader.name, writer.name, entry)
