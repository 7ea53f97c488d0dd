"""Which callbacks a notification is for.

A publication reaches a client once, however many of its subscriptions want it. Of these, each one
that came with a callback gets it, in the order of subscribing, a callback that came several times
once; a publication that no callback wants goes to the client's queue.

Un-subscribing ends callbacks by the same rule that ends subscriptions: the last word decides. It
silences, in the part of the space that it names, the callbacks subscribed before it; one whose
whole filter it covers is dropped. A subscription made afterwards, with or without a callback,
does not bring them back.

A callback counts from the call on, since publications may come before the overlay's answer does.
It is silenced by the answer to the un-subscription, since until then they may still come. So a
publication that was under way goes to the callback that it was meant for.

Pure: it knows neither what a callback is nor who calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from overlay.filters import Filter, Value
from overlay.lastword import settle
from overlay.messages import Operation, client_hop
from overlay.space import Entry, Space

C = TypeVar("C")


class Listeners(Generic[C]):
    """The callbacks of one client's subscriptions."""

    def __init__(self) -> None:
        self._space = Space()
        #: By the number of the subscription; a hole in the space has none.
        self._callbacks: dict[int, C] = {}

    def listen(self, subscription: Operation, callback: C) -> None:
        """A subscription was sent, with a callback."""
        for old in self._space.overlapping(subscription.filter):
            if old.filter == subscription.filter and self._callbacks.get(old.seq) == callback:
                self._remove(old)
        self._space.add(_entry(subscription))
        self._callbacks[subscription.seq] = callback

    def refused(self, subscription: Operation) -> None:
        """The subscription was refused, after all."""
        entry = self._space.get(subscription.client, subscription.seq)
        if entry is not None:
            self._remove(entry)

    def unsubscribed(self, unsubscription: Operation) -> None:
        """The overlay has carried an un-subscription out."""
        if not self._callbacks:
            return

        def earlier(filter: Filter) -> list[Entry]:
            found = self._space.overlapping(filter)
            return [entry for entry in found if entry.seq < unsubscription.seq]

        settled = settle(earlier, unsubscription.filter, positive=False)
        for seq in settled.drop:
            entry = self._space.get(unsubscription.client, seq)
            assert entry is not None, seq
            self._remove(entry)
        if settled.store:
            self._space.add(_entry(unsubscription))

    def of(self, point: Mapping[str, Value]) -> list[C]:
        """The callbacks that a publication is for, each once."""
        if not self._callbacks:
            return []
        found: list[C] = []
        for entry in self._space.matching(point):
            callback = self._callbacks[entry.seq]
            if callback not in found:
                found.append(callback)
        return found

    def _remove(self, entry: Entry) -> None:
        self._space.remove(entry)
        self._callbacks.pop(entry.seq, None)


def _entry(operation: Operation) -> Entry:
    return Entry(operation, client_hop(operation.client))
