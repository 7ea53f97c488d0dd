"""The host with recorded wires instead of sockets: what one turn writes, and in which order."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from twisted.internet.task import Clock

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Effect, SetTimer
from overlay.filters import Filter
from overlay.hosts.host import Host
from overlay.hosts.peers import Peer
from overlay.hosts.rounds import CLIENT_UNITS, FRESH_UNITS, ROUND_UNITS, Rounds
from overlay.hosts.settings import CLIENT_GRACE_S, Settings
from overlay.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    BrokerName,
    Done,
    Goodbye,
    Hello,
    Hop,
    Inspect,
    Join,
    Message,
    Operation,
    Pub,
    Report,
    Role,
)
from overlay.node.costs import MESSAGE_UNITS
from overlay.wire.codec import decode
from overlay.wire.frames import BROKER_FRAME_LIMIT, PREFIX_SIZE, Splitter, pack
from overlay.wire.link import ACK_DELAY_S, WINDOW_MESSAGES, Link


class Recorded:
    """A wire that keeps what is written to it."""

    address = "recorded"
    ended = False

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.goodbye: Goodbye | None = None

    def opened(self, peer: Peer) -> None:
        self.peer = peer

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self, goodbye: Goodbye) -> None:
        self.goodbye = goodbye

    def abort(self) -> None:
        raise AssertionError("nobody should be cut off here")

    def take(self) -> list[Message]:
        """The messages that were written since the last time."""
        frames = Splitter().feed(b"".join(self.writes))
        self.writes.clear()
        values = [decode(frame[PREFIX_SIZE:]) for frame in frames]
        return [value for value in values if isinstance(value, Message)]


class Setting:
    """Broker M between A and B, which both dial it, with clients as they come."""

    def __init__(self, core: type[Broker] = Broker, *, settings: Settings | None = None) -> None:
        self.clock = Clock()
        names = [BrokerName("A"), BrokerName("B")]
        self.core = core(BrokerName("M"), names)
        self.host = Host(
            self.core, dict.fromkeys(names, 0.0), self.clock, self.crash, settings=settings
        )
        self.made(self.host)
        self.wires: dict[str, Recorded] = {}
        self.connect("broker", "A")
        self.connect("broker", "B")

    def made(self, host: Host) -> None:
        """What is done to a host before anybody connects."""

    def crash(self) -> None:
        raise  # The host calls it while it handles the exception.

    def connect(self, role: Role, name: str) -> None:
        self.wires[name] = Recorded()
        self.host.accept(self.wires[name], Hello(PROTOCOL_VERSION, role, name, f"i-{name}"))

    def say(self, name: str, *messages: Message) -> None:
        self.arrive(name, *messages)
        self.clock.advance(0)  # A round may have been over.

    def arrive(self, name: str, *messages: Message) -> None:
        self.host.arrived(self.wires[name].peer, [pack(message) for message in messages])

    def subscribed(self, name: str) -> None:
        """A client that has joined and subscribed to everything that A's client p publishes."""
        self.connect("client", name)
        self.say(name, Join(1, name, ""))
        self.answer("A")
        self.answer("B")
        self.say("A", Join(0, "p", "A"), Operation(0, "adv", "p", 1, Filter(cls="x")))
        self.say(name, Operation(2, "sub", name, 1, Filter(cls="x")))
        self.answer("A")
        for wire in self.wires.values():
            wire.take()

    def round(self) -> None:
        """What a reactor does between two looks at its sockets: calls that are due by now. A
        `Clock` would go on with what those have asked for."""
        due = [call for call in self.clock.calls if call.getTime() <= self.clock.seconds()]
        for call in due:
            self.clock.calls.remove(call)
            call.func(*call.args, **call.kw)

    def answer(self, name: str) -> None:
        """Say done to all that the neighbour was asked."""
        asked = [m.req for m in self.wires[name].take() if isinstance(m, Join | Operation)]
        self.say(name, *[Done(req) for req in asked if req])


def test_a_turn_writes_each_link_once_and_forwards_the_bytes_that_came() -> None:
    setting = Setting()
    setting.subscribed("s")
    frames = [pack(Pub("p", n, {"cls": "x", "n": n}, b"payload")) for n in range(200)]
    setting.host.arrived(setting.wires["A"].peer, frames)
    assert len(setting.wires["s"].writes) == 1
    assert setting.wires["s"].writes[0].startswith(b"".join(frames))


