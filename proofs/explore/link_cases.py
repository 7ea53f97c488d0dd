"""What is explored of durable brokers' links, and which injected bugs the search must find."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from overlay.log.log import Log
from proofs.explore.durable_links import (
    DurableSearch,
    ExploredLog,
    ExploredProcess,
    FaultBudget,
    search,
)
from proofs.faults.durability_bugs import (
    AcknowledgesBeforeSync,
    LosesLives,
    LosesOutboxes,
    ReadsTwice,
    ReplaysTwice,
)
from proofs.sim.broker_processes import BrokerProcess


class LinkCase(NamedTuple):
    """A search: how many numbers are said, with which faults, and whether something is wrong."""

    name: str
    numbers: int
    faults: FaultBudget
    process_type: type[BrokerProcess] = ExploredProcess
    is_wrong: bool = False


class _ReadsTwiceFromMemory(ReadsTwice, ExploredLog):
    def __init__(self, log: Log, process: BrokerProcess) -> None:
        super().__init__(log, process)


def _bug(process: type[BrokerProcess], **parts: Any) -> type[BrokerProcess]:
    return type(process.__name__, (process, ExploredProcess), parts)


PUBLISHERS_EDGE: Final = FaultBudget((1, 0), 0)
SUBSCRIBERS_EDGE: Final = FaultBudget((0, 1), 0)
BROKEN: Final = FaultBudget((0, 0), 1)

CASES: Final = (
    LinkCase("the publisher's broker crashes", 1, PUBLISHERS_EDGE),
    LinkCase("the subscriber's broker crashes", 1, SUBSCRIBERS_EDGE),
    LinkCase("the subscriber's broker crashes, two numbers", 2, SUBSCRIBERS_EDGE),
    LinkCase("the connection breaks", 1, BROKEN),
    LinkCase(
        "acknowledge-before-sync", 1, SUBSCRIBERS_EDGE, _bug(AcknowledgesBeforeSync), is_wrong=True
    ),
    LinkCase("lives-unlogged", 1, SUBSCRIBERS_EDGE, _bug(LosesLives), is_wrong=True),
    LinkCase("outbox-lost", 1, SUBSCRIBERS_EDGE, _bug(LosesOutboxes), is_wrong=True),
    LinkCase(
        "replayed-twice",
        1,
        SUBSCRIBERS_EDGE,
        _bug(ReplaysTwice, log_type=_ReadsTwiceFromMemory),
        is_wrong=True,
    ),
)


def try_case(case: LinkCase) -> DurableSearch:
    """Search all orders of events of a case."""
    return search(case.numbers, case.faults, process_type=case.process_type)


def try_number(number: int) -> DurableSearch:
    """The same, of the case with this number: wrong processes are made here, and not sent."""
    return try_case(CASES[number])
