"""Who receives a tcm: not those who subscribe for events only, and those whom it names."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filters import Filter
from padres_tx import static
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.handles import Part
from padres_tx.client.session import Notification
from padres_tx.client_messages import RECEIVERS_LIMIT
from padres_tx.errors import BadName, BadTransaction, TransactionAborted
from padres_tx.testing.inprocess import InProcessOverlay
from proofs.checkers import check
from proofs.history import History
from tests.client.dispatching_clients import (
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
)
from tests.overlay.tables.test_routing import trees
from topologies import Topology


def prt(overlay: InProcessOverlay, broker: str, client: str) -> list[bool]:
    """Whether each entry of a client in a broker's PRT is for events only."""
    rows = overlay.core.brokers[broker].routing.as_data()["prt"]
    return [row.get("events", False) for row in rows if row["client"] == client]


# --- events only ---


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_who_looks_on_does_not_veto(engine: str) -> None:
    """A dashboard has no handler. It gets what is published, in transactions and otherwise."""
    async with dispatching_clients() as (overlay, e, d, a1):
        dashboard = await overlay.connect_async("dashboard", at="B3")
        await dashboard.subscribe(P1, events_only=True)
        async with e.transaction(engine) as tx:
            start(tx)
        await e.publish({**X1, "n": 2})
        assert await numbers(dashboard) == [1, 2]
        assert await numbers(a1) == [1, 2] and await numbers(d) == []
        assert_at_rest(overlay)
        await dashboard.close()


@asynchronous
async def test_without_it_a_receiver_without_a_handler_does() -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        dashboard = await overlay.connect_async("dashboard", at="B3")
        await dashboard.subscribe(P1)
        with pytest.raises(TransactionAborted, match="dashboard: no handler for this tcm"):
            async with e.transaction() as tx:
                start(tx)
        await dashboard.close()


@asynchronous
async def test_a_tcm_that_only_those_get_who_look_on_is_unheard() -> None:
    async with dispatching_clients() as (_, e, d, _):
        await d.subscribe(P1, events_only=True)
        with pytest.raises(TransactionAborted, match="no client receives the tcm") as aborted:
            async with e.transaction() as tx:
                tx.tcm(X1)
        assert aborted.value.code == "unheard"


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_the_last_subscription_on_the_point_decides(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        called: list[object] = []
        d.on_tcm(None, lambda tx, n: called.append(n["x"]))

        async def heard(x: str) -> bool:
            called.clear()
            tx = await e.beginTX(engine)
            e.txTCM(tx, {"class": "p1", "x": x})
            return (await e.commitTX(tx)).committed and called == [x]

        assert await heard("x1") and await heard("x2")
        await d.subscribe(X1, events_only=True)
        assert not await heard("x1") and await heard("x2")
        await d.unsubscribe(X1)
        assert not await heard("x1") and await heard("x2")
        await d.subscribe(X1)
        assert await heard("x1") and await heard("x2")
        await d.subscribe(P1, events_only=True)
        assert not await heard("x1") and not await heard("x2")
        async with d.transaction(engine) as tx:
            tx.sub(X1)
        assert await heard("x1") and not await heard("x2")
        async with d.transaction(engine) as tx:
            tx.sub(X1, events_only=True)
        assert not await heard("x1")
        assert_at_rest(overlay)


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
@asynchronous
async def test_an_abort_brings_back_what_a_subscription_was_for(engine: str) -> None:
    async with dispatching_clients() as (overlay, _, d, _):
        await d.subscribe(P1, events_only=True)
        before = tables(overlay)
        assert prt(overlay, "B1", "D") == [True], "it is known where E publishes"
        with pytest.raises((TransactionAborted, ZeroDivisionError)):
            async with d.transaction(engine) as tx:
                tx.sub(P1)  # It would cover the other.
                tx.sub(X1, events_only=True)
                raise ZeroDivisionError
        assert tables(overlay) == before
        async with d.transaction(engine) as tx:
            tx.sub({"class": "p1", "x": "x2"}, events_only=True)
            tx.sub(P1)
        assert prt(overlay, "B1", "D") == [False]


@asynchronous
async def test_a_plan_says_what_subscriptions_are_for_and_who_hears() -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        ops = {"D": [static.usub(X1)], "A1": [static.sub(X1, events_only=True)]}
        await a1.subscribe(P1)
        async with e.transaction("s-tx") as tx:
            tx.tcm(X1, ops=ops)
        assert prt(overlay, "B1", "A1") == [False, True]
        with pytest.raises(TransactionAborted, match=r"A1 is subscribed to the tcm .* for events"):
            async with e.transaction("s-tx") as tx:
                tx.tcm(X1, ops={"A1": [static.usub(X1)]})
        with pytest.raises(TransactionAborted, match="events only") as aborted:
            async with e.transaction("s-tx") as tx:
                # The plan itself makes it so, before.
                tx.tcm({"class": "p1", "x": "x2"}, ops={"A1": [static.sub(P1, events_only=True)]})
                tx.tcm({"class": "p1", "x": "x2"}, ops={"A1": [static.usub(X1)]})
        assert aborted.value.code == "unheard"
        assert_at_rest(overlay)


# --- receivers by name ---


def note(called: list[str], client: Client) -> None:
    client.on_tcm(None, lambda tx, n: called.append(client.name))


@pytest.mark.parametrize("engine", DYNAMIC)
@asynchronous
async def test_only_those_act_whom_a_tcm_names(engine: str) -> None:
    async with dispatching_clients() as (overlay, e, d, a1):
        called: list[str] = []
        async with (
            overlay.connect_async("W1", at="B3") as w1,
            overlay.connect_async("W2", at="B1") as w2,
            overlay.connect_async("dashboard", at="B2") as dashboard,
        ):
            for client in (d, a1, w1, w2, dashboard):
                await client.subscribe(P1)
                if client is not dashboard:
                    note(called, client)
            async with e.transaction(engine) as tx:
                tx.tcm(X1, to=["W1", "W2"])
            assert sorted(called) == ["W1", "W2"]
            tx_id = await e.beginTX(engine)
            e.txTCM(tx_id, X1, to=("A1", "A1"))
            assert (await e.commitTX(tx_id)).committed
            assert called[2:] == ["A1"]

            def forward(tx: Part, n: Notification) -> None:
                called.append("D")
                tx.tcm({"class": "assign"}, to=["W2"])

            await w2.subscribe({"class": "assign"})
            d.on_tcm(None, forward)
            async with e.transaction(engine) as tx:
                tx.tcm(X1, to=["D"])
            assert called[3:] == ["D", "W2"]
            assert_at_rest(overlay)


@pytest.mark.parametrize("engine", DYNAMIC)
@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("nobody", "is not connected"),
        ("A1", "is not subscribed to it"),
        ("dashboard", "is subscribed to it for events only"),
        ("gone", "is not connected"),
    ],
)
@asynchronous
async def test_one_that_is_missing_aborts_and_is_named(engine: str, who: str, why: str) -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        called: list[str] = []
        note(called, d)
        async with overlay.connect_async("dashboard", at="B3") as dashboard:
            await dashboard.subscribe(P1)
            await dashboard.subscribe(X1, events_only=True)
            async with overlay.connect_async("gone", at="B3") as gone:
                await gone.subscribe(P1)
            with pytest.raises(TransactionAborted, match=f"{who}, which the tcm .* {why}") as error:
                async with e.transaction(engine) as tx:
                    tx.tcm(X1, to=["D", who])
            assert error.value.code == "unheard"
            assert called == []
            assert_at_rest(overlay)


