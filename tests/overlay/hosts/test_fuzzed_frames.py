"""Any frames of a connected peer cost it its link at most, never the host its life.

The peer is a neighbour or a client that has said a valid hello. Whatever it sends then, the events
of another neighbour go on to another client.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import PeerError
from overlay.filters import Filter
from overlay.messages import (
    PROTOCOL_VERSION,
    Ack,
    Backlog,
    Done,
    EngineMessage,
    Goodbye,
    Hello,
    Inspect,
    Join,
    Leave,
    Message,
    Operation,
    Pub,
    Reachability,
    Role,
    Signal,
)
from overlay.wire.frames import PREFIX_SIZE, pack
from tests.overlay.hosts.test_host import Recorded, Setting

#: Enough for each kind of damage to each message; some seconds.
RUNS = 300

VALID: list[Message | Signal] = [
    Join(1, "q", "B"),
    Join(2, "q", ""),
    Leave(3, "q", "B"),
    Operation(4, "adv", "q", 1, Filter(cls="y")),
    Operation(5, "sub", "q", 2, Filter(cls="y", n=(0, 9))),
    Operation(6, "uadv", "q", 3, Filter(cls="y")),
    Pub("q", 4, {"cls": "y", "n": 1}, b"payload"),
    Done(1),
    Done(99),
    Ack(1),
    Ack(1 << 40),
    Inspect(7, "tables", ""),
    Reachability("B", "C", up=False),
    Backlog("B", "C", True, ("C",), 9, 99),
    EngineMessage("d-tx", msgspec.Raw(b"\x93\x01\x02\x03")),
    Hello(PROTOCOL_VERSION, "client", "q", "i-q"),
    Goodbye("", ""),
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A valid frame, one that is damaged somewhere, or a frame of any bytes."""
    frame = pack(draw(st.sampled_from(VALID)))
    body = bytearray(frame[PREFIX_SIZE:])
    match draw(st.sampled_from(["valid", "damaged", "cut", "any"])):
        case "damaged":
            for _ in range(draw(st.integers(1, 3))):
                body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        case "cut":
            del body[draw(st.integers(0, len(body))) :]
        case "any":
            body = bytearray(draw(st.binary(max_size=40)))
    return len(body).to_bytes(PREFIX_SIZE, "big") + bytes(body)


class Endable(Recorded):
    """A wire that the host may cut off."""

    def abort(self) -> None:
        self.goodbye = self.goodbye or Goodbye("aborted", "")


class FuzzedSetting(Setting):
    def connect(self, role: Role, name: str) -> None:
        self.wires[name] = Endable()
        self.host.accept(self.wires[name], Hello(PROTOCOL_VERSION, role, name, f"i-{name}"))


@pytest.mark.parametrize("sender", ["B", "c", "joined"])
@settings(max_examples=RUNS, deadline=None)
@given(turns=st.lists(st.lists(frames(), min_size=1, max_size=4), max_size=5))
def test_any_frames_cost_their_sender_its_link_at_most(
    sender: str, turns: list[list[bytes]]
) -> None:
    setting = FuzzedSetting()
    setting.subscribed("s")
    if sender != "B":
        setting.connect("client", sender)
    if sender == "joined":
        setting.say(sender, Join(1, sender, ""))
        setting.answer("A")
        setting.answer("B")
    wire = setting.wires[sender]
    for turn in turns:
        if wire.goodbye is not None:
            break
        try:
            setting.host.arrived(wire.peer, turn)
        except PeerError as error:
            setting.host.expel(wire.peer, error)
        setting.clock.advance(0.01)
    setting.wires["s"].take()
    setting.say("A", *[Pub("p", 100 + n, {"cls": "x", "n": n}) for n in range(3)])
    setting.clock.advance(0.01)
    events = [m.point["n"] for m in setting.wires["s"].take() if isinstance(m, Pub)]
    assert events == [0, 1, 2]
    assert setting.wires["A"].goodbye is None and setting.wires["s"].goodbye is None
