"""Draw a sample of small changes of the code, and see whether the tests notice them.

Exit code 0: of those that matter, as many were caught as the goal says; 1: fewer; 2: wrong usage,
or the tests cannot be run. An interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.covering import MODULES, covering
from tests.mutants.mutations import Mutant, drawn, mutants
from tests.mutants.running import (
    Cache,
    Outcome,
    TestsFail,
    Workshop,
    digest,
    run_all,
    workshop,
)

ROOT = Path(__file__).parents[2]
REVIEWED = Path(__file__).with_name("reviewed.yaml")

#: One in thirty may survive until somebody has looked at it.
GOAL_PERCENT = 97.0


class Reviewed(NamedTuple):
    """A mutant that makes no difference, or none that matters, and why."""

    module: str
    function: str
    line: str
    before: str
    after: str
    verdict: str
    reason: str

    def is_about(self, mutant: Mutant) -> bool:
        mine = (self.line, self.before, self.after)
        its = (mutant.text, mutant.before, mutant.after)
        return (
            self.module == mutant.module
            and self.function == mutant.function
            and [*map(_words, mine)] == [*map(_words, its)]
        )


def read_reviewed(path: Path = REVIEWED) -> list[Reviewed]:
    return [Reviewed(**entry) for entry in yaml.safe_load(path.read_text()) or []]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # A shell has what runs in the background ignore interrupts, and its children would do the same:
    # tests of interrupts would fail for every mutant.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    modules = _modules(options.modules)
    if not modules:
        print(f"no module matches {', '.join(options.modules)}", file=sys.stderr)
        return 2
    reviewed = read_reviewed()
    sample = [
        mutant
        for module in modules
        for mutant in drawn(module, (ROOT / module).read_text(), options.per_module, options.seed)
    ]
    for entry in _stale(reviewed, modules):
        text = f"reviewed.yaml: nothing like this any more: {entry}"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    listed = {mutant.id for mutant in sample if any(one.is_about(mutant) for one in reviewed)}
    if options.list:
        for mutant in sample:
            mark = " (listed)" if mutant.id in listed else ""
            print(f"{mutant.where} in {mutant.function}: {mutant.kind}{mark}")
            print(mutant.diff((ROOT / mutant.module).read_text()))
        return 0
    cache = Cache(ROOT / "build/mutants.jsonl")
    outcomes: dict[str, Outcome] = {}
    to_run: list[Mutant] = []
    tests = {module: digest(ROOT, covering(module)) for module in modules}
    for mutant in sample:
        known = None if options.fresh else cache.get(mutant.id, tests[mutant.module])
        if mutant.id in listed:
            continue
        if known is not None:
            outcomes[mutant.id] = known
        else:
            to_run.append(mutant)
    console.print(
        f"{len(sample)} mutants of {len(modules)} modules: {len(listed)} are listed as without "
        f"consequence, {len(outcomes)} are known, {len(to_run)} to run"
    )
    if to_run:
        try:
            with workshop(ROOT, options.processes) as shop:
                _run(shop, to_run, tests, cache, outcomes, console)
        except TestsFail as error:
            print(f"the tests cannot be run:\n{error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from here", file=sys.stderr)
            return 130
    return _report(sample, listed, outcomes, options.goal, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="which sample (default: 1)")
    parser.add_argument(
        "--per-module", type=int, default=2, metavar="N", help="mutants a module (default: 2)"
    )
    parser.add_argument(
        "--modules",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only these, as in 'overlay/tables/*' or 'padres_tx/client/session.py'; may be given "
        "several times (default: " + ", ".join(MODULES) + ")",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="mutants at a time (default: as many as there are cores)",
    )
    parser.add_argument(
        "--goal",
        type=float,
        default=GOAL_PERCENT,
        metavar="PERCENT",
        help=f"how many of those that matter have to be caught (default: {GOAL_PERCENT:g})",
    )
    parser.add_argument("--fresh", action="store_true", help="believe no earlier results")
    parser.add_argument("--list", action="store_true", help="show the sample and run nothing")
    return parser


def _modules(patterns: Sequence[str]) -> list[str]:
    found = sorted(
        str(path.relative_to(ROOT))
        for pattern in MODULES
        for path in ROOT.glob(pattern)
        if path.name != "__init__.py"
    )
    return [one for one in found if not patterns or any(fnmatch(one, p) for p in patterns)]


def _stale(reviewed: Sequence[Reviewed], modules: Sequence[str]) -> list[Reviewed]:
    """What was reviewed in these modules and cannot be drawn any more."""
    known = {
        module: mutants(module, (ROOT / module).read_text())
        for module in modules
        if any(entry.module == module for entry in reviewed)
    }
    return [
        entry
        for entry in reviewed
        if entry.module in known and not any(entry.is_about(one) for one in known[entry.module])
    ]


def _run(
    shop: Workshop,
    to_run: Sequence[Mutant],
    tests: dict[str, str],
    cache: Cache,
    outcomes: dict[str, Outcome],
    console: Console,
) -> None:
    files = sorted({file for mutant in to_run for file in covering(mutant.module)})
    tree = digest(ROOT, ["overlay", "padres_tx", *files])
    durations = cache.durations(tree)
    if durations is None:
        with console.status(f"running {len(files)} files and folders of tests without a mutant"):
            durations = shop.durations(files)
        cache.keep_durations(tree, durations)
    for test, took_s in durations.items():
        if took_s == math.inf:
            text = f"left out, since it fails without a mutant: {test}"
            console.print(text, style="yellow", markup=False, soft_wrap=True)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("mutants", total=len(to_run))

        def report(mutant: Mutant, outcome: Outcome) -> None:
            outcomes[mutant.id] = outcome
            cache.keep(mutant.id, tests[mutant.module], outcome)
            how = f"by {outcome.by}" if outcome.by else ""
            progress.console.print(
                f"{outcome.status:8} {outcome.seconds:6.1f} s  {mutant.where} {mutant.kind} {how}",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
            progress.advance(task)

        run_all(shop, to_run, durations, report)


def _report(
    sample: Sequence[Mutant],
    listed: set[str],
    outcomes: dict[str, Outcome],
    goal: float,
    console: Console,
) -> int:
    survivors = [m for m in sample if m.id in outcomes and not outcomes[m.id].is_caught]
    table = Table("module", "mutants", "caught", "listed", "survived", "share", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for module in [*dict.fromkeys(mutant.module for mutant in sample), ""]:
        own = [mutant for mutant in sample if module in ("", mutant.module)]
        without = sum(mutant.id in listed for mutant in own)
        lost = sum(mutant in survivors for mutant in own)
        caught = len(own) - without - lost
        share = f"{100 * caught / (caught + lost):.1f} %" if caught + lost else "-"
        counts = (len(own), caught, without, lost)
        table.add_row(module or "all", *map(str, counts), share, style="" if module else "bold")
    for mutant in survivors:
        console.rule(f"survived: {mutant.where} in {mutant.function}, {mutant.kind}", align="left")
        print(mutant.diff((ROOT / mutant.module).read_text()))
    console.print(table)
    matter = len(sample) - len(listed)
    return 0 if 100 * (matter - len(survivors)) >= goal * matter else 1


def _words(text: str) -> str:
    """Code without what formatting changes."""
    return "".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
