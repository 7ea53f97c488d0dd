"""Planted bugs in clients: what they hold and whom they call, with one mistake each.

Tests put them in the place of `padres_tx.client.holdings.Holdings`, in runs with real sessions.
Both mistakes were the client library's own once, and no check found them: all clients that were
simulated were too simple to make them. A third is a broker's, by which clients cannot be right.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from overlay.broker.core import Broker
from overlay.effects import Effect, Send
from overlay.messages import AnyMessage, Hop, Pub, Version, is_client
from padres_tx.client.holdings import HoldingChange, Holdings


class EndsCallbacksAtCommit(Holdings):
    """A callback ends with the transaction in which its subscription does."""

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        super().commit(tx, changes, drains=False)


class NumbersByCall(Holdings):
    """The order is that of the calls, and what others do comes last."""

    def __init__(self, client: str, hop: Hop) -> None:
        super().__init__(client, hop)
        self._told = 0

    def settle(self, call: int, number: int) -> None:
        super().settle(call, 1000 * call)

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        numbered: list[HoldingChange] = []
        for change in changes:
            self._told += 1
            number = 1000 * (change.call or self._last_call) + (not change.call) * self._told
            numbered.append(change._replace(number=number))
        super().commit(tx, numbered, drains=drains)


class StripsStamps(Broker):
    """Hands publications to its clients without what they come before."""

    def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
        return [_stripped(effect) for effect in super().receive(source, message, now)]


def _stripped(effect: Effect) -> Effect:
    if not isinstance(effect, Send) or not isinstance(effect.message, Pub):
        return effect
    if not all(map(is_client, effect.hops)):
        return effect
    return Send(effect.hops, msgspec.structs.replace(effect.message, hidden=()))


def stripped(broker: Broker) -> None:
    """Let a broker tell its clients less than they need to know."""
    broker.__class__ = StripsStamps
