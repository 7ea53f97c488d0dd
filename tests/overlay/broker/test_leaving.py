"""A client that leaves is gone when every broker has forgotten it; then its name is free."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.broker.core import Broker
from overlay.effects import Close, Effect, Send
from overlay.errors import NameAway, NameTaken, from_code
from overlay.filters import Filter
from overlay.hosts.settings import TAKEOVER_S
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    BrokerName,
    ClientName,
    Done,
    Goodbye,
    Hello,
    Hop,
    Join,
    Leave,
    Operation,
    client_hop,
)
from overlay.wire.frames import pack
from tests.overlay.hosts.test_host import Recorded, Setting

EVERYTHING = Filter(cls="x")


class Core:
    """Broker B2 between B1 and B3, with its client D."""

    def __init__(self) -> None:
        self.broker = Broker(BrokerName("B2"), [BrokerName("B1"), BrokerName("B3")])
        self.joins("D")

    def tell(self, source: str, message: AnyMessage) -> list[Effect]:
        return self.broker.receive(Hop(source), message, 0.0)

    def joins(self, client: str) -> None:
        self.answer(self.tell(f"@{client}", Join(1, client, "")))

    def answer(self, effects: list[Effect], *neighbours: str) -> list[Effect]:
        """Let the neighbours, all or these, do what they were asked."""
        answers: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Join | Leave):
                (hop,) = effect.hops
                if not neighbours or hop in neighbours:
                    answers += self.tell(hop, Done(effect.message.req))
        return answers

    @property
    def knows(self) -> set[str]:
        return set(self.broker.routing.crt)


def closes(effects: list[Effect]) -> list[Close]:
    return [effect for effect in effects if isinstance(effect, Close)]


def test_its_link_is_closed_when_every_neighbour_has_answered() -> None:
    core = Core()
    told = core.broker.client_leaves("D", 0.0)
    assert not closes(told) and core.knows == set()
    assert not closes(core.answer(told, "B1"))
    assert closes(core.answer(told, "B3")) == [Close(client_hop("D"), "", "")]
    assert core.broker.at_rest


def test_a_neighbour_is_answered_when_those_behind_have_answered() -> None:
    core = Core()
    core.tell("B1", Join(4, "E", "B1", 7))
    effects = core.tell("B1", Leave(5, "E", "B1", 7))
    assert [effect.hops for effect in effects if isinstance(effect, Send)] == [("B3",)]
    [done] = core.answer(effects)
    assert done == Send((Hop("B1"),), Done(5))


def test_a_neighbour_whose_client_is_not_here_is_answered_at_once() -> None:
    """Of two clients of one name the other stayed, so there is nothing to forget."""
    core = Core()
    [done] = core.tell("B1", Leave(5, "D", "B1", 7))
    assert done == Send((Hop("B1"),), Done(5))
    assert core.knows == {"D"}


def test_one_whose_link_breaks_meanwhile_is_not_closed_on() -> None:
    core = Core()
    told = core.broker.client_leaves("D", 0.0)
    assert core.broker.client_left("D", 0.0) == []
    core.joins("D")
    assert not closes(core.answer(told)), "this is somebody else"
    assert core.knows == {"D"}


def test_one_that_was_not_let_in_yet_leaves_as_well() -> None:
    core = Core()
    core.tell("@F", Join(1, "F", ""))
    told = core.broker.client_leaves("F", 0.0)
    assert closes(core.answer(told)) == [Close(client_hop("F"), "", "")]
    assert core.broker.client_leaves("nobody", 0.0) == [Close(client_hop("nobody"), "", "")]


def test_a_neighbour_in_a_new_life_has_forgotten_it() -> None:
    core = Core()
    told = core.broker.client_leaves("D", 0.0)
    core.answer(told, "B1")
    assert closes(core.broker.link_reset(BrokerName("B3"), 0.0))


@pytest.mark.parametrize("before", [True, False])
def test_nobody_waits_for_a_neighbour_that_cannot_be_reached(before: bool) -> None:
    core = Core()
    if before:
        core.broker.link_down(BrokerName("B3"), 0.0)
    told = core.broker.client_leaves("D", 0.0)
    done = core.answer(told, "B1")
    if not before:
        done += core.broker.link_down(BrokerName("B3"), 0.0)
    assert closes(done) == [Close(client_hop("D"), "", "")]


def test_a_leave_of_another_life_changes_nothing() -> None:
    core = Core()
    core.tell("B1", Join(4, "E", "B1", 7))
    core.tell("B1", Leave(5, "E", "B1", 6))
    assert core.knows == {"D", "E"}


# --- at the host: what happens to its connection ---


class LeavingSetting(Setting):
    """Broker M between A and B, with a subscriber s that A's client p publishes for."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribed("s")

    def arrives(self, name: str, *values: Any) -> None:
        self.host.arrived(self.wires[name].peer, [pack(value) for value in values])

    def hello(self, name: str, incarnation: str) -> Recorded:
        wire = Recorded()
        self.host.accept(wire, Hello(PROTOCOL_VERSION, "client", name, incarnation))
        return wire

    def forgotten_by(self, name: str) -> None:
        asked = [m.req for m in self.wires[name].take() if isinstance(m, Leave)]
        self.say(name, *[Done(req) for req in asked])

    def lose(self, name: str) -> None:
        self.host.lost(self.wires[name], self.wires[name].peer)


