"""`padres-tx explore`: all interleavings of a small scenario, on the real brokers.

Only options, tables and exit codes are handled here: `explorer` searches, `scenarios` lists what
can be explored.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from padres_tx.cli.common import WrongInput

#: Width of a table that goes into a file or pipe: enough for every name and outcome.
FILE_WIDTH = 140


class ExplorationReport(msgspec.Struct, kw_only=True):
    """The result of one exploration, as it is printed."""

    scenario: str
    rules: str
    states: int
    transitions: int
    ends: int
    states_per_s: float
    exhausted: bool
    anomaly: str | None
    expected: bool
    fingerprint: str
    seconds: float
    trace: list[str]


@click.command(
    epilog="""
\b
Examples:
  padres-tx explore --list
  padres-tx explore plain-publication
  padres-tx explore crossing-commits --rules paper
  padres-tx explore --all --json
  padres-tx explore --links
"""
)
@click.argument("scenario", required=False)
@click.option(
    "--rules",
    default="ours",
    show_default=True,
    metavar="NAME",
    help="The brokers' rules: ours, paper, or another that --list names.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=2_000_000,
    show_default=True,
    help="Give up after this many states.",
)
@click.option("--list", "as_list", is_flag=True, help="List the scenarios and their rules.")
@click.option(
    "--all", "everything", is_flag=True, help="Explore everything, and compare with expectations."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="With --all: number of processes.",
)
@click.option(
    "--links",
    is_flag=True,
    help="Explore durable brokers and their links, with crashes at every step.",
)
@click.option("--errata", is_flag=True, help="Compare the runs in proofs/errata.md with new ones.")
@click.option("--write", is_flag=True, help="With --errata: write the new runs to the document.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def explore(
    *,
    scenario: str | None,
    rules: str,
    limit: int,
    as_list: bool,
    everything: bool,
    jobs: int,
    links: bool,
    errata: bool,
    write: bool,
    as_json: bool,
) -> None:
    """Try all interleavings of message deliveries in a small overlay.

    The brokers are the real ones, and the end of every run is checked. Prints the number of states
    and the shortest run that ends in an anomaly, if any. Exit code 1 if a run ends in an anomaly;
    with --all or --links, if a result is not as expected; with --errata, if a run differs from the
    document.
    """
    if (scenario is not None) + as_list + everything + links + errata != 1:
        raise WrongInput("expected a scenario, or one of --list, --all, --links and --errata")
    if write and not errata:
        raise WrongInput("--write requires --errata")
    if errata:
        _errata(write=write)
    elif links:
        _explore_links(jobs, as_json=as_json)
    elif as_list:
        _list(as_json=as_json)
    elif everything:
        _explore_all(limit, jobs, as_json=as_json)
    else:
        assert scenario is not None
        _explore_one(scenario, rules, limit, as_json=as_json)


def _explore_links(jobs: int, *, as_json: bool) -> None:
    from proofs.explore.durable_links import describe
    from proofs.explore.link_cases import CASES, try_number

    with ProcessPoolExecutor(min(jobs, len(CASES))) as pool:
        results = list(pool.map(try_number, range(len(CASES))))
    rows = [
        {
            "case": case.name,
            "states": found.states,
            "ends": found.ends,
            "problem": found.problem,
            "expected": bool(found.problem) == case.is_wrong,
            "trace": list(describe(found.path)) if found.problem else [],
        }
        for case, found in zip(CASES, results, strict=True)
    ]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("case")
        for heading in ("states", "ends"):
            table.add_column(heading, justify="right")
        table.add_column("result")
        for row in rows:
            mark = "" if row["expected"] else " (!)"
            result = f"{row['problem'] or 'every number once and in order'}{mark}"
            table.add_row(str(row["case"]), f"{row['states']:,}", f"{row['ends']:,}", result)
        console = Console()
        console.width = max(console.width, FILE_WIDTH)
        console.print(table)
    if not all(row["expected"] for row in rows):
        raise SystemExit(1)


def _list(*, as_json: bool) -> None:
    from proofs.explore.scenarios import SCENARIOS

    if as_json:
        listed = [
            {
                "scenario": each.name,
                "about": each.about,
                "rules": {
                    name: {"about": rules.about, "expected": list(rules.expected)}
                    for name, rules in each.rules.items()
                },
            }
            for each in SCENARIOS.values()
        ]
        _print_json(listed)
        return
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("scenario", "rules", "about", "expected"):
        shown.add_column(heading, no_wrap=heading in ("scenario", "rules"))
    for each in SCENARIOS.values():
        name, about = each.name, each.about
        for rules_name, rules in each.rules.items():
            what = about if rules_name == "ours" else rules.about
            shown.add_row(name, rules_name, what, " or ".join(rules.expected) or "no anomaly")
            name = ""
    _console().print(shown)


def _console() -> Console:
    """The console for tables; in a file or pipe its width is fixed."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


# --- one ---


