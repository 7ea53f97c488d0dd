"""The asyncio client on uvloop, and in a web server on it: all that differs from asyncio's loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

import padres_tx
from overlay.errors import OverlayError
from padres_tx.client.asyncio.channel import TcpChannel
from padres_tx.client.session import Notification
from padres_tx.errors import CallTimeout, ConnectionLost, TransactionAborted, Unreachable
from tests.client.asyncio.test_tcp import proxy_to
from tests.overlay.broker_processes import ROOT, Process, free_ports, one, running

P1 = {"class": "p1"}

#: Only what hangs runs into it.
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running(tmp_path_factory.mktemp("broker"), "B1", one()) as process:
        yield process


def at(process: Process) -> str:
    return f"127.0.0.1:{process.port}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in uvloop; what hangs fails, and so does what only the loop hears of."""
    complaints: list[dict[str, object]] = []

    async def limited() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, uvloop.Loop)
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(PATIENCE_S):
            await test()

    uvloop.run(limited())
    assert complaints == []


def test_subscribe_with_a_callback_and_iterate(broker: Process) -> None:
    async def test() -> None:
        async with (
            padres_tx.connect(at(broker), name="A1") as a1,
            padres_tx.connect(at(broker), name="E") as e,
        ):
            seen: list[object] = []
            done = asyncio.Event()

            async def take(n: Notification) -> None:
                await asyncio.sleep(0)
                seen.append(n["x"])
                if n["x"] == 999:
                    done.set()

            await a1.subscribe({"class": "p2"})
            await a1.subscribe(P1, take)
            await e.advertise(P1)
            await e.advertise({"class": "p2"})
            for x in range(1000):
                await e.publish({"class": "p1", "x": x}, bytes(100))
                await e.publish({"class": "p2", "x": x})
            await done.wait()
            assert seen == list(range(1000))
            assert [(await a1.next())["x"] for _ in range(1000)] == list(range(1000))
            with pytest.raises(CallTimeout):
                await a1.next(timeout_s=0)
            await a1.unsubscribe(P1)

    run(test)


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx", "bl-wait"])
def test_transactions(engine: str, broker: Process) -> None:
    async def test() -> None:
        async with (
            padres_tx.connect(at(broker), name="W1") as w1,
            padres_tx.connect(at(broker), name="W2") as w2,
        ):
            for each in (w1, w2):
                await each.advertise(P1)
                await each.advertise({"class": "move"})
            await w1.subscribe(P1)
            await w1.subscribe({"class": "move"})
            w1.on_tcm(None, lambda tx, n: tx.usub(P1))
            options = {"wait_s": 0.1} if engine == "bl-wait" else {}
            async with w2.transaction(engine, **options) as tx:
                ops = {"W1": [padres_tx.static.usub(P1)]} if engine == "s-tx" else None
                tx.tcm({"class": "move"}, ops=ops)
                tx.sub(P1)
            await w1.publish(P1)
            assert (await w2.next(timeout_s=PATIENCE_S)).publisher == "W1"
            assert [n async for n in w1.notifications(timeout_s=0)] == []
            if engine == "d-tx":
                await tx.drained
                with pytest.raises(TransactionAborted):
                    async with w2.transaction("d-tx", deadline_s=0.2) as tx:
                        tx.sub(P1)
                        await asyncio.sleep(1)
                        await tx.sub(P1)

    run(test)


def test_a_connection_that_is_cut_is_resumed(broker: Process) -> None:
    async def test() -> None:
        async with (
            proxy_to(broker) as (proxy, address),
            padres_tx.connect(address, name="A1") as a1,
            padres_tx.connect(address, name="E") as e,
        ):
            await a1.subscribe(P1)
            await e.advertise(P1)

            async def publish() -> None:
                for x in range(5000):
                    await e.publish({"class": "p1", "x": x}, bytes(100))

            publishing = asyncio.create_task(publish())
            for expected in range(5000):
                if expected % 1000 == 500:
                    proxy.cut()
                assert (await a1.next())["x"] == expected
            await publishing
            assert proxy.connections > 2

    run(test)


def test_a_connection_that_breaks_right_after_it_was_made(broker: Process) -> None:
    """Writing to a transport that is closed raises in uvloop."""

    async def test() -> None:
        async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            for _ in range(20):
                with pytest.raises(Unreachable):
                    await padres_tx.connect(f"127.0.0.1:{port}", connect_timeout_s=0.1)

    run(test)


def test_writing_to_a_connection_that_is_gone_does_nothing(broker: Process) -> None:
    async def test() -> None:
        async with padres_tx.connect(at(broker), reconnect_s=PATIENCE_S) as a1:
            channel = a1._requests.channel
            assert isinstance(channel, TcpChannel) and channel._connection is not None
            connection = channel._connection
            connection.abort()
            await a1.advertise(P1)  # Over another connection.
            assert channel._connection is not connection
            connection.write(b"late")
            connection.close()
            connection.abort()

    run(test)


def test_cancelling_and_the_end(broker: Process, tmp_path: Path) -> None:
    async def test() -> None:
        for turns in range(20):
            connecting = asyncio.ensure_future(_connected(at(broker)))
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, OverlayError):
                await (await connecting).close()
        told: list[object] = []
        with running(tmp_path, "B1", one()) as process:
            a1 = await padres_tx.connect(at(process), reconnect_s=0.3, on_close=told.append)
            waiting = asyncio.create_task(a1.next())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            process.popen.kill()
            with pytest.raises(ConnectionLost, match=r"has been away for 0\.3 s"):
                await a1.wait_closed()
            await a1.close()
        assert [type(error) for error in told] == [ConnectionLost]

    async def _connected(address: str) -> padres_tx.Client:
        return await padres_tx.connect(address)

    run(test)


# --- a web server ---

APP = """
import asyncio, contextlib, json, os
import padres_tx

loops = []

@contextlib.asynccontextmanager
async def lifespan():
    global client, events
    loops.append(type(asyncio.get_running_loop()).__module__)
    events = asyncio.Queue()
    async with padres_tx.connect(os.environ["BROKER"], name="web") as client:
        await client.advertise("[class,eq,'p1']")
        await client.subscribe("[class,eq,'p1']", events.put)
        yield

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    if scope["path"] == "/publish":
        await client.publish({"class": "p1", "x": scope["query_string"].decode()})
        answer = {"loop": loops[0]}
    else:
        answer = {"x": (await events.get())["x"]}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})
"""


def test_in_a_web_server(broker: Process, tmp_path: Path) -> None:
    """The lifespan connects a client; a request publishes, and an event arrives."""
    (tmp_path / "web.py").write_text(APP)
    (port,) = free_ports(1)
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "web:app", "--port", str(port), "--loop", "uvloop"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "BROKER": at(broker)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if "Uvicorn running" in line:
                break
        else:
            raise AssertionError("it did not start")
        assert ask(port, "/publish?x1")["loop"] == "uvloop"
        ask(port, "/publish?x2")
        assert [ask(port, "/event")["x"] for _ in range(2)] == ["x1", "x2"]
        server.send_signal(signal.SIGINT)
        rest = server.stderr.read()
        assert "Application shutdown complete" in rest and "Traceback" not in rest, rest
    finally:
        server.kill()
        server.wait()


def ask(port: int, path: str) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        found: dict[str, str] = json.load(answer)
    return found
