"""Bad input at a client: an error at the call or an abort with a reason, and tables as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from overlay.errors import FilterError, NotAdvertised, NotHeld
from padres_tx import (
    BadTransaction,
    NotCoordinator,
    Notification,
    Part,
    Transaction,
    TransactionAborted,
    TransactionFinished,
    UnknownEngine,
    UnknownTransaction,
    static,
)
from tests.client.dispatching_clients import (
    ASSIGN,
    DECIDED,
    DYNAMIC,
    P1,
    X1,
    Figure1bClients,
    assert_at_rest,
    asynchronous,
    dispatching_clients,
    tables,
)

#: What a coordinator does wrong, and how that is told, whatever the engine.
MISTAKES: dict[str, tuple[Callable[[Transaction], Any], type[Exception], str]] = {
    "a publication outside what it advertised": (
        lambda tx: tx.pub({"class": "zz"}),
        NotAdvertised,
        "E has not advertised",
    ),
    "a tcm outside what it advertised": (
        lambda tx: tx.tcm({"class": "zz"}, ops=_ops(tx)),
        NotAdvertised,
        "E has not advertised",
    ),
    "un-subscribing what it does not hold": (lambda tx: tx.usub(ASSIGN), NotHeld, "un-subscribe"),
    "un-advertising what it does not hold": (lambda tx: tx.uadv(ASSIGN), NotHeld, "un-advertise"),
    "no filter": (lambda tx: tx.sub(None), FilterError, "expected a Filter"),
    "a filter that is no interval": (
        lambda tx: tx.sub("[class,neq,'x']"),
        FilterError,
        "does not describe an interval",
    ),
    "a filter for a publication": (
        lambda tx: tx.pub("[class,eq,'p1']"),
        FilterError,
        "got 3 fields",
    ),
    "a value that is none": (lambda tx: tx.pub({"class": ["p1"]}), FilterError, "got list"),
    "text as a payload": (
        lambda tx: tx.pub(X1, "text"),
        TypeError,
        "expected bytes as payload, got str",
    ),
    "two payloads": (lambda tx: tx.pub(X1, b"x", json=1), TypeError, "one payload"),
    "no function as a callback": (lambda tx: tx.sub(P1, 5), TypeError, "is a function"),
}


def _ops(tx: Transaction) -> dict[str, list[static.Op]] | None:
    return {"D": [static.usub(X1)]} if tx.engine == "s-tx" else None


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_a_mistake_of_the_coordinator(engine: str, mistake: str) -> None:
    do, error, words = MISTAKES[mistake]
    async with dispatching_clients() as (overlay, e, _, _):
        before = tables(overlay)
        with pytest.raises(error, match=words):
            async with e.transaction(engine) as tx:
                tx.sub(P1)
                do(tx)
        assert tx.result is not None and not tx.result.committed
        assert tables(overlay) == before
        assert_at_rest(overlay)
        async with e.transaction(engine) as tx:  # The client goes on.
            tx.pub(X1)


@pytest.mark.parametrize("engine", [*DECIDED, "bl-wait"])
@pytest.mark.parametrize(
    "deadline_s", [0, -1, float("nan"), float("inf"), 1e9, 10**400, "5", True, None], ids=repr
)
@asynchronous
async def test_a_deadline_that_is_none(engine: str, deadline_s: Any) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        with pytest.raises(
            BadTransaction, match=r"invalid deadline_s .*: expected seconds above 0, at most 3600"
        ):
            await e.beginTX(engine, deadline_s=deadline_s)
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", [None, 5, "", "D-TX", "d_tx.py", "x-tx"])
@asynchronous
async def test_an_engine_that_is_none(engine: Any) -> None:
    async with dispatching_clients() as (_, e, _, _):
        with pytest.raises(UnknownEngine):
            await e.beginTX(engine)


@asynchronous
async def test_terms_that_are_none() -> None:
    async with dispatching_clients() as (_, e, d, _):
        for retries in (-1, 1.5, "3", None):
            with pytest.raises(ValueError, match="invalid retries"):
                e.transaction("d-tx", retries=retries)  # type: ignore[arg-type]
        for name in ("sub", "commit", "id"):
            with pytest.raises(AttributeError, match=f"has not begun: .* use tx.{name}"):
                getattr(e.transaction("d-tx"), name)
        with pytest.raises(AttributeError, match="no attribute 'subb'"):
            e.transaction("d-tx").subb(P1)
        with pytest.raises(TypeError, match="a handler is a function"):
            d.on_tcm(None, "dispatch")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_after_the_end(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        for end in (e.commitTX, e.abortTX):
            tx = await e.beginTX(engine)
            await end(tx)
            before = tables(overlay)
            for call in (e.txSub, e.txAdv, e.txUsub, e.txUadv):
                with pytest.raises(TransactionFinished):
                    call(tx, P1)
            for publish in (e.txPub, e.txTCM):
                with pytest.raises(TransactionFinished):
                    publish(tx, X1)
            for again in (e.commitTX, e.abortTX):
                with pytest.raises(TransactionFinished):
                    await again(tx)
            assert tables(overlay) == before
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_unknown_and_foreign_transactions(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        before = tables(overlay)
        mine = await e.beginTX(engine)
        for client, name in ((e, "E:0:999"), (e, "nonsense"), (e, ""), (e, None), (d, mine)):
            with pytest.raises(UnknownTransaction):
                client.txSub(name, P1)  # type: ignore[arg-type]
            for end in (client.commitTX, client.abortTX):
                with pytest.raises(UnknownTransaction):
                    await end(name)  # type: ignore[arg-type]
        await e.abortTX(mine)
        assert tables(overlay) == before
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_participant_that_wants_to_commit(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        before = tables(overlay)

        async def commit(tx: Part, notification: Notification) -> None:
            tx.usub(X1)
            await d.commitTX(tx.id)

        d.on_tcm(None, commit)
        with pytest.raises(TransactionAborted, match="D: NotCoordinator") as aborted:
            async with e.transaction(engine) as tx:
                tx.tcm(X1)
        assert aborted.value.code == "participant"
        assert tables(overlay) == before
        assert_at_rest(overlay)
        with pytest.raises(NotCoordinator):
            await d.commitTX(tx.id)


@asynchronous
async def test_a_plan_that_cannot_be_put_in_an_order_is_refused_at_the_call() -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        before = tables(overlay)
        first = static.sub(P1)
        circle = static.sub(X1, after=[first])
        first.after = (circle,)
        await _refused(e, lambda tx: tx.tcm(X1, ops={"D": [first, circle]}), "wait for each other")
        stray = static.sub(P1)
        await _refused(e, lambda tx: tx.do(static.sub(X1, after=[stray])), "not in the transaction")
        await _refused(e, lambda tx: tx.tcm(X1), "has no receivers")
        await _refused(e, lambda tx: tx.tcm(X1, ops={"not a name": []}), "invalid client name")
        await _refused(e, lambda tx: tx.tcm(X1, ops={"D": "usub"}), "list of operations")
        assert tables(overlay) == before
        assert_at_rest(overlay)


@asynchronous
async def test_an_oversized_plan_is_refused_at_the_call() -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        before = tables(overlay)

        def many(tx: Transaction) -> None:
            for _ in range(1001):
                tx.pub(X1)

        await _refused(e, many, "more than 1000 operations")
        await _refused(e, lambda tx: tx.tcm(X1, ops={"D": [static.usub(X1)] * 2}), "already")
        assert tables(overlay) == before
        assert_at_rest(overlay)


async def _refused(client: Any, do: Callable[[Transaction], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        async with client.transaction("s-tx") as tx:
            do(tx)


@pytest.mark.parametrize("engine", DECIDED)
@asynchronous
async def test_a_tcm_that_nobody_receives(engine: str) -> None:
    async with dispatching_clients() as players:
        await _unheard(engine, players)


async def _unheard(engine: str, players: Figure1bClients) -> None:
    overlay, e, d, _ = players
    await d.unsubscribe(X1)
    before = tables(overlay)
    with pytest.raises(TransactionAborted) as aborted:
        async with e.transaction(engine) as tx:
            tx.sub(P1)
            tx.usub(P1)
            tx.tcm({**X1, "n": 0}, ops=_ops(tx))
    # In a plan the receiver is named, and un-subscribing what it does not hold comes to the same.
    assert aborted.value.code in (("unheard",) if engine != "s-tx" else ("unheard", "not-held"))
    assert aborted.value.reason
    assert tables(overlay) == before
    assert_at_rest(overlay)
