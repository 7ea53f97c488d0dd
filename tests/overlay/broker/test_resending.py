"""Publications wait for a neighbour whose link was reset, and then come in their order."""

from __future__ import annotations

from overlay.broker.core import Broker
from overlay.effects import Effect, Resend, Send
from overlay.filters import Filter
from overlay.messages import BrokerName, Done, Gap, Hop, Join, LinkReset, Operation, Pub
from overlay.node.received import Received
from overlay.wire.frames import is_publication, pack
from padres_tx.client_messages import Step
from tests.overlay.broker.test_core import ALL, X, broker, joined, op, tell
from tests.protocol.one_broker import OneBroker

B3 = BrokerName("B3")


def to(hop: str, effects: list[Effect]) -> list[object]:
    return [each.message for each in effects if isinstance(each, Send) and hop in each.hops]


def publisher_and_subscriber() -> tuple[Broker, list[Effect]]:
    """B2 with the publisher E here and the subscriber A behind B3, whose link is then reset."""
    core = broker("B1", "B3")
    joined(core, "E")
    tell(core, "@E", op("adv", "E", 1, ALL))
    tell(core, "B3", Join(7, "A", "B4"))
    tell(core, "B3", op("sub", "A", 1, X))
    return core, core.link_reset(B3, 5.0)


def test_what_is_published_meanwhile_comes_behind_what_was_kept() -> None:
    core, effects = publisher_and_subscriber()
    asked = [m.req for m in to("B3", effects) if isinstance(m, Join | Operation)]
    first = Pub("E", 1, {"class": "p1", "x": "x1"}, life=core.life_of(Hop("@E")))
    assert to("B3", tell(core, "@E", first)) == []
    tell(core, "B3", Join(8, "A", "B4", 1))
    tell(core, "B3", op("sub", "A", 1, X))
    told: list[Effect] = []
    for req in asked:
        assert not any(isinstance(effect, Resend) for effect in told)
        told = tell(core, "B3", Done(req))
    assert Resend(Hop("B3"), given_up=False) in told
    assert to("B3", core.wake("work", 6.0))[0] == first
    assert core.resending.waits_for() == ""


def test_who_may_have_lost_something_is_told_and_nobody_else() -> None:
    _, effects = publisher_and_subscriber()
    assert to("@E", effects) == [Gap("B3", 5.0, "out")]
    assert LinkReset("B2", "B3", 5.0, ("B4",)) in to("B1", effects)
    quiet = broker("B3")
    joined(quiet, "E")
    tell(quiet, "@E", op("adv", "E", 1, ALL))
    told = to("@E", quiet.link_reset(B3, 5.0))
    assert not any(isinstance(each, Gap) for each in told), "nobody is subscribed there"


def test_resets_in_quick_succession_merge() -> None:
    core, _ = publisher_and_subscriber()
    assert to("@E", core.link_reset(B3, 5.1)) == []
    assert to("@E", core.link_reset(B3, 5.2)) == []
    assert to("@E", core.wake("gaps", 6.0)) == [Gap("B3", 5.2, "out")]
    assert core.wake("gaps", 7.0) == []


def test_a_broker_that_holds_publications_votes_for_no_d_tx() -> None:
    one = OneBroker("d-tx", neighbours=["B1"])
    one.here("E", "D")
    one.holds("E", "adv", Filter({"class": "p"}))
    one.broker.link_reset(BrokerName("B1"), 0.0)
    tx = one.begin("E", Step("E", "pub", point={"class": "p"}))
    engine = one.broker.engines["d-tx"]
    verdict = engine.judge(engine.txs[tx])
    assert verdict.code == "conflict" and "B1" in verdict.reason


def test_each_publisher_s_repetitions_end_with_its_first_new_publication() -> None:
    received = Received()
    received.note([Pub("E", 1, {}), Pub("E", 5, {}), Pub("D", 2, {}, life=3)])
    received.reset()
    coming = [Pub("E", 4, {}), Pub("E", 5, {}), Done(1), Pub("E", 6, {}), Pub("D", 1, {}, life=4)]
    new, frames = received.new(coming, [b"4", b"5", b"done", b"6", b"1"])
    assert new == coming[2:] and frames == [b"done", b"6", b"1"]
    assert not received.repeated
    again = Received()
    again.restore(*received.state)
    assert again.last == received.last


def test_publications_are_recognised_in_any_encoding() -> None:
    frame = pack(Pub("E", 1, {"x": 1}))
    assert is_publication(frame) and not is_publication(pack(Done(1)))
    body = frame[4:]
    longer = b"\xdc\x00" + bytes([body[0] & 0x0F]) + body[1:]  # An array with a longer head.
    assert is_publication(len(longer).to_bytes(4, "big") + longer)
