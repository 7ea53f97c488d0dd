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
from typing import Any

from twisted.logger import Logger

from overlay.broker.core import Broker
from overlay.errors import REASON_LIMIT, OverlayError, ProtocolError, SlowReader
from overlay.hosts.broker_time import BrokerTime
from overlay.hosts.flow import Flow
from overlay.hosts.greetings import Greetings
from overlay.hosts.handshake import Handshake
from overlay.hosts.host_status import HostStatus
from overlay.hosts.inputs import Inputs, Keeper
from overlay.hosts.peers import ClientPeer, Clock, Neighbour, OperatorPeer, Peer, Timer, Wire
from overlay.hosts.rivals import Rivals
from overlay.hosts.rounds import Rounds
from overlay.hosts.settings import GIVE_UP_TIMES, Settings
from overlay.log.log import Log
from overlay.messages import (
    BrokerName,
    ClientName,
    Goodbye,
    Hop,
    Inspect,
    Report,
)
from overlay.node.costs import QUESTION_UNITS, least_units
from overlay.node.ends import End, EndedLink
from overlay.node.inputs import (
    Asked,
    Down,
    Forgot,
    Leaves,
    Left,
    Up,
)
from overlay.node.journal import Journal, Staged
from overlay.node.node import Node
from overlay.trace import Record
from overlay.wire.link import ACK_DELAY_S, Opening

#: Publications that one peer may hand over before links are written and congestion is looked at:
#: more than come with one read, as a rule, and a quarter of the window.
QUANTUM = 1024

#: What it costs to give up a client that did not come back: two log lines, above all.
GIVE_UP_UNITS = 4

