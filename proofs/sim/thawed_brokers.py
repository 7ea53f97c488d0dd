"""Brokers of a simulated run that are replaced, again and again, by what their snapshots thaw to.

Whoever looks a broker up to give it an input may get another one in the same state. So a run with
such brokers has to be the run without, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from overlay.broker.core import Broker
from overlay.messages import BrokerName
from overlay.snapshots import freeze, thaw


class ThawedBrokers(dict[BrokerName, Broker]):
    """The brokers of a simulator; with every so many looks at one it is replaced."""

    def __init__(
        self,
        brokers: Mapping[BrokerName, Broker],
        make: Callable[[Broker], Broker],
        *,
        every: int,
    ) -> None:
        """`make` returns a new broker of the same name, neighbours, engines and services."""
        super().__init__(brokers)
        self._make = make
        self._every = every
        self._looks = dict.fromkeys(brokers, 0)
        #: How many snapshots were taken, and their bytes in all.
        self.snapshots = 0
        self.size = 0

    def __getitem__(self, name: BrokerName) -> Broker:
        self._looks[name] += 1
        if self._looks[name] % self._every == 0:
            self.replace(name)
        return super().__getitem__(name)

    def replace(self, name: BrokerName) -> None:
        """Replace a broker now."""
        old = super().__getitem__(name)
        data = freeze(old)
        new = self._make(old)
        thaw(new, data)
        assert freeze(new) == data, f"{name} has another snapshot after it was thawed"
        self[name] = new
        self.snapshots += 1
        self.size += len(data)
