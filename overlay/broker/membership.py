"""Clients join and leave: the client routing table of a broker, and who may have which name.

A client joins at its edge broker, which asks all others; when they have answered, the client is let
in. If clients of one name join at two brokers at once, their joins cross. Every broker decides
alike, by the life that the edge brokers have issued: the earlier one stays, and the other is put
out.

A client that is gone is *silenced* at once: whatever it sent that still waits is never done. Its
entries leave the tables in their turn among operations, since undecided transactions may have to be
protected from that.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.broker.long_work import LongLeave, MovingSubscriptions
from overlay.broker.recording import moved
from overlay.broker.requests import Task
from overlay.broker.service import RouteChange
from overlay.broker.waiting import answer
from overlay.effects import Close, Effect, Send
from overlay.errors import NameTaken, ProtocolError
from overlay.messages import (
    NAME_PATTERN,
    BrokerName,
    ClientName,
    Hop,
    Join,
    Leave,
    client_hop,
    is_client,
)
from overlay.stored import stored
from overlay.tables.routing import Home

if TYPE_CHECKING:
    from overlay.broker.core import Broker


@stored(
    "membership",
    fields=("joined", "joining", "leaving"),
    derived=("_broker",),
)
class Membership:
    """The part of a broker that lets clients in and forgets them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Clients here whose join every broker has agreed to, with their last operation's number.
        self.joined: dict[Hop, int] = {}
        self.joining: dict[Hop, Task] = {}
        #: Clients here that leave and wait for the end of it, with their tasks once those begin.
        self.leaving: dict[Hop, Task | None] = {}

    def check(self, source: Hop, client: str) -> None:
        """Raises ProtocolError unless the source is this client, and was let in."""
        if source not in self.joined or source[1:] != client:
            raise ProtocolError(f"{source} sent an operation in the name of {client!r}")

    def next_number(self, source: Hop) -> int:
        """The number of a client's next operation."""
        self.joined[source] += 1
        return self.joined[source]

    # --- joining ---

    def receive_join(self, source: Hop, join: Join, now: float) -> list[Effect]:
        """Take a join, from a client or from a neighbour that forwards it."""
        if not is_client(source) and self._broker.waiting.leaves(join.client):
            # The client has left and come back, and its leaving waits here: that comes first.
            self._broker.waiting.hold(source, join)
            return []
        return self.join(source, join, now)

    def join(self, source: Hop, join: Join, now: float) -> list[Effect]:
        """Let a client in that is not leaving here any more, and have the neighbours do so."""
        broker, client = self._broker, ClientName(join.client)
        if is_client(source):
            self._check_new(source, client)
            if client in broker.routing.crt:
                return self._refuse(source, join.req, client)
            # One that left before and does not wait for the end of it: every link has that first.
            self.leaving.pop(source, None)
            edge, life = broker.name, broker.lives.issue(now)
        else:
            self._check_forwarded(source, join)
            edge, life = BrokerName(join.edge), join.life
            broker.lives.saw(life)
        effects: list[Effect] = []
        home = broker.routing.crt.get(client)
        if home is not None:
            # Two clients of one name came at once, at two brokers, and their joins have crossed.
            # Every broker decides alike: the one that came first stays.
            if (home.life, home.edge) <= (life, edge):
                return answer(source, join.req, self._name_taken(client))
            effects += self._put_out(client, home, edge, now)
        broker.routing.crt[client] = Home(edge, source, life)
        effects += broker.backlogs.client_joined(source, edge)
        if broker.trace:
            effects.append(broker.record("begin", now, None, source, client=client, outcome=edge))
        task = Task(source, join.req)
        if is_client(source):
            self.joining[source] = task
            task.number = life
        for hop in broker.routing.neighbours:
            if hop != source:
                effects.append(broker.requests.ask(task, hop, Join(0, client, edge, life)))
        return effects + broker.requests.finished(task, now)

    def _check_new(self, source: Hop, client: ClientName) -> None:
        """Raises ProtocolError if a client may not join by this name here."""
        if source[1:] != client or source in self.joined or source in self.joining:
            raise ProtocolError(f"{source} asked to join as {client!r}")
        if not NAME_PATTERN.fullmatch(client):
            raise ProtocolError(f"invalid client name {client!r}")

    def _check_forwarded(self, source: Hop, join: Join) -> None:
        """Raises ProtocolError if a neighbour may not forward this join."""
        broker = self._broker
        if source not in broker.routing.srt:
            raise ProtocolError(f"{source} is no neighbour of {broker.name}")
        if not NAME_PATTERN.fullmatch(join.client):
            raise ProtocolError(f"invalid client name {join.client!r} from {source}")
        broker.links.check_behind(source, join.edge)

    def _put_out(
        self, client: ClientName, home: Home, winner: BrokerName, now: float
    ) -> list[Effect]:
        """Forget the later one of two clients whose joins have crossed."""
        effects: list[Effect] = []
        if home.edge == self._broker.name:
            # If a broker between the two was lost meanwhile, it may have been let in already.
            loser = self.joining.get(home.hop)
            reason = "" if loser else _came_earlier(client, winner)
            effects += self._refuse(home.hop, loser.req if loser else 0, client, reason)
            effects += self.silence(home.hop, now)
        # Its join is on its way, and may find that the winner has left again, and look new.
        return effects + self.forget(home.hop, Leave(0, client, home.edge, home.life), now)

    def _refuse(self, source: Hop, req: int, client: ClientName, reason: str = "") -> list[Effect]:
        error = NameTaken(reason) if reason else self._name_taken(client)
        return [*answer(source, req, error), Close(source, error.code, str(error))]

    def _name_taken(self, client: ClientName) -> NameTaken:
        home = self._broker.routing.crt.get(client)
        missing = self._broker.reach.behind(home.hop) if home is not None else []
        where = f"; unreachable: {', '.join(map(str, missing))}" if missing and home else ""
        at = f" at broker {home.edge}" if home is not None else ""
        return NameTaken(f"a client named {client!r} is connected already{at}{where}")

    def finished(self, task: Task) -> list[Effect] | None:
        """All brokers have answered a task, which may be the join or the leaving of a client.

        Returns the effects that come before the answer, or None if the client was refused.
        """
        if self.joining.get(task.origin) is task:
            del self.joining[task.origin]
            if task.error[0]:
                return None
            self.joined[task.origin] = 0
        if self.leaving.get(task.origin) is task:
            del self.leaving[task.origin]
            return [Close(task.origin, "", "")]
        return []

    def refused(self, task: Task) -> list[Effect]:
        """A broker has refused the join of a client here."""
        return self._refuse(task.origin, task.req, ClientName(task.origin[1:]))

    # --- leaving ---

    def depart(self, client: str, now: float, *, waits: bool) -> list[Effect]:
        """A client here leaves. If it waits, `Close` follows when every broker has forgotten it."""
        broker, hop = self._broker, client_hop(client)
        if isinstance(broker.busy.long.get(hop), LongLeave):
            # Another one of its name has come and gone, and was never let in.
            broker.busy.behind.pop(hop, None)
            if not waits:
                self.leaving.pop(hop, None)
            return [Close(hop, "", "")] if waits else []
        effects = self.silence(hop, now)
        home = broker.routing.crt.get(ClientName(client))
        if home is None or home.hop != hop:
            return [*effects, Close(hop, "", "")] if waits else effects
        if waits:
            self.leaving[hop] = None
        leave = Leave(0, client, broker.name, home.life)
        return effects + broker.waiting.after_reserved(hop, leave, now)

    def silence(self, hop: Hop, now: float) -> list[Effect]:
        """A client of this broker is gone, and only its entries are left: what it sent and what
        still waits is never done."""
        client, effects = hop[1:], list[Effect]()
        if hop in self.joined:
            for service in self._broker.hosted():
                effects += service.client_left(client, now)
            del self.joined[hop]
        self.joining.pop(hop, None)
        self.leaving.pop(hop, None)
        self._broker.losses.forget(hop)
        self._broker.requests.disown(hop)  # A later client of the same name did not ask for this.
        self._broker.waiting.drop_plain(hop)
        return effects + self._broker.busy.drop(hop, now)

    def receive_leave(self, source: Hop, leave: Leave, now: float) -> list[Effect]:
        """A neighbour forwards that a client leaves."""
        if is_client(source):
            raise ProtocolError("a client leaves by closing its link")
        return self._broker.waiting.after_reserved(source, leave, now)

    def is_home(self, source: Hop, leave: Leave) -> bool:
        """Whether a client that leaves is here; the loser of two crossing joins is not."""
        home = self._broker.routing.crt.get(ClientName(leave.client))
        return home == Home(BrokerName(leave.edge), source, leave.life)

    def is_long_leave(self, source: Hop, leave: Leave) -> bool:
        """Whether a client of this broker leaves with more entries than a slice can take back."""
        broker = self._broker
        return (
            is_client(source)
            and broker.routing.held_by(source, leave.client) > broker.slice
            and self.is_home(source, leave)
        )

    def let_go(self, source: Hop, leave: Leave, now: float) -> list[Effect]:
        """Forget a client that leaves, and have the neighbours forget it."""
        task = Task(source, leave.req)
        if source in self.leaving:
            self.leaving[source] = task
        effects = self.forget(source, leave, now, task) if self.is_home(source, leave) else []
        return effects + self._broker.requests.finished(task, now)

    def forget(
        self, source: Hop, leave: Leave, now: float, task: Task | None = None
    ) -> list[Effect]:
        """Remove a client from the tables, and tell the neighbours; a task waits until they have
        done the same."""
        broker = self._broker
        for engine in broker.engines.values():
            engine.operation_applied(source, leave, None)
        view = broker.versions.view()
        outcome = broker.routing.forget(ClientName(leave.client), view, limit=broker.slice)
        triggered = outcome.triggered
        others = tuple(hop for hop in broker.routing.neighbours if hop != source)
        effects: list[Effect] = []
        if broker.trace:
            change = " ".join(moved(triggered))
            effects.append(
                broker.record("end", now, None, source, others, client=leave.client, outcome=change)
            )
        if task is not None:
            effects += [broker.requests.ask(task, hop, leave) for hop in others]
        elif others:
            effects.append(Send(others, leave))
        effects += [Send((hop,), sent) for hop, sent in triggered]
        if outcome.rest is not None:
            moving = MovingSubscriptions(broker, Task(source, 0), outcome.rest)
            effects += broker.busy.begin_job(moving)
        return effects + broker.routes_changed((RouteChange(source, leave),), now)


def _came_earlier(client: str, edge: str) -> str:
    return (
        f"a client named {client!r} joined earlier at broker {edge}, while the two brokers could "
        "not reach each other"
    )
