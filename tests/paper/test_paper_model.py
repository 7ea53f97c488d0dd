"""The transaction model, rule by rule (Definitions 3.1 to 3.4): one broker, one message at a time.

The rules are the model's, so each is tried with every engine that promises it. Durability (3.1) is
not promised, and says so in the README.
"""

from __future__ import annotations

import pytest

from overlay.errors import ProtocolError
from overlay.messages import Done, Operation, Pub
from padres_tx.client_messages import Abort, Begin, Commit, Ended, Finish, Operated, Step, Tcm
from padres_tx.protocol.dynamic_messages import Acked, Init, TxOperation
from padres_tx.protocol.static_state import Admitted, Complete, DecidePlan, Plan
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs, to_whom
from tests.protocol.steps import adv, box, pub, sub, tcm, usub

DYNAMIC = ["d-tx", "d-tx-ni"]
DECIDED = [*DYNAMIC, "s-tx"]

P = box(class_="p")
Q = box(class_="q")


def alone(engine: str) -> OneBroker:
    """A broker without neighbours; E may publish p, D holds it, A holds nothing."""
    one = OneBroker(engine, neighbours=())
    one.here("E", "D", "A")
    one.holds("E", "adv", P)
    one.holds("D", "sub", P)
    one.records.clear()
    return one


def between_two(engine: str) -> OneBroker:
    """The broker with E, D and A, and nothing held; B1 and B3 are its neighbours."""
    one = OneBroker(engine)
    one.here("E", "D", "A")
    return one


def run(one: OneBroker, client: str, *steps: Step, end: str = "commit") -> list[Said]:
    """All steps as one transaction of the client, in their order; what the broker said."""
    if one.engine == "s-tx":
        chained = [
            Step(s.client, s.kind, s.filter, s.point, seq=at + 1, after=(at - 1,) if at else ())
            for at, s in enumerate(steps)
        ]
        return one.submit(client, *chained)[1]
    tx, said = one.begun(client, *steps)
    return said + one.say(client, Commit(tx) if end == "commit" else Abort(tx))


def order(one: OneBroker) -> list[str]:
    """What the broker has carried out for transactions, in its order, as "kind client"."""
    return [
        f"{record.op_kind} {record.client}"
        for record in one.records
        if record.tx and record.kind in ("apply", "match")
    ]


# --- 3.1 atomicity: all of a transaction or nothing ---


@pytest.mark.parametrize("engine", DECIDED)
def test_a_commit_brings_tables_and_publications_together(engine: str) -> None:
    one = alone(engine)
    said = run(
        one,
        "A",
        adv("A", Q),
        sub("A", P),
        pub("A", class_="q", n=1),
        usub("A", box(class_="p", x=(5, 9))),
    )
    assert of_kind(said, Ended)[-1].committed
    assert "@A: A adv [class,eq,'q']" in one.tables()["srt"]
    assert "@A: A sub [class,eq,'p']" in one.tables()["prt"]
    assert one.wanted_by(class_="p", x=7) == ["@D"]
    assert one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_abort_leaves_no_trace_of_any_of_it(engine: str) -> None:
    one = alone(engine)
    before = one.tables()
    said = run(one, "E", adv("E", Q), usub("E", Q), end="abort")
    assert not of_kind(said, Ended)[-1].committed
    said = run(one, "E", sub("E", P), pub("E", class_="p", n=1), end="abort")
    assert not of_kind(said, Ended)[-1].committed
    assert pubs(said, "D") == pubs(said, "E") == []
    assert one.tables() == before and one.at_rest


def test_a_static_one_that_cannot_be_done_in_part_is_not_done_at_all() -> None:
    one = alone("s-tx")
    before = one.tables()
    said = run(one, "E", sub("E", P), pub("E", class_="p", n=1), usub("A", Q))
    assert of_kind(said, Ended)[-1].code == "not-held"
    assert pubs(said, "D") == [] and one.tables() == before and one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_clients_are_given_publications_at_the_commit_and_not_before(engine: str) -> None:
    one = alone(engine)
    tx, said = one.begun("E", pub("E", class_="p", n=1), pub("E", class_="p", n=2))
    assert pubs(said, "D") == []
    said = one.say("E", Commit(tx))
    assert [point["n"] for point in pubs(said, "D")] == [1, 2]


