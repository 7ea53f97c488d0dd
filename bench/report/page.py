"""The report of an experiment: one self-contained HTML file, to be opened without a server.

It loads nothing from a network: figures are SVG inside the page, and there is no script. All text
from files (names, reasons, versions) is escaped by the template engine; only our own SVG is not.

`results` reads the results, and `claims` judges them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from bench.report import figures
from bench.report.claims import JudgedClaim, claims
from bench.report.results import Results
from padres_tx.audit.promises import MEANING, is_promised

if TYPE_CHECKING:
    import pandas as pd

REPORT: Final = "report"
INDEX: Final = "index.html"

#: A user's notes on the experiment, shown as plain text.
NOTES: Final = "notes.txt"

#: Rows of long lists that the page shows; the tables in results/ have all of them.
SHOWN: Final = 200

LATENCY, THROUGHPUT = "latency_ms_mean", "throughput_per_s"

#: The figures with lines: the column of their x axis, and its label.
ACROSS: Final = {
    6: ("brokers", "brokers"),
    7: ("concurrency", "transactions at once"),
    8: ("clients", "clients"),
}


class PageTable(NamedTuple):
    heads: list[str]
    rows: list[list[str]]


class PageSection(NamedTuple):
    """One figure: our measurements, and the paper's values."""

    title: str
    svgs: list[str]
    table: PageTable
    paper: list[str]


def write(results: Results) -> Path:
    """Write the report beside the results; returns its path."""
    place = results.directory / REPORT
    place.mkdir(exist_ok=True)
    path = place / INDEX
    path.write_text(render(results), encoding="utf-8")
    return path


