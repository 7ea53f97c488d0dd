"""The two endpoints of a benchmark's traffic: a publisher and a subscriber, each in a process.

They are lean, so that only what lies between them is measured: blocking sockets and
`overlay.wire.link`, with neither an event loop nor a client's session. They follow the protocol:
hellos, numbers, windows, acknowledgements, heartbeats. Frames are packed before the clock starts.
Every publication that arrives is decoded and checked: it has to come once and in order, or the
subscriber fails.

An endpoint acts as a client, as a neighbour broker with one client behind it, or, to a relay, sends
only frames. The process is a child (`children`): the first line that it reads is its
`EndpointTask`, and it replies when it is ready; each further line is a `Round`, to which it replies
with a `RoundResult`.
"""

from __future__ import annotations

import secrets
import select
import socket
import sys
import time
from struct import Struct
from typing import Final, Literal, TypeAlias

import msgspec

from overlay.filters import Value
from overlay.messages import (
    AnyMessage,
    AnySignal,
    Done,
    Goodbye,
    Hello,
    Join,
    Message,
    Operation,
    Pub,
    PubRefused,
)
from overlay.notation import parse_filter
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from overlay.wire.link import WINDOW_MESSAGES, Link

EndpointProtocol: TypeAlias = Literal["client", "broker", "frames"]

#: A silence of this length is a hang: a slow peer sends something meanwhile.
STALL_S: Final = 30.0

#: How often an idle endpoint may send a heartbeat; well under HEARTBEAT_S.
TICK_S: Final = 1.0

#: As much as Twisted reads at once.
READ_BYTES: Final = 1 << 16

#: Frames written at once where no window limits them.
CHUNK_FRAMES: Final = 512

#: An event's payload: the time at which it was sent, and filler.
PAYLOAD_BYTES: Final = 64
_TIME: Final = Struct("!q")
_FILLER: Final = bytes(PAYLOAD_BYTES - _TIME.size)


class EndpointTask(msgspec.Struct, frozen=True):
    """What an endpoint is; it advertises or subscribes to `filters`, in PADRES notation."""

    side: Literal["publisher", "subscriber"]
    protocol: EndpointProtocol
    port: int
    name: str
    filters: list[str]


class Round(msgspec.Struct, frozen=True):
    """A number of publications, sent as fast as possible or at a rate."""

    count: int
    per_s: float = 0.0


class RoundResult(msgspec.Struct, frozen=True):
    """When the first publication was sent, or the last one received, by the monotonic clock of the
    machine; and the latency of each publication of a paced round."""

    at_ns: int
    latencies_ns: list[int] = []


class EndpointError(Exception):
    """The peer refused something or left, or a publication was lost, duplicated or reordered."""


# --- connections ---


class FrameConnection:
    """A connection that carries frames without a link."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), STALL_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Splitter()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, frames: list[bytes]) -> None:
        """Send all frames, and wait until they are sent."""
        for start in range(0, len(frames), CHUNK_FRAMES):
            self._socket.sendall(b"".join(frames[start : start + CHUNK_FRAMES]))

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting."""
        self._socket.sendall(frame)

    def receive(self) -> list[AnyMessage]:
        """Wait for one read; returns the messages in it, if any."""
        return [_message(decode(frame[PREFIX_SIZE:])) for frame in self._read()]

    def attend(self) -> None:
        """Handle input and heartbeats while idle; here, nothing."""

    def _read(self) -> list[bytes]:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise EndpointError("the peer has closed the connection")
        return self._splitter.feed(data)


class LinkConnection(FrameConnection):
    """A connection that carries a link."""

    def __init__(self, port: int, role: Literal["client", "broker"], name: str) -> None:
        super().__init__(port)
        self._link = Link(secrets.token_hex(8))
        self._socket.sendall(pack(self._link.hello(role, name)))
        while not (frames := self._read()):
            pass
        hello = decode(frames[0][PREFIX_SIZE:])
        if isinstance(hello, Goodbye):
            raise EndpointError(f"refused: {hello.reason}")
        assert isinstance(hello, Hello), hello
        self._link.open(hello, time.monotonic())
        self._link.receive_all(frames[1:])

    def send(self, frames: list[bytes]) -> None:
        self._link.send_all(frames)
        self._flush()
        while self._link.pending:
            self._read_link()
        for message in self._link.inbox:
            if isinstance(message, PubRefused):
                raise EndpointError(f"a publication was refused: {message.reason}")

    def send_nowait(self, frame: bytes) -> None:
        self._link.send(frame)
        self._flush()

    def receive(self) -> list[AnyMessage]:
        link = self._link
        if not link.inbox:
            self._read_link()
        messages, _ = link.hand_over_some(WINDOW_MESSAGES)
        self._flush()
        return messages

    def attend(self) -> None:
        # Not select(2), which cannot watch as many connections as there are idle clients.
        incoming = select.poll()
        incoming.register(self, select.POLLIN)
        if incoming.poll(0):
            self._read_link()
        self._flush(idle=True)

    def _read_link(self) -> None:
        goodbye = self._link.receive_all(self._read())
        if goodbye is not None:
            raise EndpointError(f"the broker has closed the link: {goodbye.reason}")
        self._flush()

    def _flush(self, *, idle: bool = False) -> None:
        frames = self._link.take(time.monotonic(), idle=idle)
        if frames:
            self._socket.sendall(b"".join(frames))


