"""BL-WAIT: plain operations with waits, and that it promises nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from overlay.errors import NotHeld, OperationError
from overlay.messages import Done, Operation, Pub
from padres_tx import static
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Answered, Event, Notification, PublicationRefused
from padres_tx.client.transactions import (
    NO_HANDLER,
    TCM_MARK,
    CommitApplied,
    CommitDrained,
    OperationDone,
    SendForOperation,
    SetTransactionTimer,
    TcmReceived,
    TransactionEnded,
)
from padres_tx.engines.bl_wait import UNSURE, WAIT_S
from padres_tx.errors import BadTransaction, ClientClosed, TransactionAborted, TransactionError
from tests.client.dispatching_clients import (
    P1,
    X1,
    asynchronous,
    dispatching_clients,
    quiet,
    start,
    tables,
)
from tests.client.test_transactions import Half


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def sent(events: list[Event]) -> Any:
    return next(event.message for event in events if isinstance(event, SendForOperation))


def answer(half: Half, operation: Operation, code: str = "") -> list[Event]:
    events: list[Event] = []
    for event in half.session.receive(
        Done(operation.req, code, "because" if code else "", 0 if code else half.number())
    ):
        assert isinstance(event, Answered)
        events += half.transactions.answered(event.req, event.error)
    return events


# --- message by message ---


def test_the_coordinator_pauses_between_its_operations() -> None:
    half = Half()
    half.plain("adv", static.adv(P1).filter)  # type: ignore[arg-type]
    tx = half.begin("bl-wait", wait_s=0.25)
    first, events = half.transactions.operate(tx, 0, static.tcm(X1, b"hello"))
    pub = sent(events)
    assert pub == Pub("E", pub.seq, {**X1, TCM_MARK: "bl-wait E:0:3"}, b"hello")
    assert events[1:] == [OperationDone(tx, first), SetTransactionTimer(tx, 0.25)]
    second, events = half.transactions.operate(tx, 0, static.sub(X1))
    third, more = half.transactions.operate(tx, 0, static.pub(X1))
    assert events == more == []
    events = half.transactions.wake(tx)
    operation = sent(events)
    assert isinstance(operation, Operation) and operation.kind == "sub"
    assert names(events) == ["SendForOperation", "SetTransactionTimer"]
    assert half.transactions.commit(tx) == [], "there is more to do"
    assert answer(half, operation) == [OperationDone(tx, second)]
    events = half.transactions.wake(tx)
    assert sent(events) == Pub("E", sent(events).seq, X1), "a publication is as plain as can be"
    # After the last operation there is nothing to wait for.
    assert names(events) == [
        "SendForOperation",
        "OperationDone",
        "SetTransactionTimer",
        "TransactionEnded",
        "CommitApplied",
        "CommitDrained",
    ]
    assert OperationDone(tx, third) in events
    assert tx.result is not None and tx.result.reason == UNSURE
    assert half.transactions.wake(tx) == []


def test_the_commit_waits_for_answers_and_tells_a_refusal() -> None:
    half = Half()
    tx = half.begin("bl-wait")
    assert tx.deadline_s > WAIT_S
    number, events = half.transactions.operate(tx, 0, static.sub(X1), "callback")
    operation = sent(events)
    assert half.callbacks(X1) == ["callback"]
    assert half.transactions.commit(tx) == []
    failed, decided = answer(half, operation, "operation")
    assert isinstance(failed, OperationDone) and failed.number == number
    assert isinstance(failed.error, OperationError)
    assert isinstance(decided, TransactionEnded)
    assert decided.result.code == "operation"
    assert decided.result.reason == "because; what was sent stays"
    assert half.callbacks(X1) == []


def test_an_operation_that_has_become_wrong_fails_and_the_next_one_goes_out() -> None:
    half = Half()
    half.plain("sub", static.sub(P1).filter)  # type: ignore[arg-type]
    tx = half.begin("bl-wait")
    half.transactions.operate(tx, 0, static.sub({"class": "p2"}))
    wrong = half.do(tx, static.usub(X1))
    right, _ = half.transactions.operate(tx, 0, static.sub({"class": "p3"}))
    half.plain("usub", static.sub(P1).filter)  # type: ignore[arg-type]
    events = half.transactions.wake(tx)
    assert names(events) == ["OperationDone", "SendForOperation", "SetTransactionTimer"]
    assert isinstance(events[0], OperationDone) and events[0].number == wrong
    assert isinstance(events[0].error, NotHeld)
    assert right in tx.pending


def test_an_abort_takes_nothing_back_but_what_was_not_sent() -> None:
    half = Half()
    tx = half.begin("bl-wait")
    half.transactions.operate(tx, 0, static.sub(X1))
    half.transactions.operate(tx, 0, static.sub(P1))
    (decided,) = half.transactions.abort(tx, "no")
    assert isinstance(decided, TransactionEnded)
    assert decided.result.reason == "no; what was sent stays"
    assert half.transactions.wake(tx) == []
    half.session.operate("usub", X1)


def marked(name: str = "E:0:9", **more: Any) -> Notification:
    return Notification("E", 10, {**X1, TCM_MARK: f"bl-wait {name}", **more}, b"hello")  # type: ignore[arg-type]


def test_who_takes_part_acts_at_once_and_it_is_over_when_its_handler_returns() -> None:
    half = Half("D")
    half.plain("sub", static.sub(P1).filter)  # type: ignore[arg-type]
    events = half.transactions.notified(marked())
    assert events is not None and isinstance(events[0], TcmReceived)
    tx, frame, notification = events[0].tx, events[0].frame, events[0].notification
    assert notification == Notification("E", 10, X1, b"hello"), "the mark is off"  # type: ignore[arg-type]
    number, events = half.transactions.operate(tx, frame, static.usub(X1))
    operation = sent(events)
    assert names(events) == ["SendForOperation"], "without a pause"
    assert half.transactions.finish(tx, frame) == []
    assert answer(half, operation) == [
        OperationDone(tx, number),
        TransactionEnded(tx, tx.result),  # type: ignore[arg-type]
        CommitApplied("E:0:9"),
        CommitDrained("E:0:9"),
    ]
    assert tx.result is not None and tx.result.reason == UNSURE
    # The next tcm of the same transaction begins anew.
    again = half.transactions.notified(marked())
    assert again is not None and isinstance(again[0], TcmReceived) and again[0].tx is not tx


def test_one_that_came_again_is_forgotten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second tcm is a second transaction of the name; the client broke when both were old."""
    monkeypatch.setattr("padres_tx.client.transactions.ENDED_LIMIT", 1)
    half = Half("D")
    for name in ("E:0:9", "E:0:9", "E:0:10", "E:0:11"):
        called = half.transactions.notified(marked(name))
        assert called is not None and isinstance(called[0], TcmReceived)
        half.transactions.finish(called[0].tx, called[0].frame)
    assert half.transactions.get(("E", 0, 11)) and not half.transactions.get(("E", 0, 9))


