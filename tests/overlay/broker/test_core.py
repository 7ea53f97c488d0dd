"""The broker core, one message at a time: set the state, send one message, check the effects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overlay.broker.core import Broker
from overlay.effects import Close, Effect, Resend, Send, SetTimer
from overlay.errors import ProtocolError
from overlay.filters import Filter
from overlay.messages import (
    AnyMessage,
    BrokerName,
    ClientName,
    Done,
    EngineMessage,
    Hop,
    Inspect,
    Join,
    Leave,
    Operation,
    Pub,
    PubRefused,
    Report,
)
from overlay.tables.routing import Home

X = Filter(class_="p1", x="x1")
ALL = Filter(class_="p1")


def broker(*neighbours: str) -> Broker:
    return Broker(BrokerName("B2"), [BrokerName(name) for name in neighbours])


def tell(core: Broker, source: str, message: AnyMessage) -> list[Effect]:
    if isinstance(message, Operation) and source in core.routing.neighbours:
        # Who speaks there has joined there, unless a test says otherwise.
        home = Home(BrokerName(source), Hop(source))
        core.routing.crt.setdefault(ClientName(message.client), home)
    return core.receive(Hop(source), message, 0.0)


def sent(effects: list[Effect]) -> list[tuple[tuple[str, ...], Any]]:
    """The messages among effects; what the host does by itself is none of them."""
    assert all(isinstance(effect, Send | Resend | SetTimer) for effect in effects), effects
    return [(effect.hops, effect.message) for effect in effects if isinstance(effect, Send)]


def joined(core: Broker, client: str) -> None:
    """Let a client in at a broker, its neighbours agreeing."""
    for hops, join in sent(tell(core, f"@{client}", Join(1, client, ""))):
        if isinstance(join, Join):
            tell(core, hops[0], Done(join.req))


def op(kind: Any, client: str, seq: int, filter: Filter, **more: Any) -> Operation:
    return Operation(more.pop("req", 100 + seq), kind, client, seq, filter, **more)


# --- advertisements flood, subscriptions follow them ---


def test_an_advertisement_floods_and_is_answered_when_all_have_answered() -> None:
    core = broker("B1", "B3", "B4")
    effects = sent(tell(core, "B1", op("adv", "E", 1, X)))
    assert [hops for hops, _ in effects] == [("B3",), ("B4",)]
    assert sent(tell(core, "B4", Done(effects[1][1].req))) == []
    assert sent(tell(core, "B3", Done(effects[0][1].req))) == [(("B1",), Done(101))]


def test_a_subscription_goes_only_towards_overlapping_advertisements() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", op("adv", "E", 1, X))
    tell(core, "B3", op("adv", "F", 1, Filter(class_="p2")))
    joined(core, "D")
    effects = sent(tell(core, "@D", op("sub", "D", 2, ALL)))
    assert [(hops, m.kind, m.filter) for hops, m in effects] == [(("B1",), "sub", ALL)]


def test_a_subscription_with_nothing_to_go_to_is_answered_at_once_and_kept() -> None:
    core = broker("B1")
    joined(core, "D")
    assert sent(tell(core, "@D", op("sub", "D", 2, ALL))) == [(("@D",), Done(102, number=1))]
    assert len(core.routing.prt) == 1


def test_an_advertisement_attracts_what_waits_and_is_answered_after_it() -> None:
    # Algorithm 2, line 27: no acknowledgement while a triggered operation is pending.
    core = broker("B1")
    joined(core, "D")
    tell(core, "@D", op("sub", "D", 2, ALL))
    [(hops, sub)] = sent(tell(core, "B1", op("adv", "E", 1, X)))
    assert (hops, sub.kind, sub.client, sub.seq) == (("B1",), "sub", "D", 1)
    assert sent(tell(core, "B1", Done(sub.req))) == [(("B1",), Done(101))]


def test_an_unadvertisement_takes_back_what_went_there_only_because_of_it() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", op("adv", "E", 1, X))
    tell(core, "B1", op("adv", "F", 1, Filter(class_="p1", x="x2")))
    tell(core, "B3", op("sub", "D", 1, ALL))
    tell(core, "B3", op("sub", "G", 1, X))
    effects = sent(tell(core, "B1", op("uadv", "E", 2, X, store=False, drop=(1,))))
    back = [(hops, m.client, m.drop) for hops, m in effects if m.kind == "usub"]
    assert back == [(("B1",), "G", (1,))], "D still has F to go to"


def test_an_uncovered_part_of_an_advertisement_still_attracts() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", op("adv", "E", 1, ALL))
    tell(core, "B3", op("sub", "D", 1, ALL))
    tell(core, "B3", op("sub", "G", 1, X))
    effects = sent(tell(core, "B1", op("uadv", "E", 2, X)))
    back = [(m.client, m.drop) for _, m in effects if m.kind == "usub"]
    assert back == [("G", (1,))], "what the hole covers wholly comes back, the rest stays"


# --- the last word decides ---


def test_unsubscribing_exactly_leaves_nothing_behind() -> None:
    core = broker("B1")
    tell(core, "B1", op("adv", "E", 1, ALL))
    joined(core, "D")
    tell(core, "@D", op("sub", "D", 2, X))
    [(hops, usub)] = sent(tell(core, "@D", op("usub", "D", 3, X)))
    assert (hops, usub.store, usub.drop) == (("B1",), False, (1,))
    assert len(core.routing.prt) == 0


def test_unsubscribing_a_part_carves_a_hole() -> None:
    core = broker("B1")
    tell(core, "B1", op("adv", "E", 1, ALL))
    joined(core, "D")
    tell(core, "@D", op("sub", "D", 2, ALL))
    [(_, usub)] = sent(tell(core, "@D", op("usub", "D", 3, X)))
    assert (usub.store, usub.drop) == (True, ())
    assert sent(tell(core, "B1", Pub("E", 5, {"class": "p1", "x": "x1"}))) == []
    inside = Pub("E", 6, {"class": "p1", "x": "x2"})
    assert sent(tell(core, "B1", inside)) == [(("@D",), inside)]


def test_subscribing_again_covers_holes_and_all() -> None:
    core = broker("B1")
    tell(core, "B1", op("adv", "E", 1, ALL))
    joined(core, "D")
    tell(core, "@D", op("sub", "D", 2, ALL))
    tell(core, "@D", op("usub", "D", 3, X))
    [(_, sub)] = sent(tell(core, "@D", op("sub", "D", 4, ALL)))
    assert (sub.store, sub.drop) == (True, (1, 2))


def test_unsubscribing_what_is_not_held_is_refused_and_changes_nothing() -> None:
    core = broker("B1")
    joined(core, "D")
    [(hops, done)] = sent(tell(core, "@D", op("usub", "D", 2, X)))
    assert (hops, done.req, done.code) == (("@D",), 102, "not-held")
    tell(core, "@D", op("sub", "D", 3, ALL))
    tell(core, "@D", op("usub", "D", 4, X))
    [(_, done)] = sent(tell(core, "@D", op("usub", "D", 5, X)))
    assert done.code == "not-held", "x1 was taken back before"


# --- publications ---


@pytest.mark.parametrize("point", [{}, {"x": float("nan")}, {"": 1}])
def test_garbage_from_a_neighbour_is_its_mistake_with_a_trace_too(point: dict[str, Any]) -> None:
    core = Broker(BrokerName("B2"), [BrokerName("B1")], trace=True)
    with pytest.raises(ProtocolError, match="B1 forwarded an invalid publication"):
        tell(core, "B1", Pub("E", 1, point))


def test_a_publication_goes_to_each_hop_once_and_never_back() -> None:
    core = broker("B1", "B3")
    joined(core, "A1")
    for hop in ("B1", "B3"):
        tell(core, hop, op("adv", f"E{hop}", 1, ALL))
    tell(core, "@A1", op("sub", "A1", 2, ALL))
    tell(core, "@A1", op("sub", "A1", 3, X))
    tell(core, "B3", op("sub", "A3", 1, ALL))
    tell(core, "B1", op("sub", "A4", 1, ALL))
    pub = Pub("EB1", 9, {"class": "p1", "x": "x1"})
    [(hops, message)] = sent(tell(core, "B1", pub))
    assert sorted(hops) == ["@A1", "B3"]
    assert message is pub, "the host forwards the bytes that it read"


def test_a_client_gets_its_own_publication_if_it_asked_for_it() -> None:
    core = broker()
    joined(core, "A1")
    tell(core, "@A1", op("adv", "A1", 2, ALL))
    tell(core, "@A1", op("sub", "A1", 3, ALL))
    pub = Pub("A1", 4, {"class": "p1"}, life=core.life_of(Hop("@A1")))
    assert sent(tell(core, "@A1", pub)) == [(("@A1",), pub)]


def test_a_publication_without_a_life_gets_that_of_its_client() -> None:
    core = broker()
    joined(core, "A1")
    tell(core, "@A1", op("adv", "A1", 2, ALL))
    tell(core, "@A1", op("sub", "A1", 3, ALL))
    [(_, pub)] = sent(tell(core, "@A1", Pub("A1", 4, {"class": "p1"})))
    assert pub.life == core.life_of(Hop("@A1")) > 0


@pytest.mark.parametrize(
    ("point", "code"),
    [({"class": "p2"}, "not-advertised"), ({"class": float("nan")}, "filter"), ({}, "filter")],
)
def test_a_publication_outside_what_was_advertised_goes_nowhere(point: Any, code: str) -> None:
    core = broker("B1")
    joined(core, "E")
    tell(core, "@E", op("adv", "E", 2, ALL))
    [(hops, refused)] = sent(tell(core, "@E", Pub("E", 3, point)))
    assert hops == ("@E",)
    assert isinstance(refused, PubRefused)
    assert (refused.seq, refused.code) == (3, code)


# --- clients ---


def test_a_client_is_let_in_when_every_broker_has_agreed() -> None:
    core = broker("B1")
    [(hops, join)] = sent(tell(core, "@D", Join(1, "D", "")))
    assert (hops, join.client, join.edge) == (("B1",), "D", "B2")
    with pytest.raises(ProtocolError):
        tell(core, "@D", op("sub", "D", 2, ALL))
    [(hops, done)] = sent(tell(core, "B1", Done(join.req)))
    assert (hops, done) == (("@D",), Done(1, number=join.life)) and join.life > 0


def test_a_name_that_is_taken_elsewhere_is_refused() -> None:
    core = broker("B1")
    tell(core, "B1", Join(7, "D", "B1"))
    answer, close = tell(core, "@D", Join(1, "D", ""))
    assert isinstance(answer, Send) and isinstance(answer.message, Done)
    assert answer.message.code == "name-taken"
    assert isinstance(close, Close) and close.hop == "@D"


@pytest.mark.parametrize(("life", "wins"), [(-1, "B1"), (0, "B1"), (1, "B2")])
def test_of_two_joins_that_cross_the_older_wins(life: int, wins: str) -> None:
    core = broker("B1", "B3")
    tell(core, "@D", Join(1, "D", ""))
    ours = core.routing.crt[ClientName("D")].life
    # B3 lets in another D in the same life, which nobody can rule out: B2 sorts before B3.
    [(hops, done)] = sent(tell(core, "B3", Join(5, "D", "B3", ours)))
    assert (hops, done.code) == (("B3",), "name-taken")
    # B1 does too, sooner or later than ours.
    effects = tell(core, "B1", Join(6, "D", "B1", ours + life))
    assert [e.hop for e in effects if isinstance(e, Close)] == (["@D"] if wins == "B1" else [])
    assert core.routing.crt[ClientName("D")].edge == wins


def test_the_loser_of_two_joins_that_cross_leaves_no_name_behind() -> None:
    """Else the name is taken for ever where the loser's join finds that the winner has left."""
    loses = broker("B1")
    [(_, join)] = sent(tell(loses, "@D", Join(1, "D", "")))
    effects = tell(loses, "B1", Join(6, "D", "B1"))
    told = [e.message for e in effects if isinstance(e, Send) and e.hops == ("B1",)]
    assert told == [Leave(0, "D", "B2", join.life), Done(6)]
    wins = Broker(BrokerName("B1"), [BrokerName("B2")])
    tell(wins, "@D", Join(1, "D", ""))
    wins.client_left("D", 0.0)
    for message in (join, told[0]):
        tell(wins, "B2", message)
    tell(loses, "B1", Leave(0, "D", "B1"))
    assert not wins.routing.crt and not loses.routing.crt


