"""One end of a reliable FIFO link that outlives its TCP connections; no I/O, no clock.

The same object serves between two brokers, at a broker for a client, and at the client. Both ends
number their messages by counting, from the link's first. Each keeps what it has sent until the
other has acknowledged it, and after a reconnect sends it again from where the other stopped, so
that every message is handed over once and in order.

**Life.** An end that begins, or has forgotten, takes a new `incarnation`; a pair of incarnations is
one life of the link. The dialling end says hello first, with both; the accepting end compares
(`open`) and then answers; the dialling end compares the answer:

    NEW      this end has never had a peer. What it has queued so far will be sent.
    RESUMED  the peer is the one it was. What it has not received is sent again.
    RESET    the peer has begun anew, or this end has forgotten it: what was queued or in flight
             is given up, counting starts again, and the owner has to send its state anew.

If a connection goes when only the accepting end has heard a hello, the dialling end does not know
of this life, and has seen nothing of it: the next time that is RESUMED from number 0. So each owner
learns of a peer's new life once, however often connections break.

**Flow.** Acknowledging is the flow control: a message is acknowledged when the host has handed it
over to its core, not when it has arrived. So many messages and bytes may be in flight (the window);
the rest waits in the outbox, which is bounded as well: `send` returns False beyond its limit,
and the owner has to end the link or to `forget`. What has arrived waits in the inbox, which a peer
that keeps to the window cannot overrun; one that does breaks the protocol. Reading from the socket
need never stop, so acknowledgements always come through.

A host, for each new connection: `hello()` and `open`; for each frame: `receive`; then
`hand_over` while there is something in `inbox` and the core may take it; at the end of each turn
write what `take` returns. (`receive_all`, `hand_over_some` and `send_all` are the same for many.)
Every now and then: `take(now, idle=True)`, and end the connection if `silent`. When it is gone:
`cut`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import cast, get_args

import msgspec

from overlay.errors import ProtocolError
from overlay.messages import (
    PROTOCOL_VERSION,
    Ack,
    AnyMessage,
    AnySignal,
    Goodbye,
    Hello,
    Message,
    Ping,
    Pub,
    Role,
)
from overlay.wire.codec import UNDECODABLE, decode, decode_unguarded
from overlay.wire.frames import BROKER_FRAME_LIMIT, PREFIX_SIZE, pack

#: How much may be in flight, unacknowledged: the product of rate and round trip that a link is
#: good for, 40,000 messages/s at an (emulated) round trip of 100 ms. Both ends rely on it, so it is
#: part of the protocol version. A message may leave while both are below, so that the bytes can be
#: exceeded by one frame.
WINDOW_MESSAGES = 4096
WINDOW_BYTES = 4 << 20

#: An acknowledgement is due after a sixteenth of the window, so that the peer never stands still
#: for want of one, and costs a small share of what it acknowledges. What is less waits until
#: something else is written, or for `take(idle=True)`, which a host calls after ACK_DELAY_S.
ACK_MESSAGES = WINDOW_MESSAGES // 16
ACK_BYTES = WINDOW_BYTES // 16
ACK_DELAY_S = 0.05

#: What waits for the window to open. 32 MiB or 50,000 messages are some seconds of all that a
#: broker can deliver: a reader that is further behind will not catch up.
OUTBOX_MESSAGES = 50_000
OUTBOX_BYTES = 32 << 20

#: A quiet end sends a sign of life after HEARTBEAT_S; an end that has heard nothing for IDLE_S,
#: three heartbeats and some slack for a busy machine, takes the connection for dead. Nothing is
#: lost by a mistake: the link goes on with the next connection.
HEARTBEAT_S = 3.0
IDLE_S = 10.0

_PING = pack(Ping())

_SIGNALS: frozenset[type] = frozenset(get_args(AnySignal))

_ONLY_PUBLICATIONS: set[type] = {Pub}


class Opening(Enum):
    """What a new connection means for the link; see the module's docstring."""

    NEW = "new"
    RESUMED = "resumed"
    RESET = "reset"


