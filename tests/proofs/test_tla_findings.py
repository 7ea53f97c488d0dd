"""What TLC has found in the real engines stays found: each as runs of the simulator."""

import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.simulator import Tape
from padres_tx.wire import Step
from proofs.world import World


@pytest.mark.parametrize("seed", range(60))
def test_s_tx_drops_what_an_advertisement_has_set_in_motion(seed: int) -> None:
    """STxCrossing without "drops follow": an attracted entry comes after the step that drops it.

    Z's subscription is on its way from B3 to B2, attracted by Y's advertisement, while both carry
    out the step that replaces it.
    """
    tape = Tape(seed=seed)
    world = World(nx.path_graph(["B1", "B2", "B3"]), tape.choose)
    for client, edge in (("X", "B1"), ("C", "B2"), ("Z", "B3"), ("Y", "B1")):
        world.join(client, edge)
    part, whole = Filter(cls="p", x=(1, 5)), Filter(cls="p", x=(0, 9))
    for client in "XZ":
        world.plain(client, "sub", part)
        world.oracle.say(client, "sub", part)
        world.sim.run()
    tx = world.submit("C", [Step("Z", "sub", whole), Step("X", "usub", part)])
    world.sim.at(tape.choose(30) * 0.001, lambda: world.plain("Y", "adv", whole) and None)
    world.sim.run()
    assert world.committed(tx)
    for client, kind, filter in (("Z", "sub", whole), ("X", "usub", part), ("Y", "adv", whole)):
        world.oracle.say(client, kind, filter)
    world.check_at_rest()
