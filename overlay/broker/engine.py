"""The contract between a broker and its transaction engines, and among engines.

The core asks its engines before it carries out a plain operation, and reports to them afterwards;
it does not know what a transaction is, only the *version* that names it. Engines of different kinds
work on the same tables at the same time. What they have to know of each other they ask with the
hooks of the last group below, and with nothing else. The engines themselves are in `padres_tx`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from overlay.broker.service import Service
from overlay.effects import Effect
from overlay.messages import Hop, Leave, Operation, Version
from overlay.tables.footprints import Footprint
from overlay.tables.routing import Outcome

if TYPE_CHECKING:
    from overlay.broker.core import Broker


class Undecided(NamedTuple):
    """What a transaction has done to the shared tables of a broker, and others cannot rely on."""

    tx: Version
    footprint: Footprint


class Engine(Service):
    """A transaction engine at one broker.

    Required of every engine are the abstract hooks; the defaults of the others are right for an
    engine that does not change the shared tables itself, or only by `Broker.start`.
    """

    # --- what the broker asks before it carries out an operation ---

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether an operation of a client of this broker, or its leaving, has to wait since it
        touches subscriptions or advertisements of that client that an undecided transaction has
        changed.

        Asked when a plain operation comes from a client, and again whenever `Broker.release` is
        called. The operation waits, and so do the client's later ones. By default it need not.
        """
        return False

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        """Whether an operation on the shared tables conflicts with an undecided transaction.

        Asked for plain operations, from clients and neighbours, and for those that other engines
        `submit`; again whenever `Broker.release` is called. The operation waits, and so do all
        later ones at this broker. By default it need not.
        """
        return False

    def requires_answers(self, operation: Operation) -> Collection[Hop]:
        """The neighbours whose answers are required before the operation counts as done.

        Asked when an operation is carried out. It counts as done without a neighbour that is
        unreachable, unless an engine names that neighbour. By default none.
        """
        return ()

    def awaits_answers(self, neighbour: Hop) -> bool:
        """Whether requests sent to a neighbour before it became unreachable still count.

        Asked when a neighbour becomes unreachable, and again whenever `Broker.release` is called.
        If no engine says yes, the requests count as done. By default no.
        """
        return False

    # --- what the broker reports ---

    def operation_applied(
        self, source: Hop, message: Operation | Leave, outcome: Outcome | None
    ) -> None:
        """An operation on the shared tables that does not belong to this engine is carried out.

        Called for a plain operation when the tables have changed, with the outcome; for a client
        that leaves just before they change, with None; and by other engines for theirs. For the
        engine's own bookkeeping: what needs effects goes into `routes_changed`, which comes later.
        """
        return

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        """An operation that was given to `Broker.submit` need not wait, or not any more.

        Required if the engine uses `Broker.submit`. Carry it out now, with `Broker.start` or else.
        """
        raise AssertionError(f"{self.name} has submitted nothing")

    def completed(self, context: Any, now: float) -> list[Effect]:
        """What was given to `Broker.start`, `tell` or `put_back` is done everywhere, with all that
        it triggered. Required if the engine uses one of these."""
        raise AssertionError(f"{self.name} has started nothing")

    def lets_pass(self, context: Any, source: Hop, operation: Operation) -> bool:
        """Whether an operation may be carried out before the rest of what was given to
        `Broker.in_turn`, since the order makes no difference. By default not."""
        return False

    def owns(self, context: Any, operation: Operation) -> bool:
        """Whether an operation from a neighbour is a step of what was given to `Broker.in_turn`,
        carried out there. By default not."""
        return False

    def released(self, now: float) -> list[Effect]:
        """Something that others may wait for is settled at this broker.

        Called when `Broker.release` has carried out all that need not wait any more, and when an
        engine reports by `Broker.settled` that its changes count everywhere. By default nothing
        happens.
        """
        return []

    # --- what engines ask each other ---

    @abstractmethod
    def transactions(self) -> Collection[Version]:
        """The transactions that this broker keeps state of, but for remembered outcomes.

        Empty when all transactions are over. Operators and checkers ask.
        """

    @abstractmethod
    def undecided(self) -> Sequence[Undecided]:
        """What this engine has written into the shared tables, or is about to, and is not decided
        or not carried out at all brokers.

        An isolated transaction that reads it loses, since other brokers may not agree. Empty for
        an engine that keeps changes under versions of their own until the commit
        (`overlay.tables.versions`).
        """

    def reserved_by(self, operation: Operation, *, other_than: Version) -> Version | None:
        """An undecided transaction of this engine, other than the given one, that has changed or
        will change the same subscriptions or advertisements of the operation's client.

        Asked by an engine before a transaction changes them, too. By default there is none.
        """
        return None

    def give_way(self, now: float) -> list[Effect]:
        """A transaction of another engine has precedence: abort what is undecided and has written.

        Called when the precedence is announced at this broker. By default nothing happens, which is
        right for an engine whose `undecided` is always empty or empties by itself soon.
        """
        return []


EngineFactory: TypeAlias = "Callable[[Broker], Engine]"
