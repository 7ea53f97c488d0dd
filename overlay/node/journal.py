"""The way of inputs to a node through a log: staged, appended, committed, applied; in this order.

Inputs that come while an append is under way are staged and make the next batch, so a slow log has
large batches, and many inputs share one sync. What is committed waits here until the host has time
for it: the host applies inputs one by one, in the order of the log, whoever they are from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from overlay.log.log import Appended, AppendOutcome, Full, Log, Refused
from overlay.messages import AnyMessage, Hop
from overlay.node.ends import End
from overlay.node.inputs import Batch, Digest, Input, Took, Trimmed, encode_batch
from overlay.node.recovery import Failing

P = TypeVar("P", bound=End)

#: So much may be staged; then peers wait, whose windows fill. As much as some batches.
STAGED_BYTES = 4 * (4 << 20)

#: A batch takes no more inputs when it has so many bytes; a single input may have more. It bounds
#: how long one sync takes, and how much is applied between two of them.
BATCH_BYTES = 4 << 20


class Staged(Generic[P]):
    """An input on its way to the node."""

    __slots__ = ("frames", "input", "messages", "peer", "then", "units")

    def __init__(
        self,
        input: Input,
        peer: P | None = None,
        then: Callable[[], None] | None = None,
        *,
        messages: Sequence[AnyMessage] = (),
        frames: Sequence[bytes] = (),
        units: float = 0.0,
    ) -> None:
        self.input = input
        #: Whose it is, or whom it is about, if anybody's.
        self.peer = peer
        #: Called when it was applied.
        self.then = then
        #: Of `Took`: the messages, and their frames.
        self.messages = messages
        self.frames = frames
        #: What it was charged already.
        self.units = units

    @property
    def size(self) -> int:
        """About how many bytes it takes in a batch."""
        return len(self.input.frames) if type(self.input) is Took else 100


class _Committed(Generic[P]):
    """A batch that the log has, and that is applied input by input."""

    __slots__ = ("inputs", "now", "place", "position")

    def __init__(self, now: float, inputs: list[Staged[P]]) -> None:
        self.now = now
        self.inputs = inputs
        #: Which of the inputs is the next.
        self.place = 0
        self.position = 0


class Journal(Generic[P]):
    """Takes inputs with `put`, and has those that are committed with `next`.

    `push` begins an append if none is under way. `changed` is called when inputs were committed or
    the log has refused an append. After a `failure` there is nothing left to do but to end.
    """

    def __init__(self, log: Log, applied: int, changed: Callable[[], None]) -> None:
        self.log = log
        #: The position up to which batches are applied completely.
        self.applied = applied
        self._changed = changed
        self._staged: deque[Staged[P]] = deque()
        self._staged_bytes = 0
        #: When the inputs were staged that wait for the log, about.
        self._staged_at = 0.0
        #: The log has refused an append and is left alone for a while.
        self._blocked = False
        self._appending: _Committed[P] | None = None
        self._committed: deque[_Committed[P]] = deque()
        #: Peers whose acknowledgements have come since the last batch.
        self._heard: dict[P, None] = {}
        self._trimmed: dict[Hop, tuple[str, str, int]] = {}
        #: Why the log takes nothing at the moment; "" if it does.
        self.problem = ""
        self.failure = ""

    def put(self, staged: Staged[P]) -> None:
        """Stage an input; it is appended with the next `push`."""
        self._staged.append(staged)
        self._staged_bytes += staged.size

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be staged: the log is slower than what comes."""
        return self._staged_bytes > STAGED_BYTES

    def retry(self) -> None:
        """The log may have room again."""
        self._blocked = False

    def heard(self, peer: P) -> None:
        """A peer may have acknowledged something."""
        self._heard[peer] = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way."""
        return not (self._staged or self._appending or self._committed)

    @property
    def staged(self) -> int:
        """How many inputs are not committed."""
        return len(self._staged) + (len(self._appending.inputs) if self._appending else 0)

    @property
    def has_committed(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self._committed)

    @property
    def is_between_batches(self) -> bool:
        """Whether no batch is applied in part: the node is what `applied` says."""
        return not (self._committed and self._committed[0].place)

    def next(self) -> tuple[Staged[P], float]:
        """The next input to apply, with its time; call `done` when it is."""
        batch = self._committed[0]
        return batch.inputs[batch.place], batch.now

    @property
    def where(self) -> Failing:
        """The place of the next input in the log."""
        return Failing(self._committed[0].position, self._committed[0].place)

    def unsynced_s(self, now: float) -> float:
        """How long the oldest input has waited for the log."""
        return now - self._staged_at if self.staged else 0.0

    def done(self) -> None:
        """The next input was applied."""
        batch = self._committed[0]
        batch.place += 1
        if batch.place == len(batch.inputs):
            self._committed.popleft()
            self.applied = batch.position

    def push(self, now: float, sent: int) -> bool:
        """Append what is staged, unless an append is under way; `sent` is the node's digest.

        Returns whether anything can be applied now, as with a log that commits at once.
        """
        if self._appending is not None or not self._staged or self._blocked or self.failure:
            return False
        self._staged_at = now
        batch: list[Staged[P]] = []
        size = 0
        while self._staged and (size < BATCH_BYTES or not batch):
            staged = self._staged.popleft()
            size += staged.size
            batch.append(staged)
        self._staged_bytes -= size
        self._append(batch, now, sent)
        return self.has_committed

    def _append(self, batch: list[Staged[P]], now: float, sent: int) -> None:
        if trimmed := self._hints():
            batch.insert(0, Staged(Trimmed(trimmed)))
        digest = None if self._committed else Digest(self.applied, sent)
        self._appending = _Committed(now, batch)
        data = encode_batch(Batch(now, [staged.input for staged in batch], digest))
        self.log.append(self.log.last, data, self._appended)

    def _hints(self) -> list[tuple[str, str, str, int]]:
        """What peers have acknowledged since the last batch."""
        hints: list[tuple[str, str, str, int]] = []
        for peer in self._heard:
            link = peer.link
            known = (link.incarnation, link.peer, link.acknowledged)
            if link.acknowledged and self._trimmed.get(peer.hop) != known:
                self._trimmed[peer.hop] = known
                hints.append((peer.hop, *known))
        self._heard.clear()
        return hints

    def forget(self, hop: Hop) -> None:
        """A peer is gone."""
        self._trimmed.pop(hop, None)

    def _appended(self, outcome: AppendOutcome) -> None:
        batch, self._appending = self._appending, None
        assert batch is not None
        if isinstance(outcome, Appended):
            self.problem = ""
            batch.position = outcome.position
            self._committed.append(batch)
        elif isinstance(outcome, Full):
            # The hints are given again, or need not be.
            self._trimmed.clear()
            for staged in reversed(batch.inputs):
                if type(staged.input) is not Trimmed:
                    self._staged.appendleft(staged)
                    self._staged_bytes += staged.size
            self.problem = outcome.reason
            self._blocked = True
        else:
            self.failure = (
                f"another process has appended up to {outcome.last}"
                if isinstance(outcome, Refused)
                else outcome.reason
            )
        self._changed()