def test_who_takes_part_has_nobody_to_tell_of_an_error() -> None:
    half = Half("D")
    events = half.transactions.notified(marked())
    assert events is not None and isinstance(events[0], TcmReceived)
    refused, decided = half.transactions.finish(events[0].tx, events[0].frame, NO_HANDLER)
    assert isinstance(refused, PublicationRefused) and str(refused.error) == f"E:0:9: {NO_HANDLER}"
    assert isinstance(decided, TransactionEnded) and not decided.result.committed


def test_what_a_handler_raises_is_known_to_its_client() -> None:
    half = Half("D")
    events = half.transactions.notified(marked())
    assert events is not None and isinstance(events[0], TcmReceived)
    (decided,) = half.transactions.finish(events[0].tx, events[0].frame, "no room")
    assert isinstance(decided, TransactionEnded) and decided.result.reason.startswith(
        "E:0:9: no room"
    )


@pytest.mark.parametrize(
    "mark", ["bl-wait", "bl-wait E", "bl-wait :1", "bl-wait E:x", "e-tx E:0:1", 3]
)
def test_what_is_no_mark_is_an_attribute(mark: object) -> None:
    half = Half("D")
    assert half.transactions.notified(marked(**{TCM_MARK: mark})) is None


def test_bad_waits_are_refused() -> None:
    half = Half()
    for wait_s in (0, -1, float("nan"), 61, "long"):
        with pytest.raises(
            BadTransaction, match=r"invalid wait_s .*: expected seconds above 0, at most 60"
        ):
            half.begin("bl-wait", wait_s=wait_s)


# --- over an overlay ---


@asynchronous
async def test_it_runs_like_any_other_engine() -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        ends: list[str] = []
        d.on_end(lambda result: ends.append(result.status))
        async with e.transaction("bl-wait", wait_s=0.001, wait="applied") as tx:
            await tx.sub({"class": "p3"})
            start(tx)
        await tx.drained
        assert tx.result is not None and tx.result.reason == UNSURE
        await quiet(e, d, a1)
        assert ends == ["committed"]
        # At rest the tables are as they should be, whoever got the publication.
        assert any("A1" in row and "x1" in row for row in tables(overlay)["B1"]["prt"])
        await e.unsubscribe({"class": "p3"})
        await a1.unsubscribe(X1)
        with pytest.raises(NotHeld):
            await d.unsubscribe(X1)


@asynchronous
async def test_a_block_that_raises_leaves_what_was_sent() -> None:
    async with dispatching_clients() as (_, e, d, _):
        with pytest.raises(KeyError):
            async with e.transaction("bl-wait") as tx:
                await tx.sub({"class": "p3"})
                late = tx.sub({"class": "p4"})
                raise KeyError
        with pytest.raises(TransactionAborted, match="what was sent stays"):
            await late
        await e.unsubscribe({"class": "p3"})
        with pytest.raises(NotHeld):
            await e.unsubscribe({"class": "p4"})
        await quiet(d)


@asynchronous
async def test_a_handlers_error_is_reported_where_it_happened_once() -> None:
    async with dispatching_clients() as (_, e, d, _):
        errors: list[Exception] = []
        d.on_error = errors.append

        def refuse(tx: Part, notification: Notification) -> None:
            raise ValueError("no room")

        d.on_tcm(None, refuse)
        async with e.transaction("bl-wait") as tx:
            tx.tcm({**X1, "n": 0})
        await quiet(d)
        assert [str(error) for error in errors] == ["no room"]


@asynchronous
async def test_a_receiver_without_a_handler_hears_of_it() -> None:
    async with dispatching_clients() as (_, e, d, _):
        d.on_tcm(P1, None)
        async with e.transaction("bl-wait") as tx:
            tx.tcm({**X1, "n": 0})
        await quiet(d)
        with pytest.raises(TransactionError, match=r"E:\w+:\d+: no handler for this tcm"):
            await d.close()


@asynchronous
async def test_closing_ends_a_pause() -> None:
    async with dispatching_clients() as (_, e, _, _):
        tx = await e.beginTX("bl-wait", wait_s=60)
        e.txPub(tx, {**X1, "n": 0})
        e.txPub(tx, {**X1, "n": 1})
        committing = asyncio.create_task(e.commitTX(tx))
        await asyncio.sleep(0)
        await e.close()
        with pytest.raises(ClientClosed):
            await committing