def test_the_loser_of_two_joins_may_have_been_let_in_while_a_broker_was_lost() -> None:
    core = broker("B1")
    tell(core, "@D", Join(1, "D", ""))
    answers = [m for hops, m in sent(core.link_reset(BrokerName("B1"), 0.0)) if hops == ("@D",)]
    assert [(done.req, done.code) for done in answers] == [(1, "")]
    tell(core, "@D", op("sub", "D", 2, ALL))
    effects = tell(core, "B1", Join(0, "D", "B1"))
    assert [e.hop for e in effects if isinstance(e, Close)] == ["@D"]
    assert core.routing.crt["D"].edge == "B1"  # type: ignore[index]
    assert len(core.routing.prt) == 0
    with pytest.raises(ProtocolError):
        tell(core, "@D", op("sub", "D", 3, ALL))
    assert core.client_left("D", 0.0) == []


def test_a_client_that_leaves_takes_its_entries_with_it() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", op("adv", "E", 1, ALL))
    tell(core, "B1", Join(7, "E", "B1"))
    joined(core, "D")
    tell(core, "@D", op("sub", "D", 2, ALL))
    life = core.routing.crt[ClientName("D")].life
    told = sent(core.client_left("D", 0.0))
    assert [hops for hops, _ in told] == [("B1",), ("B3",)]
    for _, leave in told:
        assert msgspec.structs.replace(leave, req=0) == Leave(0, "D", "B2", life)
    assert len(core.routing.prt) == 0
    [(hops, leave)] = sent(tell(core, "B1", Leave(9, "E", "B1")))
    assert hops == ("B3",) and msgspec.structs.replace(leave, req=0) == Leave(0, "E", "B1")
    assert sent(tell(core, "B3", Done(leave.req))) == [(("B1",), Done(9))]
    assert all(len(space) == 0 for space in core.routing.srt.values())


