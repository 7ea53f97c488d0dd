"""The client's half of transactions, message by message: what it says, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overlay.errors import NotAdvertised, NotHeld, ProtocolError
from overlay.filters import Filter
from overlay.messages import ClientName, Done, EngineMessage
from overlay.wire.frames import FrameTooLarge
from padres_tx import client_messages, static
from padres_tx.client import transactions
from padres_tx.client.holdings import UNDRAINED_LIMIT
from padres_tx.client.session import Event, Notification, SendMessage, Session
from padres_tx.client.transactions import (
    ClientTransaction,
    CommitApplied,
    CommitDrained,
    OperationDone,
    Result,
    SendForOperation,
    TcmReceived,
    TransactionEnded,
    Transactions,
)
from padres_tx.errors import (
    BadTransaction,
    NotCoordinator,
    TooManyRequests,
    TransactionAborted,
    TransactionFinished,
    UnknownEngine,
    UnknownTransaction,
)
from padres_tx.static import Op

P1 = Filter({"class": "p1"})
X1 = Filter({"class": "p1", "x": "x1"})
AT_X1 = {"class": "p1", "x": "x1"}


class Half:
    """A client that has joined, with its transactions; the test is its broker."""

    def __init__(self, name: str = "E") -> None:
        self.session = Session(name)
        self.session.receive(Done(self.session.join().req))
        self.transactions = Transactions(self.session)
        #: The last number that the broker has given to an operation.
        self.numbers = 0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def plain(self, kind: Any, filter: Filter, callback: str | None = None) -> None:
        operation = self.session.operate(kind, filter, callback)
        self.session.receive(Done(operation.req, number=self.number()))

    def callbacks(self, point: dict[str, Any], *hidden: client_messages.TxID) -> list[str]:
        return self.session.callbacks(Notification(ClientName("E"), 1, point, b"", hidden))

    def effective(self, kind: Any, filter: Filter, call: int = 0) -> client_messages.Effective:
        return client_messages.Effective(kind, filter, self.number(), call)

    def begin(self, engine: str = "d-tx", **terms: Any) -> ClientTransaction:
        tx, events = self.transactions.begin(engine, **terms)
        assert [type(message).__name__ for message in said(events)] in (["Begin"], [])
        return tx

    def do(self, tx: ClientTransaction, op: Op, frame: int = 0, callback: str | None = None) -> int:
        return self.transactions.operate(tx, frame, op, callback)[0]

    def told(self, *messages: client_messages.ToClient, engine: str = "d-tx") -> list[Event]:
        events: list[Event] = []
        for message in messages:
            body = client_messages.to_client.encode(message)
            events += self.session.receive(client_messages.engine_message(engine, body))
        return events


def said(events: list[Event]) -> list[Any]:
    """What the events tell to send."""
    messages = [
        event.message for event in events if isinstance(event, SendMessage | SendForOperation)
    ]
    for message in messages:
        assert isinstance(message, EngineMessage)
    return [client_messages.from_client.decode(message.body) for message in messages]


# --- the coordinator ---


def test_a_transaction_is_named_by_its_client_and_a_number_of_its_own() -> None:
    half = Half()
    half.plain("adv", P1)
    tx, events = half.transactions.begin("d-tx", deadline_s=5)
    assert tx.name == "E:0:3" and tx.id == ("E", 0, 3)
    assert said(events) == [client_messages.Begin(("E", 0, 3), 5.0)]
    assert half.transactions.find("E:0:3") is tx
    assert half.session.publish(AT_X1).seq == 4, "one numbering serves everything"


def test_operations_go_out_as_they_come_and_are_answered_one_by_one() -> None:
    half = Half()
    half.plain("adv", P1)
    tx = half.begin()
    first, events = half.transactions.operate(tx, 0, static.pub(AT_X1, b"hello"))
    assert said(events) == [
        client_messages.Operate(
            tx.id, 0, first, client_messages.Step("E", "pub", None, AT_X1, b"hello", first), True
        )
    ]
    second, events = half.transactions.operate(tx, 0, static.sub(X1))
    assert said(events)[0].step == client_messages.Step("E", "sub", X1, seq=second)
    assert list(tx.pending) == [first, second]
    assert half.told(client_messages.Operated(tx.id, 0, first)) == [OperationDone(tx, first)]
    assert list(tx.pending) == [second]


def test_the_commit_is_asked_for_once_and_ends_it() -> None:
    half = Half()
    tx = half.begin()
    assert said(half.transactions.commit(tx)) == [client_messages.Commit(tx.id)]
    for act in (half.transactions.commit, lambda tx: half.do(tx, static.sub(X1))):
        with pytest.raises(TransactionFinished, match="E:0:2 is committing already"):
            act(tx)
    result = Result("E:0:2", "d-tx", "committed")
    assert half.told(client_messages.Ended(tx.id, True)) == [TransactionEnded(tx, result)]
    assert tx.result == result and tx.result.committed
    for act in (half.transactions.commit, half.transactions.abort):
        with pytest.raises(TransactionFinished, match="ended already"):
            act(tx)
    with pytest.raises(TransactionFinished, match="E:0:2 is committed already"):
        half.do(tx, static.sub(X1))
    assert half.told(client_messages.Applied(tx.id), client_messages.Drained(tx.id)) == [
        CommitApplied("E:0:2"),
        CommitDrained("E:0:2"),
    ]


def test_an_abort_can_overtake_a_commit_that_was_asked_for() -> None:
    half = Half()
    tx = half.begin()
    half.transactions.commit(tx)
    assert said(half.transactions.abort(tx, "changed my mind")) == [
        client_messages.Abort(tx.id, "changed my mind")
    ]
    with pytest.raises(TransactionFinished, match="aborting already"):
        half.transactions.abort(tx)
    half.told(client_messages.Ended(tx.id, True))
    assert tx.result is not None and tx.result.committed, "or not: the broker decides"


def test_what_others_have_aborted_is_told_once_and_then_finished() -> None:
    half = Half()
    tx = half.begin()
    half.told(
        client_messages.Ended(tx.id, False, "conflict", "conflicts with C:0:7 on [class,eq,'p1']")
    )
    for _ in range(2):
        with pytest.raises(
            TransactionAborted, match="E:0:2 was aborted: conflicts with C:0:7"
        ) as lost:
            half.do(tx, static.sub(X1))
        assert lost.value.code == "conflict"
    assert half.transactions.commit(tx) == [], "there is a result already"
    with pytest.raises(TransactionFinished, match="E:0:2 is aborted already"):
        half.do(tx, static.sub(X1))


def test_the_age_of_an_attempt_is_kept_for_the_next() -> None:
    half = Half()
    tx = half.begin()
    half.told(client_messages.Began(tx.id, 17))
    assert tx.age == 17
    _, events = half.transactions.begin("d-tx", age=17)
    assert said(events) == [client_messages.Begin(("E", 0, 3), transactions.DEADLINE_S, 17)]


# --- what the caller gets wrong ---


def test_unknown_and_foreign_transactions_are_told_apart() -> None:
    half = Half()
    for name, reason in (
        ("E:0:9", "has not begun .*, or it has ended long ago"),
        ("F:0:9", "E takes no part in F:0:9 of F"),
        ("nonsense", "invalid transaction id"),
        (":9", "invalid transaction id"),
        ("E:x", "invalid transaction id"),
        (("E", 0, 9), "invalid transaction id"),
    ):
        with pytest.raises(UnknownTransaction, match=reason):
            half.transactions.find(name)  # type: ignore[arg-type]


def test_bad_terms_are_refused_at_the_call() -> None:
    half = Half()
    with pytest.raises(UnknownEngine, match="no transaction engine 'e-tx'"):
        half.begin("e-tx")
    with pytest.raises(BadTransaction, match="unknown option 'wait_s' of a d-tx transaction"):
        half.begin(wait_s=1)
    with pytest.raises(BadTransaction, match="'speed' of a bl-wait transaction: expected wait_s"):
        half.begin("bl-wait", speed=1)
    for deadline_s in (0, -1, float("nan"), float("inf"), 1e9, "soon", True, None):
        with pytest.raises(BadTransaction, match=r"deadline_s .*: expected seconds above 0"):
            half.begin(deadline_s=deadline_s)
    assert half.session.number() == 2, "nothing was begun"


def test_what_the_broker_would_refuse_anyway_raises_at_the_call() -> None:
    half = Half()
    tx = half.begin()
    for op in (static.pub(AT_X1), static.tcm(AT_X1)):
        with pytest.raises(NotAdvertised, match="E has not advertised"):
            half.do(tx, op)
    for op in (static.usub(X1), static.uadv(X1)):
        with pytest.raises(NotHeld, match="E holds no part of"):
            half.do(tx, op)
    assert not tx.pending
    # What the transaction itself has said counts.
    for op in (static.adv(P1), static.pub(AT_X1), static.uadv(X1), static.sub(P1), static.usub(X1)):
        half.do(tx, op)


def test_nested_operations_are_for_static_transactions() -> None:
    half = Half()
    half.plain("adv", P1)
    tx = half.begin()
    for op in (static.tcm(AT_X1, ops={"D": []}), static.sub(X1, after=[])):
        with pytest.raises(BadTransaction, match=r"d-tx cannot take `ops` or `after`.*on_tcm"):
            half.do(tx, op)


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OPEN_LIMIT", 2)
    monkeypatch.setattr(transactions, "OPERATIONS_LIMIT", 2)
    half = Half()
    first, second = half.begin(), half.begin()
    with pytest.raises(TooManyRequests, match="E has 2 open transactions"):
        half.begin()
    half.told(client_messages.Ended(first.id, False, "deadline", "late"))
    half.begin()
    for _ in range(2):
        half.do(second, static.sub(X1))
    with pytest.raises(TooManyRequests, match="E:0:3 has 2 pending operations"):
        half.do(second, static.sub(X1))


def test_bytes_under_way_are_limited_over_all_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BYTES_LIMIT", 100)
    half = Half()
    half.plain("adv", P1)
    one, other = half.begin(), half.begin()
    number = half.do(one, static.pub(AT_X1, bytes(60)))
    with pytest.raises(TooManyRequests, match="E has 60 bytes pending"):
        half.do(other, static.pub(AT_X1, bytes(41)))
    half.told(client_messages.Operated(one.id, 0, number))
    half.do(other, static.pub(AT_X1, bytes(100)))
    half.told(client_messages.Ended(other.id, False, "conflict", "lost"))
    half.do(one, static.pub(AT_X1, bytes(100)))


def test_only_some_ended_transactions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "ENDED_LIMIT", 2)
    half = Half()
    txs = [half.begin() for _ in range(3)]
    for tx in txs:
        half.told(client_messages.Ended(tx.id, False, "deadline", "late"))
    with pytest.raises(UnknownTransaction, match="long ago"):
        half.transactions.find(txs[0].name)
    assert half.transactions.find(txs[1].name) is txs[1]
    # What comes for one that is forgotten is still passed on.
    assert half.told(client_messages.Drained(txs[0].id)) == [CommitDrained(txs[0].name)]


# --- those who take part ---


def called(half: Half, frame: int = 5, tx: client_messages.TxID = ("E", 0, 9)) -> ClientTransaction:
    events = half.told(client_messages.Tcm(tx, frame, "E", 10, AT_X1, b"hello"))
    assert len(events) == 1 and isinstance(events[0], TcmReceived)
    assert events[0].notification == Notification("E", 10, AT_X1, b"hello")
    assert events[0].frame == frame
    return events[0].tx


def test_a_tcm_opens_a_frame_in_which_the_client_acts_until_it_finishes_it() -> None:
    half = Half("D")
    half.plain("sub", P1)
    tx = called(half)
    assert tx.name == "E:0:9" and not tx.coordinator
    number, events = half.transactions.operate(tx, 5, static.usub(X1))
    assert said(events) == [
        client_messages.Operate(
            ("E", 0, 9), 5, number, client_messages.Step("D", "usub", X1, seq=number), True
        )
    ]
    assert said(half.transactions.finish(tx, 5)) == [client_messages.Finish(("E", 0, 9), 5)]
    assert half.transactions.finish(tx, 5) == [], "once"
    with pytest.raises(TransactionFinished, match="D has finished its part in E:0:9"):
        half.do(tx, static.sub(X1), frame=5)


def test_only_the_coordinator_commits() -> None:
    half = Half("D")
    tx = called(half)
    with pytest.raises(NotCoordinator, match="D takes part in E:0:9; only E can commit it"):
        half.transactions.commit(tx)
    assert said(half.transactions.abort(tx, "no room")) == [
        client_messages.Abort(("E", 0, 9), "no room")
    ]
    assert half.transactions.finish(tx, 5) == [], "there is nothing left to finish"


def test_a_part_that_cannot_be_done_says_why_in_one_line() -> None:
    half = Half("D")
    tx = called(half)
    finish = said(half.transactions.finish(tx, 5, "no room \ud800" + "x" * 10_000))[0]
    assert (
        finish.error.startswith("no room ?xxx") and len(finish.error) == transactions.REASON_LIMIT
    )


def test_a_client_can_be_called_again_while_it_acts() -> None:
    half = Half("D")
    tx = called(half, 5)
    assert called(half, 6) is tx
    half.transactions.finish(tx, 6)
    half.do(tx, static.sub(X1), frame=5)
    with pytest.raises(ProtocolError, match="cannot open frame 5"):
        half.told(client_messages.Tcm(("E", 0, 9), 5, "E", 11, AT_X1, b""))


def test_a_coordinator_can_be_called_in_its_own_transaction() -> None:
    half = Half("E")
    tx = half.begin()
    assert called(half, 3, tx.id) is tx
    half.do(tx, static.sub(X1), frame=3)
    half.do(tx, static.sub(X1), frame=0)
    assert said(half.transactions.finish(tx, 3)) == [client_messages.Finish(tx.id, 3)]


def test_more_tcms_than_a_client_keeps_abort_their_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "FRAMES_LIMIT", 2)
    half = Half("D")
    first = called(half, 1, ("E", 0, 1))
    second = called(half, 2, ("E", 0, 2))
    (finish,) = said(half.told(client_messages.Tcm(("E", 0, 3), 3, "E", 11, AT_X1, b"")))
    assert finish == client_messages.Finish(("E", 0, 3), 3, "2 tcms wait at D already")
    half.transactions.finish(first, 1)
    called(half, 4, ("E", 0, 4))
    half.told(client_messages.Ended(second.id, False, "deadline", "late"))
    called(half, 5, ("E", 0, 5))
    assert half.transactions.finish(second, 2) == []
    (finish,) = said(half.told(client_messages.Tcm(("E", 0, 6), 6, "E", 11, AT_X1, b"")))
    assert finish.error


def test_who_only_receives_learns_the_outcome_too() -> None:
    half = Half("A1")
    (event,) = half.told(client_messages.Ended(("E", 0, 9), True))
    assert isinstance(event, TransactionEnded) and event.result == Result(
        "E:0:9", "d-tx", "committed"
    )


def test_answers_to_what_was_said_too_late_are_not_the_outcome() -> None:
    half = Half()
    tx = half.begin()
    half.transactions.commit(tx)
    for code in ("unknown", "finished", "foreign"):
        assert half.told(client_messages.Ended(tx.id, False, code, "too late")) == []
        assert half.told(client_messages.Ended(("F", 0, 1), False, code, "too late")) == []
    assert tx.result is None
    half.told(client_messages.Ended(tx.id, True))
    assert half.told(client_messages.Ended(tx.id, False, "deadline", "a second decision")) == []
    assert tx.result is not None and tx.result.committed


# --- what the client holds, and its callbacks ---


def test_words_count_from_the_commit_on() -> None:
    half = Half()
    half.plain("sub", P1)
    tx = half.begin()
    half.do(tx, static.adv(P1))
    half.do(tx, static.usub(X1))
    with pytest.raises(NotAdvertised):
        half.session.publish(AT_X1)
    half.transactions.commit(tx)
    words = (half.effective("adv", P1), half.effective("usub", X1))
    half.told(client_messages.Ended(tx.id, True, effective=words))
    half.session.publish(AT_X1)
    with pytest.raises(NotHeld):
        half.session.operate("usub", X1)


def test_an_abort_leaves_what_the_client_holds() -> None:
    half = Half()
    half.plain("sub", P1)
    tx = half.begin()
    half.do(tx, static.adv(P1))
    half.do(tx, static.usub(X1))
    half.told(client_messages.Ended(tx.id, False, "conflict", "lost"))
    with pytest.raises(NotAdvertised):
        half.session.publish(AT_X1)
    half.session.operate("usub", X1)


def test_words_said_on_the_clients_behalf_count_as_well() -> None:
    half = Half("D")
    half.plain("sub", P1)
    words = (half.effective("usub", X1), half.effective("adv", P1))
    half.told(client_messages.Ended(("E", 0, 9), True, effective=words), engine="s-tx")
    with pytest.raises(NotHeld):
        half.session.operate("usub", X1)
    half.session.publish(AT_X1)


def test_the_brokers_numbers_are_the_order_whatever_is_answered_first() -> None:
    """A plan has un-subscribed the client before its call was carried out, and is told later."""
    half = Half()
    half.plain("sub", X1, "old")
    again = half.session.operate("sub", X1, "new")
    planned = half.effective("usub", X1)
    half.session.receive(Done(again.req, number=half.number()))
    half.told(client_messages.Ended(("D", 0, 9), True, effective=(planned,)), engine="s-tx")
    assert half.callbacks(AT_X1) == ["new"]
    half.session.operate("usub", X1)  # So it holds x1.


def test_a_plan_that_comes_after_a_call_without_an_answer_has_the_last_word() -> None:
    half = Half()
    call = half.session.operate("sub", X1, "callback")
    carried_out = half.number()
    half.told(
        client_messages.Ended(("D", 0, 9), True, effective=(half.effective("usub", X1),)),
        engine="s-tx",
    )
    half.session.receive(Done(call.req, number=carried_out))
    assert half.callbacks(AT_X1) == []
    with pytest.raises(NotHeld):
        half.session.operate("usub", X1)


def test_operations_count_in_the_order_in_which_they_were_carried_out() -> None:
    """E says sub(x1) second, but its handler, called by the first operation, has come between."""
    half = Half()
    half.plain("sub", P1, "old")
    half.plain("adv", P1)
    tx = half.begin()
    half.do(tx, static.tcm(AT_X1))
    call = half.do(tx, static.sub(X1), callback="new")
    called(half, 3, tx.id)
    inner = half.do(tx, static.usub(X1), frame=3)
    words = (half.effective("usub", X1, inner), half.effective("sub", X1, call))
    half.told(client_messages.Ended(tx.id, True, effective=words))
    assert half.callbacks(AT_X1) == ["new"]
    half.session.operate("usub", X1)  # So it holds x1.


@pytest.mark.parametrize("number", [0, -1, 1, 1 << 60])
def test_a_number_that_no_edge_broker_gives_is_the_brokers_mistake(number: int) -> None:
    half = Half()
    half.plain("sub", P1)  # This one has 1.
    operation = half.session.operate("sub", X1)
    with pytest.raises(ProtocolError, match=f"with the invalid number {number}"):
        half.session.receive(Done(operation.req, number=number))
    with pytest.raises(ProtocolError, match="invalid number of an operation"):
        half.told(
            client_messages.Ended(
                ("D", 0, 9), True, effective=(client_messages.Effective("usub", P1, number),)
            )
        )


def test_callbacks_count_from_the_call_on_and_an_abort_takes_them_back() -> None:
    half = Half()
    tx = half.begin()
    half.do(tx, static.sub(X1), callback="callback")
    assert half.callbacks(AT_X1) == ["callback"]
    assert half.callbacks(AT_X1, tx.id) == []
    with pytest.raises(NotHeld):  # But it is not committed.
        half.session.operate("usub", X1)
    half.told(client_messages.Ended(tx.id, False, "conflict", "lost"))
    assert half.callbacks(AT_X1) == []
    tx = half.begin()
    call = half.do(tx, static.sub(P1), callback="callback")
    half.told(client_messages.Ended(tx.id, True, effective=(half.effective("sub", P1, call),)))
    assert half.callbacks(AT_X1) == ["callback"]
    tx = half.begin()
    half.do(tx, static.usub(X1))
    assert half.callbacks(AT_X1) == ["callback"]
    half.told(client_messages.Ended(tx.id, True, effective=(half.effective("usub", X1),)))
    assert half.callbacks(AT_X1) == []
    assert half.callbacks({"class": "p1", "x": "x2"}) == ["callback"]


def test_a_callback_of_an_operation_that_was_not_sent_is_gone() -> None:
    half = Half()
    tx = half.begin()
    number = half.do(tx, static.sub(X1), callback="callback")
    half.transactions.unsent(tx, number, FrameTooLarge("too large"))
    assert half.callbacks(AT_X1) == []


# --- publications from before a commit ---


def gives(half: Half, filter: Filter) -> client_messages.TxID:
    """The client un-subscribes in somebody's transaction, and it is committed."""
    tx = ("C", 0, half.number())
    called(half, 3, tx)
    call = half.do(
        half.transactions.find(client_messages.tx_text(tx)), static.usub(filter), frame=3
    )
    half.told(client_messages.Ended(tx, True, effective=(half.effective("usub", filter, call),)))
    return tx


