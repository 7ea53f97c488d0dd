"""A broker's tables by the page, for operators.

A table may have a hundred thousand entries, and a broker serves all other traffic in the same loop.
So a page has at most ROWS_PER_PAGE rows, found among at most SCANNED_PER_PAGE entries, and a cursor
that says where the next page begins. Entries that come or go between two pages may be seen or not;
every other one is seen once.

Rows are ordered by table, then by hop (SRT), client and number. Pure: it reads the tables only.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from overlay.errors import FilterError
from overlay.filters import Value
from overlay.matching.index import View, is_visible
from overlay.messages import ClientName, Hop
from overlay.notation import parse_publication
from overlay.tables.routing import Home, Routing, entry_line
from overlay.tables.space import Entry, Space

#: Rows of one page, and entries that are looked at for it: some milliseconds of a broker's loop.
ROWS_PER_PAGE = 250
SCANNED_PER_PAGE = 5_000

#: Bytes of the filters of one page: a frame takes sixteen times as much.
BYTES_PER_PAGE = 1 << 19

TableName: TypeAlias = Literal["srt", "prt", "clients"]

TABLES: tuple[TableName, ...] = ("srt", "prt", "clients")


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last row that was looked at."""

    table: TableName = "srt"
    hop: str = ""
    client: str = ""
    seq: int = -1


class TableQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rows are wanted: those of a client, from a hop, containing a publication."""

    tables: tuple[TableName, ...] = TABLES
    client: str = ""
    hop: str = ""
    #: A publication in PADRES notation; table rows whose filter contains it are wanted.
    matching: str = ""
    after: Cursor = Cursor()


def page(routing: Routing, view: View | None, argument: str) -> dict[str, Any]:
    """The page that an operator asks for: rows by table, and `next`, null after the last page.

    `argument` is a `TableQuery` as JSON, or empty for the first page of everything. A question that
    cannot be understood is answered with an "error".
    """
    try:
        query = msgspec.json.decode(argument or "{}", type=TableQuery)
        point = parse_publication(query.matching) if query.matching else None
    except (msgspec.DecodeError, FilterError) as error:
        return {"error": f"invalid question about tables: {error}"}
    body: dict[str, Any] = {"broker": routing.name, "srt": [], "prt": [], "clients": []}
    body["next"] = None
    rows = size = 0
    for scanned, (cursor, item) in enumerate(_rows(routing, query, view), 1):
        if (row := _row(item, cursor, query, point, view)) is not None:
            body[cursor.table].append(row)
            rows += 1
            size += len(row.get("filter", ""))
        if rows >= ROWS_PER_PAGE or scanned >= SCANNED_PER_PAGE or size >= BYTES_PER_PAGE:
            body["next"] = msgspec.to_builtins(cursor)
            break
    return body


def _row(
    item: Entry | Home,
    cursor: Cursor,
    query: TableQuery,
    point: dict[str, Value] | None,
    view: View | None,
) -> dict[str, Any] | None:
    """What is shown of an entry or a client, if it is wanted."""
    if query.hop and item.hop != query.hop:
        return None
    if isinstance(item, Home):
        if point is not None:
            return None
        return {"client": cursor.client, "edge": item.edge, "hop": item.hop}
    if not is_visible(item, view) or (point is not None and not item.filter.matches(point)):
        return None
    kind = "adv" if cursor.table == "srt" else "sub"
    return entry_line(item, kind if item.positive else f"u{kind}")


def _rows(
    routing: Routing, query: TableQuery, view: View | None
) -> Iterator[tuple[Cursor, Entry | Home]]:
    """Everything from the query's cursor on, in order."""
    after = query.after
    for table in TABLES[TABLES.index(after.table) :]:
        if table not in query.tables:
            continue
        start = after if table == after.table else Cursor(table)
        if table == "srt":
            for hop in _from(routing.srt, query.hop or start.hop):
                if query.hop and hop != query.hop:
                    break
                begin = start if hop == start.hop else Cursor(table, hop)
                yield from _entries(routing.srt[Hop(hop)], query, view, begin)
        elif table == "prt":
            yield from _entries(routing.prt, query, view, start)
        else:
            names = [query.client] if query.client else _from(routing.crt, start.client)
            for name in names:
                home = routing.crt.get(ClientName(name))
                if name > start.client and home is not None:
                    yield Cursor(table, client=name), home


def _entries(
    space: Space, query: TableQuery, view: View | None, start: Cursor
) -> Iterator[tuple[Cursor, Entry]]:
    clients = [query.client] if query.client else _from(space.clients(), start.client)
    for client in clients:
        if client < start.client:
            continue
        last = start.seq if client == start.client else -1
        # Undecided transactions may have brought copies of one entry; at most one is seen.
        for seq, copies in itertools.groupby(space.of(client), by_number):
            if seq > last:
                cursor = Cursor(start.table, start.hop, client, seq)
                found = list(copies)
                yield cursor, next((e for e in found if is_visible(e, view)), found[0])


def by_number(entry: Entry) -> int:
    return entry.seq


def _from(names: Iterable[str], start: str) -> Iterator[str]:
    """The names that are not before `start`, in order; few of them are needed, as a rule."""
    while True:
        found = heapq.nsmallest(ROWS_PER_PAGE, (name for name in names if name >= start))
        yield from found
        if len(found) < ROWS_PER_PAGE:
            return
        start = found[-1] + "\0"  # The least name behind it.
