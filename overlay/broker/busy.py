"""Sources that are busy: their long work goes on slice by slice, and their next messages wait.

Long work (`overlay.broker.long_work`) is a job of the broker. Its source is busy until it is over:
what comes from there meanwhile waits in the order of its arrival, so the order of a client's
operations is kept. The host hands nothing over from a busy client, so that little waits here.

A part of the broker (`overlay.broker.core`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from overlay.broker.long_work import CatchingUp, LongLeave, LongOperation, LongWork
from overlay.broker.requests import Task
from overlay.effects import Close, Effect
from overlay.errors import OperationError, PeerError
from overlay.messages import AnyMessage, Hop, Operation
from overlay.stored import stored
from overlay.tables.routing import Outcome
from overlay.trace import TraceKind

if TYPE_CHECKING:
    from overlay.broker.core import Broker
    from overlay.broker.waiting import HeldItem

#: Units of work (`overlay.broker.turns`) for a message that has waited for long work.
CATCH_UP_UNITS = 4


@stored(
    "busy-sources",
    fields=("long", "awaiting", "_deferred", "behind"),
    derived=("_broker",),
)
class BusySources:
    """The part of a broker that carries long work out, and lets its sources wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Long work that a hop waits for.
        self.long: dict[Hop, LongWork] = {}
        #: Long work that waits for neighbours to answer, by its task.
        self.awaiting: dict[Task, LongWork] = {}
        #: Messages from hops since they wait for long work, and before those what had waited for a
        #: decision.
        self._deferred: dict[Hop, deque[HeldItem]] = {}
        self.behind: dict[Hop, deque[AnyMessage]] = {}

    @property
    def at_rest(self) -> bool:
        return not (self.long or self.awaiting)

    # --- messages that wait for long work ---

    def keep(self, source: Hop, message: AnyMessage) -> None:
        """Keep a message of a busy source until its long work is over."""
        self.behind.setdefault(source, deque()).append(message)

    def defer(self, item: HeldItem) -> None:
        """Keep an operation of a busy source that came before the work began, and has waited."""
        self._deferred.setdefault(item.source, deque()).append(item)

    @property
    def deferred(self) -> list[HeldItem]:
        """All such operations."""
        return [item for items in self._deferred.values() for item in items]

    def drop(self, source: Hop, now: float) -> list[Effect]:
        """A client has gone: end its long work, and forget what it has sent that waits behind it.

        Engines hear of theirs, as of those that wait elsewhere.
        """
        self.behind.pop(source, None)
        deferred = self._deferred.pop(source, ())
        if others := deque(item for item in deferred if not item.is_plain):
            self._deferred[source] = others
        long = self.long.get(source)
        if long is None:
            return []
        long.pauses = True
        self._broker.waiting.drop_part(long)
        return self.done(long, now)

    def _catch_up(self, source: Hop, now: float) -> list[Effect]:
        """Take a slice of the messages of a source that have waited for long work."""
        broker, effects = self._broker, list[Effect]()
        deferred, behind = self._deferred.get(source), self.behind.get(source)
        for _ in range(max(broker.slice // CATCH_UP_UNITS, 1)):
            if source in self.long:
                return effects
            try:
                if deferred:
                    if not broker.waiting.wait_again(deferred):
                        effects += broker.waiting.resume(deferred.popleft(), now)
                elif behind:
                    effects += broker.receive(source, behind.popleft(), now)
            except PeerError as error:  # Not the mistake of the peer whose message we handle.
                effects.append(Close(source, error.code, str(error)))
                if behind:
                    behind.clear()
        if source in self.long:
            return effects
        if deferred or behind:
            return effects + self.begin(CatchingUp(broker, source, Task(source, 0)))
        self._deferred.pop(source, None)
        self.behind.pop(source, None)
        broker.requests.free(source)
        return effects + broker.waiting.go_on(source)

    # --- the work ---

    def begin(self, long: LongWork) -> list[Effect]:
        """Begin long work for which its source has to wait."""
        self.long[long.source] = long
        return self.begin_job(long)

    def begin_job(self, long: LongWork) -> list[Effect]:
        """Begin long work beside which its source can go on."""
        long.task.waiting += 1  # For the work itself.
        self._broker.requests.begin(long.task)
        return self._broker.jobs.add("", long)

    def part(self, long: LongWork, part: Operation, now: float) -> list[Effect]:
        """Carry out a part of a long operation in its turn; it pauses if that is not now."""
        if self._broker.waiting.holds_part(long, part):
            long.pauses = True
            return []
        return long.resumed(part, now)

    def apply_part(
        self, task: Task, operation: Operation, now: float, kind: TraceKind
    ) -> list[Effect]:
        """Change the tables by a part of long work."""
        return self._broker.operations.apply(task, operation, now, kind)

    def move(
        self,
        task: Task,
        source: Hop,
        operation: Operation | None,
        moved: list[tuple[Hop, Operation]],
        now: float,
    ) -> list[Effect]:
        """Tell neighbours of subscriptions that an (un-)advertisement has moved, or the leaving of
        a client that had advertised."""
        broker = self._broker
        if operation is None:
            return [broker.requests.ask(task, hop, sent) for hop, sent in moved]
        effects: list[Effect] = []
        if broker.trace and moved:
            recorded = msgspec.structs.replace(operation, store=False, drop=())
            outcome = Outcome([], moved, [])
            view = broker.versions.view()
            effects.append(broker.record_change("undo", now, source, recorded, outcome, view))
        return effects + broker.operations.ask(task, operation, moved)

    def done(self, long: LongWork, now: float) -> list[Effect]:
        """Long work is over: answer for it, and take what its source has sent since."""
        long.task.waiting -= 1
        self.awaiting.pop(long.task, None)
        effects: list[Effect] = []
        if isinstance(long, LongLeave):
            del self.long[long.source]
            effects += self._broker.waiting.after_undecided(long.source, long.leave, now)
        elif self.long.get(long.source) is long:
            del self.long[long.source]
        effects += self._broker.requests.finished(long.task, now)
        return effects + self._catch_up(long.source, now)

    def failed(self, long: LongWork, error: OperationError, now: float) -> list[Effect]:
        """A long operation is refused; nothing of it was done."""
        long.task.operation = None
        long.task.error = (error.code, str(error))
        return self.done(long, now)

    def pauses_for_answers(self, long: LongWork) -> bool:
        """Whether neighbours have to answer before long work goes on; then it waits for them."""
        if long.awaits_answers:
            self.awaiting[long.task] = long
            return True
        return False

    def answers_came(self, *tasks: Task) -> list[Effect]:
        """Go on with long work that has waited for answers, of these tasks or of any."""
        effects: list[Effect] = []
        for task in tasks or list(self.awaiting):
            long = self.awaiting.get(task)
            if long is not None and long.may_go_on:
                del self.awaiting[task]
                effects += self._broker.jobs.add("", long)
        return effects

    def waits_for(self, source: Hop) -> list[Operation]:
        """The operation of a client that is long work, if there is one."""
        long = self.long.get(source)
        return [long.operation] if isinstance(long, LongOperation) else []
