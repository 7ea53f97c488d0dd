"""The contract between a broker and the services that it hosts.

A service is a deterministic state machine beside the routing of messages: it has messages, timers
and state of its own at every broker, and sees the routing tables change. The transaction engines
are services with more rights (`overlay.broker.engine`).

Rules for authors:

- A service has no clock, randomness, I/O or threads: `now` is an argument, and what has to happen
  is returned as effects. The same inputs in the same order give the same effects, byte for byte,
  whatever PYTHONHASHSEED is; so never iterate over a set of strings.
- A hook does a bounded amount of work. What may take longer is given to `Broker.later`, which calls
  `work` slice by slice.
- Timer keys begin with the name of the service and a slash (`timer`).
- Wrong input from a peer raises PeerError; the broker closes that peer's link. Any other exception
  is a bug of the service, and ends the broker.

`padres_tx.testing.conformance` checks a service against these rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from overlay.broker.limits import Usage
from overlay.broker.turns import Worked
from overlay.effects import Effect, Send, SetTimer
from overlay.messages import EngineMessage, Hop, Leave, Operation
from overlay.stored import stored, stored_value

if TYPE_CHECKING:
    from overlay.broker.core import Broker


@stored_value("route-change")
class RouteChange(NamedTuple):
    """One change of the routing tables of a broker."""

    #: Where it came from: a client of this broker, or a neighbour.
    source: Hop
    #: The operation that was applied, or the client whose entries are gone.
    message: Operation | Leave


class Snapshot(NamedTuple):
    """The state of a durable service."""

    #: The format of `data`. A service can restore all versions that it has ever written.
    version: int
    data: bytes


@stored("service", fields=(), derived=("broker",))
class Service(ABC):
    """A service at one broker. It is made with its broker, before the first input.

    The broker calls the hooks below. Each returns effects, which are carried out in their order.
    """

    #: The name in messages, timers and topologies: lower-case letters, digits and hyphens.
    name: ClassVar[str]

    #: Whether the state is a part of the broker's durable state, which it then can save and load
    #: (`DurableService`). A soft service has lost everything after a restart of its broker, and
    #: recovers by asking again: its neighbours learn of the restart by `link_reset`.
    durable: ClassVar[bool] = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    # --- inputs ---

    @abstractmethod
    def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
        """Handle a message of this service, from a neighbour or from a client.

        Raises PeerError if the source may not send it: its link is closed with the reason.
        """

    def wake(self, key: str, now: float) -> list[Effect]:
        """Handle a timer that has run out; `key` is without the name of the service.

        Required if the service sets timers. A timer may come when it is not needed any more.
        """
        raise AssertionError(f"{self.name} has set no timer")

    def client_left(self, client: str, now: float) -> list[Effect]:
        """A client of this broker is gone, by its own will or not.

        Called before the client's entries leave the tables, which may have to wait for
        undecided transactions. By default nothing happens.
        """
        return []

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour was restarted without its state.

        Called when the tables are adapted already: the clients behind the neighbour are gone, and
        the neighbour is being told the clients and advertisements on this side. A soft service
        tells it what it has to know, and asks it again for what was not answered. By default
        nothing happens.
        """
        return []

    def routes_changed(self, changes: Sequence[RouteChange], now: float) -> list[Effect]:
        """The routing tables have changed for all traffic at this broker.

        Called after every change, once for all changes that become visible together: a plain
        operation or a client that has gone is one change, a D-TX commit may be many. The effects
        follow those that carry the changes to other brokers. By default nothing happens.
        """
        return []

    def work(self, context: Any, now: float) -> Worked:
        """Do the next slice of what was given to `Broker.later`: about `Broker.slice` units, and at
        least something. Required if the service uses `Broker.later`."""
        raise AssertionError(f"{self.name} has no work to continue")

    def usage(self) -> list[Usage]:
        """The limits of this service for all clients together, and how much of each is used. By
        default there are none."""
        return []

    @abstractmethod
    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        """Return plain data for an operator, and the effects of what the operator asked for."""

    # --- for the service ---

    def message(self, body: bytes) -> EngineMessage:
        """A message to the same service at another broker, or to its half at a client."""
        return EngineMessage(self.name, msgspec.Raw(body))

    def send_to(self, hops: tuple[Hop, ...], body: bytes) -> list[Effect]:
        """Send a message over some links; nothing if there are none."""
        return [Send(hops, self.message(body))] if hops else []

    def timer(self, key: str, delay_s: float) -> SetTimer:
        """Have `wake` called with this key after a delay."""
        return SetTimer(f"{self.name}/{key}", delay_s)


class DurableService(Service):
    """A service whose state outlives its broker's process."""

    durable = True

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The whole state, in a form that does not depend on the process that wrote it.

        Equal states give equal bytes. May be called between any two inputs.
        """

    @abstractmethod
    def restore(self, snapshot: Snapshot, now: float) -> list[Effect]:
        """Take over a state, before the first input.

        From then on the same inputs give the same effects as where the snapshot was taken. Returns
        the timers that have to be set again. Raises ValueError if the version or the data cannot be
        read.
        """


ServiceFactory: TypeAlias = "Callable[[Broker], Service]"
