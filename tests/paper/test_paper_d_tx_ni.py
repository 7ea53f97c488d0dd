"""D-TX-NI (Section 5) at one broker: what it leaves out of D-TX, and how it takes changes back.

What both have in common is tried with both in `test_paper_d_tx`.
"""

from __future__ import annotations

from overlay.messages import Done, Operation, Pub
from padres_tx.client_messages import Abort, Commit, Ended, Operate, Step, TxID
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    Acked,
    Decide,
    Decided,
    Forget,
    Init,
    Prepare,
    TxOperation,
    Vote,
)
from tests.protocol.one_broker import OneBroker, Said, of_kind, pubs, to_whom
from tests.protocol.steps import adv, box, pub, sub, usub

P = box(class_="p")
Q = box(class_="q")
TX = ("E1", 0, 1)


def leaf() -> OneBroker:
    """B2 with B1 as its only neighbour; E1, behind it, may publish p."""
    one = OneBroker("d-tx-ni", neighbours=["B1"])
    one.here("D", "A")
    one.behind("B1", "E1")
    one.knows("B1", "E1", "adv", P)
    return one


def test_all_transactions_work_on_one_shared_state() -> None:
    one = leaf()
    one.begin("D", sub("D", P))
    assert one.wanted_by(class_="p") == ["@D"], "plain publications see it at once"
    tx, _ = one.begun("A")
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=Pub("E1", 1, {"class": "p"})))
    assert pubs(one.hear("B1", Decide(TX, True)), "D"), "and so do other transactions"
    assert one.broker.routing.is_plain and not one.broker.versions.open, "there are no versions"
    assert tx


def test_there_is_nothing_to_validate_and_so_no_vote() -> None:
    one = leaf()
    tx, _ = one.begun("D")
    said = one.say("D", Commit(tx))
    assert not of_kind(said, Prepare)
    assert [(to, d.committed) for to, d in said if isinstance(d, Decide)] == [("B1", True)]
    assert of_kind(said, Ended, "@D")[0].committed


def test_two_that_would_conflict_are_both_committed() -> None:
    one = OneBroker("d-tx-ni", neighbours=())
    one.here("D", "A")
    one.holds("D", "adv", P)
    reader = one.begin("D", pub("D", class_="p"))
    writer = one.begin("A", sub("A", P))
    for tx in (writer, reader):
        assert of_kind(one.say(tx[0], Commit(tx)), Ended, f"@{tx[0]}")[0].committed


def test_the_commit_waits_for_the_operations() -> None:
    one = leaf()
    tx, said = one.begun("D", adv("D", Q), commit=True)
    assert not of_kind(said, Decide)
    req = of_kind(said, TxOperation)[0].req
    assert of_kind(one.hear("B1", Acked(tx, req)), Decide)[0].committed


def test_an_abort_takes_back_the_last_change_first() -> None:
    """In the original order, `sub(F), usub(F)` would end subscribed."""
    one = leaf()
    before = one.tables()
    tx, said = one.begun("D", sub("D", P), usub("D", P))
    one.acknowledged(said)
    one.say("D", Abort(tx))
    one.hear("B1", Decided(tx))
    assert one.tables() == before and one.wanted_by(class_="p") == []


def test_an_abort_brings_back_what_was_dropped_under_its_old_number() -> None:
    one = leaf()
    one.holds("D", "sub", box(class_="p", x=1))
    one.holds("D", "sub", box(class_="p", x=2))
    before = one.broker.routing.as_data()
    tx, said = one.begun("D", sub("D", P), usub("D", box(class_="p", x=2)))
    one.acknowledged(said)
    assert one.broker.routing.as_data() != before
    said = one.say("D", Abort(tx))
    assert one.broker.routing.as_data() == before
    undone = of_kind(said, Operation, "B1")
    assert undone and all(operation.client == "D" for operation in undone), "B1 undoes it too"


def test_only_what_has_changed_something_is_taken_back() -> None:
    one = leaf()
    one.holds("D", "sub", P)
    tx, said = one.begun("D", pub("D", class_="q"))  # D may not publish q: doomed at once.
    assert of_kind(said, Ended)[0].code == "not-advertised"
    assert not of_kind(said, Operation)
    assert tx


def test_what_was_on_its_way_at_the_abort_is_taken_in_and_then_taken_back() -> None:
    """The sender's tables have it, so ours must; what undoes it comes behind it."""
    one = leaf()
    before = one.tables()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Decide(TX, False, "aborted", "so"))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "adv", "E1", 5, Q)))
    assert one.tables() != before
    one.send("B1", Operation(3, "uadv", "E1", 5, Q, store=False, drop=(5,)))
    one.hear("B1", Forget(TX))
    assert one.tables() == before and one.at_rest


def test_a_clients_own_words_are_its_transactions_until_the_decision() -> None:
    """Or the undoing would not be exact: a plain one waits, another transaction is aborted."""
    one = leaf()
    tx, said = one.begun("D", sub("D", P))
    one.acknowledged(said)
    assert one.send("@D", Operation(90, "usub", "D", 90, P)) == []
    _, said = one.begun("D", usub("D", P))
    ended = of_kind(said, Ended, "@D")[0]
    assert ended.code == "conflict" and f"D:{tx[1]}" in ended.reason
    assert one.wanted_by(class_="p") == ["@D"]
    one.say("D", Commit(tx))
    assert one.wanted_by(class_="p") == [], "then it was the plain one's turn"


