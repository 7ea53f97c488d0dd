"""Who has read what others have written, at each broker: the dependencies between units.

A unit takes effect as one: a transaction, or a plain operation, publication or leaving on its own.
What is read is a predicate, not a row, so who finds nothing has read that, too:

    publication   PRT at its point, at every broker that it visits; at its edge also its client's
                  own advertisements
    sub, usub     SRT entries that overlap it, and its client's own subscriptions there
    adv, uadv     PRT entries that overlap it; for each of them the SRT entries that overlap that
                  one; its client's own advertisements there

At a broker a reader either saw a writer or did not. If it did, the writer comes first (wr); if it
did not, the reader does (rw). Two that write the same words of a client read them as well, so ww
is in there. Versioned changes are seen if the record's view says so, others if they came earlier.

Only units are compared that were at a broker at the same time, at least one of them a transaction;
a transaction that is over at a broker before another begins there comes before it (`cycles` knows).
So the work follows the records and how much happens at once, not the pairs of operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

from overlay.filters import Filter
from overlay.matching.recent_accesses import Near
from overlay.messages import Hop, Version
from proofs.checkers.anomalies import ISOLATED
from proofs.checkers.replay import Replay
from proofs.history import VERSIONED, Event, History, box, point, table_of


class Unit(NamedTuple):
    """What takes effect as one: a "tx", or a plain "op", "pub" or "leave"."""

    kind: str
    name: str
    #: Which life of its client it belongs to; a transaction's name is used once.
    life: int = 0


Pair: TypeAlias = tuple[Unit, Unit]


class Access:
    """What a unit read or wrote in one table of a broker, as the index takes it."""

    __slots__ = (
        "added_by",
        "at",
        "event",
        "filter",
        "hop",
        "is_point",
        "own",
        "removed_by",
        "unit",
    )

    def __init__(
        self,
        unit: Unit,
        event: Event,
        filter: Filter,
        *,
        own: bool = False,
        is_point: bool = False,
    ) -> None:
        self.unit = unit
        self.event = event
        self.at = event.at
        self.filter = filter
        #: Whether it reads only what its own client has said.
        self.own = own
        self.is_point = is_point
        self.hop = Hop("")
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()

    @property
    def is_publication(self) -> bool:
        return self.event.record.kind == "match"


class Edge(NamedTuple):
    """Why one unit comes before another: at a broker, a reader has seen a writer or not."""

    read: Access
    write: Access
    seen: bool

    @property
    def node(self) -> str:
        return self.read.event.record.node


class Conflicts:
    """The dependencies of a run, with all reasons for each."""

    def __init__(self, history: History, replay: Replay, *, strict: bool) -> None:
        self._history = history
        self._replay = replay
        self._strict = strict
        self.edges: dict[Pair, list[Edge]] = {}
        #: The committed transactions that are judged.
        self.txs = {
            Unit("tx", tx.name): tx
            for tx in history.txs.values()
            if tx.committed and (strict or tx.engine in ISOLATED)
        }
        if self.txs:
            for node in sorted(history.events):
                self._sweep(node)

    # --- one broker ---

    def _sweep(self, node: str) -> None:
        events = [(event, self.unit(event)) for event in self._history.events[node]]
        first: dict[Unit, int] = {}
        last: dict[Unit, int] = {}
        for event, unit in events:
            if unit is not None and unit.kind == "tx":
                first.setdefault(unit, event.at)
                last[unit] = event.at
        near = Near[Access]()
        #: The transactions that are here, with when they came.
        present: dict[Unit, int] = {}
        for event, unit in events:
            if unit is None:
                continue
            if unit in self.txs and first[unit] == event.at:
                present[unit] = event.at
            if present:
                self._step(event, unit, near, last.get(unit, event.at))
            if unit in present and last[unit] == event.at:
                del present[unit]
                near.expire(min(present.values(), default=math.inf))

    def _step(self, event: Event, unit: Unit, near: Near[Access], over: int) -> None:
        reads, writes = self._accesses(event, unit)
        for table, access in reads:
            for other in near.writes[table].overlapping(access.filter):
                if _concerns(access, other):
                    self._compare(access, other)
        for table, access in writes:
            for other in near.reads[table].overlapping(access.filter):
                if _concerns(other, access):
                    self._compare(other, access)
        for table, access in reads:
            near.add(near.reads[table], access, over)
        for table, access in writes:
            near.add(near.writes[table], access, over)

    def _compare(self, read: Access, write: Access) -> None:
        one, other = read.unit, write.unit
        if one == other or not (one in self.txs or other in self.txs):
            return
        if one.kind == "tx" and one not in self.txs:
            return  # Who reads without isolation may find anything, also of who has it.
        seen = self._sees(read, write)
        pair = (other, one) if seen else (one, other)
        self.edges.setdefault(pair, []).append(Edge(read, write, seen))

    def _sees(self, read: Access, write: Access) -> bool:
        tx = self._history.txs.get(write.unit.name) if write.unit.kind == "tx" else None
        if tx is None or tx.engine not in VERSIONED:
            return write.at < read.at
        node = read.event.record.node
        view = self._replay.views.get((node, read.at))
        if view is not None and (tx.name in view.seen or tx.name in view.hidden):
            return tx.name in view.seen
        return self._history.committed_at(tx, node, read.at)

    def unit(self, event: Event) -> Unit | None:
        """Whose step it is; nobody's who counts, if it was aborted or undoes something."""
        record = event.record
        tx = self._history.txs.get(record.tx)
        if tx is None:
            if record.kind in ("match", "publish", "deliver"):
                publication = event.publication
                if publication is None:
                    return None
                tx = publication.tx
                if tx is None:
                    return Unit("pub", publication.name, publication.key[1])
            elif record.kind == "apply":
                key = event.cause or event.key
                assert key is not None
                word = self._history.words.get(key)
                if word is None:
                    return Unit("leave", key[0], key[1])
                if event.cause is None and self._is_again(event):
                    return None  # An abort brings back what it had dropped.
                tx = word.tx
                if tx is None:
                    return Unit("op", word.name, key[1])
            elif record.kind == "end":
                return Unit("leave", record.client, event.life)
        return Unit("tx", tx.name) if tx is not None and tx.committed else None

    def _is_again(self, event: Event) -> bool:
        assert event.key is not None
        before = self._history.applied[event.record.node, event.key]
        return before[0].at < event.at and any(other.cause is None for other in before[:1])

    def _accesses(
        self, event: Event, unit: Unit
    ) -> tuple[list[tuple[str, Access]], list[tuple[str, Access]]]:
        """What a step reads and writes, by table."""
        record = event.record
        place = record.node, event.at
        reads: list[tuple[str, Access]] = []
        writes: list[tuple[str, Access]] = []
        if record.kind == "match":
            at = Filter(point(record.filter))
            reads.append(("prt", Access(unit, event, at, is_point=True)))
            publication = event.publication
            if publication is not None and publication.published.record.node == record.node:
                reads.append(("srt", Access(unit, event, at, is_point=True, own=True)))
        elif record.kind == "apply":
            filter, table = box(record.filter), table_of(record.op_kind)
            other = "srt" if table == "prt" else "prt"
            reads.append((other, Access(unit, event, filter)))
            reads.append((table, Access(unit, event, filter, own=True)))
            writes.append((table, Access(unit, event, filter)))
            for concerned in self._replay.concerned.get(place, ()):
                reads.append(("srt", Access(unit, event, concerned)))
        elif record.kind == "end" and not record.tx:
            for entry in self._replay.taken[place]:
                table = table_of(entry.event.record.op_kind)
                writes.append((table, Access(unit, event, entry.filter)))
                if table == "srt":
                    reads.append(("prt", Access(unit, event, entry.filter)))
        return reads, writes


def _concerns(read: Access, write: Access) -> bool:
    """Whether what was written is part of what was read; the two overlap."""
    if read.own and read.event.record.client != write.event.record.client:
        return False
    return not read.is_point or write.filter.matches(point(read.event.record.filter))
