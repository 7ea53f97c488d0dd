"""The way of inputs to a node: staged, appended to a log, committed, applied; in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from overlay.node.ends import End
from overlay.node.inputs import Input

P = TypeVar("P", bound=End)


class Staged(NamedTuple, Generic[P]):
    """An input on its way to the node."""

    input: Input
    #: Whose it is, or whom it is about, if anybody's.
    peer: P | None = None
    #: Called when it was applied.
    then: Callable[[], None] | None = None


class Journal(Generic[P]):
    """To come."""

    def put(self, staged: Staged[P]) -> None:
        raise NotImplementedError
