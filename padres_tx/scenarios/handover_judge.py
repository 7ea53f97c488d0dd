"""Judge a stream that changed hands: count lost, doubled and misrouted events.

    lost        neither worker received it
    doubled     both received it, or one received it twice
    misrouted   the owner of one publisher's events changed other than once per commit

Pure functions of what two workers have received and which handovers were committed. The module
`padres_tx.scenarios.handover` explains the segments of a stream, which make a strict verdict
possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from padres_tx import registry

#: The number of faults that are described one by one; the rest is only counted.
FAULTS_SHOWN = 10

#: An event: its publisher, and the publisher's number for it.
StreamEvent: TypeAlias = tuple[str, int]


class EventStream(NamedTuple):
    """The events of one publisher, numbered from 1, in `handovers` + 2 segments."""

    publisher: str
    events: int
    handovers: int

    def first(self, segment: int) -> int:
        """The number of a segment's first event."""
        return self.events * segment // (self.handovers + 2) + 1


class StreamVerdict(msgspec.Struct):
    """Counts of the events that went wrong; `faults` describes the first of them."""

    lost: int = 0
    doubled: int = 0
    misrouted: int = 0
    #: Of the doubled events, those that one worker received twice.
    twice: int = 0
    faults: list[str] = []

    def add_fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(text)


def judge(
    streams: Iterable[EventStream],
    received: Mapping[str, Iterable[StreamEvent]],
    committed: Sequence[bool],
) -> StreamVerdict:
    """Judge the events that two workers received, by worker; the first one owned the streams first.

    `committed` has an entry for each handover.
    """
    workers = list(received)
    receivers: dict[StreamEvent, list[str]] = {}
    for worker, events in received.items():
        for event in events:
            receivers.setdefault(event, []).append(worker)
    verdict = StreamVerdict()
    for stream in streams:
        owners = [
            receivers.get((stream.publisher, number), []) for number in range(1, stream.events + 1)
        ]
        for number, names in enumerate(owners, 1):
            event_name = f"event {number} of {stream.publisher}"
            if not names:
                verdict.lost += 1
                verdict.add_fault(f"{event_name} was lost")
            elif len(names) > 1:
                verdict.doubled += 1
                verdict.twice += len(set(names)) < len(names)
                verdict.add_fault(f"{event_name} was received by {' and '.join(names)}")
        _count_misrouted(stream, owners, workers, committed, verdict)
    return verdict


def _count_misrouted(
    stream: EventStream,
    owners: Sequence[Sequence[str]],
    workers: Sequence[str],
    committed: Sequence[bool],
    verdict: StreamVerdict,
) -> None:
    """Count the segments of a stream in which the owner changes too often or not at all."""
    expected = [0, *map(int, committed), 0]
    firsts = [stream.first(segment) for segment in range(len(expected))]
    # The owner of a segment's first event: all handovers before it are over.
    rightful = {first: workers[sum(expected[:segment]) % 2] for segment, first in enumerate(firsts)}
    changes: list[list[int]] = [[] for _ in expected]
    last = workers[0]
    for number, names in enumerate(owners, 1):
        # Lost and doubled events have been counted; here they belong to the rightful owner.
        owner = names[0] if len(names) == 1 else rightful.get(number, last)
        if owner != last:
            changes[max(bisect_right(firsts, number - 1) - 1, 0)].append(number)
            last = owner
    for segment, (count, found) in enumerate(zip(expected, changes, strict=True)):
        if len(found) != count:
            verdict.misrouted += abs(len(found) - count)
            where = f" at {', '.join(map(str, found[:5]))}" if found else ""
            verdict.add_fault(
                f"from event {firsts[segment]} of {stream.publisher} on, the owner changes "
                f"{len(found)} times{where}; expected {count}"
            )


def promises_broken(
    engine: str, verdict: StreamVerdict, aborted: Sequence[str], late: int, timed_out: str
) -> list[str]:
    """List the promises that an engine has broken (see the table of guarantees in the README)."""
    broken: list[str] = []
    if verdict.twice:
        broken.append(f"{verdict.twice} events were received by one worker twice")
    for reason in aborted:
        broken.append(f"a handover was not committed: {reason}")
    if timed_out:
        broken.append(timed_out)
    if "handover" not in registry.properties(engine).promises:
        return broken
    for count, what in (
        (verdict.lost, "lost"),
        (verdict.doubled - verdict.twice, "doubled"),
        (verdict.misrouted, "misrouted"),
        (late, "late: a worker received them after it had been told that no more would come"),
    ):
        if count:
            broken.append(f"{count} events were {what}")
    return broken
