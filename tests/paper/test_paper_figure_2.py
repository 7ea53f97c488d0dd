"""Figure 2: at every broker a1, s1, t1, s2, p1, in this order.

C2 has subscribed to x (s1), and nobody publishes that. In one transaction C1 advertises x (a1),
which attracts s1, sends a tcm in x (t1), on which C2 subscribes to y (s2), and publishes in y (p1).
Real clients (`test_client_simulated`) play it in the simulator, on random trees, with random places
and delays.
"""

from __future__ import annotations

import networkx as nx
import pytest

from overlay.broker.core import Broker
from overlay.hosts.simulator import Simulator, Tape
from overlay.trace import Record
from padres_tx import registry, static
from proofs.sim.simulated_overlay import all_engines
from tests.client.test_simulated_clients import SimulatedClient

ENGINES = [name for name in registry.names() if name != "bl-wait"]
SEEDS = 150

X = {"class": "x"}
Y = {"class": "y"}

#: s1 is the first operation of C2.
S1 = "C2#1"

Played = tuple[Simulator, SimulatedClient, SimulatedClient]


def play(tree: nx.Graph[str], at: dict[str, str], seed: int, engine: str, **terms: float) -> Played:
    """The transaction of Figure 2; the simulator when all is at rest, its records from then on."""
    simulator = Simulator(
        {broker: list(tree[broker]) for broker in sorted(tree)},
        Tape(seed=seed).choose,
        broker=lambda name, others: Broker(name, others, engines=all_engines(), trace=True),
    )
    c1, c2 = (SimulatedClient(simulator, name, at[name]) for name in ("C1", "C2"))
    c2.plain("sub", X)
    c1.plain("adv", Y)
    c2.reaction = lambda notification: [static.sub(Y)]
    simulator.records.clear()
    is_static = registry.load(engine).client == "static"
    ops = {"C2": [static.sub(Y)]} if is_static else None
    steps = [static.adv(X), static.tcm({**X, "n": 0}, ops=ops), static.pub({**Y, "n": 1})]
    c1.transact(engine, steps, **terms)
    return simulator, c1, c2


def seen_at(broker: str, records: list[Record]) -> list[str]:
    """The operations of Figure 2 in the order in which the broker has handled them."""
    seen: list[str] = []
    for record in records:
        if record.node != broker or record.kind not in ("apply", "match"):
            continue
        match record.op_kind:
            case "adv":
                seen.append("a1")
                # Where s1 was waiting, it moves in the same step.
                seen += ["s1"] * (f"{S1}>" in record.outcome)
            case "sub":
                seen.append("s1" if record.op_id == S1 else "s2")
            case "tcm":
                seen.append("t1")
            case "pub":
                seen.append("t1" if record.filter.startswith("[class,'x']") else "p1")
    return seen


def expected_at(broker: str, tree: nx.Graph[str], at: dict[str, str]) -> list[str]:
    """All five on the way between the two; elsewhere only the advertisement, which floods."""
    if broker not in nx.shortest_path(tree, at["C1"], at["C2"]):
        return ["a1"]
    if at["C1"] == at["C2"]:
        return ["a1", "t1", "s2", "p1"]  # s1 is where it has to be.
    return ["a1", "s1", "t1", "s2", "p1"]


def random_tree(seed: int) -> tuple[nx.Graph[str], dict[str, str]]:
    """Up to six brokers, and a place for each client."""
    choose = Tape(seed=seed).choose
    tree: nx.Graph[str] = nx.Graph()
    tree.add_node("B1")
    for n in range(2, 3 + choose(5)):
        tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
    brokers = sorted(tree)
    return tree, {name: brokers[choose(len(brokers))] for name in ("C1", "C2")}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_broker_sees_them_in_this_order(engine: str) -> None:
    apart = 0
    for seed in range(SEEDS):
        tree, at = random_tree(seed)
        apart += at["C1"] != at["C2"]
        simulator, c1, c2 = play(tree, at, seed, engine)
        assert [result.status for result in c1.results] == ["committed"], (seed, c1.results)
        assert c2.got == [1], seed
        for broker in sorted(tree):
            seen = seen_at(broker, simulator.records)
            assert seen == expected_at(broker, tree, at), f"{broker}, seed {seed}, {at}"
    assert apart > SEEDS / 2, "too little was on its way"


def test_with_waits_that_are_too_short_the_order_is_broken_and_this_is_seen() -> None:
    """The planted fault: BL-WAIT promises no order, and the check above must be able to fail."""
    broken = 0
    for seed in range(SEEDS // 3):
        tree, at = random_tree(seed)
        simulator, _, _ = play(tree, at, seed, "bl-wait", wait_s=0.001)
        broken += any(
            seen_at(broker, simulator.records) != expected_at(broker, tree, at)
            for broker in sorted(tree)
        )
    assert broken > SEEDS / 30
