"""D-TX, step by step (Section 4, Algorithms 1 to 3): one broker, one message at a time.

Where ours differs from what is printed, the test's docstring says how. What is the same in D-TX-NI
is tried with both; what is left out there is in `test_paper_d_tx_ni`.
"""

from __future__ import annotations

import pytest

from overlay.effects import Forward
from overlay.errors import ProtocolError
from overlay.messages import AnyMessage, BrokerName, Hop, Kind, Operation, Pub
from padres_tx.client_messages import (
    Applied,
    Began,
    Commit,
    Drained,
    Ended,
    Finish,
    Operated,
    Tcm,
    TxID,
)
from padres_tx.engines.d_tx.broker import DTx
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
from tests.protocol.steps import adv, box, pub, sub, tcm, usub

DYNAMIC = ["d-tx", "d-tx-ni"]

P = box(class_="p")
Q = box(class_="q")

#: A transaction whose coordinator is behind B1, and another one.
TX = ("E1", 0, 1)
OTHER = ("F1", 0, 1)


def middle(engine: str = "d-tx") -> OneBroker:
    """B2 between B1 and B3, with D and A; E1 and F1 are behind B1, and E1 may publish p."""
    one = OneBroker(engine)
    one.here("D", "A")
    one.behind("B1", "E1", "F1")
    one.knows("B1", "E1", "adv", P)
    return one


def leaf(engine: str = "d-tx") -> OneBroker:
    """B2 with B1 as its only neighbour."""
    one = OneBroker(engine, neighbours=["B1"])
    one.here("D", "A")
    one.behind("B1", "E1", "F1")
    one.knows("B1", "E1", "adv", P)
    return one


def publication(n: int = 1, **more: str) -> Pub:
    return Pub("E1", n, {"class": "p", "n": n, **more})


def decisions(said: list[Said]) -> list[tuple[str, bool]]:
    return [(to, message.committed) for to, message in said if isinstance(message, Decide)]


# --- Algorithm 1: initialisation ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_coordinators_broker_informs_every_neighbour(engine: str) -> None:
    """Lines 5 and 13-15. Nobody acknowledges: on FIFO links Init is there before what follows."""
    one = middle(engine)
    tx, said = one.begun("D")
    assert to_whom(said, Init) == ["B1", "B3"]
    assert of_kind(said, Began, "@D")[0].tx == tx, "the client need not wait for the others"


