"""The checkers on histories that are written down by hand, and what they cost."""

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
from proofs.history import Clients, History, Row
from proofs.sim.program import FAULTS, SPACE, Shape
from proofs.sim.random_checks import RandomRunChecks
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import SimulatedOverlay
from tests.protocol.one_broker import OneLife

P = "[class,eq,'p']"
X1 = "[class,'p'],[x,1]"


class Node:
    """Writes records of one broker down."""

    def __init__(self, name: str, records: list[Record]) -> None:
        self.name = name
        self._records = records
        self._seq = 0

    def __call__(self, kind: Any, **fields: Any) -> None:
        self._seq += 1
        record = Record(self._seq, self.name, kind, len(self._records), **fields)
        self._records.append(record)


class Script:
    """Records of B1-B2 with a subscriber D at B2, and a publisher E at B1."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.b1, self.b2 = Node("B1", self.records), Node("B2", self.records)
        self.come("E", self.b1, self.b2)
        self.come("D", self.b2, self.b1)
        self.say("E", "adv", 1, self.b1, self.b2)
        self.say("D", "sub", 1, self.b2, self.b1)

    def come(self, client: str, edge: Node, other: Node) -> None:
        edge("begin", client=client, source=f"@{client}", outcome=edge.name)
        other("begin", client=client, source=edge.name, outcome=edge.name)

    def say(self, client: str, kind: str, number: int, *nodes: Node, **fields: Any) -> None:
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

    def tx(self, kind: str, outcome: str = "", *nodes: Node, tx: str = "E:0:9") -> None:
        for node in nodes or (self.b1, self.b2):
            source, dests = ("@E", ("B2",)) if node is self.b1 else ("B1", ())
            node(kind, tx=tx, engine="d-tx", source=source, dests=dests, outcome=outcome)

    def kinds(self, **known: Any) -> list[AnomalyKind]:
        return [one.kind for one in check(History(self.records, **known))]


WHOSE = {"tx": "E:0:9", "engine": "d-tx"}


def test_a_plain_run_is_clean() -> None:
    script = Script()
    script.publish(1)
    script.deliver(1)
    assert script.kinds() == []


def test_a_committed_publication_is_clean() -> None:
    script = Script()
    script.tx("begin")
    script.publish(1, **WHOSE)
    script.tx("decide", "committed")
    script.deliver(1, **WHOSE)
    script.tx("end", "committed")
    assert script.kinds() == []


def test_a_delivery_before_the_decision_is_too_early() -> None:
    script = Script()
    script.tx("begin")
    script.publish(1, **WHOSE)
    script.deliver(1, **WHOSE)
    script.tx("decide", "committed")
    script.tx("end", "committed")
    assert script.kinds() == ["partial"]


def test_a_delivery_of_what_was_aborted() -> None:
    script = Script()
    script.tx("begin")
    script.publish(1, **WHOSE)
    script.tx("decide", "aborted")
    script.deliver(1, **WHOSE)
    script.tx("end", "aborted")
    assert script.kinds() == ["partial"]


def test_a_publication_that_is_not_handed_over() -> None:
    script = Script()
    script.tx("begin")
    script.publish(1, **WHOSE)
    script.tx("decide", "committed")
    script.tx("end", "committed")
    assert script.kinds() == ["partial"]
    assert script.kinds(complete=False) == []


def test_two_outcomes() -> None:
    script = Script()
    script.tx("begin")
    script.tx("decide", "committed", script.b1)
    script.tx("decide", "aborted", script.b2)
    script.tx("end", "committed")
    assert script.kinds() == ["split"]


def test_what_a_client_was_told_is_an_outcome() -> None:
    script = Script()
    script.tx("begin")
    script.tx("decide", "committed")
    script.tx("end", "committed")
    clients = Clients()
    clients.outcomes["E:0:9"] = {"E": True, "D": False}
    assert script.kinds(clients=clients) == ["split"]


def test_no_outcome() -> None:
    script = Script()
    script.tx("begin")
    assert script.kinds() == ["undecided"]
    assert script.kinds(complete=False) == []


def test_a_coordinator_that_is_never_told() -> None:
    script = Script()
    clients = Clients()
    clients.asks("d-tx", ("E", 0, 7))
    assert script.kinds(clients=clients) == ["undecided"]


def test_twice_to_one_client() -> None:
    script = Script()
    script.publish(1)
    script.deliver(1)
    script.deliver(1)
    assert script.kinds() == ["duplicate"]


def test_a_client_that_got_something_twice_says_so() -> None:
    script = Script()
    script.publish(1)
    script.deliver(1)
    clients = Clients()
    clients.received["D"] = ["E:0:1", "E:0:1"]
    assert script.kinds(clients=clients) == ["duplicate"]


def come_back(lives: Lives | None = None) -> list[AnomalyKind]:
    """E publishes, leaves, comes back and publishes again, with the same numbers; the anomalies."""
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


def test_publications_of_two_lives_are_told_apart() -> None:
    assert come_back() == []


def test_a_life_that_is_issued_twice_shows() -> None:
    assert "duplicate" in come_back(OneLife())


def test_a_client_that_did_not_get_what_it_was_handed() -> None:
    script = Script()
    script.publish(1)
    script.deliver(1)
    assert script.kinds(clients=Clients()) == ["lost"]


def test_what_an_aborted_transaction_has_left_in_a_table() -> None:
    script = Script()
    script.tx("begin")
    script.say("D", "sub", 2, script.b2, script.b1, **WHOSE)
    script.tx("decide", "aborted")
    script.tx("end", "aborted")
    assert script.kinds() == []
    adv = Row("srt", "E", 1, "adv", P, "@E")
    sub = Row("prt", "D", 1, "sub", P, "B2")
    left = Row("prt", "D", 2, "sub", P, "B2")
    there = [adv._replace(hop="B1"), sub._replace(hop="@D")]
    assert script.kinds(tables={"B1": [adv, sub], "B2": there}) == []
    assert script.kinds(tables={"B1": [adv, sub, left], "B2": there}) == ["ghost"]
    assert script.kinds(tables={"B1": [adv], "B2": there}) == ["divergence"]


def test_a_subscription_that_did_not_go_where_it_is_wanted() -> None:
    script = Script()
    script.come("F", script.b2, script.b1)
    script.say("F", "sub", 1, script.b2)
    assert script.kinds() == ["divergence"]


def test_two_operations_out_of_order() -> None:
    script = Script()
    script.tx("begin")
    script.say("E", "sub", 2, script.b1, outcome="+", **WHOSE)
    what = {"op_id": "E:0:3", "op_kind": "pub", "client": "E", "filter": X1, **WHOSE}
    script.b1("publish", source="@E", after=("E#2",), **what)
    script.b2("match", source="B1", dests=("@D",), **what)
    script.b2("apply", source="B1", op_id="E#2", op_kind="sub", client="E", filter=P, **WHOSE)
    script.tx("decide", "aborted")
    script.tx("end", "aborted")
    assert script.kinds() == ["order"]


def test_routing_on_what_is_not_committed() -> None:
    script = Script()
    for name in ("E:0:8", "E:0:9"):
        script.tx("begin", tx=name)
    script.b2("apply", tx="E:0:8", engine="d-tx", op_id="D#2", op_kind="usub", client="D", filter=P,
              source="@D", outcome="-1")  # fmt: skip
    what = {"op_id": "E:0:1", "op_kind": "pub", "client": "E", "filter": X1, **WHOSE}
    script.b1("publish", source="@E", **what)
    script.b1("match", source="@E", dests=("B2",), **what)
    script.b2("match", source="B1", version="E:0:8", **what)
    script.tx("decide", "aborted", tx="E:0:8")
    script.tx("decide", "committed")
    for name, outcome in (("E:0:8", "aborted"), ("E:0:9", "committed")):
        script.tx("end", outcome, tx=name)
    assert script.kinds() == ["dirty"]


def hand_over(script: Script, *, one_sided: bool) -> None:
    """D's un-subscription commits while a publication is on its way to B2."""
    script.tx("begin")
    for node, source, dests in ((script.b2, "@D", ("B1",)), (script.b1, "B2", ())):
        node("apply", op_id="D#2", op_kind="usub", client="D", filter=P, source=source,
             dests=dests, outcome="-1", **WHOSE)  # fmt: skip
    what = {"op_id": "E:0:1", "op_kind": "pub", "client": "E", "filter": X1}
    script.b1("publish", source="@E", **what)
    script.b1("match", source="@E", dests=("B2",), **what)
    script.tx("decide", "committed")
    if one_sided:
        script.b2("match", source="B1", dests=("@D",), version="-E:0:9", **what)
        script.b2("deliver", source="B1", dests=("@D",), **what)
    else:
        script.b2("match", source="B1", version="E:0:9", **what)
    script.tx("end", "committed")


