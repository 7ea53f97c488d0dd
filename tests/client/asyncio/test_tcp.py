"""The clients against real broker processes, and against peers that are none."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import padres_tx
from overlay.errors import (
    BrokerFull,
    NameTaken,
    OperationError,
    Overloaded,
    ProtocolError,
    SlowReader,
    Unauthorized,
)
from overlay.messages import Goodbye, Hello, Ping
from overlay.wire.frames import pack
from padres_tx.client.asyncio.channel import Address, TcpChannel, parse_address
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.session import Session
from padres_tx.errors import BadAddress, CallTimeout, ConnectionLost, Unreachable
from tests.overlay.broker_processes import Process, free_ports, one, running

P1 = {"class": "p1"}

#: Only what hangs runs into it.
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One broker for all tests that do it no harm."""
    with running(tmp_path_factory.mktemp("broker"), "B1", one()) as process:
        yield process


def at(process: Process) -> str:
    return f"127.0.0.1:{process.port}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop; what hangs fails."""

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(limited())


class BreakableProxy:
    """Stands between clients and a broker, and cuts or silences their connections."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.silent = False
        #: What the next connections get for an answer, one each.
        self.refusals: list[Goodbye] = []
        self.down = False

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.down:
            writer.transport.abort()
            return
        if self.refusals:
            await reader.read(1000)
            writer.write(pack(self.refusals.pop(0)))
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._pairs.append((writer, there_writer))
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            # Small reads, so that frames are cut in the middle.
            while data := await source.read(1000):
                if not self.silent:
                    sink.write(data)
                    await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()

    def cut(self) -> None:
        """Break all connections, losing what is under way."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for writer in pair:
                writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(process: Process) -> AsyncIterator[tuple[BreakableProxy, str]]:
    proxy = BreakableProxy(process.port)
    try:
        yield proxy, await proxy.listen()
    finally:
        await proxy.close()


# --- the ordinary case ---


def test_subscribe_publish_receive(broker: Process) -> None:
    async def test() -> None:
        async with (
            padres_tx.connect(at(broker), name="A1") as a1,
            padres_tx.connect(at(broker)) as e,
        ):
            await a1.subscribe("[class,eq,'p1']")
            await e.advertise(P1)
            for x in range(5000):
                await e.publish({"class": "p1", "x": x})
            got = [(await a1.next())["x"] for _ in range(5000)]
            assert got == list(range(5000))

    run(test)


def test_await_and_close_instead_of_a_block(broker: Process) -> None:
    async def test() -> None:
        a1 = await padres_tx.connect(at(broker), name="A1")
        await a1.close()
        assert a1.closed

    run(test)


def test_a_name_is_free_again_when_close_returns(broker: Process) -> None:
    async def test() -> None:
        for _ in range(30):
            async with padres_tx.connect(at(broker), name="again"):
                pass

    run(test)


def test_closing_makes_sure_that_the_broker_has_everything(tmp_path: Path) -> None:
    """Also when the way to the broker is long."""

    async def test(process: Process) -> None:
        async with padres_tx.connect(at(process), name="A1") as a1:
            await a1.subscribe(P1)
            async with padres_tx.connect(at(process), name="E") as e:
                await e.advertise(P1)
                for x in range(6000):
                    await e.publish({"class": "p1", "x": x}, bytes(100))
            got = [n["x"] async for n in a1.notifications(timeout_s=0)]
            got += [(await a1.next())["x"] for _ in range(6000 - len(got))]
            assert got == list(range(6000))

    with running(tmp_path, "B1", one(client_delay_ms=20)) as process:
        run(lambda: test(process))


def test_large_payloads_pass(broker: Process) -> None:
    async def test() -> None:
        async with padres_tx.connect(at(broker)) as e:
            await e.advertise(P1)
            await e.subscribe(P1)
            payload = random.Random(1).randbytes(1_000_000)
            for _ in range(10):
                await e.publish(P1, payload)
            for _ in range(10):
                assert (await e.next()).payload == payload

    run(test)


def test_the_blocking_client(broker: Process) -> None:
    with padres_tx.sync.connect(at(broker), name="A1") as a1:
        a1.advertise(P1)
        a1.subscribe(P1)
        for x in range(500):
            a1.publish({"class": "p1", "x": x})
        assert [a1.next(PATIENCE_S)["x"] for _ in range(500)] == list(range(500))


