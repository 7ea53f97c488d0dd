"""What a snapshot keeps of an object: declared beside each class of a broker's state.

    @stored("task", derived=("cache",))             # a class with slots: all other slots are kept
    class Task: ...

    @stored("reach", fields=("_missing",), derived=("_name",))
    class Reach: ...

    @stored_value("home")                           # a NamedTuple or a frozen struct, kept whole
    class Home(NamedTuple): ...

    stored_values(Join, Leave)                      # the same, of several, under their own names

Every attribute is either kept (`fields`) or not (`derived`): what follows from the rest, a cache,
or what the constructor of a fixed object has set. Fixed objects are a broker, its engines and its
services; thawing does not make them, but fills them. What such an object consists of can be fixed
as well (`parts`), if others keep its methods. An attribute that is neither stops the next snapshot,
so who adds one has to decide. `overlay.snapshots` reads and writes snapshots; this module only
keeps the account.

**Names and versions.** A snapshot names classes by the names given here, never by the names in the
code. When the fields of a class change, its version goes up by one, and `migrations` gets a
function that makes the new fields out of the old ones: `{1: from_1_to_2}`, from a dict to a dict. A
value (`stored_value`) whose new fields have defaults needs neither.

**Hooks.** A class can have these methods of its own:

    _freeze()           the values of `fields`, if those are not attributes
    _thaw(*values)      takes what `_freeze` has given
    _rebuild()          computes what is derived, if the constructor is what usually does that

`_thaw` and `_rebuild` are called when the attributes of all objects are set; of objects with a
higher `rank` after those with a lower one. A base class and its subclass each declare what is their
own, with hooks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

C = TypeVar("C", bound=type[Any])

#: Makes the fields of the next version out of those of an older one.
Migration: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


class StoredClass(NamedTuple):
    """What one class declares; a subclass declares only what is its own."""

    owner: type
    name: str
    version: int
    fields: tuple[str, ...]
    derived: frozenset[str]
    parts: tuple[str, ...]
    migrations: Mapping[int, Migration]
    rank: int
    is_value: bool = False


class Plain(NamedTuple):
    """From `_freeze`: data of numbers, strings, booleans, None and lists, written as it is."""

    data: Any


class Several(NamedTuple):
    """From `_freeze`: objects of stored classes, in their order; a list when thawed."""

    objects: Iterable[Any]


_by_class: Final[dict[type, StoredClass]] = {}
_by_name: Final[dict[str, StoredClass]] = {}


def stored(
    name: str,
    *,
    fields: Iterable[str] | None = None,
    derived: Iterable[str] = (),
    parts: Iterable[str] = (),
    version: int = 1,
    migrations: Mapping[int, Migration] | None = None,
    rank: int = 0,
) -> Callable[[C], C]:
    """Declare a class of objects with an identity; see the module's docstring."""

    def declare(owner: C) -> C:
        slots = owner.__dict__.get("__slots__")
        kept = tuple(fields) if fields is not None else _other_slots(owner, slots, derived)
        if slots is not None and "_freeze" not in owner.__dict__:
            missing = set(slots) - set(kept) - set(derived)
            assert not missing, f"{owner.__qualname__}: neither stored nor derived: {missing}"
        inside = tuple(parts)
        known = frozenset((*derived, *inside))
        _add(StoredClass(owner, name, version, kept, known, inside, migrations or {}, rank))
        return owner

    return declare


def _other_slots(owner: type, slots: Any, derived: Iterable[str]) -> tuple[str, ...]:
    assert slots is not None, f"{owner.__qualname__} has no slots: name its fields"
    return tuple(slot for slot in slots if slot not in tuple(derived))


def stored_value(
    name: str, *, version: int = 1, migrations: Mapping[int, Migration] | None = None
) -> Callable[[C], C]:
    """Declare a class of values that never change: a NamedTuple or a frozen struct."""

    def declare(owner: C) -> C:
        _add(
            StoredClass(
                owner,
                name,
                version,
                value_fields(owner),
                frozenset(),
                (),
                migrations or {},
                0,
                is_value=True,
            )
        )
        return owner

    return declare


def stored_values(*owners: type) -> None:
    """Declare classes of values under the names that they have in the code, in version 1."""
    for owner in owners:
        stored_value(owner.__name__)(owner)


def value_fields(owner: type) -> tuple[str, ...]:
    """The fields of a NamedTuple or a struct."""
    # By its attribute, since Spark's executors have this module and no msgspec.
    found: tuple[str, ...] | None = getattr(owner, "__struct_fields__", None)
    fields: tuple[str, ...] = vars(owner)["_fields"] if found is None else found
    return fields


def _add(declared: StoredClass) -> None:
    known = _by_name.get(declared.name)
    # A module may be imported twice under one name, as tests do with what they install.
    assert known is None or known.owner.__qualname__ == declared.owner.__qualname__, (
        f"two stored classes called {declared.name!r}"
    )
    assert all(version in declared.migrations for version in range(1, declared.version)), (
        f"{declared.name} cannot read all of its versions"
    )
    _by_name[declared.name] = _by_class[declared.owner] = declared


def declaration_of(owner: type) -> StoredClass | None:
    """What this very class declares."""
    return _by_class.get(owner)


def named(name: str) -> StoredClass | None:
    """The declaration of that name."""
    return _by_name.get(name)


def declarations(owner: type) -> list[StoredClass]:
    """What a class and its bases declare, bases first."""
    found = (_by_class.get(base) for base in reversed(owner.__mro__))
    return [declared for declared in found if declared is not None]
