"""The errors of benchmarks; commands turn them into a line and an exit code (`bench.micro.cli`).

BenchError
├── ChildFailed     a child process did not start in time, or has died
├── CannotMeasure   this machine lacks something that the benchmark needs
└── FiguresError    the committed figures, or the table in the README, cannot be used
"""

from __future__ import annotations


class BenchError(Exception):
    """The base of the errors here."""


class ChildFailed(BenchError):
    """A child process did not start in time, or has died; the message ends with its last output."""


class CannotMeasure(BenchError):
    """This machine lacks something that the benchmark needs; the message says what."""


class FiguresError(BenchError):
    """The committed figures, or the table in the README, cannot be used."""