def test_the_coordinators_broker_says_what_others_may_have_committed() -> None:
    """Line 2 takes the latest committed id as the snapshot, which two brokers can understand
    differently. What was voted for and is undecided where it begins is the same for all."""
    one = middle()

    def undecided() -> tuple[TxID, ...]:
        _, said = one.begun("D")
        found: tuple[TxID, ...] = of_kind(said, Init)[0].undecided
        return found

    one.hear("B1", Init(OTHER, 1))
    assert undecided() == (), "nobody can commit it without this broker's vote"
    one.hear("B1", Prepare(OTHER))
    assert undecided() == (), "B3 has not voted, so this broker has not"
    one.hear("B3", Vote(OTHER))
    assert undecided() == (OTHER,)
    one.hear("B1", Decide(OTHER, True))
    assert undecided() == ()


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_broker_on_the_way_passes_it_on_but_not_back(engine: str) -> None:
    """Lines 5 and 13-15."""
    assert to_whom(middle(engine).hear("B1", Init(TX, 1)), Init) == ["B3"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_broker_at_the_end_only_takes_it_in(engine: str) -> None:
    """Lines 6-11, without the acknowledgement."""
    one = leaf(engine)
    assert one.hear("B1", Init(TX, 1)) == []
    assert not one.at_rest, "it is active here"


def test_the_snapshot_is_what_is_committed_here_without_what_was_undecided_there() -> None:
    """Lines 7 and 22; nothing is copied, the snapshot is a view."""
    one = leaf()
    committed(one, OTHER, Operation(0, "sub", "F1", 1, P))
    for tx, undecided, sees in ((TX, (), True), (("E1", 0, 2), (OTHER,), False)):
        one.hear("B1", Init(tx, 2, undecided))
        one.hear("B1", TxOperation(tx, 5, pub=publication(), tcm=True))
        engine = one.broker.engines["d-tx"]
        view = engine.scope(engine.txs[tx]).view  # type: ignore[attr-defined]
        assert ("B1" in one.broker.routing.prt.hops({"class": "p"}, view)) == sees


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_transaction_keeps_the_age_of_its_first_attempt(engine: str) -> None:
    one = middle(engine)
    one.hear("B1", Init(OTHER, 17))
    tx, said = one.begun("D")
    assert of_kind(said, Began)[0].age == 18, "what comes later is younger"
    one.hear("B1", AbortRequest(tx, "conflict", "lost", "F1"))
    _, said = one.begun("A")
    assert of_kind(said, Began)[0].age == 19
    _, said = one.begun("D", age=18)
    assert of_kind(said, Began)[0].age == 18 and {m.age for m in of_kind(said, Init)} == {18}


# --- Algorithm 2: operations ---


def test_an_operation_changes_the_transactions_own_state() -> None:
    """Lines 2-3."""
    one = middle()
    one.hear("B1", Init(TX, 1))
    before = one.tables()
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 2, Q)))
    assert one.tables() == before, "for everybody else it is not there"
    one.hear("B1", Prepare(TX))
    one.hear("B3", Vote(TX))
    one.hear("B1", Decide(TX, True))
    assert "B1: E1 sub [class,eq,'q']" in one.tables()["prt"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_it_goes_where_the_transactions_routing_state_says(engine: str) -> None:
    """Lines 15-18: an advertisement of the same transaction attracts a subscription in it."""
    one = middle(engine)
    tx, said = one.begun("D", adv("D", Q))
    one.acknowledged(said)
    one.hear("B3", TxOperation(tx, 0, Operation(0, "sub", "X3", 1, Q)))
    said = one.operate(tx, pub("D", class_="q"))
    assert to_whom(said, TxOperation) == ["B3"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_buffered_subscription_is_on_its_way_before_the_advertisement_is_acknowledged(
    engine: str,
) -> None:
    """Lines 6-14 and 27 (corrected: also no triggered operation may be pending)."""
    one = leaf(engine)
    one.holds("D", "sub", Q)
    one.hear("B1", Init(TX, 1))
    said = one.acknowledged(one.hear("B1", TxOperation(TX, 5, Operation(0, "adv", "E1", 2, Q))))
    kinds = [type(message) for _, message in said]
    assert [kind for kind in kinds if kind in (TxOperation, Acked)] == [TxOperation, Acked]
    assert said[0].message.operation.kind == "sub" and said[0].message.operation.client == "D"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_with_nothing_to_forward_and_nothing_triggered_it_is_acknowledged_at_once(
    engine: str,
) -> None:
    """Lines 19-20 (corrected: both sets are empty, not both full)."""
    one = leaf(engine)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, Operation(0, "adv", "E1", 2, Q)))
    assert [(to, acked.req) for to, acked in said if isinstance(acked, Acked)] == [("B1", 5)]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_with_something_forwarded_it_is_not_acknowledged_yet(engine: str) -> None:
    """Lines 16-18, and line 19 corrected: as printed, this one would be acknowledged."""
    one = middle(engine)
    one.holds("D", "sub", Q)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, Operation(0, "adv", "E1", 2, Q)))
    assert to_whom(said, TxOperation) == ["B3", "B1"] and not of_kind(said, Acked)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_last_acknowledgement_is_passed_on(engine: str) -> None:
    """Lines 23-28, at a broker with three neighbours."""
    one = OneBroker(engine, neighbours=["B1", "B3", "B4"])
    one.behind("B1", "E1")
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, Operation(0, "adv", "E1", 2, Q)))
    asked = {to: op.req for to, op in said if isinstance(op, TxOperation)}
    assert sorted(asked) == ["B3", "B4"]
    assert one.hear("B4", Acked(TX, asked["B4"])) == []
    said = one.hear("B3", Acked(TX, asked["B3"]))
    assert [(to, acked.req) for to, acked in said] == [("B1", 5)]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_at_the_edge_the_last_acknowledgement_goes_to_the_client(engine: str) -> None:
    """Line 28, where the origin is the client."""
    one = leaf(engine)
    tx, said = one.begun("D", adv("D", Q))
    req = of_kind(said, TxOperation, "B1")[0].req
    assert not of_kind(said, Operated)
    assert to_whom(one.hear("B1", Acked(tx, req)), Operated) == ["@D"]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_tcm_is_acknowledged_when_its_receiver_has_finished(engine: str) -> None:
    """The same mechanism at clients: first what the tcm asks for, then its acknowledgement."""
    one = leaf(engine)
    one.holds("D", "sub", P)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, pub=publication(), tcm=True))
    assert not of_kind(said, Acked)
    frame = of_kind(said, Tcm, "@D")[0].frame
    said = one.operate(TX, usub("D", P), frame=frame, client="D")
    said = one.acknowledged(said)
    assert not of_kind(said, Acked), "it may have more to say"
    said = one.say("D", Finish(TX, frame))
    assert [(to, a.req, a.receivers) for to, a in said if isinstance(a, Acked)] == [("B1", 5, 1)]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_tcm_for_two_clients_waits_for_both(engine: str) -> None:
    one = leaf(engine)
    one.holds("D", "sub", P)
    one.holds("A", "sub", P)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, pub=publication(), tcm=True))
    frames = {to: told.frame for to, told in said if isinstance(told, Tcm)}
    assert not of_kind(one.say("A", Finish(TX, frames["@A"])), Acked)
    assert of_kind(one.say("D", Finish(TX, frames["@D"])), Acked)[0].receivers == 2


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_tcm_that_nobody_receives_is_an_abort_and_not_a_wait(engine: str) -> None:
    one = leaf(engine)
    one.holds("D", "adv", Q)
    _, said = one.begun("D", tcm("D", class_="q"), sub("D", P))
    ended = of_kind(said, Ended, "@D")[0]
    assert not ended.committed and ended.code == "unheard" and "no client receives" in ended.reason
    assert not of_kind(said, Operated) and decisions(said) == [("B1", False)]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_publications_are_kept_here_until_the_decision(engine: str) -> None:
    one = leaf(engine)
    one.holds("D", "sub", P)
    one.hear("B1", Init(TX, 1))
    for n in (1, 2):
        assert not pubs(one.hear("B1", TxOperation(TX, 0, pub=publication(n))), "D")
    if engine == "d-tx":
        one.hear("B1", Prepare(TX))
    said = one.hear("B1", Decide(TX, True))
    assert [point["n"] for point in pubs(said, "D")] == [1, 2]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_an_operation_of_an_aborted_transaction_changes_nothing_for_good(engine: str) -> None:
    one = leaf(engine)
    before = one.tables()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Decide(TX, False, "aborted", "so"))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Forget(TX))
    assert one.tables() == before and one.at_rest