def test_its_connection_stays_until_every_broker_has_forgotten_it() -> None:
    setting = LeavingSetting()
    wire = setting.wires["s"]
    setting.arrives("s", Goodbye())
    assert wire.goodbye is None
    setting.forgotten_by("A")
    assert wire.goodbye is None
    setting.forgotten_by("B")
    assert wire.goodbye == Goodbye()
    setting.hello("s", "another")


def test_what_it_says_after_its_goodbye_is_not_heard() -> None:
    setting = LeavingSetting()
    setting.arrives("s", Goodbye())
    setting.arrives("s", Operation(9, "adv", "s", 9, EVERYTHING), Join(10, "s", ""))
    assert not [m for m in setting.wires["A"].take() if isinstance(m, Operation | Join)]
    assert setting.wires["s"].goodbye is None


def test_a_newcomer_waits_until_it_has_left() -> None:
    setting = LeavingSetting()
    setting.arrives("s", Goodbye())
    with pytest.raises(NameTaken, match="is leaving"):
        setting.hello("s", "another")
    setting.lose("s")
    newcomer = setting.hello("s", "another")
    setting.forgotten_by("A")
    setting.forgotten_by("B")
    assert newcomer.goodbye is None, "its predecessor was forgotten, not it"


# --- at the host: who may take a name ---


def test_an_outage_does_not_cost_a_client_its_name() -> None:
    setting = LeavingSetting()
    setting.lose("s")
    setting.clock.advance(0.3)
    with pytest.raises(NameAway, match=r"lost its connection 0\.3 s ago and may come back"):
        setting.hello("s", "another")
    peer = setting.wires["s"].peer
    link = setting.wires["s"].peer.link
    wire = Recorded()
    setting.host.accept(wire, Hello(PROTOCOL_VERSION, "client", "s", "i-s", link.incarnation))
    assert wire.peer is peer


def test_a_program_that_was_restarted_gets_its_name_before_the_grace_is_over() -> None:
    setting = LeavingSetting()
    setting.lose("s")
    setting.clock.advance(TAKEOVER_S)
    newcomer = setting.hello("s", "another")
    assert newcomer.peer is not setting.wires["s"].peer


def test_the_refusal_can_be_told_from_that_of_a_client_that_is_there() -> None:
    assert type(from_code("name-away", "")) is NameAway
    assert issubclass(NameAway, NameTaken)


# --- over a whole tree ---

TREE = {"B1": ["B2", "B3"], "B2": ["B1", "B4", "B5"], "B3": ["B1"], "B4": ["B2"], "B5": ["B2"]}


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_left_gets_in_at_once_at_any_broker(seed: int) -> None:
    tape = Tape(seed=seed)
    sim = Simulator(TREE, tape.choose)
    lives: list[int] = []

    def receive(message: AnyMessage, now: float) -> list[AnyMessage]:
        assert isinstance(message, Done) and not message.code, message
        lives.append(message.number)
        sim.leave("C")
        return []

    def visit() -> None:
        if not sim.connected("C"):
            sim.connect("C", ("B1", "B4", "B3", "B5")[len(lives) % 4], receive)
            sim.send("C", Join(1, "C", ""))
        if len(lives) < 100:
            sim.at(0.0005, visit)

    visit()
    sim.run()
    assert len(lives) == 100
    assert lives == sorted(set(lives)), "no life is issued twice, and they are in order"
    for broker in sim.brokers.values():
        assert broker.at_rest and ClientName("C") not in broker.routing.crt
