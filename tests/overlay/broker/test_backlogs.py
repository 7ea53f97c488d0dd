"""Links on which too much waits: which publications are refused then, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.broker import backlogs as backlogs_module
from overlay.broker.core import Broker
from overlay.broker.publications import RUN_BESIDE_REFUSED
from overlay.effects import Forward
from overlay.errors import BrokerAway, ProtocolError
from overlay.filters import Filter, present
from overlay.messages import Backlog, BrokerName, Hop, Join, Pub, PubRefused
from overlay.snapshots import freeze, thaw
from tests.overlay.broker.test_core import broker, joined, op, sent, tell

B1, B3 = BrokerName("B1"), BrokerName("B3")


def publisher(*neighbours: str) -> Broker:
    """B2 with a publisher D, whose publications of class b3 client f at B3 wants, those of class b4
    client g at B4 behind B3, and those of class b1 client e at B1; h at B1 wants all."""
    core = broker(*neighbours)
    for hop, client, edge in (
        *(("B1", "e", "B1"), ("B3", "f", "B3"), ("B3", "g", "B4"), ("B1", "h", "B1")),
    ):
        tell(core, hop, Join(0, client, edge))
    joined(core, "D")
    tell(core, "@D", op("adv", "D", 2, Filter(to=present())))
    tell(core, "B1", op("sub", "e", 1, Filter(to="b1")))
    tell(core, "B3", op("sub", "f", 1, Filter(to="b3")))
    tell(core, "B3", op("sub", "g", 1, Filter(to="b4")))
    tell(core, "B1", op("sub", "h", 1, Filter(to="all")))
    tell(core, "B3", op("sub", "f", 2, Filter(to="all")))
    return core


def taken(core: Broker, *wanted: str) -> tuple[list[int], dict[int, PubRefused]]:
    """Which of D's publications, numbered from 0, went on when all came at once; and the others."""
    life = core.life_of(Hop("@D"))
    pubs = [Pub("D", n, {"to": to}, life=life) for n, to in enumerate(wanted)]
    on: list[int] = []
    refused: dict[int, PubRefused] = {}
    at = 0
    while at < len(pubs):
        consumed, effects, _ = core.take(Hop("@D"), pubs, 0.0, at)
        for effect in effects:
            if isinstance(effect, Forward):
                on += range(effect.start, effect.start + effect.count)
            else:
                [(hops, message)] = sent([effect])
                assert hops == ("@D",)
                refused[message.seq] = message
        at += consumed
    return on, refused


def test_only_publications_that_cannot_be_delivered_are_refused() -> None:
    core = publisher("B1", "B3")
    assert taken(core, "b1", "b3", "b4", "all", "b1") == ([0, 1, 2, 3, 4], {})
    core.link_full(B3, 7, 700, 0.0)
    on, refused = taken(core, "b1", "b3", "b1", "b4", "all", "nobody", "b1")
    assert on == [0, 2, 6]
    assert set(refused) == {1, 3, 4}
    assert {one.code for one in refused.values()} == {BrokerAway.code}
    assert refused[1].reason == (
        "7 messages (700 bytes) wait at broker B2 for B3, which is away or catching up: nothing "
        "more can be published for clients of B3 until it has received half of them"
    )
    assert "for clients of B4 until" in refused[3].reason
    core.link_has_room(B3, 0.0)
    assert taken(core, "b1", "b3", "b4", "all", "b1") == ([0, 1, 2, 3, 4], {})


def test_a_single_publication_and_one_without_its_life_are_refused_as_well() -> None:
    core = publisher("B1", "B3")
    core.link_full(B3, 7, 700, 0.0)
    [(hops, message)] = sent(tell(core, "@D", Pub("D", 1, {"to": "b3"})))
    assert (hops, message.code) == (("@D",), BrokerAway.code)
    [(hops, message)] = sent(tell(core, "@D", Pub("D", 2, {"to": "b1"})))
    assert (hops, message.seq) == (("B1",), 2)


def test_publications_under_way_and_operations_still_wait_for_the_neighbour() -> None:
    core = publisher("B1", "B3")
    core.link_full(B3, 7, 700, 0.0)
    pub = Pub("e", 1, {"to": "b3"}, life=5)
    assert sent(tell(core, "B1", pub)) == [(("B3",), pub)]
    [(hops, _), *_] = sent(tell(core, "B1", op("adv", "e", 9, Filter(x=1))))
    assert hops == ("B3",)


def test_the_brokers_in_reach_are_told_with_the_edge_brokers_behind_the_link() -> None:
    core = publisher("B1", "B3", "B5")
    full = Backlog("B2", "B3", True, ("B3", "B4"), 7, 700)
    assert sent(core.link_full(B3, 7, 700, 0.0)) == [(("B1", "B5"), full)]
    assert core.backlogs.is_full(Hop("B3"))
    assert not core.backlogs.is_full(Hop("B1"))
    assert sent(core.link_has_room(B3, 0.0)) == [(("B1", "B5"), Backlog("B2", "B3", False))]
    assert core.link_has_room(B3, 0.0) == []