def _explore_one(name: str, rules: str, limit: int, *, as_json: bool) -> None:
    from proofs.explore.explorer import explore as run
    from proofs.explore.render import describe_anomaly, describe_scenario
    from proofs.explore.scenarios import SCENARIOS

    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise WrongInput(f"unknown scenario {name!r}; {_near(name, SCENARIOS)}")
    if rules not in scenario.rules:
        known = ", ".join(scenario.rules)
        raise WrongInput(f"unknown rules {rules!r} for {name}: expected one of {known}")
    with _watching(name) as watch:
        result = run(scenario, rules, limit=limit, watch=watch)
    report = _report(result)
    if as_json:
        _print_json(report)
    else:
        click.echo(f"{name}, rules: {rules}")
        for line in describe_scenario(scenario):
            click.echo(f"  {line}")
        click.echo(
            f"{report.states:,} states, {report.transitions:,} transitions, {report.ends:,} end"
            f" states checked, {report.states_per_s:,.0f} states per second"
        )
        click.echo(f"fingerprint {report.fingerprint}")
        if result.findings:
            for line in describe_anomaly(result):
                click.echo(line)
            for kind in dict.fromkeys(anomaly.kind for anomaly in result.checked):
                click.echo(f"also found by the checkers of records: {kind}")
        elif result.exhausted:
            click.echo("no anomaly in any interleaving")
        else:
            click.echo(f"given up at {limit:,} states, no anomaly so far")
    if not report.exhausted:
        raise SystemExit(1)


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see 'padres-tx explore --list'"


@contextmanager
def _watching(name: str) -> Iterator[Callable[[int, int], None]]:
    """A line on stderr that shows the progress, on a terminal."""
    console = Console(stderr=True)
    with console.status(f"exploring {name}") as status:

        def watch(states: int, moves: int) -> None:
            status.update(f"exploring {name}: {states:,} states, {moves} moves deep")

        yield watch


def _report(result: Any) -> ExplorationReport:
    from proofs.explore.render import trace

    findings = "; ".join(f"{finding.kind}: {finding.text}" for finding in result.findings)
    return ExplorationReport(
        scenario=result.scenario.name,
        rules=result.rules,
        states=result.states,
        transitions=result.transitions,
        ends=result.ends,
        states_per_s=round(result.states_per_s, 1),
        exhausted=result.exhausted,
        anomaly=findings or None,
        expected=result.as_expected,
        fingerprint=result.fingerprint,
        seconds=round(result.seconds, 3),
        trace=trace(result),
    )


def _print_json(what: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(what)).decode())


# --- the document ---


def _errata(*, write: bool) -> None:
    from proofs.explore import errata

    document = errata.DOCUMENT.read_text(encoding="utf-8")
    differs = False
    now: dict[tuple[str, str], tuple[str, ...]] = {}
    for section in errata.sections(document):
        with _watching(section.heading):
            lines = errata.found(section.scenario, section.rules)
        now[section.scenario, section.rules] = lines
        changes = errata.difference(section, lines)
        differs |= bool(changes)
        click.echo(f"{section.heading}: {'differs' if changes else 'unchanged'}")
        for line in changes:
            click.echo(f"  {line}")
    if write and differs:
        text = "".join(errata.rewritten(document, lambda *which: now[which]))
        errata.DOCUMENT.write_text(text, encoding="utf-8")
        click.echo(f"written to {errata.DOCUMENT.name}")
    elif differs:
        raise SystemExit(1)


# --- all ---


def _explore_all(limit: int, jobs: int, *, as_json: bool) -> None:
    from proofs.explore.scenarios import SCENARIOS

    asked = [(each.name, rules, limit) for each in SCENARIOS.values() for rules in each.rules]
    reports: list[ExplorationReport] = []
    with ProcessPoolExecutor(jobs) as pool, _watching("all") as watch:
        for report in pool.map(_one_of_all, asked):
            reports.append(report)
            watch(sum(each.states for each in reports), len(reports))
    if as_json:
        _print_json(reports)
    else:
        _console().print(_table(reports))
    wrong = [f"{each.scenario} ({each.rules})" for each in reports if not each.expected]
    if wrong:
        click.echo(f"not as expected: {', '.join(wrong)}", err=True)
        raise SystemExit(1)


def _one_of_all(asked: tuple[str, str, int]) -> ExplorationReport:
    from proofs.explore.explorer import explore as run
    from proofs.explore.scenarios import SCENARIOS

    name, rules, limit = asked
    return _report(run(SCENARIOS[name], rules, limit=limit))


def _table(reports: Iterable[ExplorationReport]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD)
    for heading in ("scenario", "rules"):
        shown.add_column(heading)
    for heading in ("states", "transitions", "states/s"):
        shown.add_column(heading, justify="right")
    for heading in ("outcome", "as expected", "fingerprint"):
        shown.add_column(heading)
    for each in reports:
        describe_anomaly = ""
        if each.anomaly:
            describe_anomaly = f"{each.anomaly.partition(':')[0]}, {len(each.trace)} moves"
        shown.add_row(
            each.scenario,
            each.rules,
            f"{each.states:,}",
            f"{each.transitions:,}",
            f"{each.states_per_s:,.0f}",
            describe_anomaly or ("no anomaly" if each.exhausted else "given up"),
            "yes" if each.expected else "NO",
            each.fingerprint[:12],
        )
    return shown
