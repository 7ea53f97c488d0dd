"""The checkers on handmade histories, and the cost of checking."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import networkx as nx
import pytest

from overlay.hosts.simulator import Tape
from overlay.identity import Lives
from overlay.messages import BrokerName
from overlay.trace import Record
from padres_tx import registry
from padres_tx.client_messages import Step
from proofs.checkers import AnomalyKind, check, is_promised
from proofs.checkers.tables import expected_tables
from proofs.history import ClientObservations, History, TableRow
from proofs.sim.program import FAULTS, SPACE, Shape
from proofs.sim.random_checks import RandomRunChecks
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import SimulatedOverlay
from tests.protocol.one_broker import OneLife

P = "[class,eq,'p']"
X1 = "[class,'p'],[x,1]"


class HandmadeNode:
    """Collects the records of one broker."""

    def __init__(self, name: str, records: list[Record]) -> None:
        self.name = name
        self._records = records
        self._seq = 0

    def __call__(self, kind: Any, **fields: Any) -> None:
        self._seq += 1
        record = Record(self._seq, self.name, kind, len(self._records), **fields)
        self._records.append(record)


class HandmadeRun:
    """Records of B1-B2 with a subscriber D at B2, and a publisher E at B1."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.b1, self.b2 = HandmadeNode("B1", self.records), HandmadeNode("B2", self.records)
        self.come("E", self.b1, self.b2)
        self.come("D", self.b2, self.b1)
        self.say("E", "adv", 1, self.b1, self.b2)
        self.say("D", "sub", 1, self.b2, self.b1)

    def come(self, client: str, edge: HandmadeNode, other: HandmadeNode) -> None:
        edge("begin", client=client, source=f"@{client}", outcome=edge.name)
        other("begin", client=client, source=edge.name, outcome=edge.name)

    def say(self, client: str, kind: str, number: int, *nodes: HandmadeNode, **fields: Any) -> None:
        source = f"@{client}"
        for at, node in enumerate(nodes):
            dests = (nodes[at + 1].name,) if at + 1 < len(nodes) else ()
            fields.setdefault("outcome", "+")
            node(
                "apply",
                op_id=f"{client}#{number}",
                op_kind=kind,
                client=client,
                filter=P,
                source=source,
                dests=dests,
                **fields,
            )
            source = node.name

    def publish(self, number: int, **fields: Any) -> None:
        what = {"op_id": f"E:0:{number}", "op_kind": "pub", "client": "E", "filter": X1, **fields}
        self.b1("publish", source="@E", **what)
        self.b1("match", source="@E", dests=("B2",), **what)
        self.b2("match", source="B1", dests=("@D",), **what)

    def deliver(self, number: int, **fields: Any) -> None:
        what = {"op_id": f"E:0:{number}", "op_kind": "pub", "client": "E", "filter": X1, **fields}
        self.b2("deliver", source="B1", dests=("@D",), **what)

    def tx(self, kind: str, outcome: str = "", *nodes: HandmadeNode, tx: str = "E:0:9") -> None:
        for node in nodes or (self.b1, self.b2):
            source, dests = ("@E", ("B2",)) if node is self.b1 else ("B1", ())
            node(kind, tx=tx, engine="d-tx", source=source, dests=dests, outcome=outcome)

    def kinds(self, **known: Any) -> list[AnomalyKind]:
        return [one.kind for one in check(History(self.records, **known))]


WHOSE = {"tx": "E:0:9", "engine": "d-tx"}


def test_a_plain_run_is_clean() -> None:
    run = HandmadeRun()
    run.publish(1)
    run.deliver(1)
    assert run.kinds() == []


def test_a_committed_publication_is_clean() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.publish(1, **WHOSE)
    run.tx("decide", "committed")
    run.deliver(1, **WHOSE)
    run.tx("end", "committed")
    assert run.kinds() == []


def test_a_delivery_before_the_decision_is_too_early() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.publish(1, **WHOSE)
    run.deliver(1, **WHOSE)
    run.tx("decide", "committed")
    run.tx("end", "committed")
    assert run.kinds() == ["partial"]


