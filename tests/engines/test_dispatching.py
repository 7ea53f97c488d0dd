"""Figure 1b in the simulator: D hands instance x1 to A1 inside a transaction of E."""

from __future__ import annotations

import itertools

import pytest

from overlay.hosts.simulator import Tape
from padres_tx.client_messages import Step
from proofs.sim.simulated_overlay import SimulatedOverlay
from tests.protocol.steps import box, chain, pub, sub, tcm, usub

ALL = box(class_="p1")
X1 = box(class_="p1", x="x1")
ASSIGN = box(class_="assign")
DYNAMIC = ["d-tx", "d-tx-ni"]


def dispatching(world: SimulatedOverlay, e: str, d: str, a1: str) -> None:
    """The clients in their places, with what they hold before the dispatch."""
    world.join("E", e)
    world.join("D", d)
    world.join("A1", a1)
    for client, kind, filter in (
        ("E", "adv", ALL),
        ("D", "adv", ASSIGN),
        ("D", "sub", ALL),
        ("A1", "sub", box(class_="assign", to="A1")),
    ):
        world.plain(client, kind, filter)
        world.oracle.operate(client, kind, filter)
        world.sim.run()
    world.reactions["D"] = lambda point: [
        tcm("D", class_="assign", to="A1", x="x1"),
        usub("D", X1),
    ]
    world.reactions["A1"] = lambda point: [sub("A1", X1)]


STEPS: list[Step] = [
    tcm("E", class_="p1", x="x1", n=0),
    pub("E", class_="p1", x="x1", n=1),
]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_publication_reaches_the_agent_and_only_the_agent(engine: str) -> None:
    for seed, places in enumerate(itertools.product(["B1", "B2", "B3"], repeat=3)):
        world = SimulatedOverlay(chain(3), Tape(seed=seed).choose)
        dispatching(world, *places)
        tx = world.begin(engine, "E", STEPS)
        world.sim.run()
        assert world.committed(tx), world.ended[tx]
        assert world.received("A1") == [{"class": "p1", "x": "x1", "n": 1}]
        assert world.received("D") == []
        world.oracle.operate("A1", "sub", X1)
        world.oracle.operate("D", "usub", X1)
        world.check_at_rest()


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_abort_leaves_everything_as_it_was(engine: str) -> None:
    for seed, places in enumerate(itertools.product(["B1", "B2", "B3"], repeat=3)):
        world = SimulatedOverlay(chain(3), Tape(seed=seed).choose)
        dispatching(world, *places)
        # Nobody receives the last tcm: that must end in an abort, not in a wait.
        tx = world.begin(engine, "E", [*STEPS, tcm("E", class_="p1", x="x9", y=3), usub("E", X1)])
        world.reactions["D"] = lambda point: (
            [tcm("D", class_="assign", to="A1", x="x1"), usub("D", X1)]
            if point["x"] == "x1"
            else "no such instance"
        )
        world.sim.run()
        assert not world.committed(tx)
        assert world.ended[tx].code == "participant"
        assert world.received("A1") == world.received("D") == []
        world.check_at_rest()


STATIC: list[Step] = [
    Step("E", "tcm", point={"class": "p1", "x": "x1", "n": 0}, receivers=("D",)),
    Step(
        "D",
        "tcm",
        point={"class": "assign", "to": "A1", "x": "x1"},
        after=(0,),
        receivers=("A1",),
    ),
    Step("A1", "sub", X1, after=(1,)),
    Step("D", "usub", X1, after=(1, 2)),
    Step("E", "pub", point={"class": "p1", "x": "x1", "n": 1}, after=(0, 3)),
]


def test_a_static_dispatch_reaches_the_agent_and_only_the_agent() -> None:
    for seed, places in enumerate(itertools.product(["B1", "B2", "B3"], repeat=3)):
        world = SimulatedOverlay(chain(3), Tape(seed=seed).choose)
        dispatching(world, *places)
        tx = world.submit("E", STATIC)
        world.sim.run()
        assert world.committed(tx), world.ended[tx]
        assert world.received("A1") == [{"class": "p1", "x": "x1", "n": 1}]
        assert world.received("D") == []
        world.oracle.operate("A1", "sub", X1)
        world.oracle.operate("D", "usub", X1)
        world.check_at_rest()


def test_a_static_abort_leaves_everything_as_it_was() -> None:
    for seed, places in enumerate(itertools.product(["B1", "B2", "B3"], repeat=3)):
        world = SimulatedOverlay(chain(3), Tape(seed=seed).choose)
        dispatching(world, *places)
        tx = world.submit("E", [*STATIC, Step("A1", "usub", box(class_="p2"), after=(2,))])
        world.sim.run()
        assert not world.committed(tx)
        assert world.ended[tx].code == "not-held"
        assert world.received("A1") == world.received("D") == []
        world.check_at_rest()