def test_a_publication_is_decoded_once_and_encoded_never_however_many_want_it() -> None:
    setting = Setting()
    setting.subscribed("s")
    for name in ("t", "u", "v"):
        setting.connect("client", name)
        setting.say(name, Join(1, name, ""))
        setting.answer("A")
        setting.answer("B")
        setting.say(
            name, *[Operation(0, "sub", name, n, Filter(cls="x", n=(0, n))) for n in (1, 2)]
        )
    frames = [pack(Pub("p", n, {"cls": "x", "n": 1})) for n in range(10)]
    setting.clock.advance(ACK_DELAY_S)  # No acknowledgement is left to ride along.
    calls: Counter[str] = Counter()

    def count(frame: object, event: str, what: Any) -> None:
        if event == "c_call" and type(what.__self__).__module__.startswith("msgspec"):
            calls[what.__name__] += 1

    sys.setprofile(count)
    try:
        setting.host.arrived(setting.wires["A"].peer, frames)
    finally:
        sys.setprofile(None)
    for name in "stuv":
        assert [m for m in setting.wires[name].take() if isinstance(m, Pub)] == [
            Pub("p", n, {"cls": "x", "n": 1}) for n in range(10)
        ]
    assert calls == {"decode": 10}


def test_closing_on_one_peer_does_not_cost_another_its_messages() -> None:
    """Two clients called x joined at once; M's loses against A's, whose name sorts first."""
    setting = Setting()
    setting.subscribed("s")
    setting.connect("client", "x")
    setting.say("x", Join(1, "x", ""))
    setting.say("A", Join(9, "x", "A"), *[Pub("p", n, {"cls": "x"}) for n in range(3)])
    assert setting.wires["x"].goodbye is not None
    assert setting.wires["x"].goodbye.code == "name-taken"
    assert setting.wires["s"].take() == [Pub("p", n, {"cls": "x"}) for n in range(3)]


def test_what_a_client_says_after_it_was_closed_on_is_not_heard() -> None:
    setting = Setting()
    setting.subscribed("s")
    setting.say("A", Join(0, "taken", "A"))
    setting.connect("client", "taken")
    setting.say("taken", Join(1, "taken", ""), Pub("taken", 1, {"cls": "x"}))
    assert setting.wires["taken"].goodbye is not None
    assert setting.wires["taken"].goodbye.code == "name-taken"
    assert setting.wires["s"].take() == []


def test_a_report_that_is_too_large_is_refused_with_the_reason() -> None:
    class Talkative(Broker):
        def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
            effects = super().receive(source, message, now)
            if isinstance(message, Inspect):
                (answer,) = effects
                report: Any = answer
                report.message.body["padding"] = "x" * BROKER_FRAME_LIMIT
            return effects

    setting = Setting(Talkative)
    setting.connect("operator", "o")
    setting.say("o", Inspect(7, "tables"), Inspect(8, "status"))
    refused, status = setting.wires["o"].take()
    assert isinstance(refused, Done)
    assert (refused.req, refused.code) == (7, "too-large")
    assert isinstance(status, Report)
    assert status.req == 8


class Ticking(Broker):
    """A core that sets, replaces and cancels timers when it is told that something is done."""

    def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
        if isinstance(message, Done):
            effects: list[Effect] = [
                SetTimer("replaced", 1.0),
                SetTimer("cancelled", 1.0),
                CancelTimer("cancelled"),
                CancelTimer("never set"),
                SetTimer("replaced", 3.0),
            ]
            return effects
        return super().receive(source, message, now)

    def wake(self, key: str, now: float) -> list[Effect]:
        raise LookupError(key)


def test_timers_come_back_to_the_core_and_an_error_there_is_a_crash() -> None:
    setting = Setting(Ticking)
    setting.say("A", Done(1))
    setting.clock.advance(2.9)
    with pytest.raises(LookupError, match="replaced"):
        setting.clock.advance(0.2)
    assert setting.clock.getDelayedCalls() == []


def test_a_neighbour_in_a_new_life_is_told_everything_anew() -> None:
    setting = Setting()
    setting.subscribed("s")
    setting.host.lost(setting.wires["B"], setting.wires["B"].peer)
    setting.wires["B"] = Recorded()
    hello = Hello(PROTOCOL_VERSION, "broker", "B", "another life")
    setting.host.accept(setting.wires["B"], hello)
    told = setting.wires["B"].take()
    assert [m.client for m in told if isinstance(m, Join)] == ["p", "s"]
    assert [m.client for m in told if isinstance(m, Operation)] == ["p"]