# --- a neighbour's new life ---


def test_a_neighbour_that_has_begun_anew_is_told_everything_and_its_side_goes() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", Join(7, "E", "B1"))
    tell(core, "B1", op("adv", "E", 1, ALL))
    tell(core, "B3", Join(8, "A", "B3"))
    tell(core, "B3", op("adv", "A", 1, X))
    effects = sent(core.link_reset(BrokerName("B3"), 0.0))
    assert (("B1",), Leave(0, "A", "B3")) in effects
    to_b3 = [message for hops, message in effects if hops == ("B3",)]
    assert to_b3 == [Join(5, "E", "B1"), op("adv", "E", 1, ALL, req=6)]


def test_what_comes_from_where_its_client_is_not_changes_nothing() -> None:
    """Somebody of the name has come here while the link was down; B1 will hear of it."""
    core = broker("B1", "B3")
    joined(core, "D")
    tell(core, "B1", Join(0, "D", "B9", 1 << 60))
    assert sent(tell(core, "B1", op("adv", "D", 1, ALL))) == [(("B1",), Done(101))]
    tell(core, "B1", Leave(0, "D", "B9", 1 << 60))
    assert all(len(space) == 0 for space in core.routing.srt.values())
    assert core.routing.crt["D"].edge == "B2"  # type: ignore[index]


