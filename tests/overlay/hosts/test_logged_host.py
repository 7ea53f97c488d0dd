"""The host with a log: nothing leaves before what it follows from is committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from overlay.broker.core import Broker
from overlay.errors import NameTaken
from overlay.filters import Filter
from overlay.hosts import flow as flow_module
from overlay.hosts.host import Host
from overlay.hosts.inputs import LOG_RETRY_S
from overlay.hosts.settings import GIVE_UP_TIMES, Settings
from overlay.log.log import AppendOutcome, Failed, Full
from overlay.log.memory_log import MemoryLog
from overlay.messages import (
    PROTOCOL_VERSION,
    Ack,
    Backlog,
    BrokerName,
    Gap,
    Hello,
    Hop,
    Join,
    Message,
    Operation,
    Pub,
    PubRefused,
)
from overlay.node import journal as journal_module
from overlay.node.inputs import Took, decode_batch
from overlay.node.recovery import Failing, InputFails, recover
from overlay.wire import link as link_module
from overlay.wire.codec import decode
from overlay.wire.frames import PREFIX_SIZE, Splitter, pack
from overlay.wire.link import ACK_DELAY_S, WINDOW_MESSAGES
from tests.overlay.hosts.test_host import Recorded, Setting


class SlowLog(MemoryLog):
    """Commits when the test says so."""

    def __init__(self) -> None:
        super().__init__("birth", keep=True)
        self.waiting: list[Callable[[], None]] = []

    def append(
        self, expected_last: int, batch: bytes, done: Callable[[AppendOutcome], None]
    ) -> None:
        self.waiting.append(lambda: MemoryLog.append(self, expected_last, batch, done))


class Keeper:
    """Notes what the host tells it."""

    def __init__(self) -> None:
        self.failed: list[Failing] = []
        self.host: Host
        #: The positions at which a snapshot could be taken.
        self.chances: list[int] = []

    def failed_at(self, where: Failing) -> None:
        self.failed.append(where)

    def consider_snapshot(self) -> None:
        journal = self.host.journal
        assert journal is not None
        self.chances.append(journal.applied)


class Logged(Setting):
    """The setting of `test_host`, whose host has a log."""

    def __init__(self, core: type[Broker] = Broker, *, settings: Settings | None = None) -> None:
        self.log = SlowLog()
        self.keeper = Keeper()
        self._core_type = core
        super().__init__(core, settings=settings)

    def made(self, host: Host) -> None:
        self.keeper.host = host
        host.use_log(self.log, 0, self.keeper)

    def commit(self) -> None:
        """Commit all that is on its way, and what follows from that."""
        while self.log.waiting:
            self.log.waiting.pop(0)()
            self.clock.advance(0)

    def connect(self, role: object, name: str) -> None:
        super().connect(role, name)  # type: ignore[arg-type]
        self.commit()

    def say(self, name: str, *messages: Message) -> None:
        super().say(name, *messages)
        self.commit()

    def replayed(self) -> Host:
        """Another host with what the log has led to."""
        other = Setting.__new__(Setting)
        names = [BrokerName("A"), BrokerName("B")]
        core = self._core_type(BrokerName("M"), names)
        host = Host(core, dict.fromkeys(names, 0.0), self.clock, other.crash, birth="birth")
        recovered = recover(host.node, self.log)
        host.go_on(recovered.now)
        return host


def frames_of(host: Host) -> dict[str, list[bytes]]:
    """What each link of a host keeps for its peer."""
    ends = host.node.ends
    return {hop: [*ends[hop].link.unacked, *ends[hop].link.outbox] for hop in sorted(ends)}


def test_nothing_that_follows_from_an_input_leaves_before_the_log_has_it() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.clock.advance(ACK_DELAY_S)
    for wire in setting.wires.values():
        wire.writes.clear()
    setting.arrive("A", Pub("p", 1, {"cls": "x"}))
    setting.clock.advance(ACK_DELAY_S)
    assert [wire.writes for wire in setting.wires.values()] == [[], [], []]
    setting.commit()
    assert setting.wires["s"].take() == [Pub("p", 1, {"cls": "x"})]
    setting.clock.advance(ACK_DELAY_S)
    assert setting.wires["A"].writes, "the acknowledgement"


def test_inputs_that_come_while_the_log_is_busy_make_one_batch() -> None:
    setting = Logged()
    setting.subscribed("s")
    before = setting.log.last
    for n in range(10):
        setting.arrive("A", Pub("p", n, {"cls": "x"}))
    assert len(setting.log.waiting) == 1
    setting.commit()
    assert setting.log.last == before + 2
    assert [m.seq for m in setting.wires["s"].take() if isinstance(m, Pub)] == list(range(10))


def test_a_snapshot_can_be_taken_after_each_batch_however_much_waits() -> None:
    setting = Logged()
    setting.subscribed("s")
    for n in range(100):
        setting.arrive("A", Operation(0, "adv", "p", n, Filter(cls="y", n=n)))
        setting.arrive("B", Operation(0, "adv", "q", n, Filter(cls="y", n=n)))
    setting.commit()
    assert setting.keeper.chances == list(range(1, setting.log.last + 1))


def test_a_replay_puts_the_same_frames_on_every_link() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.subscribed("t")
    for n in range(50):
        setting.say("A", Pub("p", n, {"cls": "x"}, b"payload"))
    setting.say("s", Operation(9, "usub", "s", 2, Filter(cls="x")))
    host = setting.replayed()
    assert frames_of(host) == frames_of(setting.host)
    assert host.node.digest == setting.host.node.digest
    assert {hop: end.link.handed_over for hop, end in host.node.ends.items()} == {
        hop: end.link.handed_over for hop, end in setting.host.node.ends.items()
    }


def test_what_was_not_committed_is_asked_for_again_after_a_restart() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.say("A", Pub("p", 1, {"cls": "x"}))
    setting.arrive("A", Pub("p", 2, {"cls": "x"}))
    taken = setting.host.node.ends[Hop("A")].link.handed_over
    host = setting.replayed()
    wire = Recorded()
    incarnation = host.neighbours[BrokerName("A")].link.incarnation
    host.accept(wire, Hello(PROTOCOL_VERSION, "broker", "A", "i-A", incarnation))
    [frame, *_] = Splitter().feed(b"".join(wire.writes))
    hello = decode(frame[PREFIX_SIZE:])
    assert isinstance(hello, Hello)
    assert (hello.received, hello.peer) == (taken, "i-A")


def test_a_client_resumes_its_link_with_a_restarted_broker() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.say("A", Pub("p", 1, {"cls": "x"}))
    received = setting.host.node.ends[Hop("@s")].link.pending - 1
    acked = setting.host.node.ends[Hop("@s")].link.acknowledged
    host = setting.replayed()
    wire = Recorded()
    incarnation = host.node.ends[Hop("@s")].link.incarnation
    hello = Hello(PROTOCOL_VERSION, "client", "s", "i-s", incarnation, acked + received)
    host.accept(wire, hello)
    assert wire.take() == [Pub("p", 1, {"cls": "x"})]


def test_a_hello_waits_for_what_its_peer_said_before() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.arrive("A", Pub("p", 1, {"cls": "x"}))
    incarnation = setting.host.neighbours[BrokerName("A")].link.incarnation
    before = setting.host.node.ends[Hop("A")].link.handed_over
    wire = Recorded()
    setting.wires["A"].abort = lambda: None  # type: ignore[method-assign]
    setting.host.accept(wire, Hello(PROTOCOL_VERSION, "broker", "A", "i-A", incarnation))
    assert wire.writes == []
    setting.commit()
    [frame, *_] = Splitter().feed(b"".join(wire.writes))
    hello = decode(frame[PREFIX_SIZE:])
    assert isinstance(hello, Hello)
    assert hello.received == before + 1


def test_a_full_disk_holds_what_comes_and_goes_on_when_there_is_room() -> None:
    setting = Logged()
    setting.subscribed("s")
    setting.arrive("A", Pub("p", 1, {"cls": "x"}))
    journal = setting.host.journal
    assert journal is not None
    setting.log.waiting.clear()
    journal._appended(Full("no space left on device"))
    assert journal.problem == "no space left on device"
    setting.arrive("A", Pub("p", 2, {"cls": "x"}))
    assert setting.log.waiting == [], "it is left alone for a while"
    setting.clock.advance(LOG_RETRY_S)
    setting.commit()
    assert journal.problem == ""
    assert [m.seq for m in setting.wires["s"].take() if isinstance(m, Pub)] == [1, 2]


def test_peers_wait_when_much_is_staged_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "STAGED_BYTES", 1000)
    setting = Logged()
    setting.subscribed("s")
    journal = setting.host.journal
    assert journal is not None
    inbox = setting.wires["A"].peer.link.inbox
    for n in range(100):
        setting.arrive("A", Pub("p", n, {"cls": "x"}, bytes(100)))
    assert journal.is_full
    assert len(inbox) > 80
    setting.commit()
    assert not inbox
    assert [m.seq for m in setting.wires["s"].take() if isinstance(m, Pub)] == list(range(100))


def test_what_waits_for_the_window_is_written_when_acknowledgements_come() -> None:
    """The log is told of acknowledgements; that changes nothing for the links of this process."""
    setting = Logged()
    setting.subscribed("s")
    count = WINDOW_MESSAGES + 1004
    for n in range(0, count, 100):
        setting.say("A", *[Pub("p", m, {"cls": "x"}) for m in range(n, n + 100)])
    wire = setting.wires["s"]
    got = [m.seq for m in wire.take() if isinstance(m, Pub)]
    before = setting.host.node.ends[Hop("@s")].link.acknowledged
    assert len(got) < count
    for received in range(500, count + 1, 500):
        setting.host.arrived(wire.peer, [pack(Ack(before + received))])
        setting.say("A", Pub("p", count + received, {"cls": "y"}))
        got += [m.seq for m in wire.take() if isinstance(m, Pub)]
    assert got == list(range(count))


def test_a_log_that_fails_ends_the_broker() -> None:
    setting = Logged()
    setting.arrive("A", Join(0, "q", "A"))
    journal = setting.host.journal
    assert journal is not None
    with pytest.raises(Exception, match="the disk is gone"):
        journal._appended(Failed("the disk is gone"))


def with_neighbour_away(outbox_messages: int) -> Logged:
    """M with a publisher d, whose publications to "a" go to A, and those to "b" to B, which is
    away."""
    setting = Logged(settings=Settings(neighbour_outbox_messages=outbox_messages))
    setting.connect("client", "d")
    setting.say("d", Join(1, "d", ""))
    setting.answer("A")
    setting.answer("B")
    setting.say("d", Operation(2, "adv", "d", 1, Filter(cls="y")))
    setting.answer("A")
    setting.answer("B")
    for name, client, to in (("A", "q", "a"), ("B", "r", "b")):
        wanted = Operation(0, "sub", client, 1, Filter(cls="y", to=to))
        setting.say(name, Join(0, client, name), wanted)
    setting.host.lost(setting.wires["B"], setting.wires["B"].peer)
    for wire in setting.wires.values():
        wire.take()
    return setting


def publish(setting: Logged, *numbers: int) -> tuple[list[int], list[int]]:
    """Publish from d, to a and b in turn: what A is sent of that, and which ones are refused."""
    for n in numbers:
        setting.say("d", Pub("d", n, {"cls": "y", "to": "ab"[n % 2]}))
    sent = [m.seq for m in setting.wires["A"].take() if isinstance(m, Pub)]
    answers = setting.wires["d"].take()
    assert all(isinstance(m, PubRefused) and m.code == "broker-away" for m in answers), answers
    return sent, [m.seq for m in answers if isinstance(m, PubRefused)]


def come_back(setting: Logged, name: str, received: int) -> Recorded:
    """The neighbour dials again, having received so many messages."""
    wire = setting.wires[name] = Recorded()
    incarnation = setting.host.neighbours[BrokerName(name)].link.incarnation
    hello = Hello(PROTOCOL_VERSION, "broker", name, f"i-{name}", incarnation, received)
    setting.host.accept(wire, hello)
    setting.commit()
    return wire


def test_publications_for_a_neighbour_that_is_away_are_refused_when_its_outbox_is_full() -> None:
    """With a log, it is not given up: all that was accepted is there when it comes back."""
    setting = with_neighbour_away(10)
    link = setting.host.neighbours[BrokerName("B")].link
    received = link.acknowledged + len(link.unacked)
    on, refused = publish(setting, *range(40))
    assert on == list(range(0, 40, 2))
    assert refused == list(range(23, 40, 2)), "eleven wait, and then no more"
    [shown] = [one for one in setting.host.status()["links"] if one["neighbour"] == "B"]
    assert shown["full"]
    assert frames_of(setting.replayed()) == frames_of(setting.host)
    assert setting.replayed().node.core.backlogs.is_full(Hop("B"))
    wire = come_back(setting, "B", received)
    assert [m.seq for m in wire.take() if isinstance(m, Pub)] == list(range(1, 23, 2))
    assert publish(setting, *range(40, 50)) == (list(range(40, 50, 2)), [])
    assert [m.seq for m in wire.take() if isinstance(m, Pub)] == list(range(41, 50, 2))


def test_other_brokers_are_told_of_a_full_link_and_when_half_of_it_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "WINDOW_MESSAGES", 4)
    setting = with_neighbour_away(10)
    link = setting.host.neighbours[BrokerName("B")].link
    received = link.acknowledged + len(link.unacked)
    for n in range(15):
        setting.say("A", Pub("p", n, {"cls": "y", "to": "b"}))
    [full] = setting.wires["A"].take()
    assert isinstance(full, Backlog)
    assert (full.broker, full.neighbour, full.full, full.edges) == ("M", "B", True, ("B",))
    assert full.messages == 11
    to_a = setting.wires["A"].peer.link
    setting.host.arrived(
        setting.wires["A"].peer, [pack(Ack(to_a.acknowledged + len(to_a.unacked)))]
    )
    come_back(setting, "B", received)
    told = []
    for gone in range(received + 1, received + 16):
        setting.host.arrived(setting.wires["B"].peer, [pack(Ack(gone))])
        setting.commit()
        told += [(m, len(link.outbox)) for m in setting.wires["A"].take() if isinstance(m, Backlog)]
    assert told == [(Backlog("M", "B", False), 5)]


def test_a_neighbour_that_catches_up_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WINDOW_MESSAGES", 64)
    monkeypatch.setattr(flow_module, "HIGH_WATER_MESSAGES", 8)
    setting = with_neighbour_away(1000)
    link = setting.host.neighbours[BrokerName("B")].link
    received = link.acknowledged + len(link.unacked)
    setting.say("d", *[Pub("d", n, {"cls": "y", "to": "b"}) for n in range(60)])
    setting.say("d", *[Pub("d", n, {"cls": "y", "to": "b"}) for n in range(60, 120)])
    come_back(setting, "B", received)
    assert len(link.outbox) == 120 - 64
    setting.wires["A"].take()
    assert publish(setting, *range(120, 130)) == (list(range(120, 130, 2)), [])


def test_a_neighbour_that_is_sent_more_and_more_operations_is_given_up() -> None:
    setting = with_neighbour_away(10)
    link = setting.host.neighbours[BrokerName("B")].link
    for n in range(10 * GIVE_UP_TIMES):
        setting.say("A", Operation(0, "adv", "q", 10 + n, Filter(cls="z", n=n)))
    assert len(link.outbox) == 10 * GIVE_UP_TIMES
    assert setting.core.backlogs.is_full(Hop("B"))
    setting.say("A", Operation(0, "adv", "q", 100, Filter(cls="z", n=100)))
    assert link.pending == 0
    assert not setting.core.backlogs
    setting.wires["d"].take()
    come_back(setting, "B", 0)
    gaps = [m for m in setting.wires["d"].take() if isinstance(m, Gap)]
    assert [(gap.broker, gap.direction) for gap in gaps] == [("B", "out")]


class Fragile(Broker):
    """A core that fails at a publication with number 13."""

    def take(self, source: Hop, messages, now: float, start: int = 0):  # type: ignore[no-untyped-def]
        if any(isinstance(m, Pub) and m.seq == 13 for m in messages):
            raise ZeroDivisionError("13")
        return super().take(source, messages, now, start)


def test_the_source_of_an_input_at_which_the_core_fails_is_expelled_by_a_replay() -> None:
    setting = Logged(Fragile)
    setting.subscribed("s")
    setting.say("s", Operation(7, "adv", "s", 5, Filter(cls="y")))
    setting.arrive("s", Pub("s", 13, {"cls": "y"}))
    with pytest.raises(ZeroDivisionError):
        setting.commit()
    [where] = setting.keeper.failed
    inputs = decode_batch(dict(setting.log.read(0))[where.position]).inputs
    failing = inputs[where.place]
    assert isinstance(failing, Took)
    assert failing.hop == "@s"
    core = Fragile(BrokerName("M"), [BrokerName("A"), BrokerName("B")])
    host = Host(core, dict.fromkeys(setting.host.neighbours, 0.0), setting.clock, lambda: None)
    with pytest.raises(InputFails) as caught:
        recover(host.node, setting.log)
    assert caught.value.where == where
    core = Fragile(BrokerName("M"), [BrokerName("A"), BrokerName("B")])
    host = Host(core, dict.fromkeys(setting.host.neighbours, 0.0), setting.clock, lambda: None)
    recover(host.node, setting.log, skip={where})
    assert Hop("@s") not in host.node.ends
    assert "s" not in core.routing.crt


def test_a_connection_that_ends_while_its_link_begins_gives_way_to_the_next() -> None:
    setting = Logged()
    setting.host.lost(setting.wires["A"], setting.wires["A"].peer)
    first, second = Recorded(), Recorded()
    first.abort = second.abort = lambda: None  # type: ignore[method-assign]
    setting.host.accept(first, Hello(PROTOCOL_VERSION, "broker", "A", "another life"))
    first.ended = True
    setting.host.accept(second, Hello(PROTOCOL_VERSION, "broker", "A", "another life"))
    assert first.writes == second.writes == []
    setting.commit()
    assert first.writes == []
    [frame, *_] = Splitter().feed(b"".join(second.writes))
    assert isinstance(decode(frame[PREFIX_SIZE:]), Hello)
    assert setting.host.neighbours[BrokerName("A")].wire is second


def test_a_name_is_taken_while_the_link_of_its_client_begins() -> None:
    setting = Logged()
    first, second = Recorded(), Recorded()
    setting.host.accept(first, Hello(PROTOCOL_VERSION, "client", "x", "one"))
    with pytest.raises(NameTaken, match="connected already"):
        setting.host.accept(second, Hello(PROTOCOL_VERSION, "client", "x", "two"))
    setting.commit()
    assert first.peer.link.connected
    assert setting.host.node.ends[Hop("@x")] is first.peer
