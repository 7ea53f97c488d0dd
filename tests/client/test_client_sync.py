"""Transactions of blocking clients, from one thread and from several."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from overlay.errors import NotHeld
from padres_tx import static
from padres_tx.client.session import Notification
from padres_tx.errors import (
    ConnectionLost,
    NotCoordinator,
    TransactionAborted,
    TransactionError,
    TransactionFinished,
    UnknownTransaction,
)
from padres_tx.sync import Client, Part, Transaction
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.client_cast import (
    ASSIGN,
    ASSIGN_X1,
    DECIDED,
    DYNAMIC,
    P1,
    X1,
    assert_at_rest,
    tables,
)

#: A test that hangs has failed; nothing here takes a second.
LIMIT_S = 30


class Cast(NamedTuple):
    overlay: InProcessOverlay
    e: Client
    d: Client
    a1: Client


@pytest.fixture
def cast() -> Iterator[Cast]:
    """E may publish p1, D receives all of it and may assign, A1 hears assignments."""
    with InProcessOverlay("three") as overlay:
        e, d, a1 = (
            overlay.connect(name, at=at) for name, at in (("E", "B1"), ("D", "B2"), ("A1", "B3"))
        )
        e.advertise(P1)
        d.advertise(ASSIGN)
        d.subscribe(P1)
        a1.subscribe({"class": "assign", "to": "A1"})
        d.on_tcm(P1, dispatch)
        a1.on_tcm(ASSIGN, take_over)
        yield Cast(overlay, e, d, a1)
    assert not [thread for thread in threading.enumerate() if thread.name == "padres_tx"]


def dispatch(tx: Part, notification: Notification) -> None:
    tx.tcm(ASSIGN_X1).wait()
    tx.usub(X1)


def take_over(tx: Part, notification: Notification) -> None:
    tx.sub(X1)


def start(tx: Transaction) -> None:
    ops = None
    if tx.engine == "s-tx":
        ops = {"D": [static.tcm(ASSIGN_X1, ops={"A1": [static.sub(X1)]}), static.usub(X1)]}
    tx.tcm({**X1, "n": 0}, ops=ops)
    tx.pub({**X1, "n": 1})


def numbers(client: Client) -> list[object]:
    return [notification["n"] for notification in client.notifications(timeout_s=0)]


@pytest.mark.parametrize("engine", DECIDED)
def test_a_block_commits_at_its_end(cast: Cast, engine: str) -> None:
    with cast.e.transaction(engine, wait="applied") as tx:
        assert tx.coordinator == "E" and tx.engine == engine
        start(tx)
    assert tx.result is not None and tx.result.committed
    assert tx.wait_ended(LIMIT_S) == tx.result
    assert numbers(cast.a1) == [1] and numbers(cast.d) == []
    cast.a1.unsubscribe(X1)
    with pytest.raises(NotHeld):
        cast.d.unsubscribe(X1)
    if engine == "s-tx":
        with pytest.raises(TransactionError, match="does not report"):
            tx.wait_drained(LIMIT_S)
    else:
        tx.wait_drained(LIMIT_S)
    assert_at_rest(cast.overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_names_of_table_2(cast: Cast, engine: str) -> None:
    came: list[object] = []
    told = threading.Event()

    def note(notification: Notification) -> None:
        came.append(notification["n"])
        told.set()

    cast.a1.notify(note)
    tx = cast.e.beginTX(engine, deadline_s=5)
    assert re.fullmatch(r"E:\w+:\d+", tx)
    cast.e.txAdv(tx, {"class": "p2"}).wait(LIMIT_S)
    cast.e.txTCM(tx, {**X1, "n": 0})
    cast.e.txPub(tx, {**X1, "n": 1}, json={"hello": 1})
    cast.e.txSub(tx, {"class": "p3"})
    cast.e.txUsub(tx, {"class": "p3", "x": 1})
    doing = cast.e.txUadv(tx, {"class": "p2", "x": 1})
    doing.wait(LIMIT_S)
    assert doing.done
    assert cast.e.commitTX(tx).status == "committed"
    assert told.wait(LIMIT_S) and came == [1]
    tx = cast.e.beginTX(engine)
    cast.e.txSub(tx, P1)
    assert cast.e.abortTX(tx, "no").reason == "no"
    for call in (cast.e.commitTX, lambda tx: cast.e.txSub(tx, P1)):
        with pytest.raises(TransactionFinished):
            call(tx)
    with pytest.raises(UnknownTransaction):
        cast.a1.txSub(tx, P1)
    assert_at_rest(cast.overlay)


@pytest.mark.parametrize("engine", DECIDED)
def test_a_block_that_raises_aborts_and_the_error_goes_on(cast: Cast, engine: str) -> None:
    before = tables(cast.overlay)
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error, match="mine"), cast.e.transaction(engine) as tx:
            start(tx)
            raise error("mine")
        assert tx.wait_ended(LIMIT_S).status == "aborted"
    assert tables(cast.overlay) == before
    assert_at_rest(cast.overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_participant_that_raises_aborts_the_transaction(cast: Cast, engine: str) -> None:
    def refuse(tx: Part, notification: Notification) -> None:
        tx.usub(X1).wait(LIMIT_S)
        raise ValueError("no room")

    cast.d.on_tcm(None, refuse)
    with (
        pytest.raises(TransactionAborted, match="D: ValueError: no room"),
        cast.e.transaction(engine) as tx,
    ):
        start(tx)
    assert_at_rest(cast.overlay)


def test_a_participant_uses_table_2_and_cannot_commit(cast: Cast) -> None:
    ends: list[str] = []
    ended = threading.Event()

    def act(tx: Part, notification: Notification) -> None:
        with pytest.raises(NotCoordinator):
            cast.d.commitTX(tx.id)
        cast.d.txUsub(tx.id, X1)

    def drained(tx: str) -> None:
        ends.append(tx)
        ended.set()

    cast.d.on_tcm(None, act)
    cast.d.on_end(lambda result: ends.append(result.status))
    cast.d.on_drained(drained)
    with cast.e.transaction() as tx:
        tx.tcm(X1)
    assert ended.wait(LIMIT_S) and ends == ["committed", tx.id]
    with pytest.raises(NotHeld):
        cast.d.unsubscribe(X1)


def test_a_handler_that_waits_can_be_called_by_its_own_transaction(cast: Cast) -> None:
    cast.a1.advertise({"class": "back"})
    cast.d.subscribe({"class": "back"})
    acts: list[str] = []

    def ask(tx: Part, notification: Notification) -> None:
        acts.append("D asks")
        tx.tcm({"class": "assign", "to": "A1"}).wait(LIMIT_S)
        acts.append("D has asked")

    def ask_back(tx: Part, notification: Notification) -> None:
        tx.tcm({"class": "back"}).wait(LIMIT_S)
        acts.append("A1 has asked back")

    cast.d.on_tcm(P1, ask)
    cast.d.on_tcm({"class": "back"}, lambda tx, notification: acts.append("D answers"))
    cast.a1.on_tcm(ASSIGN, ask_back)
    with cast.e.transaction() as tx:
        tx.tcm(X1)
    assert acts == ["D asks", "D answers", "A1 has asked back", "D has asked"]
    assert_at_rest(cast.overlay)


def test_a_callback_may_wait_for_a_transaction_that_calls_its_client(cast: Cast) -> None:
    """Handlers have a thread of their own."""
    done = threading.Event()

    def hand_over(notification: Notification) -> None:
        with cast.d.transaction() as tx:
            tx.tcm({"class": "assign", "to": "D"})
        done.set()

    cast.d.subscribe({"class": "assign", "to": "D"})
    cast.d.on_tcm(ASSIGN, lambda tx, notification: None)
    cast.d.subscribe(P1, hand_over)
    cast.e.publish({**X1, "n": 0})
    assert done.wait(LIMIT_S)


def test_a_subscription_in_a_transaction_has_a_callback(cast: Cast) -> None:
    came: list[object] = []
    told = threading.Event()

    def note(notification: Notification) -> None:
        came.append(notification["n"])
        told.set()

    with cast.a1.transaction() as tx:
        tx.sub(P1, note)
    cast.e.publish({**X1, "n": 7})
    assert told.wait(LIMIT_S) and came == [7]


def test_a_conflict_is_tried_again(cast: Cast) -> None:
    attempts: list[str] = []
    for tx in cast.e.transaction("d-tx", retries=5, wait="applied"):
        with tx:
            attempts.append(tx.id)
            tx.pub({**X1, "n": 1}).wait(LIMIT_S)
            if len(attempts) < 3:
                cast.a1.subscribe(X1)
                cast.a1.unsubscribe(X1)
    assert len(set(attempts)) == 3
    assert numbers(cast.d) == [1]

    def work(tx: Transaction) -> str:
        attempts.append(tx.id)
        tx.pub({**X1, "n": 2}).wait(LIMIT_S)
        if len(attempts) == 1:
            cast.a1.subscribe(X1)
        return "done"

    attempts.clear()
    assert cast.e.transact(work, retries=1) == "done"
    assert len(attempts) == 2
    attempts.clear()
    cast.a1.unsubscribe(X1)
    with pytest.raises(TransactionAborted, match="conflict"):
        cast.e.transact(work)
    with pytest.raises(TypeError, match="async for"), cast.e.transaction(retries=1):
        pass
    assert_at_rest(cast.overlay)


def test_it_can_be_ended_inside_the_block(cast: Cast) -> None:
    with cast.e.transaction() as tx:
        assert tx.commit(wait="applied").committed
    with cast.e.transaction() as tx:
        assert tx.abort("no").code == "aborted"
        assert "ended" in repr(tx)
    with cast.e.transaction("s-tx", wait="applied") as tx:
        first = tx.do(static.sub({"class": "p3"}))
        tx.adv({"class": "p4"}, after=[first])
        tx.uadv({"class": "p4", "x": 1})
    cast.e.unsubscribe({"class": "p3"})


def test_an_overlay_that_ends_ends_what_waits(cast: Cast) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def hang(tx: Part, notification: Notification) -> None:
        inside.set()
        go_on.wait(LIMIT_S)

    cast.d.on_tcm(None, hang)
    with pytest.raises(ConnectionLost), cast.e.transaction() as tx:
        doing = tx.tcm(X1)
        assert inside.wait(LIMIT_S)
        cast.overlay.stop()
        doing.wait(LIMIT_S)
    go_on.set()
