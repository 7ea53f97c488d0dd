"""Links on which so much waits that publications for the clients behind them are refused.

What is meant for a neighbour that is away waits for it, up to a limit. At the limit the broker that
keeps it reports so to every broker that it can reach (`Backlog`), with the edge brokers of all
clients behind that link, and reports it again when there is room. Meanwhile every edge broker
refuses the publications of its own clients that one of those clients would get, and no others. So
what is refused is refused as a whole, at its publisher, with the name of the missing broker.

Everything else still waits in the queue: what was published before the report arrived, and what
changes tables or belongs to a transaction.

On a tree with FIFO links reports about a link arrive in their order, as those of `reach` do. When a
link is reset, all that was reported over it is dropped and reported anew.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from overlay.effects import Effect, Send
from overlay.errors import BrokerAway, ProtocolError
from overlay.filters import Value
from overlay.matching.index import View
from overlay.messages import Backlog, BrokerName, ClientName, Hop
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: Links that are reported, and edge brokers of one report: more than the largest tree that is
#: thought of has. A peer that reports more makes them up.
BACKLOG_LIMIT = 10_000


@stored("backlogs", fields=("_reports",), derived=("_broker", "_away"))
class Backlogs:
    """The part of a broker that knows which links have no room for more."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By the neighbour that a report came from, or to which a link of this broker is full, and
        #: by the two ends of the full link.
        self._reports: dict[Hop, dict[tuple[str, str], Backlog]] = {}
        self._rebuild()

    def _rebuild(self) -> None:
        #: By hop: the edge brokers whose clients cannot be sent more.
        self._away: dict[Hop, dict[str, Backlog]] = {
            hop: {edge: report for report in reports.values() for edge in report.edges}
            for hop, reports in self._reports.items()
        }

    def __bool__(self) -> bool:
        """Whether any link is full: as long as none is, publications need no second look."""
        return bool(self._reports)

    def is_full(self, hop: Hop) -> bool:
        """Whether this broker's own link to a neighbour is full."""
        return self._own(hop) in self._reports.get(hop, ())

    def refusal(self, point: Mapping[str, Value], view: View | None) -> BrokerAway | None:
        """Why a publication cannot go where it has to; None if it can."""
        routing, away = self._broker.routing, self._away
        if away.keys().isdisjoint(routing.prt.hops(point, view)):
            return None
        for entry in routing.prt.matching(point, view):
            edges = away.get(entry.hop)
            if edges and (home := routing.crt.get(ClientName(entry.client))) is not None:
                report = edges.get(home.edge)
                if report is not None:
                    return _broker_away(report, home.edge)
        return None

    # --- links of this broker ---

    def fill(self, neighbour: BrokerName, messages: int, size: int) -> list[Effect]:
        """So many messages wait for a neighbour that there is no room for more."""
        hop = Hop(neighbour)
        homes = self._broker.routing.crt.values()
        edges = tuple(sorted({home.edge for home in homes if home.hop == hop}))
        return self._report(hop, Backlog(self._broker.name, hop, True, edges, messages, size))

    def make_room(self, neighbour: BrokerName) -> list[Effect]:
        """There is room for a neighbour again."""
        if not self.is_full(Hop(neighbour)):
            return []
        return self._report(Hop(neighbour), Backlog(self._broker.name, neighbour, False))

    def client_joined(self, hop: Hop, edge: BrokerName) -> list[Effect]:
        """A client has joined behind a hop, perhaps at an edge broker that had none before."""
        report = self._reports.get(hop, {}).get(self._own(hop))
        if report is None or edge in report.edges:
            return []
        edges = tuple(sorted((*report.edges, edge)))
        return self._report(
            hop,
            Backlog(report.broker, hop, True, edges, report.messages, report.size),
        )

    def reset(self, hop: Hop) -> list[Effect]:
        """A link begins anew: nothing waits on it, and what was reported over it is void."""
        effects: list[Effect] = []
        for broker, neighbour in list(self._reports.get(hop, ())):
            effects += self._report(hop, Backlog(broker, neighbour, False))
        return effects

    def state_for(self, hop: Hop) -> list[Effect]:
        """What a neighbour has to know that begins anew."""
        return [
            Send((hop,), report)
            for via, reports in sorted(self._reports.items())
            if via != hop
            for report in reports.values()
        ]

    # --- reports of others ---

    def receive(self, source: Hop, report: Backlog, now: float) -> list[Effect]:
        """A neighbour reports on a link behind it.

        Raises ProtocolError if it cannot know that.
        """
        broker = self._broker
        if source not in broker.routing.neighbours:
            raise ProtocolError(f"{source} is no neighbour of {broker.name}")
        if len(report.edges) > BACKLOG_LIMIT:
            raise ProtocolError(f"{source} reports more than {BACKLOG_LIMIT} edge brokers")
        for name in (report.broker, report.neighbour, *report.edges):
            broker.links.check_behind(source, name)
        ends = (report.broker, report.neighbour)
        if any(ends in found for via, found in self._reports.items() if via != source):
            raise ProtocolError(f"{source} reports on a link that is not behind it: {ends}")
        known = self._reports.get(source, {})
        if not report.full and ends not in known:
            return []
        if report.full and ends not in known and len(known) >= BACKLOG_LIMIT:
            raise ProtocolError(f"{source} reports more than {BACKLOG_LIMIT} links that are full")
        return self._report(source, report)

    def _report(self, via: Hop, report: Backlog) -> list[Effect]:
        """Keep a report, and pass it on to the other brokers."""
        reports, ends = self._reports.setdefault(via, {}), (report.broker, report.neighbour)
        if report.full:
            reports[ends] = report
        else:
            reports.pop(ends, None)
        if not reports:
            del self._reports[via]
        self._rebuild()
        others = tuple(hop for hop in self._broker.routing.neighbours if hop != via)
        return [Send(others, report)] if others else []

    def _own(self, hop: Hop) -> tuple[str, str]:
        return self._broker.name, hop


def _broker_away(report: Backlog, edge: str) -> BrokerAway:
    return BrokerAway(
        f"{report.messages} messages ({report.size} bytes) wait at broker {report.broker} for "
        f"{report.neighbour}, which is away or catching up: nothing more can be published for "
        f"clients of {edge} until it has received half of them"
    )
