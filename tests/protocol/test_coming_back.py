"""A client that leaves and comes back while a transaction keeps its leaving waiting at a broker."""

from __future__ import annotations

import pytest

from overlay.messages import ClientName, Done, Join, Leave
from padres_tx.client_messages import TxID
from padres_tx.protocol.dynamic_messages import Vote
from tests.protocol.one_broker import OneBroker, Said
from tests.protocol.steps import box, pub

P = box(class_="p")
C = ClientName("C")


def left() -> tuple[OneBroker, TxID]:
    """C, behind B3, has left; E's transaction, which has read what C wants, is prepared here."""
    one = OneBroker("d-tx")
    one.here("E")
    one.holds("E", "adv", P)
    one.behind("B3", "C")
    one.knows("B3", "C", "sub", P)
    tx, _ = one.begun("E", pub("E", class_="p"), commit=True)
    assert one.send("B3", Leave(6, "C", "B3")) == []
    return one, tx


def about_c(said: list[Said]) -> list[Leave | Join]:
    """What B1 is told about C, in order."""
    told = [one.message for one in said if one.to == "B1"]
    return [message for message in told if isinstance(message, Leave | Join)]


@pytest.mark.parametrize("edge", ["B3", "B0", "B4"])
def test_it_is_let_in_when_its_leaving_is_done(edge: str) -> None:
    one, tx = left()
    assert one.send("B3", Join(7, "C", edge)) == [], "refused, it would be told that it is here"
    leave, join = about_c(one.hear("B3", Vote(tx, "conflict", "")))
    assert isinstance(leave, Leave) and (leave.client, leave.edge) == ("C", "B3")
    assert isinstance(join, Join) and join.edge == edge
    assert one.send("B1", Done(leave.req)) == [Said("B3", Done(6))]
    assert one.send("B1", Done(join.req)) == [Said("B3", Done(7))]
    assert one.broker.routing.crt[C].edge == edge
    assert not one.broker.routing.prt.of("C"), "what it held before is gone"


@pytest.mark.parametrize("edge", ["B3", "B0", "B4"])
def test_it_may_leave_again_before(edge: str) -> None:
    one, tx = left()
    one.send("B3", Join(7, "C", edge))
    one.send("B3", Leave(0, "C", edge))
    said = about_c(one.hear("B3", Vote(tx, "conflict", "")))
    assert [type(message) for message in said] == [Leave, Join, Leave]
    assert C not in one.broker.routing.crt
