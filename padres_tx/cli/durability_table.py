"""Print how brokers keep their state: for `status`, `tables` and `tx ls`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from padres_tx.cli.layout import Column, TableCell, show
from padres_tx.launcher.broker_status import DurabilityStatus

COLUMNS = (
    Column("broker"),
    Column("state"),
    Column("position", "number"),
    Column("snapshot at", "number"),
    Column("age", "number"),
    Column("log", "number"),
    Column("unsynced", "number"),
)

#: An unsynced age with this style means that the disk is slow or full.
SLOW_S = 1.0
SLOW_STYLE = "yellow"


def show_durability(console: Console, brokers: Mapping[str, DurabilityStatus]) -> None:
    """Print a row for each broker; brokers that all keep their state in memory are one line."""
    if all(status.mode == "memory" for status in brokers.values()):
        if brokers:
            console.print("state: in memory", style="dim")
        return
    show(console, COLUMNS, [_row(name, status) for name, status in brokers.items()])


def _row(name: str, status: DurabilityStatus) -> list[TableCell]:
    if status.mode == "memory":
        return [TableCell(name), TableCell("memory"), *([TableCell("")] * (len(COLUMNS) - 2))]
    slow = status.unsynced_age_s > SLOW_S
    return [
        TableCell(name),
        TableCell(status.mode),
        TableCell(str(status.position)),
        TableCell("none" if status.snapshot_position is None else str(status.snapshot_position)),
        TableCell("" if status.snapshot_age_s is None else _age(status.snapshot_age_s)),
        TableCell(_size(status.log_bytes)),
        TableCell(_age(status.unsynced_age_s), SLOW_STYLE if slow else ""),
    ]


def _age(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _size(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"