# --- Algorithm 3: prepare ---


def test_a_broker_at_the_end_votes_at_once() -> None:
    """Lines 16-18."""
    one = leaf()
    one.hear("B1", Init(TX, 1))
    assert one.hear("B1", Prepare(TX)) == [Said("B1", Vote(TX))]


def test_prepare_is_passed_on_and_the_vote_waits_for_those_behind() -> None:
    """Lines 15-22 and 29-31."""
    one = middle()
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", Prepare(TX))
    assert said == [Said("B3", Prepare(TX))]
    assert one.hear("B3", Vote(TX)) == [Said("B1", Vote(TX))]


def test_a_no_from_behind_is_a_no() -> None:
    """Line 27; nobody need wait for the others then."""
    one = OneBroker("d-tx", neighbours=["B1", "B3", "B4"])
    one.behind("B1", "E1")
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Prepare(TX))
    assert one.hear("B3", Vote(TX, "conflict", "so")) == [Said("B1", Vote(TX, "conflict", "so"))]
    assert one.hear("B4", Vote(TX)) == [], "one vote is enough"


def test_the_coordinators_broker_decides_when_all_have_voted() -> None:
    """The commit round: with every vote a yes, all are told to commit."""
    one = middle()
    tx = one.begin("D")
    assert to_whom(one.say("D", Commit(tx)), Prepare) == ["B1", "B3"]
    assert decisions(one.hear("B3", Vote(tx))) == []
    said = one.hear("B1", Vote(tx))
    assert decisions(said) == [("B1", True), ("B3", True)]
    assert of_kind(said, Ended, "@D")[0].committed


