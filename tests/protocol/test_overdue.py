"""A side that is cut off at a deadline: before its yes it ends the transaction, after it tells so.

The broker is B2. The coordinator E1 is behind B1; D and A are here, and B3 is behind.
"""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from overlay.errors import ProtocolError
from overlay.messages import BrokerName, Done, Operation, Pub, Reachability, client_hop
from padres_tx.client_messages import DEADLINE_LIMIT_S, Ended, Finish, InDoubt, Tcm, tx_text
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    Acked,
    Decide,
    Decided,
    Fence,
    Forget,
    Init,
    Prepare,
    TxOperation,
    Vote,
)
from padres_tx.protocol.static_state import Admitted, DecidePlan, Plan
from padres_tx.protocol.two_phase import OVERDUE_AFTER_S
from proofs.checkers import check
from proofs.faults.absent_broker_bugs import (
    LeavesOutTheAbsent,
    ReordersForAbsentNeighbours,
    WaitsForNoBroker,
)
from proofs.history import History
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from tests.protocol.one_broker import OneBroker, Said, of_kind, to_whom
from tests.protocol.steps import adv, box, pub, sub, uadv

DYNAMIC = ["d-tx", "d-tx-ni"]
P = box(class_="p")
TX = ("E1", 0, 1)
LIMIT_S = 3.0


def middle(engine: str) -> OneBroker:
    one = OneBroker(engine)
    one.here("D", "A")
    one.behind("B1", "E1")
    one.knows("B1", "E1", "adv", P)
    one.holds("D", "sub", P)
    return one


def pub_of_e1() -> Pub:
    return Pub("E1", 7, {"class": "p"})


def called(engine: str) -> tuple[OneBroker, int, int]:
    """A tcm has come to D; with its frame, and the request that B1 waits for."""
    one = middle(engine)
    one.hear("B1", Init(TX, 1, (), LIMIT_S))
    said = one.hear("B1", TxOperation(TX, 9, pub=pub_of_e1(), tcm=True))
    [told] = of_kind(said, Tcm)
    return one, told.frame, 9


def finished(engine: str) -> OneBroker:
    """D has done its part, and B1 knows."""
    one, frame, req = called(engine)
    one.operate(TX, sub("D", box(class_="q")), frame=frame, client="D")
    said = one.acknowledged(one.say("D", Finish(TX, frame)))
    assert Said("B1", Acked(TX, req, 1)) in said
    return one


def voted() -> OneBroker:
    """And the broker has said yes."""
    one = finished("d-tx")
    said = one.hear("B1", Prepare(TX))
    said += one.hear("B3", Vote(TX))
    assert Said("B1", Vote(TX)) in said
    return one


def timer(engine: str) -> str:
    return f"{engine}/{tx_text(TX)}"


# --- every broker knows the deadline ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_broker_acts_on_a_deadline_some_time_after_the_one_that_decides(engine: str) -> None:
    one = middle(engine)
    said = one.hear("B1", Init(TX, 1, (), LIMIT_S))
    assert one.timers == {timer(engine): LIMIT_S + OVERDUE_AFTER_S}
    assert of_kind(said, Init, "B3") == [Init(TX, 1, (), LIMIT_S)]
    one.hear("B1", Decide(TX, False, "aborted", ""))
    assert one.timers == {}


def test_a_fence_brings_the_deadline_too() -> None:
    one = middle("d-tx")
    one.hear("B1", Fence(TX, 1, LIMIT_S))
    assert one.timers == {timer("d-tx"): LIMIT_S + OVERDUE_AFTER_S}
    said = one.ring(timer("d-tx"))
    assert of_kind(said, Decide, "B3") and of_kind(said, AbortRequest, "B1")
    assert not one.broker.engines["d-tx"].reserves(client_hop("D"), _plain("sub"))


def _plain(kind: Any) -> Operation:
    return Operation(50, kind, "D", 0, P)


