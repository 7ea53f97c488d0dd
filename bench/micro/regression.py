"""`padres-tx bench all`: every benchmark in one run, compared with the committed figures.

A figure is a ratio within one run, or a count, so that another machine or a slow day changes it
little; its value in microseconds or megabytes is shown beside it. Each has a margin for noise; a
figure that is worse than the committed one by more than that is reported. `--save` commits this
run's figures (`figures.json`, beside this module) and writes the table into the README, between two
marks.

Sizes are chosen so that all benchmarks together take a few minutes.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.errors import FiguresError
from bench.micro import chain, clients, hop, match, path, recover, start
from bench.micro.progress import steps_shown
from padres_tx.cli.common import CheckFailed, WrongInput
from topologies import load

COMMITTED: Final = Path(__file__).with_name("figures.json")
README: Final = Path(__file__).parents[2] / "README.md"
BEGIN: Final = "<!-- benchmarks: written by `padres-tx bench all --save` -->"
END: Final = "<!-- end of benchmarks -->"

#: More than the difference between two runs on a quiet machine.
NOISE: Final = 0.2
#: For figures that depend on the kernel's scheduling.
MORE_NOISE: Final = 0.35


class Figure(msgspec.Struct, frozen=True):
    """One line of the table. `value` is a ratio or a count; `seen` the value on this machine."""

    name: str
    value: float
    seen: str
    #: The largest value wanted, or the least if `more_is_better`; None if there is no goal.
    goal: float | None = None
    more_is_better: bool = False
    noise: float = NOISE

    @property
    def holds(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal

    def worse_than(self, other: float) -> bool:
        """Whether it is worse by more than noise."""
        if self.more_is_better:
            return self.value < other * (1 - self.noise)
        return self.value > other * (1 + self.noise)


class BenchmarkReport(msgspec.Struct, frozen=True):
    """A run: the machine, how long it took, and its figures."""

    machine: str
    took_s: float
    figures: list[Figure]


# --- the benchmarks -------------------------------------------------------------------------


def hops() -> Iterator[Figure]:
    row = hop.measure(publications=20_000)
    yield Figure("broker hop / bare relay", row.ratio, f"{row.broker_us:.1f} µs", hop.MAX_RATIO)
    yield Figure(
        "publisher's edge / bare relay", row.edge_ratio, f"{row.edge_us:.1f} µs", hop.MAX_EDGE_RATIO
    )
    yield Figure(
        "broker hop on disk / bare relay", row.disk_ratio, f"{row.disk_us:.1f} µs", hop.MAX_RATIO
    )
    yield Figure(
        "publisher's edge on disk / bare relay",
        row.disk_edge_ratio,
        f"{row.disk_edge_us:.1f} µs",
        hop.MAX_EDGE_RATIO,
    )


def chains() -> Iterator[Figure]:
    bare = chain.measure(brokers=3, publications=30_000, latency_rounds=1)
    yield Figure(
        "3 brokers / 3 relays, throughput",
        round(bare.publications_per_s / bare.relay_publications_per_s, 3),
        f"{bare.publications_per_s:,}/s",
        more_is_better=True,
        noise=MORE_NOISE,
    )
    yield Figure(
        "3 brokers on disk / in memory, throughput",
        bare.disk_share,
        f"{bare.disk_publications_per_s:,}/s",
        chain.MIN_DISK_SHARE,
        more_is_better=True,
        noise=MORE_NOISE,
    )
    for matching in (False, True):
        row = chain.measure(
            brokers=3,
            publications=30_000,
            subscriptions=1000,
            matching=matching,
            latency_rounds=1,
        )
        assert row.share is not None
        yield Figure(
            f"the same with 1,000 subscriptions, {'all' if matching else 'none'} matching / with 1",
            row.share,
            f"{row.publications_per_s:,}/s",
            chain.MIN_SHARE,
            more_is_better=True,
        )


def matching() -> Iterator[Figure]:
    beside = match.measure("ranges", count=10_000, publications=1000, seed=0)
    index_us = beside.row.us_per_publication
    yield Figure(
        "ranges at 10,000 / intervaltree",
        round(index_us / beside.row.intervaltree_us, 4),
        f"{index_us:.1f} µs",
        match.MAX_OF_INTERVALTREE,
        noise=MORE_NOISE,
    )
    for workload, limit in match.LIMITS.items():
        less, more = match.index_alone(
            workload, counts=(10_000, 100_000), publications=1000, seed=0
        )
        yield Figure(
            f"{workload} at 100,000 / 10,000",
            round(more.match_us / less.match_us, 2),
            f"{more.match_us:.1f} µs",
            limit,
            noise=MORE_NOISE,
        )
        yield Figure(
            f"{workload}: insertion and removal at 100,000 / 10,000",
            round((more.insert_us + more.remove_us) / (less.insert_us + less.remove_us), 2),
            f"{more.insert_us:.1f} and {more.remove_us:.1f} µs",
            limit,
            noise=MORE_NOISE,
        )


def many_clients() -> Iterator[Figure]:
    row = clients.measure(clients=2000, subscriptions=10_000, publications=clients.PUBLICATIONS)
    yield Figure(
        "2,000 clients / 1 with the same subscriptions, speed of a broker",
        row.same_table_share,
        f"{row.same_table_cpu_us:.1f} µs",
        clients.MIN_SAME_TABLE_SHARE,
        more_is_better=True,
    )
    yield Figure(
        "2,000 clients / 2 clients, speed of a broker",
        row.share,
        f"{row.cpu_us:.1f} µs",
        clients.MIN_SHARE,
        more_is_better=True,
        noise=MORE_NOISE,
    )
    yield Figure(
        "2,000 clients / 2 clients, memory",
        round(row.rss_mb / row.few_rss_mb, 2),
        f"{row.rss_mb:.0f} MB",
        clients.MAX_RSS_MB / row.few_rss_mb,
    )


def starts() -> Iterator[Figure]:
    row = start.measure("nine")
    yield Figure(
        "9 brokers up / 9 bare interpreters, CPU",
        row.ratio,
        f"{row.start_s:.1f} s",
        noise=MORE_NOISE,
    )


def paths() -> Iterator[Figure]:
    topology = load("three")
    delays = {engine: path.counted(topology, engine).delays for engine in ("d-tx", "s-tx")}
    ratio = delays["d-tx"] / delays["s-tx"]
    seen = f"{delays['d-tx']} and {delays['s-tx']} delays"
    yield Figure(
        "D-TX / S-TX, link delays of dispatching",
        round(ratio, 2),
        seen,
        path.MAX_OVER_STATIC,
        noise=0.0,
    )


def syncs() -> Iterator[Figure]:
    topology = load("three")
    row = path.counted(topology, "d-tx")
    path.measured_on_disk(topology, [row], path.TRANSACTIONS, None)
    assert row.disk_ratio is not None
    yield Figure(
        "D-TX on disk / its syncs, one after the other",
        row.disk_ratio,
        f"{row.disk_ms:.1f} ms, {row.syncs} syncs of {row.sync_ms:.2f} ms",
        noise=MORE_NOISE,
    )


def replays() -> Iterator[Figure]:
    for kind in ("operations", "d-tx"):
        row = recover.replayed(kind)
        yield Figure(
            f"replay of {kind}: the last fifth of a log / the second",
            row.growth,
            f"{row.us:.0f} µs",
            recover.MAX_GROWTH,
            noise=MORE_NOISE,
        )


BENCHMARKS: Final[dict[str, Callable[[], Iterator[Figure]]]] = {
    "path": paths,
    "syncs": syncs,
    "match": matching,
    "hop": hops,
    "chain": chains,
    "clients": many_clients,
    "start": starts,
    "recover": replays,
}


# --- reporting -----------------------------------------------------------------------------


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def committed(file: Path = COMMITTED) -> BenchmarkReport | None:
    """The figures of the last commit; None if there are none. Raises FiguresError."""
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=BenchmarkReport)
    except msgspec.DecodeError as error:
        raise FiguresError(f"{file}: {error}") from None


def worse(report: BenchmarkReport, before: BenchmarkReport | None) -> list[str]:
    """A line for each figure that is worse by more than noise."""
    known = {figure.name: figure for figure in before.figures} if before is not None else {}
    return [
        f"{figure.name}: {figure.value:g}, was {known[figure.name].value:g}"
        for figure in report.figures
        if figure.name in known and figure.worse_than(known[figure.name].value)
    ]


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{'at least' if figure.more_is_better else 'at most'} {figure.goal:.3g}"


def table(report: BenchmarkReport, before: BenchmarkReport | None) -> Table:
    known = {figure.name: figure.value for figure in before.figures} if before is not None else {}
    shown = Table(title=f"{report.machine}; {report.took_s:.0f} s", box=box.SIMPLE_HEAD)
    shown.add_column("ratio")
    for heading in ("now", "committed", "goal", "here"):
        shown.add_column(heading, justify="right")
    for figure in report.figures:
        last = known.get(figure.name)
        style = "red" if last is not None and figure.worse_than(last) else None
        now = f"{figure.value:g}" + ("" if figure.holds else " !")
        then = "" if last is None else f"{last:g}"
        shown.add_row(figure.name, now, then, _goal(figure), figure.seen, style=style)
    return shown


def readme_table(report: BenchmarkReport) -> str:
    lines = [
        f"`make bench` on {report.machine}:",
        "",
        "| ratio | value | goal | on that machine |",
        "|---|--:|--:|--:|",
    ]
    lines += [
        f"| {figure.name} | {figure.value:g} | {_goal(figure)} | {figure.seen} |"
        for figure in report.figures
    ]
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """The text with a new table between the marks. Raises FiguresError without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FiguresError(f"no marks for the table of benchmarks: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def save(report: BenchmarkReport) -> None:
    """Make a run's figures the committed ones, in the file and in the README."""
    text = with_table(README.read_text(encoding="utf-8"), readme_table(report))
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    README.write_text(text, encoding="utf-8")


# --- the command ----------------------------------------------------------------------------


@click.command(
    "all",
    epilog="""
\b
Examples:
  padres-tx bench all
  padres-tx bench all --only hop,match
  padres-tx bench all --out build/bench.json
  padres-tx bench all --save --from build/bench.json
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object and nothing else.")
@click.option("--only", default="", help=f"Some of {', '.join(BENCHMARKS)}, separated by commas.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file."
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run nothing; read the JSON of an earlier run.",
)
@click.option(
    "--save", "saving", is_flag=True, help="Make these the committed figures, README included."
)
def all_benchmarks(
    *, as_json: bool, only: str, out: Path | None, source: Path | None, saving: bool
) -> None:
    """All benchmarks, compared with the committed figures.

    Exits with code 1 if a figure is worse by more than noise.
    """
    names = [name.strip() for name in only.split(",")] if only else list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise WrongInput(
            f"unknown benchmark {unknown[0]!r}: expected one of {', '.join(BENCHMARKS)}"
        )
    if saving and only:
        raise WrongInput("--save cannot be combined with --only")
    before = committed()
    report = committed(source) if source is not None else run(names)
    assert report is not None
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if saving:
        save(report)
    found = worse(report, before)
    if as_json:
        plain: Any = msgspec.to_builtins(report)
        click.echo(json.dumps({**plain, "worse": found}, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        console.print(table(report, before))
        missed = [figure.name for figure in report.figures if not figure.holds]
        console.print(f"Goals missed (!): {'; '.join(missed)}." if missed else "All goals hold.")
        console.print("Worse by more than noise:" if found else "Nothing is worse beyond noise.")
        for line in found:
            console.print(f"  {line}")
    if found and not saving:
        raise CheckFailed(f"{len(found)} figures are worse than the committed ones")


def run(names: list[str]) -> BenchmarkReport:
    """Run benchmarks of these names."""
    started = time.monotonic()
    figures: list[Figure] = []
    with steps_shown(len(names)) as progress:
        for name in names:
            progress(name)
            figures += BENCHMARKS[name]()
    return BenchmarkReport(machine(), round(time.monotonic() - started, 1), figures)
