"""Versions that are retired: nobody but older snapshots meets them, and these see what they saw.

Two tables go through the same script, in one of which versions are retired when all brokers have
them. All that can be asked of the two must be answered alike, in every view.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter
from overlay.matching.index import View
from overlay.messages import BrokerName, ClientName, Hop, Kind, Operation, Version
from overlay.tables.routing import Home, Routing, Scope
from overlay.tables.space import Entry
from overlay.tables.versions import Seen, Versions

CLIENTS = ("C", "D")
POINTS = [{"x": x} for x in range(3)]
FILTERS = [Filter(x=0), Filter(x=1), Filter(x=(0, 1)), Filter(x=(0, 2))]


class Table:
    """One broker's subscriptions, and the transactions that look at them."""

    def __init__(self, *, retires: bool) -> None:
        self.routing = Routing(BrokerName("B"), [])
        self.versions = Versions()
        self.snapshots: dict[Version, Seen] = {}
        self.forgotten: dict[Version, None] = {}
        self.retires = retires
        for client in CLIENTS:
            self.join(client)

    def join(self, client: str) -> None:
        hop = Hop(f"@{client}")
        self.routing.crt[ClientName(client)] = Home(BrokerName("B"), hop)

    def operate(self, client: str, kind: Kind, number: int, filter: Filter, scope: Scope) -> None:
        """What `admit` and `apply` do; taking back what is not held does nothing."""
        hop, space = Hop(f"@{client}"), self.routing.prt
        operation = Operation(0, kind, client, number, filter)
        if kind == "usub" and not space.reaches(filter, scope.view, client=client):
            return
        admitted = self.routing.admit(hop, operation, scope)
        self.routing.apply(hop, msgspec.structs.replace(admitted, seq=number), scope)

    def plain(self, client: str, kind: Kind, number: int, filter: Filter) -> None:
        self.operate(client, kind, number, filter, Scope(self.versions.view()))

    def begin(self, version: Version) -> None:
        self.snapshots[version] = self.versions.snapshot(version, ())
        self.versions.begin(version)

    def act(self, version: Version, client: str, kind: Kind, number: int, filter: Filter) -> None:
        if version in self.snapshots:
            scope = Scope(self.snapshots[version], version)
            self.operate(client, kind, number, filter, scope)

    def commit(self, version: Version) -> None:
        del self.snapshots[version]
        self.versions.commit(version)

    def abort(self, version: Version) -> None:
        if self.snapshots.pop(version, None) is not None:
            self.routing.discard(version)
            self.versions.abort(version)
            self.fold()

    def forget(self, version: Version) -> None:
        if version in self.versions.committed and version not in self.forgotten:
            self.forgotten[version] = None
            self.fold()
            self.go_on()

    def go_on(self) -> None:
        """Retire what waits for it, one mark at a time."""
        for version in self.forgotten if self.retires else ():
            if version in self.versions.committed and not self.routing.retire(version, 1):
                self.versions.retire(version)

    def fold(self) -> None:
        for version in list(self.forgotten):
            if all(view.includes(version) for view in self.snapshots.values()):
                while self.routing.make_permanent(version, 1):
                    pass
                self.versions.forget(version)
                del self.forgotten[version]

    def leave(self, client: str) -> None:
        self.routing.forget(ClientName(client), self.versions.view())
        self.join(client)

    def answers(self) -> list[Any]:
        views: list[View | None] = [self.versions.view(), *self.snapshots.values()]
        return [self._answers(view) for view in views]

    def _answers(self, view: View | None) -> list[Any]:
        space = self.routing.prt
        return [
            [sorted(space.hops(point, view)) for point in POINTS],
            [space.holds(point, view) for point in POINTS],
            [_names(space.matching(point, view)) for point in POINTS],
            [_names(space.overlapping(filter, view)) for filter in FILTERS],
            [space.reaches(filter, view) for filter in FILTERS],
            [space.reaches(filter, view, client="C") for filter in FILTERS],
            [bool(space.get(c, number, view)) for c in CLIENTS for number in range(1, 12)],
        ]


