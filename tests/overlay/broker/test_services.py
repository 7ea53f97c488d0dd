"""Services beside engines: their messages and timers, and what they are told of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from overlay.broker.core import Broker
from overlay.broker.service import RouteChange, Service
from overlay.broker.turns import Worked
from overlay.effects import Effect, Send, SetTimer
from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.messages import (
    BrokerName,
    Done,
    EngineMessage,
    Hop,
    Inspect,
    Join,
    Operation,
    Report,
    client_hop,
)

B1 = Hop("B1")
C = client_hop("C")


class Notebook(Service):
    """Writes down what it is told, and announces each change of the tables to B1."""

    name = "notebook"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.lines: list[str] = []

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        text = msgspec.msgpack.decode(body, type=str)
        self.lines.append(f"{source} {text}")
        if text == "work":
            return self.broker.later(self.name, self)
        return [self.timer(text, 2.0)]

    def wake(self, key: str, now: float) -> list[Effect]:
        self.lines.append(f"timer {key}")
        return []

    def work(self, context: Any, now: float) -> Worked:
        self.lines.append("worked")
        return Worked([])

    def client_left(self, client: str, now: float) -> list[Effect]:
        self.lines.append(f"left {client}")
        return []

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        self.lines.append(f"reset {neighbour}")
        return []

    def routes_changed(self, changes: Sequence[RouteChange], now: float) -> list[Effect]:
        text = " ".join(f"{source} {type(message).__name__}" for source, message in changes)
        self.lines.append(text)
        return self.send_to((B1,), msgspec.msgpack.encode(text))

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return self.lines, []


def made() -> tuple[Broker, list[str]]:
    broker = Broker(BrokerName("B2"), [BrokerName("B1")], services={"notebook": Notebook})
    [asked] = [e.message for e in broker.receive(C, Join(1, "C", ""), 0.0) if isinstance(e, Send)]
    broker.receive(B1, Done(asked.req), 0.0)
    notebook = broker.services["notebook"]
    assert isinstance(notebook, Notebook)
    return broker, notebook.lines


def message(text: str) -> EngineMessage:
    return EngineMessage("notebook", msgspec.Raw(msgspec.msgpack.encode(text)))


def test_its_messages_and_timers_come_to_it() -> None:
    broker, lines = made()
    assert broker.receive(B1, message("hello"), 0.0) == [SetTimer("notebook/hello", 2.0)]
    broker.wake("notebook/hello", 2.0)
    assert lines == ["B1 hello", "timer hello"]


def test_it_may_work_in_slices() -> None:
    broker, lines = made()
    assert broker.receive(C, message("work"), 0.0) == [SetTimer("work", 0.0)]
    broker.wake("work", 0.0)
    assert lines == ["@C work", "worked"]


def test_it_is_told_after_the_routes_have_changed_and_its_effects_follow_the_changes() -> None:
    broker, lines = made()
    effects = broker.receive(C, Operation(2, "adv", "C", 1, Filter(x=1)), 0.0)
    sent = [type(effect.message) for effect in effects if isinstance(effect, Send)]
    assert sent == [Operation, EngineMessage], "first the change itself"
    assert lines == ["@C Operation"]


def test_it_is_told_of_clients_that_leave_and_of_neighbours_that_are_restarted() -> None:
    broker, lines = made()
    broker.client_left("C", 0.0)
    broker.link_reset(BrokerName("B1"), 0.0)
    assert lines == ["left C", "@C Leave", "reset B1"]


def test_an_operator_can_look_into_it() -> None:
    broker, _ = made()
    [effect] = broker.receive(Hop("?"), Inspect(7, "notebook"), 0.0)
    assert isinstance(effect, Send) and effect.message == Report(7, [])


def test_a_message_for_a_service_that_is_not_there_is_the_senders_mistake() -> None:
    broker, _ = made()
    with pytest.raises(ProtocolError, match="B2 has no engine or service 'watch'"):
        broker.receive(B1, EngineMessage("watch", msgspec.Raw(b"\x01")), 0.0)
