"""Partitions: both sides go on, and what they have done without each other fits when they meet.

Names are the hard part. A client can be let in on both sides under one name; when the sides meet
again the one that came first stays, and the other is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest

from overlay.broker.core import Broker
from overlay.errors import NameTaken
from overlay.filters import Filter
from overlay.hosts.settings import ABSENT_AFTER_S as ABSENT_IN_PRODUCTION_S
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import AnyMessage, BrokerName, Done, Join, Operation, Pub, client_hop
from overlay.notation import parse_filter
from padres_tx.testing.inprocess import InProcessOverlay
from proofs.oracle import Oracle, broker_rows, oracle_rows
from proofs.sim.simulated_overlay import all_engines

#: Runs of each kind; PADRES_TX_SEEDS gives more.
RUNS = max(40, int(os.environ.get("PADRES_TX_SEEDS", "500")) // 4)

#: In virtual time: soon enough that much happens after it, in a run of a tenth of a second.
ABSENT_AFTER_S = 0.02

NAMES = ("T0", "T1", "T2")


class Twin:
    """A client that may not be the only one of its name; it says a few things and may leave."""

    def __init__(self, run: Partitioned, name: str, edge: str) -> None:
        self.run, self.name, self.edge = run, name, edge
        self.state, self.life = "joining", 0
        self.got: list[Pub] = []
        self.requests = 0
        run.sim.connect(name, edge, self.receive)
        run.sim.send(name, Join(self.request(), name, ""), edge)

    def request(self) -> int:
        self.requests += 1
        return self.requests

    def receive(self, message: AnyMessage, now: float) -> list[AnyMessage]:
        if isinstance(message, Pub):
            self.got.append(message)
        if not isinstance(message, Done) or message.req != 1:
            return []
        if message.code:
            self.state = "refused"
            return []
        self.state, self.life = "in", message.number
        filters = [self.run.filter() for _ in range(1 + self.run.choose(3))]
        kinds = ("adv", "sub", "adv", "sub")
        said: list[AnyMessage] = []
        for filter in filters:
            kind: Any = kinds[self.run.choose(len(kinds))]
            number = self.request()
            said.append(Operation(number, kind, self.name, number, filter))
            if kind == "adv":
                point = {"class": "p", "x": 1}
                said.append(Pub(self.name, self.request(), point))
        return said

    @property
    def here(self) -> bool:
        last = [t for t in self.run.twins if (t.name, t.edge) == (self.name, self.edge)][-1]
        return last is self and self.run.sim.connected(self.name, self.edge)


class Partitioned:
    """Some links are cut, for long or nearly so; clients come, on all sides, under few names."""

    def __init__(self, seed: int, *, reset: bool) -> None:
        self.choose = choose = Tape(seed=seed).choose
        self.tree: nx.Graph[str] = nx.Graph()
        self.tree.add_node("B1")
        for n in range(2, 4 + choose(4)):
            self.tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
        brokers = sorted(self.tree)

        def broker(name: Any, others: Any) -> Any:
            return Broker(name, others, engines=all_engines())

        self.sim = sim = Simulator(
            {name: list(self.tree[name]) for name in brokers},
            choose,
            broker=broker,
            absent_after_s=ABSENT_AFTER_S,
        )
        self.twins: list[Twin] = []
        links = sorted(self.tree.edges)
        for _ in range(1 + choose(3)):
            outage_s = 0.01 * (1 + choose(20))
            anew = reset and choose(2) == 1
            sim.at(0.001 * choose(60), self._cutting(links[choose(len(links))], outage_s, anew))
        for _ in range(2 + choose(5)):
            sim.at(0.001 * choose(150), self._coming(brokers[choose(len(brokers))]))
        for _ in range(choose(4)):
            sim.at(0.001 * choose(250), self._leaving())
        sim.run()

    def _cutting(self, link: tuple[str, str], outage_s: float, anew: bool) -> Any:
        return lambda: self.sim.cut(*link, outage_s, reset=anew)

    def _coming(self, edge: str) -> Any:
        name = NAMES[self.choose(len(NAMES))]

        def come() -> None:
            if not self.sim.connected(name, edge):
                self.twins.append(Twin(self, name, edge))

        return come

    def _leaving(self) -> Any:
        which = self.choose(8)

        def leave() -> None:
            there = [twin for twin in self.twins if twin.here and twin.state == "in"]
            if there:
                twin = there[which % len(there)]
                twin.state = "gone"
                self.sim.crash(twin.name, twin.edge)

        return leave

    def filter(self) -> Filter:
        low = self.choose(3)
        return Filter({"class": "p", "x": (low, low + self.choose(3))})

    def problems(self) -> Iterator[str]:
        sim = self.sim
        for name, broker in sim.brokers.items():
            if not broker.at_rest or broker.reach.missing:
                yield f"{name} is not at rest"
        oracle = Oracle(self.tree)
        for name in NAMES:
            there = [twin for twin in self.twins if twin.name == name and twin.here]
            if len(there) > 1:
                yield f"{name} is at {[twin.edge for twin in there]}"
            for twin in there:
                if twin.state != "in":
                    yield f"{name} at {twin.edge} waits to be let in"
                oracle.join(name, twin.edge)
                tables = sim.brokers[BrokerName(twin.edge)].routing.as_data()
                said = [*tables["srt"], *tables["prt"]]
                for word in sorted(said, key=lambda word: int(word["seq"])):
                    if word["client"] == name:
                        oracle.operate(name, word["kind"], parse_filter(word["filter"]))
        for name, broker in sorted(sim.brokers.items()):
            tables = broker.routing.as_data()
            known = {line["client"]: line["edge"] for line in tables["clients"]}
            if known != oracle.edges:
                yield f"{name} knows clients {known}, not {oracle.edges}"
            for table, wanted in (("srt", oracle.srt(name)), ("prt", oracle.prt(name))):
                if broker_rows(tables[table]) != oracle_rows(wanted):
                    found = broker_rows(tables[table])
                    yield f"{table} of {name}: {found}, not {oracle_rows(wanted)}"

    @property
    def put_out(self) -> list[Twin]:
        """Those that had been let in and were closed on."""
        return [twin for twin in self.twins if twin.state == "in" and not twin.here]

    def told(self, twin: Twin) -> list[str]:
        """Why clients of this name were closed on at this broker."""
        place = (twin.edge, client_hop(twin.name))
        return [f"{code}: {why}" for at, hop, code, why in self.sim.closed if (at, hop) == place]


@pytest.mark.parametrize("reset", [False, True])
def test_one_of_a_name_stays_and_the_tables_agree(reset: bool) -> None:
    settled = 0
    for seed in range(RUNS):
        try:
            run = Partitioned(seed, reset=reset)
            problems = list(run.problems())
            settled += len(run.put_out)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert not problems, f"seed {seed}: {problems}"
        for twin in run.put_out:
            settling = f"name-taken: a client named '{twin.name}' joined earlier at broker B"
            reasons = [told for told in run.told(twin) if told.startswith(settling)]
            assert reasons, seed
            older = [t for t in run.twins if t.name == twin.name and 0 < t.life < twin.life]
            assert any(f"at broker {t.edge}," in told for t in older for told in reasons), seed
    assert settled > RUNS // 20, "two of a name have met often enough"


def test_the_younger_client_is_told_why_it_has_to_go() -> None:
    with InProcessOverlay("three") as overlay:
        overlay.core.cut("B2", "B3")
        overlay.core.advance(ABSENT_IN_PRODUCTION_S)
        older = overlay.connect("W", at="B1")
        overlay.core.advance(1.0)
        younger = overlay.connect("W", at="B3")
        older.subscribe({"class": "p"})
        younger.advertise({"class": "p"})
        overlay.core.mend("B2", "B3")
        reason = "a client named 'W' joined earlier at broker B1, while the two brokers could not"
        with pytest.raises(NameTaken, match=reason):
            younger.publish({"class": "p"})
        older.advertise({"class": "p"})
        older.publish({"class": "p", "n": 1})
        notification = older.next(timeout_s=0)
        assert notification is not None and notification["n"] == 1
        for broker in overlay.core.brokers.values():
            assert {home.edge for home in broker.routing.crt.values()} == {"B1"}
            assert broker.at_rest


def test_a_name_behind_a_missing_broker_is_not_free_and_the_error_says_where_it_is() -> None:
    with InProcessOverlay("three") as overlay:
        overlay.connect("W", at="B3")
        overlay.core.cut("B2", "B3")
        overlay.core.advance(ABSENT_IN_PRODUCTION_S)
        with pytest.raises(NameTaken, match=r"at broker B3; unreachable: B3 \(no link from B2\)"):
            overlay.connect("W", at="B1")
        overlay.core.mend("B2", "B3")