class LinkState(msgspec.Struct, frozen=True):
    """What a link is after all its connections have gone."""

    #: What the names of this end's lives begin with.
    base: str
    incarnation: str
    peer: str
    handed_over: int
    acknowledged: int
    forgotten: bool
    given_up: int
    #: The frames that the peer has not acknowledged.
    kept: list[bytes]


class Link:
    """One end of a link. All times are the host's monotonic seconds."""

    __slots__ = (
        "_acked",
        "_base",
        "_forgotten",
        "_handed_bytes",
        "_heard_at",
        "_heartbeat_s",
        "_idle_s",
        "_inbox_bytes",
        "_inbox_frames",
        "_life",
        "_outbox_bytes",
        "_outbox_limit_bytes",
        "_outbox_limit_messages",
        "_said_hello",
        "_spoke_at",
        "_told",
        "_unacked_bytes",
        "connected",
        "given_up",
        "handed_over",
        "inbox",
        "incarnation",
        "is_mixed",
        "note",
        "outbox",
        "peer",
        "unacked",
    )

    def __init__(
        self,
        incarnation: str,
        *,
        outbox_messages: int = OUTBOX_MESSAGES,
        outbox_bytes: int = OUTBOX_BYTES,
        heartbeat_s: float = HEARTBEAT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        # Unique, chosen by the host: randomness is not for here. Later lives are numbered.
        self._base = incarnation
        self._life = 0
        self._said_hello = False
        #: Names this life of this end.
        self.incarnation = incarnation
        #: The life of the other end that this link belongs to, "" before the first contact.
        self.peer = ""
        self.connected = False
        #: The note of the peer's last ping, if it had one; the owner resets it.
        self.note = ""
        #: Messages that a forgotten link has not even queued; `open` starts counting anew.
        self.given_up = 0
        self._forgotten = False
        self._outbox_limit_messages = outbox_messages
        self._outbox_limit_bytes = outbox_bytes
        self._heartbeat_s = heartbeat_s
        self._idle_s = idle_s
        self._heard_at = self._spoke_at = 0.0
        self._clear()

    def _clear(self) -> None:
        #: Frames that wait to be written, and those written but not acknowledged. Read-only.
        self.outbox: deque[bytes] = deque()
        self.unacked: deque[bytes] = deque()
        #: Messages that have arrived and wait for the core, read-only; and their frames.
        self.inbox: deque[AnyMessage] = deque()
        #: Whether there may be anything in the inbox but publications.
        self.is_mixed = False
        self._inbox_frames: deque[bytes] = deque()
        #: How many messages of this life of the link the core has received.
        self.handed_over = 0
        self._outbox_bytes = self._unacked_bytes = self._inbox_bytes = 0
        self._acked = 0
        self._told = 0
        self._handed_bytes = 0

    # Connections.

    def hello(self, role: Role, name: str, secret: str = "") -> Hello:
        """The first frame for a new connection, by either end.

        What waits in the inbox is dropped: the peer, told how much has been handed over, sends it
        again, and can count on the whole window.
        """
        self.drop_inbox()
        self._told = self.handed_over
        self._handed_bytes = 0
        self._said_hello = True
        return Hello(
            version=PROTOCOL_VERSION,
            role=role,
            name=name,
            incarnation=self.incarnation,
            peer=self.peer,
            received=self.handed_over,
            secret=secret,
        )

    def open(self, hello: Hello, now: float) -> Opening:
        """Begin a connection with the peer's hello; the old one must have been `cut`.

        The dialling end has said its own `hello()` before, the accepting end says it next.

        Raises ProtocolError if the hello contradicts what has been said on this link.
        """
        assert not self.connected
        opening = self.opening(hello)
        if opening is Opening.RESUMED:
            self._resume(hello.received if hello.peer == self.incarnation else 0)
        else:
            self.begin(self.next_incarnation(opening), hello.incarnation, opening)
        self.connected = True
        self._heard_at = self._spoke_at = now
        return opening

    def opening(self, hello: Hello) -> Opening:
        """What a connection with this hello would mean for the link; nothing changes.

        Raises ProtocolError if the hello names no life.
        """
        if not hello.incarnation:
            raise ProtocolError("the hello names no incarnation")
        if self.resumes(hello):
            return Opening.RESUMED
        return Opening.RESET if self.peer or self._forgotten else Opening.NEW

    def next_incarnation(self, opening: Opening) -> str:
        """The name of this end's life after such an opening.

        A reset gives it a new name, unless a hello has been sent: for the dialling end the new name
        of the accepting one is enough to distinguish this life from the last.
        """
        if opening is Opening.RESET and not self._said_hello:
            return f"{self._base}.{self._life + 1}"
        return self.incarnation

    def begin(self, incarnation: str, peer: str, opening: Opening) -> None:
        """Begin a life of the link with this life of the peer; then `open` resumes it.

        In a reset the old life is over: what was meant for the peer is given up.
        """
        if opening is Opening.RESET:
            self._clear()
            self.given_up = 0
        self.incarnation = incarnation
        self._life = int(incarnation.rpartition(".")[2]) if "." in incarnation else 0
        self.peer = peer
        self._forgotten = False

    def resumes(self, hello: Hello) -> bool:
        """Whether the hello is of the peer that this link belongs to, and it has not forgotten."""
        unused = not (self.handed_over or self._acked)
        return hello.incarnation == self.peer and (hello.peer == self.incarnation or unused)

    def same_process(self, hello: Hello) -> bool:
        """Whether the hello is from the process of this link, possibly in a later life."""
        return _base(hello.incarnation) == _base(self.peer)

    def _resume(self, received: int) -> None:
        """Take back into the outbox what the peer has not received."""
        if not self._acked <= received <= self._acked + len(self.unacked):
            raise ProtocolError(
                f"the peer claims to have received {received} messages: {self._acked} were "
                f"acknowledged and {self._acked + len(self.unacked)} sent"
            )
        self._acknowledge(received)
        self.outbox.extendleft(reversed(self.unacked))
        self._outbox_bytes += self._unacked_bytes
        self.unacked.clear()
        self._unacked_bytes = 0

    def cut(self) -> None:
        """The connection is gone, possibly before `open`. What has arrived may be handed over."""
        self.connected = False
        self._said_hello = False

    def forget(self) -> int:
        """Give up the peer and all that was meant for it; the next `open` will be a RESET.

        Until then what is sent is counted in `given_up` and not kept. Returns how many messages
        were given up now.
        """
        assert not (self.connected or self._said_hello), "close the connection first"
        lost, given_up = self.pending, self.given_up
        self.begin(self.next_incarnation(Opening.RESET), "", Opening.RESET)
        self.given_up = given_up
        self._forgotten = True
        return lost

    # Outgoing.

    @property
    def pending(self) -> int:
        """How many messages the peer has not acknowledged."""
        return len(self.unacked) + len(self.outbox)

    @property
    def backlog_bytes(self) -> int:
        """How many bytes wait for the window to open."""
        return self._outbox_bytes

    @property
    def full(self) -> bool:
        """Whether the outbox is beyond its limits."""
        return (
            len(self.outbox) > self._outbox_limit_messages
            or self._outbox_bytes > self._outbox_limit_bytes
        )

    def exceeds(self, times: float) -> bool:
        """Whether the outbox is beyond so many times its limits."""
        return (
            len(self.outbox) > times * self._outbox_limit_messages
            or self._outbox_bytes > times * self._outbox_limit_bytes
        )

    def send(self, frame: bytes) -> bool:
        """Queue the frame of a message (`frames.pack`).

        Returns False if the outbox is now beyond its limits; the owner must then act.
        """
        if self._forgotten:
            self.given_up += 1
            return True
        outbox = self.outbox
        outbox.append(frame)
        self._outbox_bytes = size = self._outbox_bytes + len(frame)
        return len(outbox) <= self._outbox_limit_messages and size <= self._outbox_limit_bytes

    def send_all(self, frames: list[bytes]) -> None:
        """Queue several frames at once, at a fraction of the cost; then check `full`."""
        if self._forgotten:
            self.given_up += len(frames)
            return
        self.outbox.extend(frames)
        self._outbox_bytes += sum(map(len, frames))

    def take(self, now: float, *, idle: bool = False) -> list[bytes]:
        """The frames to write now, in order.

        These are messages that the window admits, and an acknowledgement if it is due.

        With `idle`, an acknowledgement that is not yet due as well, or a sign of life after
        HEARTBEAT_S of silence.
        """
        if not self.connected:
            return []
        frames: list[bytes] = []
        if self.outbox:
            self._fill(frames)
        unsaid = self.handed_over - self._told
        if unsaid and (frames or idle or unsaid >= ACK_MESSAGES or self._handed_bytes >= ACK_BYTES):
            self._told = self.handed_over
            self._handed_bytes = 0
            frames.append(pack(Ack(self._told)))
        if idle and not frames and now - self._spoke_at >= self._heartbeat_s:
            frames.append(_PING)
        if frames:
            self._spoke_at = now
        return frames

    def _fill(self, frames: list[bytes]) -> None:
        """Move from the outbox into flight what the window admits."""
        outbox, unacked = self.outbox, self.unacked
        size = self._unacked_bytes + self._outbox_bytes
        if len(outbox) + len(unacked) <= WINDOW_MESSAGES and size <= WINDOW_BYTES:
            frames.extend(outbox)
            unacked.extend(outbox)
            outbox.clear()
            self._unacked_bytes = size
            self._outbox_bytes = 0
            return
        while outbox and len(unacked) < WINDOW_MESSAGES and self._unacked_bytes < WINDOW_BYTES:
            frame = outbox.popleft()
            self._outbox_bytes -= len(frame)
            self._unacked_bytes += len(frame)
            unacked.append(frame)
            frames.append(frame)

    # Incoming.

    def heard(self, now: float) -> None:
        """Note that something has arrived."""
        self._heard_at = now

    def silent(self, now: float) -> bool:
        """Whether the connection counts as dead: nothing has arrived for IDLE_S."""
        return self.connected and now - self._heard_at > self._idle_s

    @property
    def ack_waits(self) -> bool:
        """Whether an acknowledgement waits to be sent; `take(idle=True)` sends it."""
        return self.handed_over != self._told

    def receive(self, value: AnyMessage | AnySignal, frame: bytes) -> Goodbye | None:
        """Take what has arrived after the hello: a message goes to the inbox, an acknowledgement
        makes room. A goodbye is the owner's to act upon, after what is in the inbox.

        Raises ProtocolError if the peer overran the window, acknowledged what it cannot have
        received, or sent a second hello.
        """
        if isinstance(value, Message):
            self.is_mixed = True
            self.inbox.append(value)
            self._inbox_frames.append(frame)
            self._inbox_bytes += len(frame)
            self._check_window()
        elif isinstance(value, Ack):
            if not self._acked <= value.received <= self._acked + len(self.unacked):
                raise ProtocolError(
                    f"the peer acknowledges {value.received} messages of "
                    f"{self._acked + len(self.unacked)}, after {self._acked}"
                )
            self._acknowledge(value.received)
        elif isinstance(value, Goodbye):
            return value
        elif isinstance(value, Hello):
            raise ProtocolError("a second hello on one connection")
        elif value.note:
            self.note = value.note
        return None

    def receive_all(self, frames: list[bytes]) -> Goodbye | None:
        """Decode and take several frames at once, up to a goodbye; otherwise as `receive`.

        Raises ProtocolError for what cannot be decoded, too.
        """
        try:
            values = [decode_unguarded(frame[PREFIX_SIZE:]) for frame in frames]
        except UNDECODABLE:
            # The frames before the bad one count, and nothing after a goodbye is bad.
            self.is_mixed = True
            return self._receive_each((decode(frame[PREFIX_SIZE:]), frame) for frame in frames)
        types = set(map(type, values))
        if types != _ONLY_PUBLICATIONS:
            self.is_mixed = True
            if not _SIGNALS.isdisjoint(types):
                return self._receive_each(zip(values, frames, strict=True))
        self.inbox.extend(cast(list[AnyMessage], values))
        self._inbox_frames.extend(frames)
        self._inbox_bytes += sum(map(len, frames))
        self._check_window()
        return None

    def _receive_each(
        self, items: Iterable[tuple[AnyMessage | AnySignal, bytes]]
    ) -> Goodbye | None:
        for value, frame in items:
            goodbye = self.receive(value, frame)
            if goodbye is not None:
                return goodbye
        return None

    def _check_window(self) -> None:
        if (
            len(self.inbox) > WINDOW_MESSAGES
            or self._inbox_bytes > WINDOW_BYTES + BROKER_FRAME_LIMIT + PREFIX_SIZE
        ):
            raise ProtocolError("the peer sends without waiting for acknowledgements")

    def _acknowledge(self, received: int) -> None:
        unacked = self.unacked
        count = received - self._acked
        if count == len(unacked):
            unacked.clear()
            self._unacked_bytes = 0
        else:
            self._unacked_bytes -= sum(map(len, [unacked.popleft() for _ in range(count)]))
        self._acked = received

    def hand_over(self) -> AnyMessage:
        """The next message for the core; only while `inbox` is not empty."""
        size = len(self._inbox_frames.popleft())
        self._inbox_bytes -= size
        self._handed_bytes += size
        self.handed_over += 1
        return self.inbox.popleft()

    def hand_over_some(self, limit: int) -> tuple[list[AnyMessage], list[bytes]]:
        """The next messages for the core, at most so many, and their frames."""
        messages, frames, size = self.stage(limit)
        self.count(len(frames), size)
        return messages, frames

    def stage(self, limit: int) -> tuple[list[AnyMessage], list[bytes], int]:
        """The next messages, at most so many, their frames and the bytes of these, on their way to
        the core.

        They are acknowledged when the core has received them: then `count` them.
        """
        inbox, waiting = self.inbox, self._inbox_frames
        if len(inbox) <= limit:
            self.is_mixed = False
            messages, frames = list(inbox), list(waiting)
            inbox.clear()
            waiting.clear()
            size, self._inbox_bytes = self._inbox_bytes, 0
        else:
            messages = [inbox.popleft() for _ in range(limit)]
            frames = [waiting.popleft() for _ in range(limit)]
            size = sum(map(len, frames))
            self._inbox_bytes -= size
        return messages, frames, size

    def count(self, messages: int, size: int) -> None:
        """The core has received so many messages of so many bytes that were staged."""
        self._handed_bytes += size
        self.handed_over += messages

    def drop_inbox(self) -> None:
        """Drop what the core has not received."""
        self.inbox.clear()
        self._inbox_frames.clear()
        self._inbox_bytes = 0

    # What outlives the process.

    @property
    def acknowledged(self) -> int:
        """How many messages of this life the peer has acknowledged."""
        return self._acked

    def trim(self, received: int) -> None:
        """The peer has acknowledged so many messages, as the log says: they need not be kept.

        What is known already changes nothing: in the process that has heard the peer itself, what
        waits in the outbox is not in flight.
        """
        if received <= self._acked:
            return
        self.suspect()
        if received <= self._acked + len(self.unacked):
            self._acknowledge(received)

    def suspect(self) -> None:
        """After a restart nobody knows what was written: all that is kept counts as in flight.

        The peer's next hello says what it has, and the rest is sent again.
        """
        self.unacked.extend(self.outbox)
        self.outbox.clear()
        self._unacked_bytes += self._outbox_bytes
        self._outbox_bytes = 0

    @property
    def state(self) -> LinkState:
        """All that the next process needs to go on with this link."""
        return LinkState(
            base=self._base,
            incarnation=self.incarnation,
            peer=self.peer,
            handed_over=self.handed_over,
            acknowledged=self._acked,
            forgotten=self._forgotten,
            given_up=self.given_up,
            kept=[*self.unacked, *self.outbox],
        )

    def restore(self, state: LinkState) -> None:
        """Go on where the link of an earlier process was."""
        assert not self.connected
        self._clear()
        self._base = state.base
        self.begin(state.incarnation, state.peer, Opening.NEW)
        self.handed_over = self._told = state.handed_over
        self._acked = state.acknowledged
        self._forgotten = state.forgotten
        self.given_up = state.given_up
        self.unacked.extend(state.kept)
        self._unacked_bytes = sum(map(len, state.kept))


def _base(incarnation: str) -> str:
    """What the lives of one process's end of a link have in common."""
    return incarnation.partition(".")[0]
