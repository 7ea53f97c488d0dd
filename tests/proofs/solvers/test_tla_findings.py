"""Errors that TLC has found in the real engines, each repeated as runs of the simulator."""

from collections import deque
from functools import partial

import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from padres_tx.client_messages import Step
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.protocol.dynamic import DynamicState, Verdict
from proofs.checkers import check
from proofs.faults.held_operation_bugs import CountsEveryYes
from proofs.history import History
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines


def crossing(seed: int, *, taken_back: bool) -> SimulatedOverlay:
    """B1-B2-B3: Z at B3 replaces its subscription in an S-TX while Y at B1 advertises."""
    tape = Tape(seed=seed)
    world = SimulatedOverlay(nx.path_graph(["B1", "B2", "B3"]), tape.choose)
    for client, edge in (("X", "B1"), ("C", "B2"), ("Z", "B3"), ("Y", "B1")):
        world.join(client, edge)
    part, whole = Filter(cls="p", x=(1, 5)), Filter(cls="p", x=(0, 9))
    for client in "XZ":
        world.plain(client, "sub", part)
        world.oracle.operate(client, "sub", part)
        world.sim.run()
    tx = world.submit("C", [Step("Z", "sub", whole), Step("X", "usub", part)])
    at = tape.choose(30) * 0.001
    operations = [("Z", "sub", whole), ("X", "usub", part), ("Y", "adv", whole)]
    world.sim.at(at, lambda: world.plain("Y", "adv", whole) and None)
    if taken_back:
        later = at + tape.choose(12) * 0.001
        world.sim.at(later, lambda: world.plain("Y", "uadv", whole) and None)
        operations.append(("Y", "uadv", whole))
    world.sim.run()
    assert world.committed(tx)
    for client, kind, filter in operations:
        world.oracle.operate(client, kind, filter)
    return world


@pytest.mark.parametrize("seed", range(60))
def test_s_tx_drops_an_entry_that_an_advertisement_has_attracted(seed: int) -> None:
    """STxCrossing without "drops follow": an attracted entry arrives after the step that drops it.

    Z's subscription is on its way from B3 to B2, attracted by Y's advertisement, while both brokers
    carry out the step that replaces it.
    """
    crossing(seed, taken_back=False).check_at_rest()


def test_s_tx_takes_back_an_entry_when_its_advertisement_is_gone() -> None:
    """STxTakenBack without "own follows": B1 stores an entry that B2 neither sends nor removes."""
    for seed in range(100):
        crossing(seed, taken_back=True).check_at_rest()


# --- a client that leaves, which no broker acknowledges ---


class IgnoresHeld(DTx):
    """Without "meets held": validation does not see the operations held at its broker."""

    def judge(self, tx: DynamicState) -> Verdict | None:
        held, self.broker.waiting.queue = self.broker.waiting.queue, deque()
        try:
            return super().judge(tx)
        finally:
            self.broker.waiting.queue = held


def leaving(engine: type[DTx], seed: int) -> list[str]:
    """B1-B2-B3: L at B3 leaves while clients on all sides publish what it subscribed to."""
    tape = Tape(seed=seed)
    factories = {**all_engines(), "d-tx": engine}
    world = SimulatedOverlay(nx.path_graph(["B1", "B2", "B3"]), tape.choose, factories=factories)
    for client, edge in (("L", "B3"), ("C", "B3"), ("Q", "B2"), ("S", "B1"), ("R", "B1")):
        world.join(client, edge)
    x = Filter(cls="x")
    for client, kind in (*((client, "adv") for client in "CQR"), ("L", "sub"), ("S", "sub")):
        world.plain(client, kind, x)
        world.sim.run()

    def publish(client: str) -> None:
        world.begin("d-tx", client, [Step(client, "pub", point={"cls": "x"})])

    for client in "QCR":
        world.sim.at(0.001 * tape.choose(30), partial(publish, client))
    world.sim.at(0.001 * tape.choose(30), partial(world.crash, "L"))
    world.sim.run()
    return [anomaly.kind for anomaly in check(History.from_simulator(world.sim, world.clients))]


def test_a_client_that_leaves_is_read_as_gone_everywhere_or_nowhere() -> None:
    for seed in range(40):
        assert leaving(DTx, seed) == []


@pytest.mark.parametrize(("engine", "seed"), [(IgnoresHeld, 12), (CountsEveryYes, 0)])
def test_without_either_rule_on_held_operations_there_is_a_cycle(
    engine: type[DTx], seed: int
) -> None:
    """DTxLeave without "meets held", and without "held from"."""
    assert leaving(engine, seed) == ["cycle"]