def test_nothing_is_taken_back_from_a_new_life_that_never_had_it() -> None:
    core = broker("B1")
    tell(core, "B1", Join(7, "E", "B1"))
    tell(core, "B1", op("adv", "E", 1, ALL))
    joined(core, "A1")
    tell(core, "@A1", op("sub", "A1", 2, ALL))
    effects = sent(core.link_reset(BrokerName("B1"), 0.0))
    life = core.routing.crt[ClientName("A1")].life
    to_b1 = [msgspec.structs.replace(m, req=0) for hops, m in effects if hops == ("B1",)]
    assert to_b1 == [Join(0, "A1", "B2", life)]


def test_what_a_former_life_was_asked_counts_as_done() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", Join(7, "E", "B1"))
    effects = sent(tell(core, "B1", op("adv", "E", 1, ALL)))
    assert [hops for hops, _ in effects] == [("B3",)]
    assert (("B1",), Done(101)) in sent(core.link_reset(BrokerName("B3"), 0.0))


# --- peers that break the rules ---


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@D", Pub("E", 1, {"class": "p1"})),
        ("@D", Pub("D", 1, {"class": "p1"}, b"", (("T", 0, 1),))),
        ("@D", Pub("D", 1, {"class": "p1"}, life=7)),
        ("@D", op("sub", "E", 2, X)),
        ("@D", Leave(0, "D", "B2")),
        ("@D", Join(1, "D", "")),
        ("@D", Join(1, "F", "")),
        ("@D", Done(3)),
        ("@D", Report(1, {})),
        ("@D", PubRefused(1, "", "")),
        ("@D", EngineMessage("no-such", b"\xc0")),
        ("B1", Done(99)),
        ("B9", op("sub", "E", 2, X)),
        ("B9", Join(1, "E", "B9")),
        ("B1", Join(1, "E", "B1", -1)),
        ("B1", Join(1, "E", "B1", 1 << 63)),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_peer_that_breaks_the_protocol_is_told_so(source: str, message: Any) -> None:
    core = broker("B1")
    joined(core, "D")
    with pytest.raises(ProtocolError):
        tell(core, source, message)