def test_what_a_program_published_arrives_even_if_it_forgets_to_close(broker: Process) -> None:
    program = f"""
import padres_tx
e = padres_tx.sync.connect({at(broker)!r})
e.advertise({{"class": "forgotten"}})
for x in range(1000):
    e.publish({{"class": "forgotten", "x": x}})
"""
    with padres_tx.sync.connect(at(broker), name="A1") as a1:
        a1.subscribe({"class": "forgotten"})
        subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
        assert [a1.next(PATIENCE_S)["x"] for _ in range(1000)] == list(range(1000))


def test_an_operator_sees_tables_and_status(broker: Process) -> None:
    async def test() -> None:
        async with (
            padres_tx.connect(at(broker), name="A1"),
            padres_tx.operator(at(broker)) as operator,
        ):
            tables = await operator.inspect("tables")
            assert [client["client"] for client in tables["clients"]] == ["A1"]
            assert (await operator.inspect("status"))["pid"] == broker.popen.pid
            with pytest.raises(OperationError, match="tea"):
                await operator.inspect("tea")

    run(test)


# --- refused ---


def test_a_name_that_is_taken(broker: Process) -> None:
    async def test() -> None:
        async with padres_tx.connect(at(broker), name="A1"):
            with pytest.raises(NameTaken, match="'A1' is connected already"):
                await padres_tx.connect(at(broker), name="A1")

    run(test)


