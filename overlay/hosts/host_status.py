"""How a broker is: what `status` shows an operator, as JSON-like data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from overlay.broker.limits import Usage
from overlay.hosts.peers import ClientPeer, Neighbour

if TYPE_CHECKING:
    from overlay.hosts.host import Host


class HostStatus:
    """Counts what passes a host, and reports on it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.messages_in = 0
        self.messages_out = 0
        self.began()

    def began(self) -> None:
        """The broker begins, or goes on with, its work now."""
        self._started_at = self._host.now()

    def as_data(self) -> dict[str, Any]:
        host = self._host
        clients = [end for end in host.node.ends.values() if isinstance(end, ClientPeer)]
        return {
            "broker": host.name,
            "pid": os.getpid(),
            "uptime_s": round(host.now() - self._started_at, 3),
            "links": [self._link(peer) for peer in host.neighbours.values()],
            "clients": [
                {
                    "client": peer.name,
                    "up": peer.link.connected,
                    "unacked": len(peer.link.unacked),
                    "outbox": len(peer.link.outbox),
                }
                for peer in clients
            ],
            "unreachable": [
                {"broker": missing.broker, "reported_by": missing.reported_by, "via": via}
                for missing, via in host.node.core.reach.missing
            ],
            "usage": [usage._asdict() for usage in self._usage(len(clients))],
            "messages_in": self.messages_in,
            "messages_out": self.messages_out,
            **{name: report() for name, report in host.reports.items()},
        }

    def _link(self, peer: Neighbour) -> dict[str, Any]:
        return {
            "neighbour": peer.name,
            "up": peer.link.connected,
            "unacked": len(peer.link.unacked),
            "outbox": len(peer.link.outbox),
            "congested": self._host.is_congested(peer),
            "full": self._host.node.core.backlogs.is_full(peer.hop),
            **self._host.rivals[peer.name].as_data(),
        }

    def _usage(self, clients: int) -> list[Usage]:
        host = self._host
        return [
            Usage("clients", clients, host.settings.client_connections),
            Usage("bytes for clients", host.kept_bytes, host.settings.client_outboxes_bytes),
            *host.node.core.usage,
        ]
