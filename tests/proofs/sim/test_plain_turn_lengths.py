"""No plain input keeps a broker busy for long, however many table entries it concerns."""

from __future__ import annotations

import pytest

from overlay.filters import Filter
from overlay.messages import Kind
from padres_tx.client_messages import Commit, Step, TxID
from proofs.sim.turn_lengths import TURN_STEPS
from tests.proofs.sim.test_turn_lengths import CountedOverlay, P, box

#: Entries of the table; with this many each of these inputs was one turn of millions of steps.
SIZE = 5_000


class LargeTables(CountedOverlay):
    """One client at B3 holds very many subscriptions, or advertisements."""

    def __init__(self, kind: Kind, of: Filter | None = None) -> None:
        super().__init__()
        if kind == "adv":
            self.hold("E", "sub", P)
        self.hold("A", kind, *(box(3 * at, at % 3) for at in range(SIZE)))

    def count(self) -> int:
        self.turns.counting = True
        self.world.sim.run()
        self.turns.counting = False
        assert all(broker.at_rest for broker in self.world.sim.brokers.values())
        return self.turns.longest.steps

    def entries(self, client: str) -> list[int]:
        found = []
        for broker in self.world.sim.brokers.values():
            spaces = [broker.routing.prt, *broker.routing.srt.values()]
            found.append(sum(space.count_of(client) for space in spaces))
        return found


@pytest.mark.parametrize(("kind", "left"), [("usub", 0), ("sub", 1)])
def test_an_operation_that_covers_very_many_subscriptions(kind: Kind, left: int) -> None:
    overlay = LargeTables("sub")
    assert overlay.entries("A")[2] == SIZE
    overlay.world.plain("A", kind, P)
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert overlay.entries("A") == [left] * 3


@pytest.mark.parametrize(("kind", "left"), [("uadv", 0), ("adv", 1)])
def test_an_operation_that_covers_very_many_advertisements(kind: Kind, left: int) -> None:
    overlay = LargeTables("adv")
    overlay.world.plain("A", kind, P)
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert overlay.entries("A") == [left] * 3
    # E's subscription is known at B3 as long as A advertises something of it.
    assert overlay.entries("E")[2] == 2 + (left and 1)


@pytest.mark.parametrize("kind", ["sub", "adv"])
def test_a_client_that_leaves_with_very_many_entries(kind: Kind) -> None:
    overlay = LargeTables(kind)
    overlay.world.sim.crash("A", "B3")
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert overlay.entries("A") == [0, 0, 0]
    overlay.world.join("A", "B1")  # Its name is free again.


def test_advertisements_that_attract_and_send_back_very_many_subscriptions() -> None:
    overlay = LargeTables("sub")
    for client in ("E", "M"):
        overlay.hold(client, "uadv", P)
    assert overlay.entries("A") == [0, 0, SIZE]
    overlay.world.plain("E", "adv", P)
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert overlay.entries("A") == [SIZE] * 3
    overlay.world.plain("E", "uadv", P)
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert overlay.entries("A") == [0, 0, SIZE]


def test_a_second_advertisement_sends_no_subscription_again() -> None:
    overlay = LargeTables("sub")
    before = overlay.world.sim.steps
    overlay.world.plain("E", "adv", Filter({"class": "p", "x": (0, None)}))
    overlay.count()
    assert overlay.world.sim.steps - before < SIZE


def longest_turn_of_a_vote(writes: int) -> int:
    overlay = CountedOverlay()
    world = overlay.world
    steps = [Step("E", "sub", box(10 * at)) for at in range(50)]
    steps += [Step("E", "pub", point={"class": "p", "x": -1 - at}) for at in range(50)]
    tx = world.begin("d-tx", "E", steps, commit=False)
    world.sim.run(until=world.sim.now + 1.0)
    for at in range(writes):
        world.plain("A", "sub", box(10 * SIZE + at))
    world.sim.run(until=world.sim.now + 5.0)

    def commit() -> TxID:
        world.send("d-tx", "E", Commit(tx))
        return tx

    assert overlay.go(commit).committed
    return overlay.turns.longest.steps


def test_a_vote_after_very_many_plain_operations() -> None:
    """All that was written since its snapshot was compared with its reads."""
    few, many = longest_turn_of_a_vote(SIZE // 10), longest_turn_of_a_vote(SIZE)
    assert many <= TURN_STEPS
    assert many < 1.5 * few
