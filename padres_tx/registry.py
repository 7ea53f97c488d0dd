"""Finds transaction engines by name.

The engine "x-y" is the module `x_y` of `padres_tx.engines`, or else what the entry-point group
`padres_tx.engines` offers under its name. An engine's module has

    broker   what is made for every broker, `broker(broker) -> overlay.broker.engine.Engine`; None
    if
             the engine needs nothing there
    client   the client's half: "dynamic", "static", or a class of its own
             (`padres_tx.client.transactions`)

There is no list to edit: every broker serves all engines that it finds.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from padres_tx import engines
from padres_tx.errors import UnknownEngine

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


def load(name: str) -> ModuleType | Any:
    """The engine of that name.

    Raises UnknownEngine, which lists the known ones.
    """
    loaded = sys.modules.get(f"{engines.__name__}.{name.replace('-', '_')}")
    if loaded is not None:
        return loaded  # Looking for modules reads a directory, and every client asks.
    for module in pkgutil.iter_modules(engines.__path__):
        if module.name == name.replace("-", "_"):
            return importlib.import_module(f"{engines.__name__}.{module.name}")
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        return entry.load()
    raise UnknownEngine(f"no transaction engine {name!r}; there are {', '.join(names())}")


def broker_factories() -> dict[str, EngineFactory]:
    """What every broker is made with."""
    found = {name: load(name).broker for name in names()}
    return {name: factory for name, factory in found.items() if factory is not None}
