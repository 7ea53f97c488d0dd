"""Overlays as processes: they come up, die, come back, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

import padres_tx
from padres_tx import launcher
from padres_tx.launcher import (
    Cancelled,
    Crash,
    LaunchError,
    PortBusy,
    Running,
    overlay_processes,
    processes,
)
from padres_tx.launcher.broker_status import BrokerStatus, LinkStatus
from padres_tx.launcher.processes import ProcessIdentity
from topologies import BrokerSpec, Topology, TopologyError, load
from topologies.generators import chain

WAIT_S = 20.0


def processes_of(running: Running) -> list[ProcessIdentity]:
    return [running.process(broker.name) for broker in running.topology.brokers]


def test_an_overlay_from_its_start_to_its_end(tmp_path: Path) -> None:
    with launcher.overlay("three", directory=tmp_path, trace=True) as running:
        first = processes_of(running)
        assert all(map(processes.alive, first)) and len({p.pid for p in first}) == 3
        assert running.address() == running.address("B1") != running.address("B3")
        assert "listening" in running.log("B2").read_text()
        with pytest.raises(TopologyError, match="B9"):
            running.address("B9")

        with (
            padres_tx.sync.connect(running.address("B1"), name="E") as e,
            padres_tx.sync.connect(running.address("B3"), name="A1") as a1,
        ):
            e.advertise("[class,eq,'p1']")
            a1.subscribe("[class,eq,'p1']")
            e.publish("[class,'p1'],[x,1]")
            assert a1.next(timeout_s=WAIT_S)["x"] == 1

            # A death that was not wanted is told once, with the way the process ended.
            os.kill(running.process("B2").pid, signal.SIGKILL)
            os.waitid(os.P_PID, running.process("B2").pid, os.WEXITED | os.WNOWAIT)
            (crash,) = running.crashes()
            assert (crash.broker, crash.exit_code) == ("B2", -signal.SIGKILL)
            assert running.exit_code("B2") == -signal.SIGKILL and running.exit_code("B1") is None
            assert running.crashes() == []
            assert "killed by SIGKILL" in str(crash) and str(running.log("B2")) in str(crash)

            # A broker that comes back is told by its neighbours what it has to know.
            running.restart("B2")
            running.wait_up()
            # Returns when the subscriptions that it attracts have found the way again.
            e.advertise("[class,eq,'p1']")
            e.publish("[class,'p1'],[x,2]")
            assert a1.next(timeout_s=WAIT_S)["x"] == 2

        # One that was wanted is no news.
        running.kill("B3")
        assert running.exit_code("B3") == -signal.SIGKILL
        assert running.crashes() == []
        last = processes_of(running)
    assert processes.wait_gone([*first, *last], 0) == []
    assert running.exit_code("B1") == running.exit_code("B2") == 0
    assert running.trace("B1").read_text().count('"publish"') == 2
    running.stop()


def test_in_a_notebook_two_overlays_side_by_side_and_an_error() -> None:
    """A notebook runs an event loop already; here it is not even on the main thread."""
    ended: list[ProcessIdentity] = []

    async def cell() -> None:
        with launcher.overlay("one") as left, launcher.overlay("one") as right:
            assert left.address() != right.address()
            async with padres_tx.connect(right.address()) as client:
                await client.subscribe("[class,eq,'p1']")
            ended.extend([*processes_of(left), *processes_of(right)])
            raise KeyError("the user's own")

    def notebook() -> None:
        with pytest.raises(KeyError):
            asyncio.run(cell())

    thread = threading.Thread(target=notebook)
    thread.start()
    thread.join()
    assert len(ended) == 2
    assert processes.wait_gone(ended, 0) == []


def at_port(port: int) -> Topology:
    return Topology(name="t", brokers=(BrokerSpec(name="B1", port=port),))


def test_a_busy_port_is_named_with_its_broker(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PortBusy, match=rf"broker B1 .*127\.0\.0\.1:{port}.*in use"):
            launcher.launch(at_port(port), tmp_path)
        # Whoever takes it between our look and the broker's start is named by the broker.
        running = Running(at_port(port), tmp_path)
        running.start()
        with pytest.raises(PortBusy, match=rf"broker B1 .*{port}.*in use"):
            running.wait_up()
        running.stop()
        assert running.exit_code("B1") == 2


def test_a_host_that_is_not_here_is_named_with_its_broker(tmp_path: Path) -> None:
    elsewhere = Topology(name="t", brokers=(BrokerSpec(name="B1", host="192.0.2.1", port=0),))
    with pytest.raises(PortBusy, match=r"broker B1 cannot listen at 192\.0\.2\.1:0"):
        launcher.launch(elsewhere, tmp_path)


def test_an_overlay_that_hangs_says_where_and_is_ended(tmp_path: Path) -> None:
    """B2 stands still before it can do anything, and does not even end when it is told to."""
    running = Running(overlay_processes._claim_ports(launcher.with_free_ports(chain(2))), tmp_path)
    running.start()
    os.kill(running.process("B2").pid, signal.SIGSTOP)
    with pytest.raises(LaunchError, match=r"not up after 0\.1 s: broker B[12]: "):
        running.wait_up(0.1)
    with pytest.raises(Cancelled):
        running.wait_up(cancelled=lambda: True)
    running.stop(hurry=lambda: True)
    assert processes.wait_gone(processes_of(running), 0) == []


def test_a_failed_start_leaves_no_process(tmp_path: Path) -> None:
    started: list[ProcessIdentity] = []

    def remember(running: Running) -> None:
        started.extend(processes_of(running))

    with pytest.raises(Cancelled):
        launcher.launch(
            launcher.with_free_ports(chain(2)),
            tmp_path,
            started=remember,
            cancelled=lambda: True,
        )
    assert len(started) == 2
    assert processes.wait_gone(started, 0) == []


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(LaunchError, match="cannot write into"),
        launcher.overlay("one", directory=tmp_path / "file"),
    ):
        pass


def test_a_broker_without_a_link_says_why_and_dead_neighbours_are_not_waited_for() -> None:
    links = [
        LinkStatus("B2", False, refusal="protocol version 2: B2 speaks version 3"),
        LinkStatus("B3", False),
        LinkStatus("B4", True),
    ]
    status = BrokerStatus("B1", 7, 1.0, links, [], 0, 0)
    assert overlay_processes.not_ready(status, 7) == (
        "no link to B2, B3; refused by B2: protocol version 2: B2 speaks version 3"
    )
    assert overlay_processes.not_ready(status, 7, dead=["B2"]) == "no link to B3"
    assert overlay_processes.not_ready(status, 7, dead=["B2", "B3"]) is None
    assert overlay_processes.not_ready(status, 8) == "another process (7) replies at its address"


# --- where brokers listen ---


def test_free_ports_keep_everything_else() -> None:
    nine = load("nine")
    free = launcher.with_free_ports(nine)
    assert {(b.host, b.port) for b in free.brokers} == {("127.0.0.1", 0)}
    assert free.edges == nine.edges
    resolved = overlay_processes._claim_ports(free)
    assert len({b.port for b in resolved.brokers}) == 9 and all(b.port for b in resolved.brokers)
    assert [b.name for b in resolved.brokers] == [b.name for b in nine.brokers]


def test_brokers_of_other_machines_come_to_the_loopback_interface() -> None:
    brokers = (
        BrokerSpec(name="B1", host="10.0.0.1", port=7001),
        BrokerSpec(name="B2", host="10.0.0.2", port=7001),
        BrokerSpec(name="B3", host="localhost", port=7003),
        BrokerSpec(name="B4", host="0.0.0.0", port=7004),
        BrokerSpec(name="B5", host="::1", port=7005),
    )
    tree = Topology(name="t", brokers=brokers, edges=chain(5).edges)
    assert [b.address for b in launcher.on_loopback(tree).brokers] == [
        "127.0.0.1:7001",
        "127.0.0.1:0",
        "localhost:7003",
        "127.0.0.1:7004",
        "[::1]:7005",
    ]
    assert launcher.on_loopback(load("five")) == load("five")


# --- how ends read ---


def test_a_crash_shows_the_last_lines_of_the_log_for_people(tmp_path: Path) -> None:
    log = tmp_path / "B1.log"
    log.write_text(
        '{"time": "t", "level": "info", "broker": "B1", "event": "first"}\n'
        * 10
        + '{"time": "t", "level": "error", "broker": "B1", "event": "crashed", "tx": 7, '
        '"traceback": "Traceback:\\n  line 1\\nKeyError: 5"}\n'
        "not JSON\n"
    )
    assert str(Crash("B1", 42, 1, log)).splitlines() == [
        f"broker B1 (process 42) crashed, exit code 1; log: {log}",
        "    error crashed tx=7",
        "    Traceback:",
        "      line 1",
        "    KeyError: 5",
        "    not JSON",
    ]


def test_a_crash_without_a_log_can_be_told(tmp_path: Path) -> None:
    log = tmp_path / "none.log"
    assert str(Crash("B1", 42, -signal.SIGSEGV, log)) == (
        f"broker B1 (process 42) crashed, killed by SIGSEGV; log: {log}"
    )
    assert overlay_processes.ending(-99) == "killed by signal 99"
