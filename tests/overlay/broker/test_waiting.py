"""What waits for a decision: the turn of each, when it is released."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.broker.core import Broker
from overlay.broker.engine import Engine, Undecided
from overlay.broker.turns import WORK
from overlay.effects import Effect, Send
from overlay.filters import Filter
from overlay.messages import BrokerName, Done, Hop, Join, Kind, Leave, Operation, Version
from overlay.tables.routing import Outcome, Scope

#: What is held while the gate is closed.
GATED = Filter(class_="gated")

B1 = Hop("B1")


class Bystander(Engine):
    """An engine at rest."""

    def receive(self, source: Hop, body: Any, now: float) -> list[Effect]:
        raise AssertionError("nobody says anything")

    def inspect(self, argument: str, now: float) -> tuple[Any, list[Effect]]:
        return None, []

    def completed(self, context: Any, now: float) -> list[Effect]:
        return []

    def transactions(self) -> tuple[Version, ...]:
        return ()

    def undecided(self) -> tuple[Undecided, ...]:
        return ()


class Gate(Bystander):
    """Holds certain operations until it opens, and tells what has passed."""

    closed = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.seen: list[int] = []

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        return self.closed and isinstance(message, Operation) and message.filter.overlaps(GATED)

    def operation_applied(
        self, source: Hop, message: Operation | Leave, outcome: Outcome | None
    ) -> None:
        if isinstance(message, Operation):
            self.seen.append(message.seq)


class Chain(Bystander):
    """Carries out operations one after the other; each submits the next."""

    def go(self, operations: list[Operation]) -> list[Effect]:
        if not operations:
            return self.broker.release(0.0)  # As engines do when a transaction has ended.
        return self.broker.submit("chain", B1, operations[0], operations[1:], 0.0)

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        started = self.broker.start("chain", source, operation, context, now)
        return [*started, *self.go(context)]


def sub(number: int, filter: Filter) -> Operation:
    return Operation(0, "sub", "C", number, filter)


class Overlay:
    def __init__(self) -> None:
        self.broker = Broker(
            BrokerName("B2"), [BrokerName("B1")], engines={"chain": Chain, "gate": Gate}
        )
        self.broker.receive(B1, Join(0, "C", "B1"), 0.0)

    @property
    def chain(self) -> Chain:
        engine = self.broker.engines["chain"]
        assert isinstance(engine, Chain)
        return engine

    @property
    def gate(self) -> Gate:
        engine = self.broker.engines["gate"]
        assert isinstance(engine, Gate)
        return engine

    def plain(self, number: int, filter: Filter) -> None:
        self.broker.receive(B1, sub(number, filter), 0.0)

    def open(self) -> list[int]:
        """Open the gate, and tell in which order what has waited was carried out."""
        self.gate.closed = False
        self.broker.release(0.0)
        assert self.broker.at_rest
        return self.gate.seen


def test_what_one_brings_with_it_comes_before_what_waited_behind_it() -> None:
    overlay = Overlay()
    overlay.chain.go([sub(1, GATED), sub(2, Filter(x=1)), sub(3, Filter(x=2))])
    overlay.plain(4, Filter(x=3))
    assert overlay.gate.seen == []
    assert overlay.open() == [1, 2, 3, 4]


def test_what_one_brings_with_it_and_has_to_wait_again_keeps_its_place() -> None:
    overlay = Overlay()

    class Half(Gate):
        def holds(self, source: Hop, message: Operation | Leave) -> bool:
            return super().holds(source, message) and (not self.half or message.seq != 1)

        half = False

    half = overlay.broker.engines["gate"] = Half(overlay.broker)
    overlay.chain.go([sub(1, GATED), sub(2, GATED), sub(3, Filter(x=2))])
    overlay.plain(4, Filter(x=3))
    half.half = True
    overlay.broker.release(0.0)
    assert half.seen == [1]
    assert overlay.open() == [1, 2, 3, 4]


def test_two_that_wait_are_carried_out_with_all_they_bring_one_after_the_other() -> None:
    overlay = Overlay()
    overlay.chain.go([sub(1, GATED), sub(2, Filter(x=1))])
    overlay.chain.go([sub(3, GATED), sub(4, Filter(x=2))])
    assert overlay.open() == [1, 2, 3, 4]


def test_what_finds_its_client_busy_when_it_is_released_goes_on_in_its_order() -> None:
    """They took turns for ever, one in the queue and one among what waits for the client."""
    broker = Broker(BrokerName("B2"), [], engines={"gate": Gate})
    broker.slice = 1
    here = Hop("@C")
    gate = broker.engines["gate"]
    assert isinstance(gate, Gate)

    def say(kind: Kind, name: str, x: int | None = None) -> None:
        filter = Filter({"class": name, "x": ... if x is None else (x, x + 9)})
        broker.receive(here, Operation(0, kind, "C", 0, filter), 0.0)

    broker.receive(here, Join(0, "C", ""), 0.0)
    for x in (100, 200):
        say("sub", "free", x)
    say("usub", "free")
    assert broker.is_busy(here)
    for x in (1, 2, 3):
        say("sub", "gated", x)
    while len(broker.waiting.queue) < 2:  # The third is still behind the client's long work.
        broker.wake(WORK, 0.0)
    seen = len(gate.seen)
    gate.closed = False
    broker.release(0.0)
    for _ in range(50):
        if len(broker.jobs):
            broker.wake(WORK, 0.0)
    assert broker.at_rest
    held = [entry.filter.predicates["x"].lo for entry in broker.routing.prt.of("C")]
    assert held == [1, 2, 3]
    assert gate.seen[seen:] == sorted(gate.seen[seen:]) and len(gate.seen) == seen + 3


class Admitting(Bystander):
    """Carries out operations of clients here, numbered when their turn has come."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.resumed = 0

    def resume(self, source: Hop, operation: Operation, context: Any, now: float) -> list[Effect]:
        self.resumed += 1
        if not self.broker.is_here(source):
            return []
        operation = self.broker.admit(source, operation, Scope(self.broker.versions.view()))
        return self.broker.start("admitting", source, operation, None, now)