@pytest.mark.parametrize("deadline_s", [-1.0, float("nan"), DEADLINE_LIMIT_S * 2])
def test_a_neighbour_cannot_bring_any_deadline(deadline_s: float) -> None:
    with pytest.raises(ProtocolError):
        middle("d-tx").hear("B1", Init(TX, 1, (), deadline_s))
    with pytest.raises(ProtocolError):
        middle("d-tx").hear("B1", Fence(TX, 1, deadline_s))


# --- before its yes ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_before_its_yes_it_ends_it_for_itself_and_all_behind(engine: str) -> None:
    one, _, _ = called(engine)
    one.see(one.broker.link_down(BrokerName("B1"), 0.0))
    said = one.ring(timer(engine))
    reason = "not decided by its deadline: the decision from B1; unreachable: B1 (no link from B2)"
    assert Said("B1", AbortRequest(TX, "deadline", reason)) in said
    assert Said("B3", Decide(TX, False, "deadline", reason)) in said
    assert Said("@D", Ended(TX, False, "deadline", reason)) in said


def test_the_reason_names_the_missing_broker_and_not_a_live_one() -> None:
    one, _, _ = called("d-tx")
    one.send("B1", Reachability("B1", "B9", False))
    [doom] = of_kind(one.ring(timer("d-tx")), AbortRequest)
    assert "unreachable: B9 (no link from B1)" in doom.reason


@pytest.mark.parametrize("engine", DYNAMIC)
def test_what_comes_late_from_the_coordinator_is_harmless(engine: str) -> None:
    one, _, _ = called(engine)
    one.ring(timer(engine))
    assert one.hear("B1", Prepare(TX)) == []
    assert to_whom(one.hear("B1", TxOperation(TX, 10, pub=pub_of_e1(), tcm=True)), Acked) == []
    # It acknowledges the decision when all behind it have done so, as ever.
    assert one.hear("B1", Decide(TX, False, "deadline", "")) == []
    assert one.hear("B3", Decided(TX)) == [Said("B1", Decided(TX))]
    assert one.hear("B1", Forget(TX)) == [Said("B3", Forget(TX))]
    assert one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_decision_may_come_after_those_behind_have_acknowledged(engine: str) -> None:
    one, _, _ = called(engine)
    one.ring(timer(engine))
    assert one.hear("B3", Decided(TX)) == [], "the decision itself is still to come"
    assert one.hear("B1", Decide(TX, False, "deadline", "")) == [Said("B1", Decided(TX))]
    one.hear("B1", Forget(TX))
    assert one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_if_the_neighbour_has_lost_its_memory_it_is_over(engine: str) -> None:
    one, _, _ = called(engine)
    one.ring(timer(engine))
    one.hear("B3", Decided(TX))
    said = one.see(one.broker.link_reset(BrokerName("B1"), 0.0))
    assert Said("B3", Forget(TX)) in said
    assert not one.broker.engines[engine].inspect("", 0.0)[0]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_nobody_commits_what_it_has_ended(engine: str) -> None:
    one, _, _ = called(engine)
    one.ring(timer(engine))
    with pytest.raises(ProtocolError, match="without our yes"):
        one.hear("B1", Decide(TX, True))


@pytest.mark.parametrize("engine", DYNAMIC)
def test_what_waited_for_it_goes_on(engine: str) -> None:
    one, frame, _ = called(engine)
    one.operate(TX, sub("D", P), frame=frame, client="D")
    if engine == "d-tx":
        one.hear("B1", Prepare(TX))  # B3 does not answer, so this broker has not said yes.
    assert one.send(client_hop("D"), Operation(60, "usub", "D", 0, P)) == [], "it waits"
    said = one.acknowledged(one.ring(timer(engine)))
    assert 60 in [done.req for done in of_kind(said, Done, "@D")]


# --- after its yes ---