def render(results: Results) -> str:
    """The page."""
    import jinja2
    from markupsafe import Markup

    template = (resources.files("bench.report") / "templates" / "report.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    judged = claims(results)
    notes = results.directory / NOTES
    return environment.from_string(template).render(
        directory=results.directory.resolve().name,
        synthetic=bool(results.manifest.get("synthetic")),
        quick=bool(results.manifest.get("quick")),
        claims=judged,
        sections=[
            section._replace(svgs=[Markup(svg) for svg in section.svgs])
            for section in sections(results)
        ],
        checks=_checks(results.engine_checks),
        promises=_promises(results),
        traces=_plain(results.traces.head(SHOWN)),
        traces_all=int(results.trace_counts["found"].sum()),
        traced=results.traced_runs,
        skipped=_plain(results.skipped.head(SHOWN)),
        skipped_lines=int(results.skipped["lines"].sum()),
        skipped_all=len(results.skipped),
        runs=_runs(results.runs),
        runs_all=len(results.runs),
        made=_made(results.manifest),
        manifest=json.dumps(results.manifest, indent=2, ensure_ascii=False, default=str),
        notes=notes.read_text("utf-8", errors="replace") if notes.is_file() else "",
    )


def paper_results() -> dict[str, Any]:
    """The values that the paper reports."""
    text = (resources.files("bench.report") / "paper_results.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


# --- figures ---


def sections(results: Results) -> Iterator[PageSection]:
    """The figures that were measured, and the experiments that belong to none."""
    theirs = paper_results()["figures"]
    points = results.points
    for figure in sorted(int(number) for number in points["figure"].unique()):
        mine = points[points["figure"] == figure]
        paper = theirs.get(figure, {})
        if figure in ACROSS:
            yield _lines(figure, mine, paper)
        elif figure == 9:
            yield _course(results, mine, paper)
        else:
            for name in sorted(mine["experiment"].unique()):
                yield _bars(figure, mine[mine["experiment"] == name], paper, name)


def _title(figure: int, paper: dict[str, Any], name: str) -> str:
    return f"Figure {figure}. {paper['title']}" if paper else f"Experiment {name}"


def _bars(figure: int, points: pd.DataFrame, paper: dict[str, Any], name: str) -> PageSection:
    # A user's experiment may sweep anything; bars show its first combination.
    swept = ["topology", "concurrency", "clients", "variant"]
    first = points.sort_values(swept).drop_duplicates("series")
    svgs = [
        figures.bars(first, LATENCY, title="Latency", unit="ms", paper=paper.get("latency_ms", {})),
        figures.bars(
            first,
            THROUGHPUT,
            title="Throughput",
            unit="transactions/s",
            paper=paper.get("throughput_per_s", {}),
        ),
    ]
    return PageSection(_title(figure, paper, name), svgs, _points(points, swept), _paper(paper))


def _lines(figure: int, points: pd.DataFrame, paper: dict[str, Any]) -> PageSection:
    by, across = ACROSS[figure]
    svgs = [
        figures.lines(
            points,
            by,
            value,
            title=title,
            unit=unit,
            across=across,
            paper=paper.get(key, {}),
        )
        for value, title, unit, key in (
            (LATENCY, "Latency", "ms", "latency_ms_at"),
            (THROUGHPUT, "Throughput", "transactions/s", "throughput_per_s_at"),
        )
    ]
    growth = _growth(points, by)
    return PageSection(
        _title(figure, paper, ""), svgs, _points(points, [by]), [*growth, *_paper(paper)]
    )


def _growth(points: pd.DataFrame, by: str) -> list[str]:
    """The change of latency and throughput from the first to the last point."""
    lines: list[str] = []
    for name in figures.in_order(points["series"]):
        rows = points[points["series"] == name].sort_values(by)
        first, last = rows.iloc[0], rows.iloc[-1]
        if first[by] != last[by] and first[LATENCY] and first[THROUGHPUT]:
            lines.append(
                f"Ours, {name}, {first[by]} to {last[by]}: latency "
                f"{last[LATENCY] / first[LATENCY]:.2f} times, throughput "
                f"{last[THROUGHPUT] / first[THROUGHPUT]:.2f} times"
            )
    return lines


def _course(results: Results, points: pd.DataFrame, paper: dict[str, Any]) -> PageSection:
    rates = results.rates()
    rates = rates[(rates["figure"] == 9) & (rates["second"] > 0)]
    svgs: list[str] = []
    for variant in sorted(rates["variant"].unique()):
        mine = rates[rates["variant"] == variant]
        first = mine[mine["repetition"] == mine["repetition"].min()]
        svgs.append(figures.course(first, title=f"Event rate, {variant or 'all'}"))
    rows = results.rate_points
    rows = rows[rows["figure"] == 9]
    shown = [
        [
            str(row["series"]),
            str(row["variant"]),
            _number(row["repetition"]),
            "yes" if row["busy"] else "no",
            _number(row["windows"]),
            _number(row["events_per_s"]),
            _number(row["events_per_s_sd"]),
            _number(row["offered_per_s"]),
        ]
        for row in rows.to_dict("records")
    ]
    heads = ["series", "variant", "repetition", "dispatching", "windows"]
    heads += ["events/s", "deviation", "offered/s"]
    return PageSection(_title(9, paper, ""), svgs, PageTable(heads, shown), _paper(paper))


# --- tables ---


def _points(points: pd.DataFrame, by: list[str]) -> PageTable:
    by = [column for column in by if points[column].nunique() > 1]
    heads = ["series", *by, "repetitions", "committed", "aborted"]
    heads += ["latency ms, mean", "p50", "p90", "p99", "transactions/s"]
    rows: list[list[str]] = []
    for name in figures.in_order(points["series"]):
        mine = points[points["series"] == name].sort_values(by) if by else points
        for row in mine[mine["series"] == name].to_dict("records"):
            rows.append(
                [
                    name,
                    *(str(row[column]) for column in by),
                    _number(row["repetitions"]),
                    _number(row["committed"]),
                    _number(row["aborted"]),
                    _with_interval(row, LATENCY),
                    *(_number(row[f"latency_ms_{q}"]) for q in ("p50", "p90", "p99")),
                    _with_interval(row, THROUGHPUT),
                ]
            )
    return PageTable(heads, rows)


def _with_interval(row: dict[str, Any], value: str) -> str:
    half = row[f"{value}_ci"]
    return _number(row[value]) + ("" if _missing(half) else f" ± {_number(half)}")


def _missing(value: Any) -> bool:
    return value is None or value != value


def _number(value: Any) -> str:
    """A number for people; a dash for none."""
    if _missing(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _paper(paper: dict[str, Any]) -> list[str]:
    """The paper's values as sentences."""
    lines: list[str] = []
    for key, unit in (("latency_ms", "ms"), ("throughput_per_s", "transactions/s")):
        lines += [f"Paper, {name}: {value:g} {unit}" for name, value in paper.get(key, {}).items()]
    for name, at in paper.get("latency_ms_at", {}).items():
        listed = ", ".join(f"{value:g} ms at {where}" for where, value in at.items())
        lines.append(f"Paper, {name}: {listed}")
    for name, values in paper.get("growth", {}).items():
        listed = ", ".join(f"{value:g} times as {how}" for how, value in values.items())
        lines.append(f"Paper, {name}, latency: {listed}")
    for key, what in (("latency_growth", "latency"), ("throughput_growth", "throughput")):
        lines += [f"Paper, {name}, {what}: {v:g} times" for name, v in paper.get(key, {}).items()]
    return lines + [f"Paper: {note}" for note in paper.get("notes", ())]


def _checks(checks: pd.DataFrame) -> PageTable:
    columns = ["series", "workload", "runs", "sent", "received", "lost", "doubled", "misrouted"]
    columns += ["partial", "out_of_order", "unsent"]
    return _plain(checks[columns])


def _promises(results: Results) -> PageTable:
    """By kind and engine, the anomalies in brokers' traces, and whether they are allowed."""
    counts = {
        (str(row["engine"]), str(row["kind"])): int(row["found"])
        for row in results.trace_counts.to_dict("records")
    }
    others = {engine for engine, _ in counts if engine} - set(results.traced_engines)
    engines = [*results.traced_engines, *sorted(others), ""]
    rows: list[list[str]] = []
    for kind, meaning in MEANING.items():
        promised = ["never" if is_promised(kind, engine) else "may" for engine in engines]
        found = [counts.get((engine, kind), 0) for engine in engines]
        cells = [f"{word}: {count}" for word, count in zip(promised, found, strict=True)]
        rows.append([f"{kind}: {meaning}", *cells])
    return PageTable(["", *(engine or "plain operations" for engine in engines)], rows)


def _runs(runs: pd.DataFrame) -> PageTable:
    columns = ["run", "transactions", "committed", "aborted", LATENCY, "latency_ms_p99", THROUGHPUT]
    return _plain(runs[columns].head(SHOWN))


def _plain(frame: pd.DataFrame) -> PageTable:
    heads = [str(column).replace("_", " ") for column in frame.columns]
    rows = [
        [value if isinstance(value, str) else _number(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    return PageTable(heads, rows)


def _made(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """The last command, its versions and machine, for a short table."""
    commands = manifest.get("commands") or [manifest]
    last = commands[-1] if isinstance(commands[-1], dict) else {}
    found: list[tuple[str, str]] = []
    if "arguments" in last:
        found.append(("command", " ".join(map(str, last["arguments"]))))
    for key in ("began_at", "seed"):
        if key in last:
            found.append((key.replace("_", " "), str(last[key])))
    for group in ("machine", "versions"):
        values = last.get(group)
        if isinstance(values, dict):
            found += [(f"{group}: {key}", str(value)) for key, value in values.items()]
    return found


def missed(judged: list[JudgedClaim]) -> list[JudgedClaim]:
    """The claims that did not hold."""
    return [claim for claim in judged if claim.verdict == "did not hold"]