def test_the_wrong_secret(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        with pytest.raises(Unauthorized):
            await padres_tx.connect(at(process), secret="guess")
        with pytest.raises(Unauthorized):
            await padres_tx.operator(at(process))
        async with padres_tx.connect(at(process), secret="s3cret"):
            pass

    with running(tmp_path, "B1", one(), settings={"secret": "s3cret"}) as process:
        run(lambda: test(process))


def test_nobody_there() -> None:
    async def test() -> None:
        (port,) = free_ports(1)
        at = f"127.0.0.1:{port}"
        with pytest.raises(
            Unreachable, match=f"no broker at {at} within 0.2 s: Connection refused"
        ):
            await padres_tx.connect(at, connect_timeout_s=0.2)
        with pytest.raises(Unreachable, match=f"no broker at {at}: Connection refused"):
            await padres_tx.connect(at, retry=False)
        with pytest.raises(ConnectionError):
            await padres_tx.connect("no-such-host.invalid:7001", connect_timeout_s=0.2)

    run(test)


@pytest.mark.parametrize(
    ("says", "error", "reason"),
    [
        (b"", Unreachable, "closed before the hello"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, "frame"),
        (pack(Ping()), ProtocolError, "got Ping"),
        (pack(Hello(99, "broker", "B1", "life")), ProtocolError, "protocol version 99"),
        (pack(Goodbye("closing", "B1 is shutting down")), Unreachable, "shutting down"),
    ],
)
def test_somebody_else_there(says: bytes, error: type[Exception], reason: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(error, match=reason):
                await padres_tx.connect(f"127.0.0.1:{port}", connect_timeout_s=1)

    run(test)


def test_somebody_there_who_says_nothing() -> None:
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unreachable, match=r"within 0\.1 s: no hello"):
                await padres_tx.connect(f"127.0.0.1:{port}", name="A1", connect_timeout_s=0.1)
            await left.wait()

    run(test)


@pytest.mark.parametrize(
    "text",
    ["", "7001", "localhost", "localhost:", ":7001", "h:0", "h:65536", "h:x", "::1:7001", None],
)
def test_what_is_no_address_says_so(text: Any) -> None:
    with pytest.raises(BadAddress):
        padres_tx.connect(text)


def test_addresses() -> None:
    assert parse_address("localhost:7001") == ("localhost", 7001)
    assert parse_address("[::1]:7001") == ("::1", 7001)
    assert str(Address("::1", 7001)) == "[::1]:7001"


# --- the connection breaks ---


def test_a_connection_that_is_cut_is_resumed_and_nothing_is_lost(broker: Process) -> None:
    """Both clients' connections are cut again and again under load."""
    count = 20_000
    chance = random.Random(7)

    async def test() -> None:
        async with (
            proxy_to(broker) as (proxy, address),
            padres_tx.connect(address, name="A1") as a1,
            padres_tx.connect(address, name="E") as e,
        ):
            await a1.subscribe(P1)
            await e.advertise(P1)

            async def publish() -> None:
                for x in range(count):
                    await e.publish({"class": "p1", "x": x}, bytes(100))

            publishing = asyncio.create_task(publish())
            cut_at = sorted(chance.sample(range(count - 1000), 8))
            for expected in range(count):
                if cut_at and expected == cut_at[0]:
                    del cut_at[0]
                    proxy.cut()
                assert (await a1.next())["x"] == expected
            await publishing
            assert proxy.connections > 2
            with pytest.raises(CallTimeout):
                await a1.next(timeout_s=0)
            await a1.unsubscribe(P1)

    run(test)


def test_a_broker_to_which_too_many_connect_at_once_is_tried_again(broker: Process) -> None:
    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            proxy.refusals = [Goodbye("overloaded", "too many"), Goodbye("overloaded", "too many")]
            async with padres_tx.connect(address, name="A1") as a1:
                assert proxy.connections == 3
                # Those who have lost their connections all come back at once.
                proxy.refusals = [Goodbye("overloaded", "too many"), Goodbye("broker-full", "full")]
                proxy.cut()
                await a1.subscribe("[class,eq,'p1']")
                assert proxy.connections == 6

    run(test)


def test_a_broker_that_is_full_is_an_error_for_a_newcomer(broker: Process) -> None:
    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            proxy.refusals = [Goodbye("broker-full", "B1 has 9 clients connected")]
            with pytest.raises(BrokerFull, match="9 clients"):
                await padres_tx.connect(address)
            assert proxy.connections == 1
            # One that is overloaded for longer than a client tries.
            proxy.refusals = [Goodbye("overloaded", "too many")]
            with pytest.raises(Overloaded, match="too many"):
                await padres_tx.connect(address, retry=False)

    run(test)


def test_closing_waits_for_the_connection_to_come_back(broker: Process) -> None:
    async def test() -> None:
        async with (
            proxy_to(broker) as (proxy, address),
            padres_tx.connect(at(broker), name="A1") as a1,
        ):
            await a1.subscribe(P1)
            async with padres_tx.connect(address, name="E") as e:
                await e.advertise(P1)
                for x in range(1000):
                    await e.publish({"class": "p1", "x": x})
                proxy.cut()
                await asyncio.sleep(0)
            assert [(await a1.next())["x"] for _ in range(1000)] == list(range(1000))

    run(test)


def test_a_connection_that_falls_silent_is_given_up_and_resumed(broker: Process) -> None:
    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            session = Session("A1")
            channel = TcpChannel(
                parse_address(address), "client", "A1", heartbeat_s=0.5, idle_s=0.5
            )
            async with Connecting(Client(session, channel), PATIENCE_S) as a1:
                await a1.subscribe(P1)
                proxy.silent = True
                subscribing = asyncio.create_task(a1.subscribe({"class": "p2"}))
                while proxy.connections == 1:
                    await asyncio.sleep(0.01)
                proxy.silent = False
                proxy.cut()
                await subscribing

    run(test)


def test_a_broker_that_is_killed_is_an_error_everywhere_and_never_a_hang(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        a1 = await padres_tx.connect(at(process), name="A1", reconnect_s=0.3)
        e = await padres_tx.connect(at(process), name="E", reconnect_s=0)
        await e.advertise(P1)
        await a1.subscribe(P1)
        iterating = asyncio.create_task(a1.next())
        waiting = asyncio.create_task(a1.wait_closed())
        await e.publish(P1)
        await iterating
        iterating = asyncio.create_task(a1.next())
        await asyncio.sleep(0)
        process.popen.kill()
        subscribing = asyncio.create_task(a1.subscribe({"class": "p2"}))
        for task in (iterating, waiting, subscribing):
            with pytest.raises(ConnectionLost, match=r"has been away for 0\.3 s"):
                await task
        with pytest.raises(ConnectionLost):
            await a1.publish(P1)
        with pytest.raises(ConnectionLost, match="broke"):
            await e.wait_closed()
        with pytest.raises(ConnectionLost):
            async for _ in e:
                pass
        # A subscription was under way that the broker may not have got.
        with pytest.raises(ConnectionLost, match="messages may be lost"):
            await a1.close()
        # The publication has arrived, but whether its acknowledgement has, chance decides.
        with contextlib.suppress(ConnectionLost):
            await e.close()

    with running(tmp_path, "B1", one()) as process:
        run(lambda: test(process))


def test_a_call_that_times_out_while_its_broker_is_away_says_so(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        a1 = await padres_tx.connect(at(process), name="A1")
        process.popen.kill()
        process.popen.wait()
        with pytest.raises(CallTimeout, match=rf"the broker at {at(process)} has been away for"):
            await a1.subscribe(P1, timeout_s=0.5)
        assert not a1.closed
        a1._requests.channel.abort(ConnectionLost("given up"))
        with pytest.raises(ConnectionLost):
            await a1.close()

    with running(tmp_path, "B1", one()) as process:
        run(lambda: test(process))


def test_a_broker_that_goes_away_while_a_blocking_client_waits(tmp_path: Path) -> None:
    with (
        running(tmp_path, "B1", one()) as process,
        pytest.raises(ConnectionLost),
        padres_tx.sync.connect(at(process), reconnect_s=0.3) as a1,
    ):
        process.popen.kill()
        for _ in a1:
            pass


def test_a_broker_that_is_shut_down_says_so(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        async with padres_tx.connect(at(process), name="A1", reconnect_s=60) as a1:
            process.popen.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionLost, match="B1 is shutting down"):
                await a1.next()

    with running(tmp_path, "B1", one()) as process:
        run(lambda: test(process))


def test_a_broker_that_was_restarted_has_forgotten_the_client(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    async def test() -> None:
        with running(tmp_path, "B1", one(port)) as process:
            a1 = await padres_tx.connect(at(process), name="A1", reconnect_s=PATIENCE_S)
            process.popen.kill()
        with running(tmp_path, "B1", one(port)) as process:
            with pytest.raises(ConnectionLost, match="has forgotten this client"):
                await a1.next()
            await a1.close()
            async with padres_tx.connect(at(process), name="A1"):
                pass

    run(test)


def test_a_client_that_was_away_too_long_has_been_forgotten(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        async with proxy_to(process) as (proxy, address):
            a1 = await padres_tx.connect(address, name="A1", reconnect_s=PATIENCE_S)
            proxy.cut()
            async with padres_tx.connect(at(process), name="E") as e:
                await e.advertise(P1)
            with pytest.raises(ConnectionLost, match="has forgotten this client"):
                await a1.next()

    with running(tmp_path, "B1", one(), settings={"client_grace_s": 0.0}) as process:
        run(lambda: test(process))


def test_a_client_that_does_not_read_is_cut_off_after_what_it_had_got(tmp_path: Path) -> None:
    async def test(process: Process) -> None:
        session = Session("A1")
        channel = TcpChannel(parse_address(at(process)), "client", "A1")
        a1 = await Connecting(Client(session, channel, queue_messages=10), PATIENCE_S)
        await a1.subscribe(P1)
        async with padres_tx.connect(at(process), name="E") as e:
            await e.advertise(P1)
            x = 0
            while not a1.closed:
                await e.publish({"class": "p1", "x": x})
                x += 1
        with pytest.raises(SlowReader):
            await a1.subscribe({"class": "p2"})
        got: list[Any] = []
        with pytest.raises(SlowReader, match="does not read"):
            async for n in a1:
                got.append(n["x"])
        assert len(got) > 1000
        assert got == list(range(len(got)))
        await a1.close()

    with running(tmp_path, "B1", one(), settings={"client_outbox_messages": 500}) as process:
        run(lambda: test(process))


def test_connecting_can_be_cancelled(broker: Process) -> None:
    async def test() -> None:
        for turns in range(40):
            connecting = asyncio.ensure_future(_connect(at(broker)))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            # The broker may not have noticed the one before.
            with contextlib.suppress(asyncio.CancelledError, NameTaken):
                await (await connecting).close()
        # Nobody is left behind under the name.
        while True:
            try:
                async with padres_tx.connect(at(broker), name="cancelled"):
                    break
            except NameTaken:
                await asyncio.sleep(0.01)

    async def _connect(address: str) -> Client:
        return await padres_tx.connect(address, name="cancelled")

    run(test)
