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


def test_an_advertisement_near_very_many_subscriptions_beside_an_undecided_transaction() -> None:
    """Whether it has to wait depends on all that it would read."""
    overlay = LargeTables("sub")
    world = overlay.world
    world.join("Z", "B3")
    overlay.hold("A", "adv", Filter({"class": "q"}))
    world.sim.cut("B2", "B3", 1.0)
    tx = world.begin("d-tx", "A", [Step("A", "pub", point={"class": "q"})])
    world.sim.run(until=world.sim.now + 0.3)
    world.plain("Z", "adv", P)
    assert overlay.count() <= TURN_STEPS, overlay.turns.longest
    assert world.committed(tx), world.ended[tx]
    assert overlay.entries("Z")[2] == 1


def of_kind(number: int) -> Filter:
    """Filters of kinds that name different attributes, so that all of two kinds overlap."""
    match number % 5:
        case 0:
            return Filter({"class": "p", "x": number})
        case 1:
            return Filter({"class": "p", "y": number})
        case 2:
            return Filter({"class": "p", "z": (number, number + 40)})
        case 3:
            return Filter({"class": "p", "x": (number, number + 3), "y": (0, number)})
        case _:
            return Filter({"class": "p", "y": (number, None), "z": number})


def steps_of_kinds(size: int) -> tuple[int, int]:
    """The steps of so many subscriptions of all kinds, and of taking some back."""
    overlay = CountedOverlay()
    steps = []
    for kind, some in (("sub", range(size)), ("usub", range(0, size, size // 40))):
        for number in some:
            overlay.world.plain("A", kind, of_kind(number))  # type: ignore[arg-type]
        overlay.turns.taken.clear()
        overlay.turns.counting = True
        overlay.world.sim.run()
        overlay.turns.counting = False
        assert overlay.turns.longest.steps <= TURN_STEPS
        steps.append(overlay.turns.steps)
    return steps[0], steps[1]


def test_words_that_overlap_very_many_others_but_cover_few() -> None:
    """The cost follows what goes, not what is near; it was a look at most of the table each."""
    few, many = steps_of_kinds(SIZE // 20), steps_of_kinds(SIZE // 5)
    assert many[0] < 5 * few[0]
    assert many[1] < 1.5 * few[1]


def test_a_subscription_near_very_many_holes_of_an_advertisement() -> None:
    """Only a hole around what is asked for matters; all that overlap it were compared."""

    def longest(holes: int) -> int:
        overlay = CountedOverlay()
        overlay.hold("A", "adv", P)
        overlay.hold("A", "uadv", *(box(3 * at) for at in range(holes)))
        overlay.world.plain("E", "sub", P)
        overlay.turns.counting = True
        overlay.world.sim.run()
        return overlay.turns.longest.steps

    assert longest(SIZE // 5) < 1.5 * longest(SIZE // 50)


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
