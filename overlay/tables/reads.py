"""What a transaction has read, kept so that a write which meets some of it is found quickly.

A read is a predicate: a filter, or the point of a publication. A broker compares the reads of
transactions with the writes of others, and does nothing else meanwhile; so with many reads the ones
near a write are looked up and not all of them looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from overlay.errors import FilterError
from overlay.filters import Filter, Value
from overlay.matching.index import Index
from overlay.messages import Hop, Version
from overlay.stored import stored

#: Reads that are looked through one by one. To build an index of them takes longer than that.
FEW = 32

Read: TypeAlias = Filter | Mapping[str, Value]


class IndexedRead:
    """A read as the index takes it; of a point the filter that is just there."""

    __slots__ = ("added_by", "client", "filter", "hop", "removed_by", "seq", "what")

    def __init__(self, what: Read, filter: Filter, seq: int) -> None:
        self.what = what
        self.filter = filter
        self.seq = seq
        self.client = ""
        self.hop = Hop("")
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()


@stored("reads", derived=("_index", "_indexed", "_unindexed"))
class Reads:
    """Filters and points that were read."""

    __slots__ = ("_all", "_index", "_indexed", "_unindexed")

    def __init__(self) -> None:
        self._all: list[Read] = []
        self._rebuild()

    def _rebuild(self) -> None:
        self._index: Index[IndexedRead] | None = None
        #: How many are in the index, and those that cannot be: points that are none.
        self._indexed = 0
        self._unindexed: list[Read] = []

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Read]:
        return iter(self._all)

    def add(self, read: Read) -> None:
        self._all.append(read)

    def meet(self, written: Filter) -> bool:
        """Whether a write around this filter changes what was read."""
        if len(self._all) <= FEW:
            return any(_meets(written, read) for read in self._all)
        near = self._catch_up().overlapping(written)
        return any(_meets(written, found.what) for found in near) or any(
            _meets(written, read) for read in self._unindexed
        )

    def _catch_up(self) -> Index[IndexedRead]:
        """The index, with all that was read since it was asked last."""
        index = self._index
        if index is None:
            index = self._index = Index()
        for seq in range(self._indexed, len(self._all)):
            read = self._all[seq]
            try:
                filter = read if isinstance(read, Filter) else Filter(read)
            except FilterError:
                self._unindexed.append(read)
                continue
            index.insert(IndexedRead(read, filter, seq))
        self._indexed = len(self._all)
        return index


def _meets(written: Filter, read: Read) -> bool:
    return written.overlaps(read) if isinstance(read, Filter) else written.matches(read)
