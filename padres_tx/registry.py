"""Finds transaction engines and services by name, and checks what they declare.

The engine "x-y" is the module `x_y` of `padres_tx.engines`, or else what the entry-point group
`padres_tx.engines` offers under its name. Its module declares what it is:

    engine = EngineDeclaration(broker=XY, client="dynamic")    # padres_tx.engine_declaration

`broker` can also be the place of the class, "module:XY"; then clients do not import it.
There is no list to edit: every broker serves all engines that it finds. A service is found in the
same way, in `padres_tx.services` or by the entry-point group `padres_tx.services`; its module has

    service = XY                                               # overlay.broker.service.Service

A broker hosts the services that its topology lists, and loads no others. What lacks a required
hook, or declares what cannot be, is refused when it is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from padres_tx import engines
from padres_tx.engine_declaration import OVERLAY, PROMISES, EngineDeclaration, EngineProperties
from padres_tx.errors import InvalidEngine, InvalidService, UnknownEngine, UnknownService

if TYPE_CHECKING:
    from overlay.broker.engine import Engine, EngineFactory
    from overlay.broker.service import Service, ServiceFactory

#: The entry-point groups of engines and services from other packages.
GROUP = "padres_tx.engines"
SERVICES = "padres_tx.services"


def own_names() -> list[str]:
    """The names of the package's own engines."""
    return sorted(
        module.name.replace("_", "-") for module in pkgutil.iter_modules(engines.__path__)
    )


def names() -> list[str]:
    """The names of all engines, the package's own and those from outside."""
    return sorted({*own_names(), *_offered(GROUP)})


def _offered(group: str) -> list[str]:
    return [entry.name for entry in importlib.metadata.entry_points(group=group)]


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


def broker_half(name: str) -> type[Engine] | None:
    """The class of an engine's half at brokers; None if the engine needs nothing there.

    Raises UnknownEngine, and InvalidEngine with the reason.
    """
    half = load(name).broker
    if not isinstance(half, str):
        return half
    module, _, cls = half.partition(":")
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise _invalid(name, f"broker is {half!r}: {error}") from error
    if reason := _wrong_broker(name, found):
        raise _invalid(name, reason)
    half_class: type[Engine] = found
    return half_class


def broker_factories() -> dict[str, EngineFactory]:
    """What every broker is made with."""
    found = {name: broker_half(name) for name in names()}
    return {name: factory for name, factory in found.items() if factory is not None}


# --- services ---


def service_names() -> list[str]:
    """The names of all services that a topology can list."""
    from padres_tx import services

    own = (module.name.replace("_", "-") for module in pkgutil.iter_modules(services.__path__))
    return sorted({*own, *_offered(SERVICES)})


def load_service(name: str) -> type[Service]:
    """The service of that name.

    Raises UnknownService, which lists the known ones, and InvalidService with the reason.
    """
    from padres_tx import services

    if name in names():
        raise _invalid_service(name, "an engine has that name")
    for module in pkgutil.iter_modules(services.__path__):
        if module.name == name.replace("-", "_"):
            return _checked_service(
                name, importlib.import_module(f"{services.__name__}.{module.name}")
            )
    for entry in importlib.metadata.entry_points(group=SERVICES, name=name):
        return _checked_service(name, entry.load())
    known = ", ".join(service_names()) or "none"
    raise UnknownService(f"no service {name!r}; installed services: {known}")


def service_factories(listed: Iterable[str]) -> dict[str, ServiceFactory]:
    """What the brokers of a topology that lists these services are made with.

    Raises UnknownService or InvalidService.
    """
    return {name: load_service(name) for name in listed}


# --- checking ---


def _checked(name: str, module: Any) -> EngineDeclaration:
    declared = vars(module).get("engine")
    if not isinstance(declared, EngineDeclaration):
        raise _invalid(name, f"{module.__name__} has no `engine = EngineDeclaration(...)`")
    reason = _wrong_properties(declared) or _wrong_client(declared)
    if not (reason or declared.broker is None or _is_place(declared.broker)):
        reason = _wrong_broker(name, declared.broker)
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


def _is_place(broker: object) -> bool:
    """Whether a declared half has the form "module:Class"; it is checked when it is imported."""
    return isinstance(broker, str) and re.fullmatch(r"[\w.]+:\w+", broker) is not None


def _wrong_broker(name: str, half: object) -> str:
    # Here, since a client loads no broker.
    from overlay.broker.engine import Engine

    if not (inspect.isclass(half) and issubclass(half, Engine)):
        expected = "a subclass of overlay.broker.engine.Engine, or its place as 'module:Class'"
        return f"broker is {half!r}, expected {expected}"
    return _wrong_service(name, half)


def _checked_service(name: str, module: Any) -> type[Service]:
    from overlay.broker.service import Service

    made: object = vars(module).get("service")
    if not (inspect.isclass(made) and issubclass(made, Service)):
        expected = "a subclass of overlay.broker.service.Service"
        raise _invalid_service(name, f"{module.__name__} has no `service`, {expected}")
    if reason := _wrong_service(name, made):
        raise _invalid_service(name, reason)
    return made


def _invalid_service(name: str, reason: str) -> InvalidService:
    return InvalidService(f"service {name!r} cannot be used: {reason}")


def _wrong_service(name: str, made: type[Service]) -> str:
    from overlay.broker.service import DurableService

    if missing := sorted(made.__abstractmethods__):
        return f"{made.__name__} lacks the required hook {', '.join(missing)}"
    called = getattr(made, "name", None)  # Declared by Service, but not given there.
    if called != name:
        return f"{made.__name__}.name is {called!r}, expected {name!r}"
    if made.durable != issubclass(made, DurableService):
        is_one = "is" if issubclass(made, DurableService) else "is not"
        return f"{made.__name__}.durable is {made.durable}, but it {is_one} a DurableService"
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