def _message(value: AnyMessage | AnySignal) -> AnyMessage:
    assert isinstance(value, Message), value
    return value


def connect(task: EndpointTask) -> tuple[FrameConnection, str, int]:
    """The connection, after advertising or subscribing, and the client's name and life."""
    if task.protocol == "frames":
        return FrameConnection(task.port), task.name, 0
    line = LinkConnection(task.port, task.protocol, task.name)
    kind: Literal["adv", "sub"] = "adv" if task.side == "publisher" else "sub"
    # A client waits for the answers. A neighbour asks for none, since they would have to wait for
    # those of other neighbours; it is enough that the broker has received everything, which `send`
    # waits for.
    asks = task.protocol == "client"
    name = task.name if asks else f"client-of-{task.name}"
    line.send([pack(Join(int(asks), name, "" if asks else task.name))])
    life = _await_answers(line, 1) if asks else 0
    line.send(
        [
            pack(Operation(number if asks else 0, kind, name, number, parse_filter(text)))
            for number, text in enumerate(task.filters, 2)
        ]
    )
    if asks:
        _await_answers(line, len(task.filters))
    return line, name, life


def _await_answers(line: LinkConnection, count: int) -> int:
    """Wait for `count` answers; returns the number in the last one."""
    number = 0
    while count:
        for message in line.receive():
            if isinstance(message, Done):
                if message.code:
                    raise EndpointError(message.reason)
                count -= 1
                number = message.number
    return number


# --- the two sides ---


class PublishingEndpoint:
    """Sends numbered publications."""

    def __init__(self, task: EndpointTask) -> None:
        self.line, self._name, self._life = connect(task)
        self._sent = 0

    def run(self, round: Round) -> RoundResult:
        if round.per_s:
            return self._paced(round)
        frames = [self._frame(0) for _ in range(round.count)]
        started_ns = time.monotonic_ns()
        self.line.send(frames)
        return RoundResult(started_ns)

    def _paced(self, round: Round) -> RoundResult:
        started_ns = time.monotonic_ns()
        for number in range(round.count):
            due_ns = started_ns + int(number * 1e9 / round.per_s)
            while (early_ns := due_ns - time.monotonic_ns()) > 0:
                if select.select([self.line], [], [], early_ns / 1e9)[0]:
                    self.line.attend()
            self.line.send_nowait(self._frame(time.monotonic_ns()))
        return RoundResult(started_ns)

    def _frame(self, at_ns: int) -> bytes:
        self._sent = number = self._sent + 1
        point: dict[str, Value] = {
            "class": "order",
            "instance": f"x{number % 100}",
            "price": number % 1000 + 0.5,
        }
        payload = _TIME.pack(at_ns) + _FILLER
        return pack(Pub(self._name, number, point, payload, life=self._life))


class SubscribingEndpoint:
    """Receives publications, and sees that each comes once and in order."""

    def __init__(self, task: EndpointTask) -> None:
        self.line, _, _ = connect(task)
        self._received = 0

    def run(self, round: Round) -> RoundResult:
        last = self._received + round.count
        latencies_ns: list[int] = []
        while self._received < last:
            messages = self.line.receive()
            now_ns = time.monotonic_ns()
            for message in messages:
                if type(message) is not Pub:
                    continue  # Other messages of a broker to its neighbours do not matter here.
                self._received += 1
                if message.seq != self._received:
                    raise EndpointError(
                        f"received publication {message.seq}, expected {self._received}"
                    )
                if round.per_s:
                    latencies_ns.append(now_ns - _TIME.unpack_from(message.payload)[0])
        return RoundResult(now_ns, latencies_ns)


def main() -> None:
    """Run an endpoint until standard input is closed."""
    commands, replies = sys.stdin.buffer, sys.stdout.buffer
    task = msgspec.json.decode(commands.readline(), type=EndpointTask)
    endpoint = PublishingEndpoint(task) if task.side == "publisher" else SubscribingEndpoint(task)
    replies.write(b"ready\n")
    replies.flush()
    while True:
        # Commands come one at a time, so none is left in the buffer of `commands`.
        readable, _, _ = select.select([commands, endpoint.line], [], [], TICK_S)
        if commands in readable:
            command = commands.readline()
            if not command:
                return
            result = endpoint.run(msgspec.json.decode(command, type=Round))
            replies.write(msgspec.json.encode(result) + b"\n")
            replies.flush()
        else:
            endpoint.line.attend()


if __name__ == "__main__":
    main()