def test_a_callback_lives_until_its_stream_is_drained() -> None:
    half = Half("W")
    half.plain("sub", X1, "work")
    tx = gives(half, X1)
    assert half.callbacks(AT_X1, tx) == ["work"], "it was published before the commit"
    with pytest.raises(NotHeld):
        half.session.operate("usub", X1)
    assert half.told(client_messages.Drained(tx)) == [CommitDrained(client_messages.tx_text(tx))]
    assert half.callbacks(AT_X1) == half.callbacks(AT_X1, tx) == []


@pytest.mark.parametrize("how", ["plain", "d-tx", "s-tx"])
def test_who_subscribes_again_gets_the_new_with_the_new_callback(how: str) -> None:
    half = Half("W")
    half.plain("sub", X1, "old")
    tx = gives(half, X1)
    if how == "plain":
        operation = half.session.operate("sub", X1, "new")
        assert half.callbacks(AT_X1, tx) == ["old"]
        half.session.receive(Done(operation.req, number=half.number()))
    else:
        again = half.begin(how)
        call = half.do(again, static.sub(X1), callback="new")
        half.transactions.commit(again)
        words = (half.effective("sub", X1, call),)
        half.told(client_messages.Ended(again.id, True, effective=words), engine=how)
    assert half.callbacks(AT_X1, tx) == ["old"]
    assert half.callbacks(AT_X1) == ["new"]
    half.told(client_messages.Drained(tx))
    assert half.callbacks(AT_X1) == ["new"]


