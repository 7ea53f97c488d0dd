"""What a client's half answers from its own state, the transaction has read (`padres_tx.looks`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from overlay.errors import NotAdvertised, NotHeld
from overlay.messages import Operation
from padres_tx import client_messages, static
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification
from padres_tx.client_messages import Ended, Finish, Look, Operate, Tcm
from padres_tx.errors import TooManyRequests, TransactionAborted, TransactionFinished
from padres_tx.looks import LOOKS_LIMIT
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    Acked,
    Decide,
    Init,
    Prepare,
    TxOperation,
    Vote,
)
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.dispatching_clients import (
    DYNAMIC,
    assert_at_rest,
    asynchronous,
    dispatching_clients,
    quiet,
)
from tests.client.test_transactions import AT_X1, P1, X1, Half, called, said
from tests.paper.test_paper_d_tx import OTHER, TX, leaf, publication
from tests.protocol.one_broker import OneBroker, Said, of_kind
from tests.protocol.steps import adv, box, pub, sub, tcm, usub

P = box(class_="p")
Q = box(class_="q")


# --- at the edge broker ---


def asked(one: OneBroker) -> int:
    """TX, whose coordinator is behind B1, has called D; the frame."""
    one.hear("B1", Init(TX, 1))
    told = one.hear("B1", TxOperation(TX, 5, pub=publication(), tcm=True))
    frame: int = of_kind(told, Tcm, "@D")[0].frame
    return frame


def listening() -> OneBroker:
    """A leaf whose client D takes tcms of class p, and may advertise and subscribe the rest."""
    one = leaf()
    one.holds("D", "sub", P)
    return one


def dooms(told: list[Said]) -> list[tuple[str, str]]:
    return [(doom.code, doom.reason) for doom in of_kind(told, AbortRequest, "B1")]


def votes(one: OneBroker, frame: int) -> list[str]:
    """Finish D's part, ask for the vote; the codes."""
    assert of_kind(one.say("D", Finish(TX, frame)), Acked)
    return [vote.code for vote in of_kind(one.hear("B1", Prepare(TX)), Vote)]


def test_an_answer_that_the_snapshot_does_not_give_is_a_conflict() -> None:
    one = listening()
    one.holds("D", "sub", Q)
    frame = asked(one)
    told = one.say("D", Look(TX, frame, "sub", False, Q))
    assert dooms(told) == [
        ("conflict", "D does not hold [class,eq,'q'] by now: its snapshot differs")
    ]


def test_the_reason_names_what_has_changed_it() -> None:
    one = listening()
    one.hear("B1", Init(TX, 1))
    one.hear("B1", Init(OTHER, 2))
    one.hear("B1", TxOperation(OTHER, 0, Operation(0, "adv", "F1", 1, Q)))
    # OTHER lets D advertise q, outside TX's snapshot.
    told = one.hear("B1", TxOperation(OTHER, 7, pub=publication(), tcm=True))
    frame = of_kind(told, Tcm, "@D")[0].frame
    one.operate(OTHER, adv("D", Q), frame=frame, client="D")
    one.say("D", Finish(OTHER, frame))
    one.hear("B1", Prepare(OTHER))
    one.hear("B1", Decide(OTHER, True))
    told = one.hear("B1", TxOperation(TX, 5, pub=publication(2), tcm=True))
    frame = of_kind(told, Tcm, "@D")[0].frame
    told = one.say("D", Look(TX, frame, "adv", True, point={"class": "q"}))
    assert dooms(told) == [
        ("conflict", "D advertises [class,'q'] by now: conflicts with F1:0:1 on [class,eq,'q']")
    ]


@pytest.mark.parametrize("look", ["filter", "point"])
def test_what_has_changed_it_since_makes_the_transaction_lose(look: str) -> None:
    one = listening()
    frame = asked(one)
    if look == "filter":
        assert one.say("D", Look(TX, frame, "sub", False, Q)) == []
        one.holds("D", "sub", Q)
    else:
        assert one.say("D", Look(TX, frame, "adv", False, point={"class": "q"})) == []
        one.holds("D", "adv", Q)
    assert votes(one, frame) == ["conflict"]


def test_a_change_of_another_part_or_client_is_nothing_to_it() -> None:
    one = listening()
    frame = asked(one)
    assert one.say("D", Look(TX, frame, "sub", False, Q)) == []
    one.holds("A", "sub", Q)
    one.holds("D", "sub", box(class_="r"))
    one.holds("D", "adv", Q)
    assert votes(one, frame) == [""]