def test_a_client_with_many_operations_takes_turns_with_the_others() -> None:
    """Each of its turns ends after so much work, and everybody else has one before the next."""
    setting = Setting()
    setting.subscribed("s")
    setting.connect("client", "rude")
    setting.say("rude", Join(1, "rude", ""))
    setting.answer("A")
    setting.answer("B")
    setting.clock.advance(0)
    flood = [Operation(0, "sub", "rude", n, Filter(cls="y", n=n)) for n in range(1000)]
    setting.arrive("rude", *flood)
    rude = setting.wires["rude"].peer
    left = len(rude.link.inbox)
    per_round = (ROUND_UNITS + CLIENT_UNITS) / MESSAGE_UNITS + 1
    assert 1000 - per_round <= left < 1000
    setting.round()
    after = len(rude.link.inbox)
    assert 0 < left - after <= per_round
    # A publication that comes now is there after the next turn, not after the whole flood.
    setting.arrive("A", Pub("p", 1, {"cls": "x"}))
    setting.round()
    assert Pub("p", 1, {"cls": "x"}) in setting.wires["s"].take()
    assert len(rude.link.inbox) >= 1000 - 4 * per_round
    setting.clock.advance(0)
    assert not rude.link.inbox
    assert setting.core.routing.prt.count_of("rude") == 1000


def test_an_overdrawn_turn_is_paid_for_before_the_next_one() -> None:
    rounds = Rounds()
    first, second = (Peer(Hop(name), Link(name)) for name in ("@a", "@b"))
    rounds.add(first)
    rounds.add(second)
    assert rounds.next() is first
    rounds.use(first, 4 * CLIENT_UNITS)
    rounds.add(first)
    turns = []
    for _ in range(5):
        peer = rounds.next()
        assert peer is not None
        rounds.use(peer, CLIENT_UNITS)
        rounds.add(peer)
        turns.append(peer.hop)
    assert turns == ["@b", "@b", "@b", "@b", "@a"]
    rounds.rest(first)
    assert first.units <= 0


def test_clients_that_vanish_at_once_leave_over_several_rounds() -> None:
    setting = Setting()
    for n in range(200):
        setting.connect("client", f"c{n}")
        setting.say(f"c{n}", Join(1, f"c{n}", ""))
        setting.answer("A")
        setting.answer("B")
        setting.clock.advance(0)
    for n in range(200):
        setting.host.lost(setting.wires[f"c{n}"], setting.wires[f"c{n}"].peer)
    before = len(setting.core.routing.crt)
    setting.clock.rightNow += CLIENT_GRACE_S
    setting.round()
    gone = before - len(setting.core.routing.crt)
    assert 0 < gone <= ROUND_UNITS / MESSAGE_UNITS + 1
    # Nor are the links of all ended at once: each writes two lines to the log.
    assert 0 < 200 - len(setting.host.status()["clients"]) <= ROUND_UNITS / MESSAGE_UNITS + 1
    # One of them that comes back need not wait for the others.
    setting.connect("client", "c199")
    setting.say("c199", Join(1, "c199", ""))
    setting.clock.advance(0)
    assert list(setting.core.routing.crt) == ["c199"]


def test_a_peer_that_comes_with_its_first_message_is_served_before_those_that_have_more() -> None:
    rounds = Rounds()
    busy, fresh, late = (Peer(Hop(name), Link(name)) for name in ("@busy", "@fresh", "@late"))
    rounds.come(busy)
    while not rounds.over:
        assert rounds.next() is busy
        rounds.use(busy, CLIENT_UNITS)
        rounds.add(busy)
    rounds.come(fresh)
    assert not rounds.over
    assert rounds.next() is fresh
    rounds.use(fresh, FRESH_UNITS)
    rounds.come(late)
    assert rounds.over  # There is a limit to that, too.
    rounds.come(fresh)
    rounds.used = 0
    assert [rounds.next(), rounds.next(), rounds.next()] == [late, busy, fresh]


def test_the_client_with_most_in_its_queue_is_cut_off_when_all_have_too_much() -> None:
    """At the limit nobody is, one byte beyond it one is."""

    def left(limit: int) -> list[str]:
        setting = Setting(settings=Settings(client_outboxes_bytes=limit))
        for name in ("s", "t"):
            setting.subscribed(name)
        peers = [setting.wires[name].peer for name in ("s", "t")]
        # What one and the other read is in flight, the rest waits.
        setting.say("A", *[Pub("p", n, {"cls": "x"}) for n in range(WINDOW_MESSAGES - 10)])
        setting.say("A", *[Pub("p", n, {"cls": "x"}) for n in range(20)])
        sizes.append(sum(peer.link.backlog_bytes for peer in peers))
        return [name for name in ("s", "t") if setting.wires[name].goodbye is None]

    sizes: list[int] = []
    assert left(1 << 30) == ["s", "t"]
    assert left(sizes[0]) == ["s", "t"]
    assert len(left(sizes[0] - 1)) == 1
