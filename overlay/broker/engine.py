"""What a broker needs of a transaction engine, and what it tells it.

The core asks its engines before it carries out a plain operation, and tells them afterwards; it
does not know what a transaction is. The engines themselves are in `padres_tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from overlay.broker.turns import Worked
from overlay.effects import Effect
from overlay.messages import Hop, Leave, Operation
from overlay.tables.routing import Outcome

if TYPE_CHECKING:
    from overlay.broker.core import Broker


class Engine(Protocol):
    """A transaction engine at one broker, as far as the broker has to know it.

    It is made with its broker, changes tables and versions through it, and answers each input
    with effects. Its timers' keys begin with its name and a slash.
    """

    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        """Take a message of this engine. Raises PeerError when the source may not say that."""
        ...

    def wake(self, key: str, now: float) -> list[Effect]:
        """One of its timers has run out."""
        ...

    def client_left(self, client: str, now: float) -> list[Effect]:
        """A client of this broker is gone; its entries go next, unless `holds` says later."""
        ...

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour has begun a new life and knows of no transaction.

        The clients behind it are gone from the tables.
        """
        ...

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether a client's operation, or its leaving, touches words of that client that an
        undecided transaction has changed: it waits, and so do the client's later ones."""
        ...

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether an operation on the shared tables conflicts with an undecided transaction: it
        waits, and so do all later ones here. `Broker.release` looks again."""
        ...

    def passed(self, source: Hop, message: Operation | Leave, outcome: Outcome | None) -> None:
        """A plain operation has been carried out."""
        ...

    def insists(self, operation: Operation) -> Collection[Hop]:
        """The neighbours without whose answers a plain operation is not done, be they unreachable:
        something of the engine's depends on it there."""
        ...

    def keeps(self, neighbour: Hop) -> bool:
        """Whether the broker has to wait for what a neighbour was asked before it was lost: others
        rely on its being done everywhere. `Broker.release` looks again."""
        ...

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        """An operation given to `Broker.submit` need not wait, or not any more."""
        ...

    def completed(self, context: Any, now: float) -> list[Effect]:
        """What `Broker.start`, `tell` or `put_back` was given is done everywhere, with all that it
        triggered."""
        ...

    def work(self, context: Any, now: float) -> Worked:
        """Do the next slice of what was given to `Broker.later` or `Broker.in_turn`: work of about
        `Broker.slice` units, and at least a part of it."""
        ...

    def lets_pass(self, context: Any, source: Hop, operation: Operation) -> bool:
        """Whether an operation may be carried out before the rest of what was given to
        `Broker.in_turn`: it makes no difference which comes first."""
        ...

    def owns(self, context: Any, operation: Operation) -> bool:
        """Whether an operation of a neighbour only says what `Broker.in_turn` was given to do."""
        ...

    def released(self, now: float) -> list[Effect]:
        """All that waited for a decision and need not wait any more has been carried out."""
        ...

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        """Answer an operator with plain data, and do what was asked for."""
        ...


EngineFactory: TypeAlias = "Callable[[Broker], Engine]"
