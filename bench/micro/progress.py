"""The progress bar of a benchmark, on standard error; removed when the benchmark ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from rich.console import Console
from rich.progress import Progress


@contextmanager
def steps_shown(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar of `total` steps; call the yielded function with each step's name as it begins."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, done = bar.add_task("", total=total), count()
        yield lambda step: bar.update(task, description=step, completed=next(done))
