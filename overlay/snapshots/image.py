"""Freezing and thawing a broker: its core, its engines and its services."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import msgspec

from overlay.broker.core import Broker
from overlay.broker.service import DurableService, Snapshot
from overlay.effects import Effect
from overlay.errors import SnapshotError
from overlay.snapshots.filter_table import read_filters
from overlay.snapshots.layout import FORMAT, MAGIC, Image, ServiceState
from overlay.snapshots.reading import Reader
from overlay.snapshots.writing import Writer, undeclared
from overlay.stored import declarations


def freeze(core: Broker) -> bytes:
    """The broker's whole state, at any moment between two inputs.

    The same state gives the same bytes, in every process.

    Raises SnapshotError if a part of the state is of a class that is not declared
    (`overlay.stored`): that is a mistake of whoever wrote the class.
    """
    fixed = _fixed(core)
    own = {name: it for name, it in fixed.items() if isinstance(it, DurableService)}
    writer = Writer(list(fixed.values()), own.values())
    with _without_garbage_collection():
        image = Image(
            broker=core.name,
            neighbours=list(core.routing.neighbours),
            fixed=list(fixed),
            objects=writer.rows(),
            kinds=writer.kinds,
            filters=writer.filters.filters,
            intervals=writer.filters.intervals,
            services={name: ServiceState(*service.snapshot()) for name, service in own.items()},
        )
        try:
            return _encode(image)
        except (OverflowError, TypeError) as error:
            raise SnapshotError(f"a part of {core.name} cannot be kept: {error}") from error


def thaw(core: Broker, data: bytes, now: float = 0.0) -> list[Effect]:
    """Fill a broker that has just been made with a state that `freeze` has written.

    The broker has to have the name, the neighbours, the engines and the services of the one that
    was frozen; an engine or a service that is new begins empty. From then on the same inputs have
    the same effects as there. Returns the timers that services with snapshots of their own ask for
    (`DurableService.restore`); who keeps the broker's timers has them already.

    Raises SnapshotError if these are not the bytes of a snapshot of this broker that this program
    can read. The broker is of no use then.
    """
    with _without_garbage_collection():
        return _fill(core, _decode(data), now)


def _fill(core: Broker, image: Image, now: float) -> list[Effect]:
    there = _fixed(core)
    if (image.broker, image.neighbours) != (core.name, list(core.routing.neighbours)):
        raise SnapshotError(
            f"a snapshot of broker {image.broker} with the neighbours "
            f"{_names(image.neighbours)}, expected {core.name} with "
            f"{_names(core.routing.neighbours)}"
        )
    if missing := [name for name in image.fixed if name not in there]:
        raise SnapshotError(
            f"the snapshot of {core.name} has a state of {_names(missing)}, and the broker has no "
            "such engine or service"
        )
    effects: list[Effect] = []
    try:
        fixed = [there[name] for name in image.fixed]
        filters = read_filters(image.filters, image.intervals)
        Reader(fixed, image.kinds, filters).fill(image.objects)
        for name, state in image.services.items():
            service = there[name]
            if not isinstance(service, DurableService):
                raise SnapshotError(f"{name} cannot restore the snapshot that it has given")
            effects += service.restore(Snapshot(*state), now)
    except SnapshotError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise SnapshotError(f"the snapshot of {core.name} is damaged: {error!r}") from error
    return effects


def check_stored(core: Broker) -> None:
    """Raises SnapshotError if an engine or a service of a broker cannot be kept, with the reason.

    For a broker that has just been made; `freeze` finds out about the rest.
    """
    for name, service in {**core.engines, **core.services}.items():
        if isinstance(service, DurableService):
            continue
        known = {"broker"}.union(
            *(it.derived.union(it.fields) for it in declarations(type(service)))
        )
        if other := sorted(vars(service).keys() - known):
            raise SnapshotError(
                f"{name} cannot be used with snapshots: {undeclared(service, other)}, or let it be "
                "a DurableService"
            )


def _fixed(core: Broker) -> dict[str, Any]:
    """The objects that thawing fills and does not make, by name."""
    found: dict[str, Any] = {"": core}
    for declared in declarations(type(core)):
        found |= {f".{name}": getattr(core, name) for name in declared.parts}
    return {**found, **core.engines, **core.services}


def _names(names: Any) -> str:
    return ", ".join(names) or "none"


# --- bytes ---


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Image)


def _encode(image: Image) -> bytes:
    body = _encoder.encode(image)
    return b"%s%d %d\n%s" % (MAGIC, FORMAT, crc32(body), body)


def _decode(data: bytes) -> Image:
    head, _, body = data.partition(b"\n") if data.startswith(MAGIC) else (b"", b"", b"")
    number, _, checksum = head[len(MAGIC) :].partition(b" ")
    if not number.isdigit():
        raise SnapshotError("this is no snapshot of a broker")
    if int(number) != FORMAT:
        raise SnapshotError(
            f"a snapshot of format {int(number)}, expected {FORMAT}: a later program has written it"
        )
    if checksum != b"%d" % crc32(body):
        raise SnapshotError("the snapshot is damaged: its checksum is another one")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"the snapshot is damaged: {error}") from error


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of objects come, and none goes: looking for those that do would double the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
