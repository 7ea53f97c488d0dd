"""Rows in terminals of any width: ids are never broken, texts between words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from padres_tx.cli.layout import Column, TableCell, fits, show

COLUMNS = (Column("transaction"), Column("since", "number"), Column("waits for", "text"))

LONG = "warehouse-dispatcher-eu-1:1795011169315616"
SENTENCE = "the votes of B1, B2, B3 and B4, and its coordinator to finish what a tcm asked for"


def shown(width: int, rows: list[list[str]], title: str = "") -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    show(console, COLUMNS, [[TableCell(text) for text in row] for row in rows], title)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [10, 20, 40, 60, 80, 120])
def test_an_id_stands_on_one_line_in_any_width(width: int) -> None:
    lines = shown(width, [[LONG, "3.1 s", SENTENCE], ["E:1", "12 min", "[bold]E2[/bold]"]])
    words = [word for line in lines for word in line.split()]
    assert {LONG, "E:1", "[bold]E2[/bold]", *SENTENCE.split()} <= set(words)
    # Only what cannot be broken is longer than a line.
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_a_table_is_a_table_where_it_fits() -> None:
    lines = shown(80, [[LONG, "3.1 s", SENTENCE]], "title")
    assert lines[0] == "title"
    assert lines[1].split() == ["transaction", "since", "waits", "for"]
    assert lines[3].startswith(f"{LONG}  3.1 s  the votes")
    assert len(lines) > 4 and all(line.startswith(" " * len(LONG)) for line in lines[4:])


def test_blocks_leave_out_what_is_empty() -> None:
    assert shown(30, [[LONG, "", "B1"]], "title") == ["title", LONG, "    waits for B1"]


def test_a_column_without_a_heading_leads_to_the_next() -> None:
    columns = (Column(""), Column("filter", "text"), Column("client"))
    file = io.StringIO()
    cells = [TableCell("adv"), TableCell("[class,eq,'order'],[price,>,100]"), TableCell("c" * 30)]
    show(Console(file=file, width=45), columns, [cells])
    assert file.getvalue().splitlines() == [
        "adv [class,eq,'order'],[price,>,100]",
        "    client " + "c" * 30,
    ]


def test_a_table_at_its_limit() -> None:
    columns = (Column("id"), Column("text", "text"))
    row = [TableCell("x" * 60), TableCell("words " * 10)]
    assert fits(columns, [row], 80)
    assert not fits(columns, [row], 79)
