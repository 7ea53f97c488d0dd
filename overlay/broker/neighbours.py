"""Links to neighbours come up, go down and are reset, and which brokers cannot be reached.

A neighbour that cannot be reached is sent everything all the same, since its link keeps it, but
nothing waits for its answers. A neighbour that lives a new life knows nothing: what it had sent is
removed here, and it is sent anew what it has to know.

A part of the broker (`overlay.broker.core`); which brokers are missing is kept in
`overlay.broker.reach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.effects import Effect, Send
from overlay.errors import ProtocolError
from overlay.matching.index import is_visible
from overlay.messages import NAME_PATTERN, BrokerName, Hop, Join, Leave, Operation, Reachability
from overlay.stored import stored
from overlay.tables.space import Entry
from overlay.trace import TraceKind

if TYPE_CHECKING:
    from overlay.broker.core import Broker


@stored("neighbour-links", fields=(), derived=("_broker",))
class NeighbourLinks:
    """The part of a broker that follows its links to other brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def reset(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour lives a new life and knows nothing: its side goes, ours is sent anew.

        What was asked of its former life will never be answered; it counts as done, since what it
        had to know is in what is sent now.
        """
        broker, source = self._broker, Hop(neighbour)
        effects = self._record("up", source, now) if broker.reach.is_absent(source) else []
        effects += self._tell_others(source, *broker.reach.reset(source))
        effects += broker.backlogs.reset(source)
        effects += broker.losses.link_reset(source, now)
        broker.requests.disown(source)
        effects += broker.waiting.drop_all(source, now)
        effects += self._forget_behind(source, now)
        unanswered = broker.requests.reset(source)
        # How things are comes first: what is done below about its loss is told as a change.
        effects += self._state_for(source)
        effects += broker.requests.finish(unanswered, now)
        for service in broker.hosted():
            effects += service.link_reset(source, now)
        return effects + broker.resending.begun(source, now)

    def _forget_behind(self, source: Hop, now: float) -> list[Effect]:
        """Forget the clients behind a neighbour that lives a new life."""
        broker, effects = self._broker, list[Effect]()
        behind = [client for client, home in broker.routing.crt.items() if home.hop == source]
        for client in sorted(behind):
            home = broker.routing.crt[client]
            left = broker.membership.forget(source, Leave(0, client, home.edge, home.life), now)
            # What would be taken back from it, its new life has never had.
            effects += [e for e in left if not (isinstance(e, Send) and e.hops == (source,))]
        return effects

    def _state_for(self, source: Hop) -> list[Effect]:
        """What a neighbour has to know: clients, advertisements, links that are down or full."""
        broker, state = self._broker, list[Join | Operation]()
        for client, home in sorted(broker.routing.crt.items()):
            state.append(Join(0, client, home.edge, home.life))
        for hop in sorted(broker.routing.srt):
            if hop != source:
                for entry in broker.routing.srt[hop]:
                    if is_visible(entry, broker.versions.view()):
                        state.append(_advertisement(entry))
        effects = broker.resending.begin(source, state)
        effects += [Send((source,), report) for report in broker.reach.reports(source)]
        return effects + broker.backlogs.state_for(source)

    def down(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour has been unreachable for a while: nothing waits for its answers any more.

        It still gets all that it has to know: its link keeps that. `up` or `reset` ends this.
        """
        broker, source = self._broker, Hop(neighbour)
        if broker.reach.is_absent(source):
            return []
        effects = self._record("down", source, now)
        effects += self._tell_others(source, broker.reach.lose(source))
        broker.requests.lose(source)
        return effects + broker.requests.give_up(now) + broker.release(now)

    def up(self, neighbour: BrokerName, now: float) -> list[Effect]:
        """The neighbour can be reached again, and its link goes on where it was."""
        broker, source = self._broker, Hop(neighbour)
        broker.requests.find(source)
        back = broker.reach.find(source)
        if back is None:
            return []
        return [*self._record("up", source, now), *self._tell_others(source, back)]

    def receive_report(self, source: Hop, report: Reachability, now: float) -> list[Effect]:
        """A neighbour reports that a broker behind it was lost, or is back."""
        broker = self._broker
        if source not in broker.routing.neighbours:
            raise ProtocolError(f"{source} is no neighbour of {broker.name}")
        for name in (report.broker, report.neighbour):
            self.check_behind(source, name)
        if not broker.reach.take(source, report):
            return []
        return [*self._tell_others(source, report), *broker.release(now)]

    def check_behind(self, source: Hop, name: str) -> None:
        """Raises ProtocolError if there can be no broker of that name behind a neighbour."""
        broker = self._broker
        if not NAME_PATTERN.fullmatch(name):
            raise ProtocolError(f"invalid broker name {name!r} from {source}")
        if name == broker.name or (name != source and Hop(name) in broker.routing.neighbours):
            raise ProtocolError(f"{source} reported broker {name}, which is not behind it")

    def _record(self, kind: TraceKind, neighbour: Hop, now: float) -> list[Effect]:
        broker = self._broker
        return [broker.record(kind, now, None, neighbour)] if broker.trace else []

    def _tell_others(self, source: Hop, *reports: Reachability) -> list[Effect]:
        others = tuple(hop for hop in self._broker.routing.neighbours if hop != source)
        return [Send(others, report) for report in reports] if others else []


def _advertisement(entry: Entry) -> Operation:
    return Operation(0, "adv" if entry.positive else "uadv", entry.client, entry.seq, entry.filter)
