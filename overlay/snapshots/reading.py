"""Making objects from the tables of a snapshot."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from overlay.errors import SnapshotError
from overlay.filters import Filter
from overlay.snapshots.layout import KindLayout, PartLayout
from overlay.snapshots.writing import ELSEWHERE
from overlay.stored import Migration, StoredClass, declarations, named

#: A value without a default.
_NONE: Any = object()


class _Part:
    """How the fields of one class are set from what was written of them."""

    __slots__ = ("declared", "fields", "migrations", "rebuild", "size", "thaw", "written")

    def __init__(self, declared: StoredClass, written: PartLayout) -> None:
        self.declared = declared
        self.written = written.fields
        self.size = len(written.fields)
        self.fields = declared.fields
        self.migrations = _migrations(declared, written)
        own = vars(declared.owner)
        self.thaw: Callable[..., None] | None = own.get("_thaw")
        self.rebuild: Callable[[Any], None] | None = own.get("_rebuild")

    def migrated(self, values: Sequence[Any]) -> list[Any]:
        """The values of the present fields."""
        if not self.migrations and self.fields == tuple(self.written):
            return list(values)
        fields = dict(zip(self.written, values, strict=True))
        for migrate in self.migrations:
            fields = migrate(fields)
        if self.declared.is_value:
            fields = _defaults(self.declared.owner) | fields
        if fields.keys() != set(self.fields):
            raise SnapshotError(
                f"{self.declared.name}, version {self.declared.version}, has the fields "
                f"{', '.join(self.fields)}; the snapshot has {', '.join(fields)}"
            )
        return [fields[name] for name in self.fields]


def _migrations(declared: StoredClass, written: PartLayout) -> list[Migration]:
    """What makes the present fields out of those that were written."""
    if written.version > declared.version:
        raise SnapshotError(
            f"the snapshot has {declared.name} in version {written.version}, this program knows "
            f"versions up to {declared.version}: a later one is needed"
        )
    return [declared.migrations[version] for version in range(written.version, declared.version)]


def _defaults(owner: type) -> dict[str, Any]:
    """The defaults of a value's fields."""
    if not issubclass(owner, msgspec.Struct):
        return dict(getattr(owner, "_field_defaults", {}))
    found = {}
    for field in msgspec.structs.fields(owner):
        if field.default is not msgspec.NODEFAULT:
            found[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            found[field.name] = field.default_factory()
    return found


class Reader:
    """Makes the objects of one snapshot; the first of them are there already."""

    def __init__(
        self, fixed: Sequence[Any], kinds: Sequence[KindLayout], filters: Sequence[Filter]
    ) -> None:
        self._objects = list(fixed)
        self._fixed = len(fixed)
        self._filters = filters
        self._kinds = [_Kind(kind) for kind in kinds]
        self._collections: list[Any] = []
        self._readers: list[Callable[[list[Any]], Any]] = [
            lambda value: self._objects[value[1]],  # OBJECT
            lambda value: tuple(map(self._read, value[1:])),  # TUPLE
            self._list,
            self._dict,
            self._ordered_dict,
            self._set,
            lambda value: frozenset(map(self._read, value[1:])),  # FROZEN_SET
            self._deque,
            lambda value: self._collections[value[1]],  # SAME
            lambda value: self._filters[value[1]],  # FILTER
            self._value,
            lambda value: msgspec.Raw(value[1]),  # RAW
            lambda value: value[1],  # PLAIN
            lambda value: list(map(self._objects.__getitem__, value[1:])),  # SEVERAL
        ]

    def fill(self, rows: Sequence[list[Any]]) -> None:
        """Make and fill the objects of all rows. Raises SnapshotError."""
        objects = self._objects
        for row in rows[self._fixed :]:
            owner = self._kinds[row[0]].owner
            objects.append(owner.__new__(owner))
        later: list[tuple[int, int, Callable[..., None], list[Any]]] = []
        for number, row in enumerate(rows):
            if row[0] == ELSEWHERE:
                continue
            thing, at = objects[number], 1
            parts = self._kinds[row[0]].parts_for(thing, is_fixed=number < self._fixed)
            for part in parts:
                values = [
                    value if value.__class__ is not list else self._read(value)
                    for value in row[at : at + part.size]
                ]
                at += part.size
                if part.migrations or part.fields != tuple(part.written):
                    values = part.migrated(values)
                if part.thaw is not None:
                    later.append((part.declared.rank, number, part.thaw, values))
                else:
                    for name, value in zip(part.fields, values, strict=True):
                        setattr(thing, name, value)
                if part.rebuild is not None:
                    later.append((part.declared.rank, number, part.rebuild, []))
        for _, number, finish, values in sorted(later, key=lambda job: job[:2]):
            finish(objects[number], *values)

    def _read(self, value: Any) -> Any:
        return self._readers[value[0]](value) if value.__class__ is list else value

    def _list(self, value: list[Any]) -> list[Any]:
        made: list[Any] = []
        self._collections.append(made)
        made += map(self._read, value[1:])
        return made

    def _deque(self, value: list[Any]) -> deque[Any]:
        made: deque[Any] = deque()
        self._collections.append(made)
        made += map(self._read, value[1:])
        return made

    def _set(self, value: list[Any]) -> set[Any]:
        made: set[Any] = set()
        self._collections.append(made)
        made.update(map(self._read, value[1:]))
        return made

    def _dict(self, value: list[Any]) -> dict[Any, Any]:
        return self._filled({}, value)

    def _ordered_dict(self, value: list[Any]) -> dict[Any, Any]:
        return self._filled(OrderedDict(), value)

    def _filled(self, made: dict[Any, Any], value: list[Any]) -> dict[Any, Any]:
        self._collections.append(made)
        for at in range(1, len(value), 2):
            key = self._read(value[at])
            made[key] = self._read(value[at + 1])
        return made

    def _value(self, value: list[Any]) -> Any:
        kind = self._kinds[value[1]]
        [part] = kind.parts
        fields = [self._read(field) for field in value[2:]]
        return kind.owner(*part.migrated(fields))


class _Kind:
    """The class of some objects or values, as it is today."""

    def __init__(self, written: KindLayout) -> None:
        self._written = written
        declared = named(written.name)
        if written.name and declared is None:
            raise SnapshotError(
                f"the snapshot has something called {written.name!r}, which this "
                "program does not know"
            )
        #: Fixed objects are there, and their class is known from them.
        self.owner: type = declared.owner if declared is not None else object
        self.parts: list[_Part] = []
        if declared is not None and declared.is_value:
            self.parts = [_Part(declared, written.parts[0])]
        elif declared is not None:
            self.parts = self._parts(self.owner)

    def parts_for(self, thing: Any, *, is_fixed: bool) -> list[_Part]:
        if is_fixed and not self.parts:
            self.parts = self._parts(type(thing))
        return self.parts

    def _parts(self, owner: type) -> list[_Part]:
        there = {declared.name: declared for declared in declarations(owner)}
        written = [part.name for part in self._written.parts]
        if there.keys() != set(written):
            raise SnapshotError(
                f"{owner.__qualname__} has the parts {', '.join(there)}; the snapshot has "
                f"{', '.join(written)}"
            )
        return [_Part(there[part.name], part) for part in self._written.parts]
