"""S-TX, step by step (Section 6, Algorithm 4): one broker, one message at a time.

The printed algorithm guesses from the tables which dependencies will come to a broker, and goes
wrong where the guess does. Ours says it: every broker of the span (the tree that joins the edge
brokers of the transaction's clients) knows the whole plan, and outside nothing waits. The names
below: B2 has E, D and A; A1 is at B1, A3 at B3, A4 at B4.
"""

from __future__ import annotations

import pytest

from overlay.errors import ProtocolError
from overlay.messages import Done, Operation, Pub
from padres_tx.client_messages import Abort, Applied, Effective, Ended, Step
from padres_tx.protocol.static_state import (
    Admitted,
    Complete,
    DecidePlan,
    Plan,
    PlanCarriedOut,
    PlanSettled,
)
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs, to_whom
from tests.protocol.steps import box

P = box(class_="p")
Q = box(class_="q")
TX = ("A1", 0, 7)


def star() -> OneBroker:
    """B2 among B1, B3 and B4; E may publish p, D holds it."""
    one = OneBroker("s-tx", neighbours=["B1", "B3", "B4"])
    one.here("E", "D", "A")
    for at in ("1", "3", "4"):
        one.behind(f"B{at}", f"A{at}")
    one.holds("E", "adv", P)
    one.holds("D", "sub", P)
    one.records.clear()
    return one


def order(one: OneBroker) -> list[str]:
    """What was carried out for transactions here, as "kind client"."""
    return [
        f"{record.op_kind} {record.client}"
        for record in one.records
        if record.tx and record.kind in ("apply", "match")
    ]


def sub_of(client: str, filter: object = P) -> Operation:
    return Operation(0, "sub", client, 1, filter)  # type: ignore[arg-type]


# --- the client routing table ---


def test_a_join_is_broadcast_and_tells_everybody_where_a_client_is() -> None:
    one = star()
    assert {str(client): home.hop for client, home in one.broker.routing.crt.items()} == {
        **{client: f"@{client}" for client in ("E", "D", "A")},
        **{f"A{at}": f"B{at}" for at in ("1", "3", "4")},
    }


def test_the_plan_goes_where_its_clients_are_and_nowhere_else() -> None:
    one = star()
    tx, said = one.submit("E", Step("A1", "sub", P), Step("A3", "sub", P))
    assert to_whom(said, Plan) == ["B1", "B3"]
    plan = of_kind(said, Plan)[0]
    assert plan.tx == tx and plan.edges == {"E": "B2", "A1": "B1", "A3": "B3"}


def test_who_is_not_connected_cannot_be_planned_for() -> None:
    one = star()
    _, said = one.submit("E", Step("Z", "sub", P))
    ended = of_kind(said, Ended, "@E")[0]
    assert (ended.code, ended.reason) == ("left", "Z not connected") and one.at_rest


# --- the operation phase ---


def test_the_edge_broker_speaks_for_its_clients() -> None:
    """What a tcm carries for a participant is issued by its edge broker, which has it."""
    one = star()
    said = one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A3", "sub", P)), _edges("D", "A3")))
    assert to_whom(said, Plan) == ["B3"]
    admitted = of_kind(said, Admitted, "B1")[0]
    assert admitted.edge == "B2" and admitted.code == ""
    assert [(at, op.kind, op.client) for at, op in admitted.operations.items()] == [
        (0, "usub", "D")
    ]


def test_nothing_is_carried_out_before_the_decision() -> None:
    one = star()
    before = one.tables()
    one.hear("B1", Plan(TX, (Step("D", "usub", P),), _edges("D")))
    assert order(one) == [] and one.tables() == before


def test_an_operation_is_processed_when_all_before_it_are() -> None:
    """Lines 4-10: two steps without dependencies, and one behind both."""
    one = star()
    steps = (
        Step("E", "pub", point={"class": "p", "n": 1}, after=(1, 2)),
        Step("D", "usub", P),
        Step("A", "sub", P),
    )
    one.hear("B1", Plan(TX, steps, _edges("E", "D", "A")))
    one.hear("B1", Admitted(TX, "B1", {}))
    said = one.hear("B1", DecidePlan(TX, True))
    assert order(one) == ["usub D", "sub A", "pub E"]
    assert pubs(said, "A") == [{"class": "p", "n": 1}] and not pubs(said, "D")


