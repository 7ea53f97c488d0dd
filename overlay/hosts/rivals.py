"""Two processes under one broker's name: the neighbour keeps the first while it lives.

A topology names each broker once, but nothing keeps people from starting one twice, here and on
another machine. If the newcomer were given the link, the first would take it back, and so on; each
change begins a new life of the link and loses what is under way.

So a hello in another life than the link's is refused while the link has a connection. A broker that
was really restarted is not locked out: the connection of a process that has ended is closed by its
kernel; if its machine was restarted, the ping that is sent as a probe is answered with a reset; and
a connection that is dead without a sign is ended after IDLE_S of silence. The ping also tells the
first process of the second, once in a while.
"""

from __future__ import annotations

from typing import Any

from overlay.errors import DuplicateBroker
from overlay.hosts.peers import Neighbour, Wire
from overlay.messages import Hello, Ping
from overlay.wire.frames import pack

#: How often the first process is told: often enough to be seen in a log, and no flood.
TELL_S = 60.0


class Rivals:
    """What a broker knows of second processes under one neighbour's name, or under its own."""

    __slots__ = ("_told_at", "attempts", "last", "notice", "refusal")

    def __init__(self) -> None:
        #: Connections of others under the neighbour's name that were refused, and the last one.
        self.attempts = 0
        self.last = ""
        #: What the neighbour has said of another process under our name.
        self.notice = ""
        #: Why the neighbour refuses us; "" while it does not.
        self.refusal = ""
        self._told_at = float("-inf")

    def check(self, neighbour: Neighbour, hello: Hello, rival: Wire, now: float) -> None:
        """Raises DuplicateBroker if another process than the hello's has the link."""
        wire = neighbour.wire
        if wire is None or neighbour.link.same_process(hello):
            return
        self.attempts += 1
        self.last = rival.address
        note = ""
        if now - self._told_at >= TELL_S:
            self._told_at = now
            note = f"a second process called {neighbour.name} connects from {rival.address}"
        wire.write(pack(Ping(note)))
        raise DuplicateBroker(
            f"another process called {neighbour.name} is connected, from {wire.address}"
        )

    def as_data(self) -> dict[str, Any]:
        """For a broker's status; empty as long as all is well."""
        data = {
            "rivals": self.attempts,
            "last_rival": self.last,
            "notice": self.notice,
            "refusal": self.refusal,
        }
        return {key: value for key, value in data.items() if value}
