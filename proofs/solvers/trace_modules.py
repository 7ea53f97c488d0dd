"""Parts that the traces of dynamic and of static transactions share: how TLC is given a trace.

A trace becomes a TLA+ module `Trace` that extends a trace specification and contains the log of a
run. TLC searches for a behaviour of the specification with that log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from overlay.broker.core import Taken
from overlay.messages import AnyMessage, Hop
from proofs.solvers.models import Specification
from proofs.solvers.tlc import Checked, check, configuration


class ReceivedMessage(NamedTuple):
    """A broker has received a message from a hop, a neighbour or a client."""

    source: str
    dest: str
    message: object
    #: Of a client's message, where it is recorded: the entries that it stored and dropped there.
    stored: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def received_in_run(
    source: Hop, dest: str, messages: Sequence[AnyMessage], start: int, taken: Taken
) -> list[ReceivedMessage]:
    """The plain publications that `Broker.take` has routed together."""
    run = messages[start : start + taken.consumed]
    return [ReceivedMessage(source, dest, message) for message in run]


def validate(
    specification: Specification, module: str, *, constants: Sequence[str]
) -> tuple[bool, Checked]:
    """Whether the specification has a behaviour with the log of the module `Trace`.

    `constants` are those of the trace, besides the specification's. Raises what `check` raises.
    """
    names = [*specification.constants.split(), *constants]
    config = configuration(names, "AllRules", ["NotAccepted"], specification="TraceSpec")
    checked = check("Trace", config, {"Trace": module})
    return checked.violated == "NotAccepted", checked


def string_set(names: Iterable[str]) -> str:
    """A set of strings in TLA+."""
    return "{" + ", ".join(f'"{name}"' for name in sorted(names)) + "}"


# --- corrupted logs ---


def first(lines: Sequence[str], text: str) -> int:
    """The place of the first line with this text."""
    return next(at for at, line in enumerate(lines) if text in line)


def replaced(lines: Sequence[str], at: int, *by: str) -> list[str]:
    """The lines with one of them replaced."""
    return [*lines[:at], *by, *lines[at + 1 :]]
