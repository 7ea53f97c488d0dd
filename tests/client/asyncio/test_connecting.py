"""The first connection: where the secret comes from, and what is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

import padres_tx
from overlay.errors import BrokerFull, NameAway, NameTaken, ProtocolError, Unauthorized
from overlay.messages import Done, Goodbye, Hello
from overlay.wire.frames import pack
from padres_tx.client.asyncio import channel
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.environment import SECRET_ENV
from padres_tx.errors import Unreachable
from tests.client.asyncio.two_clients import ManualChannel, asynchronous, on_channel
from tests.overlay.broker_processes import Process, free_ports, one, running

#: Only what hangs runs into it.
PATIENCE_S = 20.0

#: What stands in front of a broker, for one connection: it may pass it on, or not.
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Front:
    """Answers each connection by the next of some behaviours; later ones reach the broker."""

    def __init__(self, broker_port: int, *behaviours: Behaviour) -> None:
        self._broker_port = broker_port
        self._behaviours = list(behaviours)
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._behaviours:
            await self._behaviours.pop(0)(reader, writer)
            return
        there, here = await asyncio.open_connection("127.0.0.1", self._broker_port)
        for source, sink in ((reader, here), (there, writer)):
            task = asyncio.create_task(_pass_on(source, sink))
            self._tasks.add(task)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    sink.close()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)  # What is left unread would be answered by a reset.
    writer.close()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def says(*messages: Goodbye | Hello) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(pack(message) for message in messages)
        writer.close()

    return behave


@asynccontextmanager
async def in_front(process: Process, *behaviours: Behaviour) -> AsyncIterator[tuple[Front, str]]:
    front = Front(process.port, *behaviours)
    async with await asyncio.start_server(front.answer, "127.0.0.1", 0) as server:
        yield front, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await front.end()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> object:
    with running(tmp_path_factory.mktemp("broker"), "B1", one()) as process:
        yield process


# --- tried again ---


def test_a_broker_that_starts_a_little_later_is_reached(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    async def test() -> None:
        # Reach it in vain at least once before it starts.
        connecting = asyncio.create_task(_connected(f"127.0.0.1:{port}"))
        done, _ = await asyncio.wait([connecting], timeout=0.2)
        assert not done
        with ExitStack() as stack:
            starting = running(tmp_path, "B1", one(port))
            await asyncio.to_thread(stack.enter_context, starting)
            assert await connecting

    async def _connected(at: str) -> bool:
        async with padres_tx.connect(at, connect_timeout_s=PATIENCE_S):
            return True

    asyncio.run(_limited(test()))


@pytest.mark.parametrize("who", ["client", "operator", "blocking"])
def test_what_hangs_up_resets_or_is_being_restarted_is_tried_again(
    who: str, broker: Process
) -> None:
    passing = [
        Goodbye("closing", "B1 is shutting down"),
        Goodbye("name-away", "A1 lost its connection a moment ago"),
        Goodbye("overloaded", "too many connect at once"),
    ]
    behaviours = (hangs_up, resets, *map(says, passing))

    async def test() -> None:
        async with in_front(broker, *behaviours) as (front, at):
            if who == "client":
                async with padres_tx.connect(at) as a1:
                    await a1.advertise({"class": "p1"})
            elif who == "operator":
                async with padres_tx.operator(at) as somebody:
                    assert (await somebody.inspect("status"))["broker"] == "B1"
            else:
                a1 = await asyncio.to_thread(padres_tx.sync.connect, at)
                await asyncio.to_thread(a1.close)
            assert front.connections == 6

    asyncio.run(_limited(test()))


def test_a_hello_that_does_not_come_is_waited_for_only_so_long(
    broker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DIAL_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with (
            in_front(broker, says_nothing) as (front, at),
            padres_tx.connect(at, connect_timeout_s=PATIENCE_S) as a1,
        ):
            await a1.advertise({"class": "p1"})
            assert front.connections == 2

    asyncio.run(_limited(test()))


def test_the_error_says_how_long_it_was_tried_and_what_came_last(broker: Process) -> None:
    async def test() -> None:
        async with in_front(broker, *[hangs_up] * 100) as (front, at):
            with pytest.raises(
                Unreachable, match=r"within 0\.3 s: connection closed before the hello"
            ):
                await padres_tx.connect(at, connect_timeout_s=0.3)
            assert front.connections > 1

    asyncio.run(_limited(test()))


def test_without_retry_there_is_one_attempt(broker: Process) -> None:
    async def test() -> None:
        async with in_front(broker, hangs_up) as (front, at):
            with pytest.raises(Unreachable, match="closed before the hello"):
                await padres_tx.connect(at, retry=False)
            assert front.connections == 1

    asyncio.run(_limited(test()))


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Goodbye("name-taken", "a client named 'A1' is connected already"), NameTaken),
        (Goodbye("broker-full", "B1 has 9 clients"), BrokerFull),
        (Goodbye("unauthorized", "the secret is not the one"), Unauthorized),
        (Goodbye("protocol", "not like that"), ProtocolError),
        (Hello(99, "broker", "B1", "life"), ProtocolError),
    ],
)
def test_a_final_refusal_is_not_tried_again(
    refusal: Goodbye | Hello, error: type[Exception], broker: Process
) -> None:
    async def test() -> None:
        async with in_front(broker, *[says(refusal)] * 3) as (front, at):
            with pytest.raises(error):
                await padres_tx.connect(at)
            assert front.connections == 1

    asyncio.run(_limited(test()))


@asynchronous
async def test_a_join_that_is_refused_for_a_moment_is_tried_again() -> None:
    channel = Refusing("name-away", 2)
    async with Connecting(on_channel(channel), 5):
        assert len(channel.sent) == 3
    channel = Refusing("name-away", 1000)
    with pytest.raises(NameAway, match=r"a moment ago; tried for 0\.1 s"):
        await Connecting(on_channel(channel), 0.1)
    assert 1 < len(channel.sent) < 10 and channel.closed


@asynchronous
async def test_a_join_that_is_refused_for_good_is_not() -> None:
    channel = Refusing("name-taken", 1000)
    with pytest.raises(NameTaken):
        await Connecting(on_channel(channel), 5)
    assert len(channel.sent) == 1


class Refusing(ManualChannel):
    """Refuses the join so many times, and lets the client in then."""

    def __init__(self, code: str, times: int) -> None:
        super().__init__()
        self._code = code
        self._times = times

    def send(self, message: object) -> None:
        self.sent.append(message)
        refused = len(self.sent) <= self._times
        reason = "A1 lost its connection a moment ago"
        done = Done(len(self.sent), self._code, reason) if refused else Done(len(self.sent))
        self.end.receive(done)


# --- the secret ---


def test_the_secret_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(at: str) -> None:
        monkeypatch.delenv(SECRET_ENV, raising=False)
        with pytest.raises(Unauthorized):
            await padres_tx.connect(at)
        monkeypatch.setenv(SECRET_ENV, "s3cret")
        async with padres_tx.connect(at), padres_tx.operator(at) as somebody:
            await somebody.inspect("status")
        for wrong in ("guess", ""):
            with pytest.raises(Unauthorized):
                await padres_tx.connect(at, secret=wrong)
        await asyncio.to_thread(lambda: padres_tx.sync.connect(at).close())
        monkeypatch.setenv(SECRET_ENV, "guess")
        async with padres_tx.connect(at, secret="s3cret"):
            pass

    with running(tmp_path, "B1", one(), settings={"secret": "s3cret"}) as process:
        asyncio.run(_limited(test(f"127.0.0.1:{process.port}")))


async def _limited(test: Awaitable[None]) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        await test