# --- 3.1 and 3.2 consistency: each operation works on the state that the one before has left ---


@pytest.mark.parametrize("engine", DECIDED)
def test_a_publication_is_routed_on_what_its_transaction_has_done_before(engine: str) -> None:
    one = alone(engine)
    steps = (usub("D", P), sub("A", P), pub("E", class_="p", n=1))
    if engine == "s-tx":
        said = run(one, "E", *steps)
    else:
        # Each client in a frame of its own, opened by a tcm.
        for client in ("D", "A"):
            one.holds(client, "sub", box(class_="ctl", to=client))
        one.holds("E", "adv", box(class_="ctl"))
        tx, said = one.begun("E")
        for step in steps[:2]:
            called = one.operate(tx, tcm("E", class_="ctl", to=step.client))
            frame = of_kind(called, Tcm, f"@{step.client}")[0].frame
            one.operate(tx, step, frame=frame, client=step.client)
            one.say(step.client, Finish(tx, frame))
        said = one.operate(tx, steps[2]) + one.say("E", Commit(tx))
    assert [point["n"] for point in pubs(said, "A")] == [1]
    assert pubs(said, "D") == []


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_operation_counts_as_done_when_it_is_done_at_every_broker(engine: str) -> None:
    one = between_two(engine)
    tx, said = one.begun("E", adv("E", P))
    asked = {to: op.req for to, op in said if isinstance(op, TxOperation)}
    assert sorted(asked) == ["B1", "B3"] and not of_kind(said, Operated)
    assert not of_kind(one.hear("B1", Acked(tx, asked["B1"])), Operated)
    assert of_kind(one.hear("B3", Acked(tx, asked["B3"])), Operated, "@E")


# --- 3.1 isolation: only what is committed is read (D-TX) ---


def test_nobody_else_reads_what_is_not_committed() -> None:
    one = alone("d-tx")
    mover = one.begin("A", sub("A", P))
    assert one.wanted_by(class_="p") == ["@D"], "a plain publication"
    _, said = one.begun("E", pub("E", class_="p", n=1), commit=True)
    assert pubs(said, "D") and not pubs(said, "A"), "another transaction"
    one.say("A", Commit(mover))
    assert one.wanted_by(class_="p") == ["@A", "@D"]


def test_without_isolation_everybody_reads_it_at_once() -> None:
    one = alone("d-tx-ni")
    one.begin("A", sub("A", P))
    assert one.wanted_by(class_="p") == ["@A", "@D"]


