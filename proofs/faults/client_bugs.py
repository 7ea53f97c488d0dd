"""Injected bugs in clients: errors in what they believe they hold and which callbacks they call.

Tests replace `padres_tx.client.holdings.Holdings` by them, in runs with real sessions. The first
two were once bugs of the client library that no check found, because all simulated clients were too
simple to have them. The third is a bug of a broker that leaves clients without the information they
need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from overlay.broker.core import Broker, Taken
from overlay.effects import Effect, Forward, Send
from overlay.messages import AnyMessage, Hop, Pub, Version, is_client
from padres_tx.client.holdings import HoldingChange, Holdings


class EndsCallbacksAtCommit(Holdings):
    """A callback ends with the transaction that ends its subscription, before `drained`."""

    def commit(self, tx: Version, changes: Iterable[HoldingChange], *, drains: bool) -> None:
        super().commit(tx, changes, drains=False)


class NumbersByCall(Holdings):
    """Operations are ordered by the client's calls, and those of other clients come last."""

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
    """Delivers publications to clients without their stamps."""

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        taken = super().take(source, messages, now, start)
        effects = [part for effect in taken.effects for part in _stripped(effect, messages)]
        return taken._replace(effects=effects)


def _stripped(effect: Effect, messages: Sequence[AnyMessage]) -> list[Effect]:
    """The effect, with its publications for clients as sends without their stamps."""
    if isinstance(effect, Forward):
        end = effect.start + effect.count
        sends = [Send(effect.hops, message) for message in messages[effect.start : end]]
    elif isinstance(effect, Send):
        sends = [effect]
    else:
        return [effect]
    return [_without_stamp(send) for send in sends]


def _without_stamp(send: Send) -> Send:
    if not isinstance(send.message, Pub) or not all(map(is_client, send.hops)):
        return send
    return Send(send.hops, msgspec.structs.replace(send.message, hidden=()))


def stripped(broker: Broker) -> None:
    """Let a broker deliver publications without their stamps."""
    broker.__class__ = StripsStamps
