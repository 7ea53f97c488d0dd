"""The replay of brokers as rows: what Spark hands over, and what it gets back.

The replay itself is `padres_tx.audit.replay`. It runs in executors, on partitions in which each
broker's rows are together and in order (`spark.steps`). The results are rows of `ReplayResult`:

    verdict     a publication was not routed on its tables, or on an uncommitted change
    line        an entry that is in a table at the end; `tx` if it still has a mark
    dependency  a unit has read what another wrote, or would have, had that come first (`seen`)

Spark itself must not be known here: rows are tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from padres_tx.audit.replay import BrokerReplay, Dependency, TransactionAtBroker
from padres_tx.audit.replayed_tables import ReplayStep


class ReplayInput(NamedTuple):
    """A step of a broker (`ReplayStep`); or, before its steps, a transaction of the run, with the
    kind "tx", its outcome in the run, its neighbours here as `dests`, and the last four fields."""

    run: str
    node: str
    seq: int
    kind: str
    tx: str
    engine: str
    op_id: str
    op_kind: str
    client: str
    filter: str
    source: str
    dests: list[str]
    version: str
    outcome: str
    unit_kind: str
    unit_name: str
    unit_life: int
    issued_in: str
    entered: bool
    #: The step at which a transaction was decided here, and how; its first and last step here.
    decided_at: int
    decided: str
    first_at: int
    last_at: int


#: The fields of a row that are those of a step: all but the run, and those of a transaction.
_STEP = slice(1, 1 + len(ReplayStep._fields))


class ReplayResult(NamedTuple):
    """What a step, or the end, has shown; fields that do not apply are empty."""

    run: str
    node: str
    what: str
    kind: str = ""
    engine: str = ""
    tx: str = ""
    table: str = ""
    client: str = ""
    op_id: str = ""
    op_kind: str = ""
    filter: str = ""
    hop: str = ""
    reader_kind: str = ""
    reader_name: str = ""
    reader_life: int = 0
    reader_engine: str = ""
    writer_kind: str = ""
    writer_name: str = ""
    writer_life: int = 0
    writer_engine: str = ""
    seen: bool = False
    #: Whether the reader is a publication.
    routed: bool = False


def replay(
    rows: Iterable[ReplayInput], *, versioned: Collection[str], replicated: Collection[str]
) -> Iterator[ReplayResult]:
    """The results of each broker; its transactions come first, then its steps in order."""
    for (run, node), own in groupby(rows, key=lambda row: (row.run, row.node)):
        broker = BrokerReplay(versioned=versioned, replicated=replicated)
        engines: dict[str, str] = {}
        for row in own:
            if row.kind == "tx":
                engines[row.tx] = row.engine
                broker.add_transaction(_transaction(row))
                continue
            fields: tuple[Any, ...] = tuple(row)
            for found in broker.take(ReplayStep._make(fields[_STEP])):
                if isinstance(found, Dependency):
                    yield _dependency(run, node, found, engines)
                else:
                    yield ReplayResult(run, node, "verdict", found.kind, found.engine, found.tx)
        yield from _lines(run, node, broker)


def _transaction(row: ReplayInput) -> TransactionAtBroker:
    return TransactionAtBroker(
        name=row.tx,
        engine=row.engine,
        outcome=row.outcome,
        neighbours=frozenset(row.dests),
        decided_at=row.decided_at,
        decided=row.decided,
        first_at=row.first_at,
        last_at=row.last_at,
        judged=row.outcome == "committed",
    )


def _dependency(run: str, node: str, found: Dependency, engines: dict[str, str]) -> ReplayResult:
    reader, writer = found.read.unit, found.write.unit
    return ReplayResult(
        run,
        node,
        "dependency",
        reader_kind=reader.kind,
        reader_name=reader.name,
        reader_life=reader.life,
        reader_engine=engines[reader.name] if reader.kind == "tx" else "",
        writer_kind=writer.kind,
        writer_name=writer.name,
        writer_life=writer.life,
        writer_engine=engines[writer.name] if writer.kind == "tx" else "",
        seen=found.seen,
        routed=found.read.is_publication,
    )


def _lines(run: str, node: str, broker: BrokerReplay) -> Iterator[ReplayResult]:
    for name, table in broker.tables.items():
        for entry in table:
            step = entry.step
            yield ReplayResult(
                run,
                node,
                "line",
                tx=next(iter(entry.marks), ""),
                table=name,
                client=step.client,
                op_id=step.op_id,
                op_kind=step.op_kind,
                filter=step.filter,
                hop=entry.hop,
            )
