"""Long work in slices: how much a broker does before it takes the next input.

A broker does one thing at a time, so all else waits for what it does. No input may take longer than
a person would call at once; what is more is cut into slices. The core does one slice, keeps
the rest in its state and asks to be woken without delay (`SetTimer(WORK, 0)`). What waits on its
links is taken first, so slices and other inputs alternate. A slice is an input like any other: the
same inputs in the same order still give the same effects.

Three kinds of work are cut, and the broker keeps all of them (`overlay.broker.core`):

- jobs of engines that have no place among operations, such as reading a long plan (`Jobs`);
- operations that wait for a decision, and changes of the tables that an engine makes in its turn
  among them: they stand in one queue, which goes on where the slice before has ended;
- plain operations that concern very many entries (`overlay.broker.long_work`), jobs as well.

Work is counted in units, since a core has no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from overlay.effects import Effect, SetTimer
from overlay.stored import stored

#: The key of the timer that wakes a broker for the next slice. No engine has this name.
WORK = "work"

#: Units of work in one slice. A unit is one operation or one table entry that has to be looked at:
#: up to 25 us here (2026, one core of a server), 75 us on a slow machine. So a slice takes 5 ms,
#: and 15 ms on the slow machine, while no message should wait 20 ms.
SLICE = 200

#: The job that goes on with what waits for a decision.
RELEASE = ("", None)


class Worked(NamedTuple):
    """What came of one slice: its effects, the units that it took, and whether there is more."""

    effects: list[Effect]
    units: int = 0
    more: bool = False


@stored("jobs", fields=("_jobs",))
class Jobs:
    """What a broker has to go on with, one slice after the other, each job in its turn."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[str, Any]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: tuple[str, Any]) -> bool:
        return any(name == job[0] and known is job[1] for name, known in self._jobs)

    def add(self, engine: str, context: Any) -> list[Effect]:
        """Go on with this in the next slices; a job that is there already is there once."""
        if (engine, context) in self:
            return []
        self._jobs.append((engine, context))
        return [SetTimer(WORK, 0.0)] if len(self._jobs) == 1 else []

    def next(self) -> tuple[str, Any]:
        """The job whose turn it is; `add` it again if it is not done."""
        return self._jobs.popleft()

    def again(self) -> list[Effect]:
        """Ask for the next slice, if there is one."""
        return [SetTimer(WORK, 0.0)] if self._jobs else []