def test_a_plain_publication_falls_on_one_side_of_a_commit() -> None:
    script = Script()
    hand_over(script, one_sided=True)
    assert script.kinds() == []


def test_a_plain_publication_on_both_sides_is_lost() -> None:
    script = Script()
    hand_over(script, one_sided=False)
    (anomaly,) = check(History(script.records))
    assert (anomaly.kind, anomaly.engine, anomaly.tx) == ("handover", "d-tx", "E:0:9")
    assert "on both sides of E:0:9" in anomaly.story


@pytest.mark.parametrize("number", [1, 2])
def test_two_transactions_that_miss_each_other(number: int) -> None:
    """{sub} and {adv} of the same events, each unseen by the other: write skew."""
    script = Script()
    script.tx("begin", tx="E:0:8")
    if number == 2:
        script.tx("begin", tx="E:0:9")
    for node, source in ((script.b1, "@E"), (script.b2, "B1")):
        node("apply", tx="E:0:8", engine="d-tx", op_id="E#2", op_kind="adv", client="E",
             filter="[class,eq,'q']", source=source, outcome="+")  # fmt: skip
    if number == 1:
        script.tx("decide", "committed", tx="E:0:8")
        script.tx("begin", tx="E:0:9")
    version = "E:0:8" if number == 1 else ""
    script.b2("apply", op_id="D#2", op_kind="sub", client="D", filter="[class,eq,'q']", source="@D",
              outcome="+", dests=("B1",), version=version, **WHOSE)  # fmt: skip
    script.b1("apply", op_id="D#2", op_kind="sub", client="D", filter="[class,eq,'q']", source="B2",
              outcome="+", version=version, **WHOSE)  # fmt: skip
    if number == 2:
        script.tx("decide", "committed", tx="E:0:8")
    script.tx("decide", "committed")
    for name in ("E:0:8", "E:0:9"):
        script.tx("end", "committed", tx=name)
    assert script.kinds() == ([] if number == 1 else ["cycle"])


