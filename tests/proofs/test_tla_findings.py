"""What TLC has found in the real engines stays found: each as runs of the simulator."""

import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.simulator import Tape
from padres_tx.wire import Step
from proofs.world import World


def crossing(seed: int, *, taken_back: bool) -> World:
    """B1-B2-B3: Z at B3 replaces its subscription in an S-TX, and Y at B1 advertises meanwhile."""
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
        world.oracle.say(client, kind, filter)
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
