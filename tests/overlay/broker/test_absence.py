"""A neighbour that cannot be reached: brokers go on without it, and it learns when it is back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from overlay.broker.core import Broker, Taken
from overlay.broker.reach import REPORT_LIMIT, Missing
from overlay.effects import Effect, Send
from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.hosts.host import Host
from overlay.hosts.inprocess import InProcess
from overlay.hosts.settings import ABSENT_AFTER_S
from overlay.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    BrokerName,
    Done,
    Hello,
    Hop,
    Join,
    Operation,
    Pub,
    Reachability,
)
from overlay.wire.frames import pack
from tests.overlay.broker.test_core import broker, joined, op, sent, tell
from tests.overlay.hosts.test_host import Recorded
from tests.testing.test_inprocess import Ear, attach

ALL = Filter(class_="p1")
B1, B3 = BrokerName("B1"), BrokerName("B3")


def requests(effects: list[Effect], to: str) -> list[int]:
    """The numbers of what a neighbour is asked."""
    return [
        message.req
        for hops, message in sent(effects)
        if to in hops and isinstance(message, Join | Operation)
    ]


def is_let_in(effects: list[Effect]) -> bool:
    """Whether the client D is told that its join, which was its first request, is done."""
    return any(
        hops == ("@D",) and isinstance(done, Done) and (done.req, done.code) == (1, "")
        for hops, done in sent(effects)
    )


# --- nothing waits for it ---


def test_what_waits_only_for_the_absent_neighbour_is_answered_when_it_is_lost() -> None:
    core = broker("B1", "B3")
    asked = tell(core, "@D", Join(1, "D", ""))
    [one] = requests(asked, "B1")
    tell(core, "B1", Done(one))
    assert is_let_in(core.link_down(B3, 0.0))


def test_what_waits_for_others_too_still_does() -> None:
    core = broker("B1", "B3")
    [one] = requests(tell(core, "@D", Join(1, "D", "")), "B1")
    assert not is_let_in(core.link_down(B3, 0.0))
    assert is_let_in(tell(core, "B1", Done(one)))


def test_the_absent_neighbour_is_told_everything_but_not_waited_for() -> None:
    core = broker("B1")
    core.link_down(B1, 0.0)
    joins = tell(core, "@D", Join(1, "D", ""))
    assert [type(message) for _, message in sent(joins)] == [Join, Done]
    advertised = tell(core, "@D", op("adv", "D", 2, ALL))
    assert [type(message) for _, message in sent(advertised)] == [Operation, Done]
    assert requests(advertised, "B1") != [0], "an answer tells when the neighbour has caught up"


def test_late_answers_are_counted_and_change_nothing() -> None:
    core = broker("B1", "B3")
    before = requests(tell(core, "@D", Join(1, "D", "")), "B1")
    core.link_down(B1, 0.0)
    meanwhile = requests(tell(core, "B3", op("adv", "E", 1, ALL)), "B1")
    core.link_up(B1, 0.0)
    after = requests(tell(core, "B3", op("adv", "E", 2, ALL)), "B1")
    assert core.is_late(Hop("B1")) and not core.at_rest
    for late in before + meanwhile:
        assert tell(core, "B1", Done(late)) == []
    assert not core.is_late(Hop("B1"))
    assert (("B3",), Done(102)) in sent(tell(core, "B1", Done(*after)))
    with pytest.raises(ProtocolError):
        tell(core, "B1", Done(before[0]))


def test_a_late_answer_is_not_taken_for_one_that_is_waited_for() -> None:
    core = broker("B1", "B3")
    core.link_down(B1, 0.0)
    [late] = requests(tell(core, "B3", op("adv", "E", 1, ALL)), "B1")
    core.link_up(B1, 0.0)
    [asked] = requests(tell(core, "B3", op("adv", "E", 2, ALL)), "B1")
    assert tell(core, "B1", Done(late)) == []
    assert sent(tell(core, "B1", Done(asked))) == [(("B3",), Done(102))]


def test_a_neighbour_that_flaps_is_waited_for_only_for_what_it_was_asked_while_it_was_there() -> (
    None
):
    core = broker("B1", "B3")
    late: list[int] = []
    for seq in range(1, 7, 2):
        late += requests(tell(core, "B3", op("adv", "E", seq, ALL)), "B1")
        assert (("B3",), Done(100 + seq)) in sent(core.link_down(B1, 0.0))
        late += requests(tell(core, "B3", op("adv", "E", seq + 1, ALL)), "B1")
        core.link_up(B1, 0.0)
    [asked] = requests(tell(core, "B3", op("adv", "E", 9, ALL)), "B1")
    assert sent(tell(core, "B1", Done(asked))) == [(("B3",), Done(109))]
    for req in reversed(late):
        assert tell(core, "B1", Done(req)) == []
    assert core.at_rest


def test_after_a_reset_nothing_is_late() -> None:
    core = broker("B1", "B3")
    core.link_down(B1, 0.0)
    [late] = requests(tell(core, "B3", op("adv", "E", 1, ALL)), "B1")
    core.link_reset(B1, 0.0)
    assert not core.is_late(Hop("B1"))
    with pytest.raises(ProtocolError):
        tell(core, "B1", Done(late))
    [asked] = requests(tell(core, "B3", op("adv", "E", 2, ALL)), "B1")
    assert sent(tell(core, "B1", Done(asked))) == [(("B3",), Done(102))], "it is waited for"


def test_losing_a_neighbour_twice_is_losing_it_once() -> None:
    core = broker("B1", "B3")
    assert core.link_down(B1, 0.0)
    assert core.link_down(B1, 0.0) == []
    assert core.link_up(B1, 0.0)
    assert core.link_up(B1, 0.0) == []


# --- every broker that can be reached knows who cannot ---


def test_who_is_missing_is_told_to_the_others_and_taken_back() -> None:
    core = broker("B1", "B3", "B4")
    assert sent(core.link_down(B3, 0.0)) == [(("B1", "B4"), Reachability("B2", "B3", False))]
    assert core.reach.missing == [(Missing(B3, BrokerName("B2")), Hop("B3"))]
    assert sent(core.link_up(B3, 0.0)) == [(("B1", "B4"), Reachability("B2", "B3", True))]
    assert core.reach.missing == []


def test_reports_are_passed_on_once_and_say_behind_whom() -> None:
    core = broker("B1", "B3")
    report = Reachability("B7", "B8", False)
    assert sent(tell(core, "B3", report)) == [(("B1",), report)]
    assert tell(core, "B3", report) == []
    assert [str(missing) for missing in core.reach.behind(Hop("B3"))] == ["B8 (no link from B7)"]
    assert core.reach.behind(Hop("B1")) == []
    back = Reachability("B7", "B8", True)
    assert sent(tell(core, "B3", back)) == [(("B1",), back)]
    assert tell(core, "B3", back) == []


def test_a_link_that_is_reset_forgets_what_came_over_it_and_tells_the_rest() -> None:
    core = broker("B1", "B3", "B4")
    tell(core, "B3", Reachability("B7", "B8", False))
    core.link_down(BrokerName("B4"), 0.0)
    told = [(hops, message) for hops, message in sent(core.link_reset(B3, 0.0))]
    assert (("B1", "B4"), Reachability("B7", "B8", True)) in told
    assert (("B3",), Reachability("B2", "B4", False)) in told
    assert [missing.broker for missing, _ in core.reach.missing] == ["B4"]


@pytest.mark.parametrize(
    "source, report",
    [
        ("@D", Reachability("B7", "B8", False)),
        ("?1", Reachability("B7", "B8", False)),
        ("B3", Reachability("B2", "B8", False)),
        ("B3", Reachability("B8", "B2", False)),
        ("B3", Reachability("B8", "no name", False)),
        ("B1", Reachability("B4", "B5", False)),
        ("B1", Reachability("B4", "B5", True)),
    ],
)
def test_who_reports_what_it_cannot_know_loses_its_link(source: str, report: Any) -> None:
    core = broker("B1", "B3")
    joined(core, "D")
    tell(core, "B3", Reachability("B4", "B5", False))
    with pytest.raises(ProtocolError):
        tell(core, source, report)


def test_reports_are_bounded() -> None:
    core = broker("B1")
    for n in range(REPORT_LIMIT):
        tell(core, "B1", Reachability("B1", f"X{n}", False))
    with pytest.raises(ProtocolError):
        tell(core, "B1", Reachability("B1", "X", False))


# --- hosts ---


class Told(Broker):
    """Keeps which links it was told of, in order."""

    told: list[tuple[str, str]]

    def link_down(self, neighbour: BrokerName, now: float) -> list[Effect]:
        self.told.append(("down", neighbour))
        return super().link_down(neighbour, now)

    def link_up(self, neighbour: BrokerName, now: float) -> list[Effect]:
        self.told.append(("up", neighbour))
        return super().link_up(neighbour, now)

    def link_reset(self, neighbour: BrokerName, now: float) -> list[Effect]:
        self.told.append(("reset", neighbour))
        return super().link_reset(neighbour, now)

    def take(
        self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
    ) -> Taken:
        self.told.append(("message", source))
        return super().take(source, messages, now, start)


class Alone:
    """The host of M, which A dials."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.core = Told(BrokerName("M"), [BrokerName("A")])
        self.core.told = []
        self.host = Host(self.core, {BrokerName("A"): 0.0}, self.clock, self.crash)
        self.host.start()
        self.wire = Recorded()

    def crash(self) -> None:
        raise

    def dial(self, life: str = "i-A", received: int = 0) -> None:
        self.wire = Recorded()
        mine = self.host.neighbours[BrokerName("A")].link.incarnation
        self.host.accept(self.wire, Hello(PROTOCOL_VERSION, "broker", "A", life, mine, received))

    def lose(self) -> None:
        self.host.lost(self.wire, self.wire.peer)


