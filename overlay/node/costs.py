"""What an input costs, in units of work: counts, the same on every machine.

Hosts share the core among peers by these (`overlay.hosts.rounds`). A unit is about what
`overlay.broker.turns` calls one.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlay.broker.core import Taken
from overlay.effects import Effect, Forward
from overlay.messages import AnyMessage, Done, Pub

#: What a message costs that is no plain publication: to look at the tables, to change the index, to
#: send what follows from it. An operation takes 150 to 200 us. An answer takes less.
MESSAGE_UNITS = 8
ANSWER_UNITS = 2
EFFECTS_PER_UNIT = 4

#: Plain publications that make a unit, by the batch: each counts once, and once for each hop.
PUBLICATIONS_PER_UNIT = 32

_ONLY_PUBLICATIONS: set[type] = {Pub}

#: What an operator's question costs: a page of a table takes some milliseconds.
QUESTION_UNITS = 80


def units_of(taken: Taken, first: AnyMessage) -> float:
    """The cost of messages that the core has taken, the first of which is given."""
    if not taken.is_run:
        units = ANSWER_UNITS if type(first) is Done else MESSAGE_UNITS
        return units + len(taken.effects) / EFFECTS_PER_UNIT
    sent = sum([len(e.hops) * e.count for e in taken.effects if type(e) is Forward])
    return (taken.consumed + sent) / PUBLICATIONS_PER_UNIT


def units_of_input(effects: list[Effect]) -> float:
    """The cost of one input, by its effects."""
    return MESSAGE_UNITS + len(effects) / EFFECTS_PER_UNIT


def least_units_of(messages: Sequence[AnyMessage]) -> float:
    """What messages cost at least, before the core has seen them."""
    if set(map(type, messages)) == _ONLY_PUBLICATIONS:
        return len(messages) / PUBLICATIONS_PER_UNIT
    return sum(map(least_units, messages))


def least_units(message: AnyMessage) -> float:
    """The same of one message."""
    if type(message) is Pub:
        return 1 / PUBLICATIONS_PER_UNIT
    return ANSWER_UNITS if type(message) is Done else MESSAGE_UNITS
