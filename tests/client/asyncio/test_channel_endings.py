"""A client's connection that ends while it is dialled again: nothing comes back, nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

import padres_tx
from overlay.errors import NameTaken, ProtocolError, Unauthorized
from overlay.messages import PROTOCOL_VERSION, Done, Goodbye, Hello, Leave, Pub
from overlay.wire.frames import pack
from padres_tx.client.asyncio import channel
from padres_tx.client.asyncio.client import Client
from padres_tx.client.asyncio.connecting import Connecting
from padres_tx.client.session import Session
from padres_tx.errors import ConnectionLost
from tests.client.asyncio.test_tcp import PATIENCE_S, BreakableProxy, at, proxy_to
from tests.overlay.broker_processes import Process, one, running

P1 = {"class": "p1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = {"client_grace_s": 0.5}
    directory = tmp_path_factory.mktemp("broker")
    with running(directory, "B1", one(), settings=settings) as process:
        yield process


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test; what hangs fails, and so does a task that it leaves behind."""

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()
            while len(asyncio.all_tasks()) > 1:  # What was cancelled ends in the next turns.
                await asyncio.sleep(0)

    asyncio.run(limited())


@asynccontextmanager
async def redialling(broker: Process, name: str) -> AsyncIterator[tuple[BreakableProxy, Client]]:
    """A client whose connection is cut, and that cannot get another one."""
    async with proxy_to(broker) as (proxy, address):
        client = await padres_tx.connect(address, name=name, reconnect_s=2 * PATIENCE_S)
        proxy.down = True
        proxy.cut()
        while proxy.connections < 3:  # It has tried twice.
            await asyncio.sleep(0.001)
        yield proxy, client


async def attempts(proxy: BreakableProxy) -> int:
    """How many connections were tried, those that are still on their way included."""
    proxy.down = True
    host, port = proxy._server.sockets[0].getsockname()
    with contextlib.suppress(ConnectionError):
        reader, _ = await asyncio.open_connection(host, port)
        await reader.read()  # It is turned away after those.
    return proxy.connections


def test_a_client_that_is_closed_while_it_dials_does_not_come_back(broker: Process) -> None:
    async def test() -> None:
        async with redialling(broker, "A1") as (proxy, a1):
            await a1.close()
            tried = await attempts(proxy)
            proxy.down = False
            # Its broker takes it for lost after a while, and lets another one have the name.
            async with padres_tx.connect(at(broker), name="A1") as another:
                await another.subscribe(P1)
                assert proxy.connections == tried

    run(test)


def test_a_client_that_fails_while_it_dials_does_not_come_back(broker: Process) -> None:
    """Closing gives up in time what the broker may not have got."""

    async def test() -> None:
        async with redialling(broker, "A2") as (proxy, a2):
            subscribing = asyncio.create_task(a2.subscribe(P1))
            await asyncio.sleep(0)
            a2._requests.channel.abort(ConnectionLost("given up"))
            with pytest.raises(ConnectionLost, match="given up"):
                await subscribing
            tried = await attempts(proxy)
            proxy.down = False
            async with padres_tx.connect(at(broker), name="A2"):
                assert proxy.connections == tried
            with pytest.raises(ConnectionLost, match="given up; 1 messages may be lost"):
                await a2.close()

    run(test)


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Goodbye("name-taken", "a client named 'A3' is connected already"), NameTaken),
        (Goodbye("unauthorized", "the secret is not the one"), Unauthorized),
        (Goodbye("protocol", "not like that"), ProtocolError),
        (Goodbye("closing", "B1 is shutting down"), ConnectionLost),
    ],
)
def test_a_final_refusal_ends_the_dialling(
    refusal: Goodbye, error: type[Exception], broker: Process
) -> None:
    async def test() -> None:
        async with redialling(broker, "A3") as (proxy, a3):
            proxy.refusals = [refusal] * 100
            proxy.down = False
            with pytest.raises(error, match=refusal.reason):
                await a3.next()
            tried = await attempts(proxy)
            with pytest.raises(error):
                await a3.subscribe(P1)
            await a3.close()
            assert proxy.connections == tried

    run(test)


