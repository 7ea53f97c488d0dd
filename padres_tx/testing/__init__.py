"""A pytest plugin for users' own tests: an overlay in the test's process, without sockets.

    def test_a1_gets_orders(padres_overlay):
        a1 = padres_overlay.connect("A1", at="B1")
        e = padres_overlay.connect("E", at="B3")
        a1.subscribe("[class,eq,'order']")
        e.advertise("[class,eq,'order']")
        e.publish("[class,'order'],[price,150]")
        assert a1.next(timeout_s=0)["price"] == 150

pytest finds it when the package is installed. `padres_overlay` is the topology "three";
`padres_overlay_factory` takes another one, by name, file or model. Asyncio tests use
`padres_overlay.connect_async(...)` as they would use `padres_tx.connect(...)`. Both return a
`padres_tx.testing.inprocess.InProcessOverlay`, which also works without pytest.

Every pytest run on a machine that has the package loads this module, so it loads nothing else
until a test asks for an overlay.

Rule: imports clients and the in-process host of `overlay.hosts`; nothing in `padres_tx` imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from padres_tx.testing.inprocess import InProcessOverlay
    from topologies import Topology


class OverlayFactory(Protocol):
    """Makes an overlay that lives as long as the test."""

    def __call__(
        self, topology: Topology | str = "three", *, trace: bool = False
    ) -> InProcessOverlay: ...


@pytest.fixture
def padres_overlay_factory() -> Iterator[OverlayFactory]:
    """Call it with a topology (a name, a file, a model) to get an in-process padres_tx overlay."""
    from padres_tx.testing.inprocess import InProcessOverlay

    with ExitStack() as stack:

        def make(topology: Topology | str = "three", *, trace: bool = False) -> InProcessOverlay:
            return stack.enter_context(InProcessOverlay(topology, trace=trace))

        yield make


@pytest.fixture
def padres_overlay(padres_overlay_factory: OverlayFactory) -> InProcessOverlay:
    """An in-process padres_tx overlay: the brokers B1, B2 and B3 in a chain."""
    return padres_overlay_factory()
