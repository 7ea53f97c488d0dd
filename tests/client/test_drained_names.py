"""What `on_drained` tells: which transaction, and what this client has given and taken in it."""

from __future__ import annotations

import queue

import pytest

from overlay.filters import Filter
from padres_tx.client import transactions
from padres_tx.client.transactions import ENDED_LIMIT, DrainedTx
from padres_tx.client_messages import Drained, Ended
from padres_tx.testing.inprocess import InProcessOverlay
from tests.client.dispatching_clients import P1, X1, asynchronous, dispatching_clients, quiet, start
from tests.client.test_transactions import Half


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "bl-wait"])
@asynchronous
async def test_who_gave_and_who_took(engine: str) -> None:
    async with dispatching_clients() as (_, e, d, a1):
        told: dict[str, list[DrainedTx]] = {"E": [], "D": [], "A1": []}
        for client in (e, d, a1):
            client.on_drained(told[client.name].append)
        options = {"wait_s": 0.001} if engine == "bl-wait" else {}
        tx = await e.beginTX(engine, **options)
        e.txTCM(tx, {**X1, "n": 0})
        e.txAdv(tx, {"class": "p2"})
        await e.commitTX(tx, wait="applied")
        await quiet(e, d, a1)
        for name, gave, took in (
            ("E", [], [{"class": "p2"}]),
            ("D", [X1], []),
            ("A1", [], [X1]),
        ):
            (drained,) = told[name]
            assert drained == tx and isinstance(drained, str), "it can be used as the name"
            assert drained.gave == tuple(map(Filter, gave))
            assert drained.took == tuple(map(Filter, took))


@asynchronous
async def test_an_abort_and_what_changes_nothing_here() -> None:
    async with dispatching_clients() as (_, e, d, a1):
        told: list[DrainedTx] = []
        d.on_drained(told.append)
        tx = await e.beginTX()
        e.txTCM(tx, {**X1, "n": 0})
        await e.abortTX(tx)
        await quiet(d)
        assert told == []
        d.on_tcm(P1, lambda tx, n: None)
        async with e.transaction() as block:
            start(block)
        await quiet(d)
        assert told == [block.id] and told[0].gave == told[0].took == ()
        assert not d._driver.transactions._undrained and not a1._driver.transactions._undrained


def test_what_waits_to_be_drained_is_bounded() -> None:
    """A broker that is away keeps everything from being drained."""
    half = Half("D")
    for number in range(1, ENDED_LIMIT + 3):
        half.told(Ended(("E", 0, number), True, effective=(half.effective("sub", Filter(X1)),)))
    assert len(half.transactions._undrained) == ENDED_LIMIT
    (drained,) = half.told(Drained(("E", 0, ENDED_LIMIT)))
    assert isinstance(drained, transactions.CommitDrained)
    assert drained.tx == f"E:0:{ENDED_LIMIT}" and drained.tx.took == (Filter(X1),)
    (forgotten,) = half.told(Drained(("E", 0, 1)))
    assert isinstance(forgotten, transactions.CommitDrained)
    assert forgotten.tx == "E:0:1" and forgotten.tx.took == ()


def test_blocking_clients_are_told_the_same() -> None:
    with InProcessOverlay("one") as overlay:
        w1, w2 = overlay.connect("W1"), overlay.connect("W2")
        w2.advertise({"class": "move"})
        w1.subscribe({"class": "move"})
        w1.subscribe(P1)
        w1.on_tcm(None, lambda tx, n: tx.usub(P1) and None)
        told: queue.Queue[tuple[str, DrainedTx]] = queue.Queue()
        w1.on_drained(lambda tx: told.put(("W1", tx)))
        w2.on_drained(lambda tx: told.put(("W2", tx)))
        with w2.transaction() as tx:
            tx.tcm({"class": "move"})
            tx.sub(P1)
        found = dict(told.get(timeout=30) for _ in range(2))
        assert found["W1"].gave == (Filter(P1),) and found["W1"].took == ()
        assert found["W2"].took == (Filter(P1),) and found["W2"].gave == ()
