"""How values are written in a snapshot: which lists stand for what.

A snapshot is a table of objects. Each object is a row: the number of its kind, then the values of
its fields. Numbers, strings, bytes, booleans and None stand for themselves; everything else is a
list that begins with one of the marks below. So an object is written once and referred to by its
number, which keeps cycles and whatever is shared. Lists, dicts, sets and deques that are shared are
kept as well (`SAME`). Filters stand in a table of their own.

This module knows neither how to write nor how to read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

#: What every snapshot begins with: a line with these bytes, the number of the format, and the
#: CRC-32 of what follows, in decimal.
MAGIC = b"padres-tx snapshot "

#: Goes up when marks or tables change their meaning, never for a change of a stored class.
FORMAT = 1

#: An object, by its number.
OBJECT = 0
#: Collections: what follows are their items, of dicts keys and values in turn, of sets sorted.
TUPLE = 1
LIST = 2
DICT = 3
ORDERED_DICT = 4
SET = 5
FROZEN_SET = 6
DEQUE = 7
#: A mutable collection that came before: the how-manyth.
SAME = 8
#: A filter, by its number.
FILTER = 9
#: A value of a kind: its number, then the fields.
VALUE = 10
#: Encoded bytes that nobody has decoded yet.
RAW = 11
#: Data that stands for itself, lists included.
PLAIN = 12
#: A list of objects, by their numbers.
SEVERAL = 13


class PartLayout(NamedTuple):
    """What one class of an inheritance keeps, as it was when the snapshot was written."""

    name: str
    version: int
    fields: list[str]


class KindLayout(NamedTuple):
    """The parts of a class, bases first; a value has one."""

    name: str
    parts: list[PartLayout]


class ServiceState(NamedTuple):
    """The state of a service that gives its own snapshots."""

    version: int
    data: bytes


class Image(msgspec.Struct, array_like=True):
    """What follows the first line of a snapshot."""

    broker: str
    neighbours: list[str]
    #: The first objects: "" is the broker, ".x" its part x; the others are engines and services.
    fixed: list[str]
    kinds: list[KindLayout]
    filters: list[list[Any]]
    intervals: list[Any]
    objects: list[list[Any]]
    #: Services that give their own snapshots.
    services: dict[str, ServiceState]
