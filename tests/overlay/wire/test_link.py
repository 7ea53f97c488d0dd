"""The link: set state, give one input, check what comes out; then cut it anywhere, often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import ProtocolError
from overlay.messages import PROTOCOL_VERSION, Ack, Done, Goodbye, Hello, Ping, Pub
from overlay.wire.codec import FRAME_LIMIT, decode
from overlay.wire.frames import BROKER_FRAME_LIMIT, PREFIX_SIZE, FrameTooLarge, Splitter, pack
from overlay.wire.link import (
    ACK_BYTES,
    ACK_MESSAGES,
    HEARTBEAT_S,
    IDLE_S,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    Link,
    Opening,
)


def numbered(n: int, size: int = 0) -> bytes:
    return pack(Done(n, "", "x" * size))


def said(frames: list[bytes]) -> list[Any]:
    return [decode(frame[PREFIX_SIZE:]) for frame in frames]


def numbers(frames: list[bytes]) -> list[int]:
    return [message.req for message in said(frames) if isinstance(message, Done)]


def connect(dialling: Link, accepting: Link, now: float = 0.0) -> tuple[Opening, Opening]:
    """Exchange hellos; what it means to each."""
    theirs = accepting.open(dialling.hello("broker", "A"), now)
    ours = dialling.open(accepting.hello("broker", "B"), now)
    return ours, theirs


def carry(frames: list[bytes], to: Link) -> None:
    for frame in frames:
        to.receive(decode(frame[PREFIX_SIZE:]), frame)


def hand_over(link: Link) -> list[int]:
    taken = []
    while link.inbox:
        message = link.hand_over()
        assert isinstance(message, Done)
        taken.append(message.req)
    return taken


def pair(**limits: Any) -> tuple[Link, Link]:
    a, b = Link("a", **limits), Link("b", **limits)
    connect(a, b)
    return a, b


# Life.


def test_first_contact_is_new_and_keeps_what_was_queued() -> None:
    a, b = Link("a"), Link("b")
    a.send(numbered(1))
    assert a.take(0.0) == []  # "what it has queued so far will be sent", once connected
    assert connect(a, b) == (Opening.NEW, Opening.NEW)
    assert numbers(a.take(0.0)) == [1]


def test_a_reconnect_sends_again_what_was_not_handed_over() -> None:
    a, b = pair()
    for n in range(5):
        a.send(numbered(n))
    carry(a.take(0.0)[:3], b)
    b.hand_over()
    a.cut()
    b.cut()
    assert connect(a, b) == (Opening.RESUMED, Opening.RESUMED)
    assert numbers(a.take(0.0)) == [1, 2, 3, 4]


def test_what_has_arrived_can_be_handed_over_while_disconnected_and_is_not_sent_again() -> None:
    a, b = pair()
    for n in range(3):
        a.send(numbered(n))
    carry(a.take(0.0), b)
    a.cut()
    b.cut()
    assert hand_over(b) == [0, 1, 2]
    connect(a, b)
    assert numbers(a.take(0.0)) == []


def test_a_peer_that_begins_anew_resets_the_link() -> None:
    a, _ = pair()
    a.send(numbered(1))
    a.take(0.0)
    a.send(numbered(2))
    a.cut()
    reborn = Link("b2")
    assert connect(a, reborn) == (Opening.RESET, Opening.NEW)
    assert a.pending == 0
    a.send(numbered(3))
    carry(a.take(0.0), reborn)
    assert hand_over(reborn) == [3]


def test_a_forgetful_end_resets_both_and_counts_what_it_gives_up() -> None:
    a, b = pair()
    for n in range(4):
        b.send(numbered(n))
    carry(b.take(0.0)[:1], a)
    a.hand_over()
    a.cut()
    b.cut()
    assert b.forget() == 4
    assert b.send(numbered(9))
    assert b.given_up == 1
    assert b.pending == 0
    assert connect(a, b) == (Opening.RESET, Opening.RESET)
    assert b.given_up == 0
    b.send(numbered(10))
    carry(b.take(0.0), a)
    assert hand_over(a) == [10]


def test_every_life_of_the_accepting_end_has_a_name_of_its_own() -> None:
    """A peer from two lives ago must not be taken for the present one."""
    b = Link("b")
    names = [b.incarnation]
    for n in range(3):
        b.open(Link(f"a{n}").hello("broker", "A"), 0.0)
        names.append(b.incarnation)
        b.cut()
    assert len(set(names[1:])) == 3, names


def test_an_answer_that_got_lost_is_no_second_reset() -> None:
    a, b = Link("a"), Link("b")
    assert b.open(a.hello("broker", "A"), 0.0) is Opening.NEW
    b.hello("broker", "B")  # never arrives
    b.send(numbered(1))
    b.take(0.0)
    a.cut()
    b.cut()
    assert connect(a, b) == (Opening.NEW, Opening.RESUMED)
    assert numbers(b.take(0.0)) == [1]


def test_an_answer_to_a_reborn_peer_that_got_lost_is_no_second_reset() -> None:
    a, b = pair()
    b.send(numbered(1))
    carry(b.take(0.0), a)
    hand_over(a)
    a.cut()
    b = Link("b2")
    b.open(a.hello("broker", "A"), 0.0)
    b.hello("broker", "B")  # never arrives: a still believes in its old peer
    b.send(numbered(2))
    b.take(0.0)
    b.cut()
    a.cut()
    assert connect(a, b) == (Opening.RESET, Opening.RESUMED)
    carry(b.take(0.0), a)
    assert hand_over(a) == [2]


def test_a_link_that_went_astray_does_not_resume_its_old_life() -> None:
    """b serves a, then an impostor, then a again: what a had from b was of another life."""
    a, b = pair()
    b.send(numbered(1))
    carry(b.take(0.0), a)
    hand_over(a)
    a.cut()
    b.cut()
    impostor = Link("i")
    assert connect(impostor, b) == (Opening.NEW, Opening.RESET)
    impostor.cut()
    b.cut()
    assert connect(a, b) == (Opening.RESET, Opening.RESET)


@pytest.mark.parametrize("received", [0, 3])
def test_a_resume_point_outside_of_what_was_sent_breaks_the_protocol(received: int) -> None:
    a, b = pair()
    a.send(numbered(1))
    a.send(numbered(2))
    carry(a.take(0.0), b)
    b.hand_over()
    carry(b.take(0.0, idle=True), a)
    b.cut()
    a.cut()
    hello = msgspec.structs.replace(b.hello("broker", "B"), received=received)
    with pytest.raises(ProtocolError, match="received"):
        a.open(hello, 0.0)


def test_a_hello_without_incarnation_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="incarnation"):
        Link("a").open(Hello(PROTOCOL_VERSION, "client", "x", ""), 0.0)


# Flow.


def test_the_window_bounds_the_messages_in_flight() -> None:
    a, b = pair()
    for n in range(WINDOW_MESSAGES + 10):
        a.send(numbered(n))
    frames = a.take(0.0)
    assert len(frames) == WINDOW_MESSAGES
    assert a.take(0.0) == []
    carry(frames, b)
    for _ in range(ACK_MESSAGES):
        b.hand_over()
    assert said(b.take(0.0)) == [Ack(ACK_MESSAGES)]
    assert a.receive_all([pack(Ack(ACK_MESSAGES))]) is None
    assert numbers(a.take(0.0)) == list(range(WINDOW_MESSAGES, WINDOW_MESSAGES + 10))


def test_the_window_bounds_the_bytes_in_flight() -> None:
    a, b = pair()
    big = numbered(0, FRAME_LIMIT // 2)
    for _ in range(20):
        a.send(big)
    frames = a.take(0.0)
    # "The bytes can be exceeded by one frame."
    assert WINDOW_BYTES <= sum(map(len, frames)) < WINDOW_BYTES + len(big)
    carry(frames, b)
    b.hand_over()
    assert len(big) > ACK_BYTES
    assert said(b.take(0.0)) == [Ack(1)]


def test_a_peer_that_overruns_the_window_breaks_the_protocol() -> None:
    _, b = pair()
    carry([numbered(0)] * WINDOW_MESSAGES, b)
    with pytest.raises(ProtocolError, match="without waiting"):
        carry([numbered(0)], b)


def test_a_peer_that_overruns_the_window_by_bytes_breaks_the_protocol() -> None:
    _, b = pair()
    big = numbered(0, FRAME_LIMIT // 2)
    # "The bytes can be exceeded by one frame", and the largest is a broker's.
    enough = (WINDOW_BYTES + BROKER_FRAME_LIMIT) // len(big)
    assert b.receive_all([big] * enough) is None
    with pytest.raises(ProtocolError, match="without waiting"):
        b.receive_all([big] * 2)


def test_only_what_was_handed_over_is_acknowledged() -> None:
    a, b = pair()
    for n in range(3):
        a.send(numbered(n))
    carry(a.take(0.0), b)
    assert b.take(0.0, idle=True) == []
    b.hand_over()
    assert b.ack_waits
    assert b.take(0.0) == []  # not due yet
    assert said(b.take(0.0, idle=True)) == [Ack(1)]
    assert not b.ack_waits


def test_an_acknowledgement_goes_along_with_a_message() -> None:
    a, b = pair()
    a.send(numbered(1))
    carry(a.take(0.0), b)
    b.hand_over()
    b.send(numbered(7))
    assert said(b.take(0.0)) == [Done(7), Ack(1)]


@pytest.mark.parametrize("received", [0, 3])
def test_an_impossible_acknowledgement_breaks_the_protocol(received: int) -> None:
    a, _ = pair()
    a.send(numbered(1))
    a.send(numbered(2))
    a.take(0.0)
    carry([pack(Ack(1))], a)
    with pytest.raises(ProtocolError, match="acknowledges"):
        carry([pack(Ack(received))], a)


def test_the_outbox_has_a_limit_in_messages() -> None:
    a = Link("a", outbox_messages=2)
    assert a.send(numbered(1))
    assert a.send(numbered(2))
    assert not a.full
    assert not a.send(numbered(3))
    assert a.full


def test_the_outbox_has_a_limit_in_bytes() -> None:
    a = Link("a", outbox_bytes=1000)
    assert a.send(numbered(1, 500))
    assert not a.send(numbered(2, 500))
    assert a.full
    assert a.backlog_bytes > 1000


def test_several_are_handed_over_at_once() -> None:
    a, b = pair()
    for n in range(5):
        a.send(numbered(n))
    frames = a.take(0.0)
    assert b.receive_all([*frames, pack(Goodbye()), numbered(9)]) == Goodbye()
    assert [m.req for m in b.hand_over_some(3)[0] if isinstance(m, Done)] == [0, 1, 2]
    assert b.handed_over == 3
    assert b.hand_over_some(3)[1] == frames[3:]
    assert b.hand_over_some(3) == ([], [])
    assert said(b.take(0.0, idle=True)) == [Ack(5)]


def test_a_goodbye_is_the_owners_and_a_second_hello_is_an_error() -> None:
    a, b = pair()
    assert a.receive(Goodbye("x", "y"), b"") == Goodbye("x", "y")
    assert a.receive(Ping(), b"") is None
    with pytest.raises(ProtocolError, match="second hello"):
        a.receive(b.hello("broker", "B"), b"")


# Time.


def test_a_quiet_end_says_that_it_is_alive() -> None:
    a, _ = pair()
    assert a.take(HEARTBEAT_S / 2, idle=True) == []
    assert said(a.take(HEARTBEAT_S, idle=True)) == [Ping()]
    assert a.take(HEARTBEAT_S * 1.5, idle=True) == []
    a.send(numbered(1))
    a.take(HEARTBEAT_S * 1.9)
    assert a.take(HEARTBEAT_S * 2.5, idle=True) == []


def test_a_connection_that_is_silent_is_taken_for_dead() -> None:
    a, _ = pair()
    assert not a.silent(IDLE_S)
    assert a.silent(IDLE_S + 0.1)
    a.heard(5.0)
    assert not a.silent(IDLE_S + 0.1)
    a.cut()
    assert not a.silent(100.0)


# Frames.


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(1, 30), min_size=1))
def test_frames_come_out_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    frames = [pack(Pub("c", n, {}, payload)) for n, payload in enumerate(payloads)]
    stream, splitter = b"".join(frames), Splitter()
    seen: list[bytes] = []
    turn = 0
    while stream:
        cut = cuts[turn % len(cuts)]
        turn += 1
        seen += splitter.feed(stream[:cut])
        stream = stream[cut:]
    assert seen == frames


def test_an_announced_frame_over_the_limit_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(ProtocolError, match="at most 100"):
        Splitter(100).feed((101).to_bytes(4, "big"))
    assert Splitter(100).feed((100).to_bytes(4, "big") + bytes(100)) != []
    assert Splitter().feed(BROKER_FRAME_LIMIT.to_bytes(4, "big")) == []


def test_a_message_over_the_limit_is_the_callers_mistake() -> None:
    with pytest.raises(FrameTooLarge, match="Pub of"):
        pack(Pub("c", 1, {}, bytes(FRAME_LIMIT)))
    overhead = len(pack(Pub("c", 1, {}, bytes(FRAME_LIMIT - 20)))) - PREFIX_SIZE - FRAME_LIMIT + 20
    fits = bytes(FRAME_LIMIT - overhead)
    assert len(pack(Pub("c", 1, {}, fits))) == FRAME_LIMIT + PREFIX_SIZE
    with pytest.raises(FrameTooLarge, match=f"Pub of {FRAME_LIMIT + 1} bytes"):
        pack(Pub("c", 1, {}, fits + b"x"))


# Everything at once.


class Pipe:
    """Two ends, the wire between them as bytes in both directions, and an account of what each
    owner said and heard in the present life of the link."""

    def __init__(self) -> None:
        self.links = [Link("a"), Link("b")]
        self.splitters = [Splitter(), Splitter()]
        self.wires = [b"", b""]  # towards end 0, towards end 1
        self.sent: list[list[int]] = [[], []]
        self.heard: list[deque[int]] = [deque(), deque()]
        self.forgotten = [False, False]
        self.next = 0
        self.forgets = self.resets = 0
        self.now = 0.0
        self.up = False

    def send(self, end: int, size: int) -> None:
        frame = numbered(self.next, size)
        if size % 2:
            self.links[end].send(frame)
        else:
            self.links[end].send_all([frame])
        if not self.forgotten[end]:
            self.sent[end].append(self.next)
        self.next += 1

    def write(self, end: int, *, idle: bool) -> None:
        self.now += 1.0
        self.wires[1 - end] += b"".join(self.links[end].take(self.now, idle=idle))

    def read(self, end: int, size: int) -> None:
        data, self.wires[end] = self.wires[end][:size], self.wires[end][size:]
        self.links[end].receive_all(self.splitters[end].feed(data))

    def hand_over(self, end: int, count: int) -> None:
        for message in self.links[end].hand_over_some(count)[0]:
            assert isinstance(message, Done)
            self.heard[end].append(message.req)

    def cut(self) -> None:
        self.wires = [b"", b""]
        self.splitters = [Splitter(), Splitter()]
        for link in self.links:
            link.cut()
        self.up = False

    def connect(self, *, hellos: int) -> None:
        """Connect, or fail to: after the first hello, or before the answer arrives."""
        self.cut()
        dialling, accepting = self.links
        hello = dialling.hello("broker", "A")
        if hellos == 0:
            dialling.cut()
            return
        self._opened(1, accepting.open(hello, self.now))
        answer = accepting.hello("broker", "B")
        if hellos == 1:
            self.cut()
            return
        self._opened(0, dialling.open(answer, self.now))
        self.up = True

    def _opened(self, end: int, opening: Opening) -> None:
        if opening is Opening.RESET:
            self.sent[end].clear()
            self.heard[end].clear()
            self.forgotten[end] = False
            self.resets += 1

    def forget(self, end: int) -> None:
        self.cut()
        self.links[end].forget()
        self.sent[end].clear()
        self.forgotten[end] = True
        self.forgets += 1

    def settle(self) -> None:
        self.connect(hellos=2)
        while any(link.pending or link.inbox for link in self.links):
            for end in (0, 1):
                self.write(end, idle=True)
            for end in (0, 1):
                self.read(end, len(self.wires[end]))
                self.hand_over(end, WINDOW_MESSAGES)


ends = st.integers(0, 1)
# Most steps move something, so that a cut finds messages everywhere.
moves: st.SearchStrategy[Callable[[Pipe], None]] = st.one_of(
    st.builds(lambda e, n: lambda p: p.send(e, n), ends, st.integers(0, 20)),
    st.builds(lambda e, idle: lambda p: p.write(e, idle=idle), ends, st.booleans()),
    st.builds(lambda e, n: lambda p: p.read(e, n), ends, st.integers(1, 150)),
    st.builds(lambda e, n: lambda p: p.hand_over(e, n), ends, st.integers(1, 4)),
)
breaks: st.SearchStrategy[Callable[[Pipe], None]] = st.one_of(
    st.builds(lambda: lambda p: p.cut()),
    st.builds(lambda n: lambda p: p.connect(hellos=n), st.sampled_from([2, 2, 2, 0, 1])),
)
forgets = st.builds(lambda e: lambda p: p.forget(e), ends)


@patch.multiple("overlay.wire.link", WINDOW_MESSAGES=4, ACK_MESSAGES=2)
def play(tape: list[Callable[[Pipe], None]]) -> Pipe:
    """Play it with a window so small that it is often full."""
    pipe = Pipe()
    pipe.connect(hellos=2)
    for step in tape:
        step(pipe)
        if pipe.up:
            for end in (0, 1):
                heard = list(pipe.heard[end])
                assert heard == pipe.sent[1 - end][: len(heard)]
    pipe.settle()
    assert list(pipe.heard[0]) == pipe.sent[1]
    assert list(pipe.heard[1]) == pipe.sent[0]
    return pipe


def tapes(*kinds: st.SearchStrategy[Callable[[Pipe], None]]) -> Any:
    stretch = st.tuples(st.lists(moves, min_size=5, max_size=25), st.one_of(*kinds))
    return st.lists(stretch, max_size=8).map(lambda found: [s for m, b in found for s in (*m, b)])


@settings(max_examples=150, deadline=None)
@given(tapes(breaks))
def test_every_message_is_handed_over_once_and_in_order(tape: list[Callable[[Pipe], None]]) -> None:
    assert play(tape).resets == 0


@settings(max_examples=150, deadline=None)
@given(tapes(breaks, forgets))
def test_the_same_in_each_life_when_ends_forget(tape: list[Callable[[Pipe], None]]) -> None:
    pipe = play(tape)
    # "Each owner is told of a peer's new life once": at most both of them, each time.
    assert pipe.resets <= 2 * pipe.forgets