def test_a_broker_that_stays_away_ends_the_dialling(broker: Process) -> None:
    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            a4 = await padres_tx.connect(address, name="A4", reconnect_s=0.2)
            proxy.down = True
            proxy.cut()
            with pytest.raises(ConnectionLost, match=r"has been away for 0\.2 s \(.+\)"):
                await a4.next()
            tried = await attempts(proxy)
            await a4.close()
            proxy.down = False
            async with padres_tx.connect(at(broker), name="A4"):
                assert proxy.connections == tried

    run(test)


def test_closing_gives_up_in_time_if_the_broker_does_not_take_everything(
    broker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CLOSE_TIMEOUT_S", 0.1)

    async def test() -> None:
        async with redialling(broker, "A5") as (proxy, a5):
            subscribing = asyncio.create_task(a5.subscribe(P1))
            await asyncio.sleep(0)
            with pytest.raises(
                ConnectionLost, match=r"did not answer within 0\.1 s; 1 messages may be lost"
            ):
                await a5.close()
            with pytest.raises(Exception, match="closed"):
                await subscribing
            tried = await attempts(proxy)
            proxy.down = False
            async with padres_tx.connect(at(broker), name="A5"):
                assert proxy.connections == tried

    run(test)


def test_closing_gives_up_in_time_if_the_broker_does_not_answer_the_goodbye(
    broker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CLOSE_TIMEOUT_S", 0.1)

    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            a6 = await padres_tx.connect(address, name="A6")
            proxy.silent = True
            await a6.close()  # All that it has sent has arrived.
            assert a6.closed and proxy.connections == 1
            while proxy._tasks:  # The client has hung up, so its broker does.
                await asyncio.sleep(0.001)

    run(test)


def test_what_was_sent_while_dialling_goes_out_at_once_when_the_connection_is_back(
    broker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for the next look at a quiet connection."""
    monkeypatch.setattr(channel, "TICK_S", 2 * PATIENCE_S)

    async def test() -> None:
        async with redialling(broker, "A7") as (proxy, a7):
            subscribing = asyncio.create_task(a7.subscribe(P1))
            await asyncio.sleep(0)
            proxy.down = False
            await subscribing
            await a7.close()

    run(test)


def test_a_connection_on_which_something_comes_is_not_given_up(
    broker: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TICK_S", 0.05)
    idle_s = 0.3

    async def test() -> None:
        async with proxy_to(broker) as (proxy, address):
            tcp = channel.TcpChannel(
                channel.parse_address(address), "client", "A8", heartbeat_s=0.1, idle_s=idle_s
            )
            async with Connecting(Client(Session("A8"), tcp), PATIENCE_S) as a8:
                until = asyncio.get_running_loop().time() + 4 * idle_s
                while asyncio.get_running_loop().time() < until:
                    await a8.subscribe(P1)
                assert proxy.connections == 1

    run(test)


def test_what_a_broker_says_after_a_mistake_is_not_listened_to() -> None:
    """Nor is it counted as waiting."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)  # The hello.
        writer.write(pack(Hello(PROTOCOL_VERSION, "broker", "B1", "life")))
        await reader.read(1000)  # The join.
        pubs = [Pub("E", n, {"class": "p1"}) for n in (1, 2)]
        writer.writelines(map(pack, (Done(1), pubs[0], Leave(0, "A9", "B1"), pubs[1])))
        await reader.read()
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            a9 = await padres_tx.connect(f"127.0.0.1:{port}", name="A9", reconnect_s=0)
            got = []
            with pytest.raises(ProtocolError, match="unexpected Leave"):
                async for notification in a9:
                    got.append(notification.seq)
            assert got == [1]
            assert a9._requests.channel.waiting == 0
            with contextlib.suppress(ProtocolError):
                await a9.close()

    run(test)
