"""What follows an asyncio client's transaction: callbacks, outcomes, and lost connections."""

from __future__ import annotations

import asyncio

import pytest

from overlay.identity import parse_name
from padres_tx import client_messages
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification
from padres_tx.client.transactions import Doubt, Result
from padres_tx.errors import CallTimeout, ClientClosed, ConnectionLost, TransactionAborted
from tests.client.dispatching_clients import (
    DECIDED,
    DYNAMIC,
    P1,
    X1,
    assert_at_rest,
    asynchronous,
    dispatching_clients,
    numbers,
    quiet,
    start,
    with_manual_broker,
)

# --- callbacks, ends, and what is drained ---


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_subscriptions_in_transactions_have_callbacks(engine: str) -> None:
    async with dispatching_clients() as (_, e, _, a1):
        came: list[object] = []
        async with a1.transaction(engine, wait="applied") as tx:
            tx.sub(P1, lambda notification: came.append(notification["n"]))
        await e.publish({**X1, "n": 1})
        await quiet(a1)
        assert came == [1]
        async with a1.transaction(engine, wait="applied") as tx:
            tx.usub(X1)
        await a1.subscribe(X1)
        await e.publish({**X1, "n": 2})
        await quiet(a1)
        assert came == [1] and await numbers(a1) == [2]


@asynchronous
async def test_a_transactions_own_publications_find_the_callback() -> None:
    """Publications come before the news of the commit."""
    async with dispatching_clients() as (_, e, _, a1):
        order: list[object] = []

        def take(tx: Part, notification: Notification) -> None:
            tx.sub(X1, lambda notification: order.append(notification["n"]))

        a1.on_tcm(None, take)
        a1.on_end(lambda result: order.append(result.status))
        a1.on_drained(order.append)
        async with e.transaction("d-tx", wait="applied") as tx:
            start(tx)
        await quiet(a1)
        assert order == [1, "committed", tx.id]


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_who_takes_part_learns_how_it_ended_and_when_it_is_drained(engine: str) -> None:
    async with dispatching_clients() as (_, e, d, _):
        parts: list[Part] = []
        ends: list[str] = []

        async def dispatch(tx: Part, notification: Notification) -> None:
            parts.append(tx)
            tx.usub({"class": "p1", "x": notification["x"]})

        async def note(result: Result) -> None:
            ends.append(f"{result.tx} {result.status}")

        d.on_tcm(None, dispatch)
        d.on_end(note)
        d.on_drained(ends.append)
        async with e.transaction(engine, wait="applied") as tx:
            tx.tcm({**X1, "n": 0})
        assert (await parts[0].ended).committed
        await parts[0].drained
        await tx.drained
        await quiet(d)
        assert ends == [f"{tx.id} committed", tx.id]
        with pytest.raises(RuntimeError):
            async with e.transaction(engine) as tx:
                await tx.tcm({"class": "p1", "x": "x2", "n": 0})
                raise RuntimeError
        assert (await parts[1].ended).status == "aborted"
        with pytest.raises(TransactionAborted):
            await parts[1].drained
        await quiet(d)
        assert ends[2:] == [f"{tx.id} aborted"]


@asynchronous
async def test_notify_gets_everything_and_once() -> None:
    async with dispatching_clients() as (_, e, d, _):
        all_: list[object] = []
        some: list[object] = []
        d.notify(lambda notification: all_.append(notification["n"]))
        await d.subscribe(X1, lambda notification: some.append(notification["n"]))
        for n, x in enumerate(("x1", "x2")):
            await e.publish({"class": "p1", "x": x, "n": n})
        await quiet(d)
        assert all_ == [0, 1] and some == [0]
        d.notify(None)
        await e.publish({"class": "p1", "x": "x2", "n": 2})
        assert await numbers(d) == [2] and all_ == [0, 1]


