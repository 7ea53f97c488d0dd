"""Connections that have not said hello: how many a broker holds, and which one has to go.

Whoever reaches the port can open a connection, so those without a hello are bounded, in total and
by address. The bound must not lock anybody out: when it is reached, the newcomer is let in and the
oldest connection of the address that holds most of them is ended. A client says hello as soon as it
is connected and stays pending for a moment only; a connection that says nothing, or says it slowly,
is the one that has grown old.

It knows neither sockets nor time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)

#: One customer of an IPv6 provider has at least so many bits for himself (RFC 6177).
IPV6_PREFIX_BITS = 64


class PendingConnections(Generic[C]):
    """Connections by address, oldest first."""

    def __init__(self, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address
        self._by_origin: dict[str, dict[C, None]] = {}
        self._origins: dict[C, str] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def __contains__(self, connection: C) -> bool:
        return connection in self._origins

    def add(self, connection: C, address: str) -> C | None:
        """Count a connection from an IP address; returns the one that has to go instead, if any.

        That one is not counted any more, and the caller has to end it.
        """
        origin = origin_of(address)
        self._origins[connection] = origin
        own = self._by_origin.setdefault(origin, {})
        own[connection] = None
        if len(own) > self._per_address:
            return self._take_oldest(own)
        if len(self._origins) > self._limit:
            return self._take_oldest(max(self._by_origin.values(), key=len))
        return None

    def remove(self, connection: C) -> None:
        """The connection has said hello, or has ended; twice is fine."""
        origin = self._origins.pop(connection, None)
        if origin is not None:
            own = self._by_origin[origin]
            del own[connection]
            if not own:
                del self._by_origin[origin]

    def _take_oldest(self, own: dict[C, None]) -> C:
        oldest = next(iter(own))
        self.remove(oldest)
        return oldest


def origin_of(address: str) -> str:
    """The address, or what one customer's IPv6 addresses have in common."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, IPV6_PREFIX_BITS), strict=False))
    return str(ip)