def test_what_a_client_says_after_an_operation_that_waits_is_not_done_before_it() -> None:
    """Or the operation, done later, would have the last word."""
    one = leaf()
    one.holds("D", "adv", Q)
    tx, _ = one.begun("D", adv("D", box(class_="r")), sub("D", P))  # B1 has not acknowledged r.
    assert one.wanted_by(class_="p") == []
    assert one.send("@D", Operation(90, "usub", "D", 90, P)) == []
    # Garbage is not reserved, and hurts nobody else.
    one.say("D", Operate(tx, 0, 99, Step("D", "pub", P)))


def test_of_two_clients_nobody_waits() -> None:
    one = leaf()
    one.begin("D", sub("D", P))
    said = one.send("@A", Operation(90, "sub", "A", 90, P))
    assert to_whom(said, Operation) == ["B1"]
    assert one.wanted_by(class_="p") == ["@A", "@D"]


# --- where an operation has to wait ---


def between() -> tuple[OneBroker, TxID]:
    """B2 between B1 and B3, where a D-TX of A is prepared that has read who wants p."""
    one = OneBroker("d-tx")
    one.here("A", "D")
    one.behind("B1", "E1")
    one.behind("B3", "E3")
    one.holds("A", "adv", P)
    isolated = one.begin("A", pub("A", class_="p"), commit=True)
    one.engine = "d-tx-ni"
    return one, isolated


def lose(one: OneBroker, isolated: TxID) -> list[Said]:
    """The D-TX ends: B1 votes against it."""
    one.engine = "d-tx"
    said = one.hear("B1", Vote(isolated, "conflict", "so"))
    one.engine = "d-tx-ni"
    # Nothing of the D-TX is looked at here.
    return [each for each in said if getattr(each.message, "tx", TX) == TX]


def test_what_neighbours_say_waits_behind_an_operation_that_waits() -> None:
    """Or it would be ahead of it at every broker further on, and the order of operations gone."""
    one, isolated = between()
    one.hear("B1", Init(TX, 1))
    wanted = Operation(0, "sub", "E1", 5, P)
    assert one.hear("B1", TxOperation(TX, 0, wanted)) == [], "it conflicts with what is prepared"
    assert one.hear("B1", TxOperation(TX, 0, Operation(0, "adv", "E1", 6, Q))) == []
    assert one.hear("B1", TxOperation(TX, 0, pub=Pub("E1", 1, {"class": "p"}))) == []
    assert one.hear("B1", Decide(TX, True)) == []
    said = [message for to, message in lose(one, isolated) if to == "B3"]
    adv_at = next(n for n, m in enumerate(said) if isinstance(m, TxOperation) and m.operation)
    assert isinstance(said[adv_at + 1], Decide), "passed on in the order in which it came"
    assert one.wanted_by(class_="p") == ["B1"]
    one.hear("B3", Decided(TX))
    one.hear("B1", Forget(TX))


def test_an_abort_does_not_wait_behind_it() -> None:
    one, _ = between()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 5, P)))
    doom = AbortRequest(TX, "left", "E3 has left")
    assert to_whom(one.hear("B3", doom), AbortRequest) == ["B1"]


def test_who_says_nonsense_behind_it_loses_its_own_link() -> None:
    one, isolated = between()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 5, P)))
    one.hear("B3", Acked(TX, 99))
    lose(one, isolated)
    assert one.closed == ["B3"] and one.wanted_by(class_="p") == ["B1"]


def test_what_waits_of_a_neighbour_that_was_restarted_is_forgotten() -> None:
    """The D-TX is lost with it, so what came from B1 need not wait any more."""
    one, _ = between()
    one.hear("B1", Init(TX, 1))
    one.hear("B3", TxOperation(TX, 0, Operation(0, "sub", "E3", 5, P)))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "adv", "E1", 5, Q)))
    said = one.see(one.broker.link_reset("B3", 0.0))  # type: ignore[arg-type]
    assert "B1" in to_whom(said, AbortRequest)
    assert one.wanted_by(class_="p") == [] and "B1: E1 adv [class,eq,'q']" in one.tables()["srt"]
    assert of_kind(one.hear("B1", Decide(TX, False, "broker", "so")), Decide, "B3")


# --- what a D-TX may build on ---


def read_by_d_tx(one: OneBroker) -> str:
    """The answer to a D-TX of A that publishes p."""
    one.engine = "d-tx"
    _, said = one.begun("A", pub("A", class_="p"), commit=True)
    one.engine = "d-tx-ni"
    return "".join(ended.code for ended in of_kind(said, Ended, "@A"))


def test_a_d_tx_does_not_build_on_what_is_not_committed_everywhere() -> None:
    """It might have read it here, and not at a broker that has not come to it yet."""
    one = OneBroker("d-tx-ni", neighbours=["B1"])
    one.here("A", "D")
    one.holds("A", "adv", P)
    tx = one.begin("D", sub("D", P), commit=True)
    assert read_by_d_tx(one) == "conflict"
    one.hear("B1", Decided(tx))
    assert read_by_d_tx(one) == "", "B1 is asked for its vote"


def test_an_abort_is_over_when_all_is_undone_everywhere() -> None:
    """Until then a D-TX could read, elsewhere, what was never committed."""
    one = OneBroker("d-tx-ni", neighbours=["B1"])
    one.here("A", "D")
    one.holds("A", "adv", P)
    one.behind("B1", "E1")
    one.knows("B1", "E1", "adv", P)
    tx = one.begin("D", sub("D", P))
    said = one.say("D", Abort(tx))
    undo = of_kind(said, Operation, "B1")[0]
    assert not of_kind(one.hear("B1", Decided(tx)), Forget)
    assert read_by_d_tx(one) == "conflict"
    assert of_kind(one.send("B1", Done(undo.req)), Forget, "B1")
    assert read_by_d_tx(one) == ""
