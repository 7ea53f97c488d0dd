"""What an operation waits for, and what it need not: the argument of `protocol.dynamic`, tried.

Only what makes others act is acknowledged. The order of operations at brokers must hold all the
same, with links as slow as they like; and where the argument's conditions are taken away, it fails.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import Any, ClassVar

import networkx as nx
import pytest

from bench.micro.path import MAX_OVER_STATIC, counted
from overlay.effects import Effect
from overlay.hosts.simulator import Tape
from overlay.messages import Hop, Operation
from overlay.trace import Record
from padres_tx.client_messages import Operated, Step, tx_text
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.engines.d_tx_ni.broker import DTxNI
from padres_tx.protocol.dynamic import Dynamic
from padres_tx.protocol.dynamic_messages import AnyDynamicMessage, TxOperation
from padres_tx.registry import broker_factories
from proofs.checkers import check
from proofs.faults.paper_rules import Overtaken
from proofs.history import History
from proofs.sim.simulated_overlay import SimulatedOverlay
from tests.protocol.slow_links import SlowLinks
from tests.protocol.steps import adv, box, chain, pub, sub, tcm, usub
from topologies import load
from topologies.generators import chain as chain_topology

CLIENTS = ("C0", "C1", "C2", "C3")

#: Runs of each random test; PADRES_TX_SEEDS gives more.
RUNS = max(10, int(os.environ.get("PADRES_TX_SEEDS", "500")) // 10)


def with_engine(engine: type[Dynamic]) -> dict[str, Any]:
    return {**broker_factories(), engine.name: engine}


# --- how many delays ---


@pytest.mark.parametrize("name", ["one", "three", "five", "nine"])
def test_d_tx_takes_at_most_three_times_the_delays_of_s_tx(name: str) -> None:
    tree = load(name)
    static, dynamic = counted(tree, "s-tx"), counted(tree, "d-tx")
    # On one broker there is nothing to wait for but clients, and only D-TX waits for those.
    most = 4.0 if name == "one" else MAX_OVER_STATIC
    assert dynamic.delays <= most * static.delays


def test_on_long_ways_d_tx_takes_two_rounds_more_than_any_protocol_must() -> None:
    """Going to who acts and back, and asking all for their votes."""
    for length in (3, 6, 12):
        row = counted(chain_topology(length), "d-tx")
        assert row.delays <= row.least_delays + 4 * length


class Counting(DTx):
    """Counts the requests that this engine makes of brokers."""

    requests: ClassVar[Counter[str]] = Counter()

    def send(self, hops: tuple[Hop, ...], message: AnyDynamicMessage) -> list[Effect]:
        if isinstance(message, TxOperation) and message.req:
            kind = "tcm" if message.operation is None else message.operation.kind
            self.requests[kind] += 1
        return super().send(hops, message)


def test_only_what_makes_others_act_is_acknowledged() -> None:
    Counting.requests.clear()
    world = SimulatedOverlay(chain(3), Tape(seed=1).choose, factories=with_engine(Counting))
    for client, edge in (("E", "B1"), ("W", "B3")):
        world.join(client, edge)
    world.plain("W", "sub", box(class_="p"))
    world.sim.run()
    tx = world.begin(
        "d-tx",
        "E",
        [
            adv("E", box(class_="p")),
            sub("E", box(class_="p")),
            pub("E", class_="p"),
            usub("E", box(class_="p")),
            tcm("E", class_="p"),
        ],
    )
    world.sim.run()
    assert world.committed(tx)
    assert Counting.requests == {"adv": 2, "tcm": 2}
    assert sum(isinstance(told, Operated) for told in world.log["E"]) == 5


# --- the order at brokers ---


class Nested:
    """One transaction in which several clients act side by side, and ask others in turn.

    Everybody has advertised beforehand, so an operation comes to a broker on its own way only.
    """

    def __init__(self, seed: int, engine: type[Dynamic]) -> None:
        self.choose = choose = Tape(seed=seed).choose
        tree: nx.Graph[str] = nx.Graph()
        tree.add_node("B1")
        for n in range(2, 3 + choose(5)):
            tree.add_edge(f"B{n}", f"B{1 + choose(n - 1)}")
        self.world = world = SlowLinks(tree, choose, with_engine(engine))
        for client in CLIENTS:
            world.join(client, sorted(tree)[choose(len(tree))])
        for client in CLIENTS:
            world.hold(
                (client, "adv", box(class_="ctl")),
                (client, "adv", box(class_="p")),
                (client, "sub", box(class_="ctl", to=client)),
                (client, "sub", box(class_="ctl", to="all")),
            )
            world.reactions[client] = lambda point, client=client: self.steps(
                client, int(point["depth"])
            )
        #: So that what asks for more comes to an end.
        self.left = 8
        world.sim.begin_choosing()
        self.tx = world.begin(engine.name, "C0", [*self.ask("C0", 2), *self.steps("C0", 3)])
        world.sim.run()

    def steps(self, client: str, depth: int) -> list[Step]:
        found: list[Step] = []
        for _ in range(1 + self.choose(3)):
            filter = box(class_="p", x=(self.choose(3), 3))
            match self.choose(6):
                case 0 | 1:
                    found.append(sub(client, filter))
                case 2:
                    found += [sub(client, filter), usub(client, filter)]
                case 3:
                    found.append(pub(client, class_="p", x=self.choose(4)))
                case 4:
                    found.append(adv(client, filter))
                case 5 if depth and self.left:
                    found += self.ask(client, depth - 1)
        return found

    def ask(self, client: str, depth: int) -> list[Step]:
        self.left -= 1
        to = ("all", *CLIENTS)[self.choose(1 + len(CLIENTS))]
        return [tcm(client, class_="ctl", to=to, depth=depth, n=self.left)]

    def anomaly(self) -> str:
        if self.tx not in self.world.ended:
            return "undecided"
        if not self.world.committed(self.tx):
            return f"aborted: {self.world.ended[self.tx]}"
        return out_of_order([r for r in self.world.sim.records if r.tx == tx_text(self.tx)])


def out_of_order(records: list[Record]) -> str:
    """Two operations of a transaction that a broker has handled in the wrong order, if any."""
    home = ("publish", "apply")
    entered = {r.op_id: r for r in records if r.kind in home and r.source == "@" + r.client}
    opened = defaultdict(list)
    for op_id, record in entered.items():
        opened[record.trigger].append(op_id)

    def with_triggered(op_id: str) -> set[str]:
        """An operation with all that clients did because of it (Trigger*)."""
        return {op_id}.union(*(with_triggered(other) for other in opened[op_id]))

    before: dict[str, set[str]] = {}

    def all_before(op_id: str) -> set[str]:
        if op_id not in before:
            record = entered[op_id]
            found = {record.trigger, *all_before(record.trigger)} if record.trigger else set()
            for other in record.after:
                found |= with_triggered(other) | all_before(other)
            before[op_id] = found
        return before[op_id]

    handled: dict[str, dict[str, int]] = defaultdict(dict)
    for at, record in enumerate(records):
        if record.kind in ("apply", "match"):
            handled[record.node].setdefault(record.op_id, at)
    for node, order in handled.items():
        for later, at in order.items():
            for earlier in sorted(all_before(later)):
                if order.get(earlier, -1) > at:
                    return f"{node} has handled {later} before {earlier}"
    return ""


class Impatient(DTx):
    """Takes a tcm for done when it is under way."""

    def _publish(self, *args: Any, **more: Any) -> list[Effect]:
        effects = super()._publish(*args, **more)
        task = args[3]
        if task.frame is not None and task.tcm and task.waiting:
            task.frame.busy = False
            effects += self.go_on(task.tx, task.frame, args[4])
        return effects


def test_brokers_handle_operations_in_their_order_however_slow_the_links() -> None:
    records = 0
    for seed in range(RUNS):
        run = Nested(seed, DTx)
        assert run.anomaly() == "", f"seed {seed}"
        records += len(run.world.sim.records)
    assert records > 50 * RUNS, "too little happened"


def test_who_does_not_wait_for_a_tcm_gets_the_order_wrong() -> None:
    """The check above can fail."""
    assert any("before" in Nested(seed, Impatient).anomaly() for seed in range(RUNS))


# --- what advertisements attract ---


class Unanswered(DTx):
    """Acknowledges advertisements as little as subscriptions."""

    def is_answered(self, operation: Operation) -> bool:
        return False


def attracted(engine: type[Dynamic], seed: int) -> list[dict[str, Any]]:
    """What a far subscriber gets of a publication right behind its advertisement."""
    choose = Tape(seed=seed).choose
    world = SlowLinks(chain(4), choose, with_engine(engine))
    world.join("E", "B1")
    world.join("W", "B4")
    world.hold(("W", "sub", box(class_="p")))
    world.sim.begin_choosing()
    tx = world.begin("d-tx", "E", [adv("E", box(class_="p")), pub("E", class_="p", n=1)])
    world.sim.run()
    assert world.committed(tx)
    world.oracle.operate("E", "adv", box(class_="p"))
    world.check_at_rest()
    return world.received("W")


def test_a_publication_finds_what_its_advertisement_has_attracted() -> None:
    assert all(attracted(DTx, seed) == [{"class": "p", "n": 1}] for seed in range(RUNS))


def test_without_answers_to_advertisements_it_does_not() -> None:
    assert any(attracted(Unanswered, seed) == [] for seed in range(RUNS))


# --- where operations may have to wait, on the shared state ---


def behind_what_waits(engine: type[Dynamic]) -> list[dict[str, Any]]:
    """C subscribes and then lets G publish; the subscription has to wait half the way."""
    star: nx.Graph[str] = nx.Graph([("B2", "B1"), ("B2", "B3"), ("B2", "B4")])
    world = SimulatedOverlay(star, lambda n: 0, factories=with_engine(engine))
    for client, edge in (("C", "B3"), ("G", "B1"), ("Q", "B2")):
        world.join(client, edge)
    held = [
        ("C", "adv", box(class_="ask")),
        ("G", "sub", box(class_="ask")),
        ("G", "adv", box(class_="p")),
        ("Q", "adv", box(class_="p")),
    ]
    for client, kind, filter in held:
        world.plain(client, kind, filter)
        world.oracle.operate(client, kind, filter)
        world.sim.run()
    world.reactions["G"] = lambda point: [pub("G", class_="p", n=2)]
    # B4's vote is slow, so what conflicts has to wait at B2 for some time.
    world.sim.cut("B2", "B4", 0.05)
    isolated = world.begin("d-tx", "Q", [pub("Q", class_="p", n=1)])
    world.sim.run(until=world.sim.now + 0.01)
    tx = world.begin("d-tx-ni", "C", [sub("C", box(class_="p")), tcm("C", class_="ask")])
    world.sim.run()
    assert world.committed(isolated) and world.committed(tx)
    world.oracle.operate("C", "sub", box(class_="p"))
    world.check_at_rest()
    return world.received("C")


def test_what_waits_for_a_decision_is_not_overtaken() -> None:
    assert behind_what_waits(DTxNI) == [{"class": "p", "n": 2}]


def test_with_the_answers_of_d_tx_it_would_be() -> None:
    assert behind_what_waits(Overtaken) == []


@pytest.mark.parametrize("how", ["plain", "s-tx", "s-tx of two brokers"])
def test_what_is_held_half_the_way_is_not_read_in_part(how: str) -> None:
    """F subscribes at B3 and is held at B2, for somebody else; both sides of it publish in one."""
    star: nx.Graph[str] = nx.Graph([("B2", "B1"), ("B2", "B3"), ("B2", "B4")])
    world = SimulatedOverlay(star, lambda n: 0)
    for client, edge in (("F", "B3"), ("C", "B3"), ("P", "B1"), ("Q", "B2")):
        world.join(client, edge)
    for client, kind, name in (
        ("C", "adv", "ask"),
        ("P", "sub", "ask"),
        *((client, "adv", "p") for client in "CPQ"),
    ):
        world.plain(client, kind, box(class_=name))
        world.sim.run()
    world.reactions["P"] = lambda point: [pub("P", class_="p", n=2)]
    world.sim.cut("B2", "B4", 0.05)
    other = world.begin("d-tx", "Q", [pub("Q", class_="p", n=0)])
    world.sim.run(until=world.sim.now + 0.01)
    if how == "plain":
        world.plain("F", "sub", box(class_="p"))
    else:
        steps = [sub("F", box(class_="p")), sub("Q", box(class_="apart"))]
        world.submit("F", steps if how == "s-tx of two brokers" else steps[:1])
    world.sim.run(until=world.sim.now + 0.01)
    assert world.sim.brokers["B2"].held
    tx = world.begin("d-tx", "C", [pub("C", class_="p", n=1), tcm("C", class_="ask")])
    world.sim.run()
    assert world.committed(other)
    assert len(world.received("F")) == (2 if world.committed(tx) else 0)
    assert all(broker.at_rest for broker in world.sim.brokers.values())
    again = world.begin("d-tx", "C", [pub("C", class_="p", n=1), tcm("C", class_="ask")])
    world.sim.run()
    assert world.committed(again), "it is done everywhere now"


def test_what_a_client_has_said_before_and_has_to_wait_is_not_overtaken() -> None:
    """Numbers tell which word is the last: one that waits has none yet, and comes first."""
    world = SimulatedOverlay(chain(2), lambda n: 0)
    world.join("C", "B1")
    world.plain("C", "adv", box(class_="p"))
    world.sim.run()
    world.sim.cut("B1", "B2", 0.05)
    world.begin("d-tx", "C", [pub("C", class_="p", x=0)])
    world.sim.run(until=world.sim.now + 0.01)
    world.plain("C", "uadv", box(class_="p"))
    world.sim.run(until=world.sim.now + 0.01)
    assert world.sim.brokers["B1"].held
    tx = world.submit("C", [adv("C", box(class_="p", x=2))])
    world.sim.run()
    assert world.ended[tx].code == "conflict"
    assert check(History.from_simulator(world.sim, world.clients)) == []
    again = world.submit("C", [adv("C", box(class_="p", x=2))])
    world.sim.run()
    assert world.committed(again)
    assert check(History.from_simulator(world.sim, world.clients)) == []