def test_a_delivery_of_an_aborted_publication() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.publish(1, **WHOSE)
    run.tx("decide", "aborted")
    run.deliver(1, **WHOSE)
    run.tx("end", "aborted")
    assert run.kinds() == ["partial"]


def test_a_publication_that_is_not_delivered() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.publish(1, **WHOSE)
    run.tx("decide", "committed")
    run.tx("end", "committed")
    assert run.kinds() == ["partial"]
    assert run.kinds(complete=False) == []


def test_two_outcomes() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.tx("decide", "committed", run.b1)
    run.tx("decide", "aborted", run.b2)
    run.tx("end", "committed")
    assert run.kinds() == ["split"]


def test_an_outcome_that_a_client_was_told_counts() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.tx("decide", "committed")
    run.tx("end", "committed")
    clients = ClientObservations()
    clients.outcomes["E:0:9"] = {"E": True, "D": False}
    assert run.kinds(clients=clients) == ["split"]


def test_no_outcome() -> None:
    run = HandmadeRun()
    run.tx("begin")
    assert run.kinds() == ["undecided"]
    assert run.kinds(complete=False) == []


def test_a_coordinator_that_never_learns_the_outcome() -> None:
    run = HandmadeRun()
    clients = ClientObservations()
    clients.note_begin("d-tx", ("E", 0, 7))
    assert run.kinds(clients=clients) == ["undecided"]


def test_a_publication_that_is_delivered_twice() -> None:
    run = HandmadeRun()
    run.publish(1)
    run.deliver(1)
    run.deliver(1)
    assert run.kinds() == ["duplicate"]


def test_a_publication_that_a_client_received_twice() -> None:
    run = HandmadeRun()
    run.publish(1)
    run.deliver(1)
    clients = ClientObservations()
    clients.received["D"] = ["E:0:1", "E:0:1"]
    assert run.kinds(clients=clients) == ["duplicate"]


def come_back(lives: Lives | None = None) -> list[AnomalyKind]:
    """The anomalies when E publishes, leaves, comes back and publishes with the same numbers."""
    world = SimulatedOverlay(nx.Graph([("B1", "B2")]), Tape(seed=1).choose)
    world.join("D", "B2")
    world.plain("D", "sub", SPACE)
    for _ in range(2):
        if lives is not None:
            world.sim.brokers[BrokerName("B1")].lives = lives
        world.numbers["E"] = 0
        world.join("E", "B1")
        world.plain("E", "adv", SPACE)
        world.sim.run()
        world.publish("E", {"class": "p", "x": 1})
        world.sim.run()
        world.crash("E")
        world.sim.run()
    assert [pub.seq for pub in world.got["D"]] == [3, 3]
    return [one.kind for one in check(History.from_simulator(world.sim, world.clients))]


def test_publications_of_two_lives_are_distinct() -> None:
    assert come_back() == []


def test_a_life_that_is_issued_twice_is_found() -> None:
    assert "duplicate" in come_back(OneLife())


def test_a_delivery_that_the_client_did_not_receive() -> None:
    run = HandmadeRun()
    run.publish(1)
    run.deliver(1)
    assert run.kinds(clients=ClientObservations()) == ["lost"]


def test_an_entry_that_an_aborted_transaction_has_left() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.say("D", "sub", 2, run.b2, run.b1, **WHOSE)
    run.tx("decide", "aborted")
    run.tx("end", "aborted")
    assert run.kinds() == []
    adv = TableRow("srt", "E", 1, "adv", P, "@E")
    sub = TableRow("prt", "D", 1, "sub", P, "B2")
    left = TableRow("prt", "D", 2, "sub", P, "B2")
    there = [adv._replace(hop="B1"), sub._replace(hop="@D")]
    assert run.kinds(tables={"B1": [adv, sub], "B2": there}) == []
    assert run.kinds(tables={"B1": [adv, sub, left], "B2": there}) == ["ghost"]
    assert run.kinds(tables={"B1": [adv], "B2": there}) == ["divergence"]


