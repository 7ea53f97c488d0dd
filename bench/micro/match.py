"""`padres-tx bench match`: the matching index beside a linear scan and plain `intervaltree`.

Three workloads: `workflow`, a class and an instance that must be equal; `ranges`, three numeric
ranges, each 2 % of its attribute wide at 10,000 subscriptions and narrower with the cube root of
more, so that the number of matches stays; `mixed`, the same with 5 % of the subscriptions leaving
the first attribute open.

Plain `intervaltree` means one tree for each attribute; each is searched for the publication's
value, and the results are intersected. An open attribute is an interval from minus to plus
infinity. Equal intervals share one node, without which the library takes quadratic time to build
(they all have one hash).

All three match the same publications in turn, so that a slow moment of the machine affects all of
them, and the best of several passes counts. The two yardsticks get fewer publications where they
are slow. Before the measurement all three are checked to find the same. With the default sizes most
of the run time goes into building interval trees of 100,000 intervals each.
"""

from __future__ import annotations

import gc
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
from intervaltree import Interval as TreeInterval
from intervaltree import IntervalTree
from rich import box
from rich.console import Console
from rich.table import Table

from bench.micro.progress import steps_shown
from overlay.filters import Filter, Value
from overlay.matching.index import Index
from overlay.messages import Hop, Version

Point = Mapping[str, Value]
MatchWorkload = tuple[list[Filter], Iterator[Point]]

#: Enough for a broker's neighbours and clients; matching does not depend on it.
HOPS: Final = tuple(Hop(f"B{number}") for number in range(8))
#: Publications on which the three are compared; a linear scan of 100,000 takes 0.1 s for each.
CHECKED: Final = 20
#: The best pass counts, since other programs share the machine.
PASSES: Final = 5
#: Where the index runs without the yardsticks: these passes are short.
ALONE_PASSES: Final = 50
#: The time limit of a yardstick's pass, so that the whole run stays below two minutes.
PASS_S: Final = 0.3
#: Removing a part measures the cost as well as removing all.
REMOVED: Final = 10_000


@dataclass(eq=False, slots=True)
class Subscription:
    """An entry of the index."""

    filter: Filter
    hop: Hop
    added_by: Version | None = None
    removed_by: tuple[Version, ...] = ()


@dataclass(frozen=True)
class MatchRow:
    """The output of `--json` for a workload and a size."""

    workload: str
    subscriptions: int
    us_per_publication: float
    linear_scan_us: float
    intervaltree_us: float
    insert_us: float = 0.0
    remove_us: float = 0.0


@dataclass(frozen=True)
class Measured:
    """A row, and the values that only the table shows."""

    row: MatchRow
    matches: float
    hops_us: float


# --- workloads ------------------------------------------------------------------------------

#: Classes of the workflow; each instance number exists in all of them.
CLASSES: Final = 100
ATTRIBUTES: Final = ("x", "y", "z")


def workflow(count: int, choose: random.Random) -> MatchWorkload:
    pairs = [(f"p{number % CLASSES}", f"x{number // CLASSES}") for number in range(count)]
    choose.shuffle(pairs)

    def points() -> Iterator[Point]:
        while True:
            class_, instance = choose.choice(pairs)
            yield {"class": class_, "instance": instance, "step": choose.randrange(10)}

    return [Filter(class_=class_, instance=instance) for class_, instance in pairs], points()


def ranges(count: int, choose: random.Random, open_part: float = 0.0) -> MatchWorkload:
    width = min(1.0, 0.02 * (10_000 / count) ** (1 / 3))

    def box() -> Filter:
        first = 1 if choose.random() < open_part else 0
        corner = {name: choose.uniform(0, 1 - width) for name in ATTRIBUTES[first:]}
        return Filter({name: (lo, lo + width) for name, lo in corner.items()})

    def points() -> Iterator[Point]:
        while True:
            yield {name: choose.random() for name in ATTRIBUTES}

    return [box() for _ in range(count)], points()


def mixed(count: int, choose: random.Random) -> MatchWorkload:
    return ranges(count, choose, open_part=0.05)


#: Each makes a number of filters, and an endless stream of publications.
WORKLOADS: Final[Mapping[str, Callable[[int, random.Random], MatchWorkload]]] = {
    "workflow": workflow,
    "ranges": ranges,
    "mixed": mixed,
}


# --- the yardsticks -------------------------------------------------------------------------


class LinearScan:
    """Every filter, one after the other."""

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self._subscriptions = subscriptions

    def matching(self, point: Point) -> list[Subscription]:
        return [each for each in self._subscriptions if each.filter.matches(point)]


class PlainTrees:
    """One interval tree for each attribute; their results are intersected."""

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self._subscriptions = subscriptions
        names = sorted({name for each in subscriptions for name in each.filter.predicates})
        self._trees = {name: self._tree(name) for name in names}

    def _tree(self, name: str) -> Any:
        numbers: dict[tuple[Any, Any], list[int]] = {}
        for number, each in enumerate(self._subscriptions):
            numbers.setdefault(_half_open(each.filter, name), []).append(number)
        return IntervalTree(
            TreeInterval(begin, end, tuple(found)) for (begin, end), found in numbers.items()
        )

    def matching(self, point: Point) -> list[Subscription]:
        answers = [
            {number for interval in tree[point[name]] for number in interval.data}
            for name, tree in self._trees.items()
        ]
        return [self._subscriptions[number] for number in sorted(set.intersection(*answers))]