def test_what_would_change_it_waits_behind_the_vote() -> None:
    one = listening()
    frame = asked(one)
    one.say("D", Look(TX, frame, "sub", False, Q))
    assert votes(one, frame) == [""]
    one.send("@D", Operation(9, "sub", "D", 9, Q))
    assert [message.filter for _, message in one.broker.held] == [Q]  # type: ignore[union-attr]


def test_a_look_counts_what_its_frame_has_done_before() -> None:
    one = listening()
    one.holds("D", "sub", Q)
    frame = asked(one)
    one.operate(TX, usub("D", Q), frame=frame, client="D")
    assert one.say("D", Look(TX, frame, "sub", False, Q)) == []
    one.operate(TX, sub("D", Q), frame=frame, client="D")
    assert one.say("D", Look(TX, frame, "sub", True, Q)) == []
    assert votes(one, frame) == [""]


def test_an_engine_without_isolation_takes_looks_and_does_nothing_with_them() -> None:
    one = leaf("d-tx-ni")
    one.holds("D", "sub", P)
    frame = asked(one)
    assert one.say("D", Look(TX, frame, "sub", False, P)) == []
    assert of_kind(one.say("D", Finish(TX, frame)), Acked)


@pytest.mark.parametrize(
    "look",
    [
        Look(TX, 0, "sub", False),
        Look(TX, 0, "sub", False, Q, {"class": "q"}),
        Look(TX, 0, "sub", False, point={"class": "q"}),
        Look(TX, 0, "adv", False, point={}),
    ],
)
@pytest.mark.parametrize("engine", DYNAMIC)
def test_a_look_at_nothing_aborts_the_transaction(engine: str, look: Look) -> None:
    one = OneBroker(engine, neighbours=[])
    one.here("D")
    tx = one.begin("D")
    told = one.say("D", Look(tx, 0, look.table, False, look.filter, look.point))
    if engine == "d-tx" or look.point is None or look.table == "sub":
        assert [ended.code for ended in of_kind(told, Ended)] == ["filter"]


def test_too_many_looks_abort_the_transaction() -> None:
    one = OneBroker("d-tx", neighbours=[])
    one.here("D")
    tx = one.begin("D")
    for n in range(LOOKS_LIMIT):
        assert one.say("D", Look(tx, 0, "sub", False, box(n=n))) == []
    told = one.say("D", Look(tx, 0, "sub", False, Q))
    assert [ended.code for ended in of_kind(told, Ended)] == ["refused"]


# --- what is refused, and whether another attempt may succeed ---


def refused(one: OneBroker, frame: int, step: client_messages.Step, *, held: bool) -> list[str]:
    told = one.say("D", Operate(TX, frame, 77, step, held))
    return [code for code, _ in dooms(told)]


@pytest.mark.parametrize("step", [usub("D", Q), pub("D", class_="q"), tcm("D", class_="q")])
@pytest.mark.parametrize("held", [False, True])
def test_what_the_client_knows_and_the_snapshot_does_not_is_a_conflict(
    step: client_messages.Step, held: bool
) -> None:
    one = listening()
    frame = asked(one)
    [code] = refused(one, frame, step, held=held)
    assert code == ("conflict" if held else "not-held" if step.filter else "not-advertised")


@pytest.mark.parametrize("kind", ["usub", "pub"])
@pytest.mark.parametrize("since", ["committed", "plain", "prepared"])
def test_what_was_changed_outside_the_snapshot_is_a_conflict(kind: str, since: str) -> None:
    """Also for a client that does not say what it knows."""
    one = listening()
    first: Any = sub("D", Q) if kind == "usub" else adv("D", Q)
    step = usub("D", Q) if kind == "usub" else pub("D", class_="q")
    if since == "plain":
        one.holds("D", first.kind, Q)
        frame = asked(one)
        one.holds("D", f"u{first.kind}", Q)
    else:
        one.hear("B1", Init(TX, 1))
        one.hear("B1", Init(OTHER, 2))
        told = one.hear("B1", TxOperation(OTHER, 7, pub=publication(), tcm=True))
        frame = of_kind(told, Tcm, "@D")[0].frame
        one.operate(OTHER, first, frame=frame, client="D")
        one.say("D", Finish(OTHER, frame))
        one.hear("B1", Prepare(OTHER))
        if since == "committed":
            one.hear("B1", Decide(OTHER, True))
        told = one.hear("B1", TxOperation(TX, 5, pub=publication(2), tcm=True))
        frame = of_kind(told, Tcm, "@D")[0].frame
    assert refused(one, frame, step, held=False) == ["conflict"]