def test_a_subscription_that_was_not_forwarded_to_an_advertisement() -> None:
    run = HandmadeRun()
    run.come("F", run.b2, run.b1)
    run.say("F", "sub", 1, run.b2)
    assert run.kinds() == ["divergence"]


def test_two_operations_out_of_order() -> None:
    run = HandmadeRun()
    run.tx("begin")
    run.say("E", "sub", 2, run.b1, outcome="+", **WHOSE)
    what = {"op_id": "E:0:3", "op_kind": "pub", "client": "E", "filter": X1, **WHOSE}
    run.b1("publish", source="@E", after=("E#2",), **what)
    run.b2("match", source="B1", dests=("@D",), **what)
    run.b2("apply", source="B1", op_id="E#2", op_kind="sub", client="E", filter=P, **WHOSE)
    run.tx("decide", "aborted")
    run.tx("end", "aborted")
    assert run.kinds() == ["order"]


def test_routing_on_uncommitted_changes() -> None:
    run = HandmadeRun()
    for name in ("E:0:8", "E:0:9"):
        run.tx("begin", tx=name)
    run.b2("apply", tx="E:0:8", engine="d-tx", op_id="D#2", op_kind="usub", client="D", filter=P,
              source="@D", outcome="-1")  # fmt: skip
    what = {"op_id": "E:0:1", "op_kind": "pub", "client": "E", "filter": X1, **WHOSE}
    run.b1("publish", source="@E", **what)
    run.b1("match", source="@E", dests=("B2",), **what)
    run.b2("match", source="B1", version="E:0:8", **what)
    run.tx("decide", "aborted", tx="E:0:8")
    run.tx("decide", "committed")
    for name, outcome in (("E:0:8", "aborted"), ("E:0:9", "committed")):
        run.tx("end", outcome, tx=name)
    assert run.kinds() == ["dirty"]


def hand_over(run: HandmadeRun, *, one_sided: bool) -> None:
    """D's un-subscription commits while a publication is on its way to B2."""
    run.tx("begin")
    for node, source, dests in ((run.b2, "@D", ("B1",)), (run.b1, "B2", ())):
        node("apply", op_id="D#2", op_kind="usub", client="D", filter=P, source=source,
             dests=dests, outcome="-1", **WHOSE)  # fmt: skip
    what = {"op_id": "E:0:1", "op_kind": "pub", "client": "E", "filter": X1}
    run.b1("publish", source="@E", **what)
    run.b1("match", source="@E", dests=("B2",), **what)
    run.tx("decide", "committed")
    if one_sided:
        run.b2("match", source="B1", dests=("@D",), version="-E:0:9", **what)
        run.b2("deliver", source="B1", dests=("@D",), **what)
    else:
        run.b2("match", source="B1", version="E:0:9", **what)
    run.tx("end", "committed")


def test_a_plain_publication_on_one_side_of_a_commit_is_clean() -> None:
    run = HandmadeRun()
    hand_over(run, one_sided=True)
    assert run.kinds() == []


def test_a_plain_publication_on_both_sides_is_lost() -> None:
    run = HandmadeRun()
    hand_over(run, one_sided=False)
    (anomaly,) = check(History(run.records))
    assert (anomaly.kind, anomaly.engine, anomaly.tx) == ("handover", "d-tx", "E:0:9")
    assert "on both sides of E:0:9" in anomaly.story


