"""The host of one broker core: it owns the links, lets messages in, and carries out effects.

The way of a message: a connection (`tcp`) cuts what it reads into frames and gives them to
`arrived`; the link counts them into its inbox; the host hands them over to the core as long as
there is room behind it, publications by the batch, and queues on the links what is to be sent. At
the end of the turn each link that was touched is written once, however many messages the turn had
for it.

When a message may go to the core, and why brokers cannot wait for each other in a circle, is
explained in `flow`; in which turn it does, so that nobody holds others up, in `rounds`. What a peer
has said stays in its order, and a peer that waits for its turn waits for work that is finite.

Whose mistake it is decides what happens. A peer's (PeerError) costs that peer its link. One of
ours crashes: the process ends with a traceback, and its neighbours carry on.

This module knows no sockets and no bytes but frames; time comes from Twisted's clock interface.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.logger import Logger

from overlay.broker.core import Broker
from overlay.broker.limits import Usage
from overlay.effects import CancelTimer, Close, Effect, Forward, Send, SetTimer
from overlay.errors import REASON_LIMIT, OverlayError, PeerError, ProtocolError, SlowReader
from overlay.hosts.broker_time import BrokerTime
from overlay.hosts.flow import Flow
from overlay.hosts.handshake import Reception
from overlay.hosts.peers import Client, Clock, Neighbour, Operator, Peer, Timer, Wire
from overlay.hosts.rivals import Rivals
from overlay.hosts.rounds import (
    QUESTION_UNITS,
    Rounds,
    units_of,
    units_of_input,
)
from overlay.hosts.settings import Settings
from overlay.messages import (
    AnyMessage,
    BrokerName,
    ClientName,
    Done,
    Goodbye,
    Hello,
    Hop,
    Inspect,
    Message,
    Pub,
    Report,
    client_hop,
)
from overlay.trace import Record
from overlay.wire.codec import check_room
from overlay.wire.frames import BROKER_FRAME_LIMIT, FrameTooLarge, pack
from overlay.wire.link import ACK_DELAY_S, Opening

#: Publications that one peer may hand over before links are written and congestion is looked at:
#: more than come with one read, as a rule, and a quarter of the window.
QUANTUM = 1024

#: Other messages that are taken at once: more than a turn is good for, as a rule.
OPERATIONS_AT_ONCE = 32

#: How often links are looked at for silence; well under HEARTBEAT_S.
TICK_S = 1.0


class Host:
    """One broker with its links.

    `tcp` brings connections (`accept`, `answered`), what arrives on them (`arrived`) and their
    end (`lost`). `delays_s` has an entry for each neighbour. `crash` is called when the core fails;
    the process must then end. `clock` must be monotonic; without `own_time`, the broker's time
    begins at the wall time and passes as `clock` does.
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
    ) -> None:
        self.name = core.name
        self.settings = settings or Settings()
        self.crash = crash
        self._core = core
        self._clock = clock
        self._record = record
        #: What the core calls `now`; it must not follow the wall clock.
        self.now = (own_time or BrokerTime(time.time(), clock.seconds)).now
        self._started_at = self.now()
        self._log = Logger(namespace="overlay.hosts.host")
        self._reception = Reception(core.name, delays_s, self.settings)
        self.neighbours = self._reception.neighbours
        self.dials = self._reception.dials
        self._rivals = {name: Rivals() for name in self.neighbours}
        self._peers: dict[Hop, Peer] = {peer.hop: peer for peer in self.neighbours.values()}
        #: Peers to look after at the end of the turn, each once.
        self._dirty: list[Peer] = []
        self._flow = Flow()
        self._rounds = Rounds()
        self._round_ends = False
        #: Peers whose messages have to wait until the core has done what they said before.
        self._busy: dict[Hop, Peer] = {}
        #: Clients that are gone and that the core has not been told of, in the order of their
        #: going: it must not be called while effects are being carried out, or their order would
        #: be broken. A dict, since one that comes back may not wait for all the others.
        self._departed: dict[ClientName, None] = {}
        self._timers: dict[str, Timer] = {}
        self._unacknowledged: dict[Peer, None] = {}
        #: Bytes that wait for clients, in all.
        self._kept_bytes = 0
        self._acknowledging = False
        self._messages_in = 0
        self._messages_out = 0
        self._were_up = False
        #: What other parts of the process add to `status`, by name.
        self.reports: dict[str, Callable[[], Any]] = {}

    def start(self) -> None:
        """Begin to look after the links."""
        self._clock.callLater(TICK_S, self._guarded, self._tick)
        for neighbour in self.neighbours.values():
            self._miss(neighbour)

    # Connections come.

    def call(self, wire: Wire, neighbour: Neighbour) -> None:
        """A neighbour has been dialled: say hello."""
        neighbour.calling = wire
        neighbour.refusals += 1
        wire.write(pack(neighbour.link.hello("broker", self.name, self.settings.secret)))

    def accept(self, wire: Wire, hello: Hello) -> None:
        """Somebody has connected and said hello: answer it.

        Raises OverlayError if they may not; nothing has changed then.
        """
        known = self._peers.get(client_hop(hello.name))
        peer = self._reception.admit(hello, known, self.now())
        if isinstance(peer, Client):
            if known is not None and known is not peer:
                self._log.info("client replaced by a newcomer", client=peer.name)
                self._end_link(known)
            if peer.name in self._departed:
                self._tell_departed(peer.name, self.now())
        if isinstance(peer, Neighbour):
            self._rivals[peer.name].check(peer, hello, wire, self.now())
        self._detach(peer)
        opening, lost = self._open(peer, wire, hello)
        secret = self.settings.secret if isinstance(peer, Neighbour) else ""
        wire.write(pack(peer.link.hello("broker", self.name, secret)))
        wire.opened(peer)
        if isinstance(peer, Neighbour):
            self._linked(peer, opening, lost)
        else:
            self._peers[peer.hop] = peer
            self._log.info("peer connected", hop=peer.hop, opening=opening.value)
            self._touch(peer)
            self._end_turn(self.now())

    def answered(self, wire: Wire, neighbour: Neighbour, hello: Hello) -> None:
        """The neighbour that was dialled has answered.

        Raises OverlayError if it is not the one.
        """
        self._reception.recognise(hello, neighbour)
        # A neighbour can be given up while the answer is out; then this connection is aborted.
        assert neighbour.calling is wire
        neighbour.calling = None
        neighbour.refusals = 0
        self._rivals[neighbour.name].refusal = ""
        opening, lost = self._open(neighbour, wire, hello)
        wire.opened(neighbour)
        self._linked(neighbour, opening, lost)

    def _open(self, peer: Peer, wire: Wire, hello: Hello) -> tuple[Opening, int]:
        """Connect the link; answers what that means, and how many messages it cost."""
        pending = peer.link.pending + peer.link.given_up
        try:
            opening = peer.link.open(hello, self.now())
        except ProtocolError:
            self._end_link(peer)
            raise
        peer.wire = wire
        if isinstance(peer, Client) and peer.grace is not None:
            peer.grace.cancel()
            peer.grace = None
        return opening, pending if opening is Opening.RESET else 0

    def _linked(self, neighbour: Neighbour, opening: Opening, lost: int) -> None:
        self._log.info("link up", neighbour=neighbour.name, opening=opening.value)
        now = self.now()
        if neighbour.absence is not None:
            neighbour.absence.cancel()
            neighbour.absence = None
        if opening is Opening.RESET:
            if lost:
                self._log.error("messages given up", neighbour=neighbour.name, messages=lost)
            self._carry_out(self._core.link_reset(neighbour.name, now))
        elif neighbour.absent:
            self._carry_out(self._core.link_up(neighbour.name, now))
        neighbour.absent = False
        self._touch(neighbour)
        self._end_turn(now)
        if not self._were_up and all(peer.link.connected for peer in self.neighbours.values()):
            self._were_up = True
            self._log.info("all links up")

    # Connections go.

    def _detach(self, peer: Peer) -> None:
        """Leave the connection that the peer has, if any, or that is being made to it."""
        if isinstance(peer, Neighbour) and peer.calling is not None:
            peer.calling.abort()
            peer.calling = None
        if peer.wire is not None:
            peer.wire.abort()
            peer.wire = None
        peer.link.cut()
        if isinstance(peer, Neighbour):
            self._miss(peer)

    def _miss(self, neighbour: Neighbour) -> None:
        """A neighbour has no connection: tell the core if that lasts."""
        if neighbour.absence is None and not (neighbour.absent or neighbour.link.connected):
            neighbour.absence = self._clock.callLater(
                self.settings.absent_after_s, self._guarded, self._be_absent, neighbour
            )

    def _be_absent(self, neighbour: Neighbour) -> None:
        neighbour.absence = None
        neighbour.absent = True
        self._log.warn("neighbour unreachable, going on without it", neighbour=neighbour.name)
        now = self.now()
        self._carry_out(self._core.link_down(neighbour.name, now))
        self._end_turn(now)

    def lost(self, wire: Wire, peer: Peer) -> None:
        """A connection has ended, whoever ended it, perhaps before `answered`."""
        if isinstance(peer, Neighbour) and peer.calling is wire:
            peer.calling = None
            peer.link.cut()
            return
        if peer.wire is not wire:
            return  # It has been replaced, or we have closed it.
        peer.wire = None
        peer.link.cut()
        if isinstance(peer, Neighbour):
            self._log.warn("link down", neighbour=peer.name, unacked=len(peer.link.unacked))
            self._miss(peer)
        elif isinstance(peer, Operator):
            self._peers.pop(peer.hop, None)
        elif isinstance(peer, Client) and peer.parted:
            self._end_link(peer)  # It does not wait for the end of its leaving.
        elif isinstance(peer, Client) and not peer.leaving:
            self._log.info("client lost its connection", client=peer.name)
            peer.lost_at = self.now()
            peer.grace = self._clock.callLater(
                self.settings.client_grace_s, self._guarded, self._grace_over, peer
            )
        self._touch(peer)
        self._end_turn(self.now())

    def _grace_over(self, client: Client) -> None:
        client.grace = None
        self._log.info("client did not come back", client=client.name)
        self._depart(client)
        self._end_turn(self.now())

    def expel(self, peer: Peer, error: OverlayError) -> None:
        """Close on a peer that broke the rules; for a client it is the end, a neighbour may come
        back and begin anew."""
        self._expel(peer, error)
        self._end_turn(self.now())

    def _expel(self, peer: Peer, error: OverlayError) -> None:
        self._log.error("peer expelled", hop=peer.hop, code=error.code, reason=str(error))
        self._close(peer, Goodbye(error.code, str(error)))

    def _close(self, peer: Peer, goodbye: Goodbye) -> None:
        """End a link for good, with a word, after what is queued for it."""
        self._queue(peer)
        if peer.wire is not None:
            self._write_idle(peer, self.now())
            peer.wire.close(goodbye)
            peer.wire = None
        self._end_link(peer)

    def _end_link(self, peer: Peer) -> None:
        """Forget a peer, or that we knew it, now that its connection has been seen to."""
        self._detach(peer)
        if isinstance(peer, Client):
            self._depart(peer)
        elif isinstance(peer, Neighbour):
            self._give_up(peer)
        else:
            self._peers.pop(peer.hop, None)
            self._put_off(peer)
            peer.link.drop_inbox()

    def _depart(self, client: Client) -> None:
        """A client is gone: forget it here, and tell the core as soon as it can be told."""
        if client.grace is not None:
            client.grace.cancel()
            client.grace = None
        self._put_off(client)
        self._unacknowledged.pop(client, None)
        self._kept_bytes -= client.kept_bytes
        client.kept_bytes = 0
        client.link.drop_inbox()
        if self._peers.get(client.hop) is not client:
            return
        del self._peers[client.hop]
        self._departed[client.name] = None
        self._log.info("client left", client=client.name, undelivered=client.link.pending)

    def _put_off(self, peer: Peer) -> None:
        """A peer has nothing to hand over any more."""
        self._flow.waiting.pop(peer, None)
        self._rounds.remove(peer)
        self._busy.pop(peer.hop, None)

    def _tell_departed(self, client: ClientName, now: float) -> None:
        """Tell the core that a client has gone."""
        del self._departed[client]
        effects = self._core.client_left(client, now)
        self._rounds.used += units_of_input(effects)
        self._carry_out(effects)

    def _give_up(self, neighbour: Neighbour) -> None:
        """Begin anew with a neighbour, when it comes back."""
        self._put_off(neighbour)
        lost = neighbour.link.forget()
        if lost:
            self._log.error("messages given up", neighbour=neighbour.name, messages=lost)
        self._touch(neighbour)

    # Messages come.

    def arrived(self, peer: Peer, frames: list[bytes]) -> None:
        """Frames have come in on the peer's connection.

        Raises PeerError if they break the rules; then `expel`.
        """
        if peer.leaving:
            return  # Nothing counts after a goodbye.
        goodbye = peer.link.receive_all(frames)
        if goodbye is not None:
            self._parting(peer, goodbye)
        if peer.link.note:
            self._noted(peer)
        now = self.now()
        # For what an acknowledgement that came has made room for.
        self._touch(peer)
        if not (peer in self._flow.waiting or peer.hop in self._busy):
            self._rounds.come(peer)
        self._end_turn(now)

    def _noted(self, peer: Peer) -> None:
        """A neighbour's ping has said something about our process."""
        note, peer.link.note = peer.link.note[:REASON_LIMIT], ""
        if isinstance(peer, Neighbour):
            self._rivals[peer.name].notice = note
            self._log.error("another process has our name", neighbour=peer.name, reason=note)

    def refused(self, neighbour: Neighbour, goodbye: Goodbye) -> None:
        """A neighbour that was dialled has refused us."""
        reason = f"{goodbye.code}: {goodbye.reason}"
        self._rivals[neighbour.name].refusal = reason[:REASON_LIMIT]

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
            peer.parted = True
            self._carry_out(self._core.client_leaves(peer.name, now))
        else:
            self._close(peer, Goodbye())

    def _hand_over(self, peer: Peer, now: float) -> None:
        """Give the core what has come from a peer; if there is more than it may have now, see to it
        that the peer is asked again."""
        link, hop = peer.link, peer.hop
        while link.inbox or self._core.is_busy(hop):
            if self._core.is_busy(hop):
                self._busy[hop] = peer
                return
            if not self._flow.admits(peer):
                self._flow.waiting[peer] = None
                return
            if peer.units <= 0:
                self._rounds.add(peer)
                return
            limit = QUANTUM if type(link.inbox[0]) is Pub else OPERATIONS_AT_ONCE
            messages, frames = link.hand_over_some(limit)
            taken = self._take_batch(peer, messages, frames, now)
            if self._peers.get(hop) is not peer:
                return
            self._messages_in += taken
            if taken < len(messages):
                link.take_back(messages[taken:], frames[taken:])
            self._touch(peer)  # For the acknowledgement.
            self._flush(now)

    def _take_batch(
        self, peer: Peer, messages: list[AnyMessage], frames: list[bytes], now: float
    ) -> int:
        """Give the core messages of a peer, publications by the batch; returns how many it got. The
        rest has to wait, or was said by a peer that is not here any more."""
        hop, core, at = peer.hop, self._core, 0
        while at < len(messages) and peer.units > 0 and not core.is_busy(hop):
            try:
                check_room(messages[at], len(frames[at]))
                taken = core.take(hop, messages, now, at)
            except PeerError as error:
                self._expel(peer, error)
                return len(messages)
            self._rounds.use(peer, units_of(taken, messages[at]))
            at += taken.consumed
            if self._carry_out(taken.effects, frames) and self._peers.get(hop) is not peer:
                return len(messages)  # The rest is from a peer that is not here any more.
        return at

    def _answer(self, operator: Operator, now: float) -> None:
        if not operator.link.inbox:
            return
        message = operator.link.hand_over()
        if not isinstance(message, Inspect):
            self._expel(operator, ProtocolError("an operator may inspect, and nothing else"))
            return
        self._rounds.use(operator, QUESTION_UNITS)
        if message.what == "status":
            report = Report(message.req, self.status())
            self._carry_out([Send((operator.hop,), report)])
        else:
            self._carry_out(self._core.receive(operator.hop, message, now))
        if operator.link.inbox:
            self._rounds.add(operator)

    # Effects.

    def _carry_out(self, effects: list[Effect], frames: Sequence[bytes] = ()) -> bool:
        """Carry out effects in their order; `frames` are those of the input, to be forwarded.

        Returns whether a link was closed.
        """
        peers, closed = self._peers, False
        for effect in effects:
            if type(effect) is Forward:
                self._queue_for(effect.hops, frames[effect.start : effect.start + effect.count])
            elif type(effect) is Send:
                self._queue_for(effect.hops, [_pack(effect.message)])
            elif type(effect) is Record:
                if self._record is not None:
                    self._record(effect)
            elif type(effect) is Close:
                closed = True
                leaver = peers.get(effect.hop)
                if leaver is not None:
                    self._close(leaver, Goodbye(effect.code, effect.reason))
            elif type(effect) is SetTimer:
                self._cancel(effect.key)
                self._timers[effect.key] = self._clock.callLater(
                    effect.delay_s, self._guarded, self._wake, effect.key
                )
            else:
                assert type(effect) is CancelTimer, effect
                self._cancel(effect.key)
        return closed

    def _queue_for(self, hops: tuple[Hop, ...], frames: Sequence[bytes]) -> None:
        """Give frames to the peers; they are written at the end of the turn."""
        for hop in hops:
            peer = self._peers.get(hop)
            if peer is None:
                # A client or operator that has gone; the core is about to hear of it.
                assert hop.startswith(("@", "?")), hop
                continue
            self._touch(peer)
            peer.outgoing += frames

    def _cancel(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _wake(self, key: str) -> None:
        del self._timers[key]
        now = self.now()
        self._carry_out(self._core.wake(key, now))
        self._end_turn(now)

    # The end of a turn.

    def _touch(self, peer: Peer) -> None:
        if not peer.dirty:
            peer.dirty = True
            self._dirty.append(peer)

    def _end_turn(self, now: float) -> None:
        """Write, tell the core who has gone and let in what waits, until the round is over."""
        rounds = self._rounds
        while True:
            self._flush(now)
            if rounds.over:
                break
            if self._departed:
                self._tell_departed(next(iter(self._departed)), now)
                continue
            for hop in self._core.take_freed() if self._busy else ():
                if hop in self._busy:
                    rounds.add(self._busy.pop(hop))
            while (waited := self._flow.next()) is not None:
                rounds.add(waited)
            peer = rounds.next()
            if peer is None:
                break
            self._take_from(peer, now)
        if rounds.used and not self._round_ends:
            self._round_ends = True
            self._clock.callLater(0, self._guarded, self._next_round)
        if self._unacknowledged and not self._acknowledging:
            self._acknowledging = True
            self._clock.callLater(ACK_DELAY_S, self._guarded, self._acknowledge)

    def _next_round(self) -> None:
        """The reactor has looked at its sockets and timers."""
        self._round_ends = False
        self._rounds.used = 0.0
        self._end_turn(self.now())

    def _flush(self, now: float) -> None:
        """Write each link that was touched once, and see whether its queue has grown too long."""
        while self._dirty:
            peer = self._dirty.pop()
            peer.dirty = False
            link = peer.link
            self._queue(peer)
            if peer.wire is not None:
                frames = link.take(now)
                if frames:
                    peer.wire.write(b"".join(frames))
                if link.ack_waits:
                    self._unacknowledged[peer] = None
            if link.outbox and link.full and peer.hop in self._peers:
                self._overflow(peer)
            if isinstance(peer, Neighbour):
                self._flow.gauge(peer)
            elif isinstance(peer, Client) and link.backlog_bytes != peer.kept_bytes:
                self._gauge(peer)

    def _gauge(self, client: Client) -> None:
        """Count the bytes that wait for clients; cut one off if they are too many."""
        if self._peers.get(client.hop) is not client:
            return
        self._kept_bytes += client.link.backlog_bytes - client.kept_bytes
        client.kept_bytes = client.link.backlog_bytes
        if self._kept_bytes > self.settings.client_outboxes_bytes:
            clients = (peer for peer in self._peers.values() if isinstance(peer, Client))
            self._overflow(max(clients, key=lambda peer: peer.kept_bytes))

    def _queue(self, peer: Peer) -> None:
        """Put what the turn has for a peer on its link."""
        if peer.outgoing:
            self._messages_out += len(peer.outgoing)
            peer.link.send_all(peer.outgoing)
            peer.outgoing.clear()

    def _overflow(self, peer: Peer) -> None:
        """A queue has reached its limit: the peer reads too slowly, or has been down too long."""
        waiting, size = len(peer.link.outbox), peer.link.backlog_bytes
        reason = f"{waiting} messages ({size} bytes) wait for {peer.hop}, which does not read them"
        if isinstance(peer, Neighbour):
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
        for peer in list(self._peers.values()):
            if peer.link.silent(now) and peer.wire is not None:
                self._log.warn("connection silent, taken for dead", hop=peer.hop)
                peer.wire.abort()
            else:
                self._write_idle(peer, now)

    def _write_idle(self, peer: Peer, now: float) -> None:
        if peer.wire is not None:
            frames = peer.link.take(now, idle=True)
            if frames:
                peer.wire.write(b"".join(frames))

    def stop(self) -> None:
        """Say goodbye to the clients and close the rest; nothing is taken in any more."""
        for peer in list(self._peers.values()):
            wire, peer.wire = peer.wire, None
            if wire is not None:
                code = "" if isinstance(peer, Neighbour) else "closing"
                wire.close(Goodbye(code, f"broker {self.name} is shutting down" if code else ""))

    # For operators.

    def _usage(self) -> list[Usage]:
        clients = sum(isinstance(peer, Client) for peer in self._peers.values())
        limits = self.settings
        return [
            Usage("clients", clients, limits.client_connections),
            Usage("bytes for clients", self._kept_bytes, limits.client_outboxes_bytes),
            *self._core.usage,
        ]

    def status(self) -> dict[str, Any]:
        """How the broker is, as JSON-like data."""
        return {
            "broker": self.name,
            "pid": os.getpid(),
            "uptime_s": round(self.now() - self._started_at, 3),
            "links": [
                {
                    "neighbour": peer.name,
                    "up": peer.link.connected,
                    "unacked": len(peer.link.unacked),
                    "outbox": len(peer.link.outbox),
                    "congested": peer in self._flow.congested,
                    **self._rivals[peer.name].as_data(),
                }
                for peer in self.neighbours.values()
            ],
            "clients": [
                {
                    "client": peer.name,
                    "up": peer.link.connected,
                    "unacked": len(peer.link.unacked),
                    "outbox": len(peer.link.outbox),
                }
                for peer in self._peers.values()
                if isinstance(peer, Client)
            ],
            "unreachable": [
                {"broker": missing.broker, "reported_by": missing.reported_by, "via": via}
                for missing, via in self._core.reach.missing
            ],
            "usage": [usage._asdict() for usage in self._usage()],
            "messages_in": self._messages_in,
            "messages_out": self._messages_out,
            **{name: report() for name, report in self.reports.items()},
        }


def _pack(message: Message) -> bytes:
    try:
        return pack(message, BROKER_FRAME_LIMIT)
    except FrameTooLarge as error:
        # A table can be larger than a frame; nothing else that a core says can.
        assert isinstance(message, Report), error
        return pack(Done(message.req, error.code, str(error)))
