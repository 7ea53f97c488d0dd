"""Errors that only the event loop hears of: a test in which one occurs fails.

An exception in a task that nobody awaits, one that a callback of the loop raises, and a task that
is destroyed while it is pending are reported to the loop's exception handler. The default one logs
them, so does uvloop's, in any thread. `StrayErrors` listens to that log. A test that expects such a
report takes it from the fixture `stray_errors`, or sets a handler of its own on its loop.
"""

from __future__ import annotations

import gc
import logging


class StrayErrors(logging.Handler):
    """Collects what event loops report while it is attached."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._reports: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._reports.append(logging.Formatter().format(record))

    def __enter__(self) -> StrayErrors:
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("asyncio").removeHandler(self)

    def take(self) -> list[str]:
        """What was reported since the last call."""
        # A task's exception counts as not retrieved only once the task is destroyed, and tasks
        # often stand in a cycle with their own tracebacks.
        gc.collect()
        reports, self._reports = self._reports, []
        return reports