def test_a_tcm_that_somebody_hears_by_now_is_a_conflict() -> None:
    """It is in nobody's snapshot that A is subscribed to what E asks."""
    one = OneBroker("d-tx", neighbours=[])
    one.here("E", "A")
    one.holds("E", "adv", Q)
    tx = one.begin("E")
    other = one.begin("A", sub("A", Q), commit=True)
    assert other in one.broker.versions.retired
    told = one.operate(tx, tcm("E", class_="q"))
    [ended] = of_kind(told, Ended)
    assert ended.code == "conflict" and "no client receives the tcm" in ended.reason
    _again, told = one.begun("E", tcm("E", class_="q"))
    assert of_kind(told, Tcm, "@A") and not of_kind(told, Ended)


# --- at the client ---


def test_looks_go_out_before_the_next_message_of_their_frame() -> None:
    half = Half()
    tx = half.begin()
    with pytest.raises(NotHeld):
        half.transactions.operate(tx, 0, static.usub(X1))
    with pytest.raises(NotHeld):
        half.transactions.operate(tx, 0, static.uadv(X1))
    with pytest.raises(NotAdvertised):
        half.transactions.operate(tx, 0, static.pub(AT_X1))
    number, events = half.transactions.operate(tx, 0, static.sub(P1))
    assert said(events) == [
        Look(tx.id, 0, "sub", False, X1),
        Look(tx.id, 0, "adv", False, X1),
        Look(tx.id, 0, "adv", False, point=AT_X1),
        Operate(tx.id, 0, number, client_messages.Step("E", "sub", P1, seq=number)),
    ]
    assert not half.transactions.holds(tx, 0, Q)
    assert said(half.transactions.commit(tx)) == [
        Look(tx.id, 0, "sub", False, Q),
        client_messages.Commit(tx.id),
    ]


def test_looks_of_a_handler_go_out_before_it_finishes() -> None:
    half = Half("D")
    half.plain("sub", P1)
    called(half, 5)
    tx = half.transactions.find("E:0:9")
    assert half.transactions.holds(tx, 5, X1)
    assert not half.transactions.advertises(tx, 5, AT_X1)
    assert said(half.transactions.finish(tx, 5)) == [
        Look(tx.id, 5, "sub", True, X1),
        Look(tx.id, 5, "adv", False, point=AT_X1),
        Finish(tx.id, 5),
    ]


def test_an_answer_counts_what_the_transaction_has_said() -> None:
    half = Half()
    half.plain("sub", P1)
    half.plain("adv", P1)
    tx = half.begin()
    half.do(tx, static.usub(X1))
    half.do(tx, static.uadv(X1))
    assert not half.transactions.holds(tx, 0, X1) and half.transactions.holds(tx, 0, P1)
    assert not half.transactions.advertises(tx, 0, AT_X1)
    half.do(tx, static.sub(X1))
    half.do(tx, static.adv(X1))
    assert half.transactions.holds(tx, 0, X1) and half.transactions.advertises(tx, 0, AT_X1)


def test_what_another_frame_has_said_counts_when_it_is_done() -> None:
    half = Half()
    half.plain("sub", P1)
    half.plain("adv", P1)
    tx = half.begin()
    number = half.do(tx, static.sub(Q))
    called(half, 3, tx.id)
    assert not half.transactions.holds(tx, 3, Q)
    half.told(client_messages.Operated(tx.id, 0, number))
    assert half.transactions.holds(tx, 3, Q)


def test_the_same_answer_is_told_once() -> None:
    half = Half()
    tx = half.begin()
    for _ in range(3):
        assert not half.transactions.holds(tx, 0, X1)
    assert len(said(half.transactions.commit(tx))) == 2
    tx = half.begin()
    for n in range(LOOKS_LIMIT):
        half.transactions.holds(tx, 0, box(n=n))
    with pytest.raises(TooManyRequests, match="different looks"):
        half.transactions.holds(tx, 0, Q)
    half.transactions.commit(tx)
    with pytest.raises(TransactionFinished):
        half.transactions.holds(tx, 0, X1)


@pytest.mark.parametrize("engine", ["s-tx", "bl-wait"])
def test_who_has_no_snapshot_sends_no_looks(engine: str) -> None:
    half = Half()
    tx = half.begin(engine)
    assert not half.transactions.holds(tx, 0, X1)
    with pytest.raises(NotHeld):
        half.transactions.operate(tx, 0, static.usub(X1))
    assert said(half.transactions.commit(tx)) == []


# --- whole clients ---

JOB = {"class": "job"}
TAKE = {"class": "take"}
MOVE = {"class": "move"}


def lets_go(tx: Part) -> None:
    with suppress(NotHeld):
        tx.usub(JOB)


