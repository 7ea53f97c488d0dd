"""The client's half in the simulator: real sessions and transactions, under every delay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import AnyMessage
from padres_tx import static
from padres_tx.client.session import Answered, Event, Notification, SendMessage, Session
from padres_tx.client.transactions import (
    TCM_MARK,
    CommitDrained,
    Result,
    SendForOperation,
    SetTransactionTimer,
    TcmReceived,
    TransactionEnded,
    Transactions,
)
from padres_tx.static import Op
from proofs.sim.simulated_overlay import all_engines
from tests.client.dispatching_clients import ASSIGN, ASSIGN_X1, DECIDED, P1, X1
from topologies import load

#: What a client does on a tcm.
Reaction = Callable[[Notification], list[Op]]


class SimulatedClient:
    """A client without I/O: carries its events out at once, through the simulator."""

    def __init__(self, simulator: Simulator, name: str, edge: str) -> None:
        self.simulator = simulator
        self.session = Session(name)
        self.transactions = Transactions(self.session)
        self.reaction: Reaction = lambda notification: []
        self.got: list[object] = []
        self.results: list[Result] = []
        self.drained: list[str] = []
        simulator.connect(name, edge, self._receive)
        simulator.send(name, self.session.join())
        simulator.run()

    def plain(self, kind: Any, filter: Any) -> None:
        self.simulator.send(self.session.name, self.session.operate(kind, Filter(filter)))
        self.simulator.run()

    def transact(self, engine: str, ops: list[Op], **terms: Any) -> None:
        tx, events = self.transactions.begin(engine, **terms)
        self._carry_out(events)
        for op in ops:
            self._carry_out(self.transactions.operate(tx, 0, op)[1])
        self._carry_out(self.transactions.commit(tx))
        self.simulator.run()

    def _receive(self, message: AnyMessage, now: float) -> list[AnyMessage]:
        self._carry_out(self.session.receive(message))
        return []

    def _carry_out(self, events: list[Event]) -> None:
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case SendMessage(message) | SendForOperation(message=message):
                self.simulator.send(self.session.name, message)
            case Answered():
                assert event.error is None
                self._carry_out(self.transactions.answered(event.req, None))
            case Notification():
                if TCM_MARK in event.point:
                    self._carry_out(self.transactions.notified(event) or [])
                else:
                    self.got.append(event["n"])
            case TcmReceived(tx, frame, notification):
                for op in self.reaction(notification):
                    self._carry_out(self.transactions.operate(tx, frame, op)[1])
                self._carry_out(self.transactions.finish(tx, frame))
            case SetTransactionTimer(tx, delay_s):
                self.simulator.at(delay_s, lambda: self._carry_out(self.transactions.wake(tx)))
            case TransactionEnded(_, result):
                self.results.append(result)
            case CommitDrained(name):
                self.drained.append(name)


def dispatch(
    seed: int, places: tuple[str, ...], engine: str, **terms: Any
) -> dict[str, SimulatedClient]:
    """Figure 1b; answers its clients when everything is at rest."""
    three = load("three")
    simulator = Simulator(
        {broker.name: three.neighbours(broker.name) for broker in three.brokers},
        Tape(seed=seed).choose,
        broker=lambda name, others: Broker(name, others, engines=all_engines()),
    )
    e, d, a1 = (
        SimulatedClient(simulator, *who) for who in zip(("E", "D", "A1"), places, strict=True)
    )
    e.plain("adv", P1)
    d.plain("adv", ASSIGN)
    d.plain("sub", P1)
    a1.plain("sub", {"class": "assign", "to": "A1"})
    d.reaction = lambda notification: [static.tcm(ASSIGN_X1), static.usub(X1)]
    a1.reaction = lambda notification: [static.sub(X1)]
    ops = None
    if engine == "s-tx":
        ops = {"D": [static.tcm(ASSIGN_X1, ops={"A1": [static.sub(X1)]}), static.usub(X1)]}
    start = [static.tcm({**X1, "n": 0}, ops=ops), static.pub({**X1, "n": 1})]
    e.transact(engine, start, **terms)
    return {"E": e, "D": d, "A1": a1}


PLACES = list(itertools.product(["B1", "B2", "B3"], repeat=3))


@pytest.mark.parametrize("engine", DECIDED)
def test_dispatching_wherever_the_clients_are(engine: str) -> None:
    for seed, places in enumerate(PLACES):
        players = dispatch(seed, places, engine)
        e, d, a1 = players["E"], players["D"], players["A1"]
        assert [result.status for result in e.results] == ["committed"], e.results
        assert d.results == a1.results == e.results
        assert (d.got, a1.got) == ([], [1]), (seed, places)
        if engine != "s-tx":
            assert e.drained == d.drained == a1.drained == [e.results[0].tx]
        # Their sessions know what they hold.
        assert a1.session.holds("usub", Filter(X1)) and not d.session.holds("usub", Filter(X1))


def test_bl_wait_works_with_waits_that_are_long_enough_and_fails_with_others() -> None:
    """The waits stand for what the engines do, so too short ones must be able to fail."""
    for seed, places in enumerate(PLACES):
        players = dispatch(seed, places, "bl-wait", wait_s=1.0)
        assert (players["D"].got, players["A1"].got) == ([], [1]), (seed, places)
    outcomes = [
        (players["D"].got, players["A1"].got)
        for players in (
            dispatch(seed, places, "bl-wait", wait_s=0.001) for seed, places in enumerate(PLACES)
        )
    ]
    assert any(outcome != ([], [1]) for outcome in outcomes)
