"""What has become of a stream that changed hands: lost, doubled and misrouted events.

Pure: what two workers have received, and which handovers took place, is enough. How the stream is
cut into segments, so that the judge can be strict, is told in `padres_tx.scenarios.handover`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

#: Of what went wrong, told in words.
FAULTS_SHOWN = 10

#: An event: its publisher, and the publisher's number for it.
Event: TypeAlias = tuple[str, int]


class Stream(NamedTuple):
    """The events of one publisher, numbered from 1, in `handovers` + 2 segments."""

    publisher: str
    events: int
    handovers: int

    def first(self, segment: int) -> int:
        """The number of a segment's first event."""
        return self.events * segment // (self.handovers + 2) + 1


class Verdict(msgspec.Struct):
    """What has become of all events; `faults` says the first of what went wrong in words."""

    lost: int = 0
    doubled: int = 0
    misrouted: int = 0
    #: Of the doubled, those that one worker has twice.
    twice: int = 0
    faults: list[str] = []

    def fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(text)


def judge(
    streams: Iterable[Stream],
    received: Mapping[str, Iterable[Event]],
    committed: Sequence[bool],
) -> Verdict:
    """Judge what two workers have received, by worker; the first of them had the streams at first.

    `committed` says of each handover whether it took place.
    """
    workers = list(received)
    receivers: dict[Event, list[str]] = {}
    for worker, events in received.items():
        for event in events:
            receivers.setdefault(event, []).append(worker)
    verdict = Verdict()
    for stream in streams:
        owners = [
            receivers.get((stream.publisher, number), []) for number in range(1, stream.events + 1)
        ]
        for number, who in enumerate(owners, 1):
            name = f"event {number} of {stream.publisher}"
            if not who:
                verdict.lost += 1
                verdict.fault(f"{name} is lost")
            elif len(who) > 1:
                verdict.doubled += 1
                verdict.twice += len(set(who)) < len(who)
                verdict.fault(f"{name} came to {' and '.join(who)}")
        _judge_turns(stream, owners, workers, committed, verdict)
    return verdict


def _judge_turns(
    stream: Stream,
    owners: Sequence[Sequence[str]],
    workers: Sequence[str],
    committed: Sequence[bool],
    verdict: Verdict,
) -> None:
    """Count where the owner of a stream changes too often or not at all."""
    wanted = [0, *map(int, committed), 0]
    firsts = [stream.first(segment) for segment in range(len(wanted))]
    # Whose the first event of a segment has to be, all handovers before being over.
    rightful = {first: workers[sum(wanted[:segment]) % 2] for segment, first in enumerate(firsts)}
    changes: list[list[int]] = [[] for _ in wanted]
    last = workers[0]
    for number, who in enumerate(owners, 1):
        # What is lost or doubled has been counted; here it stands where it should.
        owner = who[0] if len(who) == 1 else rightful.get(number, last)
        if owner != last:
            changes[max(bisect_right(firsts, number - 1) - 1, 0)].append(number)
            last = owner
    for segment, (want, found) in enumerate(zip(wanted, changes, strict=True)):
        if len(found) != want:
            verdict.misrouted += abs(len(found) - want)
            where = f" at {', '.join(map(str, found[:5]))}" if found else ""
            verdict.fault(
                f"from event {firsts[segment]} of {stream.publisher} on, the owner changes "
                f"{len(found)} times{where}, not {want}"
            )
