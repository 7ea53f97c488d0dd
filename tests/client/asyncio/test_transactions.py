"""Transactions of asyncio clients over an in-process overlay, with each engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from overlay.errors import NotAdvertised, NotHeld
from overlay.wire.codec import FRAME_LIMIT
from overlay.wire.frames import FrameTooLarge
from padres_tx import client_messages, static
from padres_tx.client.asyncio.handles import Part, Transaction
from padres_tx.client.session import Notification
from padres_tx.client.transactions import Result
from padres_tx.errors import (
    BadTransaction,
    NotCoordinator,
    TransactionAborted,
    TransactionError,
    TransactionFinished,
    UnknownEngine,
    UnknownTransaction,
)
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
    tables,
    with_manual_broker,
)

# --- outcomes ---


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_transactions_that_do_not_conflict_commit_at_once_without_a_loss(engine: str) -> None:
    """Two clients subscribe to the same, and two advertise the same: nobody reads the other's."""
    async with dispatching_clients() as (overlay, e, d, a1):
        clients = (e, d, a1)
        txs = [await client.beginTX(engine) for client in clients]
        for client, tx in zip(clients, txs, strict=True):
            client.txSub(tx, {"class": "p2"})
            client.txAdv(tx, {"class": "p3"})
        results = await asyncio.gather(
            *(client.commitTX(tx) for client, tx in zip(clients, txs, strict=True))
        )
        assert [result.status for result in results] == ["committed"] * 3
        await quiet(*clients)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_a_block_commits_at_its_end(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        async with e.transaction(engine, wait="applied") as tx:
            start(tx)
        assert tx.result == Result(tx.id, engine, "committed")
        assert await numbers(a1) == [1] and await numbers(d) == []
        await e.publish({**X1, "n": 2})
        assert await numbers(a1) == [2] and await numbers(d) == []
        # The clients know what they hold now, whoever has said it for them.
        with pytest.raises(NotHeld):
            await d.unsubscribe(X1)
        await a1.unsubscribe(X1)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_the_names_of_table_2(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        came: list[Any] = []
        a1.notify(lambda notification: came.append(notification["n"]))
        tx = await e.beginTX(engine, deadline_s=5)
        assert re.fullmatch(r"E:\w+:\d+", tx)
        ops = None
        if engine == "s-tx":
            assign = {"class": "assign", "to": "A1", "x": "x1"}
            ops = {"D": [static.tcm(assign, ops={"A1": [static.sub(X1)]}), static.usub(X1)]}
        e.txAdv(tx, {"class": "p2"})
        e.txTCM(tx, {**X1, "n": 0}, ops=ops)
        e.txPub(tx, {**X1, "n": 1}, b"hello")
        e.txSub(tx, {"class": "p3"})
        e.txUsub(tx, {"class": "p3", "x": 1})
        e.txUadv(tx, {"class": "p2", "x": 1})
        result = await e.commitTX(tx)
        assert result.status == "committed" and result.committed and result.tx == tx
        await quiet(a1)
        assert came == [1]
        await e.publish({"class": "p2", "x": 2})
        with pytest.raises(NotAdvertised):
            await e.publish({"class": "p2", "x": 1})
        await e.unsubscribe({"class": "p3"})
        tx = await e.beginTX(engine)
        e.txSub(tx, P1)
        result = await e.abortTX(tx, "I have thought better of it")
        assert (result.status, result.code) == ("aborted", "aborted")
        assert "thought better" in result.reason
        with pytest.raises(NotHeld):
            await e.unsubscribe(P1)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_publications_come_at_the_commit_or_never(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        await a1.subscribe(P1)
        for outcome in (True, False):
            tx = await e.beginTX(engine)
            for n in range(3):
                await e.txPub(tx, {**X1, "n": n})
            assert await numbers(a1) == [], "it is done everywhere, but not committed"
            await (e.commitTX(tx) if outcome else e.abortTX(tx))
            assert await numbers(a1) == ([0, 1, 2] if outcome else [])
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_a_block_that_raises_aborts_and_the_error_goes_on(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        before = tables(overlay)
        with pytest.raises(KeyError, match="mine"):
            async with e.transaction(engine) as tx:
                start(tx)
                tx.sub(P1)
                raise KeyError("mine")
        assert tx.result is not None and tx.result.status == "aborted"
        assert tx.result.reason == "KeyError: 'mine'"
        assert tables(overlay) == before
        assert await numbers(a1) == await numbers(d) == []
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_participant_that_raises_aborts_the_transaction(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        before = tables(overlay)
        seen: list[Exception] = []
        d.on_error = seen.append

        async def refuse(tx: Part, notification: Notification) -> None:
            await tx.usub(X1)
            raise ValueError("no room for x1")

        d.on_tcm(None, refuse)
        with pytest.raises(TransactionAborted, match="D: ValueError: no room for x1") as aborted:
            async with e.transaction(engine) as tx:
                start(tx)
        assert aborted.value.code == "participant" and aborted.value.tx == tx.id
        assert [str(error) for error in seen] == ["no room for x1"]
        assert tables(overlay) == before
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_participant_may_abort(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        after: list[str] = []

        async def refuse(tx: Part, notification: Notification) -> None:
            result = await tx.abort("not today")
            after.append(result.status)
            with pytest.raises(TransactionFinished):
                tx.usub(X1)
            after.append("and goes on")

        d.on_tcm(None, refuse)
        with pytest.raises(TransactionAborted, match="not today"):
            async with e.transaction(engine) as tx:
                start(tx)
        await quiet(d)
        assert after == ["aborted", "and goes on"]
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_participant_without_a_handler_aborts_the_transaction(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        a1.on_tcm({"class": "assign"}, None)
        with pytest.raises(TransactionAborted, match="A1: no handler for this tcm"):
            async with e.transaction(engine) as tx:
                start(tx)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_a_tcm_that_nobody_receives_aborts_the_transaction(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        before = tables(overlay)
        await e.advertise({"class": "p2"})
        with pytest.raises(TransactionAborted) as aborted:
            async with e.transaction(engine) as tx:
                tx.sub(P1)
                ops = {"D": [static.usub(X1)]} if engine == "s-tx" else None
                tx.tcm({"class": "p2"}, ops=ops)
        assert aborted.value.code == "unheard"
        assert "[class,'p2']" in aborted.value.reason
        await e.unadvertise({"class": "p2"})
        assert tables(overlay) == before
        assert_at_rest(overlay)


@asynchronous
async def test_a_conflict_names_what_it_was_about() -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        with pytest.raises(TransactionAborted) as aborted:
            async with e.transaction("d-tx") as tx:
                await tx.pub({**X1, "n": 1})
                await a1.subscribe(X1)  # It would have had to go there, too.
        assert aborted.value.code == "conflict"
        assert "[x,eq,'x1']" in aborted.value.reason
        assert await numbers(d) == []
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_the_deadline_ends_it_and_the_next_operation_says_so(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        with pytest.raises(TransactionAborted, match="deadline") as aborted:
            async with e.transaction(engine, deadline_s=5) as tx:
                await tx.sub(P1)
                overlay.core.advance(6)
                await tx.ended
                tx.sub(X1)
        assert aborted.value.code == "deadline"
        # The same if it is found out by the commit.
        with pytest.raises(TransactionAborted, match="deadline"):
            async with e.transaction(engine, deadline_s=5):
                overlay.core.advance(6)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_it_can_be_ended_inside_the_block(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        async with e.transaction(engine) as tx:
            tx.sub(P1)
            assert (await tx.commit()).committed
            with pytest.raises(TransactionFinished, match="committed already"):
                tx.sub(X1)
        async with e.transaction(engine) as tx:
            tx.usub(P1)
            assert (await tx.abort("no")).status == "aborted"
        await e.unsubscribe(P1)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_cancelled_block_aborts_without_waiting(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        before = tables(overlay)
        inside = asyncio.Event()

        async def work() -> None:
            async with e.transaction(engine) as tx:
                await tx.sub(P1)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tables(overlay) == before
        assert_at_rest(overlay)


# --- mistakes ---


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_mistakes_raise_at_the_call(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        tx = await e.beginTX(engine)
        await e.commitTX(tx)
        for call in (
            lambda: e.txSub(tx, P1),
            lambda: e.txPub(tx, X1),
        ):
            with pytest.raises(TransactionFinished):
                call()
        with pytest.raises(TransactionFinished):
            await e.commitTX(tx)
        with pytest.raises(TransactionFinished):
            await e.abortTX(tx)
        with pytest.raises(UnknownTransaction):
            e.txSub("E:0:99", P1)
        with pytest.raises(UnknownTransaction, match=r"A1 takes no part in E:\w+:\d+"):
            other = await e.beginTX(engine)
            assert re.fullmatch(r"E:\w+:\d+", other)
            a1.txSub(other, P1)
        with pytest.raises(UnknownTransaction):
            await a1.commitTX(other)
        await e.abortTX(other)
        assert_at_rest(overlay)


@asynchronous
async def test_a_participant_cannot_commit_nor_act_outside_its_handler() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        seen: list[Part] = []

        async def look(tx: Part, notification: Notification) -> None:
            with pytest.raises(NotCoordinator, match="only E can commit it"):
                await d.commitTX(tx.id)
            d.txUsub(tx.id, X1)  # Table 2's names know in whose part they are called.
            seen.append(tx)

        d.on_tcm(None, look)
        async with e.transaction("d-tx") as tx:
            await tx.tcm({**X1, "n": 0})
            with pytest.raises(TransactionFinished, match="finished its part"):
                seen[0].sub(X1)
            with pytest.raises(NotCoordinator, match="only while its handler runs"):
                d.txSub(tx.id, X1)
        assert seen[0].coordinator == "E" and seen[0].engine == "d-tx"
        assert (await seen[0].ended).committed
        with pytest.raises(NotHeld):
            await d.unsubscribe(X1)
        assert_at_rest(overlay)


@asynchronous
async def test_bad_terms_raise_when_it_is_begun() -> None:
    async with dispatching_clients() as (_, e, _, _):
        with pytest.raises(UnknownEngine, match=r"'x-tx'; there are .*d-tx"):
            async with e.transaction("x-tx"):
                pass
        with pytest.raises(BadTransaction, match="deadline_s"):
            await e.beginTX(deadline_s=0)
        with pytest.raises(BadTransaction, match="unknown option 'wait_s'"):
            await e.beginTX(wait_s=0.1)
        with pytest.raises(ValueError, match="'decided' or 'applied'"):
            e.transaction(wait="never")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="invalid retries -1"):
            e.transaction(retries=-1)
        with pytest.raises(TypeError, match="one payload"):
            async with e.transaction() as tx:
                tx.pub(X1, b"bytes", json={})
        once = e.transaction()
        async with once:
            pass
        with pytest.raises(TransactionFinished, match="entered already"):
            async with once:
                pass
        with pytest.raises(TransactionError, match="has not begun"):
            Transaction(e._driver, once).sub(P1)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_an_operation_that_is_too_large_raises_and_the_rest_goes_on(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        async with e.transaction(engine) as tx:
            with pytest.raises(FrameTooLarge):
                tx.pub({**X1, "n": 0}, bytes(FRAME_LIMIT + 1))
            tx.pub({**X1, "n": 1})
        assert await numbers(d) == [1]
        assert_at_rest(overlay)


# --- static transactions ---


@asynchronous
async def test_nothing_of_a_static_transaction_is_done_before_its_end() -> None:
    async with dispatching_clients() as (_, e, _, _):
        async with e.transaction("s-tx") as tx:
            doing = tx.sub(P1)
            with pytest.raises(TransactionError, match="before its end"):
                await doing
        with pytest.raises(TransactionError, match="s-tx does not report"):
            await tx.drained
        await e.unsubscribe(P1)


@asynchronous
async def test_after_takes_what_operations_return() -> None:
    async with dispatching_clients() as (_, e, d, _):
        with pytest.raises(BadTransaction, match="add that first"):
            async with e.transaction("s-tx") as tx:
                first = tx.sub({"class": "p3"})
                tx.pub({**X1, "n": 1}, after=[first])
                tx.pub({**X1, "n": 2}, after=[static.sub(P1)])
        async with e.transaction("s-tx", wait="applied") as tx:
            first = tx.sub({"class": "p3"})
            tx.pub({**X1, "n": 1}, after=[first])
        assert await numbers(d) == [1]


@asynchronous
async def test_a_plan_that_fits_in_no_frame_is_aborted() -> None:
    async with dispatching_clients() as (_, e, _, _):
        with pytest.raises(TransactionAborted) as aborted:
            async with e.transaction("s-tx") as tx:
                for n in range(2):
                    tx.pub({**X1, "n": n}, bytes(FRAME_LIMIT // 2))
                with pytest.raises(BadTransaction, match="fit in one frame"):
                    tx.pub({**X1, "n": 2}, b"!")
        assert aborted.value.code == FrameTooLarge.code, "there is more in a frame than payloads"


@asynchronous
async def test_a_static_transaction_with_somebody_who_is_not_there() -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        with pytest.raises(TransactionAborted, match="A7 not connected"):
            async with e.transaction("s-tx") as tx:
                tx.tcm(X1, ops={"A7": [static.sub(P1)]})
        assert_at_rest(overlay)


# --- attempts ---


@asynchronous
async def test_a_conflict_is_tried_again() -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        attempts: list[str] = []
        async for tx in e.transaction("d-tx", retries=5, wait="applied"):
            async with tx:
                attempts.append(tx.id)
                await tx.pub({**X1, "n": 1})
                if len(attempts) < 3:  # Somebody else changes who would get it.
                    await a1.subscribe(X1)
                    await a1.unsubscribe(X1)
        assert len(attempts) == 3 and len(set(attempts)) == 3
        assert await numbers(d) == [1]
        assert_at_rest(overlay)


@asynchronous
async def test_a_function_can_be_run_in_a_transaction() -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        attempts: list[str] = []

        async def work(tx: Transaction) -> str:
            attempts.append(tx.id)
            await tx.pub({**X1, "n": 1})
            if len(attempts) == 1:
                await a1.subscribe(X1)
            return "done"

        assert await e.transact(work, retries=3, wait="applied") == "done"
        assert len(attempts) == 2
        assert await e.transact(lambda tx: tx.engine, "s-tx") == "s-tx"
        with pytest.raises(TransactionAborted, match="conflict"):
            attempts.clear()
            await a1.unsubscribe(X1)
            await e.transact(work)
        with pytest.raises(KeyError):
            await e.transact(lambda tx: {}["nothing"], retries=3)
        assert_at_rest(overlay)


@asynchronous
async def test_an_attempt_keeps_the_age_that_its_broker_has_given() -> None:
    async with with_manual_broker() as (e, broker):

        def lose(message: Any) -> list[Any]:
            if isinstance(message, client_messages.Begin):
                return [client_messages.Began(message.tx, 50 if message.age == 40 else 40)]
            if isinstance(message, client_messages.Commit):
                return [client_messages.Ended(message.tx, False, "conflict", "C:0:1 was first")]
            return []

        broker.answer = lose
        with pytest.raises(TransactionAborted, match="C:0:1 was first"):
            async for tx in e.transaction("d-tx", retries=2):
                async with tx:
                    tx.sub(P1)
        begins = [
            message for message in broker.received if isinstance(message, client_messages.Begin)
        ]
        assert [begin.age for begin in begins] == [0, 40, 50], "it does not believe every age"


@asynchronous
async def test_only_conflicts_are_tried_again() -> None:
    async with dispatching_clients() as (_, e, _, _):
        attempts = 0
        with pytest.raises(TransactionAborted, match="no client receives"):
            async for tx in e.transaction("d-tx", retries=5):
                async with tx:
                    attempts += 1
                    tx.adv({"class": "p2"})
                    tx.tcm({"class": "p2"})
        assert attempts == 1


@asynchronous
async def test_retries_need_a_loop_and_the_loop_a_block() -> None:
    async with dispatching_clients() as (_, e, _, _):
        with pytest.raises(TypeError, match="async for"):
            async with e.transaction("d-tx", retries=1):
                pass
        with pytest.raises(TransactionError, match="enter it with"):
            async for _tx in e.transaction("d-tx", retries=1):
                pass
        async for tx in e.transaction("d-tx"):
            async with tx:
                pass
            with pytest.raises(TransactionFinished, match="entered already"):
                async with tx:
                    pass
