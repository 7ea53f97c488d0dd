"""Copies of a broker, and a key that two brokers share exactly when they are in the same state.

The explorer returns to a broker's state again and again, and has to recognise it. Both are done
from outside, by walking the broker's objects, so that the cores need not know that they are copied:

- `freeze` makes an image (a pickle), and `thaw` a broker from it. Filters never change and are
  shared. An index finds its entries by their identity, so it is filled anew, in the order of client
  and number. The order in which entries arrived is therefore not part of a state; only the texts
  of reasons may depend on it.
- `canonical` writes the state as text: objects by class and attributes, each named at its first
  visit, dicts in their order, sets sorted.

The key is finer than necessary (it contains request numbers and the order of dicts). That costs
equivalent states, but never merges two different ones. It does not depend on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from operator import attrgetter
from types import MethodType
from typing import Any, TypeAlias

import msgspec

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.matching.index import Index, Search
from overlay.messages import Version
from overlay.notation import format_filter
from overlay.tables.routing import Routing
from overlay.tables.space import Entry, by_client_and_number

#: Attributes that are not part of a state: the number of records; tables of methods; lookup tables
#: of entries, which follow from the entries; and ended transactions, which no scripted client asks
#: about.
UNSEEN = frozenset({"_records", "_receivers", "receivers", "_of", "ended"})

#: Every filter that was in an image, by number; filters are immutable and few.
_filters: list[Filter] = []
_numbers: dict[Filter, int] = {}


# --- images ---


def _filter(number: int) -> Filter:
    return _filters[number]


def _index(entries: Iterable[Entry]) -> Index[Entry]:
    index: Index[Entry] = Index()
    for entry in entries:
        index.insert(entry)
    return index


def _search(filter: Filter, entries: Iterable[Entry]) -> Search[Entry]:
    """A search that has these entries before it, in an index of its own."""
    return Search(_index(entries), filter)


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Filter:
            number = _numbers.get(thing)
            if number is None:
                number = _numbers[thing] = len(_filters)
                _filters.append(thing)
            return _filter, (number,)
        if type(thing) is Index:
            return _index, (sorted(thing, key=by_client_and_number),)
        if type(thing) is Search:
            remaining = sorted(thing.remaining(), key=by_client_and_number)
            return _search, (thing.filter, remaining)
        return NotImplemented


def freeze(broker: Broker) -> bytes:
    """An image of the broker, valid in this process only."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(broker)
    return file.getvalue()


def thaw(image: bytes) -> Broker:
    """A broker in the state of the image, which shares no mutable object with any other."""
    broker = pickle.loads(image)
    assert isinstance(broker, Broker)
    return broker


# --- keys ---


def canonical(thing: Any) -> bytes:
    """The state of an object and of all that it refers to, as text."""
    writer = _Writer()
    writer.write(thing)
    return " ".join(writer.out).encode()


def digest(*parts: bytes) -> bytes:
    """A short name for long keys; 16 bytes do not collide among some millions of states."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(4, "big"))
        found.update(part)
    return found.digest()


class _Writer:
    """Writes things one after the other, and names the mutable ones at their first visit."""

    __slots__ = ("_names", "out")

    def __init__(self) -> None:
        self.out: list[str] = []
        self._names: dict[int, str] = {}

    def write(self, thing: Any) -> None:
        _writer(type(thing))(self, thing)

    def is_new(self, thing: Any) -> bool:
        """Name a mutable thing and return True; if it already has a name, write only that."""
        name = self._names.get(id(thing))
        if name is None:
            self._names[id(thing)] = f"@{len(self._names)}"
            return True
        self.out.append(name)
        return False


_Write: TypeAlias = Callable[[_Writer, Any], None]


_known: dict[type, _Write] = {}


def _writer(kind: type) -> _Write:
    """The function that writes things of a type."""
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = _choose(kind)
    return found


def _choose(kind: type) -> _Write:
    if kind in (str, int, bool, float, bytes, type(None)) or issubclass(kind, Enum):
        return _atom
    if kind is Filter:
        return _box
    if kind is Index:
        return _entries
    if kind is Search:
        return _remaining
    if kind is Routing:
        return _mutable(_routing)
    if kind in (list, deque):
        return _mutable(_sequence)
    if issubclass(kind, dict):
        return _mutable(_dict)
    if kind in (set, frozenset):
        return _mutable(_set)
    if issubclass(kind, tuple):
        return _sequence
    if issubclass(kind, msgspec.Struct):
        return _fields(kind.__name__, kind.__struct_fields__)
    if kind is msgspec.Raw:
        return _raw
    if issubclass(kind, type):
        return _class
    assert not issubclass(kind, MethodType), "a method is not part of a state"
    slots = tuple(name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ()))
    assert not (slots and kind.__dictoffset__), f"{kind}: slots and a dict"
    return _mutable(_fields(kind.__qualname__, slots) if slots else _object)


def _mutable(inner: _Write) -> _Write:
    def write(to: _Writer, thing: Any) -> None:
        if to.is_new(thing):
            inner(to, thing)

    return write


def _atom(to: _Writer, thing: Any) -> None:
    to.out.append(repr(thing))


@cache
def _text(filter: Filter) -> str:
    return format_filter(filter)


def _box(to: _Writer, thing: Filter) -> None:
    to.out.append(_text(thing))


def _remaining(to: _Writer, thing: Search[Entry]) -> None:
    _box(to, thing.filter)
    _entries(to, thing.remaining())


def _raw(to: _Writer, thing: msgspec.Raw) -> None:
    to.out.append(repr(bytes(thing)))


def _class(to: _Writer, thing: type) -> None:
    to.out.append(thing.__qualname__)


def _sequence(to: _Writer, thing: Iterable[Any]) -> None:
    to.out.append("(")
    for each in thing:
        _writer(type(each))(to, each)
    to.out.append(")")


def _set(to: _Writer, thing: Iterable[Any]) -> None:
    _sequence(to, sorted(thing))


def _entries(to: _Writer, thing: Iterable[Entry]) -> None:
    _sequence(to, sorted(thing, key=_by_client_number_and_version))


def _by_client_number_and_version(entry: Entry) -> tuple[str, int, Version]:
    return entry.client, entry.seq, entry.added_by or ("", 0, 0)


def _dict(to: _Writer, thing: dict[Any, Any]) -> None:
    to.out.append("{")
    for key, value in thing.items():
        _writer(type(key))(to, key)
        _writer(type(value))(to, value)
    to.out.append("}")


def _fields(name: str, fields: tuple[str, ...]) -> _Write:
    if len(fields) < 2:
        return lambda to, thing: _sequence(to, [name, *(getattr(thing, f) for f in fields)])
    get = attrgetter(*fields)

    def write(to: _Writer, thing: Any) -> None:
        to.out.append(name)
        _sequence(to, get(thing))

    return write


def _routing(to: _Writer, thing: Routing) -> None:
    """Tables in sorted order: nothing depends on theirs, since entries are looked up or sorted."""
    for hop in sorted(thing.srt):
        to.out.append(hop)
        to.write(thing.srt[hop])
    to.write(thing.prt)
    _sequence(to, sorted(thing.crt.items()))
    for version, marked in sorted(thing._marked.items()):
        to.write(version)
        _entries(to, [entry for _, entry in marked])


def _object(to: _Writer, thing: Any) -> None:
    to.out.append(type(thing).__qualname__)
    for name, value in thing.__dict__.items():
        if name not in UNSEEN:
            to.out.append(name)
            _writer(type(value))(to, value)
