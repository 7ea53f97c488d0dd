"""Which brokers cannot be reached, as one broker knows it, and who has to be told of it."""

from __future__ import annotations

from overlay.broker.reach import Missing, Reach
from overlay.messages import BrokerName, Hop, Reachability


def test_a_neighbour_is_told_what_is_missing_but_not_what_it_has_reported_itself() -> None:
    reach = Reach(BrokerName("B2"))
    reach.take(Hop("B1"), Reachability("B1", "B0", up=False))
    reach.take(Hop("B3"), Reachability("B3", "B4", up=False))
    reach.lose(Hop("B5"))
    from_b1 = Reachability("B1", "B0", up=False)
    from_b3 = Reachability("B3", "B4", up=False)
    lost = Reachability("B2", "B5", up=False)
    assert reach.reports(Hop("B1")) == [from_b3, lost]
    assert reach.reports(Hop("B3")) == [from_b1, lost]
    assert reach.reports(Hop("B6")) == [from_b1, from_b3, lost]


def test_behind_a_neighbour_that_is_lost_only_that_counts() -> None:
    reach = Reach(BrokerName("B2"))
    reach.take(Hop("B1"), Reachability("B1", "B0", up=False))
    assert reach.behind(Hop("B1")) == [Missing(BrokerName("B0"), BrokerName("B1"))]
    assert reach.behind(Hop("B3")) == []
    reach.lose(Hop("B1"))
    assert reach.behind(Hop("B1")) == [Missing(BrokerName("B1"), BrokerName("B2"))]
    assert reach.is_absent(Hop("B1")) and not reach.is_absent(Hop("B0"))
    assert reach.find(Hop("B1")) == Reachability("B2", "B1", up=True)
    assert reach.find(Hop("B1")) is None
    assert reach.behind(Hop("B1")) == [Missing(BrokerName("B0"), BrokerName("B1"))]
