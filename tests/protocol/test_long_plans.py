"""Static transactions that are longer than a slice: read, admitted and carried out bit by bit.

What may be seen in between, and what may come between; brokers take slices of one or two units
here, so that every plan of some steps is a long one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import networkx as nx
import pytest

from overlay.broker.turns import WORK
from overlay.errors import ProtocolError
from overlay.hosts.simulator import Tape
from overlay.messages import BrokerName, Done, Leave, Operation, Pub
from padres_tx.client_messages import DEPENDENCY_LIMIT, Abort, Applied, Ended, Step
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol import planning
from padres_tx.protocol.static_state import (
    Admitted,
    Complete,
    DecidePlan,
    Plan,
    PlanCarriedOut,
    PlanSettled,
)
from proofs.faults.slicing_bugs import ReportsWhenDoneHere
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs, to_whom
from tests.protocol.steps import box

P = box(class_="p")
Q = box(class_="q")
TX = ("A1", 0, 7)
EDGES = {"A1": "B1", "D": "B2", "A": "B2"}
FOR_ALL = {"A1": "B1", "D": "B2", "A3": "B3"}


def star(slice: int = 2) -> OneBroker:
    """B2 among B1, B3 and B4, with slices that are over soon; E may publish p, D holds it."""
    one = OneBroker("s-tx", neighbours=["B1", "B3", "B4"])
    one.here("E", "D", "A")
    for at in ("1", "3", "4"):
        one.behind(f"B{at}", f"A{at}")
    one.holds("E", "adv", P)
    one.holds("D", "sub", P)
    one.broker.slice = slice
    one.records.clear()
    return one


def work(one: OneBroker) -> list[Said]:
    """All slices that are to be done."""
    said: list[Said] = []
    while WORK in one.timers:
        assert one.timers[WORK] == 0.0
        said += one.ring(WORK)
    return said


def applied(one: OneBroker) -> list[str]:
    return [f"{r.op_kind} {r.client}" for r in one.records if r.tx and r.kind == "apply"]


def handover(one: OneBroker) -> list[Said]:
    """D gives p to A, in a plan that A1 coordinates; it has been read and admitted here."""
    steps = (
        Step("A", "sub", P),
        Step("D", "usub", P, after=(0,)),
        Step("A", "sub", Q, after=(1,)),
        Step("E", "pub", point={"class": "p"}, seq=9, after=(2,)),
    )
    said = one.hear("B1", Plan(TX, steps, {**EDGES, "E": "B2"}))
    return said + work(one) + one.hear("B1", Admitted(TX, "B1", {}))


# --- planning ---


def test_an_edge_broker_answers_in_parts_and_the_last_one_is_the_vote() -> None:
    one = star()
    parts = of_kind(handover(one), Admitted, "B1")
    assert len(parts) > 1
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    operations = {at: op.kind for part in parts for at, op in part.operations.items()}
    assert operations == {0: "sub", 1: "usub", 2: "sub"}
    assert not any(part.code for part in parts)


def test_the_coordinators_broker_decides_when_all_parts_have_come() -> None:
    one = star()
    tx, _ = one.submit("E", Step("A1", "sub", P), Step("A1", "sub", Q))
    work(one)
    first = Operation(0, "sub", "A1", 1, P)
    assert not of_kind(one.hear("B1", Admitted(tx, "B1", {0: first}, more=True)), DecidePlan)
    second = Operation(0, "sub", "A1", 2, Q)
    said = one.hear("B1", Admitted(tx, "B1", {1: second})) + work(one)
    assert [decide.committed for decide in of_kind(said, DecidePlan)] == [True]
    assert applied(one) == ["sub A1", "sub A1"]


def test_a_plan_goes_on_to_the_next_broker_before_it_is_read_here() -> None:
    one = star()
    steps = (Step("A3", "sub", P), Step("A3", "sub", Q), Step("A1", "sub", Q))
    said = one.hear("B1", Plan(TX, steps, {"A1": "B1", "A3": "B3"}))
    (plan,) = of_kind(said, Plan, "B3")
    assert plan.steps == steps, "as it came"


def test_what_a_client_says_between_two_parts_comes_before_later_steps() -> None:
    one = star(slice=1)
    steps = (Step("A", "sub", Q), Step("A", "usub", P))
    one.hear("B1", Plan(TX, steps, {"A1": "B1", "A": "B2"}))
    while not of_kind(one.ring(WORK), Admitted):
        pass
    said = one.send("@A", Operation(50, "sub", "A", 50, P))
    for to, message in said:
        if isinstance(message, Operation):
            one.send(to, Done(message.req))
    parts = of_kind(work(one), Admitted, "B1")
    assert parts[-1].code == "" and parts[-1].operations[1].kind == "usub", "it holds p by now"


@pytest.mark.parametrize("slice", [1, 100])
def test_a_plan_that_comes_after_its_coordinator_has_left_is_refused_and_forgotten(
    slice: int,
) -> None:
    """The refusal, and what ends it here, go back where the plan came from."""
    one = star(slice)
    before = one.tables()
    one.acknowledged(one.send("B1", Leave(1, "A1", "B1")))
    said = one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A3", "sub", P)), FOR_ALL))
    said += work(one)
    assert to_whom(said, Plan) == ["B3"]
    assert "left" in [admitted.code for admitted in of_kind(said, Admitted, "B1")]
    refusal = Admitted(TX, "B3", {}, code="left", reason="A1 not connected")
    assert to_whom(one.hear("B3", refusal), Admitted) == ["B1"]
    said = one.hear("B1", DecidePlan(TX, False, "left", "A1 not connected")) + work(one)
    assert to_whom(said, DecidePlan) == ["B3"]
    assert to_whom(one.hear("B3", PlanCarriedOut(TX)), PlanCarriedOut) == ["B1"]
    assert one.tables() == before and one.at_rest


def test_a_client_that_leaves_while_its_steps_are_admitted_is_refused() -> None:
    one = star(slice=1)
    one.hear("B1", Plan(TX, (Step("A", "sub", P), Step("A", "sub", Q)), {"A1": "B1", "A": "B2"}))
    for _ in range(2):
        one.ring(WORK)
    said = one.leaves("A")
    (answer,) = of_kind(said, Admitted, "B1")
    assert (answer.code, answer.reason) == ("left", "A not connected")
    work(one)
    one.hear("B1", DecidePlan(TX, False))
    work(one)
    assert one.wanted_by(class_="q") == []


def test_a_plan_may_be_aborted_before_it_is_read() -> None:
    one = star(slice=1)
    before = one.tables()
    tx, said = one.submit("E", *(Step("D", "usub", P), Step("A", "sub", P), Step("A", "sub", Q)))
    assert not of_kind(said, Ended)
    said = one.say("E", Abort(tx, "no longer"))
    assert of_kind(said, Ended, "@E")[0].reason == "no longer"
    assert not of_kind(work(one), Ended)
    assert one.tables() == before and one.at_rest and not one.timers


def test_a_deadline_may_pass_before_a_plan_is_read() -> None:
    one = star(slice=1)
    one.submit("E", Step("D", "usub", P), Step("A", "sub", P), deadline_s=2.0)
    (deadline,) = (key for key in one.timers if key != WORK)
    ended = of_kind(one.ring(deadline), Ended, "@E")[0]
    assert ended.code == "deadline"
    work(one)
    assert one.at_rest and one.wanted_by(class_="p") == ["@D"]


def test_a_step_that_cannot_be_read_costs_its_sender_the_link() -> None:
    one = star(slice=1)
    good = Step("A", "sub", P)
    bad = Step("A", "sub", P, after=("x",))  # type: ignore[arg-type]
    tx = ("A1", 0, 99)
    with pytest.raises(ProtocolError):
        one.hear("B1", Plan(TX, (bad, good), {"A1": "B1", "A": "B2"}))
    assert not one.timers
    one.hear("B1", Plan(tx, (good, good, bad), {"A1": "B1", "A": "B2"}))
    work(one)
    assert one.closed == ["B1"]


@pytest.mark.parametrize(
    ("limit", "words"),
    [("ATTRIBUTE_LIMIT", "at most 3 attributes or"), ("DEPENDENCY_LIMIT", "at most 3 that come")],
)
def test_what_would_take_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    monkeypatch.setattr(planning, limit, 3)
    one = star()
    steps = [Step("E", "sub", box(class_="p", x=at), after=tuple(range(at))) for at in range(4)]
    _, said = one.submit("E", *steps)
    (ended,) = of_kind(said + work(one), Ended, "@E")
    assert ended.code == "refused" and words in ended.reason
    assert one.at_rest and not one.timers
    assert DEPENDENCY_LIMIT > 1000


# --- carrying out ---


def test_clients_hear_nothing_of_it_until_it_is_carried_out_everywhere() -> None:
    one = star()
    handover(one)
    said = one.hear("B1", DecidePlan(TX, True)) + work(one)
    assert applied(one) == ["sub A", "usub D", "sub A"]
    assert not of_kind(said, Ended) and not pubs(said, "A")
    assert Said("B1", PlanCarriedOut(TX)) in one.acknowledged(said)
    said = one.hear("B1", PlanSettled(TX))
    assert [type(message) for to, message in said if to == "@A"] == [Pub, Ended]
    assert pubs(said, "A") == [{"class": "p"}]
    assert sorted(to_whom(said, Ended)) == ["@A", "@D", "@E"]
    work(one)
    assert one.at_rest


def test_a_client_that_has_left_meanwhile_is_told_nothing_of_it() -> None:
    """It may be connecting again under its name, and holds nothing of its former life."""
    one = star()
    handover(one)
    one.acknowledged(one.hear("B1", DecidePlan(TX, True)) + work(one))
    one.leaves("D")
    said = one.hear("B1", PlanSettled(TX)) + work(one)
    assert sorted(to_whom(said, Ended)) == ["@A", "@E"]


def test_the_coordinator_hears_the_outcome_before_it_hears_that_it_is_applied() -> None:
    one = star()
    tx, _ = one.submit("E", Step("D", "usub", P), Step("A", "sub", P), Step("A1", "sub", Q))
    work(one)
    one.hear("B1", Admitted(tx, "B1", {2: Operation(0, "sub", "A1", 1, Q)}))
    said = one.acknowledged(work(one))
    assert not of_kind(said, Ended)
    said = one.hear("B1", PlanCarriedOut(tx)) + work(one)
    kinds = [type(message) for to, message in said if to == "@E"]
    assert kinds == [Ended, Applied]


def test_its_words_stay_reserved_until_then() -> None:
    one = star()
    handover(one)
    one.acknowledged(one.hear("B1", DecidePlan(TX, True)) + work(one))
    assert one.send("@D", Operation(90, "sub", "D", 90, P)) == [], "a plain one waits"
    one.hear("B1", PlanSettled(TX))
    work(one)
    assert one.wanted_by(class_="p") == ["@A", "@D"], "and comes after it"


def test_publications_go_on_between_two_slices() -> None:
    one = star(slice=1)
    handover(one)
    one.hear("B1", DecidePlan(TX, True))
    while applied(one) != ["sub A"]:
        one.ring(WORK)
    said = one.send("@E", Pub("E", 70, {"class": "p"}))
    assert sorted(to for to, _ in said) == ["@A", "@D"], "a part of the plan is done, as they find"


def test_an_advertisement_of_a_neighbour_in_the_span_waits_for_the_steps_before_it() -> None:
    """It was sent when the neighbour had carried them out; a subscription of others passes."""
    one = star(slice=1)
    handover(one)
    one.hear("B1", DecidePlan(TX, True))
    one.send("B1", Operation(6, "sub", "A1", 2, P))
    assert "B1" in one.wanted_by(class_="p")
    assert one.send("B1", Operation(5, "adv", "A1", 1, Q)) == [] and len(one.broker.held) == 1
    one.send("B3", Operation(5, "adv", "A3", 1, Q))
    assert len(one.broker.held) == 1, "outside the span nobody has to wait"
    work(one)
    assert not one.broker.held


def test_publications_of_a_neighbour_come_behind_its_operations_that_wait() -> None:
    """They may be of one transaction; of other neighbours they pass."""
    one = star(slice=1)
    handover(one)
    one.hear("B1", DecidePlan(TX, True))
    one.send("B1", Operation(5, "adv", "A1", 1, Q))
    assert one.send("B1", Pub("A1", 2, {"class": "p"})) == []
    assert pubs(one.send("B3", Pub("A3", 2, {"class": "p"})), "D")
    assert pubs(work(one), "A") == [{"class": "p"}]


def test_a_publication_that_waits_is_not_overtaken_by_the_next_of_its_neighbour() -> None:
    """Not even when the operation that it waited behind is done, in the slice before."""
    one = star(slice=1)
    handover(one)
    said = one.hear("B1", DecidePlan(TX, True))
    said += one.send("B1", Operation(5, "adv", "A1", 1, Q))
    for number in range(20):
        said += one.send("B1", Pub("A1", 2 + number, {"class": "p", "n": number}))
        said += one.ring(WORK) if WORK in one.timers else []
    said += work(one)
    assert [point["n"] for point in pubs(said, "A") if "n" in point] == list(range(20))


def test_a_neighbour_that_is_restarted_between_two_slices() -> None:
    one = star(slice=1)
    steps = (Step("A", "sub", P), Step("A3", "sub", Q), Step("D", "usub", P, after=(0,)))
    one.hear("B1", Plan(TX, steps, {**EDGES, "A3": "B3"}))
    work(one)
    one.hear("B1", Admitted(TX, "B1", {}))
    one.hear("B3", Admitted(TX, "B3", {1: Operation(0, "sub", "A3", 1, Q)}))
    said = one.hear("B1", DecidePlan(TX, True))
    told = one.see(one.broker.link_reset(BrokerName("B3"), 0.0))
    others = [each for each in said + told + work(one) if each.to != "B3"]
    said = one.acknowledged([*others, *(each for each in told if each.to == "B3")])
    assert applied(one) == ["sub A", "usub D"], "without the client that was lost with it"
    assert to_whom(said, PlanCarriedOut) == ["B1"] and to_whom(said, Complete) == ["B1"]
    one.hear("B1", PlanSettled(TX))
    work(one)
    assert one.wanted_by(class_="p") == ["@A"] and one.at_rest


# --- what follows from the outcome ---


def late(engine: Callable[[Any], Any], seed: int) -> set[str]:
    """Who gets what the coordinator publishes when it has heard that the stream has moved."""
    tape = Tape(seed=seed)
    tree: nx.Graph[str] = nx.path_graph(["B1", "B2", "B3", "B4"])
    factories = {**all_engines(), "s-tx": engine}
    world = SimulatedOverlay(tree, tape.choose, factories=factories, trace=False, slice=1)
    for client, edge in {"E": "B1", "D": "B3", "A": "B4"}.items():
        world.join(client, edge)
    for client, kind in (("E", "adv"), ("D", "sub")):
        world.plain(client, kind, P)  # type: ignore[arg-type]
    world.sim.run()
    others = [Step("A", "sub", box(class_="q", x=at)) for at in range(6)]
    moved = [Step("A", "sub", P), Step("D", "usub", P, after=(0,))]
    tx = world.submit("E", [*others, *moved])
    world.afterwards[tx] = lambda ended: world.publish("E", {"class": "p"})
    world.sim.run()
    assert world.committed(tx)
    return {client for client in ("A", "D") if world.got[client]}


def test_what_the_coordinator_does_next_finds_all_of_it() -> None:
    assert [late(STx, seed) for seed in range(25)] == [{"A"}] * 25


def test_it_would_not_if_clients_heard_as_soon_as_their_own_broker_is_done() -> None:
    assert any(late(ReportsWhenDoneHere, seed) != {"A"} for seed in range(25))


@pytest.mark.parametrize("what", ["operations", "numbers"])
def test_a_neighbour_that_refuses_a_plan_admits_nothing_of_it(what: str) -> None:
    one = star()
    tx, _ = one.submit("E", Step("A1", "sub", P))
    work(one)
    admits: Any = {"operations": {0: Operation(0, "sub", "A1", 1, P)}, "numbers": {0: (0, 7)}}[what]
    refusal = msgspec.structs.replace(Admitted(tx, "B1", {}, code="left"), **{what: admits})
    with pytest.raises(ProtocolError, match="refuses"):
        one.hear("B1", refusal)
