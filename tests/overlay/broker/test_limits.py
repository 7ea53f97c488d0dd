"""What a broker keeps in all is limited: exactly at the limit, and one beyond."""

from __future__ import annotations

import pytest

from overlay.broker.core import Broker
from overlay.broker.limits import Usage
from overlay.effects import Effect, Send
from overlay.errors import LimitReached, from_code
from overlay.filters import Filter
from overlay.messages import BrokerName, Done, Hop, Join, Kind, Operation


class OneBroker:
    def __init__(self, *clients: str) -> None:
        self.broker = Broker(BrokerName("B1"), [])
        for name in clients:
            self.broker.receive(Hop(f"@{name}"), Join(1, name, ""), 0.0)

    def operate(self, client: str, kind: Kind, filter: Filter) -> Done:
        effects: list[Effect] = self.broker.receive(
            Hop(f"@{client}"), Operation(7, kind, client, 0, filter), 0.0
        )
        [send] = effects
        assert isinstance(send, Send) and isinstance(send.message, Done)
        return send.message

    def used(self, name: str) -> Usage:
        return next(usage for usage in self.broker.usage if usage.name == name)


def test_the_entries_of_a_broker_are_limited_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.broker.operations.ENTRIES_PER_BROKER", 3)
    one = OneBroker("A", "B")
    assert one.operate("A", "sub", Filter(x=1)).code == ""
    assert one.operate("A", "adv", Filter(x=2)).code == ""
    assert one.operate("B", "sub", Filter(x=1)).code == ""
    assert one.used("entries") == ("entries", 3, 3)
    refused = one.operate("B", "sub", Filter(x=9))
    assert isinstance(from_code(refused.code, refused.reason), LimitReached)
    assert refused.reason == "broker B1 has 3 entries already"
    # To take back is possible, and makes room for whoever comes next.
    assert one.operate("A", "usub", Filter(x=1)).code == ""
    assert one.used("entries").used == 2
    assert one.operate("B", "adv", Filter(x=9)).code == ""


def test_the_entries_of_a_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.broker.operations.ENTRIES_PER_CLIENT", 2)
    one = OneBroker("A", "B")
    assert [one.operate("A", "sub", Filter(x=n)).code for n in range(3)] == ["", "", "limit"]
    assert one.operate("B", "sub", Filter(x=1)).code == ""


def test_a_client_that_leaves_makes_room() -> None:
    one = OneBroker("A")
    one.operate("A", "sub", Filter(x=1))
    one.operate("A", "adv", Filter(x=1))
    assert one.used("entries").used == 2
    one.broker.client_left("A", 0.0)
    assert one.used("entries").used == 0
