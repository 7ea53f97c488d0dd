"""One broker as one deterministic machine: its core, the ends of its links, and its timers.

`apply` is the only way in. The same inputs at the same times put the same frames on each link, byte
for byte, in every process. So a node that has crashed is made again from its log, and is only late:

- What a peer has sent is counted (`Link.handed_over`, the acknowledgement) when it is applied, and
  a host applies what is committed. So a peer keeps what is not in the log.
- What a node sends follows from inputs that are committed. After a replay, all that peers have not
  acknowledged is in the links again, and each peer says in its hello what it has.
- Timers are state: a key and the time when it is due.

A peer that breaks the rules is expelled here, and a client whose link the core closes is gone: both
follow from inputs, so they are no inputs of their own.

The node knows no connections. The host takes its `outputs`, in the order that is said there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Close, Effect, Forward, Resend, Send, SetTimer
from overlay.errors import PeerError, ProtocolError
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Done,
    Goodbye,
    Hop,
    Message,
    Report,
    client_hop,
    is_client,
)
from overlay.node.costs import QUESTION_UNITS, units_of, units_of_input
from overlay.node.ends import End, EndedLink, Outputs
from overlay.node.inputs import (
    Asked,
    Down,
    Filled,
    Forgot,
    Input,
    Leaves,
    Left,
    MadeRoom,
    Opened,
    Took,
    Trimmed,
    Up,
    Woke,
)
from overlay.trace import Record
from overlay.wire.codec import check_room, decode_message_again
from overlay.wire.frames import (
    BROKER_FRAME_LIMIT,
    PREFIX_SIZE,
    FrameTooLarge,
    Splitter,
    pack,
)
from overlay.wire.link import Link, Opening

#: Digests are numbers below this, a prime.
DIGEST_MODULUS = (1 << 61) - 1

#: Makes the end of a client's link, with this incarnation.
MakeEnd = Callable[[Hop, str], End]


def plain_end(hop: Hop, incarnation: str) -> End:
    """An end without a host."""
    return End(hop, Link(incarnation))


class Node:
    """The machine; see the module's docstring.

    `ends` holds the ends of all neighbours' links; a host that has others, such as operators', adds
    and removes them by itself.
    """

    def __init__(self, core: Broker, neighbours: Iterable[End], make_end: MakeEnd) -> None:
        self.core = core
        self.ends: dict[Hop, End] = {end.hop: end for end in neighbours}
        #: When timers are due.
        self.timers: dict[str, float] = {}
        self.outputs = Outputs()
        #: One number for all that was sent on all links. The order on each link counts, and not
        #: the order between links. Kept for a log only, since it costs a look at every byte.
        self.keeps_digest = False
        self.digest = 0
        self._make_end = make_end
        #: Clients that are gone and that the core has not been told of: it must not be called while
        #: effects are being carried out, or their order would be broken.
        self._departed: list[str] = []

    # --- inputs ---

    def apply(self, input: Input, now: float) -> float:
        """Take an input that is committed; returns what it cost, in units of work.

        Its effects are in `outputs` then.
        """
        core = self.core
        match input:
            case Took():
                end = self.ends.get(Hop(input.hop))
                if end is None or not self.is_from(end, input):
                    return 0.0
                frames = Splitter().feed(input.frames)
                messages = [decode_message_again(frame[PREFIX_SIZE:]) for frame in frames]
                return self.take(end, messages, frames, len(input.frames), now)
            case Woke():
                if self.timers.get(input.key) != input.due:
                    return 0.0  # It was cancelled, or set again, meanwhile.
                del self.timers[input.key]
                return self._input(core.wake(input.key, now), now)
            case Opened():
                return self._open(input, now)
            case Leaves():
                return self._input(core.client_leaves(input.client, now), now)
            case Left():
                end = self.ends.get(client_hop(input.client))
                if end is None or end.link.incarnation != input.incarnation:
                    return 0.0
                self._remove(end)
                return self._settle(now)
            case Forgot():
                end = self.ends[Hop(input.neighbour)]
                self._end(end, Goodbye(), expelled=False)
                return 0.0
            case Down():
                return self._input(core.link_down(BrokerName(input.neighbour), now), now)
            case Up():
                return self._input(core.link_up(BrokerName(input.neighbour), now), now)
            case Filled():
                full = BrokerName(input.neighbour)
                effects = core.link_full(full, input.messages, input.size, now)
                return self._input(effects, now)
            case MadeRoom():
                return self._input(core.link_has_room(BrokerName(input.neighbour), now), now)
            case Asked():
                effects = core.receive(Hop(input.hop), input.question, now)
                return QUESTION_UNITS + self._input(effects, now)
            case Trimmed():
                for hop, incarnation, peer, received in input.acknowledged:
                    end = self.ends.get(Hop(hop))
                    if end is not None and (end.link.incarnation, end.link.peer) == (
                        incarnation,
                        peer,
                    ):
                        self.queue(end)
                        end.link.trim(received)
                return 0.0

    def is_from(self, end: End, took: Took) -> bool:
        """Whether messages are of the life that the link of this peer lives, and that is here."""
        return self.ends.get(end.hop) is end and end.link.incarnation == took.incarnation

    def take(
        self,
        end: End,
        messages: Sequence[AnyMessage],
        frames: Sequence[bytes],
        size: int,
        now: float,
    ) -> float:
        """Give the core messages of a peer, whose frames these are, of so many bytes in all.

        This is `apply` of `Took` for a host that has decoded them already.
        """
        core, hop, at, units = self.core, end.hop, 0, 0.0
        end.link.count(len(frames), size)
        if end.received is not None:
            messages, frames = end.received.new(messages, frames)
        while at < len(messages):
            try:
                check_room(messages[at], len(frames[at]))
                taken = core.take(hop, messages, now, at)
            except PeerError as error:
                self._end(end, Goodbye(error.code, str(error)), expelled=True)
                break
            units += units_of(taken, messages[at])
            at += taken.consumed
            if self._carry_out(taken.effects, now, frames) and self.ends.get(hop) is not end:
                break  # The rest is from a peer that is not here any more.
        return units + self._settle(now)

    def _open(self, opened: Opened, now: float) -> float:
        hop = Hop(opened.hop)
        if is_client(hop):
            end = self.add(hop, opened.incarnation)
            end.link.begin(opened.incarnation, opened.peer, Opening.NEW)
            return 0.0
        end = self.ends[hop]
        opening = Opening.RESET if opened.reset else Opening.NEW
        if opened.reset:
            self.queue(end)  # For the digest; then what is not a publication is given up.
            end.keep()
        end.link.begin(opened.incarnation, opened.peer, opening)
        if not opened.reset:
            return 0.0
        return self._input(self.core.link_reset(BrokerName(hop), now), now)

    def expel_source(self, hop: Hop, reason: str, now: float) -> None:
        """Close on the peer whose input the core cannot take."""
        end = self.ends.get(hop)
        if end is not None:
            self._end(end, Goodbye(ProtocolError.code, reason), expelled=True)
            self._settle(now)

    def add(self, hop: Hop, incarnation: str) -> End:
        """Make the end of a client's link."""
        self.ends[hop] = end = self._make_end(hop, incarnation)
        return end

    def send(self, hop: Hop, message: Message) -> None:
        """Tell an operator something that comes from the host, and not from an input."""
        self._send((hop,), [_pack(message)])

    def queue(self, end: End) -> None:
        """Put what there is for a peer on its link."""
        if end.outgoing:
            if self.keeps_digest and not end.hop.startswith("?"):
                before = end.digest
                end.digest = crc32(b"".join(end.outgoing), before)
                weight = crc32(end.hop.encode()) | 1
                self.digest = (self.digest + weight * (end.digest - before)) % DIGEST_MODULUS
            end.link.send_all(end.outgoing)
            end.outgoing.clear()

    def queue_all(self) -> None:
        """Put all that there is on the links."""
        for end in self.outputs.touched:
            self.queue(end)

    # --- effects ---

    def _input(self, effects: list[Effect], now: float) -> float:
        """Carry out the effects of an input; returns its cost."""
        self._carry_out(effects, now)
        return units_of_input(effects) + self._settle(now)

    def _settle(self, now: float) -> float:
        """Tell the core which clients have gone; returns what that cost."""
        units = 0.0
        while self._departed:
            effects = self.core.client_left(self._departed.pop(0), now)
            self._carry_out(effects, now)
            units += units_of_input(effects)
        return units

    def _carry_out(self, effects: list[Effect], now: float, frames: Sequence[bytes] = ()) -> bool:
        """Carry out effects in their order; `frames` are those of the input, to be forwarded.

        Returns whether a link was closed.
        """
        outputs, closed = self.outputs, False
        for effect in effects:
            if type(effect) is Forward:
                self._send(effect.hops, frames[effect.start : effect.start + effect.count])
            elif type(effect) is Send:
                self._send(effect.hops, [_pack(effect.message)])
            elif type(effect) is Record:
                outputs.records.append(effect)
            elif type(effect) is Resend:
                frames_kept = self.ends[effect.hop].take_kept()
                if not effect.given_up:
                    self._send((effect.hop,), frames_kept)
            elif type(effect) is Close:
                closed = True
                end = self.ends.get(effect.hop)
                if end is not None:
                    self._end(end, Goodbye(effect.code, effect.reason), expelled=False)
            elif type(effect) is SetTimer:
                self.timers[effect.key] = now + effect.delay_s
                outputs.timers[effect.key] = None
            else:
                assert type(effect) is CancelTimer, effect
                if self.timers.pop(effect.key, None) is not None:
                    outputs.timers[effect.key] = None
        return closed

    def _send(self, hops: tuple[Hop, ...], frames: Sequence[bytes]) -> None:
        ends, touched = self.ends, self.outputs.touched
        for hop in hops:
            end = ends.get(hop)
            if end is None:
                # A client or operator that has gone; the core is about to hear of it.
                assert hop.startswith(("@", "?")), hop
                continue
            if not end.is_touched:
                end.is_touched = True
                touched.append(end)
            end.outgoing += frames

    def _end(self, end: End, goodbye: Goodbye, *, expelled: bool) -> None:
        """Close a peer's link, after what it was sent."""
        if end.hop not in self.core.routing.neighbours:
            self._remove(end)
            lost = 0
        else:
            self.queue(end)
            end.take_kept()
            end.link.cut()
            lost = end.link.forget()
        self.outputs.ended.append(EndedLink(end, goodbye, expelled, lost))

    def _remove(self, end: End) -> None:
        """A client, or an operator, is gone."""
        del self.ends[end.hop]
        if is_client(end.hop):
            self._departed.append(end.hop[1:])


def _pack(message: Message) -> bytes:
    try:
        return pack(message, BROKER_FRAME_LIMIT)
    except FrameTooLarge as error:
        # A table can be larger than a frame; nothing else that a core says can.
        assert isinstance(message, Report), error
        return pack(Done(message.req, error.code, str(error)))
