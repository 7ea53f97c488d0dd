"""Structured logs: one JSON object a line, through `twisted.logger`.

A call such as `log.info("link up", neighbour=name)` becomes

    {"time": "2026-01-31T12:00:00.000Z", "level": "info", "broker": "B1", "event": "link up",
     "neighbour": "B2"}

The event is a constant that machines can search for; what varies is in the fields. Messages of
Twisted itself are logged from "warn" on: retried connections are logged by us, once.

A line that cannot be written (the disk is full) is dropped as a whole and counted. The next line
that can be written is preceded by one that says how many were lost.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Protocol

from twisted.logger import (
    FilteringLogObserver,
    LogEvent,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
)

#: A log file is limited to this size, and so many older ones are kept (NAME.1 and so on): some days
#: of a busy broker, and no more than 64 MiB.
LOG_LIMIT_BYTES = 16 << 20
LOGS_KEPT = 3

LEVELS = ("debug", "info", "warn", "error")

_LEVELS_BY_NAME = {
    "debug": LogLevel.debug,
    "info": LogLevel.info,
    "warn": LogLevel.warn,
    "error": LogLevel.error,
}


class Appendable(Protocol):
    """Where lines go; `line_file.LineFile` is one."""

    def append(self, lines: bytes) -> None:
        """Write whole lines, now. Raises OSError."""


class JsonLines:
    """A log observer that writes each event as one line."""

    def __init__(self, broker: str, file: Appendable) -> None:
        self._broker = broker
        self._file = file
        #: Lines lost since the last that was written, why, and all of them.
        self._lost = 0
        self._problem = ""
        self._lost_in_all = 0

    def __call__(self, event: LogEvent) -> None:
        data = self.as_data(event)
        lines = _line(data)
        if self._lost:
            told = {"event": "log lines lost", "count": self._lost, "reason": self._problem}
            first = {"time": data["time"], "level": "error", "broker": self._broker, **told}
            lines = _line(first) + lines
        try:
            # Each line is written at once: the last ones before a crash matter most.
            self._file.append(lines)
        except OSError as error:
            self._lost += 1
            self._lost_in_all += 1
            self._problem = error.strerror or str(error)
        else:
            self._lost, self._problem = 0, ""

    def report(self) -> dict[str, Any]:
        """For a broker's status."""
        return {"lost": self._lost_in_all, "problem": self._problem}

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


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, default=str).encode() + b"\n"


def begin(broker: str, file: Appendable, level: str = "info") -> JsonLines:
    """Send the logs of this process to `file`, from `level` (one of LEVELS) on. Once a process."""
    predicate = LogLevelFilterPredicate(defaultLogLevel=_LEVELS_BY_NAME[level])
    if level != "debug":
        for namespace in ("twisted", "log_legacy"):
            predicate.setLogLevelForNamespace(namespace, LogLevel.warn)
    # Any: zope's interfaces mean nothing to mypy.
    predicates: list[Any] = [predicate]
    lines = JsonLines(broker, file)
    written: Any = lines
    observer: Any = FilteringLogObserver(written, predicates)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    return lines
