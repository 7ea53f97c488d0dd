"""How much a broker keeps in all, of all clients together, and how much of that is used.

Each client has limits of its own, which keep one client from using up what is for all. The totals
keep a broker from running out of memory when very many come together. What is beyond a total is
refused with `LimitReached`, which names it; `padres-tx status` shows each as used and limit.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.errors import LimitReached

#: Entries that one client may hold in the tables, so that one client cannot fill every broker.
ENTRIES_PER_CLIENT = 250_000

#: Entries in the tables of one broker, those of its neighbours' clients included, beyond which its
#: own clients get no more: an entry takes one to two KiB, so these are some 1.5 GiB.
ENTRIES_PER_BROKER = 1_000_000

#: Entries of its client that one operation of a transaction may make obsolete, or all operations of
#: a short static plan, and those that may be looked at to find them. Each broker carries these out
#: in one turn, which takes up to 0.02 ms for each entry: the longest turn is some 20 ms. A plain
#: operation may concern any number, since it is done in slices.
DROPS_PER_OPERATION = 1000
LOOKS_PER_OPERATION = 8 * DROPS_PER_OPERATION

#: Subscriptions of others that one (un-)advertisement of a dynamic transaction may concern at a
#: broker, which looks at them and moves them in one turn; each takes up to 0.02 ms.
MOVED_PER_OPERATION = 1000

#: Plain operations that may wait for undecided transactions; a client's that comes on top of them
#: is refused. Decisions take milliseconds, so a queue like this means that something is stuck.
WAITING_PER_BROKER = 100_000

#: Those of one client that may wait for what a transaction has reserved.
WAITING_PER_CLIENT = 10_000


def too_many_entries(client: str) -> LimitReached:
    """The refusal of a transaction's operation that concerns too many entries of its client."""
    return LimitReached(
        f"one operation of a transaction may replace or take back at most {DROPS_PER_OPERATION} "
        f"entries of {client}: use several operations, or a plain one"
    )


class Usage(NamedTuple):
    """How much of a limit is used."""

    name: str
    used: int
    limit: int

    def check(self, broker: str) -> None:
        """Raises LimitReached if there is no room for one more."""
        if self.used >= self.limit:
            raise LimitReached(f"broker {broker} has {self.limit} {self.name} already")
