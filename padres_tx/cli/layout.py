"""Print rows for terminals of any width: an id is never broken over two lines.

If all ids fit side by side, with some room for text, rows are printed as a table. Otherwise each
row becomes a block of lines: its first cell, and below it the other cells, each after its heading.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: A text column narrower than this is not readable, unless its texts are shorter.
TEXT_WIDTH = 16

#: Between two columns of a table.
SPACE = 2

INDENT = "    "
GAP = "   "


class Column(NamedTuple):
    """One column: text may be broken, ids and numbers may not."""

    heading: str
    kind: Literal["id", "number", "text"] = "id"


class TableCell(NamedTuple):
    """A text and its style."""

    text: str
    style: str = ""


def show(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[TableCell]],
    title: str = "",
) -> None:
    """Print rows of cells, one for each column."""
    if fits(columns, rows, console.width):
        console.print(_table(columns, rows, title))
        return
    if title:
        console.print(Text(title, "italic"))
    for row in rows:
        for line in _block(columns, row, console.width):
            # The terminal wraps a line that is too long, so that an id can be copied as a whole.
            console.print(line, soft_wrap=True)


def fits(columns: Sequence[Column], rows: Sequence[Sequence[TableCell]], width: int) -> bool:
    """Whether a table of this width breaks only text columns."""
    needed = SPACE * len(columns)
    for number, column in enumerate(columns):
        natural = max([len(column.heading), *(len(row[number].text) for row in rows)])
        needed += min(natural, TEXT_WIDTH) if column.kind == "text" else natural
    return needed <= width


def _table(columns: Sequence[Column], rows: Sequence[Sequence[TableCell]], title: str) -> Table:
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="italic",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, SPACE - 1, 0, 0),
    )
    for number, column in enumerate(columns):
        natural = max([len(column.heading), *(len(row[number].text) for row in rows)])
        text = column.kind == "text"
        table.add_column(
            column.heading,
            justify="right" if column.kind == "number" else "left",
            no_wrap=not text,
            overflow="fold",
            # Every column needs a minimum width, or rich shrinks id columns as well.
            min_width=min(natural, TEXT_WIDTH) if text else natural,
        )
    for row in rows:
        # As Text: a name or filter may look like rich's markup.
        table.add_row(*(Text(*cell) for cell in row))
    return table


def _block(columns: Sequence[Column], row: Sequence[TableCell], width: int) -> list[Text]:
    first, *others = zip(columns, row, strict=True)
    lines = [Text(first[1].text, first[1].style or "bold")]
    # A cell without a heading is joined with the next one.
    while others and not first[0].heading:
        first, *others = others
        lines[0].append(" ").append_text(Text(*first[1]))
    line = Text(INDENT)
    for column, cell in others:
        if not cell.text:
            continue
        part = Text.assemble((f"{column.heading} ", "dim"), cell)
        if len(line) > len(INDENT) and len(line) + len(GAP) + len(part) > width:
            lines.append(line)
            line = Text(INDENT)
        line.append(GAP if len(line) > len(INDENT) else "").append_text(part)
    if len(line) > len(INDENT):
        lines.append(line)
    return [piece for each in lines for piece in _broken(each, width)]


def _broken(line: Text, width: int) -> list[Text]:
    """Break a line that is too long between words; a word may be an id and stays whole."""
    if len(line) <= width:
        return [line]
    pieces = textwrap.wrap(
        line.plain,
        width,
        subsequent_indent=2 * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Text(piece) for piece in pieces]