def test_after_its_yes_it_waits_and_tells_its_clients_once() -> None:
    one = voted()
    one.see(one.broker.link_down(BrokerName("B1"), 0.0))
    said = one.ring(timer("d-tx"))
    reason = "voted yes, waits for the decision from B1; unreachable: B1 (no link from B2)"
    assert said == [Said("@D", InDoubt(TX, "B1", reason))]
    [line], _ = one.broker.engines["d-tx"].inspect("", 0.0)
    assert line["waits_for"] == f"in doubt: {reason}"
    assert one.see(one.broker.wake(timer("d-tx"), 0.0)) == []
    assert of_kind(one.hear("B1", Decide(TX, True)), Ended, "@D")[0].committed


def test_without_votes_an_acknowledgement_counts_as_the_yes() -> None:
    one = finished("d-tx-ni")
    said = one.ring(timer("d-tx-ni"))
    assert to_whom(said, InDoubt) == ["@D"]
    assert "acknowledged all that was asked" in of_kind(said, InDoubt)[0].reason
    assert of_kind(one.hear("B1", Decide(TX, True)), Ended, "@D")[0].committed


def test_a_plan_that_was_admitted_cannot_be_ended_alone() -> None:
    one = middle("s-tx")
    plan = Plan(TX, (sub("D", P),), {"E1": "B1", "D": "B2"}, LIMIT_S)
    assert to_whom(one.hear("B1", plan), Admitted) == ["B1"]
    one.hear("B1", Admitted(TX, "B1", {}))
    said = one.ring(timer("s-tx"))
    assert to_whom(said, InDoubt) == ["@D"]
    assert "waits for the decision from B1" in of_kind(said, InDoubt)[0].reason
    said = one.hear("B1", DecidePlan(TX, True))
    assert of_kind(said, Ended, "@D")[0].committed
    assert one.timers == {}


def test_a_plan_without_its_coordinator_is_refused() -> None:
    with pytest.raises(ProtocolError):
        middle("s-tx").hear("B1", Plan(TX, (sub("D", P),), {"D": "B2"}, LIMIT_S))


# --- what is read on one side of a link that was down ---


def chain(**factories: Any) -> SimulatedOverlay:
    """B1-B2-B3; the ends of a link go on without each other after 20 ms."""
    tree: nx.Graph[str] = nx.Graph([("B1", "B2"), ("B2", "B3")])
    world = SimulatedOverlay(tree, lambda n: 0, factories={**all_engines(), **factories})
    world.sim.absent_after_s = 0.02
    return world


def late(neighbour: str) -> tuple[OneBroker, int]:
    """D has advertised while a neighbour was away, which is back and has not done it yet."""
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1, (), LIMIT_S))
    one.see(one.broker.link_down(BrokerName(neighbour), 0.0))
    said = one.send(client_hop("D"), Operation(60, "adv", "D", 0, box(class_="q")))
    [asked] = of_kind(said, Operation, neighbour)
    one.see(one.broker.link_up(BrokerName(neighbour), 0.0))
    [other] = {"B1", "B3"} - {neighbour}
    assert 60 in [
        done.req
        for one_said in of_kind(said, Operation, other)
        for done in of_kind(one.send(other, Done(one_said.req)), Done, "@D")
    ], "D has not waited for it"
    return one, asked.req


def test_no_yes_goes_to_a_neighbour_that_has_to_catch_up() -> None:
    """What counts as done here, it may hold for another transaction: this one would read both."""
    one, _ = late("B1")
    [vote] = of_kind(one.hear("B1", Prepare(TX)), Vote, "B1")
    assert vote.code == "conflict" and "B1 has to catch up" in vote.reason


def test_no_yes_counts_of_a_neighbour_that_has_to_catch_up() -> None:
    one, _ = late("B3")
    one.hear("B1", Prepare(TX))
    [vote] = of_kind(one.hear("B3", Vote(TX)), Vote, "B1")
    assert vote.code == "conflict" and "B3 has to catch up" in vote.reason


@pytest.mark.parametrize("neighbour", ["B1", "B3"])
def test_when_it_has_caught_up_a_yes_is_a_yes(neighbour: str) -> None:
    one, req = late(neighbour)
    one.send(neighbour, Done(req))
    one.hear("B1", Prepare(TX))
    assert of_kind(one.hear("B3", Vote(TX)), Vote, "B1") == [Vote(TX)]


