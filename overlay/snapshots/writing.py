"""Writing objects into the tables of a snapshot."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from overlay.errors import SnapshotError
from overlay.filters import Filter
from overlay.snapshots import layout
from overlay.snapshots.filter_table import FilterWriter
from overlay.snapshots.layout import KindLayout, PartLayout
from overlay.stored import Plain, Several, StoredClass, declaration_of, declarations

#: What stands for itself in a row.
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))

#: The row of an object that is not written here.
ELSEWHERE = -1


class _Kind:
    """How objects of one class are written."""

    __slots__ = ("getters", "known", "number")

    def __init__(self, owner: type, number: int, parts: Sequence[StoredClass]) -> None:
        self.number = number
        self.getters = [_getter(part) for part in parts if part.fields]
        #: The attributes that are declared; None if the class can have no others.
        self.known: frozenset[str] | None = None
        if owner.__dictoffset__:
            self.known = frozenset().union(*(part.derived.union(part.fields) for part in parts))


def _getter(part: StoredClass) -> Callable[[Any], Sequence[Any]]:
    own: Callable[[Any], Sequence[Any]] | None = vars(part.owner).get("_freeze")
    if own is not None:
        return own
    if len(part.fields) == 1:
        get = attrgetter(*part.fields)
        return lambda thing: (get(thing),)
    return attrgetter(*part.fields)


class Writer:
    """The tables of one snapshot. `fixed` are the first objects; some are not written (`skip`)."""

    def __init__(self, fixed: Sequence[Any], skip: Iterable[Any] = ()) -> None:
        #: All objects that were met, by number; the rows of the last ones are still to be written.
        self._objects = list(fixed)
        self._numbers = {id(thing): number for number, thing in enumerate(fixed)}
        self._fixed = len(fixed)
        self._skipped = {id(thing) for thing in skip}
        self.kinds: list[KindLayout] = []
        self._kind_of: dict[type, _Kind] = {}
        self._value_of: dict[type, tuple[int, Callable[[Any], Sequence[Any]]]] = {}
        self.filters = FilterWriter()
        self._collections: dict[int, int] = {}
        #: What hooks have made up must not be freed while identities count.
        self._alive: list[Any] = []
        self._writers: dict[type, Callable[[Any], Any]] = {
            Filter: self._filter,
            tuple: self._tuple,
            list: self._list,
            deque: self._deque,
            dict: self._dict,
            OrderedDict: self._ordered_dict,
            set: self._set,
            frozenset: self._frozen_set,
            msgspec.Raw: self._raw,
            Plain: self._plain,
            Several: self._several,
        }

    def rows(self) -> list[list[Any]]:
        """The row of each object, in the order of numbers. Raises SnapshotError."""
        rows: list[list[Any]] = []
        for thing in self._objects:  # It grows meanwhile.
            rows.append([ELSEWHERE] if id(thing) in self._skipped else self._row(thing))
        return rows

    def _row(self, thing: Any) -> list[Any]:
        kind = self._kind_of.get(type(thing)) or self._new_kind(thing)
        if kind.known is not None and not vars(thing).keys() <= kind.known:
            raise SnapshotError(undeclared(thing, sorted(vars(thing).keys() - kind.known)))
        row: list[Any] = [kind.number]
        try:
            for get in kind.getters:
                values = get(thing)
                for value in values:
                    row.append(value if value.__class__ in _ATOMS else self._write(value))
                self._alive.append(values)
        except AttributeError as error:
            raise SnapshotError(f"{type(thing).__qualname__} is not complete: {error}") from error
        return row

    def _new_kind(self, thing: Any) -> _Kind:
        owner = type(thing)
        parts = declarations(owner)
        is_fixed = id(thing) in self._numbers and self._numbers[id(thing)] < self._fixed
        own = declaration_of(owner)
        if not parts or (own is None and not is_fixed):
            raise SnapshotError(
                f"{owner.__module__}.{owner.__qualname__} cannot be kept: it is not"
                " declared (overlay.stored)"
            )
        kind = self._kind_of[owner] = _Kind(owner, len(self.kinds), parts)
        self.kinds.append(_kind_layout(own.name if own is not None and not is_fixed else "", parts))
        return kind

    def _write(self, value: Any) -> Any:
        """A value as it stands in a row."""
        kind = value.__class__
        if kind in _ATOMS:
            return value
        write = self._writers.get(kind)
        if write is not None:
            return write(value)
        as_value = self._value_of.get(kind) or self._new_value(kind)
        if as_value is not None:
            number, get = as_value
            return [layout.VALUE, number, *map(self._write, get(value))]
        return [layout.OBJECT, self._number(value)]

    def _new_value(self, kind: type) -> tuple[int, Callable[[Any], Sequence[Any]]] | None:
        declared = declaration_of(kind)
        if declared is None or not declared.is_value:
            return None
        found = self._value_of[kind] = len(self.kinds), _getter(declared)
        self.kinds.append(_kind_layout(declared.name, (declared,)))
        return found

    def _number(self, thing: Any) -> int:
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._objects)
            self._objects.append(thing)
        return number

    def _is_known(self, collection: Any) -> list[int] | None:
        """Where a mutable collection was written before, or None, and it counts from now on."""
        known = self._collections.get(id(collection))
        if known is not None:
            return [layout.SAME, known]
        self._collections[id(collection)] = len(self._collections)
        self._alive.append(collection)
        return None

    def _filter(self, filter: Filter) -> list[int]:
        return [layout.FILTER, self.filters.number(filter)]

    def _tuple(self, value: tuple[Any, ...]) -> list[Any]:
        return [layout.TUPLE, *map(self._write, value)]

    def _list(self, value: list[Any]) -> list[Any]:
        return self._is_known(value) or [layout.LIST, *map(self._write, value)]

    def _deque(self, value: deque[Any]) -> list[Any]:
        return self._is_known(value) or [layout.DEQUE, *map(self._write, value)]

    def _dict(self, value: dict[Any, Any], mark: int = layout.DICT) -> list[Any]:
        if known := self._is_known(value):
            return known
        written: list[Any] = [mark]
        for key, held in value.items():
            written.append(self._write(key))
            written.append(self._write(held))
        return written

    def _ordered_dict(self, value: OrderedDict[Any, Any]) -> list[Any]:
        return self._dict(value, layout.ORDERED_DICT)

    def _set(self, value: set[Any]) -> list[Any]:
        return self._is_known(value) or [layout.SET, *map(self._write, sorted(value))]

    def _frozen_set(self, value: frozenset[Any]) -> list[Any]:
        return [layout.FROZEN_SET, *map(self._write, sorted(value))]

    def _raw(self, value: msgspec.Raw) -> list[Any]:
        return [layout.RAW, bytes(value)]

    def _plain(self, value: Plain) -> list[Any]:
        return [layout.PLAIN, value.data]

    def _several(self, value: Several) -> list[Any]:
        return [layout.SEVERAL, *map(self._number, value.objects)]


def _kind_layout(name: str, parts: Iterable[StoredClass]) -> KindLayout:
    return KindLayout(
        name, [PartLayout(part.name, part.version, list(part.fields)) for part in parts]
    )


def undeclared(thing: Any, attributes: Iterable[str]) -> str:
    """Why an object with these attributes cannot be kept."""
    owner = type(thing).__qualname__
    return f"{owner}.{f', {owner}.'.join(attributes)} cannot be kept: declare it (overlay.stored)"
