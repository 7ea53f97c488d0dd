"""Tables by the page: complete, in order, bounded, and chosen by client, hop and publication."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.filters import Filter
from overlay.messages import BrokerName, ClientName, Hop, Kind, Operation, client_hop
from overlay.notation import format_filter
from overlay.tables.pages import ROWS_PER_PAGE, TABLES, page
from overlay.tables.routing import Home, Routing, Scope


def routing_of(words: list[tuple[str, Kind, int]]) -> Routing:
    """Tables with one entry a word, of clients here ("a...") and behind the neighbour N."""
    routing = Routing(BrokerName("B"), [BrokerName("N")])
    for seq, (client, kind, value) in enumerate(words):
        hop = client_hop(client) if client.startswith("a") else Hop("N")
        routing.crt[ClientName(client)] = Home(BrokerName("B"), hop)
        routing.apply(hop, Operation(0, kind, client, seq, Filter(x=value)))
    return routing


def pages(routing: Routing, **query: Any) -> list[dict[str, Any]]:
    found = []
    while True:
        found.append(page(routing, None, json.dumps(query)))
        assert "error" not in found[-1]
        if found[-1]["next"] is None:
            return found
        query["after"] = found[-1]["next"]


def rows(found: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {table: [row for one in found for row in one[table]] for table in TABLES}


WORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a1", "b", "b2", "c"]),
        st.sampled_from(["sub", "usub", "adv", "uadv"]),
        st.integers(0, 2),
    ),
    max_size=30,
)


@given(WORDS, st.integers(1, 4))
def test_pages_together_are_the_tables(words: Any, rows_per_page: int) -> None:
    routing = routing_of(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.tables.pages.ROWS_PER_PAGE", rows_per_page)
        found = pages(routing)
    assert all(sum(len(one[table]) for table in TABLES) <= rows_per_page for one in found)
    whole = routing.as_data()
    for table in TABLES:
        got = [tuple(sorted(row.items())) for row in rows(found)[table]]
        assert sorted(got) == sorted(tuple(sorted(row.items())) for row in whole[table])
        assert len(set(got)) == len(got)


@given(WORDS, st.integers(1, 3), st.sampled_from(["a", "b", "nobody"]))
def test_rows_are_chosen(words: Any, scanned: int, client: str) -> None:
    routing = routing_of(words)
    whole = routing.as_data()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.tables.pages.SCANNED_PER_PAGE", scanned)
        of_client = rows(pages(routing, client=client))
        of_hop = rows(pages(routing, hop="N"))
        at_point = rows(pages(routing, matching="[x,1]"))
    for table in TABLES:
        assert {row["client"] for row in of_client[table]} <= {client}
        assert len(of_client[table]) == sum(row["client"] == client for row in whole[table])
        assert len(of_hop[table]) == sum(row["hop"] == "N" for row in whole[table])
    for table in ("srt", "prt"):
        wanted = [row for row in whole[table] if row["filter"] == format_filter(Filter(x=1))]
        assert len(at_point[table]) == len(wanted)
    assert at_point["clients"] == []


def test_a_page_shows_what_is_committed() -> None:
    routing = routing_of([("a", "sub", 1)])
    undecided = Operation(0, "sub", "a", 7, Filter(x=2))
    routing.apply(client_hop("a"), undecided, Scope(None, ("t", 1)))
    [only] = pages(routing)
    # Without any committed version the cheap view sees just what carries none.
    assert [row["seq"] for row in only["prt"]] == [0]


@pytest.mark.parametrize(
    "argument",
    ["x", "[]", '{"tables": ["tea"]}', '{"matching": "x"}', '{"after": [1]}', '{"y": 1}'],
)
def test_a_question_that_cannot_be_understood_is_answered_with_the_reason(argument: str) -> None:
    body = page(routing_of([]), None, argument)
    assert body["error"].startswith("invalid question about tables: ")


def test_many_rows_take_many_pages() -> None:
    routing = routing_of([(f"a{n}", "sub", n) for n in range(ROWS_PER_PAGE + 1)])
    first, second = pages(routing, tables=["prt"])
    assert len(first["prt"]) == ROWS_PER_PAGE
    assert len(second["prt"]) == 1
