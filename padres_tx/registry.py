"""Finds transaction engines by name, and checks what they declare.

The engine "x-y" is the module `x_y` of `padres_tx.engines`, or else what the entry-point group
`padres_tx.engines` offers under its name. Its module declares what it is:

    engine = EngineDeclaration(broker=XY, client="dynamic")    # padres_tx.engine_declaration

There is no list to edit: every broker serves all engines that it finds. An engine that leaves out a
hook that is required, or declares what cannot be, is refused when it is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from padres_tx import engines
from padres_tx.engine_declaration import OVERLAY, PROMISES, EngineDeclaration, EngineProperties
from padres_tx.errors import InvalidEngine, UnknownEngine

if TYPE_CHECKING:
    from overlay.broker.engine import EngineFactory

GROUP = "padres_tx.engines"


def own_names() -> list[str]:
    """The names of the package's own engines."""
    return sorted(
        module.name.replace("_", "-") for module in pkgutil.iter_modules(engines.__path__)
    )


def names() -> list[str]:
    """The names of all engines, the package's own and those from outside."""
    outside = {entry.name for entry in importlib.metadata.entry_points(group=GROUP)}
    return sorted(outside.union(own_names()))


def by_promises(*, own: bool = False) -> list[str]:
    """The names of all engines, or of the package's own, those that promise most first."""
    found = own_names() if own else names()
    return sorted(found, key=lambda name: (-len(load(name).promises), name))


def load(name: str) -> EngineDeclaration:
    """The engine of that name.

    Raises UnknownEngine, which lists the known ones, and InvalidEngine with the reason.
    """
    loaded = sys.modules.get(f"{engines.__name__}.{name.replace('-', '_')}")
    if loaded is not None:
        return _checked(name, loaded)  # Looking for modules reads a directory.
    for module in pkgutil.iter_modules(engines.__path__):
        if module.name == name.replace("-", "_"):
            return _checked(name, importlib.import_module(f"{engines.__name__}.{module.name}"))
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        return _checked(name, entry.load())
    raise UnknownEngine(f"no transaction engine {name!r}; there are {', '.join(names())}")


def properties(name: str) -> EngineProperties:
    """What is expected of an engine; of one that is not installed here, what all must be."""
    try:
        return load(name)
    except UnknownEngine:
        return EngineProperties()


def where(holds: Callable[[EngineDeclaration], object]) -> list[str]:
    """The names of the engines for which something holds, those that promise most first."""
    return [name for name in by_promises() if holds(load(name))]


def broker_factories() -> dict[str, EngineFactory]:
    """What every broker is made with."""
    found = {name: load(name).broker for name in names()}
    return {name: factory for name, factory in found.items() if factory is not None}


# --- checking ---


def _checked(name: str, module: Any) -> EngineDeclaration:
    declared = vars(module).get("engine")
    if not isinstance(declared, EngineDeclaration):
        raise _invalid(name, f"{module.__name__} has no `engine = EngineDeclaration(...)`")
    reason = _wrong_properties(declared) or _wrong_broker(name, declared) or _wrong_client(declared)
    if reason:
        raise _invalid(name, reason)
    return declared


def _invalid(name: str, reason: str) -> InvalidEngine:
    return InvalidEngine(f"engine {name!r} cannot be used: {reason}")


def _wrong_properties(declared: EngineDeclaration) -> str:
    for field in ("versioned", "replicated", "ends_alone"):
        if not isinstance(value := vars(declared)[field], bool):
            return f"{field} is {value!r}, expected True or False"
    if not isinstance(declared.promises, frozenset):
        return f"promises is {declared.promises!r}, expected a frozenset"
    if unknown := sorted(map(repr, declared.promises - PROMISES.keys())):
        return f"unknown promise {', '.join(unknown)}; there are {', '.join(PROMISES)}"
    if declared.broker is None and (without := sorted(declared.promises - OVERLAY)):
        return f"it promises {', '.join(without)}, which takes a broker's half"
    return ""


def _wrong_broker(name: str, declared: EngineDeclaration) -> str:
    if declared.broker is None:
        return ""
    # Here, since a client whose engines need nothing at brokers loads no broker.
    from overlay.broker.engine import Engine
    from overlay.broker.service import DurableService

    half = declared.broker
    if not (inspect.isclass(half) and issubclass(half, Engine)):
        return f"broker is {half!r}, expected a subclass of overlay.broker.engine.Engine"
    if missing := sorted(half.__abstractmethods__):
        return f"{half.__name__} lacks the required hook {', '.join(missing)}"
    called = getattr(half, "name", None)  # Declared by Service, but not given there.
    if called != name:
        return f"{half.__name__}.name is {called!r}, expected {name!r}"
    if half.durable and not issubclass(half, DurableService):
        return f"{half.__name__} is durable, but has no snapshot: it is no DurableService"
    return ""


def _wrong_client(declared: EngineDeclaration) -> str:
    half = declared.client
    if isinstance(half, str):
        if half in ("dynamic", "static"):
            return ""
        return f"client is {half!r}, expected 'dynamic', 'static' or a subclass of ClientHalf"
    # Here, since clients find their halves by this module.
    from padres_tx.client.engine_halves import ClientHalf

    if not (inspect.isclass(half) and issubclass(half, ClientHalf)):
        return f"client is {half!r}, expected 'dynamic', 'static' or a subclass of ClientHalf"
    if missing := sorted(half.__abstractmethods__):
        return f"{half.__name__} lacks the required method {', '.join(missing)}"
    return ""
