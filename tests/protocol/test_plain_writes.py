"""The log of plain operations that open transactions share: what each of them is told."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from overlay.filters import Filter
from overlay.messages import Operation, Pub
from overlay.tables.footprints import Footprint
from padres_tx.client_messages import TxID
from padres_tx.protocol.validation.plain_writes import FEW, PlainWrites


def footprint(table: str, client: str, x: int) -> Footprint:
    wrote = Footprint()
    (wrote.writes_sub if table == "sub" else wrote.writes_adv)(client, Filter(x=x))
    return wrote


def told(writes: PlainWrites, tx: TxID) -> set[tuple[str, str, Filter]]:
    found: set[tuple[str, str, Filter]] = set()
    for wrote in writes.since(tx):
        found |= {("sub", client, filter) for client, filter in wrote.wrote_sub}
        found |= {("adv", client, filter) for client, filter in wrote.wrote_adv}
    return found


words = st.tuples(st.sampled_from(["sub", "adv"]), st.sampled_from("AB"), st.integers(0, 2))
events = st.one_of(
    st.tuples(st.just("write"), words),
    st.tuples(st.just("begin"), st.integers(0, 4)),
    st.tuples(st.just("end"), st.integers(0, 4)),
)


@given(st.lists(events, max_size=40))
def test_each_transaction_is_told_what_was_written_since_it_began(
    script: list[tuple[str, Any]],
) -> None:
    writes = PlainWrites()
    since: dict[TxID, set[tuple[str, str, Filter]]] = {}
    for what, about in script:
        if what == "write":
            table, client, x = about
            writes.add(footprint(table, client, x))
            for known in since.values():
                known.add((table, client, Filter(x=x)))
        elif what == "begin" and ("C", 0, about) not in since:
            writes.begin(("C", 0, about))
            since["C", 0, about] = set()
        elif what == "end":
            writes.end(("C", 0, about))
            since.pop(("C", 0, about), None)
        for tx, known in since.items():
            assert told(writes, tx) == known
        everything = set().union(*since.values()) if since else set()
        assert len(writes) == len(everything), "what nobody has to know goes"
    assert writes.wanted == bool(since)


reads = st.one_of(
    st.tuples(st.just("pub"), st.integers(0, 12)),
    st.tuples(st.sampled_from(["sub", "adv"]), st.integers(0, 12), st.integers(0, 3)),
)


@given(st.lists(st.tuples(words, st.booleans()), max_size=40), st.lists(reads, max_size=6))
def test_what_is_looked_up_is_what_all_that_was_written_would_tell(
    script: list[tuple[tuple[str, str, int], bool]], looked_at: list[tuple[Any, ...]]
) -> None:
    """In a long log, whatever it was written for."""
    writes, mine, tx = PlainWrites(), Footprint(), ("C", 0, 1)
    for what, *at in looked_at:
        if what == "pub":
            mine.publication(Pub("A", 1, {"x": at[0]}), at_edge=True)
        else:
            mine.operation(Operation(0, what, "A", 1, Filter(x=(at[0], at[0] + at[1]))))
    writes.begin(("C", 0, 0))
    for number, ((table, client, x), early) in enumerate(script):
        if number == len(script) // 2:
            writes.begin(tx)
        writes.add(footprint(table, client, x if early else 3 * x))
    if not script:
        writes.begin(tx)
    for n in range(FEW + 1):  # Far away, and enough for the index to be asked.
        writes.add(footprint("sub", "B", 1000 + n))
    all_of_it = [filter for wrote in writes.since(tx) if (filter := mine.reads_what(wrote))]
    found = writes.conflict(tx, mine)
    assert (found is None) == (not all_of_it)
    assert found is None or found[0] in all_of_it
