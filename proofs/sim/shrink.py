"""Shrinking a failing run, by delta debugging of its choices.

A run is a tape: first the program, which is everything that will happen, then the delays of its
messages. Shrinking removes whole parts of the program (a transaction, one of its operations, a
client, a fault), lowers the remaining choices, and then sets as many delays as possible to 0, the
shortest. A change is kept if the run still fails in the same way and is smaller by `_size`.

Without a part, other messages are sent and the delays belong to other messages, so the same race
may be possible and yet not happen. Each smaller program is therefore also tried with a few sets of
fresh delays.

This module knows nothing of brokers: a function tells it whether a tape fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

#: How often a smaller program is tried with fresh delays before it counts as not failing.
FRESH_DELAYS = 4

#: Limits of shrinking in runs and in seconds: a person waits for it. A run takes some hundredths of
#: a second, and less the smaller it becomes.
ATTEMPTS = 5_000
SECONDS = 30.0

Choices: TypeAlias = tuple[int, ...]


class TapePart(NamedTuple):
    """One of several things: the place on the tape of their count, and where it was drawn."""

    counted: int
    start: int
    end: int


class FailingTape(NamedTuple):
    """A failing run: its choices, the parts of its program, and the length of the program."""

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
        """The run of a tape if it fails in the same way, else None.

        Choices beyond the end of the tape are 0, or come from the seed.
        """
        ...


def shrink(
    case: FailingTape, fails: FailureCheck, *, attempts: int = ATTEMPTS, seconds: float = SECONDS
) -> FailingTape:
    """Return the smallest failing run that could be found within the limits."""
    search = _Search(case, fails, attempts, seconds)
    try:
        while search.once():
            pass
    except _Enough:
        pass
    return search.best


class _Enough(Exception):
    """The limits are reached."""


class _Search:
    def __init__(
        self, case: FailingTape, fails: FailureCheck, attempts: int, seconds: float
    ) -> None:
        self.best = _trimmed(case)
        self._fails = fails
        self._attempts = attempts
        self._until = time.monotonic() + seconds

    def once(self) -> bool:
        """Try every change once; True if one of them was kept."""
        before = self.best
        while any(self._try_program(program) for program in _fewer_parts(self.best)):
            pass
        self._lower_program()
        self._shorten_delays()
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

    def _shorten_delays(self) -> None:
        """Set as many delays as possible to the shortest: halves of them, then quarters, ..."""
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
        """Try a smaller program with the current delays, and with fresh ones."""
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
    """The tape without the zeros at its end, which need not be written."""
    choices = list(case.choices)
    while len(choices) > case.length and not choices[-1]:
        choices.pop()
    return case._replace(choices=tuple(choices))