def test_the_coordinators_broker_aborts_on_the_first_no() -> None:
    one = middle()
    tx = one.begin("D", commit=True)
    said = one.hear("B3", Vote(tx, "conflict", "conflicts with F1:0:1 on x"))
    assert decisions(said) == [("B1", False), ("B3", False)]
    ended = of_kind(said, Ended, "@D")[0]
    assert (ended.committed, ended.code) == (False, "conflict") and "F1:0:1" in ended.reason


def test_all_operations_come_before_prepare() -> None:
    """The coordinator's operations are done before the termination phase begins."""
    one = leaf()
    tx, said = one.begun("D", adv("D", Q), commit=True)
    assert not of_kind(said, Prepare)
    assert to_whom(one.hear("B1", Acked(tx, of_kind(said, TxOperation)[0].req)), Prepare) == ["B1"]


def test_a_publication_that_has_read_what_another_has_changed_since_votes_no() -> None:
    """Lines 11-12, and the reason names what it was about."""
    one = leaf()
    one.holds("D", "sub", P)
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    committed(one, OTHER, Operation(0, "sub", "F1", 1, P))
    vote = of_kind(one.hear("B1", Prepare(TX)), Vote)[0]
    assert vote.code == "conflict"
    assert vote.reason == "conflicts with F1:0:1 on [class,eq,'p']"


def test_what_was_committed_before_the_snapshot_is_no_conflict() -> None:
    one = leaf()
    committed(one, OTHER, Operation(0, "sub", "F1", 1, P))
    one.hear("B1", Init(TX, 2))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    assert of_kind(one.hear("B1", Prepare(TX)), Vote)[0].code == ""


def test_changes_elsewhere_in_the_event_space_are_no_conflict() -> None:
    """Line 14; the paper waits for all that is ordered before, ours for what conflicts."""
    one = leaf()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    committed(one, OTHER, Operation(0, "sub", "F1", 1, Q))
    assert of_kind(one.hear("B1", Prepare(TX)), Vote)[0].code == ""


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Operation(0, "sub", "E1", 9, P), Operation(0, "adv", "F1", 9, P)),
        (Operation(0, "adv", "E1", 9, Q), Operation(0, "sub", "F1", 9, Q)),
        (Operation(0, "usub", "E1", 9, P), Operation(0, "adv", "F1", 9, P)),
        (Operation(0, "uadv", "E1", 9, P), Operation(0, "sub", "F1", 9, P)),
    ],
)
def test_routing_operations_are_validated_as_well(mine: Operation, theirs: Operation) -> None:
    """Line 11 looks at publications only: `{sub(x)}` and `{adv(x)}` would never meet."""
    one = leaf()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, mine))
    committed(one, OTHER, theirs)
    assert of_kind(one.hear("B1", Prepare(TX)), Vote)[0].code == "conflict"


def test_the_older_one_waits_for_a_younger_one_that_is_prepared() -> None:
    """Lines 2-3, but for what conflicts, and by age: so nobody waits in a circle."""
    one = leaf()
    _prepared(one, OTHER, age=2)
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    assert not of_kind(one.hear("B1", Prepare(TX)), Vote)
    said = one.hear("B1", Decide(OTHER, False, "aborted", "so"))
    assert of_kind(said, Vote) == [Vote(TX)], "and looks again at the decision"


def test_what_it_has_waited_for_can_still_cost_it_the_commit() -> None:
    one = leaf()
    _prepared(one, OTHER, age=2)
    one.hear("B1", Init(TX, 1, (OTHER,)))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Prepare(TX))
    said = one.hear("B1", Decide(OTHER, True))
    assert [vote.code for vote in of_kind(said, Vote)] == ["conflict"]


def test_the_younger_one_gives_way_to_an_older_one_that_is_prepared() -> None:
    one = leaf()
    _prepared(one, OTHER, age=1)
    one.hear("B1", Init(TX, 2))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    assert of_kind(one.hear("B1", Prepare(TX)), Vote)[0].code == "conflict"


def test_it_conflicts_also_if_only_the_other_one_has_read() -> None:
    """Symmetric: each could be prepared first at another broker, and both would commit."""
    one = leaf()
    one.hear("B1", Init(OTHER, 1))
    one.hear("B1", TxOperation(OTHER, 0, pub=Pub("E1", 9, {"class": "p"})))
    one.hear("B1", Prepare(OTHER))
    one.hear("B1", Init(TX, 2))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 2, P)))
    assert of_kind(one.hear("B1", Prepare(TX)), Vote)[0].code == "conflict"