def test_a_neighbour_that_never_came_is_missed_after_a_while() -> None:
    alone = Alone()
    alone.clock.advance(ABSENT_AFTER_S - 0.01)
    assert alone.core.told == []
    alone.clock.advance(0.02)
    assert alone.core.told == [("down", "A")]
    assert alone.host.status()["unreachable"] == [
        {"broker": "A", "reported_by": "M", "via": "A"},
    ]
    alone.dial()
    assert alone.core.told == [("down", "A"), ("up", "A")]
    assert alone.host.status()["unreachable"] == []


def test_a_short_break_goes_unnoticed() -> None:
    alone = Alone()
    alone.dial()
    for _ in range(5):
        alone.lose()
        alone.clock.advance(ABSENT_AFTER_S - 0.01)
        alone.dial()
    alone.clock.advance(10 * ABSENT_AFTER_S)
    assert alone.core.told == []


def test_a_neighbour_that_is_back_is_back_before_anything_that_it_says() -> None:
    alone = Alone()
    alone.dial()
    alone.lose()
    alone.clock.advance(ABSENT_AFTER_S + 0.01)
    alone.dial()
    alone.host.arrived(alone.wire.peer, [pack(Join(0, "D", "A"))])
    assert alone.core.told == [("down", "A"), ("up", "A"), ("message", "A")]


