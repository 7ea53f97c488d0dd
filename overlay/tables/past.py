"""What a space was like before committed versions, for snapshots that do not see them.

As soon as every broker has a commit, plain traffic has no use for the state before it. A
transaction that began earlier and is still open has: its snapshot is without that commit. So the
version is *retired* here: in the space itself its changes are permanent and carry no mark, and what
a snapshot without it needs is kept aside. Hence a transaction that stays open for long does not
make plain traffic search through what others have removed meanwhile.

This module knows nothing of how entries are found.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from overlay.matching.index import View, is_visible
from overlay.messages import Version
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.tables.space import Entry


@stored("past", fields=("_added", "_removed", "_of"))
class Past:
    """The changes of retired versions in one space. Dicts stand for sets, for their order."""

    def __init__(self) -> None:
        self._added: dict[Version, dict[Entry, None]] = {}
        self._removed: dict[Version, dict[Entry, None]] = {}
        #: The removed ones, by client and number, with the versions that have removed each.
        self._of: dict[str, dict[int, dict[Entry, list[Version]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._added or self._removed)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._of.get(entry.client, {}).get(entry.seq, ())

    def add(self, version: Version, entry: Entry) -> None:
        """The version has brought the entry."""
        self._added.setdefault(version, {})[entry] = None

    def remove(self, version: Version, entry: Entry) -> None:
        """The version has removed the entry, which is not in the space any more."""
        self._removed.setdefault(version, {})[entry] = None
        numbers = self._of.setdefault(entry.client, {})
        versions = numbers.setdefault(entry.seq, {}).setdefault(entry, [])
        if version not in versions:
            versions.append(version)

    def forget(self, version: Version, limit: int | None = None) -> bool:
        """No snapshot is without the version any more.

        With a limit only so many entries are let go; returns whether there are more.
        """
        self._added.pop(version, None)
        removed = self._removed.get(version, {})
        for entry in list(islice(removed, limit)):
            self._take_out(version, entry)
        return version in self._removed

    def drop(self, entry: Entry) -> None:
        """The entry is gone in every view, also in those of the state before."""
        for version in list(self._of[entry.client][entry.seq][entry]):
            self._take_out(version, entry)

    def drop_client(self, client: str) -> None:
        """All entries of a client are gone in every view."""
        for entries in list(self._of.get(client, {}).values()):
            for entry in list(entries):
                self.drop(entry)

    def _take_out(self, version: Version, entry: Entry) -> None:
        del self._removed[version][entry]
        if not self._removed[version]:
            del self._removed[version]
        numbers = self._of[entry.client]
        numbers[entry.seq][entry].remove(version)
        if not numbers[entry.seq][entry]:
            del numbers[entry.seq][entry]
            if not numbers[entry.seq]:
                del numbers[entry.seq]
                if not numbers:
                    del self._of[entry.client]

    def copies(self, client: str, seq: int) -> list[Entry]:
        """The removed entries of that number."""
        return list(self._of.get(client, {}).get(seq, ()))

    def hides(self, entry: Entry, view: View) -> bool:
        """Whether a retired version has brought the entry that the view does not include."""
        return any(
            entry in added and not view.includes(version) for version, added in self._added.items()
        )

    def seen_by(self, live: list[Entry], view: View, *, positive: bool) -> list[Entry]:
        """Of the live entries those that the view sees, and the removed ones that it sees."""
        hidden: dict[Entry, None] = {}
        removed: dict[Entry, None] = {}
        for version, entries in self._added.items():
            if not view.includes(version):
                hidden |= entries
        for version, entries in self._removed.items():
            if not view.includes(version):
                removed |= entries
        return [entry for entry in live if entry not in hidden] + [
            entry
            for entry in removed
            if entry.positive == positive and entry not in hidden and is_visible(entry, view)
        ]
