"""A node on disk: opened, snapshotted by a child, opened again, by the same and by other code."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from overlay.broker.core import Broker, Taken
from overlay.effects import Forward
from overlay.errors import LogDiverges, LogLocked, WrongLog
from overlay.filters import Filter
from overlay.hosts import durable as durable_module
from overlay.hosts.durable import CHILD_POLL_S, FAILING, Checkpoint, DurableNode, FailingInputs
from overlay.hosts.host import Host
from overlay.messages import AnyMessage, BrokerName, Gap, Hop, Operation, Pub
from overlay.node.recovery import Failing
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE
from tests.overlay.hosts.test_host import Setting

BIRTH = "0123456789abcdef" * 2


class OnDisk(Setting):
    """The setting of `test_host`, whose host keeps its node in a directory; the log is inline."""

    def __init__(
        self, directory: Path, core: type[Broker] = Broker, *, version: str = "1", name: str = "M"
    ) -> None:
        self.durable: DurableNode
        self._directory = directory
        self._version = version
        self._broker = name
        super().__init__(core)

    def made(self, host: Host) -> None:
        names = list(host.neighbours)
        clock = self.clock

        def make_host(birth: str) -> Host:
            core = type(self.core)(BrokerName("M"), names)
            return Host(core, dict.fromkeys(names, 0.0), clock, self.crash, birth=birth)

        self.durable = DurableNode.open(
            self._directory, make_host, broker=self._broker, version=self._version, birth=BIRTH
        )
        self.host = self.durable.host
        self.core = self.host.node.core


def subscribed(directory: Path, count: int = 3) -> OnDisk:
    setting = OnDisk(directory)
    setting.subscribed("s")
    for n in range(count):
        setting.say("A", Pub("p", n, {"cls": "x"}))
    return setting


def waiting_for(setting: Setting, hop: str) -> list[bytes]:
    """What is kept for a peer, but for gaps: the setting's neighbours begin anew each time."""
    link = setting.host.node.ends[Hop(hop)].link
    kept = [*link.unacked, *link.outbox]
    return [frame for frame in kept if not isinstance(decode(frame[PREFIX_SIZE:]), Gap)]


def test_a_node_is_there_again_after_its_process_has_died(tmp_path: Path) -> None:
    first = subscribed(tmp_path)
    kept = waiting_for(first, "@s")
    assert len(kept) >= 3
    first.durable._log.close()
    again = OnDisk(tmp_path)
    assert again.durable.recovered.replayed > 0
    assert waiting_for(again, "@s") == kept
    assert again.core.routing.prt.count_of("s") == 1
    assert again.durable.report()["mode"] == "disk"


def test_a_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    first = subscribed(tmp_path)
    kept = waiting_for(first, "@s")
    first.durable.stop()
    again = OnDisk(tmp_path)
    assert again.durable.recovered.replayed == 0
    assert again.durable.report()["snapshot_age_s"] >= 0
    assert waiting_for(again, "@s") == kept


def test_a_child_writes_a_snapshot_when_much_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_module, "WORKED_S", 0.0)
    first = subscribed(tmp_path)
    while not first.durable.report()["snapshot_position"]:
        time.sleep(0.01)  # The child is another process.
        first.clock.advance(CHILD_POLL_S)
    position = first.durable.report()["snapshot_position"]
    monkeypatch.setattr(durable_module, "WORKED_S", 1e9)
    first.say("A", Pub("p", 99, {"cls": "x"}))
    kept = waiting_for(first, "@s")
    first.durable._log.close()
    again = OnDisk(tmp_path)
    last = again.durable.recovered.position
    assert position < last
    assert 0 < again.durable.recovered.replayed < 20
    assert waiting_for(again, "@s") == kept


class Silent(Broker):
    """Other code, which forwards nothing."""

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        taken = super().take(source, messages, now, start)
        left = [effect for effect in taken.effects if not isinstance(effect, Forward)]
        return Taken(taken.consumed, left, taken.is_run)


def test_other_code_that_would_send_something_else_is_refused(tmp_path: Path) -> None:
    """It is told which version is needed, and the log stays as it is."""
    subscribed(tmp_path).durable._log.close()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("log-*")}
    with pytest.raises(LogDiverges, match=r"written by version 1.*\(2\).*--checkpoint"):
        OnDisk(tmp_path, Silent, version="2")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_other_code_that_sends_the_same_goes_on(tmp_path: Path) -> None:
    first = subscribed(tmp_path)
    kept = waiting_for(first, "@s")
    first.durable._log.close()
    again = OnDisk(tmp_path, version="2")
    assert waiting_for(again, "@s") == kept


def test_other_code_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    subscribed(tmp_path).durable.stop()
    again = OnDisk(tmp_path, Silent, version="2")
    assert again.core.routing.prt.count_of("s") == 1


def test_a_directory_in_use_or_of_another_broker_is_refused(tmp_path: Path) -> None:
    first = subscribed(tmp_path)
    with pytest.raises(LogLocked, match=str(os.getpid())):
        OnDisk(tmp_path)
    first.durable.stop()
    with pytest.raises(WrongLog, match="M"):
        OnDisk(tmp_path, name="other")


def test_the_second_death_at_an_input_leaves_it_out(tmp_path: Path) -> None:
    where = Failing(7, 2)
    assert not FailingInputs(tmp_path).note(where)
    assert FailingInputs(tmp_path).left_out == set()
    assert FailingInputs(tmp_path).note(where)
    assert FailingInputs(tmp_path).left_out == {where}
    assert (tmp_path / FAILING).exists()


def test_a_checkpoint_of_a_broker_in_memory_is_taken_once(tmp_path: Path) -> None:
    setting = Setting()
    setting.subscribed("s")
    setting.say("A", Pub("p", 1, {"cls": "x"}), Operation(0, "uadv", "p", 2, Filter(cls="x", n=1)))
    kept = waiting_for(setting, "@s")
    checkpoint = Checkpoint(tmp_path, broker="M", version="1")
    checkpoint.save(setting.host)

    def fresh() -> Host:
        names = list(setting.host.neighbours)
        core = Broker(BrokerName("M"), names)
        return Host(core, dict.fromkeys(names, 0.0), Clock(), setting.crash)

    host = fresh()
    assert Checkpoint(tmp_path, broker="M", version="2").take(host)
    link = host.node.ends[Hop("@s")].link
    assert [*link.unacked, *link.outbox] == kept
    assert link.incarnation == setting.host.node.ends[Hop("@s")].link.incarnation
    assert Checkpoint(tmp_path, broker="M", version="2").take(fresh()), "until it is used up"
    checkpoint.discard()
    assert not checkpoint.take(fresh())


def test_a_checkpoint_of_another_broker_is_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path, broker="N", version="1").save(Setting().host)
    with pytest.raises(WrongLog, match="N"):
        Checkpoint(tmp_path, broker="M", version="1").take(Setting().host)
