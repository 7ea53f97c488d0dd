"""What TLC has found in the real engines stays found: each as runs of the simulator."""

from collections import deque
from functools import partial

import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from overlay.messages import Hop
from padres_tx.client_messages import Step
from padres_tx.engines.d_tx import DTx
from padres_tx.protocol.dynamic import YES, Tx, Verdict
from proofs.checkers import check
from proofs.history import History
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines


def crossing(seed: int, *, taken_back: bool) -> SimulatedOverlay:
    """B1-B2-B3: Z at B3 replaces its subscription in an S-TX, and Y at B1 advertises meanwhile."""
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
    said = [("Z", "sub", whole), ("X", "usub", part), ("Y", "adv", whole)]
    world.sim.at(at, lambda: world.plain("Y", "adv", whole) and None)
    if taken_back:
        later = at + tape.choose(12) * 0.001
        world.sim.at(later, lambda: world.plain("Y", "uadv", whole) and None)
        said.append(("Y", "uadv", whole))
    world.sim.run()
    assert world.committed(tx)
    for client, kind, filter in said:
        world.oracle.operate(client, kind, filter)
    return world


@pytest.mark.parametrize("seed", range(60))
def test_s_tx_drops_what_an_advertisement_has_set_in_motion(seed: int) -> None:
    """STxCrossing without "drops follow": an attracted entry comes after the step that drops it.

    Z's subscription is on its way from B3 to B2, attracted by Y's advertisement, while both carry
    out the step that replaces it.
    """
    crossing(seed, taken_back=False).check_at_rest()


def test_s_tx_takes_back_what_it_stored_for_an_advertisement_that_is_gone() -> None:
    """STxTakenBack without "own follows": B1 stores what B2 never sends, nor takes back."""
    for seed in range(100):
        crossing(seed, taken_back=True).check_at_rest()


# --- a client that leaves, which nobody acknowledges ---


class MeetsNobody(DTx):
    """Without "meets held": it does not see what waits at its broker."""

    def judge(self, tx: Tx) -> Verdict | None:
        held, self.broker._held = self.broker._held, deque()
        try:
            return super().judge(tx)
        finally:
            self.broker._held = held


class TrustsVotes(DTx):
    """Without "held from": a neighbour's yes counts, whatever it has sent before."""

    def accepts_yes(self, tx: Tx, neighbour: Hop) -> Verdict:
        return YES


def leaving(engine: type[DTx], seed: int) -> list[str]:
    """B1-B2-B3: L at B3 leaves, and from all sides somebody publishes what it subscribed to."""
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


def test_nobody_reads_in_part_that_a_client_has_left() -> None:
    for seed in range(40):
        assert leaving(DTx, seed) == []


@pytest.mark.parametrize(("engine", "seed"), [(MeetsNobody, 12), (TrustsVotes, 0)])
def test_what_is_held_has_to_be_looked_at_for_that(engine: type[DTx], seed: int) -> None:
    """DTxLeave without "meets held", and without "held from"."""
    assert leaving(engine, seed) == ["cycle"]
