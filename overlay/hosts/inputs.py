"""The way of inputs into a host's node: applied at once, or when a log has them.

What an input has led to is looked after here, but for what is written at the end of the turn:
records, timers, and links that the node has closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from overlay.errors import LogError
from overlay.hosts.peers import Neighbour, Peer, Timer
from overlay.hosts.settings import ROOM_SHARE
from overlay.log.log import Log
from overlay.messages import AnyMessage
from overlay.node.costs import least_units_of
from overlay.node.inputs import Filled, Input, MadeRoom, Took, Trimmed, Woke
from overlay.node.journal import Journal, Staged
from overlay.node.node import Node
from overlay.node.recovery import Failing
from overlay.trace import Record

if TYPE_CHECKING:
    from overlay.hosts.host import Host

#: How long a log that has refused an append, since the disk is full, is left alone.
LOG_RETRY_S = 1.0


class Keeper(Protocol):
    """Keeps the node on disk, beside its log."""

    def failed_at(self, where: Failing) -> None:
        """The core has failed at an input."""

    def consider_snapshot(self) -> None:
        """No batch is applied in part."""


class Inputs:
    """Submits inputs, and applies those that are committed."""

    def __init__(self, host: Host, node: Node, record: Callable[[Record], None] | None) -> None:
        self._host = host
        self._node = node
        self._record = record
        #: Where inputs go to be committed; None while they are kept in memory only.
        self.journal: Journal[Peer] | None = None
        self.keeper: Keeper
        #: Whether nothing is taken in any more: the process is about to end.
        self.is_paused = False
        self._timers: dict[str, Timer] = {}
        self._log = Logger(namespace="overlay.hosts.inputs")

    @property
    def is_full(self) -> bool:
        """Whether peers have to wait, since the log is behind."""
        return self.journal is not None and self.journal.is_full

    def submit(
        self, input: Input, peer: Peer | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Let the node have an input when it is committed, and call `then`."""
        staged = Staged(input, peer, then)
        if self.is_paused:
            return  # The next process learns it again, or need not.
        if self.journal is None:
            self.apply(staged, self._host.now())
        else:
            self._stage(self.journal, staged)

    def _stage(self, journal: Journal[Peer], staged: Staged[Peer]) -> None:
        if staged.peer is not None:
            staged.peer.staged += 1
        journal.put(staged)

    def apply(self, staged: Staged[Peer], now: float) -> None:
        """Let the node have an input that is committed."""
        units = self._node.apply(staged.input, now)
        self._applied(staged.peer, units)
        if staged.then is not None:
            staged.then()

    def apply_next(self, journal: Journal[Peer]) -> None:
        """Apply the next input that the log has."""
        staged, now = journal.next()
        try:
            self._apply_staged(staged, now)
        except Exception:
            self.keeper.failed_at(journal.where)
            raise
        journal.done()
        if staged.peer is not None:
            self._host.settled(staged.peer)
        if journal.is_between_batches:
            self.keeper.consider_snapshot()

    def _apply_staged(self, staged: Staged[Peer], now: float) -> None:
        peer, took = staged.peer, staged.input
        if type(took) is Took and peer is not None:
            if self._node.is_from(peer, took):
                units = self._node.take(peer, staged.messages, staged.frames, len(took.frames), now)
                self._applied(peer, units - staged.units)
                self._host.touch(peer)  # For the acknowledgement.
        elif type(took) is not Trimmed:  # The links know what was acknowledged, and more.
            self.apply(staged, now)

    def use_log(self, log: Log, applied: int, keeper: Keeper) -> None:
        """From now on inputs go through a log; the node has all of its batches up to a position."""
        assert not self.journal
        self._node.keeps_digest = True
        self.journal = Journal(log, applied, partial(self._host.guarded, self._log_changed))
        self.keeper = keeper

    def _log_changed(self) -> None:
        """Inputs are committed, or the log is in trouble.

        Raises LogError if the log has failed.
        """
        journal = self.journal
        assert journal is not None
        if journal.failure:
            raise LogError(f"the log has failed: {journal.failure}")
        if journal.problem:
            self._log.error("the log takes nothing", reason=journal.problem)
            self._host.call_later(LOG_RETRY_S, self._retry, journal)
        if not self._host.in_turn:
            self._host.end_turn(self._host.now())

    def _retry(self, journal: Journal[Peer]) -> None:
        journal.retry()
        self._host.end_turn(self._host.now())

    def report_backlog(self, neighbour: Neighbour) -> None:
        """Tell the node if the outbox for a neighbour is full, or has room again."""
        link, full = neighbour.link, self._node.core.backlogs.is_full(neighbour.hop)
        if neighbour.reporting or full is link.exceeds(ROOM_SHARE if full else 1):
            return

        def reported() -> None:
            neighbour.reporting = False

        neighbour.reporting = True
        name, waiting, size = neighbour.name, len(link.outbox), link.backlog_bytes
        if full:
            self._log.info("neighbour has room again", neighbour=name, messages=waiting)
            self.submit(MadeRoom(name), neighbour, reported)
        else:
            self._log.warn("neighbour has no room", neighbour=name, messages=waiting, size=size)
            self.submit(Filled(name, waiting, size), neighbour, reported)

    def _applied(self, peer: Peer | None, units: float) -> None:
        """Look after what has come of an input, but for what the end of the turn writes."""
        self._host.rounds.use(peer, units)
        outputs = self._node.outputs
        if outputs.records:
            if self._record is not None:
                for record in outputs.records:
                    self._record(record)
            outputs.records.clear()
        if outputs.timers:
            for key in outputs.timers:
                self._arm(key)
            outputs.timers.clear()
        if outputs.ended:
            ended = outputs.ended[:]
            outputs.ended.clear()
            for one in ended:
                self._host.closed(one)

    def arm_all(self) -> None:
        """Set all timers of a node that was made again."""
        for key in self._node.timers:
            self._arm(key)

    def _arm(self, key: str) -> None:
        """Set the timer of a key as the node says."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        due = self._node.timers.get(key)
        if due is not None:
            delay_s = max(due - self._host.now(), 0.0)
            self._timers[key] = self._host.call_later(delay_s, self._wake, key, due)

    def _wake(self, key: str, due: float) -> None:
        del self._timers[key]
        self.submit(Woke(key, due))
        self._host.end_turn(self._host.now())

    def take(
        self,
        peer: Peer,
        messages: list[AnyMessage],
        frames: list[bytes],
        size: int,
        now: float,
    ) -> None:
        """Let the node have messages of a peer when they are committed."""
        journal = self.journal
        if journal is None:
            self._applied(peer, self._node.take(peer, messages, frames, size, now))
            return
        took = Took(peer.hop, peer.link.incarnation, b"".join(frames))
        units = least_units_of(messages)
        self._host.rounds.use(peer, units)
        self._stage(journal, Staged(took, peer, messages=messages, frames=frames, units=units))
