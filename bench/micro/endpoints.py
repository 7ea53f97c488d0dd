"""The two ends of a benchmark's traffic: a publisher and a subscriber, each a process of its own.

They are lean, so that what is measured is what lies between them: blocking sockets and
`overlay.wire.link`, with neither an event loop nor a client's session. What the protocol asks for
they do: hellos, numbers, windows, acknowledgements, heartbeats. Frames are packed before the clock
starts. What arrives is cut, decoded, and looked at: each publication has to come once and in order,
or the subscriber fails.

An end speaks as a client, as a neighbour broker with one client behind it, or, to a relay, nothing
but frames. It runs as a child (`children`): the first line that it is given is its `Task`, which
it answers when it is ready; each that follows is a `Round`, which it answers with a `Result`.
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

Speaks: TypeAlias = Literal["client", "broker", "frames"]

#: Nothing takes so long but what hangs: whoever is merely slow sends something meanwhile.
STALL_S: Final = 30.0

#: How often an end with nothing to do shows that it is alive; well under HEARTBEAT_S.
TICK_S: Final = 1.0

#: As much as Twisted reads at once.
READ_BYTES: Final = 1 << 16

#: What is given to the kernel at once where no window says how much.
CHUNK_FRAMES: Final = 512

#: An event's payload: the time at which it was sent, and as much more as makes a small event.
PAYLOAD_BYTES: Final = 64
_TIME: Final = Struct("!q")
_FILLER: Final = bytes(PAYLOAD_BYTES - _TIME.size)


class Task(msgspec.Struct, frozen=True):
    """Who an end is; `filters`, in PADRES notation, are what it advertises or subscribes to."""

    side: Literal["publisher", "subscriber"]
    speaks: Speaks
    port: int
    name: str
    filters: list[str]


class Round(msgspec.Struct, frozen=True):
    """So many publications: as fast as they go through, or so many a second."""

    count: int
    per_s: float = 0.0


class Result(msgspec.Struct, frozen=True):
    """When the first publication was sent, or the last one came, by the clock that all processes of
    the machine share; and how long each one of a paced round took."""

    at_ns: int
    latencies_ns: list[int] = []


class Wrong(Exception):
    """The other side has refused something, has left, or a publication did not come as it must."""


# --- connections ---


class Frames:
    """A connection on which there are only frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), STALL_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Splitter()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, frames: list[bytes]) -> None:
        """Send all of them, and wait until they have gone."""
        for start in range(0, len(frames), CHUNK_FRAMES):
            self._socket.sendall(b"".join(frames[start : start + CHUNK_FRAMES]))

    def post(self, frame: bytes) -> None:
        """Send one, and wait for nothing."""
        self._socket.sendall(frame)

    def receive(self) -> list[AnyMessage]:
        """Wait for something to come; answers the messages in it, if any."""
        return [_message(decode(frame[PREFIX_SIZE:])) for frame in self._read()]

    def attend(self) -> None:
        """Do what is due when something has come in or time has passed; here, nothing."""

    def _read(self) -> list[bytes]:
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise Wrong("the other side has closed the connection")
        return self._splitter.feed(data)


class Linked(Frames):
    """A connection that carries a link."""

    def __init__(self, port: int, role: Literal["client", "broker"], name: str) -> None:
        super().__init__(port)
        self._link = Link(secrets.token_hex(8))
        self._socket.sendall(pack(self._link.hello(role, name)))
        while not (frames := self._read()):
            pass
        hello = decode(frames[0][PREFIX_SIZE:])
        if isinstance(hello, Goodbye):
            raise Wrong(f"refused: {hello.reason}")
        assert isinstance(hello, Hello), hello
        self._link.open(hello, time.monotonic())
        self._link.receive_all(frames[1:])

    def send(self, frames: list[bytes]) -> None:
        self._link.send_all(frames)
        self._flush()
        while self._link.pending:
            self._take_in()
        for message in self._link.inbox:
            if isinstance(message, PubRefused):
                raise Wrong(f"a publication was refused: {message.reason}")

    def post(self, frame: bytes) -> None:
        self._link.send(frame)
        self._flush()

    def receive(self) -> list[AnyMessage]:
        link = self._link
        if not link.inbox:
            self._take_in()
        messages, _ = link.hand_over_some(WINDOW_MESSAGES)
        self._flush()
        return messages

    def attend(self) -> None:
        # Not select(2): a crowd has more connections than it can look at.
        incoming = select.poll()
        incoming.register(self, select.POLLIN)
        if incoming.poll(0):
            self._take_in()
        self._flush(idle=True)

    def _take_in(self) -> None:
        goodbye = self._link.receive_all(self._read())
        if goodbye is not None:
            raise Wrong(f"the broker has closed the link: {goodbye.reason}")
        self._flush()

    def _flush(self, *, idle: bool = False) -> None:
        frames = self._link.take(time.monotonic(), idle=idle)
        if frames:
            self._socket.sendall(b"".join(frames))