def _half_open(filter: Filter, name: str) -> tuple[Any, Any]:
    """The attribute's interval as the library requires it, without its upper end.

    The workloads have closed intervals only, of which the next value after the upper end is
    that end: for a string, the one with a zero character more.
    """
    interval = filter.predicates.get(name)
    if interval is None:
        return -math.inf, math.inf
    lo: Any = interval.lo
    hi: Any = interval.hi
    return lo, hi + "\0" if isinstance(hi, str) else math.nextafter(hi, math.inf)


Matcher = Callable[[Point], list[Subscription]]


# --- measuring ------------------------------------------------------------------------------


class Disagreement(click.ClickException):
    """The three matchers do not find the same, which is a bug; no times are printed."""

    exit_code = 1


def drawn(
    workload: str, count: int, publications: int, seed: int
) -> tuple[list[Subscription], list[Point], list[Subscription]]:
    """Subscriptions, publications for them, and the subscriptions that are removed at the end."""
    choose = random.Random(f"{seed} {workload} {count}")
    filters, source = WORKLOADS[workload](count, choose)
    points = [next(source) for _ in range(publications)]
    subscriptions = [Subscription(filter, choose.choice(HOPS)) for filter in filters]
    return subscriptions, points, choose.sample(subscriptions, min(count, REMOVED))


def measure(workload: str, *, count: int, publications: int, seed: int) -> Measured:
    """Measure one workload at one size.

    Raises Disagreement if the index does not find what the yardsticks find.
    """
    subscriptions, points, leaving = drawn(workload, count, publications, seed)
    index: Index[Subscription] = Index()
    insert_us = _us_of_each(index.insert, subscriptions)
    scan, trees = LinearScan(subscriptions), PlainTrees(subscriptions)
    require_agreement([index.matching, scan.matching, trees.matching], points[:CHECKED])
    index_us, hops_us, scan_us, trees_us = _us_in_turn(
        [index.matching, index.hops, scan.matching, trees.matching], points
    )
    matches = sum(len(index.matching(point)) for point in points) / len(points)
    remove_us = _us_of_each(index.remove, leaving)
    return Measured(
        MatchRow(
            workload,
            count,
            round(index_us, 3),
            round(scan_us, 3),
            round(trees_us, 3),
            round(insert_us, 3),
            round(remove_us, 3),
        ),
        matches,
        hops_us,
    )


@dataclass(frozen=True)
class IndexTimes:
    """The times of the index, in microseconds."""

    match_us: float
    insert_us: float
    remove_us: float


def index_alone(
    workload: str, *, counts: Sequence[int], publications: int, seed: int
) -> list[IndexTimes]:
    """Measure one workload at some sizes without the yardsticks, which take long to build.

    The sizes take turns, since other programs share the machine; the best pass of each counts.
    """
    indexes: list[Index[Subscription]] = []
    asked: list[list[Point]] = []
    gone: list[list[Subscription]] = []
    inserted_us: list[float] = []
    for count in counts:
        subscriptions, points, leaving = drawn(workload, count, publications, seed)
        index: Index[Subscription] = Index()
        inserted_us.append(_us_of_each(index.insert, subscriptions))
        indexes.append(index)
        asked.append(points)
        gone.append(leaving)
    gc.collect()
    passes = [
        [_us_of_each(i.matching, points) for i, points in zip(indexes, asked, strict=True)]
        for _ in range(ALONE_PASSES)
    ]
    matched_us = [min(times) for times in zip(*passes, strict=True)]
    removed_us = [_us_of_each(i.remove, leaving) for i, leaving in zip(indexes, gone, strict=True)]
    return [IndexTimes(*us) for us in zip(matched_us, inserted_us, removed_us, strict=True)]


def require_agreement(matchers: Sequence[Matcher], points: Sequence[Point]) -> None:
    """Raise Disagreement unless all matchers find the same subscriptions, in the same order."""
    for point in points:
        first, *others = ([id(each) for each in matcher(point)] for matcher in matchers)
        if any(found != first for found in others):
            raise Disagreement(f"index and yardsticks do not find the same at {point}")


def _us_in_turn(matchers: list[Callable[[Point], Any]], points: list[Point]) -> list[float]:
    """Microseconds per publication of each matcher, the best of several passes over all of them."""
    gc.collect()
    shares = [points[: _affordable(matcher, points)] for matcher in matchers]
    passes = [
        [_us_of_each(matcher, share) for matcher, share in zip(matchers, shares, strict=True)]
        for _ in range(PASSES)
    ]
    return [min(times) for times in zip(*passes, strict=True)]