def test_it_waits_for_an_advertisement_from_elsewhere_and_goes_on_with_it() -> None:
    """Lines 9-10 and 20-28: buffered, until what it waits for is marked as processed."""
    one = star()
    steps = (Step("A1", "adv", Q), Step("D", "sub", Q, after=(0,)), Step("A", "sub", P))
    one.hear("B1", Plan(TX, steps, _edges("A1", "D", "A")))
    one.hear("B1", Admitted(TX, "B1", {0: Operation(0, "adv", "A1", 1, Q)}))
    one.hear("B1", DecidePlan(TX, True))
    assert order(one) == ["sub A"], "what does not depend on it does not wait"
    one.send("B1", Operation(4, "adv", "A1", 1, Q))  # It comes as a plain one does,
    assert order(one) == ["sub A"]
    said = one.hear("B1", Complete(TX, 0))  # and counts when it is everywhere.
    assert order(one) == ["sub A", "sub D"]
    assert not of_kind(said, Operation), "B1 does the same by itself"


def test_the_publisher_of_an_advertisement_says_when_it_is_everywhere() -> None:
    """Triggered subscriptions are in nobody's list (Figure 2): the acknowledgement covers them."""
    one = star()
    tx, _ = one.submit("E", Step("E", "adv", Q), Step("A1", "sub", Q, after=(0,)))
    said = one.hear("B1", Admitted(tx, "B1", {1: sub_of("A1", Q)}))
    asked = [(to, op.req) for to, op in said if isinstance(op, Operation)]
    assert [to for to, _ in asked] == ["B1", "B3", "B4"], "an advertisement floods"
    for to, req in asked[:-1]:
        assert not of_kind(one.send(to, Done(req)), Complete)
    said = one.send(asked[-1][0], Done(asked[-1][1]))
    assert to_whom(said, Complete) == ["B1"]
    assert order(one) == ["adv E", "sub A1"]


def test_outside_the_span_an_operation_goes_as_a_plain_one_and_nothing_waits() -> None:
    """Lines 32-38: a broker that will not see a dependency must not wait for it."""
    one = star()
    one.knows("B4", "A4", "adv", Q)
    said = one.hear("B1", Plan(TX, (Step("A1", "sub", Q), Step("A3", "sub", P)), _edges("A3")))
    one.hear("B1", Admitted(TX, "B1", {0: sub_of("A1", Q)}))
    one.hear("B3", Admitted(TX, "B3", {1: sub_of("A3", P)}))
    said = one.hear("B1", DecidePlan(TX, True))
    plain = [(to, op) for to, op in said if isinstance(op, Operation)]
    stored = [(to, op.kind, op.client) for to, op in plain if op.store]
    assert stored == [("B4", "sub", "A1")], "B4 may publish q and is in no span"
    gone = [(to, op.client, op.drop) for to, op in plain if not op.store]
    assert gone == [("B3", "A1", (1,)), ("B1", "A3", (1,))], "from here they would not have it"
    assert one.wanted_by(class_="q") == ["B1"]


def test_a_publication_goes_once_to_clients_and_once_out_of_the_span() -> None:
    one = star()
    one.knows("B4", "A4", "sub", P)
    steps = (Step("E", "pub", point={"class": "p", "n": 1}), Step("A3", "sub", Q))
    one.hear("B1", Plan(TX, steps, _edges("E", "A3")))
    one.hear("B3", Admitted(TX, "B3", {1: sub_of("A3", Q)}))
    one.hear("B1", Admitted(TX, "B1", {}))
    said = one.hear("B1", DecidePlan(TX, True))
    assert [to for to, message in said if isinstance(message, Pub)] == ["@D", "B4"]


def test_a_tcm_must_reach_who_is_to_act_on_it() -> None:
    one = star()
    tcm = Step("E", "tcm", point={"class": "p"}, seq=3, receivers=("A",))
    _, said = one.submit("E", tcm, Step("A", "sub", Q, after=(0,)))
    ended = of_kind(said, Ended, "@E")[0]
    assert ended.code == "unheard" and "A does not receive the tcm" in ended.reason
    assert one.at_rest


# --- the termination phase ---


def test_the_coordinators_broker_decides_when_every_edge_has_answered() -> None:
    one = star()
    tx, said = one.submit("E", Step("A1", "sub", P), Step("A3", "sub", P))
    assert not of_kind(said, DecidePlan)
    said = one.hear("B1", Admitted(tx, "B1", {0: sub_of("A1")}))
    assert to_whom(said, Admitted) == ["B3"], "the others in the span need to know it"
    assert not of_kind(said, DecidePlan)
    said = one.hear("B3", Admitted(tx, "B3", {1: sub_of("A3")}))
    assert [(to, d.committed) for to, d in said if isinstance(d, DecidePlan)] == [
        ("B1", True),
        ("B3", True),
    ]


