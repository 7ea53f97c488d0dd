"""Requests to neighbours that belong together, and what waits for their answers.

A task is one piece of work of which neighbours have been asked to do their part. Each part has a
request number of this broker's; the neighbour answers with it. What happens when the last answer
has come is the owner's business.

A neighbour that cannot be reached is asked all the same, since its link keeps what it is sent, but
no task waits for its answers: those that are outstanding when it is lost count as given, and so do
those to all that it is asked until it is back. They are *late*: they come when the link resumes,
and are counted, so that it is known when the neighbour has caught up. If the link is reset instead,
they never come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from overlay.errors import ProtocolError
from overlay.messages import Hop, Operation
from overlay.stored import stored


class Waits(Protocol):
    """Anything that counts the answers it still waits for."""

    waiting: int


T = TypeVar("T", bound=Waits)


@stored("late")
class _Late:
    """Answers of one neighbour that no task waits for: to how many requests, up to which."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0


@stored("tasks", fields=("_last", "_asked", "_absent", "_late"))
class Tasks(Generic[T]):
    """The requests that one broker has made and that are not answered yet."""

    def __init__(self) -> None:
        self._last = 0
        #: Of whom, by which task, and whether that waits for an absent neighbour, too.
        self._asked: dict[int, tuple[Hop, T, bool]] = {}
        #: The neighbours that cannot be reached. A dict, for its order.
        self._absent: dict[Hop, None] = {}
        #: A count and not the numbers: a neighbour may be away for very many requests.
        self._late: dict[Hop, _Late] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, task: T, hop: Hop, *, required: bool = False) -> int:
        """The number of a new request to a neighbour, for which the task now waits, unless the
        neighbour is absent; with `required` even so."""
        self._last += 1
        if hop in self._absent and not required:
            self._be_late(hop, self._last)
        else:
            self._asked[self._last] = (hop, task, required)
            task.waiting += 1
        return self._last

    def came_late(self, source: Hop, req: int) -> bool:
        """Whether an answer is one that no task waits for; then it has been counted."""
        late = self._late.get(source)
        if late is None or not 0 < req <= late.last or req in self._asked:
            return False
        late.count -= 1
        if not late.count:
            del self._late[source]
        return True

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

    def lose(self, hop: Hop) -> None:
        """A neighbour cannot be reached: wait for no answers to what it is asked until `find`."""
        self._absent[hop] = None

    def give_up(self, hop: Hop) -> list[T]:
        """Wait no more for what the neighbour was asked before it was lost, either.

        Returns the tasks that wait for nothing any more.
        """
        lost = [req for req in self.to(hop) if not self._asked[req][2]]
        for req in lost:
            self._be_late(hop, req)
        return self._give_up(lost)

    def _give_up(self, reqs: Iterable[int]) -> list[T]:
        done: list[T] = []
        for req in reqs:
            task = self._asked.pop(req)[1]
            task.waiting -= 1
            if not task.waiting:
                done.append(task)
        return done

    def _be_late(self, hop: Hop, req: int) -> None:
        late = self._late.setdefault(hop, _Late())
        late.count += 1
        late.last = max(late.last, req)

    def find(self, hop: Hop) -> None:
        """The neighbour can be reached again, and its link goes on where it was."""
        self._absent.pop(hop, None)

    def reset(self, hop: Hop) -> list[T]:
        """The neighbour lives a new life: it can be reached, and answers nothing of before.

        Returns the tasks that wait for nothing any more.
        """
        self.find(hop)
        self._late.pop(hop, None)
        return self._give_up(self.to(hop))

    def late(self, hop: Hop) -> int:
        """How many answers of a neighbour are late."""
        late = self._late.get(hop)
        return late.count if late is not None else 0

    @property
    def is_late(self) -> bool:
        """Whether any neighbour has to catch up."""
        return bool(self._late)

    def to(self, hop: Hop) -> list[int]:
        """The numbers of the requests that a neighbour has not answered."""
        return [req for req, (asked, _, _) in self._asked.items() if asked == hop]

    def awaited(self) -> list[Hop]:
        """Whose answers are outstanding, each once."""
        return sorted({hop for hop, _, _ in self._asked.values()})

    def under_way(self) -> list[T]:
        """The tasks that wait for something, each once, in the order of their first request."""
        return list({id(task): task for _, task, _ in self._asked.values()}.values())


@stored("task")
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
