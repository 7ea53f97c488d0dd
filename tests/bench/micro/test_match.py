"""`bench match`: its output, that its three matchers agree, and that it notices a disagreement."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner, Result

from bench.micro.cli import bench
from bench.micro.match import (
    WORKLOADS,
    Disagreement,
    LinearScan,
    MatchRow,
    PlainTrees,
    Point,
    Subscription,
    goals,
    require_agreement,
)
from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.messages import Hop


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, ["match", "--publications", "5", *arguments])


def test_json_is_a_list_of_rows() -> None:
    result = run("--json", "--sizes", "1,30")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [(row["workload"], row["subscriptions"]) for row in rows] == [
        (workload, count) for workload in ("workflow", "ranges", "mixed") for count in (1, 30)
    ]
    for row in rows:
        assert list(row) == [
            "workload",
            "subscriptions",
            "us_per_publication",
            "linear_scan_us",
            "intervaltree_us",
            "insert_us",
            "remove_us",
        ]
        assert all(row[key] > 0 for key in list(row)[2:])


def test_people_get_a_table_and_a_verdict() -> None:
    result = run("--sizes", "2,20")
    assert result.exit_code == 0, result.output
    assert "workflow" in result.stdout
    assert "goals" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("sizes", ["", "10,", "ten", "0", "10,-1"])
def test_bad_sizes_are_refused(sizes: str) -> None:
    result = run("--sizes", sizes)
    assert result.exit_code == 2
    assert "--sizes" in result.stderr


@pytest.mark.parametrize("workload", WORKLOADS)
def test_all_ways_find_the_same(workload: str) -> None:
    filters, points = WORKLOADS[workload](300, random.Random(1))
    subscriptions = [Subscription(filter, Hop("B1")) for filter in filters]
    index: Index[Subscription] = Index()
    for subscription in subscriptions:
        index.insert(subscription)
    matchers = [
        index.matching,
        LinearScan(subscriptions).matching,
        PlainTrees(subscriptions).matching,
    ]
    some = [next(points) for _ in range(200)]
    require_agreement(matchers, some)
    assert any(index.matching(point) for point in some)


def test_the_workloads_are_what_they_are_called() -> None:
    choose = random.Random(1)
    assert {tuple(f.predicates) for f in WORKLOADS["workflow"](200, choose)[0]} == {
        ("class", "instance")
    }
    for filter in WORKLOADS["ranges"](10_000, choose)[0][:100]:
        assert list(filter.predicates) == ["x", "y", "z"]
        for interval in filter.predicates.values():
            assert isinstance(interval.lo, float) and isinstance(interval.hi, float)
            assert interval.hi - interval.lo == pytest.approx(0.02)
    open_ones = [f for f in WORKLOADS["mixed"](10_000, choose)[0] if "x" not in f.predicates]
    assert 400 < len(open_ones) < 600


class Forgetful(LinearScan):
    """The planted fault."""

    def matching(self, point: Point) -> list[Subscription]:
        return super().matching(point)[1:]


def test_a_way_that_finds_less_is_noticed() -> None:
    subscriptions = [Subscription(Filter(x=1), Hop("B1")), Subscription(Filter(x=2), Hop("B1"))]
    scan, forgetful = LinearScan(subscriptions), Forgetful(subscriptions)
    require_agreement([scan.matching, scan.matching], [{"x": 1}, {"x": 2}])
    require_agreement([scan.matching, forgetful.matching], [{"x": 3}])
    with pytest.raises(Disagreement, match="'x': 2"):
        require_agreement([scan.matching, scan.matching, forgetful.matching], [{"x": 3}, {"x": 2}])


def test_goals_are_ratios_within_one_run() -> None:
    rows = [
        MatchRow("workflow", 1_000, 2.0, 1.0, 1.0),
        MatchRow("workflow", 10_000, 3.0, 1.0, 1.0),
        MatchRow("ranges", 1_000, 5.0, 1.0, 1.0),
        MatchRow("ranges", 10_000, 10.0, 1.0, 200.0),
    ]
    assert [(name, ratio) for name, ratio, _ in goals(rows)] == [
        ("ranges at 10,000 / intervaltree", 0.05),
        ("workflow at 10,000 / 1,000", 1.5),
        ("ranges at 10,000 / 1,000", 2.0),
    ]
    assert goals([]) == []
