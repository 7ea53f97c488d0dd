"""The overlay against the oracle: random trees, clients and operations, at rest."""

from __future__ import annotations

from collections import Counter
from typing import Any

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter, between, eq, present
from overlay.messages import AnyMessage, Done, Join, Operation, Pub
from overlay.simulator import Simulator, Tape
from proofs.oracle import Line, Oracle

KINDS = ("adv", "sub", "uadv", "usub")

# Few values, so that boxes often touch, cover and carve each other.
INTERVALS = st.one_of(
    st.integers(0, 4).map(eq),
    st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda p: between(min(p), max(p))),
    st.just(present()),
)
FILTERS = st.dictionaries(st.sampled_from("xyz"), INTERVALS, min_size=1, max_size=2).map(Filter)
POINTS = [{"x": x, "y": y, "z": z} for x in range(5) for y in (0, 2, 4) for z in (1, 3)]


@st.composite
def trees(draw: st.DrawFn) -> nx.Graph[str]:
    """A random tree of B1 to Bn: each broker hangs on an earlier one."""
    tree: nx.Graph[str] = nx.Graph()
    tree.add_node("B1")
    for n in range(2, draw(st.integers(1, 6)) + 1):
        tree.add_edge(f"B{n}", f"B{draw(st.integers(1, n - 1))}")
    return tree


class World:
    """A simulated overlay and its oracle, fed with the same operations."""

    def __init__(self, tree: nx.Graph[str], tape: Tape) -> None:
        self.sim = Simulator({b: list(tree[b]) for b in tree}, tape.choose)
        self.oracle = Oracle(tree)
        self.seq: Counter[str] = Counter()
        self.expected: dict[tuple[str, int], str] = {}
        self.answers: dict[tuple[str, int], str] = {}
        self.got: list[tuple[str, Pub]] = []

    def join(self, client: str, edge: str) -> None:
        def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
            if isinstance(message, Done):
                self.answers[client, message.req] = message.code
            elif isinstance(message, Pub):
                self.got.append((client, message))
            return []

        self.sim.connect(client, edge, receive)
        self.oracle.join(client, edge)
        self.ask(client, Join(self.number(client), client, ""), "")
        self.sim.run()

    def number(self, client: str) -> int:
        self.seq[client] += 1
        return self.seq[client]

    def ask(self, client: str, message: Any, expected: str) -> None:
        self.expected[client, message.req] = expected
        self.sim.send(client, message)

    def say(self, client: str, kind: Any, filter: Filter) -> None:
        seq = self.number(client)
        accepted = self.oracle.say(client, seq, kind, filter)
        operation = Operation(seq, kind, client, seq, filter)
        self.ask(client, operation, "" if accepted else "not-held")

    def leave(self, client: str) -> None:
        self.sim.crash(client)
        self.oracle.leave(client)
        self.expected = {key: code for key, code in self.expected.items() if key[0] != client}

    def check_tables(self) -> None:
        for name, broker in self.sim.brokers.items():
            tables = broker.routing.as_data()
            assert lines(tables["srt"]) == self.oracle.srt(name), f"SRT of {name}"
            assert lines(tables["prt"]) == self.oracle.prt(name), f"PRT of {name}"
            assert [row["client"] for row in tables["clients"]] == sorted(self.oracle.edges)
            assert not broker._pending

    def check_deliveries(self) -> None:
        for publisher in sorted(self.oracle.edges):
            for point in POINTS:
                self.got.clear()
                self.sim.send(publisher, Pub(publisher, self.number(publisher), point))
                self.sim.run()
                may = any(
                    word.filter.matches(point) for word in self.oracle.advertised[publisher]
                ) and self.may_publish(publisher, point)
                expected = self.oracle.receivers(point) if may else []
                assert sorted(client for client, _ in self.got) == expected

    def may_publish(self, publisher: str, point: dict[str, int]) -> bool:
        from proofs.oracle import holds

        return holds(self.oracle.advertised[publisher], point)


def lines(rows: list[dict[str, Any]]) -> list[Line]:
    return sorted(Line(r["client"], r["seq"], r["kind"], r["filter"], r["hop"]) for r in rows)


OPERATIONS = st.tuples(st.integers(0, 4), st.sampled_from([*KINDS, "sub", "adv"]), FILTERS)
STEPS = st.lists(
    st.one_of(
        OPERATIONS,
        st.just("settle"),
        st.integers(0, 4).map(lambda n: ("leave", n)),
    ),
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(tree=trees(), steps=STEPS, seed=st.integers(0, 2**16), data=st.data())
def test_at_rest_tables_and_deliveries_are_the_oracles(
    tree: nx.Graph[str], steps: list[Any], seed: int, data: st.DataObject
) -> None:
    world = World(tree, Tape(seed=seed))
    clients = [f"C{n}" for n in range(data.draw(st.integers(1, 5)))]
    for client in clients:
        world.join(client, data.draw(st.sampled_from(sorted(tree))))
    for step in steps:
        if step == "settle":
            world.sim.run()
        elif step[0] == "leave":
            client = f"C{step[1]}"
            if client in world.oracle.edges and len(world.oracle.edges) > 1:
                world.leave(client)
        else:
            client = f"C{step[0]}"
            if client in world.oracle.edges:
                world.say(client, step[1], step[2])
    world.sim.run()
    assert {k: v for k, v in world.answers.items() if k in world.expected} == world.expected
    world.check_tables()
    world.check_deliveries()
