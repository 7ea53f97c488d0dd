"""How far a benchmark is, shown on standard error while it runs and gone when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from rich.console import Console
from rich.progress import Progress


@contextmanager
def steps_shown(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar of so many steps; call what this gives at the beginning of each, with its name."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, done = bar.add_task("", total=total), count()
        yield lambda step: bar.update(task, description=step, completed=next(done))
