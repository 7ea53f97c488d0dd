"""Where a tcm goes from a broker: to all clients that take it, or to those that it names.

A client takes a tcm if it is subscribed to it, and its last subscription there is not for events
only (`overlay.tables.space`). Those that a tcm names must take it; the reason why one does not is
for people.

Pure: it looks at the tables, and knows no transactions.
"""

from __future__ import annotations

from typing import NamedTuple

from overlay.matching.index import View
from overlay.messages import ClientName, Hop, Pub, is_client
from overlay.notation import format_publication
from overlay.tables.routing import Routing

#: Characters of a name that a reason quotes: those of a client's name at most.
NAME_SHOWN = 64


class TcmRoutes(NamedTuple):
    """The hops of a tcm, and who is meant behind each, if it names its receivers."""

    hops: tuple[Hop, ...]
    named: dict[Hop, tuple[str, ...]]
    #: Why one of those that it names does not receive it; empty if all do.
    missing: str = ""


def tcm_routes(
    routing: Routing, source: Hop, pub: Pub, to: tuple[str, ...], view: View | None
) -> TcmRoutes:
    """Where a tcm goes that has come from `source`, for the clients `to` or, if empty, for all."""
    if not to:
        hops = routing.prt.taking_hops(pub.point, view)
        return TcmRoutes(tuple(hop for hop in hops if is_client(hop) or hop != source), {})
    takers = routing.prt.takers(pub.point, view)
    named: dict[Hop, tuple[str, ...]] = {}
    for name in to:
        hop = takers.get(name)
        if hop is None or (hop == source and not is_client(hop)):
            return TcmRoutes((), {}, _why_missing(routing, name, pub, view))
        named[hop] = (*named.get(hop, ()), name)
    return TcmRoutes(tuple(named), named)


def _why_missing(routing: Routing, name: str, pub: Pub, view: View | None) -> str:
    text = f"{name[:NAME_SHOWN]}, which the tcm {format_publication(pub.point)} is for,"
    if ClientName(name) not in routing.crt:
        return f"{text} is not connected"
    if any(entry.client == name for entry in routing.prt.matching(pub.point, view)):
        return f"{text} is subscribed to it for events only"
    return f"{text} is not subscribed to it"