def _affordable(matcher: Callable[[Point], Any], points: list[Point]) -> int:
    """How many of the points a pass has time for, at least one."""
    return max(1, int(PASS_S * 1e6 / _us_of_each(matcher, points[:3])))


def _us_of_each(act: Callable[[Any], Any], things: list[Any]) -> float:
    # CPU time: nothing here waits, and other programs share the machine.
    start_ns = time.process_time_ns()
    for thing in things:
        act(thing)
    return max(time.process_time_ns() - start_ns, 1) / 1000 / len(things)


# --- goals ----------------------------------------------------------------------------------

#: Relative to plain intervaltree, on ranges at 10,000.
MAX_OF_INTERVALTREE: Final = 0.1
#: Growth with ten times the subscriptions, on ranges.
MAX_GROWTH: Final = 3.0
#: The same on workflow, which should be flat: the search takes the same steps at every size, and
#: only the cold memory of a larger table remains.
MAX_GROWTH_FLAT: Final = 1.5


#: Of insertion and of removal, at any size.
MAX_CHANGE_US: Final = 50.0

LIMITS: Final = {"ranges": MAX_GROWTH, "workflow": MAX_GROWTH_FLAT}


def goals(rows: list[MatchRow]) -> list[tuple[str, float, float]]:
    """The goals that apply to these sizes: name, ratio and limit."""
    times = {(row.workload, row.subscriptions): row for row in rows}
    found = []
    if row := times.get(("ranges", 10_000)):
        ratio = row.us_per_publication / row.intervaltree_us
        found.append(("ranges at 10,000 / intervaltree", ratio, MAX_OF_INTERVALTREE))
    for (workload, count), row in times.items():
        less = times.get((workload, count // 10))
        if workload in LIMITS and count % 10 == 0 and less is not None:
            ratio = row.us_per_publication / less.us_per_publication
            found.append((f"{workload} at {count:,} / {count // 10:,}", ratio, LIMITS[workload]))
    return found


# --- the command ----------------------------------------------------------------------------


class Sizes(click.ParamType[list[int]]):
    """A list of numbers, separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            sizes = [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"invalid sizes {value!r}: expected numbers such as 1000,10000", param, ctx)
        if min(sizes) < 1:
            self.fail(f"invalid size {min(sizes)}: expected at least 1", param, ctx)
        return sorted(set(sizes))


@click.command(
    epilog="""
\b
Examples:
  padres-tx bench match
  padres-tx bench match --sizes 1000,10000 --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
@click.option(
    "--sizes",
    type=Sizes(),
    default="1000,10000,100000",
    show_default=True,
    help="Numbers of subscriptions, separated by commas.",
)
@click.option(
    "--publications",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Publications to match; fewer by the yardsticks where they are slow.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random workloads.")
def match(*, as_json: bool, sizes: list[int], publications: int, seed: int) -> None:
    """Microseconds to match a publication against many subscriptions.

    The index beside a linear scan and plain intervaltree, on three workloads. Exits with code 1 if
    they do not find the same; the goals are only reported, since times depend on the machine.
    """
    measured: list[Measured] = []
    with steps_shown(len(WORKLOADS) * len(sizes)) as progress:
        for workload in WORKLOADS:
            for count in sizes:
                progress(f"{workload}, {count:,} subscriptions")
                measured.append(
                    measure(workload, count=count, publications=publications, seed=seed)
                )
    rows = [each.row for each in measured]
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    console = Console()
    console.print(table(measured))
    changes_us = max(max(row.insert_us, row.remove_us) for row in rows)
    console.print(
        f"insertion and removal: at most {changes_us:.1f} µs, goal at most {MAX_CHANGE_US:g}",
        highlight=False,
    )
    judged = goals(rows)
    for name, ratio, limit in judged:
        verdict = "holds" if ratio <= limit else "does not hold"
        console.print(f"{name}: {ratio:.2g}, goal at most {limit:g}: {verdict}", highlight=False)
    if not judged:
        verdict = "No goal applies to these sizes."
    elif all(ratio <= limit for _, ratio, limit in judged):
        verdict = "All goals hold."
    else:
        verdict = "Not all goals hold."
    console.print(verdict)


def table(measured: list[Measured]) -> Table:
    """Times in microseconds, for a terminal of 80 columns."""
    shown = Table(
        title="µs per publication, and to insert or remove a subscription",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("workload")
    for heading in ("subs", "matches", "index", "hops", "linear\nscan", "interval-\ntree"):
        shown.add_column(heading, justify="right")
    for heading in ("insert", "remove"):
        shown.add_column(heading, justify="right")
    for each in measured:
        row = each.row
        shown.add_row(
            row.workload,
            f"{row.subscriptions:,}",
            f"{each.matches:.2f}",
            f"{row.us_per_publication:,.1f}",
            f"{each.hops_us:,.1f}",
            f"{row.linear_scan_us:,.0f}",
            f"{row.intervaltree_us:,.0f}",
            f"{row.insert_us:,.1f}",
            f"{row.remove_us:,.1f}",
        )
    return shown