@pytest.mark.parametrize("number", [1, 2])
def test_two_transactions_that_miss_each_other(number: int) -> None:
    """{sub} and {adv} of the same events, neither of which sees the other: write skew."""
    run = HandmadeRun()
    run.tx("begin", tx="E:0:8")
    if number == 2:
        run.tx("begin", tx="E:0:9")
    for node, source in ((run.b1, "@E"), (run.b2, "B1")):
        node("apply", tx="E:0:8", engine="d-tx", op_id="E#2", op_kind="adv", client="E",
             filter="[class,eq,'q']", source=source, outcome="+")  # fmt: skip
    if number == 1:
        run.tx("decide", "committed", tx="E:0:8")
        run.tx("begin", tx="E:0:9")
    version = "E:0:8" if number == 1 else ""
    run.b2("apply", op_id="D#2", op_kind="sub", client="D", filter="[class,eq,'q']", source="@D",
              outcome="+", dests=("B1",), version=version, **WHOSE)  # fmt: skip
    run.b1("apply", op_id="D#2", op_kind="sub", client="D", filter="[class,eq,'q']", source="B2",
              outcome="+", version=version, **WHOSE)  # fmt: skip
    if number == 2:
        run.tx("decide", "committed", tx="E:0:8")
    run.tx("decide", "committed")
    for name in ("E:0:8", "E:0:9"):
        run.tx("end", "committed", tx=name)
    assert run.kinds() == ([] if number == 1 else ["cycle"])


def test_the_promises_of_the_engines() -> None:
    assert is_promised("cycle", "d-tx") and not is_promised("cycle", "s-tx")
    assert is_promised("handover", "d-tx") and not is_promised("handover", "d-tx-ni")
    for engine in ("d-tx", "d-tx-ni", "s-tx"):
        assert is_promised("split", engine)
    assert not is_promised("order", "bl-wait")
    for engine in registry.names():
        assert is_promised("divergence", engine) and is_promised("duplicate", engine)
    assert is_promised("split", "not-installed") and not is_promised("cycle", "not-installed")


def test_strict_reports_what_an_engine_does_not_promise() -> None:
    """D-TX-NI may let others see a part of its transactions."""
    shape = Shape("d-tx-ni")
    seen: Counter[str] = Counter()
    for seed in range(12):
        run = RandomRun(shape, shape.tape(seed))
        run.go()
        history = run.history()
        assert check(history) == []
        seen.update(one.kind for one in check(history, strict=True))
    assert seen["handover"] and seen.keys() <= {"dirty", "cycle", "handover"}


@pytest.mark.parametrize("seed", range(8))
def test_the_expected_tables_are_those_of_the_oracle(seed: int) -> None:
    shape = Shape(("d-tx", "s-tx")[seed % 2], faults=FAULTS)
    run = RandomRun(shape, shape.tape(seed))
    run.go()
    oracle = RandomRunChecks(run).oracle()
    for node, lines in expected_tables(run.history()).items():
        for table, naive in (("srt", oracle.srt(node)), ("prt", oracle.prt(node))):
            wanted = sorted((line.client, line.kind, line.filter, line.hop) for line in naive)
            found = sorted(line[1:] for line in lines.elements() if line[0] == table)
            assert found == wanted


# --- cost ---


def long_run(rounds: int) -> History:
    """A stream and its handovers, one after the other, this many times, with three clients."""
    tree: nx.Graph[str] = nx.Graph([("B1", "B2"), ("B2", "B3")])
    world = SimulatedOverlay(tree, Tape(seed=1).choose)
    for client, edge in (("E", "B1"), ("D", "B2"), ("A", "B3")):
        world.join(client, edge)
        world.plain(client, "adv", SPACE)
        world.sim.run()
    for at in range(rounds):
        worker = "DA"[at % 2]
        world.begin("d-tx", worker, [Step(worker, "sub", SPACE)])
        for n in range(3):
            world.publish("E", {"class": "p", "x": n, "n": at})
        world.begin("d-tx", "E", [Step("E", "pub", point={"class": "p", "x": 1, "n": -at})])
        world.sim.run()
        world.begin("d-tx", worker, [Step(worker, "usub", SPACE)])
        world.sim.run()
    return History.from_simulator(world.sim, world.clients)


def calls(history: History) -> int:
    """The number of function calls, Python's and C's, that checking takes."""
    check(history)  # So that the texts are parsed already.
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        anomalies = check(history)
    finally:
        sys.setprofile(None)
    assert anomalies == []
    return count


def test_the_work_grows_nearly_linearly_with_the_trace() -> None:
    small, large = long_run(15), long_run(60)
    records = [sum(map(len, history.events.values())) for history in (small, large)]
    growth = calls(large) / calls(small)
    assert growth < 1.3 * records[1] / records[0]