def test_a_client_that_joins_at_another_edge_behind_a_full_link_is_reported() -> None:
    core = publisher("B1", "B3")
    core.link_full(B3, 7, 700, 0.0)
    [(hops, report), *_] = sent(tell(core, "B3", Join(5, "n", "B9")))
    assert (hops, report) == (("B1",), Backlog("B2", "B3", True, ("B3", "B4", "B9"), 7, 700))
    others = [m for _, m in sent(tell(core, "B3", Join(6, "m", "B9")))]
    assert not any(isinstance(message, Backlog) for message in others)
    others = [m for _, m in sent(tell(core, "B1", Join(7, "o", "B0")))]
    assert not any(isinstance(message, Backlog) for message in others)


def test_a_report_is_passed_on_and_counts_for_the_edges_that_it_names() -> None:
    core = publisher("B1", "B3", "B5")
    report = Backlog("B3", "B4", True, ("B4",), 7, 700)
    assert sent(tell(core, "B3", report)) == [(("B1", "B5"), report)]
    on, refused = taken(core, "b3", "b4", "b1")
    assert on == [0, 2]
    assert "wait at broker B3 for B4" in refused[1].reason
    over = Backlog("B3", "B4", False)
    assert sent(tell(core, "B3", over)) == [(("B1", "B5"), over)]
    assert tell(core, "B3", over) == []
    assert taken(core, "b3", "b4", "b1")[0] == [0, 1, 2]


def test_a_link_that_is_reset_is_not_full_and_what_came_over_it_is_void() -> None:
    core = publisher("B1", "B3")
    core.link_full(B3, 7, 700, 0.0)
    tell(core, "B3", Backlog("B3", "B4", True, ("B4",), 8, 800))
    told = sent(core.link_reset(B3, 0.0))
    assert (("B1",), Backlog("B2", "B3", False)) in told
    assert (("B1",), Backlog("B3", "B4", False)) in told
    assert not core.backlogs


def test_a_neighbour_that_begins_anew_is_told_of_full_links_elsewhere() -> None:
    core = publisher("B1", "B3", "B5")
    core.link_full(B3, 7, 700, 0.0)
    tell(core, "B1", Backlog("B1", "B0", True, ("B0",), 8, 800))
    told = [(hops, m) for hops, m in sent(core.link_reset(B1, 0.0)) if isinstance(m, Backlog)]
    assert told == [
        (("B3", "B5"), Backlog("B1", "B0", False)),
        (("B1",), Backlog("B2", "B3", True, ("B3", "B4"), 7, 700)),
    ]
    told = [(hops, m) for hops, m in sent(core.link_reset(B3, 0.0)) if isinstance(m, Backlog)]
    assert told == [(("B1", "B5"), Backlog("B2", "B3", False))], "it is not told of itself"


def test_full_links_are_in_snapshots() -> None:
    core, other = publisher("B1", "B3"), broker("B1", "B3")
    core.link_full(B3, 7, 700, 0.0)
    thaw(other, freeze(core))
    assert other.backlogs.is_full(Hop("B3"))
    assert taken(other, "b1", "b3", "b4")[0] == [0]
    assert freeze(other) == freeze(core)


@pytest.mark.parametrize(
    "source, report",
    [
        ("@D", Backlog("B7", "B8", True)),
        ("?1", Backlog("B7", "B8", True)),
        ("B3", Backlog("B2", "B3", True)),
        ("B3", Backlog("B3", "B2", True)),
        ("B3", Backlog("B3", "no name", True)),
        ("B3", Backlog("B3", "B4", True, ("B1",))),
        ("B3", Backlog("B3", "B4", True, ("B2",))),
        ("B3", Backlog("B3", "B4", True, ("B4", "B5", "B6", "B7"))),
        ("B3", Backlog("B0", "B9", True)),
        ("B1", Backlog("B7", "B8", True)),
    ],
)
def test_who_reports_what_it_cannot_know_loses_its_link(
    source: str, report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs_module, "BACKLOG_LIMIT", 3)
    core = publisher("B1", "B3")
    tell(core, "B1", Backlog("B0", "B9", True))
    for broken in ("B5", "B6"):
        tell(core, "B1", Backlog("B1", broken, True))
    with pytest.raises(ProtocolError):
        tell(core, source, report)


def test_runs_are_short_while_a_link_is_full_since_each_is_looked_at_again() -> None:
    core = publisher("B1", "B3")
    life = core.life_of(Hop("@D"))
    pubs = [Pub("D", n, {"to": "b1"}, life=life) for n in range(100)]
    assert core.take(Hop("@D"), pubs, 0.0).consumed == 100
    core.link_full(B3, 7, 700, 0.0)
    assert core.take(Hop("@D"), pubs, 0.0).consumed == RUN_BESIDE_REFUSED
    on, refused = taken(core, *["b1", "b1", "b3"] * 100)
    assert on == [n for n in range(300) if n % 3 != 2]
    assert list(refused) == list(range(2, 300, 3))
