"""Short garbage collections in a process with very large tables.

A full collection looks at every object of the process, and nothing else happens meanwhile: 140 ms
with 100,000 table entries. It finds nothing there: an entry that is removed is in no cycle, so
reference counting frees it. So while tables are large, whatever has survived a full collection is
set aside (`gc.freeze`), and the next one looks at what came since.

The price: what is set aside and later becomes garbage in a cycle stays. With the collector switched
off, a thousand clients that connected and went left no object behind, so that is little.

This module knows nothing of brokers but how large their tables are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

#: Entries, clients included, from which on tables count as large: some 14,000 objects, which take
#: 2 to 5 ms.
LARGE = 1_000

#: Middle collections until the next full one: after some 21,000 new objects, which take 8 ms.
UNTIL_FULL = 3


class ShortCollections:
    """Sets aside what has survived full collections; `entries` counts table entries."""

    def __init__(self, entries: Callable[[], int]) -> None:
        self._entries = entries

    def start(self) -> None:
        """Set aside all there is, such as imported modules, and look after collections."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], UNTIL_FULL)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2 and self._entries() >= LARGE:
            gc.freeze()
