"""Where the paper is wrong or silent: its rules lead to anomalies, and ours do not.

The numbers are those of the list of errata. A rule that is a counterexample is tried both ways on
the same runs: with the paper's literal rule (`literal`) the anomaly is found, with ours it is not.
"""

from __future__ import annotations

from overlay.simulator import Tape
from tests.transactions.world import World, box, chain, pub, usub

# --- found with random runs ---


def p(*x: int) -> object:
    return box(class_="p", x=x if len(x) > 1 else x[0])


def test_what_has_waited_gets_its_number_when_it_is_done() -> None:
    """D-TX-NI: an operation behind one of the same client is the later word."""
    world = World(chain(2), Tape(seed=1).choose)
    world.join("C", "B1")
    world.join("Q", "B1")
    for client, kind, filter in (("Q", "adv", box(class_="p")), ("C", "sub", p(1))):
        world.plain(client, kind, filter)
        world.oracle.say(client, kind, filter)
        world.sim.run()
    world.sim.cut("B1", "B2", 1.0)
    isolated = world.begin("d-tx", "Q", [pub("Q", class_="p", x=0)])
    world.sim.run(until=world.sim.now + 0.1)
    world.plain("C", "sub", p(0, 1))  # Held: the publication has read that part.
    world.sim.run(until=world.sim.now + 0.1)
    assert world.sim.brokers["B1"].held
    behind = world.begin("d-tx-ni", "C", [usub("C", p(1))])
    world.sim.run()
    assert world.committed(isolated) and world.committed(behind)
    world.publish("Q", class_="p", x=1)
    world.sim.run()
    assert world.received("C") == []
    world.oracle.say("C", "sub", p(0, 1))
    world.oracle.say("C", "usub", p(1))
    world.check_at_rest()
