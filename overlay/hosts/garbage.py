"""Short garbage collections in a process with very large tables.

A full collection looks at every object of the process, and nothing else happens meanwhile: 140 ms
with 100,000 table entries. Entries form no cycles once they are removed, so reference counting
frees them; it is no use to look at them again and again. So when the tables have grown, whatever
has survived a full collection is set aside (`gc.freeze`), and the next one looks at what came
since. What is set aside is looked at again when the tables are small.

The price: what is set aside with the tables and becomes garbage in a cycle, such as a connection
that was open then, stays until the tables are small again. The tables have to grow before anything
is set aside, so this happens once for each connection and growth, not again and again.

This module knows nothing of brokers but a number that grows with their tables.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

#: Entries by which the tables have to grow: some 14,000 objects, which take 2 to 5 ms.
GROWTH = 1_000

#: Middle collections until the next full one: after some 21,000 new objects, which take 8 ms.
UNTIL_FULL = 3

#: Entries up to which a full collection looks at everything, once the tables were larger.
SMALL = 2 * GROWTH


class ShortCollections:
    """Sets aside what has survived, after a full collection; `entries` counts table entries."""

    def __init__(self, entries: Callable[[], int]) -> None:
        self._entries = entries
        #: How many entries there were when something was set aside last.
        self.set_aside = 0

    def start(self) -> None:
        """Set aside all there is, such as imported modules, and look after collections."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], UNTIL_FULL)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < 2:
            return
        entries = self._entries()
        if entries >= self.set_aside + GROWTH:
            gc.freeze()
            self.set_aside = entries
        elif entries <= SMALL < self.set_aside:
            gc.unfreeze()  # Modules, too, until the tables grow again.
            self.set_aside = 0
