"""A broker's time passes evenly: a wall clock that is set delays no timer and fires none early."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from twisted.internet.base import ReactorBase
from twisted.internet.task import Clock

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.hosts.broker_time import BrokerTime, use_monotonic
from overlay.hosts.host import Host
from overlay.messages import Ack, BrokerName, Ping
from overlay.wire.link import Opening
from tests.overlay.broker_processes import (
    PATIENCE_S,
    Process,
    RawClient,
    free_ports,
    inspect,
    running_all,
)


def test_time_begins_where_it_is_told_and_passes_as_the_clock_does() -> None:
    clock = Clock()
    clock.advance(7.0)
    own = BrokerTime(1000.0, clock.seconds)
    assert own.now() == 1000.0
    clock.advance(2.5)
    assert own.now() == 1002.5


def test_a_run_continues_the_time_of_an_earlier_one() -> None:
    clock = Clock()
    clock.advance(500.0)
    first = BrokerTime(1000.0, clock.seconds)
    clock.advance(10.0)
    logged = first.now()
    # The machine was restarted, and its monotonic clock with it.
    second = BrokerTime(logged, Clock().seconds)
    assert second.now() == logged == 1010.0


def test_the_core_is_told_the_time_of_the_clock_that_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wall clock is looked at once, when the host is made."""
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    host = Host(Broker(BrokerName("M"), []), {}, clock, lambda: None)
    monkeypatch.setattr(time, "time", lambda: -2600.0)
    clock.advance(5.0)
    assert host.now() == 1005.0
    continued = BrokerTime(7000.0, clock.seconds)
    host = Host(Broker(BrokerName("M"), []), {}, clock, lambda: None, own_time=continued)
    assert host.now() == 7000.0


class Idle(ReactorBase):
    """A reactor without I/O."""

    def installWaker(self) -> None:
        pass


def test_the_timers_of_a_reactor_follow_the_monotonic_clock() -> None:
    reactor = Idle()
    use_monotonic(reactor)
    before = time.monotonic()
    call = reactor.callLater(10.0, lambda: None)
    assert before + 10.0 <= call.getTime() <= time.monotonic() + 10.0
    with pytest.raises(AssertionError, match="wall clock"):
        use_monotonic(reactor)


# In processes whose wall clock jumps by an hour.

SETTINGS = {"client_grace_s": 0.5, "heartbeat_s": 0.2, "idle_s": 60.0}


def jump(process: Process, how: signal.Signals) -> None:
    os.kill(process.popen.pid, how)
    # A signal that was sent has been handled when the process has answered what was asked later.
    for _ in range(2):
        inspect(process.port, "status")


def next_ping(client: RawClient) -> None:
    """Wait for a sign of life that comes from a timer of the broker."""
    assert client.socket is not None
    client.flush(idle=True)
    while True:
        assert select.select([client.socket], [], [], PATIENCE_S)[0]
        said = client.next()
        assert isinstance(said, Ping | Ack)
        if isinstance(said, Ping):
            return


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", [0, 2], ids=["reactor", "fine-reactor"])
def test_a_wall_clock_that_jumps_delays_no_timer_and_fires_none(
    tmp_path: Path, delay_ms: int
) -> None:
    b1, b2 = free_ports(2)
    topology = {
        "name": "pair",
        "brokers": [{"name": "B1", "port": b1}, {"name": "B2", "port": b2}],
        "edges": [{"a": "B1", "b": "B2", "delay_ms": delay_ms}],
    }
    module = "tests.overlay.hosts.jumping_child"
    tasks = {
        "B1": {"topology": topology, "module": module, "settings": SETTINGS},
        "B2": {
            "topology": topology,
            "module": module,
            "settings": {**SETTINGS, "client_grace_s": 1000.0},
        },
    }
    with running_all(tmp_path, tasks) as (first, second):
        publisher = RawClient("p").join(b1)
        subscriber = RawClient("s").join(b2)
        publisher.operate("adv", Filter(x=1))
        subscriber.operate("sub", Filter(x=1))
        lost = RawClient("lost").join(b2)
        lost.cut()
        until(lambda: second.events("client lost its connection"))

        for how in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1):
            jump(first, how)
            jump(second, how)
            # Heartbeats go on, and a delayed link delivers.
            next_ping(publisher)
            publisher.publish(1, x=1)
            assert subscriber.numbers(1) == [1]
            # A grace that is over ends; one that is not does not.
            gone = RawClient("gone").join(b1)
            gone.cut()
            until(lambda: "gone" not in clients_at(b1))
        assert lost.connect(b2) is Opening.RESUMED
        # No connection was taken for dead, and no link has flapped.
        for process in (first, second):
            assert process.events("connection silent, taken for dead") == []
            assert len(process.events("link up")) == 1
            assert inspect(process.port, "status")["uptime_s"] < 1800
            assert process.end() == 0


def clients_at(port: int) -> list[str]:
    return [entry["client"] for entry in inspect(port, "tables")["clients"]]


def until(ready: object) -> None:
    assert callable(ready)
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)