def test_the_same_callback_again_is_called_once() -> None:
    half = Half("W")
    half.plain("sub", X1, "work")
    tx = gives(half, X1)
    half.plain("sub", P1, "work")
    assert half.callbacks(AT_X1, tx) == half.callbacks(AT_X1) == ["work"]
    half.told(client_messages.Drained(tx))
    assert half.callbacks(AT_X1) == ["work"]


def test_unsubscribing_after_a_handover_does_not_silence_what_is_from_before_it() -> None:
    half = Half("W")
    half.plain("sub", X1, "old")
    tx = gives(half, X1)
    half.plain("sub", X1, "new")
    half.plain("usub", X1)
    assert half.callbacks(AT_X1, tx) == ["old"]
    assert half.callbacks(AT_X1) == []
    half.told(client_messages.Drained(tx))
    assert half.callbacks(AT_X1, tx) == []


def test_an_old_publication_that_only_a_later_subscription_has_brought_is_for_that() -> None:
    half = Half("W")
    half.plain("sub", Filter({"class": "p2"}), "other")
    tx = gives(half, Filter({"class": "p2"}))
    half.plain("sub", X1, "new")
    assert half.callbacks(AT_X1, tx) == ["new"]


def test_handovers_that_are_not_drained_are_told_apart() -> None:
    half = Half("W")
    half.plain("sub", X1, "first")
    one = gives(half, X1)
    half.plain("sub", X1, "second")
    two = gives(half, X1)
    half.plain("sub", X1, "third")
    assert half.callbacks(AT_X1, one, two) == ["first"]
    assert half.callbacks(AT_X1, two) == ["second"]
    assert half.callbacks(AT_X1) == ["third"]
    half.told(client_messages.Drained(one))
    assert half.callbacks(AT_X1, two) == ["second"]
    half.told(client_messages.Drained(two))
    assert half.callbacks(AT_X1, two) == ["third"]