def behind_long_work() -> tuple[Broker, Admitting]:
    """An engine's operation that has waited, and then found its client busy with an earlier one."""
    broker = Broker(BrokerName("B2"), [], engines={"admitting": Admitting, "gate": Gate})
    broker.slice = 1
    here = Hop("@C")
    gate, admitting = broker.engines["gate"], broker.engines["admitting"]
    assert isinstance(gate, Gate) and isinstance(admitting, Admitting)
    gate.closed = False
    broker.receive(here, Join(0, "C", ""), 0.0)
    for filter in (Filter(class_="free"), Filter(class_="gated", x=(0, 9))):
        broker.receive(here, Operation(0, "sub", "C", 0, filter), 0.0)
        work_until_idle(broker)
    gate.closed = True
    one = Filter(class_="gated", x=1)
    broker.receive(here, Operation(0, "sub", "C", 0, one), 0.0)
    broker.submit("admitting", here, Operation(0, "usub", "C", 0, one), None, 0.0)
    assert len(broker.waiting.queue) == 2
    gate.closed = False
    broker.release(0.0)
    while broker.waiting.queue and broker.waiting.queue[0].engine:
        broker.wake(WORK, 0.0)
    assert broker.is_busy(here) and admitting.resumed == 0
    return broker, admitting


def work_until_idle(broker: Broker) -> None:
    while len(broker.jobs):
        broker.wake(WORK, 0.0)


def test_what_an_engine_does_for_a_client_does_not_overtake_the_client_s_long_work() -> None:
    """The long work had found all that it covers, and then the engine added another entry."""
    broker, admitting = behind_long_work()
    work_until_idle(broker)
    assert admitting.resumed == 1 and broker.at_rest
    held = [(entry.seq, entry.positive) for entry in broker.routing.prt.of("C")]
    assert held == [(1, True), (2, True), (4, False)]


def test_an_engine_hears_of_what_has_waited_for_long_work_though_the_client_has_gone() -> None:
    broker, admitting = behind_long_work()
    broker.client_left("C", 0.0)
    work_until_idle(broker)
    assert admitting.resumed == 1 and broker.at_rest
    assert not broker.routing.prt.of("C")


class Reserving(Bystander):
    """Lets no client begin anything."""

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        return True


def test_a_client_is_refused_when_too_many_of_its_own_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that may not even begin each client has its own queue."""
    monkeypatch.setattr("overlay.broker.waiting.WAITING_PER_CLIENT", 2)
    broker = Broker(BrokerName("B2"), [], engines={"reserving": Reserving})
    for name in ("C", "D"):
        broker.receive(Hop(f"@{name}"), Join(1, name, ""), 0.0)

    def subscribe(client: str, req: int) -> list[str]:
        asked = Operation(req, "sub", client, 0, GATED)
        effects = broker.receive(Hop(f"@{client}"), asked, 0.0)
        return [effect.message.code for effect in effects]  # type: ignore[union-attr]

    assert subscribe("C", 2) == subscribe("C", 3) == []
    assert subscribe("C", 4) == ["limit"]
    assert subscribe("D", 2) == subscribe("D", 3) == []
    assert subscribe("D", 4) == ["limit"]


def test_a_client_is_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.broker.waiting.WAITING_PER_BROKER", 2)
    overlay = Overlay()
    here = Hop("@D")
    [asked] = overlay.broker.receive(here, Join(1, "D", ""), 0.0)
    assert isinstance(asked, Send) and isinstance(asked.message, Join)
    overlay.broker.receive(B1, Done(asked.message.req), 0.0)

    def subscribe(req: int) -> list[Effect]:
        return overlay.broker.receive(here, Operation(req, "sub", "D", 0, GATED), 0.0)

    assert subscribe(2) == subscribe(3) == []
    [refused] = subscribe(4)
    assert isinstance(refused, Send) and isinstance(refused.message, Done)
    assert (refused.message.req, refused.message.code) == (4, "limit")
    overlay.plain(5, GATED)  # What a neighbour has carried out has to be carried out here.
    assert len(overlay.open()) == 3