def test_the_edge_broker_numbers_a_clients_operations_in_their_order() -> None:
    core = broker("B1")
    tell(core, "B1", op("adv", "E", 1, Filter(x=...)))
    joined(core, "D")
    sent_on = [
        sent(tell(core, "@D", op("sub", "D", 50 - n, Filter(x=n))))[0][1].seq for n in range(3)
    ]
    assert sent_on == [1, 2, 3]


def test_an_operator_sees_the_tables() -> None:
    core = broker("B1")
    tell(core, "B1", op("adv", "E", 1, X))
    [(hops, report)] = sent(tell(core, "?1", Inspect(4, "tables")))
    assert hops == ("?1",)
    assert report.body["srt"][0]["filter"] == "[class,eq,'p1'],[x,eq,'x1']"


def test_a_name_that_is_taken_is_refused_with_the_broker_that_has_it_and_who_is_missing() -> None:
    core = broker("B1", "B3")
    tell(core, "B1", Join(0, "E", "B7"))

    def reason() -> str:
        done, closed = tell(core, "@E", Join(5, "E", ""))
        assert isinstance(done, Send) and isinstance(closed, Close)
        assert done.hops == (closed.hop,)
        assert isinstance(done.message, Done) and done.message.req == 5
        assert done.message.code == closed.code == "name-taken"
        assert done.message.reason == closed.reason
        return closed.reason

    assert reason() == "a client named 'E' is connected already at broker B7"
    core.link_down(BrokerName("B3"), 0.0)
    assert reason() == "a client named 'E' is connected already at broker B7", "not behind B3"
    core.link_down(BrokerName("B1"), 0.0)
    assert reason().startswith(
        "a client named 'E' is connected already at broker B7; unreachable: B1"
    )