@pytest.mark.slow
def test_what_is_not_drained_is_bounded() -> None:
    half = Half("W")
    given = []
    for _ in range(UNDRAINED_LIMIT):
        half.plain("sub", X1, "work")
        given.append(gives(half, X1))
    assert len(half.session.subscribed._undrained) == UNDRAINED_LIMIT
    half.plain("sub", X1, "work")
    given.append(gives(half, X1))
    assert list(half.session.subscribed._undrained) == given[1:]
    assert half.callbacks(AT_X1, *given[1:]) == ["work"]
    assert half.callbacks(AT_X1, *given) == ["work"]
    for tx in given:
        half.told(client_messages.Drained(tx))
    assert half.session.subscribed.entries() == []


# --- static ---


def test_a_static_transaction_goes_out_as_a_whole() -> None:
    half = Half()
    half.plain("adv", P1)
    tx, events = half.transactions.begin("s-tx", deadline_s=3)
    assert events == []
    ops = {"D": [static.usub(X1)]}
    for op in (static.tcm(AT_X1, ops=ops), static.pub(AT_X1)):
        assert half.transactions.operate(tx, 0, op)[1] == []
    (submit,) = said(half.transactions.commit(tx))
    assert submit == client_messages.Submit(
        tx.id,
        3.0,
        (
            client_messages.Step("E", "tcm", None, AT_X1, seq=6, receivers=("D",)),
            client_messages.Step("D", "usub", X1, after=(0,)),
            client_messages.Step("E", "pub", None, AT_X1, seq=7, after=(1,)),
        ),
    )
    half.told(client_messages.Ended(tx.id, True), engine="s-tx")
    assert tx.result == Result("E:0:3", "s-tx", "committed")


