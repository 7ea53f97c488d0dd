"""What a neighbour's link has brought, to recognise what comes again after a reset.

A broker that dies may have passed publications on that it had not acknowledged. Its neighbours send
them again to its next life (`overlay.broker.resending`), and that passes them on once more. Whoever
is behind it must drop them.

(publisher, life, number) names a publication. On a tree with FIFO links one publisher's come in
their order, so it is enough to know the last one of each. What is up to that one has come, or was
not meant to come then.

Nothing here has to be told when the last repetition has come: the first new publication of a
publisher says that for this publisher, and each costs one look until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from overlay.messages import AnyMessage, Pub
from overlay.wire.link import WINDOW_MESSAGES

#: Publishers that are remembered for one link, those that came last: as many as have publications
#: in flight on four links behind the neighbour.
PUBLISHERS = 4 * WINDOW_MESSAGES

#: The life and number of a client's last publication.
_Last: TypeAlias = tuple[int, int]

#: A client with that.
_Row: TypeAlias = tuple[str, int, int]


class Received:
    """The last publication of each client that came from one neighbour."""

    __slots__ = ("last", "repeated")

    def __init__(self) -> None:
        #: By client, the one that published last at the end.
        self.last: dict[str, _Last] = {}
        #: The same at the last reset, without clients of which something new has come since.
        self.repeated: dict[str, _Last] = {}

    def reset(self) -> None:
        """The neighbour lives a new life: some publications may come again."""
        self.repeated = dict(self.last)

    @property
    def state(self) -> tuple[list[_Row], list[_Row]]:
        """All of it as plain data, in an order that counts."""
        return _rows(self.last), _rows(self.repeated)

    def restore(self, last: Sequence[_Row], repeated: Sequence[_Row]) -> None:
        """Go on where an earlier process was."""
        self.last = {client: (life, number) for client, life, number in last}
        self.repeated = {client: (life, number) for client, life, number in repeated}

    def note(self, messages: Sequence[AnyMessage]) -> None:
        """These have come."""
        last = self.last
        pubs = {pub.client: pub for pub in messages if pub.__class__ is Pub}
        for client, pub in pubs.items():
            last.pop(client, None)
            last[client] = (pub.life, pub.seq)
        while len(last) > PUBLISHERS:
            del last[next(iter(last))]

    def is_repeated(self, message: AnyMessage) -> bool:
        """Whether a message that comes is a publication that has come before the reset."""
        if message.__class__ is not Pub:
            return False
        before = self.repeated.get(message.client)
        if before is None:
            return False
        if (message.life, message.seq) <= before:
            return True
        del self.repeated[message.client]
        return False

    def new(
        self, messages: Sequence[AnyMessage], frames: Sequence[bytes]
    ) -> tuple[Sequence[AnyMessage], Sequence[bytes]]:
        """The messages, and their frames, that have not come before; notes them."""
        if self.repeated:
            news = [at for at, message in enumerate(messages) if not self.is_repeated(message)]
            if len(news) < len(messages):
                messages = [messages[at] for at in news]
                frames = [frames[at] for at in news]
        self.note(messages)
        return messages, frames


def _rows(last: dict[str, _Last]) -> list[_Row]:
    return [(client, life, number) for client, (life, number) in last.items()]
