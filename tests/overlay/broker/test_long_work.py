"""Work that is cut into slices leaves the same tables as work that is done at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.broker.core import Broker
from overlay.broker.turns import WORK
from overlay.effects import Effect, Send
from overlay.filters import Filter
from overlay.messages import BrokerName, Done, Hop, Join, Kind, Operation
from tests.overlay.tables.test_last_word import SAID, Said, least, line

HERE = Hop("@C")


class OneClient:
    """A broker with one client, whose operations are done slice by slice."""

    def __init__(self, slice: int) -> None:
        self.broker = Broker(BrokerName("B1"), [])
        self.broker.slice = slice
        self._req = 0
        self._answers: dict[int, Done] = {}
        self._see(self.broker.receive(HERE, Join(0, "C", ""), 0.0))

    def say(self, kind: Kind, filter: Filter) -> Done:
        """An operation of the client, and the answer to it."""
        self._req += 1
        self._see(self.broker.receive(HERE, Operation(self._req, kind, "C", 0, filter), 0.0))
        while self._req not in self._answers:
            self._see(self.broker.wake(WORK, 0.0))
        while len(self.broker.jobs):
            self._see(self.broker.wake(WORK, 0.0))
        return self._answers[self._req]

    def _see(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Done):
                self._answers[effect.message.req] = effect.message

    def held(self, table: str) -> list[tuple[Filter, bool]]:
        space = self.broker.routing.space("sub" if table == "sub" else "adv", HERE)
        return [(entry.filter, entry.positive) for entry in space.of("C")]


@settings(max_examples=150)
@given(SAID, st.sampled_from([1, 2, 1000]), st.sampled_from(["sub", "adv"]))
def test_what_is_left_is_what_the_last_word_leaves(
    said: list[tuple[bool, Filter]], slice: int, table: str
) -> None:
    kinds: tuple[Kind, Kind] = ("sub", "usub") if table == "sub" else ("adv", "uadv")
    one = OneClient(slice)
    words: list[Said] = []
    for seq, (positive, filter) in enumerate(said, 1):
        if one.say(kinds[0] if positive else kinds[1], filter).code == "":
            words.append(Said(seq, filter, positive))
        assert one.held(table) == [(word.filter, word.positive) for word in least(words)]


@pytest.mark.parametrize("slice", [1, 2, 1000])
def test_each_of_several_holes_goes_or_stays_for_itself(slice: int) -> None:
    one = OneClient(slice)
    for x in (0, 10, 20):
        one.say("sub", line(x, x + 5))
    for lo, hi in ((4, 12), (13, 18), (14, 21), (9, 10)):
        one.say("usub", line(lo, hi))
    one.say("usub", line(10, 15))
    assert one.held("sub") == [
        (line(0, 5), True),
        (line(20, 25), True),
        (line(4, 12), False),
        (line(14, 21), False),
    ]