@asynchronous
async def test_one_that_is_missing_only_in_the_snapshot_is_a_conflict() -> None:
    async with dispatching_clients() as (overlay, e, _, a1):
        called: list[str] = []
        note(called, a1)
        attempts = 0
        async for tx in e.transaction(retries=2):
            async with tx:
                attempts += 1
                if attempts == 1:
                    async with a1.transaction() as other:
                        other.sub(P1)
                tx.tcm(X1, to=["A1"])
        assert attempts == 2 and called == ["A1"] and tx.result is not None and tx.result.committed
        assert_at_rest(overlay)


@asynchronous
async def test_one_that_leaves_instead_of_acting_aborts() -> None:
    async with dispatching_clients() as (overlay, e, d, _):
        d.on_tcm(None, lambda tx, n: d.close())
        with pytest.raises(TransactionAborted, match="D, which took part, has left"):
            async with e.transaction() as tx:
                tx.tcm(X1, to=["D"])
        assert_at_rest(overlay)


@pytest.mark.parametrize(
    ("to", "error", "text"),
    [
        ("W1", BadTransaction, "expected a list of clients' names, got 'W1'"),
        (7, BadTransaction, "a list of clients' names"),
        ([], BadTransaction, "empty list of receivers"),
        (["no name"], BadName, "no name"),
        ([7], BadName, "7"),
        ([f"W{n}" for n in range(RECEIVERS_LIMIT + 1)], BadTransaction, "at most 1000 receivers"),
    ],
)
@asynchronous
async def test_bad_names_raise_at_the_call(to: Any, error: type[Exception], text: str) -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        tx = await e.beginTX()
        with pytest.raises(error, match=text):
            e.txTCM(tx, X1, to=to)
        await e.abortTX(tx)
        assert_at_rest(overlay)


@asynchronous
async def test_a_broker_refuses_too_many_names() -> None:
    async with dispatching_clients() as (overlay, e, _, _):
        op = static.tcm(X1)
        op.to = tuple(f"W{n}" for n in range(RECEIVERS_LIMIT + 1))
        with pytest.raises(TransactionAborted, match="more than 1000 receivers") as aborted:
            async with e.transaction() as tx:
                await tx.do(op)
        assert aborted.value.code == "refused"
        assert_at_rest(overlay)


@asynchronous
async def test_engines_that_cannot_name_receivers_say_so() -> None:
    async with dispatching_clients() as (_, e, d, _):
        with pytest.raises(BadTransaction, match="`ops` says what they do"):
            async with e.transaction("s-tx") as tx:
                tx.tcm(X1, to=["D"], ops={"D": [static.usub(X1)]})
        with pytest.raises(BadTransaction, match="bl-wait cannot take `to`"):
            async with e.transaction("bl-wait") as tx:
                tx.tcm(X1, to=["D"])
        await quiet(d)