# --- 3.3 construction: who can add to a transaction ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_coordinator_names_it_after_itself(engine: str) -> None:
    one = alone(engine)
    with pytest.raises(ProtocolError, match="cannot begin D:0:1"):
        one.say("E", Begin(("D", 0, 1), 30.0))
    assert one.at_rest


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_coordinator_adds_operations_under_its_name(engine: str) -> None:
    one = between_two(engine)
    tx = one.begin("E")
    ops = of_kind(one.operate(tx, adv("E", P)), TxOperation)
    assert {op.tx for op in ops} == {tx} and ops[0].operation.kind == "adv"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_who_has_received_a_tcm_adds_operations_under_the_same_name(engine: str) -> None:
    one = between_two(engine)
    one.behind("B1", "E2")
    one.knows("B1", "E2", "adv", P)
    one.holds("D", "sub", P)
    tx = ("E2", 0, 7)
    one.hear("B1", Init(tx, 1))
    said = one.hear("B1", TxOperation(tx, 1, pub=Pub("E2", 8, {"class": "p"}), tcm=True))
    told = of_kind(said, Tcm, "@D")[0]
    assert told.tx == tx and told.point == {"class": "p"}
    added = one.operate(tx, usub("D", P), frame=told.frame, client="D")
    assert [(to, op.tx, op.operation.kind) for to, op in added if isinstance(op, TxOperation)] == [
        ("B1", tx, "usub")
    ]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_who_has_not_received_a_tcm_cannot_add_to_it(engine: str) -> None:
    one = alone(engine)
    tx = one.begin("E")
    before = one.tables()
    said = one.operate(tx, sub("A", P), client="A")
    assert [ended.code for ended in of_kind(said, Ended, "@A")] == ["foreign"]
    assert one.tables() == before


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_advertisement_attracts_a_buffered_subscription_inside_the_transaction(
    engine: str,
) -> None:
    one = between_two(engine)
    one.holds("D", "sub", P)  # Nobody publishes p: it is buffered here.
    tx = ("E2", 0, 1)
    one.hear("B1", Init(tx, 1))
    said = one.hear("B1", TxOperation(tx, 5, Operation(0, "adv", "E2", 1, P)))
    back = of_kind(said, TxOperation, "B1")
    assert [(op.tx, op.operation.kind, op.operation.client) for op in back] == [(tx, "sub", "D")]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_un_advertisement_sends_subscriptions_back_inside_the_transaction(engine: str) -> None:
    one = between_two(engine)
    one.behind("B1", "E2")
    one.knows("B1", "E2", "adv", P)
    one.holds("D", "sub", P)
    tx = ("E2", 0, 9)
    one.hear("B1", Init(tx, 1))
    uadv = Operation(0, "uadv", "E2", 2, P, store=False, drop=(1,))
    said = one.hear("B1", TxOperation(tx, 5, uadv))
    back = of_kind(said, TxOperation, "B1")
    assert [(op.tx, op.operation.kind, op.operation.client) for op in back] == [(tx, "usub", "D")]


# --- 3.4 sequential consistency ---