def test_a_new_life_is_told_as_a_reset_and_not_as_a_return() -> None:
    alone = Alone()
    alone.dial()
    alone.lose()
    alone.clock.advance(ABSENT_AFTER_S + 0.01)
    alone.dial("i-A2")
    assert alone.core.told == [("down", "A"), ("reset", "A")]
    assert alone.core.reach.missing == []


def test_a_neighbour_that_was_expelled_is_missed_too() -> None:
    alone = Alone()
    alone.dial()
    alone.host.expel(alone.wire.peer, ProtocolError("that was wrong"))
    alone.clock.advance(ABSENT_AFTER_S + 0.01)
    assert alone.core.told == [("down", "A")]


def overlay() -> InProcess:
    return InProcess({"B1": ["B2"], "B2": ["B1", "B3"], "B3": ["B2"]})


def test_in_process_the_reachable_go_on_and_the_absent_learns_when_it_is_back() -> None:
    brokers = overlay()
    brokers.cut("B2", "B3")
    ear = Ear()
    a1 = brokers.attach("B1", Hop("@A1"), ear)
    a1.send(Join(1, "A1", ""))
    assert ear.heard == []
    brokers.advance(ABSENT_AFTER_S)
    assert [type(message) for message in ear.heard] == [Done]
    a1.send(Operation(2, "adv", "A1", 2, ALL))
    assert len(ear.heard) == 2
    assert [m.broker for m, _ in brokers.brokers[B1].reach.missing] == ["B3"]
    brokers.mend("B2", "B3")
    assert brokers.brokers[B1].reach.missing == []
    w, hears = attach(brokers, "B3", "W")
    w.send(Operation(2, "sub", "W", 2, ALL))
    a1.send(Pub("A1", 3, {"class": "p1"}))
    assert [m.seq for m in hears.heard if isinstance(m, Pub)] == [3]
    assert all(core.at_rest for core in brokers.brokers.values())


def test_only_links_that_there_are_can_be_cut() -> None:
    with pytest.raises(KeyError):
        overlay().cut("B1", "B3")


def test_effects_of_an_absence_are_messages_only() -> None:
    """A host may carry them out between two turns."""
    core = broker("B1", "B3")
    tell(core, "@D", Join(1, "D", ""))
    assert all(isinstance(effect, Send) for effect in core.link_down(B1, 0.0))