def test_who_promises_what() -> None:
    assert is_promised("cycle", "d-tx") and not is_promised("cycle", "s-tx")
    assert is_promised("handover", "d-tx") and not is_promised("handover", "d-tx-ni")
    for engine in ("d-tx", "d-tx-ni", "s-tx"):
        assert is_promised("split", engine)
    assert not is_promised("order", "bl-wait")
    for engine in registry.names():
        assert is_promised("divergence", engine) and is_promised("duplicate", engine)
    assert is_promised("split", "not-installed") and not is_promised("cycle", "not-installed")


def test_strict_tells_what_an_engine_does_not_promise() -> None:
    """D-TX-NI lets others see it half done, and is allowed to."""
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
def test_the_tables_that_words_come_to_are_those_of_the_oracle(seed: int) -> None:
    shape = Shape(("d-tx", "s-tx")[seed % 2], faults=FAULTS)
    run = RandomRun(shape, shape.tape(seed))
    run.go()
    oracle = RandomRunChecks(run).oracle()
    for node, lines in expected_tables(run.history()).items():
        for table, naive in (("srt", oracle.srt(node)), ("prt", oracle.prt(node))):
            wanted = sorted((line.client, line.kind, line.filter, line.hop) for line in naive)
            found = sorted(line[1:] for line in lines.elements() if line[0] == table)
            assert found == wanted


# --- what they cost ---


def long_run(rounds: int) -> History:
    """A stream, and handovers of it one after the other, so many times; three clients at once."""
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
    """The calls of functions, ours and the interpreter's, that checking takes."""
    check(history)  # From now on its texts are parsed.
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


def test_the_work_grows_with_the_trace_and_hardly_faster() -> None:
    small, large = long_run(15), long_run(60)
    records = [sum(map(len, history.events.values())) for history in (small, large)]
    growth = calls(large) / calls(small)
    assert growth < 1.3 * records[1] / records[0]
