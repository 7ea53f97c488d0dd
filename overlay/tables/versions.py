"""Which versions of the routing state are undecided here, and which count.

A version is what one transaction makes of the tables. While it is undecided, its entries stand in
the tables but only its own transaction sees them. When it is committed, a status flips and all
traffic does; nothing is copied. Its marks stay on the entries until nothing can need the state
before it (`forget`); from then on its changes are permanent. When all brokers have the commit,
and only open snapshots need the state before, they are so for all other traffic (`retire`).

A publication that enters the overlay here is stamped (`stamp`), and brokers further on leave out
the versions in its stamp. So it is routed on one version all along its way, on whichever side of a
commit it came in. The stamp holds the versions that this broker has voted for and does not know
decided (`vote`). Other undecided versions need no stamp: a commit needs this broker's vote, so on
every link that both take, the publication is ahead of the vote, and then ahead of the commit.
Between votes and decisions, that is almost always, the stamp is empty and all this costs nothing.

This module does not know how versions are decided.
"""

from __future__ import annotations

from collections.abc import Collection

from overlay.identity import name_text
from overlay.matching.index import View
from overlay.messages import Version
from overlay.stored import stored


@stored("seen")
class Seen:
    """A transaction's view: it sees certain versions, and what carries no version."""

    __slots__ = ("versions",)

    def __init__(self, versions: Collection[Version]) -> None:
        self.versions = versions

    def includes(self, version: Version) -> bool:
        return version in self.versions


class Now:
    """A view of the versions that are committed now, perhaps without some of them.

    It is good until the next version is committed or forgotten.
    """

    __slots__ = ("_committed", "_hidden", "_retired")

    def __init__(
        self,
        committed: Collection[Version],
        retired: Collection[Version],
        hidden: Collection[Version] = (),
    ) -> None:
        self._committed = committed
        self._retired = retired
        self._hidden = hidden

    def includes(self, version: Version) -> bool:
        if version in self._committed:
            return version not in self._hidden
        return version in self._retired


@stored(
    "versions",
    fields=("open", "committed", "retired", "voted", "stamp", "commits"),
    derived=("_now",),
    version=2,
    migrations={1: lambda fields: {**fields, "commits": 0}},
)
class Versions:
    """The versions that entries of this broker may be marked with."""

    def __init__(self) -> None:
        #: Undecided here, in the order of their beginning.
        self.open: dict[Version, None] = {}
        #: Committed here, their marks still on entries.
        self.committed: dict[Version, None] = {}
        #: Committed everywhere, and kept only for snapshots that are without them.
        self.retired: dict[Version, None] = {}
        self._rebuild()
        #: Undecided versions that this broker has voted for: others may have committed them.
        self.voted: dict[Version, None] = {}
        self.stamp: tuple[Version, ...] = ()
        #: How many versions were committed here so far.
        self.commits = 0

    def _rebuild(self) -> None:
        #: The view of everything that is so now.
        self._now = Now(self.committed, self.retired)

    def begin(self, version: Version) -> None:
        self.open[version] = None

    def vote(self, version: Version) -> None:
        """This broker votes for the version, which another broker decides."""
        self.voted[version] = None
        self.stamp = tuple(self.voted)

    def commit(self, version: Version) -> None:
        self._decide(version)
        self.commits += 1
        self.committed[version] = None

    def abort(self, version: Version) -> None:
        self._decide(version)

    def retire(self, version: Version) -> None:
        """It is simply how things are, but for snapshots that are without it."""
        self.committed.pop(version, None)
        self.retired[version] = None

    def forget(self, version: Version) -> None:
        """It is simply how things are."""
        self.committed.pop(version, None)
        self.retired.pop(version, None)

    def snapshot(self, own: Version, undecided: Collection[Version]) -> Seen:
        """A view of what is committed now, without what is undecided elsewhere, and of its own."""
        return Seen({own, *(self.committed.keys() - undecided), *self.retired})

    def _decide(self, version: Version) -> None:
        self.open.pop(version, None)
        if version in self.voted:
            del self.voted[version]
            self.stamp = tuple(self.voted)

    def text(self, view: View | None, own: str = "") -> str:
        """A view in a record: what it sees besides its own, and "-" before what it does not."""
        committed = [*self.retired, *self.committed]
        if view is None or not (committed or self.open):
            return ",".join(name_text(*v) for v in committed)
        known = [("" if view.includes(v) else "-") + name_text(*v) for v in committed]
        # Nobody else's; but a record tells what is so, not what should be.
        known += [name_text(*v) for v in self.open if view.includes(v)]
        return ",".join(version for version in known if version != own)

    def view(self, hidden: Collection[Version] = ()) -> View | None:
        """What is committed here, without the hidden; None, the cheap view, if that is nothing."""
        if not self.committed:
            return None
        if not hidden:
            return self._now
        return Now(self.committed, self.retired, hidden)
