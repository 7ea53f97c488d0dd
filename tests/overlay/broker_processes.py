"""Brokers as processes, and a client that is no more than a socket and a link, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from overlay.errors import OverlayError, from_code
from overlay.filters import Filter
from overlay.messages import (
    AnyMessage,
    Done,
    Goodbye,
    Hello,
    Inspect,
    Join,
    Message,
    Operation,
    Pub,
    Report,
    Role,
)
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from overlay.wire.link import Link, Opening

#: Only what hangs runs into it.
PATIENCE_S = 20.0

ROOT = Path(__file__).parents[2]


class Process:
    """One broker process, started by `tests.overlay.broker_child`."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.popen = popen
        self.log = log
        self.port = port

    def events(self, event: str) -> list[dict[str, Any]]:
        """What the broker has logged under this name."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def end(self) -> int:
        """Ask it to stop; its exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(PATIENCE_S)


class Lines:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.written = b""

    def append(self, lines: bytes) -> None:
        self.written += lines

    def lines(self) -> list[str]:
        return self.written.decode().splitlines()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


@contextlib.contextmanager
def running(
    log_dir: Path, name: str, topology: dict[str, Any], **options: Any
) -> Iterator[Process]:
    """A broker process that listens, and is killed at the end.

    Options: `settings` (a dict), `module` (which is run), `files` (how many it may have open), and
    whatever `run_broker` takes.
    """
    with running_all(log_dir, {name: {"topology": topology, **options}}) as (process,):
        yield process


@contextlib.contextmanager
def running_all(log_dir: Path, tasks: dict[str, dict[str, Any]]) -> Iterator[list[Process]]:
    """Several of them, which take their time to start together; options by name."""
    starting = [start(log_dir, name, options) for name, options in tasks.items()]
    try:
        yield [started(*each) for each in starting]
    finally:
        for popen, _, _ in starting:
            if popen.poll() is None:
                popen.kill()
                popen.wait()


def start(
    log_dir: Path, name: str, options: dict[str, Any]
) -> tuple[subprocess.Popen[bytes], Path, int]:
    """The process, its log, and the pipe on which it says its port."""
    reading, writing = os.pipe()
    log = log_dir / f"{name}-{secrets.token_hex(4)}.log"
    task = {"name": name, "log_file": str(log), **options}
    module = task.pop("module", "tests.overlay.broker_child")
    popen = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(task), str(writing)],
        cwd=ROOT,
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    return popen, log, reading


def started(popen: subprocess.Popen[bytes], log: Path, pipe: int) -> Process:
    with os.fdopen(pipe) as ready:
        port = ready.readline()
    assert port, f"a broker did not start:\n{log.read_text() if log.exists() else ''}"
    return Process(popen, log, int(port))


def one(port: int = 0, **more: Any) -> dict[str, Any]:
    """A topology of a single broker."""
    return {"name": "t", "brokers": [{"name": "B1", "port": port}], **more}


class Refused(Exception):
    """The broker has said goodbye."""

    def __init__(self, goodbye: Goodbye) -> None:
        super().__init__(goodbye.code, goodbye.reason)
        self.error: OverlayError = from_code(goodbye.code, goodbye.reason)
        self.code = goodbye.code
        self.reason = goodbye.reason


class RawClient:
    """The client's end of a link over a blocking socket."""

    def __init__(
        self,
        name: str,
        *,
        role: Role = "client",
        secret: str = "",
        incarnation: str = "",
    ) -> None:
        self.name = name
        self.role: Role = role
        self.secret = secret
        self.link = Link(incarnation or secrets.token_hex(4))
        self.socket: socket.socket | None = None
        self.seq = 0
        #: Which life of the client this is; known when it has joined.
        self.life = 0

    def dial(self, port: int) -> socket.socket:
        """Connect, and say nothing."""
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.splitter = Splitter()
        self.frames: list[bytes] = []
        return self.socket

    def connect(self, port: int, **changes: Any) -> Opening:
        """Connect and exchange hellos; `changes` falsify ours."""
        connection = self.dial(port)
        hello = self.link.hello(self.role, self.name, self.secret)
        if changes:
            hello = msgspec.structs.replace(hello, **changes)
        connection.sendall(pack(hello))
        answer = self.next()
        if isinstance(answer, Goodbye):
            raise Refused(answer)
        assert isinstance(answer, Hello)
        opening = self.link.open(answer, 0.0)
        self.flush()
        return opening

    def cut(self) -> None:
        """Lose the connection."""
        assert self.socket is not None
        self.socket.close()
        self.link.cut()

    def next(self) -> Any:
        """What the next frame says. Raises ConnectionError at the end of the stream."""
        assert self.socket is not None
        while not self.frames:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("closed by the broker")
            self.frames = self.splitter.feed(data)
        self.frame = self.frames.pop(0)
        return decode(self.frame[PREFIX_SIZE:])

    def flush(self, *, idle: bool = False) -> None:
        assert self.socket is not None
        self.socket.sendall(b"".join(self.link.take(0.0, idle=idle)))

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.link.send(pack(message))
        self.flush()

    def receive(self) -> AnyMessage:
        """The next message. Raises Refused when the broker says goodbye."""
        while not self.link.inbox:
            self._advance()
        return self.link.hand_over()

    def _advance(self) -> None:
        goodbye = self.link.receive(self.next(), self.frame)
        if goodbye is not None:
            raise Refused(goodbye)
        self.flush()

    def settle(self) -> None:
        """Wait until the broker's core has got all that was sent."""
        while self.link.pending:
            self._advance()

    def goodbye(self) -> Refused:
        """Read on until the broker says goodbye."""
        while True:
            try:
                self.receive()
            except Refused as refused:
                return refused

    def join(self, port: int) -> RawClient:
        """Connect and join."""
        self.connect(port)
        self.send(Join(1, self.name, ""))
        done = self.receive()
        assert isinstance(done, Done) and (done.req, done.code) == (1, "")
        self.life = done.number
        return self

    def operate(self, kind: Any, filter: Filter) -> None:
        """Subscribe, advertise and the like, and wait until it is done."""
        self.seq += 1
        self.send(Operation(1000 + self.seq, kind, self.name, self.seq, filter))
        done = self.receive()
        assert isinstance(done, Done) and (done.req, done.code) == (1000 + self.seq, "")

    def publish(self, *numbers: int, **point: Any) -> None:
        """Publish one event a number."""
        self.send(*[Pub(self.name, n, {**point, "n": n}, life=self.life) for n in numbers])

    def numbers(self, count: int) -> list[int]:
        """The numbers of the next so many publications."""
        pubs = [self.receive() for _ in range(count)]
        assert all(isinstance(pub, Pub) for pub in pubs), pubs
        return [pub.seq for pub in pubs if isinstance(pub, Pub)]


def inspect(port: int, what: str, secret: str = "") -> Any:
    """What an operator sees."""
    operator = RawClient("op", role="operator", secret=secret)
    operator.connect(port)
    operator.send(Inspect(1, what))
    report = operator.receive()
    operator.cut()
    assert isinstance(report, Report), report
    return report.body
