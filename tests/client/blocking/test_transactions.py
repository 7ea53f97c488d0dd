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
from tests.client.dispatching_clients import (
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


class BlockingClients(NamedTuple):
    overlay: InProcessOverlay
    e: Client
    d: Client
    a1: Client


@pytest.fixture
def clients() -> Iterator[BlockingClients]:
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
        yield BlockingClients(overlay, e, d, a1)
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
def test_a_block_commits_at_its_end(clients: BlockingClients, engine: str) -> None:
    with clients.e.transaction(engine, wait="applied") as tx:
        assert tx.coordinator == "E" and tx.engine == engine
        start(tx)
    assert tx.result is not None and tx.result.committed
    assert tx.wait_ended(LIMIT_S) == tx.result
    assert numbers(clients.a1) == [1] and numbers(clients.d) == []
    clients.a1.unsubscribe(X1)
    with pytest.raises(NotHeld):
        clients.d.unsubscribe(X1)
    if engine == "s-tx":
        with pytest.raises(TransactionError, match="does not report"):
            tx.wait_drained(LIMIT_S)
    else:
        tx.wait_drained(LIMIT_S)
    assert_at_rest(clients.overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_the_names_of_table_2(clients: BlockingClients, engine: str) -> None:
    came: list[object] = []
    told = threading.Event()

    def note(notification: Notification) -> None:
        came.append(notification["n"])
        told.set()

    clients.a1.notify(note)
    tx = clients.e.beginTX(engine, deadline_s=5)
    assert re.fullmatch(r"E:\w+:\d+", tx)
    clients.e.txAdv(tx, {"class": "p2"}).wait(LIMIT_S)
    clients.e.txTCM(tx, {**X1, "n": 0})
    clients.e.txPub(tx, {**X1, "n": 1}, json={"hello": 1})
    clients.e.txSub(tx, {"class": "p3"})
    clients.e.txUsub(tx, {"class": "p3", "x": 1})
    doing = clients.e.txUadv(tx, {"class": "p2", "x": 1})
    doing.wait(LIMIT_S)
    assert doing.done
    assert clients.e.commitTX(tx).status == "committed"
    assert told.wait(LIMIT_S) and came == [1]
    tx = clients.e.beginTX(engine)
    clients.e.txSub(tx, P1)
    assert clients.e.abortTX(tx, "no").reason == "no"
    for call in (clients.e.commitTX, lambda tx: clients.e.txSub(tx, P1)):
        with pytest.raises(TransactionFinished):
            call(tx)
    with pytest.raises(UnknownTransaction):
        clients.a1.txSub(tx, P1)
    assert_at_rest(clients.overlay)


@pytest.mark.parametrize("engine", DECIDED)
def test_a_block_that_raises_aborts_and_the_error_goes_on(
    clients: BlockingClients, engine: str
) -> None:
    before = tables(clients.overlay)
    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error, match="mine"), clients.e.transaction(engine) as tx:
            start(tx)
            raise error("mine")
        assert tx.wait_ended(LIMIT_S).status == "aborted"
    assert tables(clients.overlay) == before
    assert_at_rest(clients.overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_participant_that_raises_aborts_the_transaction(
    clients: BlockingClients, engine: str
) -> None:
    def refuse(tx: Part, notification: Notification) -> None:
        tx.usub(X1).wait(LIMIT_S)
        raise ValueError("no room")

    clients.d.on_tcm(None, refuse)
    with (
        pytest.raises(TransactionAborted, match="D: ValueError: no room"),
        clients.e.transaction(engine) as tx,
    ):
        start(tx)
    assert_at_rest(clients.overlay)


def test_a_participant_uses_table_2_and_cannot_commit(clients: BlockingClients) -> None:
    ends: list[str] = []
    ended = threading.Event()

    def act(tx: Part, notification: Notification) -> None:
        with pytest.raises(NotCoordinator):
            clients.d.commitTX(tx.id)
        clients.d.txUsub(tx.id, X1)

    def drained(tx: str) -> None:
        ends.append(tx)
        ended.set()

    clients.d.on_tcm(None, act)
    clients.d.on_end(lambda result: ends.append(result.status))
    clients.d.on_drained(drained)
    with clients.e.transaction() as tx:
        tx.tcm(X1)
    assert ended.wait(LIMIT_S) and ends == ["committed", tx.id]
    with pytest.raises(NotHeld):
        clients.d.unsubscribe(X1)


def test_a_handler_that_waits_can_be_called_by_its_own_transaction(
    clients: BlockingClients,
) -> None:
    clients.a1.advertise({"class": "back"})
    clients.d.subscribe({"class": "back"})
    acts: list[str] = []

    def ask(tx: Part, notification: Notification) -> None:
        acts.append("D asks")
        tx.tcm({"class": "assign", "to": "A1"}).wait(LIMIT_S)
        acts.append("D has asked")

    def ask_back(tx: Part, notification: Notification) -> None:
        tx.tcm({"class": "back"}).wait(LIMIT_S)
        acts.append("A1 has asked back")

    clients.d.on_tcm(P1, ask)
    clients.d.on_tcm({"class": "back"}, lambda tx, notification: acts.append("D answers"))
    clients.a1.on_tcm(ASSIGN, ask_back)
    with clients.e.transaction() as tx:
        tx.tcm(X1)
    assert acts == ["D asks", "D answers", "A1 has asked back", "D has asked"]
    assert_at_rest(clients.overlay)


def test_a_callback_may_wait_for_a_transaction_that_calls_its_client(
    clients: BlockingClients,
) -> None:
    """Handlers have a thread of their own."""
    done = threading.Event()

    def hand_over(notification: Notification) -> None:
        with clients.d.transaction() as tx:
            tx.tcm({"class": "assign", "to": "D"})
        done.set()

    clients.d.subscribe({"class": "assign", "to": "D"})
    clients.d.on_tcm(ASSIGN, lambda tx, notification: None)
    clients.d.subscribe(P1, hand_over)
    clients.e.publish({**X1, "n": 0})
    assert done.wait(LIMIT_S)


def test_a_subscription_in_a_transaction_has_a_callback(clients: BlockingClients) -> None:
    came: list[object] = []
    told = threading.Event()

    def note(notification: Notification) -> None:
        came.append(notification["n"])
        told.set()

    with clients.a1.transaction() as tx:
        tx.sub(P1, note)
    clients.e.publish({**X1, "n": 7})
    assert told.wait(LIMIT_S) and came == [7]


def test_a_conflict_is_tried_again(clients: BlockingClients) -> None:
    attempts: list[str] = []
    for tx in clients.e.transaction("d-tx", retries=5, wait="applied"):
        with tx:
            attempts.append(tx.id)
            tx.pub({**X1, "n": 1}).wait(LIMIT_S)
            if len(attempts) < 3:
                clients.a1.subscribe(X1)
                clients.a1.unsubscribe(X1)
    assert len(set(attempts)) == 3
    assert numbers(clients.d) == [1]

    def work(tx: Transaction) -> str:
        attempts.append(tx.id)
        tx.pub({**X1, "n": 2}).wait(LIMIT_S)
        if len(attempts) == 1:
            clients.a1.subscribe(X1)
        return "done"

    attempts.clear()
    assert clients.e.transact(work, retries=1) == "done"
    assert len(attempts) == 2
    attempts.clear()
    clients.a1.unsubscribe(X1)
    with pytest.raises(TransactionAborted, match="conflict"):
        clients.e.transact(work)
    with pytest.raises(TypeError, match="async for"), clients.e.transaction(retries=1):
        pass
    assert_at_rest(clients.overlay)


def test_it_can_be_ended_inside_the_block(clients: BlockingClients) -> None:
    with clients.e.transaction() as tx:
        assert tx.commit(wait="applied").committed
    with clients.e.transaction() as tx:
        assert tx.abort("no").code == "aborted"
        assert "ended" in repr(tx)
    with clients.e.transaction("s-tx", wait="applied") as tx:
        first = tx.do(static.sub({"class": "p3"}))
        tx.adv({"class": "p4"}, after=[first])
        tx.uadv({"class": "p4", "x": 1})
    clients.e.unsubscribe({"class": "p3"})


def test_an_overlay_that_ends_ends_what_waits(clients: BlockingClients) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def hang(tx: Part, notification: Notification) -> None:
        inside.set()
        go_on.wait(LIMIT_S)

    clients.d.on_tcm(None, hang)
    with pytest.raises(ConnectionLost), clients.e.transaction() as tx:
        doing = tx.tcm(X1)
        assert inside.wait(LIMIT_S)
        clients.overlay.stop()
        doing.wait(LIMIT_S)
    go_on.set()