def _message(value: AnyMessage | AnySignal) -> AnyMessage:
    assert isinstance(value, Message), value
    return value


def connect(task: Task) -> tuple[Frames, str, int]:
    """The connection, with everything advertised or subscribed to, the client's name and life."""
    if task.speaks == "frames":
        return Frames(task.port), task.name, 0
    line = Linked(task.port, task.speaks, task.name)
    kind: Literal["adv", "sub"] = "adv" if task.side == "publisher" else "sub"
    # A client waits for the answers. A neighbour wants none, since they would have to wait for
    # those of other neighbours; it is enough that the broker has taken everything in, which `send`
    # waits for.
    asks = task.speaks == "client"
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


def _await_answers(line: Linked, count: int) -> int:
    """Wait for so many; the number in the last of them."""
    number = 0
    while count:
        for message in line.receive():
            if isinstance(message, Done):
                if message.code:
                    raise Wrong(message.reason)
                count -= 1
                number = message.number
    return number


# --- the two sides ---


class Publisher:
    """Sends numbered publications."""

    def __init__(self, task: Task) -> None:
        self.line, self._name, self._life = connect(task)
        self._sent = 0

    def run(self, round: Round) -> Result:
        if round.per_s:
            return self._paced(round)
        frames = [self._frame(0) for _ in range(round.count)]
        started_ns = time.monotonic_ns()
        self.line.send(frames)
        return Result(started_ns)

    def _paced(self, round: Round) -> Result:
        started_ns = time.monotonic_ns()
        for number in range(round.count):
            due_ns = started_ns + int(number * 1e9 / round.per_s)
            while (early_ns := due_ns - time.monotonic_ns()) > 0:
                if select.select([self.line], [], [], early_ns / 1e9)[0]:
                    self.line.attend()
            self.line.post(self._frame(time.monotonic_ns()))
        return Result(started_ns)

    def _frame(self, at_ns: int) -> bytes:
        self._sent = number = self._sent + 1
        point: dict[str, Value] = {
            "class": "order",
            "instance": f"x{number % 100}",
            "price": number % 1000 + 0.5,
        }
        payload = _TIME.pack(at_ns) + _FILLER
        return pack(Pub(self._name, number, point, payload, life=self._life))


class Subscriber:
    """Takes publications in, and sees that each comes once, and in order."""

    def __init__(self, task: Task) -> None:
        self.line, _, _ = connect(task)
        self._received = 0

    def run(self, round: Round) -> Result:
        last = self._received + round.count
        latencies_ns: list[int] = []
        while self._received < last:
            messages = self.line.receive()
            now_ns = time.monotonic_ns()
            for message in messages:
                if type(message) is not Pub:
                    continue  # What a broker tells its neighbours is nothing to us.
                self._received += 1
                if message.seq != self._received:
                    raise Wrong(f"publication {message.seq} came, not {self._received}")
                if round.per_s:
                    latencies_ns.append(now_ns - _TIME.unpack_from(message.payload)[0])
        return Result(now_ns, latencies_ns)


def main() -> None:
    """Be an end until the leash is let go."""
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    task = msgspec.json.decode(orders.readline(), type=Task)
    end = Publisher(task) if task.side == "publisher" else Subscriber(task)
    answers.write(b"ready\n")
    answers.flush()
    while True:
        # One order is given at a time, so nothing hides in the buffer of `orders`.
        readable, _, _ = select.select([orders, end.line], [], [], TICK_S)
        if orders in readable:
            order = orders.readline()
            if not order:
                return
            result = end.run(msgspec.json.decode(order, type=Round))
            answers.write(msgspec.json.encode(result) + b"\n")
            answers.flush()
        else:
            end.line.attend()


if __name__ == "__main__":
    main()
