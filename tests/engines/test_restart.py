"""A broker that dies in the middle of transactions: the others are left with nothing half done.

Brokers are not durable yet, so what is being decided in that moment may end differently on its two
sides, with D-TX and S-TX; with D-TX-NI it has one outcome. And everywhere it ends: nothing waits
for ever, no mark stays in a table, and all tables are as they have to be for what each client holds
at its edge broker.
"""

from __future__ import annotations

import os
from typing import Any

import networkx as nx
import pytest

from overlay.filters import Filter, Value
from overlay.hosts.simulator import Tape
from overlay.identity import Lives
from overlay.messages import Join
from padres_tx.client_messages import Abort, Commit, Step, TxID
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.protocol.dynamic import DynamicState
from proofs.faults.early_fences import FencesSome
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from tests.protocol.aftermath import known, leftovers
from tests.protocol.one_broker import OneBroker

#: Runs for each engine; PADRES_TX_SEEDS gives more.
RUNS = max(10, int(os.environ.get("PADRES_TX_SEEDS", "500")) // 10)

CLIENTS = ("C0", "C1", "C2", "C3")
ENGINES = ("d-tx", "d-tx-ni", "s-tx")


class Restarted:
    """Concurrent transactions, and a broker, perhaps links too, that begin anew at some moment;
    some of the clients come back."""

    def __init__(self, seed: int, engines: tuple[str, ...]) -> None:
        self.choose = choose = Tape(seed=seed).choose
        tree: nx.Graph[str] = nx.Graph()
        tree.add_node("B1")
        for n in range(2, 3 + choose(5)):
            tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
        brokers = sorted(tree)
        self.tree = tree
        engine_of = {**all_engines(), "d-tx": FencesSome}
        self.world = world = SimulatedOverlay(tree, choose, factories=engine_of, trace=False)
        #: Where clients are at first, and the transactions of D-TX-NI.
        self.edges = {client: brokers[choose(len(brokers))] for client in CLIENTS}
        self.began: list[TxID] = []
        for client, edge in self.edges.items():
            world.join(client, edge)
        for client in CLIENTS:
            for kind, filter in (
                ("adv", Filter({"class": "ctl"})),
                ("sub", Filter({"class": "ctl", "to": client})),
                ("adv", Filter({"class": "p"})),
            ):
                world.plain(client, kind, filter)
                world.sim.run()
            world.reactions[client] = lambda point, client=client: self.steps(client, 2, ctl=0)
        for n, client in enumerate(CLIENTS[: 1 + choose(len(CLIENTS))]):
            engine = engines[choose(len(engines))]
            if engine == "s-tx":
                steps = [step for c in CLIENTS for step in self.steps(c, 1, ctl=0)]
                order = [self._after(step, at) for at, step in enumerate(steps)]
                world.submit(client, order)
            else:
                tx = world.begin(engine, client, self.steps(client, 3, ctl=2))
                self.began += [tx] if engine == "d-tx-ni" else []
            world.sim.run(until=world.sim.now + 0.001 * choose(8) * (n + 1))
        for client in CLIENTS:
            world.plain(client, "sub", self.filter())
        world.sim.run(until=world.sim.now + 0.001 * choose(60))
        links = sorted(tree.edges)
        for _ in range(choose(3)):
            world.sim.reset(*links[choose(len(links))])
            world.sim.run(until=world.sim.now + 0.001 * choose(20))
        self.restarted = brokers[choose(len(brokers))]
        # It may be away for so long that the others go on without it.
        world.sim.absent_after_s = 0.02
        outage_s = 0.01 * choose(6)
        world.sim.restart(self.restarted, outage_s)
        if outage_s:
            world.sim.run(until=world.sim.now + outage_s * 0.8)
            for client in CLIENTS:
                if world.sim.connected(client):
                    world.plain(client, "sub", self.filter())
            world.sim.run(until=world.sim.now + outage_s * 0.3)
        for client in CLIENTS:
            if not world.sim.connected(client) and choose(3):
                self._comes_back(client, brokers[choose(len(brokers))])
                world.sim.run(until=world.sim.now + 0.001 * choose(20))
        world.sim.run()

    def _comes_back(self, client: str, edge: str) -> None:
        def joined(code: str) -> None:
            if not code:
                self.world.plain(client, "adv", Filter({"class": "p"}))
                self.world.plain(client, "sub", self.filter())

        self.world.connect(client, edge, joined)

    @staticmethod
    def _after(step: Step, at: int) -> Step:
        return Step(step.client, step.kind, step.filter, step.point, after=(at - 1,) if at else ())

    def filter(self) -> Filter:
        low = self.choose(3)
        return Filter({"class": "p", "x": (low, low + self.choose(3))})

    def steps(self, client: str, most: int, *, ctl: int) -> list[Step]:
        found = []
        for _ in range(1 + self.choose(most)):
            kind: Any = ("sub", "adv", "pub", "sub", "tcm", "tcm")[self.choose(4 + ctl)]
            point: dict[str, Value] = {"class": "p", "x": self.choose(3)}
            if kind == "tcm":
                point = {"class": "ctl", "to": CLIENTS[self.choose(len(CLIENTS))]}
            if kind in ("pub", "tcm"):
                found.append(Step(client, kind, point=point))
            else:
                found.append(Step(client, kind, self.filter()))
        return found

    def leftovers(self) -> list[str]:
        return leftovers(self.world, self.tree, CLIENTS)

    def splits(self) -> list[str]:
        """Transactions of D-TX-NI that have ended differently in two places.

        An edge broker that is lost with its decision is an excuse for what it told its clients.
        """
        found = []
        for tx in self.began:
            edge = self.edges[tx[0]]
            gone = edge == self.restarted
            told = {
                f"{client} was told": ended.committed
                for client, ended in self.world.ended_at[tx].items()
                if not (gone and self.edges[client] == edge)
            }
            told |= known(self.world, "d-tx-ni", tx)
            if len(set(told.values())) > 1:
                found.append(f"{tx}: {told}")
        return found


@pytest.mark.parametrize("engine", [*ENGINES, "mixed"])
def test_what_a_broker_leaves_behind_comes_to_an_end_everywhere(engine: str) -> None:
    for seed in range(RUNS):
        try:
            run = Restarted(seed, ENGINES if engine == "mixed" else (engine,))
            left = [*run.leftovers(), *run.splits()]
        except Exception as error:
            raise AssertionError(f"{engine}, seed {seed}: {error!r}") from error
        assert not left, f"{engine}, seed {seed}: {left}"


class FencesAtB3(DTx):
    """Gives a fence to whoever begins at B3."""

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        return self.broker.name == "B3"


@pytest.mark.parametrize("fence", [False, True])
def test_a_name_that_brokers_still_know_is_refused_and_breaks_nothing(
    fence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number comes twice in one life, and somebody still needs the state before."""
    tree: nx.Graph[str] = nx.Graph([("B1", "B2"), ("B2", "B3")])
    engine: Any = FencesAtB3 if fence else DTx
    factories = {**all_engines(), "d-tx": engine}
    world = SimulatedOverlay(tree, lambda n: 0, factories=factories, trace=False)
    for client, edge in (("E", "B1"), ("Q", "B2")):
        world.join(client, edge)
    old = world.begin("d-tx", "Q", [], commit=False)
    world.sim.run(until=world.sim.now + 0.1)
    steps = [Step("E", "sub", Filter({"class": "p"}))]
    first = world.begin("d-tx", "E", steps)
    world.sim.run(until=world.sim.now + 0.1)
    assert world.committed(first)
    world.crash("E")
    world.sim.run(until=world.sim.now + 0.1)
    world.sim.connect("E", "B3", lambda message, now: world._receive("E", message))
    monkeypatch.setattr(Lives, "issue", lambda lives, now: first[1])
    world.sim.send("E", Join(1, "E", ""))
    world.sim.run(until=world.sim.now + 0.1)
    world.log["E"].clear()
    world.numbers["E"] = first[2] - 1
    again = world.begin("d-tx", "E", steps)
    assert again == first
    world.sim.run(until=world.sim.now + 0.1)
    assert world.log["E"][0].code == "refused"
    world.send("d-tx", "Q", Commit(old))
    world.sim.run()
    assert world.committed(old)
    world.oracle.join("E", "B3")
    world.check_at_rest()


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni"])
def test_little_is_kept_of_what_a_broker_that_is_away_has_not_heard_the_end_of(engine: str) -> None:
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E", "D")
    for client, kind in (("E", "adv"), ("D", "sub")):
        one.holds(client, kind, Filter({"class": "p"}))
    tx = one.begin("E", Step("E", "pub", point={"class": "p"}), Step("E", "sub", Filter({"x": 1})))
    one.say("E", Abort(tx))
    known = one.broker.engines[engine].txs[tx]  # type: ignore[attr-defined]
    assert known.status == "aborted" and not known.deliveries
    assert known.effective == {"@E": []}
    # What D-TX-NI has written counts for others until it is undone everywhere.
    assert known.footprint.writes == (engine == "d-tx-ni")
