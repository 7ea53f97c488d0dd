"""Handlers for tcms: whose turn it is, called while they wait, cancelled when it is over."""

from __future__ import annotations

import asyncio

import pytest

from overlay.errors import NotHeld
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.asyncio.tcm_handlers import NESTING_LIMIT
from padres_tx.client.session import Notification
from padres_tx.errors import TransactionAborted, UnknownTransaction
from tests.client.dispatching_clients import (
    ASSIGN,
    DYNAMIC,
    P1,
    X1,
    assert_at_rest,
    asynchronous,
    dispatching_clients,
    quiet,
)


@asynchronous
async def test_the_last_handler_that_matches_acts() -> None:
    async with dispatching_clients() as (_, e, d, _):
        acted: list[str] = []
        d.on_tcm(None, lambda tx, notification: acted.append("any"))
        d.on_tcm(X1, lambda tx, notification: acted.append("x1"))
        for x in ("x1", "x2"):
            async with e.transaction() as tx:
                tx.tcm({"class": "p1", "x": x})
        d.on_tcm(X1, None)
        d.on_tcm(P1, lambda tx, notification: acted.append("p1"))
        async with e.transaction() as tx:
            tx.tcm(X1)
        assert acted == ["x1", "any", "p1"]


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_handlers_run_one_after_the_other(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        acts: list[str] = []
        go_on = asyncio.Event()

        async def act(tx: Part, notification: Notification) -> None:
            acts.append(f"begin {notification['n']}")
            await go_on.wait()
            acts.append(f"end {notification['n']}")

        d.on_tcm(None, act)
        txs = [await e.beginTX(engine) for _ in range(3)]
        doings = [e.txTCM(tx, {**X1, "n": n}) for n, tx in enumerate(txs)]
        while not acts:
            await asyncio.sleep(0)
        await quiet(e)
        assert acts == ["begin 0"]
        go_on.set()
        await asyncio.gather(*doings)
        assert acts == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
        for tx in txs:
            await e.commitTX(tx)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_handler_that_waits_can_be_called_by_its_own_transaction(engine: str) -> None:
    """D asks A1, A1 asks D back, and both wait for the answer."""
    async with dispatching_clients() as (overlay, e, d, a1):
        await a1.advertise({"class": "back"})
        await d.subscribe({"class": "back"})
        acts: list[str] = []

        async def ask(tx: Part, notification: Notification) -> None:
            acts.append("D asks")
            await tx.tcm({"class": "assign", "to": "A1"})
            acts.append("D has asked")
            tx.usub(X1)

        async def ask_back(tx: Part, notification: Notification) -> None:
            acts.append("A1 asks back")
            # Together with another operation, as one would.
            await asyncio.gather(tx.tcm({"class": "back"}), tx.sub(X1))
            acts.append("A1 has asked back")

        d.on_tcm(P1, ask)
        d.on_tcm({"class": "back"}, lambda tx, notification: acts.append("D answers"))
        a1.on_tcm(ASSIGN, ask_back)
        async with e.transaction(engine, wait="applied") as tx:
            tx.tcm(X1)
        assert acts == ["D asks", "A1 asks back", "D answers", "A1 has asked back", "D has asked"]
        await a1.unsubscribe(X1)
        assert_at_rest(overlay)


@asynchronous
async def test_a_tcm_that_came_too_early_is_handled_when_the_handler_waits() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        await d.subscribe(ASSIGN)
        acts: list[str] = []
        looked = asyncio.Event()

        async def ask(tx: Part, notification: Notification) -> None:
            doing = tx.tcm({"class": "assign", "to": "D"})
            await looked.wait()
            acts.append("waits")
            await doing
            acts.append("done")

        d.on_tcm(P1, ask)
        d.on_tcm(ASSIGN, lambda tx, notification: acts.append("called"))
        tx = await e.beginTX()
        doing = e.txTCM(tx, X1)
        while not d._driver.handlers._waiting:  # The second tcm is there, and it is not its turn.
            await asyncio.sleep(0)
        assert acts == []
        looked.set()
        await doing
        assert acts == ["waits", "called", "done"]
        assert (await e.commitTX(tx)).committed
        assert_at_rest(overlay)


@asynchronous
async def test_another_transaction_is_not_handled_while_one_waits() -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        acts: list[object] = []
        go_on = asyncio.Event()

        async def ask(tx: Part, notification: Notification) -> None:
            acts.append(notification["n"])
            await tx.tcm({"class": "assign", "to": "A1"})

        async def answer(tx: Part, notification: Notification) -> None:
            await go_on.wait()

        d.on_tcm(P1, ask)
        a1.on_tcm(ASSIGN, answer)
        txs = [await e.beginTX("d-tx") for _ in range(2)]
        doings = [e.txTCM(tx, {**X1, "n": n}) for n, tx in enumerate(txs)]
        while not a1._driver.handlers._running:
            await asyncio.sleep(0)
        assert acts == [0] and d._driver.handlers._waiting
        go_on.set()
        await asyncio.gather(*doings)
        assert acts == [0, 1]
        for tx in txs:
            await e.abortTX(tx)
        assert_at_rest(overlay)


@asynchronous
async def test_an_endless_recursion_of_tcms_is_told() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        await d.subscribe(ASSIGN)

        async def again(tx: Part, notification: Notification) -> None:
            await tx.tcm({"class": "assign", "to": "D"})

        d.on_tcm(None, again)
        with pytest.raises(TransactionAborted, match=f"nested more than {NESTING_LIMIT} deep"):
            async with e.transaction() as tx:
                tx.tcm(X1)
        await quiet(d)
        assert_at_rest(overlay)


@asynchronous
async def test_as_many_handlers_as_may_be_nested_are() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        await d.subscribe(ASSIGN)
        depth = 0

        async def again(tx: Part, notification: Notification) -> None:
            nonlocal depth
            depth += 1
            if depth < NESTING_LIMIT:
                await tx.tcm({"class": "assign", "to": "D"})

        d.on_tcm(None, again)
        async with e.transaction(wait="applied") as tx:
            tx.tcm(X1)
        assert depth == NESTING_LIMIT
        await quiet(d)
        assert_at_rest(overlay)


@asynchronous
async def test_a_coordinator_can_be_called_by_its_own_tcm() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        d.on_tcm(None, lambda tx, notification: None)
        await e.subscribe(P1)
        e.on_tcm(None, lambda tx, notification: tx.usub(X1) and None)
        async with e.transaction(wait="applied") as tx:
            tx.tcm({**X1, "n": 0})
            tx.pub({**X1, "n": 1})  # And the commit is asked for before it is called.
        assert [n["n"] async for n in d.notifications(timeout_s=0)] == [1]
        assert [n["n"] async for n in e.notifications(timeout_s=0)] == []
        assert_at_rest(overlay)


@asynchronous
async def test_a_handler_whose_transaction_has_ended_is_cancelled() -> None:
    """It would hold up all that come after it."""
    async with dispatching_clients() as (overlay, e, d, _):
        acts: list[str] = []

        async def act(tx: Part, notification: Notification) -> None:
            acts.append("begins")
            if notification["n"] == 0:
                try:
                    await asyncio.Event().wait()
                finally:
                    acts.append("is cancelled")

        d.on_tcm(None, act)
        stuck = await e.beginTX(deadline_s=5)
        e.txTCM(stuck, {**X1, "n": 0})
        dropped = await e.beginTX(deadline_s=4)
        e.txTCM(dropped, {**X1, "n": 1})
        while not d._driver.handlers._waiting:
            await asyncio.sleep(0)
        overlay.core.advance(6)
        assert (await e.commitTX(stuck)).code == "deadline"
        assert (await e.commitTX(dropped)).code == "deadline"
        await quiet(d)
        assert acts == ["begins", "is cancelled"], "and the other one never began"
        async with e.transaction() as tx:
            tx.tcm({**X1, "n": 2})
        assert acts[2:] == ["begins"]
        assert_at_rest(overlay)


@asynchronous
async def test_a_handler_that_waits_for_an_operation_hears_how_it_ended() -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        heard: list[str] = []

        async def ask(tx: Part, notification: Notification) -> None:
            try:
                await tx.tcm({"class": "assign", "to": "A1"})
            except TransactionAborted as aborted:
                heard.append(aborted.code)
                raise

        async def hang(tx: Part, notification: Notification) -> None:
            await asyncio.Event().wait()

        d.on_tcm(None, ask)
        a1.on_tcm(None, hang)
        errors: list[Exception] = []
        d.on_error = errors.append
        tx = await e.beginTX(deadline_s=5)
        e.txTCM(tx, X1)
        while not a1._driver.handlers._running:
            await asyncio.sleep(0)
        overlay.core.advance(6)
        assert (await e.commitTX(tx)).code == "deadline"
        await quiet(d, a1)
        assert heard == ["deadline"]
        assert errors == [], "it is an outcome, not an error"
        assert_at_rest(overlay)


@asynchronous
async def test_a_handler_that_is_cancelled_by_others_aborts_its_transaction() -> None:
    async with dispatching_clients() as (overlay, e, d, _):

        async def act(tx: Part, notification: Notification) -> None:
            raise asyncio.CancelledError

        d.on_tcm(None, act)
        with pytest.raises(TransactionAborted, match="its handler was cancelled"):
            async with e.transaction() as tx:
                tx.tcm(X1)
        assert_at_rest(overlay)


@pytest.mark.parametrize("turns", range(4))
@asynchronous
async def test_an_abort_before_a_handler_has_begun_does_not_stop_those_after_it(turns: int) -> None:
    """A task that is cancelled before its first step never runs."""
    async with dispatching_clients() as (overlay, e, d, _):
        called: list[object] = []
        d.on_tcm(None, lambda tx, n: called.append(n["n"]))
        tx = await e.beginTX()
        e.txTCM(tx, {**X1, "n": 0})
        for _ in range(turns):
            await asyncio.sleep(0)
        await e.abortTX(tx)
        async with e.transaction(deadline_s=5) as block:
            block.tcm({**X1, "n": 1})
        assert called[-1] == 1
        assert not d._driver.handlers._running
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_in_a_handler_another_client_acts_for_itself(engine: str) -> None:
    """Several clients may live in one program: D's handler is not the coordinator's, or A1's."""
    async with dispatching_clients() as (overlay, e, d, a1):
        errors: list[Exception] = []

        async def act(part: Part, notification: Notification) -> None:
            try:
                a1.txSub(part.id, X1)
            except UnknownTransaction as error:
                errors.append(error)
            e.txPub(part.id, {**X1, "n": 7})
            d.txUsub(part.id, X1)

        d.on_tcm(P1, act)
        async with e.transaction(engine, wait="applied") as tx:
            await tx.tcm(X1)
        assert len(errors) == 1, "A1 has no part in it"
        for client in (d, a1):
            with pytest.raises(NotHeld):
                await client.unsubscribe(X1)
        await quiet(d)
        assert_at_rest(overlay)