def test_what_does_not_conflict_with_a_prepared_one_does_not_wait() -> None:
    one = leaf()
    _prepared(one, OTHER, age=1)
    one.hear("B1", Init(TX, 2))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 2, Q)))
    assert of_kind(one.hear("B1", Prepare(TX)), Vote) == [Vote(TX)]


@pytest.mark.parametrize("kind", ["sub", "adv"])
def test_two_that_are_prepared_at_once_both_commit_if_they_do_not_conflict(kind: Kind) -> None:
    """Two clients may subscribe to the same, or advertise the same: neither reads the other."""
    one = leaf()
    one.hear("B1", Init(OTHER, 1))
    one.hear("B1", Init(TX, 2))
    one.hear("B1", TxOperation(OTHER, 0, Operation(0, kind, "F1", 7, Q)))
    one.hear("B1", TxOperation(TX, 0, Operation(0, kind, "E1", 7, Q)))
    assert of_kind(one.hear("B1", Prepare(OTHER)), Vote) == [Vote(OTHER)]
    assert of_kind(one.hear("B1", Prepare(TX)), Vote) == [Vote(TX)]


def test_a_plain_operation_since_the_snapshot_is_a_conflict() -> None:
    one = leaf()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.holds("D", "sub", P)
    vote = of_kind(one.hear("B1", Prepare(TX)), Vote)[0]
    assert vote.code == "conflict" and "a plain operation" in vote.reason


def test_a_plain_operation_waits_for_a_prepared_one_that_it_conflicts_with() -> None:
    one = leaf()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Prepare(TX))
    assert one.send("@D", Operation(90, "sub", "D", 90, P)) == []
    assert one.wanted_by(class_="p") == []
    one.hear("B1", Decide(TX, True))
    assert one.wanted_by(class_="p") == ["@D"]


def test_a_neighbours_yes_does_not_count_when_it_was_ahead() -> None:
    """What is held here, and was carried out there before the vote, was seen there only."""
    one = middle()
    one.behind("B3", "F3")
    one.knows("B3", "F3", "sub", P)
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Prepare(TX))
    assert one.send("B3", Operation(90, "usub", "F3", 90, P, drop=(1,))) == []
    vote = of_kind(one.hear("B3", Vote(TX)), Vote)[0]
    assert vote.code == "conflict" and "a plain operation of F3" in vote.reason


@pytest.mark.parametrize("code", ["broker", "doomed", "deadline"])
def test_a_neighbours_no_keeps_its_own_reason(code: str) -> None:
    """It is no conflict, which would be tried again, though one is held here as well."""
    one = middle()
    one.behind("B3", "F3")
    one.knows("B3", "F3", "sub", P)
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Prepare(TX))
    one.send("B3", Operation(90, "usub", "F3", 90, P, drop=(1,)))
    assert of_kind(one.hear("B3", Vote(TX, code, "so")), Vote, "B1") == [Vote(TX, code, "so")]


def test_a_neighbours_yes_counts_when_it_voted_first() -> None:
    one = middle()
    one.behind("B3", "F3")
    one.knows("B3", "F3", "sub", P)
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    one.hear("B1", Prepare(TX))
    assert of_kind(one.hear("B3", Vote(TX)), Vote) == [Vote(TX)]
    assert one.send("B3", Operation(90, "usub", "F3", 90, P, drop=(1,))) == []
    assert one.wanted_by(class_="p") == ["B3"]


# --- the commit round ---


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_decision_is_flooded_and_acknowledged_in_reverse(engine: str, committed: bool) -> None:
    one = middle(engine)
    one.hear("B1", Init(TX, 1))
    if committed and engine == "d-tx":
        one.hear("B1", Prepare(TX))
        one.hear("B3", Vote(TX))
    said = one.hear("B1", Decide(TX, committed))
    assert decisions(said) == [("B3", committed)] and not of_kind(said, Decided)
    assert one.hear("B3", Decided(TX)) == [Said("B1", Decided(TX))]


@pytest.mark.parametrize("engine", DYNAMIC)
def test_when_all_have_it_the_coordinator_is_told_and_all_forget(engine: str) -> None:
    one = leaf(engine)
    tx = one.begin("D", sub("D", Q), commit=True)
    if engine == "d-tx":
        one.hear("B1", Vote(tx))
    said = one.hear("B1", Decided(tx))
    assert to_whom(said, Applied) == ["@D"]
    assert to_whom(said, Drained) == ["@D"] and to_whom(said, Forget) == ["B1"]
    assert one.at_rest


