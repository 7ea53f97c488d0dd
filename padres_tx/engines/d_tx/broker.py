"""D-TX: dynamic transactions that are serializable (Section 4, with corrections).

**Snapshot.** A transaction sees what was committed at each broker when its Init came, without what
the coordinator's edge broker had voted for and did not know decided then. Flooding over FIFO links
is a causal broadcast, and a commit needs every broker's vote, so this is the same set of
transactions everywhere. Nothing is copied: entries carry versions, and the snapshot is a view. The
same holds for a plain publication and its stamp (`overlay.tables.versions`).

**Validation**, at Prepare, of all reads and writes, predicates included
(`overlay.tables.footprints`):
- it has read what another transaction committed here outside its snapshot: no;
- it conflicts, reading or writing, with a transaction that is prepared or waits here, and that one
  is older: no; only with younger ones: wait for their decisions (wait-die, so no deadlock);
- otherwise yes. What does not conflict never waits.

**Plain operations** count as committed when they arrive. One that conflicts with a transaction
that is prepared or waits here is held until the decision, and those behind it queue. One that a
neighbour had carried out before it voted, and that is held here, has been seen by the transaction
there and not here: the transaction loses. So it does when it has read what a plain operation wrote
that is not done everywhere yet: that one may be held further on, for another transaction, and the
transaction would read it in one place and not in another. What is done everywhere before the vote
has come to every other broker before Prepare, or it would have been held there. The other engines
say the same of theirs (`undecided`): what is not decided, or not carried out everywhere.
A plain operation counts as done without a neighbour that cannot be reached. So no yes crosses a
link, in either direction, as long as the neighbour has not done all that it was sent meanwhile; and
what such a neighbour was asked before is waited for until the transactions are decided that this
broker has said yes to, since others may judge them by that.

**Losing.** A transaction keeps the age of its first attempt, so it wins against younger ones. What
it can still lose to is something that commits between its snapshot and its Prepare. After some
losses its edge broker raises a fence: every broker lets what is undecided be decided, lets nothing
new begin, and then gives way; only an older fence goes first. Clients' plain operations wait at
their edge brokers, where they have changed nothing yet; what has left those passes, so nothing
waits for what waits for the fence. A second round goes through behind it all, and through what that
has triggered, before the transaction takes its snapshot. So with n older fences a transaction loses
at most FENCE_AFTER + n times to other clients, if its client has not had a fence for another one of
late (`padres_tx.protocol.validation.losses`).

**Old versions** stay until Forget has come and no open transaction has a snapshot without them.
From Forget on they are for those snapshots only: plain traffic does not meet them
(`overlay.tables.past`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from overlay.broker.core import Broker
from overlay.broker.engine import Undecided
from overlay.broker.turns import Worked
from overlay.effects import Effect
from overlay.filters import check_point
from overlay.messages import Hop, Leave, Operation
from overlay.notation import format_publication
from overlay.stored import stored
from overlay.tables.footprints import Footprint, of_applied, of_plain, text
from overlay.tables.routing import Outcome, Scope
from overlay.tables.versions import Seen
from padres_tx.client_messages import Look, TxID, tx_text
from padres_tx.protocol.dynamic import YES, Dynamic, DynamicState, Verdict
from padres_tx.protocol.dynamic_messages import AbortRequest, Fence, Fenced
from padres_tx.protocol.outcomes import REUSED
from padres_tx.protocol.validation.losses import FENCE_LIMIT_S
from padres_tx.protocol.validation.plain_writes import PlainWrites

#: Conflicts answer with this code: another attempt may succeed.
CONFLICT = "conflict"

#: Units of work (`overlay.broker.turns`) that taking a mark out of the tables counts for: it
#: changes the index of the entry.
MARK_UNITS = 2


@stored(
    "d-tx",
    fields=(
        *("_views", "_wrote", "_plain_writes", "_kept_for", "_kept_versions", "_unmark"),
        "_fences",
    ),
)
class DTx(Dynamic):
    """D-TX at one broker."""

    name = "d-tx"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.receivers[Fence] = self._fence
        self.receivers[Fenced] = self._fenced
        #: What each transaction sees: the versions in its snapshot, and itself.
        self._views: dict[TxID, Seen] = {}
        #: What each committed transaction has written here, until its changes are permanent.
        self._wrote: dict[TxID, Footprint] = {}
        #: What plain operations have written here since open transactions began.
        self._plain_writes = PlainWrites()
        #: Committed ones that every broker has, by an open one that does not see them.
        self._kept_for: dict[TxID, list[TxID]] = {}
        self._kept_versions: dict[TxID, None] = {}
        #: Decided versions whose marks are not needed any more, or only old snapshots, and that are
        #: still in the tables.
        self._unmark: deque[TxID] = deque()
        #: Transactions that ask for precedence and are not decided here.
        self._fences: dict[TxID, DynamicState] = {}

    # --- snapshot ---

    def begun(self, tx: DynamicState, undecided: tuple[TxID, ...]) -> None:
        versions = self.broker.versions
        self._views[tx.id] = versions.snapshot(tx.id, undecided)
        self._plain_writes.begin(tx.id)
        versions.begin(tx.id)
        if tx.id in self._fences:
            tx.status = "active"

    def scope(self, tx: DynamicState) -> Scope:
        return Scope(self._views[tx.id], tx.id)

    # --- validation ---

    def judge(self, tx: DynamicState) -> Verdict | None:
        mine = tx.footprint
        if hop := self.broker.resending.waits_for():
            # Publications that are held here must not be overtaken by the commit.
            return Verdict(CONFLICT, f"the routes over {hop} are not back after its restart")
        for fence in self._fences.values():
            if tx.id not in self._fences or fence.precedence < tx.precedence:
                reason = f"{tx_text(fence.id)} has precedence after many losses"
                return Verdict(CONFLICT, reason, fence.id[0])
        if lost := self._outside(tx, mine):
            return lost
        younger = False
        for other_tx in self._preparing():
            if other_tx is not tx and (filter := mine.conflict(other_tx.footprint)):
                if other_tx.precedence < tx.precedence:
                    return self._lost(tx_text(other_tx.id), filter, other_tx.id[0])
                younger = True
        return None if younger else YES

    def _outside(self, tx: DynamicState, mine: Footprint) -> Verdict | None:
        """A no if something outside its snapshot was, or is being, written here that it reads."""
        view = self._views[tx.id]
        for other, wrote in self._wrote.items():
            if not view.includes(other) and (filter := mine.reads_what(wrote)):
                return self._lost(tx_text(other), filter, other[0])
        if conflict := self._plain_writes.conflict(tx.id, mine):
            filter, writer = conflict
            return self._lost("a plain operation", filter, writer)
        for _, operation in self.broker.under_way:
            wrote = Footprint()
            wrote.operation(operation)
            if filter := mine.reads_what(wrote):
                return self._lost_to_plain(operation, filter)
        for source, message in self.broker.held:
            held = of_plain(self.routing, source, message, self.broker.versions.view())
            if filter := mine.conflict(held):
                return self._lost_to_plain(message, filter)
        for engine in self.broker.engines.values():
            for undecided in engine.undecided():
                if filter := mine.reads_what(undecided.footprint):
                    other = undecided.tx
                    return self._lost(tx_text(other), filter, other[0])
        return None

    def changed_outside(self, tx: DynamicState, read: Footprint) -> Verdict:
        if lost := self._outside(tx, read):
            return lost
        for other in self._preparing():
            if other is not tx and (filter := read.reads_what(other.footprint)):
                return self._lost(tx_text(other.id), filter, other.id[0])
        return YES

    # --- what clients were answered from their own state ---

    def looked(self, tx: DynamicState, hop: Hop, look: Look) -> Verdict:
        """The look is a read, and has found what the snapshot has (`padres_tx.looks`)."""
        client, view, read = hop[1:], self._views[tx.id], Footprint()
        if look.filter is not None:
            read.looks_at(client, look.table, look.filter)
            tx.footprint.looks_at(client, look.table, look.filter)
            space = self.routing.space(look.table, hop)
            found, what = space.reaches(look.filter, view, client=client), text(look.filter)
        else:
            point = check_point(look.point)
            read.looks_at_point(client, point)
            tx.footprint.looks_at_point(client, point)
            found = self.routing.may_publish(hop, point, view)
            what = format_publication(point)
        if found == look.found:
            return YES
        verb = "hold" if look.table == "sub" else "advertise"
        verb = f"{verb}s" if look.found else f"does not {verb}"
        changed = self.changed_outside(tx, read)
        why = changed.reason or "its snapshot differs"
        return Verdict(CONFLICT, f"{client} {verb} {what} by now: {why}", changed.to)

    def accepts_yes(self, tx: DynamicState, neighbour: Hop) -> Verdict:
        """A yes of a neighbour counts if all that came from it before could be carried out here."""
        if self.broker.is_late(neighbour):
            return self._behind(neighbour)
        for source, message in self.broker.held:
            if source == neighbour:
                held = of_plain(self.routing, source, message, self.broker.versions.view())
                if filter := tx.footprint.conflict(held):
                    return self._lost_to_plain(message, filter)
        return YES

    def confirms_yes(self, tx: DynamicState) -> Verdict:
        return self._behind(tx.upstream) if self.broker.is_late(tx.upstream) else YES

    @staticmethod
    def _behind(hop: Hop) -> Verdict:
        return Verdict(CONFLICT, f"{hop} has to catch up, after it could not be reached")

    @staticmethod
    def _lost(against: str, filter: Any, client: str = "") -> Verdict:
        return Verdict(CONFLICT, f"conflicts with {against} on {text(filter)}", client)

    def _lost_to_plain(self, message: Operation | Leave, filter: Any) -> Verdict:
        return self._lost(f"a plain operation of {message.client}", filter, message.client)

    def _preparing(self) -> list[DynamicState]:
        """The transactions that are prepared or wait here, but those that have to abort."""
        return [tx for tx in self.preparing.values() if not (tx.verdict and tx.verdict.code)]

    # --- plain operations, and other engines ---

    def undecided(self) -> list[Undecided]:
        """Nothing: until the commit all that is written has a version that others do not see."""
        return []

    def reserves(self, source: Hop, message: Operation | Leave) -> bool:
        """While there is a fence, what clients begin has to wait; but not for one that cannot be
        given precedence, since a broker is missing."""
        return bool(self._fences) and not self.broker.reach.missing

    def holds(self, source: Hop, message: Operation | Leave) -> bool:
        preparing = self._preparing()
        if not preparing:
            return False
        plain = of_plain(self.routing, source, message, self.broker.versions.view())
        return any(plain.conflict(tx.footprint) for tx in preparing)

    def awaits_answers(self, neighbour: Hop) -> bool:
        return any(
            self.is_bound(tx)
            and tx.upstream != neighbour
            and not self.broker.reach.is_absent(tx.upstream)
            for tx in self.preparing.values()
        )

    def operation_applied(
        self, source: Hop, message: Operation | Leave, outcome: Outcome | None
    ) -> None:
        if not self._plain_writes.wanted:
            return
        if isinstance(message, Operation) and outcome is not None:
            footprint = of_applied(message, outcome)
        else:
            footprint = of_plain(self.routing, source, message, self.broker.versions.view())
        self._plain_writes.add(footprint)

    # --- the decision ---

    def voted_yes(self, tx: DynamicState) -> None:
        self.broker.versions.vote(tx.id)

    def decided(self, tx: DynamicState, now: float) -> list[Effect]:
        self._fences.pop(tx.id, None)
        self._plain_writes.end(tx.id)
        self._views.pop(tx.id, None)
        versions = self.broker.versions
        if tx.status == "committed":
            versions.commit(tx.id)
            self._wrote[tx.id] = tx.footprint
        else:
            versions.abort(tx.id)
            self._unmark.append(tx.id)
            tx.footprint = Footprint()
        for version in self._kept_for.pop(tx.id, ()):
            self._keep_or_make_permanent(version)
        return self._go_on_unmarking()

    def forgotten(self, tx: DynamicState, now: float) -> list[Effect]:
        if tx.status == "aborted":
            return super().forgotten(tx, now)
        self._keep_or_make_permanent(tx.id)
        return self._go_on_unmarking()

    def _keep_or_make_permanent(self, version: TxID) -> None:
        """Let a version go that all brokers have, if all open snapshots here are with it; or keep
        the state before it for one that is not."""
        for other, view in self._views.items():
            if not view.includes(version):
                self._kept_for.setdefault(other, []).append(version)
                if version not in self._kept_versions:
                    self._kept_versions[version] = None
                    self._unmark.append(version)
                return
        self._kept_versions.pop(version, None)
        self._unmark.append(version)

    def _go_on_unmarking(self) -> list[Effect]:
        more = bool(self._unmark) and self._remove_marks().more
        return self.broker.later(self.name, self._unmark) if more else []

    def work(self, context: Any, now: float) -> Worked:
        if context is not self._unmark:
            return super().work(context, now)
        return self._remove_marks()

    def _remove_marks(self) -> Worked:
        """Take marks of decided versions out of the tables, a slice of them; they have no
        effect."""
        marks = left = max(self.broker.slice // MARK_UNITS, 1)
        while self._unmark and left > 0:
            version = self._unmark[0]
            tx = self.txs.get(version)
            committed = tx is not None and tx.status == "committed"
            kept = version in self._kept_versions
            remove = self.routing.discard
            if committed:
                remove = self.routing.retire if kept else self.routing.make_permanent
            if remove(version, left):
                return Worked([], self.broker.slice, True)
            left -= 1
            self._unmark.popleft()
            if committed and kept:
                self.broker.versions.retire(version)
            elif committed:
                self.broker.versions.forget(version)
                self._wrote.pop(version, None)
                del self.txs[version]
        return Worked([], MARK_UNITS * (marks - left), bool(self._unmark))

    # --- precedence for a transaction that has lost too often ---

    def grants_fence(self, tx: DynamicState, now: float) -> bool:
        """Whether a transaction that begins here gets a fence."""
        return self.losses.grants_fence(tx.upstream, tx.standing, now)

    def start(self, tx: DynamicState, now: float) -> list[Effect]:
        # While a broker is missing no transaction could get precedence; all would wait for nothing.
        tx.fenced = not self.broker.reach.missing and self.grants_fence(tx, now)
        if not tx.fenced:
            return super().start(tx, now)
        tx.deadline_at = min(tx.deadline_at, now + FENCE_LIMIT_S)
        return self._raise(tx, "fencing", now)

    def _fence(self, source: Hop, fence: Fence, now: float) -> list[Effect]:
        tx = self.txs.get(fence.tx)
        if tx is None:
            if refused := self.not_begun(source, fence):
                return refused
            effects = self.time_limit(fence.tx, fence.deadline_s)
            tx = self.add(fence.tx, fence.age, source, now)
            tx.deadline_at = now + fence.deadline_s
            return effects + self._raise(tx, "fencing", now)
        if tx.upstream != source or tx.status != "fenced":
            return self.send((source,), AbortRequest(fence.tx, "refused", REUSED))
        return self._raise(tx, "flushing", now)

    def _raise(self, tx: DynamicState, status: str, now: float) -> list[Effect]:
        """Begin a round: "fencing" lets what is undecided end, "flushing" goes through behind."""
        tx.status = status
        tx.awaited = set(self.others(tx))
        self._fences[tx.id] = tx
        effects = self.send(self.others(tx), Fence(tx.id, tx.age, self.left_s(tx, now)))
        for engine in self.broker.engines.values():
            effects += engine.give_way(now)
        return effects + self._fences_again(now)

    def _fenced(self, source: Hop, fenced: Fenced, now: float) -> list[Effect]:
        tx = self.txs.get(fenced.tx)
        if tx is None or tx.id not in self._fences:
            return []
        self.check_phase(source, tx, fenced)
        self.check_awaited(source, tx, fenced)
        tx.awaited.discard(source)
        return self._fences_again(now)

    def released(self, now: float) -> list[Effect]:
        return self._fences_again(now)

    def _fences_again(self, now: float) -> list[Effect]:
        """Let the oldest fence go on, if nothing is in its way; the others wait for it."""
        if not self._fences or self.broker.is_releasing:
            return []
        tx = min(self._fences.values(), key=lambda tx: tx.precedence)
        if tx.awaited or tx.status not in ("fencing", "flushing"):
            return []
        if tx.status == "fencing" and self._somebody_writes():
            return []
        first, tx.status = tx.status == "fencing", "fenced"
        if not tx.at_edge:
            return self.send((tx.upstream,), Fenced(tx.id))
        if first:
            return self._raise(tx, "flushing", now)
        started = Dynamic.start(self, tx, now)
        return [*started, *self.go_on(tx, tx.frames[tx.upstream, 0], now)]

    def _somebody_writes(self) -> bool:
        """Whether something here is prepared, or written by others and not decided."""
        return bool(self._preparing()) or any(
            undecided.footprint.writes
            for engine in self.broker.engines.values()
            for undecided in engine.undecided()
        )
