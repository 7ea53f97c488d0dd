"""Requests to neighbours that belong together, and what waits for their answers.

A task is one piece of work of which neighbours have been asked to do their part. Each part has a
request number of this broker's; the neighbour answers with it. What happens when the last answer
has come is the owner's business.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from overlay.errors import ProtocolError
from overlay.messages import Hop, Operation


class Waits(Protocol):
    """Anything that counts the answers it still waits for."""

    waiting: int


T = TypeVar("T", bound=Waits)


class Tasks(Generic[T]):
    """The requests that one broker has made and that are not answered yet."""

    def __init__(self) -> None:
        self._last = 0
        self._asked: dict[int, tuple[Hop, T]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, task: T, hop: Hop) -> int:
        """The number of a new request to a neighbour, for which the task now waits."""
        self._last += 1
        self._asked[self._last] = (hop, task)
        task.waiting += 1
        return self._last

    def answered(self, source: Hop, req: int) -> T:
        """The task whose request the source has answered; one answer less to wait for.

        Raises ProtocolError if the source was not asked that.
        """
        asked = self._asked.get(req)
        if asked is None or asked[0] != source:
            raise ProtocolError(f"{source} answers request {req}, which it was not asked")
        del self._asked[req]
        asked[1].waiting -= 1
        return asked[1]

    def drop(self, task: T) -> None:
        """Wait no more for the answers to a task; they are protocol errors if they come."""
        for req in [req for req, (_, asker) in self._asked.items() if asker is task]:
            del self._asked[req]
        task.waiting = 0

    def to(self, hop: Hop) -> list[int]:
        """The numbers of the requests that a neighbour has not answered."""
        return [req for req, (asked, _) in self._asked.items() if asked == hop]

    def under_way(self) -> list[T]:
        """The tasks that wait for something, each once, in the order of their first request."""
        return list({id(task): task for _, task in self._asked.values()}.values())


class Task:
    """A plain request that is under way, here and at the neighbours that were told.

    `origin` and `req` say whom to answer, and `number` is what a client learns from the answer; a
    request number of 0 wants no answer. One that an engine has started is answered to the engine.
    """

    __slots__ = ("context", "engine", "error", "number", "operation", "origin", "req", "waiting")

    def __init__(self, origin: Hop, req: int, engine: str = "", context: Any = None) -> None:
        self.origin = origin
        self.req = req
        self.engine = engine
        self.context = context
        self.operation: Operation | None = None
        self.number = 0
        self.waiting = 0
        self.error: tuple[str, str] = ("", "")