def test_what_a_yes_relied_on_is_waited_for_until_the_decision() -> None:
    """Others judge the transaction by what is not done everywhere, and may not have done so yet."""
    one = middle("d-tx")
    one.hear("B1", Init(TX, 1, (), LIMIT_S))
    said = one.send("B1", Operation(60, "adv", "E1", 2, box(class_="q")))
    assert to_whom(said, Operation) == ["B3"]
    one.hear("B1", Prepare(TX))
    assert of_kind(one.hear("B3", Vote(TX)), Vote, "B1") == [Vote(TX)]
    assert of_kind(one.see(one.broker.link_down(BrokerName("B3"), 0.0)), Done) == []
    assert Said("B1", Done(60)) in one.hear("B1", Decide(TX, True))


@pytest.mark.parametrize("factories", [{}, {"s-tx": LeavesOutTheAbsent}])
def test_a_plan_waits_for_an_absent_broker_of_its_own_span(factories: Any) -> None:
    """What an un-advertisement moves there comes before what depends on it."""
    world = chain(**factories)
    for client, edge in (("C0", "B1"), ("C1", "B2"), ("C2", "B1")):
        world.join(client, edge)
    for client, kind in (("C1", "adv"), ("C2", "sub"), ("C0", "adv")):
        world.plain(client, kind, P)  # type: ignore[arg-type]
        world.sim.run()
    publish = pub("C0", class_="p")
    steps = [uadv("C1", P), type(publish)("C0", "pub", point=publish.point, after=(0,))]
    world.submit("C1", steps)
    # The decision has reached B2, and B1 does not hear of what follows.
    while not any(r.kind == "decide" and r.node == "B2" for r in world.sim.records):
        world.sim.run(until=world.sim._events[0][0])
    world.sim.cut("B1", "B2", 0.2)
    world.sim.run()
    kinds = {anomaly.kind for anomaly in check(History.from_simulator(world.sim, world.clients))}
    assert kinds == ({"order"} if factories else set())


@pytest.mark.parametrize("absent", [("B1", "B2"), ("B2", "B3")])
def test_a_plan_goes_on_without_an_absent_broker_outside_its_span(absent: tuple[str, str]) -> None:
    """What it attracts when it is back is late for the plan, and changes nothing for a client."""
    world = advertised_and_taken_back({}, absent)
    applied = [r for r in world.sim.records if r.kind == "apply" and r.tx == "" and r.node == "B2"]
    names = [record.op_id for record in applied]
    adv_at, uadv_at = names.index("C3#1"), names.index("C3#2")
    assert adv_at < uadv_at < names.index("C1#1"), "the attracted subscription came later"
    assert check(History.from_simulator(world.sim, world.clients)) == []


@pytest.mark.parametrize(
    ("bug", "absent"),
    [(WaitsForNoBroker, None), (ReordersForAbsentNeighbours, ("B2", "B3"))],
)
def test_real_misorders_outside_the_span_are_found(bug: Any, absent: Any) -> None:
    """Brokers that are reachable are waited for, and one that is back handles all in order."""
    world = advertised_and_taken_back({"s-tx": bug}, absent)
    anomalies = check(History.from_simulator(world.sim, world.clients))
    assert "order" in {anomaly.kind for anomaly in anomalies}


def advertised_and_taken_back(
    factories: dict[str, Any], absent: tuple[str, str] | None
) -> SimulatedOverlay:
    """C3 advertises at B3 and takes it back, in one plan, while a link is down; C1 at B1 has a
    subscription that the advertisement attracts."""
    world = chain(**factories)
    world.join("C1", "B1")
    world.join("C3", "B3")
    world.plain("C1", "sub", P)
    world.sim.run()
    if absent is not None:
        world.sim.cut(*absent, 0.5)
        world.sim.run(until=world.sim.now + 0.1)
    taken_back = uadv("C3", P)
    world.submit("C3", [adv("C3", P), type(taken_back)("C3", "uadv", P, after=(0,))])
    world.sim.run()
    return world
