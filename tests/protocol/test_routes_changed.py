"""Services hear of a transaction's changes when all traffic sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from overlay.broker.service import RouteChange, Service
from overlay.effects import Effect
from overlay.filters import Filter
from overlay.messages import Hop, Operation
from padres_tx.client_messages import Abort, Commit, Step
from padres_tx.protocol.dynamic_messages import Vote
from tests.protocol.one_broker import OneBroker

X, Y = Filter(class_="x"), Filter(class_="y")


class Changes(Service):
    """Keeps the changes that it is told of, those of one call together."""

    name = "changes"

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self.seen: list[list[str]] = []

    def receive(self, source: Hop, body: Any, now: float) -> list[Effect]:
        raise AssertionError("no messages")

    def routes_changed(self, changes: Sequence[RouteChange], now: float) -> list[Effect]:
        for change in changes:
            assert isinstance(change.message, Operation)
        self.seen.append([change.message.kind for change in changes])
        return []

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return None, []


def watched(engine: str) -> tuple[OneBroker, list[list[str]]]:
    one = OneBroker(engine, ["B1"])
    one.here("C")
    changes = Changes(one.broker)
    one.broker.services["changes"] = changes
    return one, changes.seen


TWO = (Step("C", "sub", X), Step("C", "sub", Y))


def test_changes_of_an_isolated_transaction_come_together_at_its_commit() -> None:
    one, seen = watched("d-tx")
    tx = one.begin("C", *TWO)
    one.say("C", Commit(tx))
    assert seen == []
    one.hear("B1", Vote(tx))
    assert seen == [["sub", "sub"]]


def test_changes_of_an_aborted_isolated_transaction_are_not_seen() -> None:
    one, seen = watched("d-tx")
    tx = one.begin("C", *TWO)
    one.say("C", Abort(tx))
    assert seen == []


def test_without_isolation_changes_are_seen_at_once_and_so_is_their_undoing() -> None:
    one, seen = watched("d-tx-ni")
    tx = one.begin("C", *TWO)
    assert seen == [["sub"], ["sub"]]
    one.say("C", Abort(tx))
    assert seen == [["sub"], ["sub"], ["usub"], ["usub"]]


@pytest.mark.parametrize("kind", ["sub", "adv"])
def test_changes_of_a_static_transaction_are_seen_as_they_are_carried_out(kind: Any) -> None:
    one, seen = watched("s-tx")
    one.submit("C", Step("C", kind, X))
    assert seen == [[kind]]