def test_blocking_clients_do_the_same() -> None:
    with InProcessOverlay("three") as overlay:
        e, w1, dashboard = (overlay.connect(name) for name in ("E", "W1", "dashboard"))
        e.advertise(P1)
        seen: list[object] = []
        w1.subscribe(P1)
        w1.on_tcm(None, lambda tx, n: seen.append(n["x"]))
        dashboard.subscribe(P1, events_only=True)
        with e.transaction() as tx:
            tx.tcm(X1)
        dashboard.subscribe(P1)
        with e.transaction() as tx:
            tx.tcm(X1, to=["W1"])
        name = e.beginTX()
        e.txTCM(name, X1, to=["W1"])
        assert e.commitTX(name).committed
        assert seen == ["x1"] * 3
        with w1.transaction() as tx:
            tx.sub(P1, events_only=True)
        with pytest.raises(TransactionAborted, match="events only"), e.transaction() as tx:
            tx.tcm(X1, to=["W1"])
        name = w1.beginTX()
        w1.txSub(name, P1, events_only=False)
        assert w1.commitTX(name).committed


# --- all together ---


def _spans() -> Iterable[Filter]:
    return [Filter({"class": "p1", "x": (lo, hi)}) for lo in range(4) for hi in range(lo, 4)]


SPANS = list(_spans())


@settings(max_examples=30)
@given(trees(), st.integers(0, 1 << 30))
def test_who_acts_is_who_has_said_so_last(tree: nx.Graph[str], seed: int) -> None:
    """Plain and in transactions that commit or abort; the checkers find the records right."""

    @asynchronous
    async def run() -> None:
        choose = random.Random(seed)
        brokers = [{"name": name, "port": 7001 + n} for n, name in enumerate(sorted(tree))]
        edges = [sorted(edge) for edge in tree.edges]
        tree_data = {"name": "drawn", "brokers": brokers, "edges": edges}
        overlay = InProcessOverlay(Topology.model_validate(tree_data), trace=True)
        clients = [
            await overlay.connect_async(name, at=choose.choice(sorted(tree)))
            for name in ("E", "W1", "W2", "W3")
        ]
        e, *workers = clients
        await e.advertise(P1)
        said: dict[str, list[tuple[Filter, bool]]] = {w.name: [] for w in workers}
        called: list[str] = []
        for worker in workers:
            note(called, worker)
        for _ in range(8):
            worker = choose.choice(workers)
            filter, events = choose.choice(SPANS), choose.random() < 0.5
            how = choose.choice(["plain", "d-tx", "d-tx-ni", "s-tx"])
            commits = how == "plain" or choose.random() < 0.7
            if how == "plain":
                await worker.subscribe(filter, events_only=events)
            else:
                tx = await worker.beginTX(how)
                worker.txSub(tx, filter, events_only=events)
                await (worker.commitTX(tx) if commits else worker.abortTX(tx))
            if commits:
                said[worker.name].append((filter, events))
            point = {"class": "p1", "x": choose.randrange(4)}
            takers = []
            for name, words in said.items():
                last = [only for box, only in words if box.matches(point)]
                if last and not last[-1]:
                    takers.append(name)
            to = choose.sample(list(said), choose.randrange(1, 3)) if choose.random() < 0.5 else []
            called.clear()
            tx = await e.beginTX(choose.choice(DYNAMIC))
            e.txTCM(tx, point, to=to or None)
            committed = (await e.commitTX(tx)).committed
            await quiet(*clients)
            if to:
                assert committed == (set(to) <= set(takers))
                assert sorted(called) == (sorted(to) if committed else [])
            else:
                assert committed == bool(takers)
                assert sorted(called) == takers
        for client in clients:
            await client.close()
        assert check(History(overlay.core.records), strict=True) == []

    run()


@asynchronous
async def test_with_bl_wait_each_client_sees_for_itself_that_it_is_not_meant() -> None:
    """There a tcm is a publication, which comes to all that are subscribed."""
    async with dispatching_clients() as (_, e, d, a1):
        errors: list[Exception] = []
        d.on_error = errors.append
        d.on_tcm(P1, None)
        called: list[str] = []
        note(called, a1)
        await a1.subscribe(P1)
        await d.subscribe(X1, events_only=True)
        async with e.transaction("bl-wait", wait_s=0.001) as tx:
            tx.tcm({**X1, "n": 0})
            tx.pub({**X1, "n": 1})
        await quiet(d, a1)
        assert called == ["A1"] and errors == []
        assert await numbers(d) == await numbers(a1) == [1]
        async with d.transaction("d-tx") as tx:
            tx.sub(P1)
        async with e.transaction("bl-wait", wait_s=0.001) as tx:
            tx.tcm({**X1, "n": 0})
        await quiet(d)
        assert [str(error).partition(": ")[2] for error in errors] == ["no handler for this tcm"]