def test_a_commit_is_seen_by_all_and_nothing_is_sent_again() -> None:
    one = middle()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 2, Q)))
    one.hear("B1", Prepare(TX))
    one.hear("B3", Vote(TX))
    said = one.hear("B1", Decide(TX, True))
    assert not of_kind(said, TxOperation) and not of_kind(said, Operation)
    assert one.wanted_by(class_="q") == ["B1"]


def test_an_abort_discards_what_the_transaction_had() -> None:
    one = middle()
    one.holds("D", "sub", P)
    before = one.tables()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", TxOperation(TX, 0, Operation(0, "sub", "E1", 2, Q)))
    one.hear("B1", TxOperation(TX, 0, pub=publication()))
    said = one.hear("B1", Decide(TX, False, "aborted", "so"))
    assert not pubs(said, "D") and one.tables() == before
    one.hear("B3", Decided(TX))
    one.hear("B1", Forget(TX))
    assert one.tables() == before and one.at_rest


def test_a_plain_publication_that_has_not_seen_it_is_routed_as_before_it() -> None:
    """The stamp of the publisher's edge broker names what was undecided there."""
    one = leaf()
    one.holds("D", "sub", P)
    one.hear("B1", Init(TX, 1))
    # The stream moves from D to A, at this broker and in one transaction.
    engine = one.broker.engines["d-tx"]
    said = one.hear("B1", TxOperation(TX, 7, pub=publication(), tcm=True))
    frame = of_kind(said, Tcm, "@D")[0].frame
    one.operate(TX, usub("D", P), frame=frame, client="D")
    one.say("D", Finish(TX, frame))
    one.hear("B1", Prepare(TX))
    one.hear("B1", Decide(TX, True))
    assert engine.txs[TX].status == "committed"
    before = one.send("B1", Pub("E1", 5, {"class": "p"}, hidden=(TX,)))
    after = one.send("B1", Pub("E1", 6, {"class": "p"}))
    assert pubs(before, "D") and not pubs(after, "D")


def test_a_publication_is_stamped_from_the_vote_to_the_decision() -> None:
    """What this broker has not voted for is not committed anywhere before the publication comes."""
    one = middle()
    one.holds("D", "adv", Q)
    one.knows("B1", "E1", "sub", Q)

    def stamp() -> tuple[TxID, ...]:
        said = one.send("@D", Pub("D", 1, {"class": "q"}))
        found: tuple[TxID, ...] = of_kind(said, Pub, "B1")[0].hidden
        return found

    one.hear("B1", Init(TX, 1))
    assert stamp() == ()
    one.hear("B1", Prepare(TX))
    assert stamp() == (), "B3 has not voted, so this broker has not"
    one.hear("B3", Vote(TX))
    assert stamp() == (TX,)
    one.hear("B1", Decide(TX, True))
    assert stamp() == ()
    one.hear("B1", Init(OTHER, 1))
    one.hear("B1", Prepare(OTHER))
    one.hear("B3", Vote(OTHER, "conflict", "not here"))
    assert stamp() == (), "a no is no promise"


def test_a_publication_at_the_coordinators_own_broker_is_not_stamped() -> None:
    """The decision leaves there behind it, on every link."""
    one = middle()
    one.holds("D", "adv", Q)
    one.knows("B1", "E1", "sub", Q)
    tx = one.begin("D", commit=True)
    assert tx in one.broker.versions.open
    one.hear("B1", Vote(tx))
    said = one.send("@D", Pub("D", 1, {"class": "q"}))
    assert of_kind(said, Pub, "B1")[0].hidden == ()


def test_what_a_lost_neighbour_was_to_decide_is_in_no_stamp() -> None:
    one = leaf()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Prepare(TX))
    assert one.broker.versions.stamp == (TX,)
    one.see(one.broker.link_reset(BrokerName("B1"), 0.0))
    assert one.broker.versions.stamp == (), "it is aborted here"


