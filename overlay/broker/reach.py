"""Which brokers cannot be reached from here, and which broker has found that out.

A broker that has lost a neighbour tells every broker that it can still reach (`Reachability`), and
tells it again when the neighbour is back. On a tree with FIFO links there is one way from one
broker to another, so reports about a link arrive in the order in which they were made, always from
the same neighbour; no version is needed. When a link is reset, all that was reported over it is
dropped and reported anew.

A report names the first broker that is missing on its way. Whatever is only reached through that
one is missing, too, but a broker knows its neighbours and no more of the tree.

This module keeps the account, and knows neither requests nor tables.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.errors import ProtocolError
from overlay.messages import BrokerName, Hop, Reachability
from overlay.stored import stored, stored_value

#: Reports that are kept, some for each link of the largest tree that is thought of; a peer that
#: sends more makes them up.
REPORT_LIMIT = 10_000


@stored_value("missing")
class Missing(NamedTuple):
    """A broker that cannot be reached."""

    broker: BrokerName
    #: Its neighbour that has lost it.
    reported_by: BrokerName

    def __str__(self) -> str:
        return f"{self.broker} (no link from {self.reported_by})"


@stored("reach", fields=("_name", "_missing"))
class Reach:
    """What one broker knows of links that are down."""

    def __init__(self, name: BrokerName) -> None:
        self._name = name
        #: For each missing broker and its reporter: the neighbour that the report came from;
        #: the missing one itself if it is a neighbour of ours.
        self._missing: dict[Missing, Hop] = {}

    def is_absent(self, hop: Hop) -> bool:
        """Whether this broker has lost that neighbour."""
        return Missing(BrokerName(hop), self._name) in self._missing

    @property
    def missing(self) -> list[tuple[Missing, Hop]]:
        """The brokers that cannot be reached, and the neighbour that they are behind."""
        return sorted(self._missing.items())

    def behind(self, hop: Hop) -> list[Missing]:
        """The brokers that cannot be reached behind a neighbour, or the neighbour itself."""
        found = sorted(missing for missing, via in self._missing.items() if via == hop)
        # What is behind a neighbour that is lost itself was known before, and is old news.
        lost = Missing(BrokerName(hop), self._name)
        return [lost] if lost in self._missing else found

    # --- what changes ---

    def lose(self, hop: Hop) -> Reachability:
        """This broker has lost a neighbour; returns what has to be told to the others."""
        self._missing[Missing(BrokerName(hop), self._name)] = hop
        return Reachability(self._name, hop, up=False)

    def find(self, hop: Hop) -> Reachability | None:
        """A neighbour is back, if it was away; returns what has to be told to the others."""
        if self._missing.pop(Missing(BrokerName(hop), self._name), None) is None:
            return None
        return Reachability(self._name, hop, up=True)

    def take(self, source: Hop, report: Reachability) -> bool:
        """Take a neighbour's report; answers whether it is news and has to be passed on.

        Raises ProtocolError if the neighbour cannot know that.
        """
        missing = Missing(BrokerName(report.neighbour), BrokerName(report.broker))
        via = self._missing.get(missing)
        if self._name in missing or via not in (None, source):
            raise ProtocolError(f"{source} reports on a link that is not behind it: {report}")
        if report.up:
            return self._missing.pop(missing, None) is not None
        if via is None and len(self._missing) >= REPORT_LIMIT:
            raise ProtocolError(f"{source} reports more than {REPORT_LIMIT} links that are down")
        self._missing[missing] = source
        return via is None

    def reset(self, hop: Hop) -> list[Reachability]:
        """Drop what came over a link; returns what has to be taken back from the others."""
        gone = [missing for missing, via in self._missing.items() if via == hop]
        back = self.find(hop)
        told = [] if back is None else [back]
        for missing in gone:
            if self._missing.pop(missing, None) is not None:
                told.append(Reachability(missing.reported_by, missing.broker, up=True))
        return told

    def reports(self, hop: Hop) -> list[Reachability]:
        """All that a neighbour has to know that begins anew."""
        return [
            Reachability(missing.reported_by, missing.broker, up=False)
            for missing, via in sorted(self._missing.items())
            if via != hop
        ]