#: How often links are looked at for silence; well under HEARTBEAT_S.
TICK_S = 1.0


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
        #: What the core calls `now`; it must not follow the wall clock.
        self.now = (own_time or BrokerTime(time.time(), clock.seconds)).now
        self._log = Logger(namespace="overlay.hosts.host")
        handshake = Handshake(core.name, delays_s, self.settings, birth)
        self.neighbours = handshake.neighbours
        self.dials = handshake.dials
        self._greetings = Greetings(self, handshake)
        self.call = self._greetings.call
        self.accept = self._greetings.accept
        self.answered = self._greetings.answered
        self.settled = self._greetings.settled
        self.rivals = {name: Rivals() for name in self.neighbours}
        self.node = Node(core, self.neighbours.values(), self._greetings.make_client)
        self._core = core
        self.inputs = Inputs(self, self.node, record)
        #: The ends of the node's links, operators' included; each of them is a peer.
        self._ends: dict[Hop, End] = self.node.ends
        self._flow = Flow()
        self.rounds = Rounds()
        self._round_ends = False
        #: Peers whose messages have to wait until the core has done what they said before.
        self._busy: dict[Hop, Peer] = {}
        #: Clients that are gone and that the node has not been told of, in the order of their
        #: going: in each round it is told of some. A dict, since one that comes back may not wait
        #: for all the others.
        self._departed: dict[ClientName, ClientPeer] = {}
        #: Clients whose time to come back is over, in its order: many can vanish at once.
        self._overdue: dict[ClientPeer, None] = {}
        self._unacknowledged: dict[Peer, None] = {}
        #: Peers that wait until the log has room for what is staged already.
        self._held_by_log: dict[Peer, None] = {}
        self.in_turn = False
        #: Bytes that wait for clients, in all.
        self.kept_bytes = 0
        self._acknowledging = False
        self._were_up = False
        self._status = HostStatus(self)
        #: What other parts of the process add to `status`, by name.
        self.reports: dict[str, Callable[[], Any]] = {}

    def start(self) -> None:
        """Begin to look after the links."""
        self._clock.callLater(TICK_S, self.guarded, self._tick)
        for neighbour in self.neighbours.values():
            self._miss(neighbour)

    def peer(self, hop: Hop) -> Peer | None:
        end = self._ends.get(hop)
        assert end is None or isinstance(end, Peer)
        return end

    def use_log(self, log: Log, applied: int, keeper: Keeper) -> None:
        """From now on inputs go through a log; the node has all of its batches up to a position."""
        self.inputs.use_log(log, applied, keeper)

    @property
    def journal(self) -> Journal[Peer] | None:
        """The way of inputs through the log, if there is one."""
        return self.inputs.journal

    def go_on(self, now: float) -> None:
        """Go on where the node is that was made again, at this broker's time; before `start`."""
        self.now = BrokerTime(now, self._clock.seconds).now
        self._status.began()
        self._core.take_freed()
        self.inputs.arm_all()
        for end in self._ends.values():
            if isinstance(end, ClientPeer):
                self.await_return(end)
            elif isinstance(end, Neighbour):
                end.absent = self._core.reach.is_absent(end.hop)
                self.touch(end)  # Its limits may be others by now.

    def call_later(self, delay_s: float, step: Callable[..., None], *args: Any) -> Timer:
        """Do something later; an error in it ends the process."""
        return self._clock.callLater(delay_s, self.guarded, step, *args)

    # Connections come.

    def linked(self, neighbour: Neighbour, opening: Opening, lost: int) -> None:
        self._log.info("link up", neighbour=neighbour.name, opening=opening.value)
        if neighbour.absence is not None:
            neighbour.absence.cancel()
            neighbour.absence = None
        if lost:
            self._log.error("messages given up", neighbour=neighbour.name, messages=lost)
        if self.inputs.journal is not None:
            self._flow.catches_up(neighbour)
        if opening is not Opening.RESET and neighbour.absent:
            self.inputs.submit(Up(neighbour.name), neighbour)
        neighbour.absent = False
        if not self._were_up and all(peer.link.connected for peer in self.neighbours.values()):
            self._were_up = True
            self._log.info("all links up")

    # Connections go.

    def detach(self, peer: Peer) -> None:
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
                self.settings.absent_after_s, self.guarded, self._be_absent, neighbour
            )

    def _be_absent(self, neighbour: Neighbour) -> None:
        neighbour.absence = None
        neighbour.absent = True
        self._log.warn("neighbour unreachable, going on without it", neighbour=neighbour.name)
        self.inputs.submit(Down(neighbour.name), neighbour)
        self.end_turn(self.now())

    def lost(self, wire: Wire, peer: Peer) -> None:
        """A connection has ended, whoever ended it, perhaps before `answered`."""
        if isinstance(peer, Neighbour) and peer.calling is wire:
            self.unconnected(peer)
            return
        if peer.wire is not wire:
            return  # It has been replaced, or we have closed it.
        peer.wire = None
        self.unconnected(peer)
        self.touch(peer)
        self.end_turn(self.now())

    def unconnected(self, peer: Peer) -> None:
        """A peer's connection is gone: it has some time to come back."""
        peer.link.cut()
        if isinstance(peer, Neighbour):
            if peer.calling is not None:
                peer.calling = peer.greeting = None
                return
            self._log.warn("link down", neighbour=peer.name, unacked=len(peer.link.unacked))
            self._miss(peer)
        elif isinstance(peer, OperatorPeer):
            self._ends.pop(peer.hop, None)
        elif isinstance(peer, ClientPeer) and peer.parted:
            self.end_link(peer)  # It does not wait for the end of its leaving.
        elif isinstance(peer, ClientPeer) and not peer.leaving:
            self._log.info("client lost its connection", client=peer.name)
            self.await_return(peer)

    def await_return(self, client: ClientPeer) -> None:
        """A client has no connection: it is gone if that lasts."""
        client.lost_at = self.now()
        client.grace = self._clock.callLater(
            self.settings.client_grace_s, self.guarded, self._grace_over, client
        )

    def returned(self, client: ClientPeer) -> None:
        """A client has come back in time."""
        self._overdue.pop(client, None)
        if client.grace is not None:
            client.grace.cancel()
            client.grace = None

    def tell_departed(self, name: ClientName) -> None:
        """Tell the node of a client that has gone, if there is one of that name."""
        client = self._departed.pop(name, None)
        if client is not None:
            self.inputs.submit(Left(client.name, client.link.incarnation), client)

    def _grace_over(self, client: ClientPeer) -> None:
        client.grace = None
        self._overdue[client] = None
        self.end_turn(self.now())

    def _give_up(self, client: ClientPeer) -> None:
        """A client did not come back in time."""
        del self._overdue[client]
        self.rounds.use(None, GIVE_UP_UNITS)
        self._log.info("client did not come back", client=client.name)
        self.end_link(client)

    def expel(self, peer: Peer, error: OverlayError) -> None:
        """Close on a peer that broke the rules; for a client it is the end, a neighbour may come
        back and begin anew."""
        self._note_expelled(peer, Goodbye(error.code, str(error)))
        self._close(peer, Goodbye(error.code, str(error)))
        self.end_turn(self.now())

    def _note_expelled(self, peer: Peer, goodbye: Goodbye) -> None:
        self._log.error("peer expelled", hop=peer.hop, code=goodbye.code, reason=goodbye.reason)

    def _close(self, peer: Peer, goodbye: Goodbye) -> None:
        """End a link for good, with a word, after what is queued for it."""
        self._say_goodbye(peer, goodbye)
        self.end_link(peer)

    def _say_goodbye(self, peer: Peer, goodbye: Goodbye) -> None:
        self._queue(peer)
        if peer.wire is not None:
            self._write_idle(peer, self.now())
            peer.wire.close(goodbye)
            peer.wire = None

    def end_link(self, peer: Peer) -> None:
        """Forget a peer, or that we knew it, now that its connection has been seen to."""
        self.detach(peer)
        if isinstance(peer, Neighbour):
            if not peer.forgetting:
                peer.forgetting = True
                self._put_off(peer)
                self.inputs.submit(Forgot(peer.name), peer)
        elif not peer.gone:
            if isinstance(peer, ClientPeer):
                self._departed[peer.name] = peer
            else:
                self._ends.pop(peer.hop, None)
            self._forget(peer)

    def closed(self, ended: EndedLink) -> None:
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
            self.detach(peer)
            self.touch(peer)
        elif not peer.gone:
            self._say_goodbye(peer, ended.goodbye)
            self.detach(peer)
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        """A client or an operator is gone."""
        peer.gone = True
        self._put_off(peer)
        self._unacknowledged.pop(peer, None)
        peer.link.drop_inbox()
        if isinstance(peer, ClientPeer):
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
        self.rounds.remove(peer)
        self._busy.pop(peer.hop, None)
        self._held_by_log.pop(peer, None)

    # Messages come.

    def arrived(self, peer: Peer, frames: list[bytes]) -> None:
        """Frames have come in on the peer's connection.

        Raises PeerError if they break the rules; then `expel`.
        """
        if peer.leaving or self.inputs.is_paused:
            return  # Nothing counts after a goodbye.
        goodbye = peer.link.receive_all(frames)
        if goodbye is not None:
            self._parting(peer, goodbye)
        if peer.link.note:
            self._noted(peer)
        now = self.now()
        # For what an acknowledgement that came has made room for.
        self.touch(peer)
        if self.inputs.journal is not None:
            self.inputs.journal.heard(peer)
        if not (peer in self._flow.waiting or peer.hop in self._busy or peer in self._held_by_log):
            self.rounds.come(peer)
        self.end_turn(now)

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
        if isinstance(peer, OperatorPeer):
            self._answer(peer, now)
        else:
            self._hand_over(peer, now)
        if peer.link.inbox or peer.hop in self._busy:
            return
        self.rounds.rest(peer)
        if not peer.leaving:
            return
        if isinstance(peer, ClientPeer) and peer.wire is not None:
            if not peer.parted:
                peer.parted = True
                self.inputs.submit(Leaves(peer.name), peer)
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
            if self.inputs.is_full:
                self._held_by_log[peer] = None
                return
            if peer.units <= 0:
                self.rounds.add(peer)
                return
            messages, frames, size = link.stage(self._share(peer))
            self._status.messages_in += len(messages)
            self.inputs.take(peer, messages, frames, size, now)
            if peer.gone:
                return
            self.touch(peer)  # For the acknowledgement.
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

    def _answer(self, operator: OperatorPeer, now: float) -> None:
        if not operator.link.inbox:
            return
        message = operator.link.hand_over()
        if not isinstance(message, Inspect):
            self.expel(operator, ProtocolError("an operator may inspect, and nothing else"))
            return
        if message.what == "status":
            self.rounds.use(operator, QUESTION_UNITS)
            self.node.send(operator.hop, Report(message.req, self.status()))
        elif message.what == "tables":  # To look changes nothing.
            self.inputs.apply(Staged(Asked(operator.hop, message), operator), now)
        else:
            self.inputs.submit(Asked(operator.hop, message), operator)
        if operator.link.inbox:
            self.rounds.add(operator)

    # The end of a turn.

    def touch(self, peer: Peer) -> None:
        if not peer.is_touched:
            peer.is_touched = True
            self.node.outputs.touched.append(peer)

    def end_turn(self, now: float) -> None:
        """Write, tell the node who has gone and let in what waits, until the round is over."""
        rounds, journal = self.rounds, self.inputs.journal
        self.in_turn = True
        while True:
            self._flush(now)
            if rounds.over:
                break
            if journal is not None and journal.has_committed:
                self.inputs.apply_next(journal)
                continue
            if self._departed:
                self.tell_departed(next(iter(self._departed)))
                continue
            if self._overdue:
                self._give_up(next(iter(self._overdue)))
                continue
            peer = self._next_peer()
            if peer is not None:
                self._take_from(peer, now)
            elif journal is None or not journal.push(now, self.node.digest):
                break
        self.in_turn = False
        if journal is not None:
            journal.push(now, self.node.digest)
        if rounds.used and not self._round_ends:
            self._round_ends = True
            self._clock.callLater(0, self.guarded, self._next_round)
        if self._unacknowledged and not self._acknowledging:
            self._acknowledging = True
            self._clock.callLater(ACK_DELAY_S, self.guarded, self._acknowledge)

    def _next_peer(self) -> Peer | None:
        """Whose messages are next, if anybody's can be taken."""
        rounds = self.rounds
        for hop in self._core.take_freed() if self._busy else ():
            if hop in self._busy:
                rounds.add(self._busy.pop(hop))
        while (waited := self._flow.next()) is not None:
            rounds.add(waited)
        if (
            self._held_by_log
            and self.inputs.journal is not None
            and not self.inputs.journal.is_full
        ):
            for peer in self._held_by_log:
                rounds.add(peer)
            self._held_by_log.clear()
        return None if self.inputs.is_paused else rounds.next()

    def _next_round(self) -> None:
        """The reactor has looked at its sockets and timers."""
        self._round_ends = False
        self.rounds.used = 0.0
        self.end_turn(self.now())

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
                if self.inputs.journal is not None:
                    self.inputs.report_backlog(peer)
            elif isinstance(peer, ClientPeer) and link.backlog_bytes != peer.kept_bytes:
                self._gauge(peer)

    def _gauge(self, client: ClientPeer) -> None:
        """Count the bytes that wait for clients; cut one off if they are too many."""
        if client.gone:
            return
        self.kept_bytes += client.link.backlog_bytes - client.kept_bytes
        client.kept_bytes = client.link.backlog_bytes
        if self.kept_bytes > self.settings.client_outboxes_bytes:
            clients = (end for end in self._ends.values() if isinstance(end, ClientPeer))
            self._overflow(max(clients, key=lambda peer: peer.kept_bytes))

    def _queue(self, peer: Peer) -> None:
        """Put what the turn has for a peer on its link."""
        if peer.outgoing:
            self._status.messages_out += len(peer.outgoing)
            self.node.queue(peer)

    def _keeps(self, neighbour: Neighbour) -> bool:
        """Whether what waits for a neighbour is kept beyond its limit: with a log, publishers are
        refused instead."""
        return self.inputs.journal is not None and not neighbour.link.exceeds(GIVE_UP_TIMES)

    def _overflow(self, peer: Peer) -> None:
        """A queue has reached its limit: the peer reads too slowly, or has been down too long."""
        if isinstance(peer, Neighbour) and self._keeps(peer):
            return
        waiting, size = len(peer.link.outbox), peer.link.backlog_bytes
        reason = f"{waiting} messages ({size} bytes) wait for {peer.hop}, which does not read them"
        if isinstance(peer, Neighbour):
            if not peer.forgetting:
                self._log.error("neighbour too far behind", neighbour=peer.name, reason=reason)
                self.end_link(peer)
        else:
            self._log.error("slow reader cut off", hop=peer.hop, reason=reason)
            self._close(peer, Goodbye(SlowReader.code, reason))

    # Time passes.

    def guarded(self, step: Callable[..., None], *args: Any) -> None:
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
        self._clock.callLater(TICK_S, self.guarded, self._tick)
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
        self.inputs.is_paused = True

    @property
    def is_settled(self) -> bool:
        """Whether all that was taken in is applied."""
        return self.inputs.journal is None or self.inputs.journal.is_idle

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
