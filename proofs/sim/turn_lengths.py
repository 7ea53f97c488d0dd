"""The length of a broker's turns, counted in steps of the interpreter instead of time.

A turn is the handling of one input of a broker: a message, a timer, the end of a client. The broker
serves no other input meanwhile, so the longest turn is the longest time that other inputs wait.
Steps are executed lines of Python and calls of C functions. They are the same on every machine and
under any load, so a test can compare them with a limit. Work inside a C function is not counted:
sizes that matter there (a large frame that is decoded) have limits of their own.

This module knows nothing of what brokers do in a turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from overlay.broker.core import Broker, Taken
from overlay.effects import Effect
from overlay.messages import AnyMessage, BrokerName, EngineMessage, Hop

T = TypeVar("T")

#: The limit of steps in one turn. In `tests/proofs/sim/test_turn_lengths.py` one core of a server
#: takes 30,000 steps in a millisecond (2026, Python 3.11). So the limit is 10 ms there, and 20 ms
#: on a machine that is half as fast.
TURN_STEPS = 300_000


class CountedTurn(NamedTuple):
    """One input of a broker, and the steps that it took."""

    steps: int
    broker: str
    what: str


class StepCounter:
    """Counts the steps of calls."""

    def __init__(self) -> None:
        self.steps = 0

    def run(self, call: Callable[[], T]) -> T:
        """Make the call; `steps` grows."""
        traced, profiled = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._called)
        sys.settrace(self._executed)
        try:
            return call()
        finally:
            sys.settrace(traced)
            sys.setprofile(profiled)

    def _executed(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.steps += 1
        return self._executed

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            self.steps += 1


def described(message: AnyMessage) -> str:
    """What a turn is called that begins with this message."""
    if isinstance(message, EngineMessage):
        return f"{message.engine} message of {len(bytes(message.body))} bytes"
    return type(message).__name__


class TurnCounter:
    """Counts the turns of the brokers of a simulated overlay while `counting` is set."""

    def __init__(self) -> None:
        self.counting = False
        self.taken: list[CountedTurn] = []

    @property
    def longest(self) -> CountedTurn:
        return max(self.taken)

    @property
    def steps(self) -> int:
        """The steps of all turns."""
        return sum(turn.steps for turn in self.taken)

    def take(self, broker: str, what: str, call: Callable[[], T]) -> T:
        if not self.counting:
            return call()
        counter = StepCounter()
        try:
            return counter.run(call)
        finally:
            self.taken.append(CountedTurn(counter.steps, broker, what))

    def broker(self) -> type[Broker]:
        """The broker class, unchanged except that this object counts its turns."""
        turns = self

        class CountedBroker(Broker):
            def take(
                self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
            ) -> Taken:
                what, base = described(messages[start]), super().take
                return turns.take(
                    self.name, f"{what} from {source}", lambda: base(source, messages, now, start)
                )

            def wake(self, key: str, now: float) -> list[Effect]:
                base = super().wake
                return turns.take(self.name, f"timer {key}", lambda: base(key, now))

            def client_left(self, client: str, now: float) -> list[Effect]:
                base = super().client_left
                return turns.take(self.name, f"{client} left", lambda: base(client, now))

            def link_reset(self, neighbour: BrokerName, now: float) -> list[Effect]:
                base = super().link_reset
                return turns.take(self.name, f"{neighbour} reset", lambda: base(neighbour, now))

        return CountedBroker
