"""The host of one node: it owns the connections, lets messages in, and writes what comes out.

The way of a message: a connection (`tcp`) cuts what it reads into frames and gives them to
`arrived`; the link counts them into its inbox; the host stages them as an input as long as there is
room behind it; when the input is committed the node applies it, and what is to be sent is on the
links (`overlay.node`). At the end of the turn each link that was touched is written once, however
many messages the turn had for it.

In memory an input is committed at once. With a log (`overlay.node.journal`) it is committed when
the log has it: until then nothing that follows from it leaves, no acknowledgement either. A hello
waits until all inputs of its peer are applied, since it says how many messages were received.

When a message may go to the node, and why brokers cannot wait for each other in a circle, is
explained in `flow`; in which turn it does, so that nobody holds others up, in `rounds`. What a peer
has said stays in its order, and a peer that waits for its turn waits for work that is finite.

Whose mistake it is decides what happens. A peer's (PeerError) costs that peer its link. One of
ours crashes: the process ends with a traceback, and its neighbours carry on.

This module knows no sockets and no bytes but frames; time comes from Twisted's clock interface.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from twisted.logger import Logger

from overlay.broker.core import Broker
from overlay.errors import REASON_LIMIT, LogError, OverlayError, ProtocolError, SlowReader
from overlay.hosts.broker_time import BrokerTime
from overlay.hosts.flow import Flow
from overlay.hosts.handshake import Handshake
from overlay.hosts.host_status import HostStatus
from overlay.hosts.peers import Client, Clock, Greeting, Neighbour, Operator, Peer, Timer, Wire
from overlay.hosts.rivals import Rivals
from overlay.hosts.rounds import Rounds
from overlay.hosts.settings import Settings
from overlay.log.log import Log
from overlay.messages import (
    AnyMessage,
    BrokerName,
    ClientName,
    Goodbye,
    Hello,
    Hop,
    Inspect,
    Report,
    client_hop,
)
from overlay.node.costs import QUESTION_UNITS, least_units
from overlay.node.ends import End, Ended
from overlay.node.inputs import (
    Asked,
    Down,
    Forgot,
    Input,
    Leaves,
    Left,
    Opened,
    Took,
    Up,
    Woke,
)
from overlay.node.journal import Journal, Staged
from overlay.node.node import Node
from overlay.node.recovery import Failing
from overlay.trace import Record
from overlay.wire.frames import pack
from overlay.wire.link import ACK_DELAY_S, Opening

#: Publications that one peer may hand over before links are written and congestion is looked at:
#: more than come with one read, as a rule, and a quarter of the window.
QUANTUM = 1024

#: What it costs to give up a client that did not come back: two log lines, above all.
GIVE_UP_UNITS = 4

#: How long a log that has refused an append, since the disk is full, is left alone.
LOG_RETRY_S = 1.0

#: How often links are looked at for silence; well under HEARTBEAT_S.
TICK_S = 1.0


class Keeper(Protocol):
    """Keeps the node on disk, beside its log."""

    def applied(self, seconds: float) -> None:
        """An input was applied, which took so long."""

    def failed_at(self, where: Failing) -> None:
        """The core has failed at an input."""

    def consider_snapshot(self) -> None:
        """All that is committed is applied."""


class Host:
    """One node with its connections.

    `tcp` brings connections (`accept`, `answered`), what arrives on them (`arrived`) and their
    end (`lost`). `delays_s` has an entry for each neighbour. `crash` is called when the core fails;
    the process must then end. `clock` must be monotonic; without `own_time`, the broker's time
    begins at the wall time and passes as `clock` does. `birth` names the life of a broker that
    outlives its process.
    """

    def __init__(
        self,
        core: Broker,
        delays_s: Mapping[BrokerName, float],
        clock: Clock,
        crash: Callable[[], None],
        *,
        settings: Settings | None = None,
        record: Callable[[Record], None] | None = None,
        own_time: BrokerTime | None = None,
        birth: str = "",
    ) -> None:
        self.name = core.name
        self.settings = settings or Settings()
        self.crash = crash
        self._clock = clock
        self._record = record
        #: What the core calls `now`; it must not follow the wall clock.
        self.now = (own_time or BrokerTime(time.time(), clock.seconds)).now
        self._log = Logger(namespace="overlay.hosts.host")
        self._handshake = Handshake(core.name, delays_s, self.settings, birth)
        self.neighbours = self._handshake.neighbours
        self.dials = self._handshake.dials
        self.rivals = {name: Rivals() for name in self.neighbours}
        self.node = Node(core, self.neighbours.values(), self._make_client)
        self._core = core
        #: Where inputs go to be committed; None while they are kept in memory only.
        self._journal: Journal[Peer] | None = None
        self._keeper: Keeper
        #: The ends of the node's links, operators' included; each of them is a peer.
        self._ends: dict[Hop, End] = self.node.ends
        #: Clients whose first connection is there, and whose link is about to begin.
        self._newcomers: dict[Hop, Client] = {}
        self._flow = Flow()
        self._rounds = Rounds()
        self._round_ends = False
        #: Peers whose messages have to wait until the core has done what they said before.
        self._busy: dict[Hop, Peer] = {}
        #: Clients that are gone and that the node has not been told of, in the order of their
        #: going: in each round it is told of some. A dict, since one that comes back may not wait
        #: for all the others.
        self._departed: dict[ClientName, Client] = {}
        #: Clients whose time to come back is over, in its order: many can vanish at once.
        self._overdue: dict[Client, None] = {}
        self._timers: dict[str, Timer] = {}
        self._unacknowledged: dict[Peer, None] = {}
        #: Peers that wait until the log has room for what is staged already.
        self._held_by_log: dict[Peer, None] = {}
        self._in_turn = False
        #: Whether nothing is taken in any more: the process is about to end.
        self._paused = False
        #: Bytes that wait for clients, in all.
        self.kept_bytes = 0
        self._acknowledging = False
        self._were_up = False
        self._status = HostStatus(self)
        #: What other parts of the process add to `status`, by name.
        self.reports: dict[str, Callable[[], Any]] = {}

    def start(self) -> None:
        """Begin to look after the links."""
        self._clock.callLater(TICK_S, self._guarded, self._tick)
        for neighbour in self.neighbours.values():
            self._miss(neighbour)

    def _peer(self, hop: Hop) -> Peer | None:
        end = self._ends.get(hop)
        assert end is None or isinstance(end, Peer)
        return end

    def _make_client(self, hop: Hop, incarnation: str) -> Client:
        """The client whose link begins."""
        newcomer = self._newcomers.pop(hop, None)
        if newcomer is not None and newcomer.link.incarnation == incarnation:
            return newcomer
        return self._handshake.client(ClientName(hop[1:]), incarnation)

    # Inputs.

    def _submit(
        self, input: Input, peer: Peer | None = None, then: Callable[[], None] | None = None
    ) -> None:
        """Let the node have an input when it is committed, and call `then`."""
        staged = Staged(input, peer, then)
        if self._paused:
            return  # The next process learns it again, or need not.
        if self._journal is None:
            self._apply(staged, self.now())
        else:
            self._stage(self._journal, staged)

    def _stage(self, journal: Journal[Peer], staged: Staged[Peer]) -> None:
        if staged.peer is not None:
            staged.peer.staged += 1
        journal.put(staged)

    def _apply(self, staged: Staged[Peer], now: float) -> None:
        """Let the node have an input that is committed."""
        units = self.node.apply(staged.input, now)
        self._applied(staged.peer, units)
        if staged.then is not None:
            staged.then()

    def _apply_next(self, journal: Journal[Peer]) -> None:
        """Apply the next input that the log has."""
        began = time.perf_counter()
        staged, now = journal.next()
        try:
            self._apply_staged(staged, now)
        except Exception:
            self._keeper.failed_at(journal.where)
            raise
        journal.done()
        self._keeper.applied(time.perf_counter() - began)
        if staged.peer is not None:
            self._settled(staged.peer)

    def _apply_staged(self, staged: Staged[Peer], now: float) -> None:
        peer, took = staged.peer, staged.input
        if type(took) is Took and peer is not None:
            if self.node.is_from(peer, took):
                units = self.node.take(peer, staged.messages, staged.frames, len(took.frames), now)
                self._applied(peer, units - staged.units)
                self._touch(peer)  # For the acknowledgement.
        else:
            self._apply(staged, now)

    def use_log(self, log: Log, applied: int, keeper: Keeper) -> None:
        """From now on inputs go through a log; the node has all of its batches up to a position."""
        assert not self._journal
        self.node.keeps_digest = True
        self._journal = Journal(log, applied, partial(self._guarded, self._log_changed))
        self._keeper = keeper

    @property
    def journal(self) -> Journal[Peer] | None:
        """The way of inputs through the log, if there is one."""
        return self._journal

    def go_on(self, now: float) -> None:
        """Go on where the node is that was made again, at this broker's time; before `start`."""
        self.now = BrokerTime(now, self._clock.seconds).now
        self._status.began()
        self._core.take_freed()
        for key in self.node.timers:
            self._arm(key)
        for end in self._ends.values():
            if isinstance(end, Client):
                self.await_return(end)
            elif isinstance(end, Neighbour):
                end.absent = self._core.reach.is_absent(end.hop)

    def call_later(self, delay_s: float, step: Callable[..., None], *args: Any) -> None:
        """Do something later; an error in it ends the process."""
        self._clock.callLater(delay_s, self._guarded, step, *args)

    def _log_changed(self) -> None:
        """Inputs are committed, or the log is in trouble.

        Raises LogError if the log has failed.
        """
        journal = self._journal
        assert journal is not None
        if journal.failure:
            raise LogError(f"the log has failed: {journal.failure}")
        if journal.problem:
            self._log.error("the log takes nothing", reason=journal.problem)
            self._clock.callLater(LOG_RETRY_S, self._guarded, self._retry, journal)
        if not self._in_turn:
            self._end_turn(self.now())

    def _retry(self, journal: Journal[Peer]) -> None:
        journal.retry()
        self._end_turn(self.now())

    def _applied(self, peer: Peer | None, units: float) -> None:
        """Look after what has come of an input, but for what the end of the turn writes."""
        self._rounds.use(peer, units)
        outputs = self.node.outputs
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
                self._closed(one)

    def _arm(self, key: str) -> None:
        """Set the timer of a key as the node says."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        due = self.node.timers.get(key)
        if due is not None:
            delay_s = max(due - self.now(), 0.0)
            self._timers[key] = self._clock.callLater(delay_s, self._guarded, self._wake, key, due)

    def _wake(self, key: str, due: float) -> None:
        del self._timers[key]
        self._submit(Woke(key, due))
        self._end_turn(self.now())

    # Connections come.

    def call(self, wire: Wire, neighbour: Neighbour) -> None:
        """A neighbour has been dialled: say hello."""
        neighbour.calling = wire
        neighbour.refusals += 1
        self._greet(neighbour, Greeting(wire, None))

    def accept(self, wire: Wire, hello: Hello) -> None:
        """Somebody has connected and said hello: answer it.

        Raises OverlayError if they may not; nothing has changed then.
        """
        hop = client_hop(hello.name)
        known = self._newcomers.get(hop) or self._peer(hop)
        if known is not None and known.gone:
            known = None
        peer = self._handshake.admit(hello, known, self.now())
        if isinstance(peer, Neighbour):
            self.rivals[peer.name].check(peer, hello, wire, self.now())
        elif isinstance(peer, Client):
            if known is not None and known is not peer:
                self._log.info("client replaced by a newcomer", client=peer.name)
                self._end_link(known)
            departed = self._departed.pop(peer.name, None)
            if departed is not None:
                self._submit(Left(peer.name, departed.link.incarnation), departed)
        self._detach(peer)
        self._greet(peer, Greeting(wire, hello))
        self._end_turn(self.now())

    def _greet(self, peer: Peer, greeting: Greeting) -> None:
        """Say hello, or answer one, as soon as nothing of the peer is on its way to the node."""
        if peer.staged:
            peer.greeting = greeting
        elif greeting.hello is None:
            assert isinstance(peer, Neighbour)
            greeting.wire.write(pack(peer.link.hello("broker", self.name, self.settings.secret)))
        else:
            self._open(peer, greeting.wire, greeting.hello)

    def _settled(self, peer: Peer) -> None:
        """An input of a peer has been applied."""
        peer.staged -= 1
        greeting = peer.greeting
        if greeting is not None and not peer.staged:
            peer.greeting = None
            if not greeting.wire.ended:
                try:
                    self._greet(peer, greeting)
                except OverlayError as error:
                    greeting.wire.close(Goodbye(error.code, str(error)))

    def answered(self, wire: Wire, neighbour: Neighbour, hello: Hello) -> None:
        """The neighbour that was dialled has answered.

        Raises OverlayError if it is not the one.
        """
        self._handshake.recognise(hello, neighbour)
        # A neighbour can be given up while the answer is out; then this connection is aborted.
        assert neighbour.calling is wire
        neighbour.refusals = 0
        self.rivals[neighbour.name].refusal = ""
        self._open(neighbour, wire, hello)
        self._end_turn(self.now())

    def _open(self, peer: Peer, wire: Wire, hello: Hello) -> None:
        """Connect the link, in a new life if one of the two ends has begun one.

        Raises ProtocolError if the hello contradicts what was said on this link.
        """
        link = peer.link
        opening = link.opening(hello)
        lost = link.pending + link.given_up if opening is Opening.RESET else 0
        connect = partial(self._connect, peer, wire, hello, opening, lost)
        if isinstance(peer, Operator):
            self._ends[peer.hop] = peer
            connect()
        elif opening is Opening.RESUMED:
            connect()
        else:
            if isinstance(peer, Client):
                self._newcomers[peer.hop] = peer
            incarnation = link.next_incarnation(opening)
            reset = opening is Opening.RESET
            self._submit(Opened(peer.hop, incarnation, hello.incarnation, reset), peer, connect)

    def _connect(self, peer: Peer, wire: Wire, hello: Hello, opening: Opening, lost: int) -> None:
        """The link lives the life that the hello is about: connect it.

        Raises ProtocolError if the hello contradicts what was said on this link.
        """
        dialled = isinstance(peer, Neighbour) and peer.calling is wire
        if wire.ended:
            self._unconnected(peer)
            return
        try:
            peer.link.open(hello, self.now())
        except ProtocolError:
            self._end_link(peer)
            raise
        peer.wire = wire
        if isinstance(peer, Neighbour):
            peer.calling = None
        elif isinstance(peer, Client):
            self._overdue.pop(peer, None)
            if peer.grace is not None:
                peer.grace.cancel()
                peer.grace = None
        if not dialled:
            secret = self.settings.secret if isinstance(peer, Neighbour) else ""
            wire.write(pack(peer.link.hello("broker", self.name, secret)))
        wire.opened(peer)
        if isinstance(peer, Neighbour):
            self._linked(peer, opening, lost)
        else:
            self._log.info("peer connected", hop=peer.hop, opening=opening.value)
        self._touch(peer)

    def _linked(self, neighbour: Neighbour, opening: Opening, lost: int) -> None:
        self._log.info("link up", neighbour=neighbour.name, opening=opening.value)
        if neighbour.absence is not None:
            neighbour.absence.cancel()
            neighbour.absence = None
        if lost:
            self._log.error("messages given up", neighbour=neighbour.name, messages=lost)
        if opening is not Opening.RESET and neighbour.absent:
            self._submit(Up(neighbour.name), neighbour)
        neighbour.absent = False
        if not self._were_up and all(peer.link.connected for peer in self.neighbours.values()):
            self._were_up = True
            self._log.info("all links up")

    # Connections go.

    def _detach(self, peer: Peer) -> None:
        """Leave the connection that the peer has, if any, or that is being made to it."""
        if isinstance(peer, Neighbour) and peer.calling is not None:
            peer.calling.abort()
            peer.calling = None
        if peer.greeting is not None:
            peer.greeting.wire.abort()
            peer.greeting = None
        if peer.wire is not None:
            peer.wire.abort()
            peer.wire = None
        peer.link.cut()
        if isinstance(peer, Neighbour):
            self._miss(peer)

    def _miss(self, neighbour: Neighbour) -> None:
        """A neighbour has no connection: tell the node if that lasts."""
        if neighbour.absence is None and not (neighbour.absent or neighbour.link.connected):
            neighbour.absence = self._clock.callLater(
                self.settings.absent_after_s, self._guarded, self._be_absent, neighbour
            )

    def _be_absent(self, neighbour: Neighbour) -> None:
        neighbour.absence = None
        neighbour.absent = True
        self._log.warn("neighbour unreachable, going on without it", neighbour=neighbour.name)
        self._submit(Down(neighbour.name), neighbour)
        self._end_turn(self.now())

    def lost(self, wire: Wire, peer: Peer) -> None:
        """A connection has ended, whoever ended it, perhaps before `answered`."""
        if isinstance(peer, Neighbour) and peer.calling is wire:
            self._unconnected(peer)
            return
        if peer.wire is not wire:
            return  # It has been replaced, or we have closed it.
        peer.wire = None
        self._unconnected(peer)
        self._touch(peer)
        self._end_turn(self.now())

    def _unconnected(self, peer: Peer) -> None:
        """A peer's connection is gone: it has some time to come back."""
        peer.link.cut()
        if isinstance(peer, Neighbour):
            if peer.calling is not None:
                peer.calling = peer.greeting = None
                return
            self._log.warn("link down", neighbour=peer.name, unacked=len(peer.link.unacked))
            self._miss(peer)
        elif isinstance(peer, Operator):
            self._ends.pop(peer.hop, None)
        elif isinstance(peer, Client) and peer.parted:
            self._end_link(peer)  # It does not wait for the end of its leaving.
        elif isinstance(peer, Client) and not peer.leaving:
            self._log.info("client lost its connection", client=peer.name)
            self.await_return(peer)

    def await_return(self, client: Client) -> None:
        """A client has no connection: it is gone if that lasts."""
        client.lost_at = self.now()
        client.grace = self._clock.callLater(
            self.settings.client_grace_s, self._guarded, self._grace_over, client
        )

    def _grace_over(self, client: Client) -> None:
        client.grace = None
        self._overdue[client] = None
        self._end_turn(self.now())

    def _give_up(self, client: Client) -> None:
        """A client did not come back in time."""
        del self._overdue[client]
        self._rounds.use(None, GIVE_UP_UNITS)
        self._log.info("client did not come back", client=client.name)
        self._end_link(client)

    def expel(self, peer: Peer, error: OverlayError) -> None:
        """Close on a peer that broke the rules; for a client it is the end, a neighbour may come
        back and begin anew."""
        self._note_expelled(peer, Goodbye(error.code, str(error)))
        self._close(peer, Goodbye(error.code, str(error)))
        self._end_turn(self.now())

    def _note_expelled(self, peer: Peer, goodbye: Goodbye) -> None:
        self._log.error("peer expelled", hop=peer.hop, code=goodbye.code, reason=goodbye.reason)

    def _close(self, peer: Peer, goodbye: Goodbye) -> None:
        """End a link for good, with a word, after what is queued for it."""
        self._say_goodbye(peer, goodbye)
        self._end_link(peer)

    def _say_goodbye(self, peer: Peer, goodbye: Goodbye) -> None:
        self._queue(peer)
        if peer.wire is not None:
            self._write_idle(peer, self.now())
            peer.wire.close(goodbye)
            peer.wire = None

    def _end_link(self, peer: Peer) -> None:
        """Forget a peer, or that we knew it, now that its connection has been seen to."""
        self._detach(peer)
        if isinstance(peer, Neighbour):
            if not peer.forgetting:
                peer.forgetting = True
                self._put_off(peer)
                self._submit(Forgot(peer.name), peer)
        elif not peer.gone:
            if isinstance(peer, Client):
                self._departed[peer.name] = peer
            else:
                self._ends.pop(peer.hop, None)
            self._forget(peer)

    def _closed(self, ended: Ended) -> None:
        """The node has closed a link."""
        peer = ended.end
        assert isinstance(peer, Peer)
        if ended.expelled:
            self._note_expelled(peer, ended.goodbye)
        if isinstance(peer, Neighbour):
            if ended.lost:
                self._log.error("messages given up", neighbour=peer.name, messages=ended.lost)
            peer.forgetting = False
            self._put_off(peer)
            self._say_goodbye(peer, ended.goodbye)
            self._detach(peer)
            self._touch(peer)
        elif not peer.gone:
            self._say_goodbye(peer, ended.goodbye)
            self._detach(peer)
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        """A client or an operator is gone."""
        peer.gone = True
        self._put_off(peer)
        self._unacknowledged.pop(peer, None)
        peer.link.drop_inbox()
        if isinstance(peer, Client):
            self._overdue.pop(peer, None)
            if peer.grace is not None:
                peer.grace.cancel()
                peer.grace = None
            self.kept_bytes -= peer.kept_bytes
            peer.kept_bytes = 0
            self._log.info("client left", client=peer.name, undelivered=peer.link.pending)

    def _put_off(self, peer: Peer) -> None:
        """A peer has nothing to hand over any more."""
        self._flow.waiting.pop(peer, None)
        self._rounds.remove(peer)
        self._busy.pop(peer.hop, None)
        self._held_by_log.pop(peer, None)

    # Messages come.

    def arrived(self, peer: Peer, frames: list[bytes]) -> None:
        """Frames have come in on the peer's connection.

        Raises PeerError if they break the rules; then `expel`.
        """
        if peer.leaving or self._paused:
            return  # Nothing counts after a goodbye.
        goodbye = peer.link.receive_all(frames)
        if goodbye is not None:
            self._parting(peer, goodbye)
        if peer.link.note:
            self._noted(peer)
        now = self.now()
        # For what an acknowledgement that came has made room for.
        self._touch(peer)
        if self._journal is not None:
            self._journal.heard(peer)
        if not (peer in self._flow.waiting or peer.hop in self._busy or peer in self._held_by_log):
            self._rounds.come(peer)
        self._end_turn(now)

    def _noted(self, peer: Peer) -> None:
        """A neighbour's ping has said something about our process."""
        note, peer.link.note = peer.link.note[:REASON_LIMIT], ""
        if isinstance(peer, Neighbour):
            self.rivals[peer.name].notice = note
            self._log.error("another process has our name", neighbour=peer.name, reason=note)

    def refused(self, neighbour: Neighbour, goodbye: Goodbye) -> None:
        """A neighbour that was dialled has refused us."""
        reason = f"{goodbye.code}: {goodbye.reason}"
        self.rivals[neighbour.name].refusal = reason[:REASON_LIMIT]

    def _parting(self, peer: Peer, goodbye: Goodbye) -> None:
        """The peer has said goodbye. A client goes for good, when the core has what it said before
        and every broker has forgotten it."""
        if goodbye.code:
            self._log.warn(
                "peer closed on us", hop=peer.hop, code=goodbye.code, reason=goodbye.reason
            )
        if not isinstance(peer, Neighbour):
            peer.leaving = True
        elif peer.wire is not None:
            peer.wire.abort()

    def _take_from(self, peer: Peer, now: float) -> None:
        """Hand over what has come from a peer, as long as its turn lasts and there is room."""
        if isinstance(peer, Operator):
            self._answer(peer, now)
        else:
            self._hand_over(peer, now)
        if peer.link.inbox or peer.hop in self._busy:
            return
        self._rounds.rest(peer)
        if not peer.leaving:
            return
        if isinstance(peer, Client) and peer.wire is not None:
            if not peer.parted:
                peer.parted = True
                self._submit(Leaves(peer.name), peer)
        else:
            self._close(peer, Goodbye())

    def _hand_over(self, peer: Peer, now: float) -> None:
        """Give the node what has come from a peer; if there is more than it may have now, see to it
        that the peer is asked again."""
        link, hop = peer.link, peer.hop
        while link.inbox or self._core.is_busy(hop):
            if self._core.is_busy(hop):
                self._busy[hop] = peer
                return
            if not self._flow.admits(peer):
                self._flow.waiting[peer] = None
                return
            if self._journal is not None and self._journal.is_full:
                self._held_by_log[peer] = None
                return
            if peer.units <= 0:
                self._rounds.add(peer)
                return
            messages, frames, size = link.stage(self._share(peer))
            self._status.messages_in += len(messages)
            self._take(peer, messages, frames, size, now)
            if peer.gone:
                return
            self._touch(peer)  # For the acknowledgement.
            self._flush(now)

    def _share(self, peer: Peer) -> int:
        """How many of its messages a peer may hand over at once."""
        if not peer.link.is_mixed:
            return QUANTUM
        share, units = 0, peer.units
        for message in peer.link.inbox:
            if units <= 0 or share == QUANTUM:
                break
            units -= least_units(message)
            share += 1
        return share

    def _take(
        self,
        peer: Peer,
        messages: list[AnyMessage],
        frames: list[bytes],
        size: int,
        now: float,
    ) -> None:
        """Let the node have messages of a peer when they are committed."""
        journal = self._journal
        if journal is None:
            self._applied(peer, self.node.take(peer, messages, frames, size, now))
            return
        took = Took(peer.hop, peer.link.incarnation, b"".join(frames))
        units = sum(map(least_units, messages))
        self._rounds.use(peer, units)
        self._stage(journal, Staged(took, peer, messages=messages, frames=frames, units=units))

    def _answer(self, operator: Operator, now: float) -> None:
        if not operator.link.inbox:
            return
        message = operator.link.hand_over()
        if not isinstance(message, Inspect):
            self.expel(operator, ProtocolError("an operator may inspect, and nothing else"))
            return
        if message.what == "status":
            self._rounds.use(operator, QUESTION_UNITS)
            self.node.send(operator.hop, Report(message.req, self.status()))
        elif message.what == "tables":  # To look changes nothing.
            self._apply(Staged(Asked(operator.hop, message), operator), now)
        else:
            self._submit(Asked(operator.hop, message), operator)
        if operator.link.inbox:
            self._rounds.add(operator)

    # The end of a turn.

    def _touch(self, peer: Peer) -> None:
        if not peer.is_touched:
            peer.is_touched = True
            self.node.outputs.touched.append(peer)

    def _end_turn(self, now: float) -> None:
        """Write, tell the node who has gone and let in what waits, until the round is over."""
        rounds, journal = self._rounds, self._journal
        self._in_turn = True
        while True:
            self._flush(now)
            if rounds.over:
                break
            if journal is not None and journal.has_committed:
                self._apply_next(journal)
                continue
            if self._departed:
                client = self._departed.pop(next(iter(self._departed)))
                self._submit(Left(client.name, client.link.incarnation), client)
                continue
            if self._overdue:
                self._give_up(next(iter(self._overdue)))
                continue
            peer = self._next_peer()
            if peer is not None:
                self._take_from(peer, now)
            elif journal is None or not journal.push(now, self.node.digest):
                break
        self._in_turn = False
        if journal is not None:
            journal.push(now, self.node.digest)
            if not journal.has_committed:
                self._keeper.consider_snapshot()
        if rounds.used and not self._round_ends:
            self._round_ends = True
            self._clock.callLater(0, self._guarded, self._next_round)
        if self._unacknowledged and not self._acknowledging:
            self._acknowledging = True
            self._clock.callLater(ACK_DELAY_S, self._guarded, self._acknowledge)

    def _next_peer(self) -> Peer | None:
        """Whose messages are next, if anybody's can be taken."""
        rounds = self._rounds
        for hop in self._core.take_freed() if self._busy else ():
            if hop in self._busy:
                rounds.add(self._busy.pop(hop))
        while (waited := self._flow.next()) is not None:
            rounds.add(waited)
        if self._held_by_log and self._journal is not None and not self._journal.is_full:
            for peer in self._held_by_log:
                rounds.add(peer)
            self._held_by_log.clear()
        return None if self._paused else rounds.next()

    def _next_round(self) -> None:
        """The reactor has looked at its sockets and timers."""
        self._round_ends = False
        self._rounds.used = 0.0
        self._end_turn(self.now())

    def _flush(self, now: float) -> None:
        """Write each link that was touched once, and see whether its queue has grown too long."""
        touched: list[Any] = self.node.outputs.touched
        while touched:
            peer: Peer = touched.pop()
            peer.is_touched = False
            link = peer.link
            self._queue(peer)
            if peer.wire is not None:
                frames = link.take(now)
                if frames:
                    peer.wire.write(b"".join(frames))
                if link.ack_waits:
                    self._unacknowledged[peer] = None
            if peer.gone:
                continue
            if link.outbox and link.full:
                self._overflow(peer)
            if isinstance(peer, Neighbour):
                self._flow.gauge(peer)
            elif isinstance(peer, Client) and link.backlog_bytes != peer.kept_bytes:
                self._gauge(peer)

    def _gauge(self, client: Client) -> None:
        """Count the bytes that wait for clients; cut one off if they are too many."""
        if client.gone:
            return
        self.kept_bytes += client.link.backlog_bytes - client.kept_bytes
        client.kept_bytes = client.link.backlog_bytes
        if self.kept_bytes > self.settings.client_outboxes_bytes:
            clients = (end for end in self._ends.values() if isinstance(end, Client))
            self._overflow(max(clients, key=lambda peer: peer.kept_bytes))

    def _queue(self, peer: Peer) -> None:
        """Put what the turn has for a peer on its link."""
        if peer.outgoing:
            self._status.messages_out += len(peer.outgoing)
            self.node.queue(peer)

    def _overflow(self, peer: Peer) -> None:
        """A queue has reached its limit: the peer reads too slowly, or has been down too long."""
        waiting, size = len(peer.link.outbox), peer.link.backlog_bytes
        reason = f"{waiting} messages ({size} bytes) wait for {peer.hop}, which does not read them"
        if isinstance(peer, Neighbour):
            if not peer.forgetting:
                self._log.error("neighbour too far behind", neighbour=peer.name, reason=reason)
                self._end_link(peer)
        else:
            self._log.error("slow reader cut off", hop=peer.hop, reason=reason)
            self._close(peer, Goodbye(SlowReader.code, reason))

    # Time passes.

    def _guarded(self, step: Callable[..., None], *args: Any) -> None:
        """Run what a timer asked for; an error in it is ours."""
        try:
            step(*args)
        except Exception:
            self.crash()

    def _acknowledge(self) -> None:
        self._acknowledging = False
        waiting, self._unacknowledged = self._unacknowledged, {}
        now = self.now()
        for peer in waiting:
            self._write_idle(peer, now)

    def _tick(self) -> None:
        self._clock.callLater(TICK_S, self._guarded, self._tick)
        now = self.now()
        for end in list(self._ends.values()):
            assert isinstance(end, Peer)
            if end.link.silent(now) and end.wire is not None:
                self._log.warn("connection silent, taken for dead", hop=end.hop)
                end.wire.abort()
            else:
                self._write_idle(end, now)

    def _write_idle(self, peer: Peer, now: float) -> None:
        if peer.wire is not None:
            frames = peer.link.take(now, idle=True)
            if frames:
                peer.wire.write(b"".join(frames))

    def pause(self) -> None:
        """Take nothing in any more; what the log has is still applied."""
        self._paused = True

    @property
    def is_settled(self) -> bool:
        """Whether all that was taken in is applied."""
        return self._journal is None or self._journal.is_idle

    def stop(self) -> None:
        """Say goodbye to the clients and close the rest; nothing is taken in any more."""
        for peer in list(self._ends.values()):
            assert isinstance(peer, Peer)
            wire, peer.wire = peer.wire, None
            if wire is not None:
                code = "" if isinstance(peer, Neighbour) else "closing"
                wire.close(Goodbye(code, f"broker {self.name} is shutting down" if code else ""))

    # For operators.

    def is_congested(self, neighbour: Neighbour) -> bool:
        """Whether others have to wait, since so much waits for this neighbour."""
        return neighbour in self._flow.congested

    def status(self) -> dict[str, Any]:
        """How the broker is, as JSON-like data."""
        return self._status.as_data()
