"""Connections that never say hello are bounded in number, bytes, time and log lines."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger

from overlay.errors import ProtocolError
from overlay.files.logs import JsonLines
from overlay.filters import Filter
from overlay.hosts.limited_log import LINES_PER_PERIOD, PERIOD_S, LimitedLog
from overlay.hosts.pending_connections import PendingConnections, origin_of
from overlay.hosts.settings import Settings, within_files
from overlay.messages import Goodbye, Ping
from overlay.wire.frames import HELLO_LIMIT, FirstFrame, pack
from tests.overlay.broker_processes import (
    PATIENCE_S,
    Lines,
    Process,
    RawClient,
    Refused,
    free_ports,
    inspect,
    one,
    running,
    running_all,
)

# Which connection has to go.


def test_of_one_address_the_oldest_goes_first() -> None:
    pending = PendingConnections[int](limit=100, per_address=3)
    assert [pending.add(n, "10.0.0.1") for n in range(5)] == [None, None, None, 0, 1]
    assert len(pending) == 3
    assert pending.add(9, "10.0.0.2") is None


def test_a_full_house_costs_the_address_that_holds_most() -> None:
    pending = PendingConnections[str](limit=4, per_address=4)
    for n in range(3):
        pending.add(f"flood{n}", "10.0.0.1")
    assert pending.add("a", "10.0.0.2") is None
    assert pending.add("b", "10.0.0.3") == "flood0"
    assert pending.add("c", "10.0.0.4") == "flood1"
    assert "a" in pending and "b" in pending


def test_who_has_said_hello_is_not_counted() -> None:
    pending = PendingConnections[int](limit=2, per_address=2)
    for n in range(10):
        assert pending.add(n, "10.0.0.1") is None
        pending.remove(n)
        pending.remove(n)
    assert len(pending) == 0


def test_the_addresses_of_one_customer_are_one() -> None:
    assert origin_of("2001:db8:1:2::1") == origin_of("2001:db8:1:2:ffff::9%eth0")
    assert origin_of("2001:db8:1:2::1") != origin_of("2001:db8:1:3::1")
    assert origin_of("::ffff:10.0.0.1") == origin_of("10.0.0.1") == "10.0.0.1"
    assert origin_of("") == ""


# The first frame.


def test_the_first_frame_is_cut_off_and_the_rest_left_whole() -> None:
    first = FirstFrame()
    frame = pack(Ping())
    for n in range(len(frame) - 1):
        assert first.feed(frame[n : n + 1]) is None
    huge = (100 << 20).to_bytes(4, "big")
    assert first.feed(frame[-1:] + huge) == (frame, huge)


def test_a_first_frame_at_its_limit_and_beyond() -> None:
    body = bytes(HELLO_LIMIT)
    assert FirstFrame().feed(HELLO_LIMIT.to_bytes(4, "big") + body) is not None
    with pytest.raises(ProtocolError, match=f"{HELLO_LIMIT + 1} bytes"):
        FirstFrame().feed((HELLO_LIMIT + 1).to_bytes(4, "big"))


# Limits by files.


@pytest.mark.parametrize("files", [16, 256, 1024, 4096, 20_000, 1 << 40])
def test_all_connections_together_fit_the_files(files: int) -> None:
    fit = within_files(Settings(), files)
    assert fit.pending_per_address <= fit.pending_connections
    total = fit.client_connections + fit.operator_connections + fit.pending_connections
    assert total < files
    assert min(fit.client_connections, fit.operator_connections, fit.pending_per_address) >= 1


def test_with_many_files_the_limits_are_those_of_the_settings() -> None:
    assert within_files(Settings(), 1 << 20) == Settings()


# Log lines.


def test_a_flood_is_logged_at_a_bounded_rate_and_summed_up() -> None:
    file, clock = Lines(), Clock()
    log = LimitedLog(
        Logger(namespace="overlay.x", observer=JsonLines("B1", file)), clock, "refused"
    )
    for n in range(1000):
        log.write(code="protocol" if n % 2 else "overloaded", n=n)
    clock.advance(PERIOD_S)
    log.write(code="protocol", n=1000)
    lines = [json.loads(line) for line in file.lines()]
    assert [line["n"] for line in lines if "n" in line] == [*range(LINES_PER_PERIOD), 1000]
    summary = lines[LINES_PER_PERIOD]
    assert summary["event"] == "refused, more often than is logged"
    assert summary["codes"] == {"overloaded": 490, "protocol": 490}
    assert summary["count"] == 980


def test_different_codes_are_bounded_as_well() -> None:
    file, clock = Lines(), Clock()
    log = LimitedLog(
        Logger(namespace="overlay.x", observer=JsonLines("B1", file)), clock, "refused"
    )
    for n in range(1000):
        log.write(code=f"code {n}")
    clock.advance(PERIOD_S)
    summary = json.loads(file.lines()[-1])
    assert summary["count"] == 980
    assert len(summary["codes"]) <= 17


# A broker process and its strangers.


@contextlib.contextmanager
def strangers(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that say this, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", port), PATIENCE_S)
            )
            with contextlib.suppress(ConnectionError):  # It may be over by now.
                connection.sendall(data)
            connections.append(connection)
        yield connections


def memory_kb(process: Process) -> int:
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def work(port: int, name: str) -> None:
    """A client comes, publishes to itself, and goes."""
    client = RawClient(name).join(port)
    client.operate("adv", Filter(x=1))
    client.operate("sub", Filter(x=1))
    client.publish(1, x=1)
    assert client.numbers(1) == [1]
    client.cut()


@pytest.mark.parametrize(
    "junk",
    [
        (1_000_000).to_bytes(4, "big") + bytes(900_000),
        (HELLO_LIMIT).to_bytes(4, "big") + bytes(HELLO_LIMIT - 1),
    ],
    ids=["large", "slow"],
)
def test_a_thousand_half_open_connections_cost_little_and_clients_get_in(
    tmp_path: Path, junk: bytes
) -> None:
    with running(
        tmp_path,
        "B1",
        one(),
        settings={"pending_connections": 150, "pending_per_address": 100, "hello_timeout_s": 60.0},
    ) as broker:
        work(broker.port, "before")
        before_kb = memory_kb(broker)
        with strangers(broker.port, 1000, junk):
            work(broker.port, "meanwhile")
            connections = inspect(broker.port, "status")["connections"]
            assert connections["pending"] <= 100
            assert sum(connections["refused"].values()) >= 900
            assert memory_kb(broker) - before_kb < 40_000
        work(broker.port, "after")
        assert len(broker.events("connection refused")) <= LINES_PER_PERIOD
        assert broker.end() == 0


def test_the_one_that_has_to_go_is_told_why(tmp_path: Path) -> None:
    with running(tmp_path, "B1", one(), settings={"pending_per_address": 1}) as broker:
        first, second = RawClient("first"), RawClient("second")
        first.dial(broker.port)
        second.dial(broker.port)
        goodbye = first.next()
        assert isinstance(goodbye, Goodbye) and goodbye.code == "overloaded"


def test_one_that_talks_on_after_it_was_refused_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, "B1", one()) as broker, pytest.raises(ConnectionError):
        stranger = socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S)
        with stranger:
            for _ in range(100_000):
                stranger.sendall(b"GET / HTTP/1.1\r\n" * 1000)


def test_clients_and_operators_are_limited_and_neighbours_get_in(tmp_path: Path) -> None:
    b1, b2 = free_ports(2)
    topology = {
        "name": "pair",
        "brokers": [{"name": "B1", "port": b1}, {"name": "B2", "port": b2}],
        "edges": [["B1", "B2"]],
    }
    limits = {"client_connections": 2, "operator_connections": 1}
    with running(tmp_path, "B2", topology, settings=limits):
        clients = [RawClient(f"c{n}") for n in range(2)]
        for client in clients:
            client.connect(b2)
        with pytest.raises(Refused) as refused:
            RawClient("c2").connect(b2)
        assert refused.value.code == "broker-full"
        assert refused.value.reason == "B2 has 2 clients connected, which is its limit"
        operator = RawClient("o", role="operator")
        operator.connect(b2)
        with pytest.raises(Refused) as refused:
            RawClient("o2", role="operator").connect(b2)
        assert refused.value.reason == "B2 has 1 operators connected, which is its limit"
        operator.cut()
        # A neighbour is neither: all links come up.
        with running_all(tmp_path, {"B1": {"topology": topology}}) as (first,):
            while not first.events("all links up"):
                assert first.popen.poll() is None
        clients[0].cut()
        late = RawClient("late")
        while True:  # Until the broker has seen the end of the other.
            try:
                late.connect(b2)
                break
            except Refused as again:
                assert again.code == "broker-full"


def test_a_broker_with_few_files_never_runs_out_of_them(tmp_path: Path) -> None:
    with (
        running(tmp_path, "B1", one(), files=128) as broker,
        strangers(broker.port, 300, b""),
        contextlib.ExitStack() as stack,
    ):
        told = ""
        for n in range(200):
            client = RawClient(f"c{n}")
            stack.callback(lambda one=client: one.socket and one.socket.close())
            try:
                client.connect(broker.port)
            except Refused as refused:
                told = refused.code
                break
        assert told == "broker-full"
        assert inspect(broker.port, "status")["connections"]["clients"] == n
        assert "EMFILE" not in broker.log.read_text()
        assert "Too many open files" not in broker.log.read_text()
