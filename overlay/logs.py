"""Structured logs: one JSON object a line, through `twisted.logger`.

A call such as `log.info("link up", neighbour=name)` becomes

    {"time": "2026-01-31T12:00:00.000Z", "level": "info", "broker": "B1", "event": "link up",
     "neighbour": "B2"}

The event is a constant, for machines to look for; what varies is in the fields. What Twisted itself
logs comes from "warn" on: a retry of a connection is news once, and ours to tell.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import IO, Any

from twisted.logger import (
    FilteringLogObserver,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
)

LEVELS = ("debug", "info", "warn", "error")

_LEVELS_BY_NAME = {
    "debug": LogLevel.debug,
    "info": LogLevel.info,
    "warn": LogLevel.warn,
    "error": LogLevel.error,
}


class JsonLines:
    """A log observer that writes each event as one line."""

    def __init__(self, broker: str, file: IO[str]) -> None:
        self._broker = broker
        self._file = file

    def __call__(self, event: LogEvent) -> None:
        # Flushed each: what was said last before a crash is what one wants to read.
        self._file.write(json.dumps(self.as_data(event), default=str) + "\n")
        self._file.flush()

    def as_data(self, event: LogEvent) -> dict[str, Any]:
        """The event as it is written."""
        at = datetime.fromtimestamp(event.get("log_time", 0.0), UTC)
        ours = str(event.get("log_namespace", "")).startswith(("overlay", "padres_tx"))
        data: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": getattr(event.get("log_level"), "name", "info"),
            "broker": self._broker,
            "event": event.get("log_format", "") if ours else formatEvent(event),
        }
        if ours:
            data.update((key, value) for key, value in event.items() if not key.startswith("log_"))
        if "log_failure" in event:
            data["traceback"] = event["log_failure"].getTraceback()
        return data


def begin(broker: str, file: IO[str], level: str = "info") -> None:
    """Send the logs of this process to `file`, from `level` (one of LEVELS) on. Once a process."""
    predicate = LogLevelFilterPredicate(defaultLogLevel=_LEVELS_BY_NAME[level])
    if level != "debug":
        for namespace in ("twisted", "log_legacy"):
            predicate.setLogLevelForNamespace(namespace, LogLevel.warn)
    # Any: zope's interfaces mean nothing to mypy.
    predicates: list[Any] = [predicate]
    lines: Any = JsonLines(broker, file)
    observer: Any = FilteringLogObserver(lines, predicates)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
