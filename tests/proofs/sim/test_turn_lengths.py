"""No input keeps a broker busy for long: the longest turn of each engine, counted in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import networkx as nx
import pytest

from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from padres_tx.client_messages import STEP_LIMIT, Abort, Ended, Step, TxID
from proofs.sim.simulated_overlay import SimulatedOverlay
from proofs.sim.turn_lengths import TURN_STEPS, TurnCounter

P = Filter({"class": "p"})
CONTROL = Filter({"class": "ctl"})


def box(low: int, width: int = 0) -> Filter:
    return Filter({"class": "p", "x": (low, low + width)})


class CountedOverlay:
    """Three brokers in a chain, whose turns are counted; E and M may publish p."""

    def __init__(self) -> None:
        self.turns = TurnCounter()
        tree: nx.Graph[str] = nx.path_graph(["B1", "B2", "B3"])
        self.world = SimulatedOverlay(
            tree, Tape(seed=1).choose, trace=False, broker=self.turns.broker()
        )
        for client, edge in {"E": "B1", "M": "B2", "A": "B3"}.items():
            self.world.join(client, edge)
        for client in ("E", "M"):
            self.hold(client, "adv", P)
        self.hold("E", "adv", CONTROL)

    def more_clients(self) -> list[str]:
        """Fifty more clients, at all brokers."""
        clients = [f"C{number}" for number in range(50)]
        for number, client in enumerate(clients):
            self.world.join(client, f"B{1 + number % 3}")
        return clients

    def hold(self, client: str, kind: str, *filters: Filter) -> None:
        for filter in filters:
            self.world.plain(client, kind, filter)  # type: ignore[arg-type]
        self.world.sim.run()

    def go(self, begin: Callable[[], TxID]) -> Ended:
        """Count the turns of a transaction, from its first message until all is at rest."""
        self.turns.counting = True
        tx = begin()
        self.world.sim.run()
        self.turns.counting = False
        return self.world.ended[tx]


# --- static transactions ---


def chain(steps: Sequence[Step]) -> list[Step]:
    return [
        Step(each.client, each.kind, each.filter, each.point, after=(at - 1,) if at else ())
        for at, each in enumerate(steps)
    ]


def subs_of_one(counted: CountedOverlay, size: int) -> list[Step]:
    return chain([Step("A", "sub", box(at)) for at in range(size)])


def subs_in_no_order(counted: CountedOverlay, size: int) -> list[Step]:
    return [Step("A", "sub", box(at)) for at in range(size)]


def subs_of_many(counted: CountedOverlay, size: int) -> list[Step]:
    clients = counted.more_clients()
    return chain([Step(clients[at % len(clients)], "sub", box(at)) for at in range(size)])


def overlapping_subs(counted: CountedOverlay, size: int) -> list[Step]:
    return chain([Step("A", "sub", box(at, 5)) for at in range(size)])


def subs_that_cover_each_other(counted: CountedOverlay, size: int) -> list[Step]:
    return chain([Step("A", "sub", box(0, at)) for at in range(size)])


def holes(counted: CountedOverlay, size: int) -> list[Step]:
    counted.hold("A", "sub", P)
    return chain([Step("A", "usub", box(at)) for at in range(size)])


def handovers(counted: CountedOverlay, size: int) -> list[Step]:
    counted.hold("A", "sub", *(box(at) for at in range(size // 2)))
    pairs = [(Step("E", "sub", box(at)), Step("A", "usub", box(at))) for at in range(size // 2)]
    return chain([step for pair in pairs for step in pair])


def advs(counted: CountedOverlay, size: int) -> list[Step]:
    return chain([Step("A", "adv", box(at)) for at in range(size)])


def pubs(counted: CountedOverlay, size: int) -> list[Step]:
    counted.hold("A", "sub", P)
    counted.hold("E", "sub", P)
    return chain([Step("E", "pub", point={"class": "p", "x": at}) for at in range(size)])


PLANS = [
    subs_of_one,
    subs_in_no_order,
    subs_of_many,
    overlapping_subs,
    subs_that_cover_each_other,
    holes,
    handovers,
    advs,
    pubs,
]


def submitted(plan: Callable[[CountedOverlay, int], list[Step]], size: int) -> TurnCounter:
    counted = CountedOverlay()
    steps = plan(counted, size)
    ended = counted.go(lambda: counted.world.submit("E", steps))
    assert ended.committed, ended
    return counted.turns


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_of_the_largest_size_is_carried_out_in_short_turns(
    plan: Callable[[CountedOverlay, int], list[Step]],
) -> None:
    """And the work grows no faster than the plan."""
    small, large = submitted(plan, STEP_LIMIT // 4), submitted(plan, STEP_LIMIT)
    assert large.longest.steps <= TURN_STEPS, large.longest
    assert large.steps < 4.5 * small.steps


# --- dynamic transactions ---


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni"])
def test_operations_that_queue_behind_a_tcm_are_done_in_short_turns(engine: str) -> None:
    """Done in one turn, each inside the call of the one before, 300 of them ended the broker."""
    counted = CountedOverlay()
    counted.hold("A", "sub", CONTROL)
    steps = [Step("E", "tcm", point={"class": "ctl"})]
    steps += [Step("E", "sub", box(at)) for at in range(1000)]
    ended = counted.go(lambda: counted.world.begin(engine, "E", steps))
    assert ended.committed
    assert counted.turns.longest.steps <= TURN_STEPS, counted.turns.longest


def test_operations_that_a_decision_releases_are_done_in_short_turns() -> None:
    counted = CountedOverlay()
    world = counted.world
    clients = [client for at, client in enumerate(counted.more_clients()) if at % 3 < 2]
    world.sim.run()
    # While a link is silent a D-TX stays undecided, and operations on what it read have to wait.
    world.sim.cut("B2", "B3", 5.0)
    tx = world.begin("d-tx", "E", [Step("E", "pub", point={"class": "p", "x": 1})])
    world.sim.run(until=world.sim.now + 0.5)
    for at in range(1000):
        world.plain(clients[at % len(clients)], "sub", box(1, 2000 - at))
    world.sim.run(until=world.sim.now + 0.5)
    assert sum(len(broker.held) for broker in world.sim.brokers.values()) == 1000
    counted.go(lambda: tx)
    assert counted.turns.longest.steps <= TURN_STEPS, counted.turns.longest
    assert not any(broker.held for broker in world.sim.brokers.values())


def test_the_votes_on_two_large_transactions_take_short_turns() -> None:
    """Comparing each of a thousand reads with each of a thousand writes would be too long."""
    counted = CountedOverlay()
    world = counted.world
    world.sim.cut("B2", "B3", 5.0)
    advs = [Step("M", "adv", box(3 * at, 1)) for at in range(500)]
    other = world.begin("d-tx", "M", advs)
    world.sim.run(until=world.sim.now + 1.0)
    subs = [Step("E", "sub", box(3 * at + 1500, 1)) for at in range(1000)]
    assert counted.go(lambda: world.begin("d-tx", "E", subs)).committed
    assert world.committed(other)
    assert counted.turns.longest.steps <= TURN_STEPS, counted.turns.longest


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni"])
def test_an_abort_of_many_operations_takes_short_turns(engine: str) -> None:
    counted = CountedOverlay()
    world = counted.world
    steps = [Step("E", "sub", box(at)) for at in range(1000)]

    def begin() -> TxID:
        tx = world.begin(engine, "E", steps, commit=False)
        world.send(engine, "E", Abort(tx))
        return tx

    assert not counted.go(begin).committed
    assert counted.turns.longest.steps <= TURN_STEPS, counted.turns.longest
