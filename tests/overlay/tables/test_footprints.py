"""What a plain operation has read, and the conflicts that follow."""

from __future__ import annotations

from overlay.filters import Filter
from overlay.messages import BrokerName, ClientName, Hop, Operation
from overlay.tables.footprints import NEAR_LIMIT, Footprint, of_plain
from overlay.tables.routing import Home, Routing

B2, B3 = Hop("B2"), Hop("B3")
X = Filter({"class": "p", "x": 1})
FAR = Filter({"class": "far"})


def plain_advertisement(subscriptions: int) -> Footprint:
    """That of an advertisement of p near so many subscriptions to p."""
    routing = Routing(BrokerName("B1"), [BrokerName("B2"), BrokerName("B3")])
    for client, hop in {"S": B2, "P": B3}.items():
        routing.crt[ClientName(client)] = Home(BrokerName(hop), hop)
    routing.apply(B3, Operation(0, "adv", "P", 1, Filter({"class": "p"})))
    for number in range(subscriptions):
        filter = Filter({"class": "p", "x": number})
        routing.apply(B2, Operation(0, "sub", "S", number + 1, filter))
    return of_plain(routing, B3, Operation(0, "adv", "P", 2, Filter({"class": "p"})), None)


def advertised(filter: Filter) -> Footprint:
    wrote = Footprint()
    wrote.writes_adv("C", filter)
    return wrote


def subscribed(filter: Filter) -> Footprint:
    wrote = Footprint()
    wrote.writes_sub("C", filter)
    return wrote


def test_an_advertisement_reads_what_is_advertised_near_each_subscription() -> None:
    few = plain_advertisement(NEAR_LIMIT // 4)
    assert few.reads_what(advertised(X)) == X
    assert few.reads_what(advertised(FAR)) is None
    assert few.reads_what(subscribed(X)) == X
    assert few.reads_what(subscribed(FAR)) is None


def test_near_very_many_subscriptions_it_counts_as_having_read_all_that_is_advertised() -> None:
    many = plain_advertisement(2 * NEAR_LIMIT)
    assert many.reads_what(advertised(X)) == X
    assert many.reads_what(advertised(Filter({"class": "p", "x": NEAR_LIMIT}))) is not None
    assert many.reads_what(advertised(FAR)) == FAR
    assert many.reads_what(subscribed(X)) == X
    assert many.reads_what(subscribed(FAR)) is None
    assert len(many.srt) <= NEAR_LIMIT