def test_an_operation_that_cannot_be_ordered_is_not_in_the_transaction() -> None:
    half = Half()
    tx = half.begin("s-tx")
    with pytest.raises(BadTransaction, match="add that first"):
        half.do(tx, static.sub(X1, after=[static.sub(P1)]), callback="callback")
    assert half.callbacks(AT_X1) == [] and tx.sent == []


def test_a_static_transaction_without_operations_is_committed_at_once() -> None:
    half = Half()
    tx = half.begin("s-tx")
    assert half.transactions.commit(tx) == [
        TransactionEnded(tx, Result("E:0:2", "s-tx", "committed")),
        CommitApplied("E:0:2"),
    ]


def test_nobody_need_hear_of_the_abort_of_what_nobody_has_heard_of() -> None:
    half = Half()
    tx = half.begin("s-tx")
    half.do(tx, static.sub(X1))
    (event,) = half.transactions.abort(tx, "no")
    assert isinstance(event, TransactionEnded) and event.result.reason == "no"
    tx = half.begin("s-tx")
    half.do(tx, static.sub(X1))
    half.transactions.commit(tx)
    assert said(half.transactions.abort(tx, "no")) == [client_messages.Abort(tx.id, "no")]


# --- what a broker may not say ---


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("d-tx", client_messages.Began(("E", 0, 99), 1)),
        ("d-tx", client_messages.Operated(("E", 0, 99), 0, 1)),
        ("d-tx", client_messages.Operated(("E", 0, 2), 0, 77)),
        ("d-tx", client_messages.Ended(("E", 0, 2), True, effective=(("pub", P1),))),
        ("s-tx", client_messages.Tcm(("F", 0, 1), 5, "F", 10, AT_X1, b"")),
        ("s-tx", client_messages.Began(("E", 0, 2), 1)),
        ("bl-wait", client_messages.Applied(("E", 0, 2))),
    ],
)
def test_a_broker_that_may_not_say_that(engine: str, message: client_messages.ToClient) -> None:
    half = Half()
    half.begin()
    with pytest.raises(ProtocolError):
        half.told(message, engine=engine)


def test_an_engine_that_nobody_knows_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="message for 'e-tx'"):
        Half().session.receive(EngineMessage("e-tx", msgspec.Raw(b"\x01")))