@pytest.mark.parametrize("engine", DECIDED)
def test_thread_one_clients_operations_in_its_order(engine: str) -> None:
    one = alone(engine)
    run(one, "E", sub("E", P), pub("E", class_="p"), usub("E", P), adv("E", Q))
    assert order(one) == ["sub E", "pub E", "usub E", "adv E"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_thread_what_is_sent_on_keeps_the_order(engine: str) -> None:
    one = between_two(engine)
    one.behind("B3", "A2")
    one.knows("B3", "A2", "sub", P)
    one.knows("B3", "A2", "adv", Q)
    one.holds("E", "adv", P)
    _, said = one.begun("E", sub("E", Q), pub("E", class_="p", n=1), usub("E", Q))
    sent = [
        op.operation.kind if op.operation else "pub"
        for op in of_kind(one.acknowledged(said), TxOperation, "B3")
    ]
    assert sent == ["sub", "pub", "usub"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_trigger_the_tcm_comes_before_what_it_makes_others_do(engine: str) -> None:
    one = alone(engine)
    tx, said = one.begun("E", tcm("E", class_="p"))
    frame = of_kind(said, Tcm, "@D")[0].frame
    one.operate(tx, usub("D", P), frame=frame, client="D")
    assert order(one) == ["tcm E", "usub D"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_trigger_an_advertisement_comes_before_what_it_attracts(engine: str) -> None:
    one = between_two(engine)
    one.holds("D", "sub", P)
    tx = ("E2", 0, 1)
    one.hear("B1", Init(tx, 1))
    said = one.hear("B1", TxOperation(tx, 5, Operation(0, "adv", "E2", 1, P)))
    ops = [(to, op.operation.kind) for to, op in said if isinstance(op, TxOperation)]
    assert ops == [("B3", "adv"), ("B1", "sub")]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_trigger_star_what_a_tcm_triggers_comes_before_its_clients_next_operation(
    engine: str,
) -> None:
    one = alone(engine)
    tx, said = one.begun("E", tcm("E", class_="p"), pub("E", class_="p", n=1))
    frame = of_kind(said, Tcm, "@D")[0].frame
    assert order(one) == ["tcm E"], "the publication waits"
    one.operate(tx, usub("D", P), frame=frame, client="D")
    assert order(one) == ["tcm E", "usub D"], "D may have more to do"
    one.say("D", Finish(tx, frame))
    assert order(one) == ["tcm E", "usub D", "pub E"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_trigger_star_what_an_advertisement_triggers_comes_before_the_next_operation(
    engine: str,
) -> None:
    one = OneBroker(engine, neighbours=["B1"])
    one.here("E")
    tx, said = one.begun("E", adv("E", P), pub("E", class_="p"))
    assert order(one) == ["adv E"]
    # The subscription that it has attracted comes first, and then the acknowledgement.
    req = of_kind(said, TxOperation, "B1")[0].req
    one.hear("B1", TxOperation(tx, 3, Operation(0, "sub", "D2", 1, P)))
    assert order(one) == ["adv E", "sub D2"]
    said = one.hear("B1", Acked(tx, req))
    assert order(one) == ["adv E", "sub D2", "pub E"]
    assert to_whom(said, TxOperation) == ["B1"], "and so it finds its receiver"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_transitivity_through_a_chain_of_tcms(engine: str) -> None:
    one = alone(engine)
    one.holds("D", "adv", box(class_="assign"))
    one.holds("A", "sub", box(class_="assign"))
    one.records.clear()
    tx, said = one.begun("E", tcm("E", class_="p"), pub("E", class_="p", n=1))
    of_d = of_kind(said, Tcm, "@D")[0].frame
    said = one.operate(tx, tcm("D", class_="assign"), usub("D", P), frame=of_d, client="D")
    one.say("D", Finish(tx, of_d))
    of_a = of_kind(said, Tcm, "@A")[0].frame
    one.operate(tx, sub("A", P), frame=of_a, client="A")
    assert order(one) == ["tcm E", "tcm D", "sub A"]
    said = one.say("A", Finish(tx, of_a)) + one.say("E", Commit(tx))
    assert order(one) == ["tcm E", "tcm D", "sub A", "usub D", "pub E"]
    assert pubs(said, "A") == [{"class": "p", "n": 1}] and pubs(said, "D") == []


def test_a_static_one_is_carried_out_in_the_order_of_its_dependencies() -> None:
    one = alone("s-tx")
    # Written down backwards: only the dependencies count.
    _, said = one.submit(
        "E",
        Step("E", "pub", point={"class": "p", "n": 1}, seq=9, after=(1, 2)),
        Step("D", "usub", P, after=(3,)),
        Step("A", "sub", P, after=(3,)),
        Step("E", "tcm", point={"class": "p"}, seq=8, receivers=("D",)),
    )
    done = order(one)
    assert done[0] == "tcm E" and done[-1] == "pub E" and sorted(done[1:3]) == ["sub A", "usub D"]
    assert pubs(said, "A") == [{"class": "p", "n": 1}] and pubs(said, "D") == []


def test_a_static_one_waits_for_what_its_advertisement_triggers() -> None:
    one = between_two("s-tx")
    one.behind("B1", "A2")
    tx, said = one.submit(
        "E",
        Step("E", "adv", P),
        Step("E", "pub", point={"class": "p"}, seq=9, after=(0,)),
        Step("A2", "sub", Q, after=(1,)),
    )
    assert to_whom(said, Plan) == ["B1"]
    said = one.hear("B1", Admitted(tx, "B1", {2: Operation(0, "sub", "A2", 1, Q)}))
    assert of_kind(said, DecidePlan)[0].committed
    assert order(one) == ["adv E"], "the publication waits"
    asked = [(to, op.req) for to, op in said if isinstance(op, Operation)]
    assert [to for to, _ in asked] == ["B1", "B3"]
    for to, req in asked:
        said = one.send(to, Done(req))
    assert to_whom(said, Complete) == ["B1"], "and everybody in the span hears of it"
    assert order(one)[:2] == ["adv E", "pub E"]
