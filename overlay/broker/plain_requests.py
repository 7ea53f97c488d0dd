"""The plain requests of a broker: what it asked its neighbours, and whose answers are due.

A request that other brokers have to carry out, too, is a `Task` (`overlay.broker.requests`). When
every neighbour that was asked has answered, the task is finished, and its origin gets its answer:
a `Done` to a client or a neighbour, a call to an engine.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from overlay.broker.requests import Task, Tasks
from overlay.effects import Effect, Send
from overlay.messages import Done, Hop, Join, Leave, Operation, is_client
from overlay.stored import stored

if TYPE_CHECKING:
    from overlay.broker.core import Broker

#: Plain operations of one client that may be under way, here and at other brokers, before its next
#: message is taken. They share the links with all publications, so this bounds how far one client
#: can fill them: with operations of 50 us, 6 ms. Over links with a delay it bounds the
#: client's rate: 1,280 operations/s at a round trip of 100 ms.
UNDER_WAY_PER_CLIENT = 128


@stored(
    "plain-requests",
    fields=("tasks", "_lost", "_under_way", "_freed"),
    derived=("_broker",),
)
class PlainRequests:
    """The part of a broker that asks its neighbours, and answers when they have."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.tasks: Tasks[Task] = Tasks()
        #: Neighbours that cannot be reached, and whose answers to what they were asked before are
        #: still waited for.
        self._lost: dict[Hop, None] = {}
        #: The plain requests of each hop that are under way; dicts for their order.
        self._under_way: dict[Hop, dict[Task, None]] = {}
        #: Hops that are not busy any more, for the host.
        self._freed: dict[Hop, None] = {}

    # --- asking and answering ---

    def ask(
        self, task: Task, hop: Hop, message: Operation | Join | Leave, *, required: bool = False
    ) -> Effect:
        """Send a neighbour its part of a task; the task waits for the answer, unless the neighbour
        cannot be reached and the answer is not required."""
        req = self.tasks.ask(task, hop, required=required)
        if task.waiting:
            self.begin(task)
        return Send((hop,), msgspec.structs.replace(message, req=req))

    def receive_done(self, source: Hop, done: Done, now: float) -> list[Effect]:
        """A neighbour has answered."""
        if self.tasks.came_late(source, done.req):
            return []
        task = self.tasks.answered(source, done.req)
        if done.code and not task.error[0]:
            task.error = (done.code, done.reason)
        busy = self._broker.busy
        effects = busy.answers_came(task) if busy.awaiting else []
        return effects + self.finished(task, now)

    def finished(self, task: Task, now: float) -> list[Effect]:
        """Answer the task's origin if nothing is outstanding any more."""
        if task.waiting:
            return []
        self._end(task)
        if task.engine:
            return self._broker.engines[task.engine].completed(task.context, now)
        effects = self._broker.membership.finished(task)
        if effects is None:
            return self._broker.membership.refused(task)
        if task.req:
            effects.append(Send((task.origin,), Done(task.req, *task.error, task.number)))
        return effects + self._broker.resending.finished(task, now)

    # --- what is under way ---

    def begin(self, task: Task) -> None:
        """A task waits for something from now on."""
        self._under_way.setdefault(task.origin, {})[task] = None

    def _end(self, task: Task) -> None:
        origin = task.origin
        tasks = self._under_way.get(origin)
        if tasks is None or task not in tasks:
            return
        del tasks[task]
        if len(tasks) == UNDER_WAY_PER_CLIENT // 2 and is_client(origin):
            self.free(origin)
        if not tasks:
            del self._under_way[origin]

    def disown(self, origin: Hop) -> None:
        """Let nothing that is under way for a hop be answered to it."""
        for task in self._under_way.get(origin, ()):
            task.req = 0

    def operations(self) -> list[tuple[Hop, Operation]]:
        """The operations that were carried out here, and are not done everywhere behind."""
        return [
            (task.origin, task.operation)
            for tasks in self._under_way.values()
            for task in tasks
            if task.operation is not None
        ]

    def is_full(self, hop: Hop) -> bool:
        """Whether so much of a client is under way that its next message has to wait."""
        return len(self._under_way.get(hop, ())) >= UNDER_WAY_PER_CLIENT and is_client(hop)

    def free(self, hop: Hop) -> None:
        """A hop is not busy any more; the host asks for that by `take_freed`."""
        self._freed[hop] = None

    def take_freed(self) -> list[Hop]:
        """The hops that are not busy any more, since the last call."""
        freed = list(self._freed)
        self._freed.clear()
        return freed

    @property
    def at_rest(self) -> bool:
        """Whether no answer is outstanding, not even a late one."""
        return not (len(self.tasks) or self.tasks.is_late)

    # --- neighbours that cannot be reached ---

    def lose(self, neighbour: Hop) -> None:
        """Wait for no answers to what a neighbour is asked from now on, until `find`."""
        self.tasks.lose(neighbour)
        self._lost[neighbour] = None

    def find(self, neighbour: Hop) -> None:
        """A neighbour can be reached again, and its link goes on where it was."""
        self._lost.pop(neighbour, None)
        self.tasks.find(neighbour)

    def reset(self, neighbour: Hop) -> list[Task]:
        """A neighbour lives a new life, and answers nothing that its former life was asked.

        Returns the tasks that wait for nothing any more; then `finish` them.
        """
        self._lost.pop(neighbour, None)
        return self.tasks.reset(neighbour)

    def finish(self, tasks: Iterable[Task], now: float) -> list[Effect]:
        """Answer the origins of tasks that no neighbour answers any more."""
        effects: list[Effect] = []
        for task in tasks:
            effects += self.finished(task, now)
        return effects + self._broker.busy.answers_came()

    def give_up(self, now: float) -> list[Effect]:
        """Wait no more for what neighbours were asked before they were lost, unless an engine
        needs their answers."""
        broker, effects = self._broker, list[Effect]()
        for hop in list(self._lost):
            if not any(engine.awaits_answers(hop) for engine in broker.engines.values()):
                del self._lost[hop]
                for task in self.tasks.give_up(hop):
                    effects += self.finished(task, now)
                effects += broker.busy.answers_came()
        return effects
