"""The in-process overlay under the clients: attaching, at rest after each call, and its ends."""

from __future__ import annotations

import pytest

from overlay.errors import NameTaken, OverlayError, ProtocolError, SlowReader
from overlay.filters import Filter
from overlay.hosts.inprocess import Attachment, InProcess
from overlay.messages import AnyMessage, Done, Hop, Join, Operation, Pub, client_hop
from topologies import load

P1 = Filter(class_="p1")


class Ear:
    """A port that keeps what it hears, up to a limit."""

    def __init__(self, limit: int = 1000) -> None:
        self.limit = limit
        self.heard: list[AnyMessage] = []
        self.ended: OverlayError | None = None

    def deliver(self, message: AnyMessage) -> None:
        if len(self.heard) >= self.limit:
            raise SlowReader("that is enough")
        self.heard.append(message)

    def closed(self, error: OverlayError) -> None:
        self.ended = error


def overlay(*, trace: bool = False) -> InProcess:
    three = load("three")
    return InProcess(
        {broker.name: three.neighbours(broker.name) for broker in three.brokers}, trace=trace
    )


def attach(overlay: InProcess, broker: str, name: str, limit: int = 1000) -> tuple[Attachment, Ear]:
    ear = Ear(limit)
    attachment = overlay.attach(broker, client_hop(name), ear)
    attachment.send(Join(1, name, ""))
    [done] = ear.heard
    assert isinstance(done, Done) and (done.req, done.code) == (1, "")
    return attachment, ear


def test_the_overlay_is_at_rest_when_a_call_returns() -> None:
    brokers = overlay()
    a1, hears = attach(brokers, "B1", "A1")
    e, _ = attach(brokers, "B3", "E")
    a1.send(Operation(2, "sub", "A1", 2, P1))
    e.send(Operation(2, "adv", "E", 2, P1))
    e.send(Pub("E", 3, {"class": "p1"}))
    life = brokers.brokers["B3"].life_of(client_hop("E"))  # type: ignore[index]
    assert hears.heard[1:] == [Done(2, number=1), Pub("E", 3, {"class": "p1"}, life=life)]
    assert len(brokers.brokers["B1"].routing.prt) == 1  # type: ignore[index]


def test_a_name_is_attached_once_at_a_broker() -> None:
    brokers = overlay()
    a1, _ = attach(brokers, "B1", "A1")
    with pytest.raises(NameTaken):
        brokers.attach("B1", client_hop("A1"), Ear())
    a1.detach()
    a1.detach()
    attach(brokers, "B1", "A1")


def test_an_unknown_broker_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="B1, B2, B3"):
        overlay().attach("B9", Hop("@A1"), Ear())


def test_a_client_that_is_detached_is_not_heard_any_more() -> None:
    brokers = overlay()
    old, _ = attach(brokers, "B1", "A1")
    old.detach()
    _, hears = attach(brokers, "B1", "A1")
    old.send(Operation(2, "sub", "A1", 2, P1))
    assert len(hears.heard) == 1
    assert len(brokers.brokers["B1"].routing.prt) == 0  # type: ignore[index]


def test_a_client_that_breaks_the_rules_is_detached_with_the_reason() -> None:
    brokers = overlay()
    a1, hears = attach(brokers, "B1", "A1")
    a1.send(Operation(2, "sub", "somebody else", 2, P1))
    assert isinstance(hears.ended, ProtocolError)
    attach(brokers, "B2", "A1")


def test_a_client_that_does_not_read_is_detached_and_its_entries_go() -> None:
    brokers = overlay()
    e, _ = attach(brokers, "B3", "E")
    e.send(Operation(2, "adv", "E", 2, P1))
    a1, hears = attach(brokers, "B1", "A1", limit=3)
    a1.send(Operation(2, "sub", "A1", 2, P1))
    for seq in (3, 4):
        e.send(Pub("E", seq, {"class": "p1"}))
    assert isinstance(hears.ended, SlowReader)
    assert all(len(broker.routing.prt) == 0 for broker in brokers.brokers.values())


def test_a_port_may_answer_while_it_is_told() -> None:
    brokers = overlay()
    e, _ = attach(brokers, "B3", "E")
    e.send(Operation(2, "adv", "E", 2, P1))

    class Replying(Ear):
        def deliver(self, message: AnyMessage) -> None:
            super().deliver(message)
            if isinstance(message, Done) and message.req < 4:
                kinds = {1: "sub", 2: "usub", 3: "sub"}
                req = message.req + 1
                a1.send(Operation(req, kinds[message.req], "A1", req, P1))  # type: ignore[arg-type]

    replying = Replying()
    a1 = brokers.attach("B1", client_hop("A1"), replying)
    a1.send(Join(1, "A1", ""))
    assert [done.req for done in replying.heard if isinstance(done, Done)] == [1, 2, 3, 4]
    e.send(Pub("E", 3, {"class": "p1"}))
    assert len(replying.heard) == 5


def test_stopping_tells_everybody() -> None:
    brokers = overlay()
    _, first = attach(brokers, "B1", "A1")
    _, second = attach(brokers, "B3", "E")
    end = OverlayError("over")
    brokers.stop(end)
    assert first.ended is second.ended is end
    assert all(not broker.routing.crt for broker in brokers.brokers.values())


def test_time_moves_only_when_told() -> None:
    brokers = overlay()
    brokers.advance(2.5)
    brokers.advance(1)
    assert brokers.now == 3.5


def test_records_are_kept_on_request() -> None:
    brokers = overlay(trace=True)
    e, _ = attach(brokers, "B3", "E")
    e.send(Operation(2, "adv", "E", 2, P1))
    assert [(record.node, record.kind) for record in brokers.records] == [
        ("B3", "begin"),
        ("B2", "begin"),
        ("B1", "begin"),
        ("B3", "apply"),
        ("B2", "apply"),
        ("B1", "apply"),
    ]