def _names(entries: list[Entry]) -> list[tuple[str, int]]:
    return sorted((entry.client, entry.seq) for entry in entries)


kinds = st.sampled_from(["sub", "sub", "usub"])
words = st.tuples(st.sampled_from(CLIENTS), kinds, st.sampled_from(FILTERS))
steps = st.one_of(
    st.tuples(st.just("plain"), words),
    st.tuples(st.just("commit"), st.lists(words, min_size=1, max_size=2)),
    st.tuples(st.just("commit"), st.lists(words, min_size=1, max_size=2)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("begin"), st.none()),
    st.tuples(st.just("act"), st.tuples(st.integers(0, 2), words)),
    st.tuples(st.just("abort"), st.integers(0, 2)),
    st.tuples(st.just("leave"), st.sampled_from(CLIENTS)),
)


def play(table: Table, script: list[tuple[str, Any]]) -> list[Any]:
    answers: list[Any] = []
    number = 0
    for at, (what, about) in enumerate(script):
        number += 1
        match what:
            case "plain":
                table.plain(about[0], about[1], number, about[2])
            case "commit":
                version = ("writer", 1, at)
                table.begin(version)
                for client, kind, filter in about:
                    table.act(version, client, kind, number, filter)
                    number += 1
                table.commit(version)
            case "forget":
                committed = [v for v in table.versions.committed if v not in table.forgotten]
                for version in committed[about : about + 1]:
                    table.forget(version)
            case "begin":
                table.begin(("reader", 1, at))
            case "act":
                readers = [v for v in table.snapshots if v[0] == "reader"]
                for version in readers[about[0] : about[0] + 1]:
                    table.act(version, about[1][0], about[1][1], number, about[1][2])
            case "abort":
                for version in list(table.snapshots)[about : about + 1]:
                    table.abort(version)
            case "leave":
                table.leave(about)
        answers.append(table.answers())
        table.go_on()
    for version in list(table.snapshots):
        table.abort(version)
    for version in list(table.versions.committed):
        table.forget(version)
    assert table.routing.is_plain and not table.versions.committed and not table.versions.retired
    return [*answers, table.answers()]


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=20))
def test_every_view_sees_the_same_whether_versions_are_retired_or_not(
    script: list[tuple[str, Any]],
) -> None:
    assert play(Table(retires=True), script) == play(Table(retires=False), script)


def test_plain_traffic_does_not_meet_what_is_kept_for_an_old_snapshot() -> None:
    table = Table(retires=True)
    table.begin(("reader", 1, 0))
    for n in range(1, 201):
        version = ("writer", 1, n)
        table.begin(version)
        table.act(version, "C", "sub" if n % 2 else "usub", n, Filter(x=0))
        table.commit(version)
        table.forget(version)
    assert table.versions.view() is None, "there is no version for plain traffic"
    assert len(table.routing.prt) == 0, "and no entry that only old snapshots would see"
    assert not table.routing.is_plain
    table.abort(("reader", 1, 0))
    assert table.routing.is_plain


def test_who_has_left_is_gone_for_old_snapshots_as_well() -> None:
    table = Table(retires=True)
    table.plain("C", "sub", 1, Filter(x=0))
    table.begin(("reader", 1, 0))
    table.begin(("writer", 1, 1))
    table.act(("writer", 1, 1), "C", "usub", 2, Filter(x=0))
    table.commit(("writer", 1, 1))
    table.forget(("writer", 1, 1))
    view = table.snapshots["reader", 1, 0]
    assert table.routing.prt.hops({"x": 0}, view) == ("@C",)
    assert table.routing.prt.hops({"x": 0}, table.versions.view()) == ()
    table.leave("C")
    assert table.routing.prt.hops({"x": 0}, view) == ()
