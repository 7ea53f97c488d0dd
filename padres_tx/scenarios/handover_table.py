"""Show handovers in a terminal: a progress bar for each engine, and a table of the results.

For the command and for the demo; the scenario itself is `padres_tx.scenarios.handover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from padres_tx.launcher import Running
from padres_tx.scenarios import handover
from padres_tx.scenarios.handover import HandoverCounts, HandoverOutcome

EXPLANATION = (
    "lost: neither worker received it; doubled: both received it, or one twice; "
    "misrouted: the owner of a publisher's events changed other than once per commit. "
    "One worker reads with a callback, the other with its client's iterator."
)


def run(
    terminal: Console,
    running: Running,
    names: Sequence[str],
    *,
    events: int,
    handovers: int,
    rate: float | None = None,
    seed: int | None = None,
    wait_s: float | None = None,
    kill_brokers: int = 0,
    kill_all: bool = False,
) -> list[HandoverOutcome]:
    """Call `padres_tx.scenarios.handover.run` with progress bars; raises the same errors."""
    with Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
        TimeElapsedColumn(),
        console=terminal,
        transient=True,
        disable=not terminal.is_terminal,
    ) as bars:
        tasks = {name: bars.add_task(name, total=events, start=False) for name in names}

        def progress(name: str, published: int) -> None:
            bars.start_task(tasks[name])
            bars.update(tasks[name], completed=published)

        return asyncio.run(
            handover.run(
                running,
                names,
                events=events,
                handovers=handovers,
                rate=rate,
                seed=seed,
                wait_s=wait_s,
                kill_brokers=kill_brokers,
                kill_all=kill_all,
                progress=progress,
            )
        )


def table(rows: Iterable[HandoverCounts]) -> Table:
    """Return the results as a table; counts that should be 0 are highlighted if they are not."""
    # Nine columns have to fit into 80 characters.
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("engine")
    found = list(rows)
    killed = any(row.kills for row in found)
    headings = ["events", "handovers", "lost", "doubled", "misrouted"]
    headings += ["twice", "kills"] if killed else []
    for heading in (*headings, "events/s"):
        shown.add_column(heading, justify="right")
    for row in found:
        faults = [row.lost, row.doubled, row.misrouted, *([row.redelivered] if killed else [])]
        counts = [Text(f"{count:,}", "bold red" if count else "green") for count in faults]
        counts += [Text(f"{row.kills:,}")] if killed else []
        shown.add_row(
            Text(row.engine),
            f"{row.events:,}",
            f"{row.handovers:,}",
            *counts,
            f"{row.events_per_s:,.0f}",
        )
    return shown