# --- the connection ---


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_lost_connection_ends_everything_that_waits(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        inside = asyncio.Event()

        async def hang(tx: Part, notification: Notification) -> None:
            inside.set()
            await asyncio.Event().wait()

        d.on_tcm(None, hang)
        with pytest.raises(ConnectionLost, match="stopped"):
            async with e.transaction(engine) as tx:
                doing = tx.tcm({**X1, "n": 0})
                await inside.wait()
                overlay.stop()
                await doing
        with pytest.raises(ConnectionLost):
            await tx.ended
        with pytest.raises(ConnectionLost):
            await tx.drained
        with pytest.raises(ConnectionLost):
            tx.sub(P1)
        with pytest.raises(ConnectionLost):
            await e.commitTX(tx.id)
        with pytest.raises(ConnectionLost):
            await e.beginTX(engine)


@asynchronous
async def test_closing_ends_what_waits_and_cancels_handlers() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        cancelled = asyncio.Event()
        inside = asyncio.Event()

        async def hang(tx: Part, notification: Notification) -> None:
            inside.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        d.on_tcm(None, hang)
        tx = await e.beginTX("d-tx")
        doing = e.txTCM(tx, {**X1, "n": 0})
        await inside.wait()
        await d.close()
        await cancelled.wait()
        with pytest.raises(TransactionAborted, match="D, which took part, has left"):
            await doing
        assert (await e.commitTX(tx)).code == "left"
        tx = await e.beginTX("d-tx")
        doing = e.txSub(tx, P1)
        await quiet(e)
        lost = e.txSub(tx, X1)
        await e.close()
        await doing  # It was done.
        with pytest.raises(ClientClosed):
            await lost
        with pytest.raises(ClientClosed):
            e.txSub(tx, P1)
        assert_at_rest(overlay)


@asynchronous
async def test_a_broker_that_never_answers_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("padres_tx.client.asyncio.transaction_driver.CALL_TIMEOUT_S", 0.001)
    async with with_manual_broker() as (e, broker):
        tx = await e.beginTX("d-tx", deadline_s=0.001)
        with pytest.raises(CallTimeout, match=f"waiting for the outcome of {tx}"):
            await e.commitTX(tx)
        broker.tell(client_messages.Ended(parse_name(tx) or ("", 0, 0), True))
        tx = await e.beginTX("d-tx")
        broker.answer = lambda message: [client_messages.Ended(message.tx, True)]
        with pytest.raises(CallTimeout, match=f"apply {tx}, which is committed"):
            await e.commitTX(tx, wait="applied")


@asynchronous
async def test_a_client_is_told_that_a_transaction_is_in_doubt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with with_manual_broker() as (e, broker):
        told: list[object] = []
        e.on_doubt(told.append)
        e.on_end(lambda result: told.append(result.status))
        tx = ("C", 0, 1)
        broker.tell(client_messages.Tcm(tx, 1, "C", 1, X1, b""))
        broker.tell(client_messages.InDoubt(tx, "B1", "voted yes; unreachable: B2"))
        broker.tell(client_messages.Ended(tx, True))
        await quiet(e)
        name = client_messages.tx_text(tx)
        assert told == [Doubt(name, "B1", "voted yes; unreachable: B2"), "committed"]
        assert f"{name} waits for broker B1: voted yes; unreachable: B2" in caplog.text


@asynchronous
async def test_a_handler_does_not_wait_for_ever_when_nobody_tells_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way to the coordinator is gone; whoever calls next is not kept waiting for that."""
    monkeypatch.setattr("padres_tx.client.asyncio.handles.PART_LIMIT_S", 0.001)
    async with with_manual_broker() as (e, broker):
        raised: list[Exception] = []
        next_one = asyncio.Event()

        async def act(tx: Part, notification: Notification) -> None:
            if notification["n"] == 2:
                next_one.set()
                return
            try:
                await tx.sub(X1)
            except CallTimeout as error:
                raised.append(error)
                raise

        e.on_tcm(None, act)
        for n in (1, 2):
            broker.tell(client_messages.Tcm(("C", 0, n), 1, "C", n, {**X1, "n": n}, b""))
        await next_one.wait()
        assert "waiting for an operation of C:0:1" in str(raised[0])


@asynchronous
async def test_an_operation_shows_what_it_is_and_how_it_stands() -> None:
    """A notebook prints whatever a line comes to."""
    async with dispatching_clients() as (_, e, _, _):
        async with e.transaction("d-tx") as tx:
            doing = tx.sub(X1)
            assert repr(doing) == "<sub([class,eq,'p1'],[x,eq,'x1']), pending>"
            await doing
            assert repr(doing) == "<sub([class,eq,'p1'],[x,eq,'x1']), done>"
            await tx.abort()
        async with e.transaction("s-tx") as tx:
            assert "nothing of a static transaction is done before its end" in repr(tx.sub(X1))
