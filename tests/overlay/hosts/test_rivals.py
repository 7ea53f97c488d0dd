"""A second process under a broker's name is refused while the first lives, and both are told."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overlay.errors import DuplicateBroker
from overlay.filters import Filter
from overlay.hosts.rivals import TELL_S
from overlay.messages import PROTOCOL_VERSION, Hello, Ping
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from tests.overlay.broker_processes import (
    PATIENCE_S,
    Process,
    RawClient,
    free_ports,
    inspect,
    running,
    running_all,
)
from tests.overlay.hosts.test_host import Recorded, Setting


class Cuttable(Recorded):
    """A wire that may be cut off."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def notes(self) -> list[str]:
        """What the pings said that were written since the last time."""
        values = [decode(frame[PREFIX_SIZE:]) for frame in Splitter().feed(b"".join(self.writes))]
        self.writes.clear()
        return [value.note for value in values if isinstance(value, Ping)]


def linked() -> tuple[Setting, Cuttable]:
    """Broker M, whose neighbour A is connected as the process i."""
    setting = Setting()
    setting.host.lost(setting.wires["A"], setting.wires["A"].peer)
    wire = Cuttable()
    setting.host.accept(wire, Hello(PROTOCOL_VERSION, "broker", "A", "i-1.0"))
    wire.notes()
    return setting, wire


def link_of(setting: Setting, name: str) -> dict[str, Any]:
    links: list[dict[str, Any]] = setting.host.status()["links"]
    return next(link for link in links if link["neighbour"] == name)


def test_a_second_process_is_refused_and_the_first_is_probed_and_told() -> None:
    setting, first = linked()
    for _ in range(3):
        with pytest.raises(DuplicateBroker, match="another process called A is connected"):
            setting.host.accept(Cuttable(), Hello(PROTOCOL_VERSION, "broker", "A", "j-1"))
    assert not first.aborted
    assert first.notes() == ["a second process called A connects from recorded", "", ""]
    link = link_of(setting, "A")
    assert (link["up"], link["rivals"], link["last_rival"]) == (True, 3, "recorded")
    assert "rivals" not in link_of(setting, "B")
    setting.clock.advance(TELL_S)
    with pytest.raises(DuplicateBroker):
        setting.host.accept(Cuttable(), Hello(PROTOCOL_VERSION, "broker", "A", "j-1"))
    assert first.notes()[-1] != ""


def test_the_same_process_in_a_later_life_of_the_link_is_let_in_at_once() -> None:
    setting, first = linked()
    second = Cuttable()
    setting.host.accept(second, Hello(PROTOCOL_VERSION, "broker", "A", "i-1.1"))
    assert first.aborted and second.peer.wire is second


def test_a_second_process_is_let_in_when_the_first_has_gone() -> None:
    setting, first = linked()
    setting.host.lost(first, first.peer)
    second = Cuttable()
    setting.host.accept(second, Hello(PROTOCOL_VERSION, "broker", "A", "j-1"))
    assert second.peer.wire is second


def test_the_first_process_shows_what_it_was_told_and_clients_cannot_say_it() -> None:
    setting, first = linked()
    setting.host.arrived(first.peer, [pack(Ping("a second process called M"))])
    assert link_of(setting, "A")["notice"] == "a second process called M"
    setting.connect("client", "c")
    setting.host.arrived(setting.wires["c"].peer, [pack(Ping("nonsense"))])
    assert "nonsense" not in str(setting.host.status())


# With processes.

SETTINGS = {"heartbeat_s": 0.3, "idle_s": 3.0}


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def topology(b1: int, b2: int) -> dict[str, Any]:
    return {
        "name": "pair",
        "brokers": [{"name": "B1", "port": b1}, {"name": "B2", "port": b2}],
        "edges": [["B1", "B2"]],
    }


def link(process: Process) -> dict[str, Any]:
    (only,) = inspect(process.port, "status")["links"]
    found: dict[str, Any] = only
    return found


@pytest.mark.slow
def test_a_stream_goes_on_beside_a_second_process_which_follows_when_the_first_ends(
    tmp_path: Path,
) -> None:
    b1, b2 = free_ports(2)
    pair = topology(b1, b2)
    tasks = {name: {"topology": pair, "settings": SETTINGS} for name in ("B1", "B2")}
    with running_all(tmp_path, tasks) as (first, second):
        publisher, subscriber = RawClient("p").join(b1), RawClient("s").join(b2)
        publisher.operate("adv", Filter(x=1))
        subscriber.operate("sub", Filter(x=1))
        got: list[int] = []
        reading = threading.Thread(target=lambda: got.extend(subscriber.numbers(1000)))
        reading.start()
        with running(tmp_path, "B1", pair, port=0, settings=SETTINGS) as rival:
            for start in range(0, 1000, 100):
                publisher.publish(*range(start, start + 100), x=1)
                attempts = link(second).get("rivals", 0)
                until(lambda seen=attempts: link(second).get("rivals", 0) > seen)
            publisher.settle()
            reading.join(PATIENCE_S)
            assert got == list(range(1000))
            assert len(second.events("link up")) == 1

            # All three say so, in their logs and to operators.
            assert second.events("connection refused")[0]["code"] == "duplicate-broker"
            until(lambda: link(first).get("notice"))
            assert "a second process called B1" in link(first)["notice"]
            assert len(first.events("another process has our name")) == 1
            assert rival.events("refused by neighbour")[0]["code"] == "duplicate-broker"
            assert link(rival)["refusal"].startswith("duplicate-broker: another process called B1")
            assert not link(rival)["up"]

            # The first ends, and the second takes its place.
            first.popen.kill()
            first.popen.wait()
            until(lambda: link(rival)["up"])
            assert "refusal" not in link(rival)
            assert link(second)["up"]


@pytest.mark.slow
def test_a_first_process_that_does_not_move_holds_the_link_for_the_idle_time_only(
    tmp_path: Path,
) -> None:
    b1, b2 = free_ports(2)
    pair = topology(b1, b2)
    tasks = {name: {"topology": pair, "settings": SETTINGS} for name in ("B1", "B2")}
    with running_all(tmp_path, tasks) as (first, second):
        until(lambda: link(second)["up"])
        first.popen.send_signal(signal.SIGSTOP)
        with running(tmp_path, "B1", pair, port=0, settings=SETTINGS) as restarted:
            until(lambda: link(restarted)["up"])