def lets_go_if_it_holds(tx: Part) -> None:
    if tx.holds(JOB):
        tx.usub(JOB)


@asynccontextmanager
async def workers() -> AsyncIterator[tuple[InProcessOverlay, Client, Client, Client]]:
    """W3 has the jobs and may give them to W1; W2 may take them from whoever has them."""
    overlay = InProcessOverlay("three")
    async with (
        overlay.connect_async("W1", at="B1") as w1,
        overlay.connect_async("W2", at="B1") as w2,
        overlay.connect_async("W3", at="B3") as w3,
    ):
        await w3.advertise(MOVE)
        await w2.advertise(TAKE)
        await w1.subscribe(MOVE)
        for client in (w1, w3):
            await client.subscribe(TAKE)
        await w3.subscribe(JOB)
        w1.on_tcm(MOVE, lambda tx, _: tx.sub(JOB))
        yield overlay, w1, w2, w3


async def owners(overlay: InProcessOverlay) -> list[str]:
    async with overlay.connect_async("P", at="B2") as p:
        await p.advertise(JOB)
        return sorted(
            hop
            for broker in overlay.core.brokers.values()
            for hop in broker.routing.prt.hops(JOB, broker.versions.view())
            if hop.startswith("@")
        )


@pytest.mark.parametrize("let_go", [lets_go, lets_go_if_it_holds, lambda tx: tx.usub(JOB)])
@pytest.mark.parametrize("retries", [0, 3])
@asynchronous
async def test_one_who_takes_what_moves_meanwhile_ends_as_its_only_owner_or_not_at_all(
    let_go: Callable[[Part], None], retries: int
) -> None:
    """W2 asks W1, which has nothing, and W3, which has given it to W1 when it comes to answer."""
    async with workers() as (overlay, w1, w2, w3):
        w1.on_tcm(TAKE, lambda tx, _: lets_go(tx))
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(tx: Part, _: Notification) -> None:
            reached.set()
            await go_on.wait()
            (let_go if let_go in (lets_go, lets_go_if_it_holds) or tries == 1 else lets_go)(tx)

        w3.on_tcm(TAKE, slowly)
        tries = 0

        async def take() -> None:
            nonlocal tries
            async for tx in w2.transaction("d-tx", retries=retries):
                tries += 1
                async with tx:
                    tx.tcm(TAKE)
                    tx.sub(JOB)

        taking = asyncio.create_task(take())
        await reached.wait()
        async with w3.transaction("d-tx") as tx:
            tx.tcm(MOVE)
            tx.usub(JOB)
        await quiet(w1)
        go_on.set()
        if retries:
            await taking
            assert await owners(overlay) == ["@W2"] and tries == 2
        else:
            with pytest.raises(TransactionAborted) as aborted:
                await taking
            assert aborted.value.code == "conflict" and "W3 does not hold" in aborted.value.reason
            assert await owners(overlay) == ["@W1"]


@asynchronous
async def test_who_has_it_by_now_and_not_in_the_snapshot_is_worth_another_attempt() -> None:
    async with workers() as (overlay, w1, w2, w3):
        for client in (w1, w3):
            client.on_tcm(TAKE, lambda tx, _: lets_go(tx))
        tries = 0
        async for tx in w2.transaction("d-tx", retries=3):
            async with tx:
                tries += 1
                if tries == 1:
                    async with w3.transaction("d-tx") as move:
                        move.tcm(MOVE)
                        move.usub(JOB)
                await tx.tcm(TAKE)
                tx.sub(JOB)
        assert tries == 2 and await owners(overlay) == ["@W2"]


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_a_transaction_can_be_asked_what_its_client_holds(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        seen: list[bool] = []

        def act(tx: Part, _: Notification) -> None:
            seen.extend([tx.holds({"class": "p1", "x": 1}), tx.holds({"class": "p2"})])
            tx.usub({"class": "p1", "x": 1})
            seen.extend([tx.holds({"class": "p1", "x": 1}), tx.advertises({"class": "assign"})])

        d.on_tcm(None, act)
        async with e.transaction(engine) as tx:
            assert tx.advertises({"class": "p1"}) and not tx.advertises({"class": "p2"})
            tx.tcm({"class": "p1", "n": 1})
        assert seen == [True, False, False, True]
        assert_at_rest(overlay)


def test_blocking_clients_can_ask_as_well() -> None:
    with InProcessOverlay("three") as overlay, overlay.connect("E", at="B1") as e:
        e.subscribe(P1)
        with e.transaction("d-tx") as tx:
            assert tx.holds(X1) and not tx.advertises(AT_X1)
            tx.adv(P1)
            assert tx.advertises(AT_X1)