def test_one_refusal_aborts_it_everywhere() -> None:
    one = star()
    before = one.tables()
    tx, _ = one.submit("E", Step("A1", "usub", P), Step("D", "usub", P))
    said = one.hear("B1", Admitted(tx, "B1", {}, {}, "not-held", "A1 holds no part"))
    assert [(to, d.committed) for to, d in said if isinstance(d, DecidePlan)] == [("B1", False)]
    assert of_kind(said, Ended, "@E")[0].reason == "A1 holds no part"
    one.hear("B1", PlanCarriedOut(tx))
    assert one.tables() == before and one.at_rest, "nothing was done, nothing is to be undone"


def test_the_acknowledgements_are_gathered_on_their_way_back() -> None:
    one = star()
    one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A3", "sub", P)), _edges("D", "A3")))
    one.hear("B3", Admitted(TX, "B3", {1: sub_of("A3")}))
    one.hear("B1", Admitted(TX, "B1", {}))
    said = one.hear("B1", DecidePlan(TX, True))
    assert to_whom(said, DecidePlan) == ["B3"] and not of_kind(said, PlanCarriedOut)
    assert one.hear("B3", PlanCarriedOut(TX)) == [], (
        "B1 was told of an operation, and has not answered"
    )
    assert one.acknowledged(said)[-1] == Said("B1", PlanCarriedOut(TX))
    assert one.hear("B1", PlanSettled(TX)) == [Said("B3", PlanSettled(TX))]
    assert one.at_rest


def test_the_coordinator_learns_the_commit_and_when_it_is_applied_everywhere() -> None:
    one = star()
    tx, _ = one.submit("E", Step("A1", "sub", P))
    said = one.hear("B1", Admitted(tx, "B1", {0: sub_of("A1")}))
    assert of_kind(said, Ended, "@E")[0].committed and not of_kind(said, Applied)
    assert to_whom(one.hear("B1", PlanCarriedOut(tx)), Applied) == ["@E"]


def test_clients_learn_which_words_were_said_for_them() -> None:
    one = star()
    one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A", "sub", P)), _edges("D", "A")))
    one.hear("B1", Admitted(TX, "B1", {}))
    said = one.hear("B1", DecidePlan(TX, True))
    assert of_kind(said, Ended, "@D")[0].effective == (Effective("usub", P, 2),)
    assert of_kind(said, Ended, "@A")[0].effective == (Effective("sub", P, 1),)


def test_the_coordinator_may_abort_until_it_is_decided() -> None:
    one = star()
    tx, _ = one.submit("E", Step("A1", "sub", P))
    said = one.say("E", Abort(tx, "no longer"))
    assert of_kind(said, Ended, "@E")[0].reason == "no longer"
    assert [d.committed for d in of_kind(said, DecidePlan)] == [False]


def test_a_broker_that_does_not_answer_costs_the_transaction_its_deadline() -> None:
    one = star()
    one.submit("E", Step("A1", "sub", P), deadline_s=2.0)
    (key,) = one.timers
    said = one.ring(key)
    ended = of_kind(said, Ended, "@E")[0]
    assert ended.code == "deadline" and ended.reason == "no answer from B1"


def test_a_client_that_leaves_after_the_vote_does_not_split_the_outcome() -> None:
    """Its edge broker has spoken for it: the decision holds, and then its entries go."""
    one = star()
    one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A", "sub", P)), _edges("D", "A")))
    one.leaves("A")
    one.hear("B1", Admitted(TX, "B1", {}))
    one.acknowledged(one.hear("B1", DecidePlan(TX, True)))
    one.hear("B1", PlanSettled(TX))
    assert one.wanted_by(class_="p") == [] and one.at_rest


def test_words_that_are_planned_are_nobody_elses_until_the_decision() -> None:
    one = star()
    one.hear("B1", Plan(TX, (Step("D", "usub", P),), _edges("D")))
    assert one.send("@D", Operation(90, "sub", "D", 90, P)) == [], "a plain one waits"
    _, said = one.submit("D", Step("D", "usub", P))
    assert of_kind(said, Ended, "@D")[0].code == "conflict"
    one.hear("B1", Admitted(TX, "B1", {}))
    one.hear("B1", DecidePlan(TX, True))
    assert one.wanted_by(class_="p") == ["@D"], "and comes after it"


def test_only_the_coordinators_side_decides() -> None:
    one = star()
    one.hear("B1", Plan(TX, (Step("D", "usub", P), Step("A3", "sub", P)), _edges("D", "A3")))
    with pytest.raises(ProtocolError, match="B3 does not decide A1:0:7"):
        one.hear("B3", DecidePlan(TX, True))


def _edges(*clients: str) -> dict[str, str]:
    """Where these clients are, and A1, which coordinates."""
    return {client: f"B{client[1:] or 2}" for client in ("A1", *clients)}