def test_begun_transactions_cost_plain_traffic_nothing() -> None:
    """Publications go by the batch and carry nothing; a plain operation is written down once."""
    one = middle()
    one.broker.trace = False
    one.holds("D", "adv", Q)
    one.knows("B1", "E1", "sub", Q)
    for n in range(500):
        one.begin("D")
        one.hear("B1", Init(("E1", 0, n), n))
    published: list[AnyMessage] = [Pub("D", n, {"class": "q"}) for n in range(8)]
    taken = one.broker.take(Hop("@D"), published, 0.0)
    assert taken.effects == [Forward((Hop("B1"),), 0, 8)]
    assert of_kind(one.send("@D", published[0]), Pub, "B1") == [published[0]]
    for _ in range(10):
        one.holds("D", "sub", P)
        one.holds("D", "usub", P)
    engine = one.broker.engines["d-tx"]
    assert isinstance(engine, DTx) and len(engine._plain_writes) == 1


def test_the_old_version_goes_when_nobody_can_need_it() -> None:
    one = leaf()
    one.hear("B1", Init(OTHER, 1))
    one.hear("B1", Init(TX, 2, (OTHER,)))  # Its snapshot is without OTHER.
    one.hear("B1", TxOperation(OTHER, 0, Operation(0, "sub", "F1", 1, Q)))
    one.hear("B1", Prepare(OTHER))
    one.hear("B1", Decide(OTHER, True))
    one.hear("B1", Forget(OTHER))
    versions = one.broker.versions
    assert OTHER in versions.retired and versions.view() is None, "only TX needs the state before"
    assert not one.broker.routing.is_plain
    one.hear("B1", Decide(TX, False))
    assert not versions.retired and one.broker.routing.is_plain


# --- what cannot be done is told to who decides ---


@pytest.mark.parametrize("engine", DYNAMIC)
def test_what_cannot_be_done_here_dooms_it_at_its_coordinators_broker(engine: str) -> None:
    one = leaf(engine)
    one.holds("D", "sub", P)
    one.hear("B1", Init(TX, 1))
    said = one.hear("B1", TxOperation(TX, 5, pub=publication(), tcm=True))
    frame = of_kind(said, Tcm, "@D")[0].frame
    said = one.say("D", Finish(TX, frame, "I will not"))
    assert [
        (to, doom.code, doom.reason) for to, doom in said if isinstance(doom, AbortRequest)
    ] == [("B1", "participant", "D: I will not")]
    assert not of_kind(said, Acked)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_coordinators_broker_aborts_what_is_doomed(engine: str) -> None:
    one = middle(engine)
    tx = one.begin("D", sub("D", Q))
    said = one.hear("B3", AbortRequest(tx, "participant", "A2: no"))
    assert decisions(said) == [("B1", False), ("B3", False)]
    assert of_kind(said, Ended, "@D")[0].reason == "A2: no"


@pytest.mark.parametrize("engine", DYNAMIC)
def test_only_the_coordinators_side_decides(engine: str) -> None:
    one = middle(engine)
    one.hear("B1", Init(TX, 1))
    with pytest.raises(ProtocolError, match="B3 does not decide E1:0:1"):
        one.hear("B3", Decide(TX, True))


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_deadline_ends_it_with_what_it_has_waited_for(engine: str) -> None:
    one = leaf(engine)
    one.begin("D", adv("D", Q), deadline_s=2.5)
    (key,) = one.timers
    assert one.timers[key] == 2.5
    said = one.ring(key)
    ended = of_kind(said, Ended, "@D")[0]
    assert ended.code == "deadline" and "1 operation under way" in ended.reason
    assert decisions(said) == [("B1", False)]


# --- for these tests ---


def committed(one: OneBroker, tx: tuple[str, int], operation: Operation) -> None:
    """Let another transaction, coordinated behind B1, be committed here with one operation."""
    one.hear("B1", Init(tx, 1))
    one.hear("B1", TxOperation(tx, 0, operation))
    one.hear("B1", Prepare(tx))
    one.hear("B1", Decide(tx, True))


def _prepared(one: OneBroker, tx: tuple[str, int], age: int) -> None:
    """Let another transaction that subscribes to p be prepared here, with a yes."""
    one.hear("B1", Init(tx, age))
    one.hear("B1", TxOperation(tx, 0, Operation(0, "sub", "F1", 1, P)))
    assert of_kind(one.hear("B1", Prepare(tx)), Vote) == [Vote(tx)]
