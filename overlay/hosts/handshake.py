"""Who is calling, and may they: everything that is decided from a hello.

The answer is a peer, one that was here before or a new one, or an error whose code and reason the
caller gets in a goodbye. Nothing is changed here; the host acts on the answer.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from overlay.errors import NameAway, NameTaken, ProtocolError, Unauthorized
from overlay.hosts.peers import ClientPeer, Neighbour, OperatorPeer, Peer
from overlay.hosts.settings import Settings
from overlay.messages import NAME_PATTERN, PROTOCOL_VERSION, BrokerName, ClientName, Hello, Hop
from overlay.wire.link import Link


class Handshake:
    """Knows this broker's name, its neighbours and its secret, and makes peers."""

    def __init__(
        self,
        name: BrokerName,
        delays_s: Mapping[BrokerName, float],
        settings: Settings,
        birth: str = "",
    ) -> None:
        """`birth` names the life of the broker, if that is longer than the process's."""
        self._name = name
        self._settings = settings
        self._life = secrets.token_hex(6)
        self._links = 0
        self._operators = 0
        self.neighbours = {
            neighbour: Neighbour(
                neighbour,
                self._link(
                    f"{birth or self._life}-n{number}",
                    settings.neighbour_outbox_messages,
                    settings.neighbour_outbox_bytes,
                ),
                delay_s,
            )
            for number, (neighbour, delay_s) in enumerate(sorted(delays_s.items()), start=1)
        }

    def _link(self, incarnation: str, outbox_messages: int, outbox_bytes: int) -> Link:
        return Link(
            incarnation,
            outbox_messages=outbox_messages,
            outbox_bytes=outbox_bytes,
            heartbeat_s=self._settings.heartbeat_s,
            idle_s=self._settings.idle_s,
        )

    def client(self, name: ClientName, incarnation: str = "") -> ClientPeer:
        """A client, with a link of its own; by default that link is new."""
        return ClientPeer(name, self._client_link(incarnation), self._settings.client_delay_s)

    def _client_link(self, incarnation: str = "") -> Link:
        settings = self._settings
        if not incarnation:
            self._links += 1
            incarnation = f"{self._life}-{self._links}"
        return self._link(
            incarnation, settings.client_outbox_messages, settings.client_outbox_bytes
        )

    def dials(self, name: BrokerName) -> bool:
        """Whether it is for us to dial: of two neighbours the one whose name sorts first does."""
        return self._name < name

    def admit(self, hello: Hello, known: Peer | None, now: float) -> Peer:
        """The peer that has dialled us; `known` is the client that has this name here, if any.

        Raises ProtocolError, Unauthorized or NameTaken.
        """
        self._check(hello)
        if hello.role == "broker":
            return self._neighbour(hello)
        if hello.role == "client":
            return self._client(hello, known, now)
        self._operators += 1
        return OperatorPeer(Hop(f"?{self._operators}"), self._client_link())

    def recognise(self, hello: Hello, dialled: Neighbour) -> None:
        """See whether the neighbour that we dialled is the one that answers.

        Raises ProtocolError or Unauthorized.
        """
        self._check(hello)
        if hello.role != "broker" or hello.name != dialled.name:
            raise ProtocolError(
                f"dialled broker {dialled.name!r} and got {hello.role} {hello.name!r}"
            )

    def _check(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {hello.version}: {self._name} speaks version {PROTOCOL_VERSION}"
            )
        if not hmac.compare_digest(hello.secret.encode(), self._settings.secret.encode()):
            raise Unauthorized(f"the secret is not the one of {self._name}'s overlay")
        if not NAME_PATTERN.fullmatch(hello.name):
            raise ProtocolError(f"{hello.name[:80]!r} is no name")
        if not hello.incarnation:
            raise ProtocolError("the hello names no incarnation")

    def _neighbour(self, hello: Hello) -> Neighbour:
        neighbour = self.neighbours.get(BrokerName(hello.name))
        if neighbour is None:
            raise ProtocolError(f"{hello.name} is no neighbour of {self._name}")
        if self.dials(neighbour.name):
            raise ProtocolError(f"{self._name} dials {hello.name}, not the other way round")
        return neighbour

    def _client(self, hello: Hello, known: Peer | None, now: float) -> ClientPeer:
        """The client whose link the hello goes on with, or a newcomer.

        A newcomer may take the name of a client that has lost its connection a while ago: most
        likely it is the same program, started again.
        """
        name = ClientName(hello.name)
        if isinstance(known, ClientPeer):
            if known.link.resumes(hello):
                return known
            if known.leaving:
                raise NameTaken(f"a client named {name!r} is leaving")
            if known.wire is not None or known.greeting is not None:
                raise NameTaken(f"a client named {name!r} is connected already")
            away_s, takeover_s = now - known.lost_at, self._settings.takeover_s
            if away_s < takeover_s:
                raise NameAway(
                    f"a client named {name!r} lost its connection {away_s:.1f} s ago and may come "
                    f"back; its name can be taken after {takeover_s:g} s"
                )
        return self.client(name)
