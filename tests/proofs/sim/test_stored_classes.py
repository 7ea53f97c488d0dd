"""Every attribute of every object of a busy broker is declared: stored, or derived.

`overlay.snapshots` notices an attribute that nobody has declared, too. Here objects are found in
another way, by whatever refers to them, derived attributes included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import MethodType
from typing import Any

import msgspec
import pytest
from sortedcontainers import SortedList

from overlay.broker.core import Broker
from overlay.effects import Effect
from overlay.filters import Filter
from overlay.matching.index import Index, Search
from overlay.messages import BrokerName
from overlay.stored import declaration_of, declarations
from overlay.tables.reads import IndexedRead
from overlay.tables.versions import Now
from proofs.sim.random_run import RandomRun
from tests.proofs.sim.test_thawed_runs import SHAPES

ATOMS = (str, int, float, bool, bytes, type(None), type, msgspec.Raw, Filter, MethodType)

#: Made anew by whoever has them, and referred to by derived attributes only.
DERIVED = (Now, IndexedRead, SortedList)

#: Kept by hooks as a whole: the tree of an index, and the place of a search in it.
WHOLE = (Index, Search)


def attributes(thing: Any) -> dict[str, Any]:
    """What an object has, in slots and in a dict."""
    names = [
        name
        for base in type(thing).__mro__
        for name in base.__dict__.get("__slots__", ())
        if name not in ("__dict__", "__weakref__")
    ]
    found = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    return found | getattr(thing, "__dict__", {})


def undeclared(roots: list[Any]) -> Iterator[str]:
    """The attributes that nobody has declared, and the classes."""
    seen: set[int] = set()
    alive: list[Any] = []
    waiting = deque(roots)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, ATOMS) or id(thing) in seen:
            continue
        seen.add(id(thing))
        alive.append(thing)
        if isinstance(thing, dict):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | deque | set | frozenset) or type(thing) is tuple:
            waiting += thing
        elif isinstance(thing, tuple | msgspec.Struct):
            declared = declaration_of(type(thing))
            if declared is None or not declared.is_value:
                yield type(thing).__qualname__
            fields = (getattr(thing, name) for name in declared.fields) if declared else ()
            waiting += fields
        elif isinstance(thing, WHOLE):
            if isinstance(thing, Index):
                waiting += thing
        elif not isinstance(thing, DERIVED):
            parts = declarations(type(thing))
            known = {name for part in parts for name in (*part.fields, *part.derived)}
            here = attributes(thing)
            yield from (f"{type(thing).__qualname__}.{name}" for name in here.keys() - known)
            waiting += here.values()


@pytest.mark.parametrize("name", ["mixed", "sliced"])
@pytest.mark.parametrize("seed", [4, 5])
def test_all_that_busy_brokers_are_is_declared(name: str, seed: int) -> None:
    run = RandomRun(SHAPES[name].of_seed(seed), SHAPES[name].tape(seed))
    sim = run.world.sim
    found: set[str] = set()
    effects = 0

    def observe(broker: BrokerName, effect: Effect) -> None:
        nonlocal effects
        effects += 1
        if effects % 50 == 0:
            found.update(undeclared([sim.brokers[broker]]))

    sim.observe = observe
    run.go()
    assert effects > 500
    assert found == set()


def test_what_nobody_declared_is_found() -> None:
    core = Broker(BrokerName("B1"), [])
    core.jobs.fresh = object  # type: ignore[attr-defined]
    assert set(undeclared([core])) == {"Jobs.fresh"}
