"""Making a failing run smaller, by delta debugging on its choices.

A run is a tape: first the program, all that is to happen, then the delays of its messages. The
program loses whole parts (a transaction, one of its operations, a client, a fault) and its
choices become smaller; then of the delays most become 0, the shortest. A change counts if the run
still fails in the same way and is smaller by `_size`.

With a part less, other messages are sent and the delays fall elsewhere, so a race that was there
may be missed with it still possible. Hence each smaller program is also tried with a few sets of
fresh delays.

This module knows nothing of brokers: it is told whether a tape fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

#: How often a smaller program is tried with fresh delays before it counts as harmless.
FRESH_DELAYS = 4

#: Runs that shrinking may take, and seconds: a person waits for it. A run takes some hundredths of
#: a second, and less the smaller it becomes.
ATTEMPTS = 5_000
SECONDS = 30.0

Choices: TypeAlias = tuple[int, ...]


class TapePart(NamedTuple):
    """One of several: the place on the tape where they were counted, and where it was drawn."""

    counted: int
    start: int
    end: int


class FailingTape(NamedTuple):
    """A failing run: its choices, the parts of its program, and how long the program is."""

    choices: Choices
    parts: tuple[TapePart, ...]
    length: int

    @property
    def program(self) -> Choices:
        return self.choices[: self.length]

    @property
    def delays(self) -> Choices:
        return self.choices[self.length :]


class FailureCheck(Protocol):
    def __call__(self, choices: Sequence[int], seed: int | None) -> FailingTape | None:
        """The run of a tape, if it fails in the same way; beyond the tape 0, or from the seed."""
        ...


def shrink(
    case: FailingTape, fails: FailureCheck, *, attempts: int = ATTEMPTS, seconds: float = SECONDS
) -> FailingTape:
    """The smallest failing run that could be found."""
    search = _Search(case, fails, attempts, seconds)
    try:
        while search.once():
            pass
    except _Enough:
        pass
    return search.best


class _Enough(Exception):
    """So much was allowed."""


class _Search:
    def __init__(
        self, case: FailingTape, fails: FailureCheck, attempts: int, seconds: float
    ) -> None:
        self.best = _trimmed(case)
        self._fails = fails
        self._attempts = attempts
        self._until = time.monotonic() + seconds

    def once(self) -> bool:
        """Try everything once; whether anything has helped."""
        before = self.best
        while any(self._try_program(program) for program in _fewer_parts(self.best)):
            pass
        self._lower_program()
        self._quiet_delays()
        return self.best != before

    def _lower_program(self) -> None:
        at = 0
        while at < self.best.length:
            value = self.best.program[at]
            for lower in sorted({0, value // 2, value - 1} - {value, -1}):
                program = list(self.best.program)
                program[at] = lower
                if self._try_program(program):
                    break
            at += 1

    def _quiet_delays(self) -> None:
        """Let as many delays as possible be the shortest: halves of them, then quarters, ..."""
        size = len(self.best.delays)
        while size:
            at = 0
            while at < len(self.best.delays):
                delays = list(self.best.delays)
                if any(delays[at : at + size]):
                    delays[at : at + size] = [0] * len(delays[at : at + size])
                    self._try([*self.best.program, *delays])
                at += size
            size //= 2

    def _try_program(self, program: Sequence[int]) -> bool:
        """Try a smaller program with the delays as they are, and with fresh ones."""
        if self._try([*program, *self.best.delays]):
            return True
        return any(self._try(program, seed) for seed in range(FRESH_DELAYS))

    def _try(self, choices: Sequence[int], seed: int | None = None) -> bool:
        if self._attempts == 0 or time.monotonic() > self._until:
            raise _Enough
        self._attempts -= 1
        case = self._fails(choices, seed)
        if case is None or _size(case) >= _size(self.best):
            return False
        self.best = _trimmed(case)
        return True


def _fewer_parts(case: FailingTape) -> Iterator[list[int]]:
    """The program without each of its parts, the longest first."""
    for part in sorted(case.parts, key=lambda part: part.start - part.end):
        program = list(case.program)
        del program[part.start : part.end]
        program[part.counted] -= 1
        yield program


def _size(case: FailingTape) -> tuple[int, int, int, int]:
    delays = case.delays
    return len(case.parts), sum(case.program), sum(map(bool, delays)), sum(delays)


def _trimmed(case: FailingTape) -> FailingTape:
    """Without the zeros at the end, which are understood."""
    choices = list(case.choices)
    while len(choices) > case.length and not choices[-1]:
        choices.pop()
    return case._replace(choices=tuple(choices))
