"""The tables at rest: nothing of what was aborted, and just what all that counts comes to.

What they should hold is worked out from what clients have said at their edge brokers, in the order
of their numbers: an advertisement stands everywhere, a subscription on every way from its client
to somebody who may publish for it. Advertisements are gathered by edge broker and filter, so the
work follows the words and the brokers, not the pairs of words. The naive oracle of
`proofs.oracle` says the same for small overlays; a test compares the two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from overlay.filters import Filter
from overlay.matching.index import Index
from overlay.messages import Hop, Version
from overlay.tables.last_word import reaches, settle
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.replay import Replay
from proofs.history import History, Row, Word

#: A line without the client's number: those of aborted operations leave gaps.
Line: TypeAlias = tuple[str, str, str, str, str]


def check(history: History, replay: Replay) -> Iterator[Anomaly]:
    """Ghosts and divergence; with records alone the tables are those that they tell of."""
    if not history.complete or history.restarted:
        return
    expected = Expected(history)
    for node in sorted(history.events):
        rows = replay.rows(node) if history.tables is None else history.tables.get(node, [])
        ghosts = [row for row in rows if _left_by(history, row)]
        for row in ghosts:
            name = _left_by(history, row)
            tx = history.txs.get(name)
            story = (
                f"{node} still has {row.client}'s {row.kind} {row.filter} in its"
                f" {row.table.upper()}, which {name} has left there"
            )
            yield Anomaly("ghost", tx.engine if tx is not None else "", name, story)
        found = Counter(_line(row) for row in rows if row not in ghosts)
        right = expected.at(node)
        if found != right and not ghosts:
            yield Anomaly("divergence", "", node, _difference(node, found, right))


def _left_by(history: History, row: Row) -> str:
    """The transaction that should not have left this: an aborted one, or marks of any."""
    for mark in row.marks:
        return mark
    word = history.words.get((row.client, history.lives.get(row.client, 0), row.number))
    if word is not None and word.tx is not None and word.tx.outcome == "aborted":
        return word.tx.name
    return ""


def _line(row: Row) -> Line:
    return row.table, row.client, row.kind, row.filter, row.hop


def _difference(node: str, found: Counter[Line], right: Counter[Line]) -> str:
    parts = [f"has {_text(line)} too many" for line in sorted((found - right).elements())]
    parts += [f"lacks {_text(line)}" for line in sorted((right - found).elements())]
    return f"{node} " + ", ".join(parts)


def _text(line: Line) -> str:
    table, client, kind, filter, hop = line
    return f"{client}'s {kind} {filter} from {hop} in the {table.upper()}"


class Held:
    """A word that counts, as the index takes it; the broker where it was said is its hop."""

    __slots__ = (
        "added_by",
        "client",
        "filter",
        "hop",
        "kind",
        "positive",
        "removed_by",
        "seq",
        "text",
    )

    def __init__(self, word: Word, number: int) -> None:
        self.client = word.key[0]
        self.filter = word.box
        self.hop = Hop(word.edge)
        self.kind = word.kind
        self.positive = word.positive
        self.seq = number
        self.text = word.text
        self.added_by: Version | None = None
        self.removed_by: tuple[Version, ...] = ()


class Expected:
    """The tables that all words together come to."""

    def __init__(self, history: History) -> None:
        self._tree = history.tree
        self._lines: defaultdict[str, Counter[Line]] = defaultdict(Counter)
        self._towards: dict[str, dict[str, str]] = {}
        words: dict[tuple[str, str], list[Word]] = {}
        for word in history.words.values():
            client, life, _ = word.key
            if word.counts and (client, life) not in history.gone:
                words.setdefault((word.table, client), []).append(word)
        live = {whose: _live(said) for whose, said in sorted(words.items())}
        advertised = [held for (table, _), mine in live.items() if table == "srt" for held in mine]
        publishers = _Publishers(advertised)
        for (table, client), mine in live.items():
            for held in mine:
                where: Iterable[str] = self._tree
                if table == "prt":
                    where = self._ways(held.hop, publishers.edges(held))
                for node in where:
                    hop = self._hop(node, held.hop, client)
                    self._lines[node][table, client, held.kind, held.text, hop] += 1

    def at(self, node: str) -> Counter[Line]:
        return self._lines[node]

    def _hop(self, node: str, edge: str, client: str) -> str:
        return f"@{client}" if node == edge else self._ways_to(edge)[node]

    def _ways_to(self, edge: str) -> dict[str, str]:
        """At each broker, the neighbour that leads to this one."""
        found = self._towards.get(edge)
        if found is None:
            found = self._towards[edge] = {}
            todo = [edge]
            for node in todo:
                for other in self._tree.get(node, ()):
                    if other != edge and other not in found:
                        found[other] = node
                        todo.append(other)
        return found

    def _ways(self, edge: str, others: Iterable[str]) -> dict[str, None]:
        """The brokers between one and others, itself included."""
        found = {edge: None}
        towards = self._ways_to(edge)
        for other in others:
            while other not in found:
                found[other] = None
                other = towards[other]
        return found


def _live(said: list[Word]) -> list[Held]:
    """What still counts of one client's words in one table."""
    index: Index[Held] = Index()
    held: dict[int, Held] = {}
    for word in sorted(said, key=lambda word: word.key[2]):
        number = word.key[2]
        settled = settle(index.overlapping, word.box, word.positive)
        for gone in settled.drop:
            index.remove(held.pop(gone))
        if settled.store:
            held[number] = Held(word, number)
            index.insert(held[number])
    return list(held.values())


class _Publishers:
    """Behind which brokers somebody may publish for a subscription."""

    def __init__(self, advertised: Iterable[Held]) -> None:
        self._yes: Index[Held] = Index()
        self._no: Index[Held] = Index()
        self._found: dict[str, tuple[str, ...]] = {}
        for held in advertised:
            (self._yes if held.positive else self._no).insert(held)

    def edges(self, held: Held) -> tuple[str, ...]:
        """Edge brokers; asked again and again for few filters."""
        found = self._found.get(held.text)
        if found is None:
            found = self._found[held.text] = tuple(self._search(held.filter))
        return found

    def _search(self, filter: Filter) -> Iterator[str]:
        holes: dict[str, list[Held]] = {}
        for hole in self._no.overlapping(filter):
            holes.setdefault(hole.client, []).append(hole)
        edges: dict[str, None] = {}
        for yes in self._yes.overlapping(filter):
            if yes.hop not in edges and reaches(yes, filter, holes.get(yes.client, ())):
                edges[yes.hop] = None
        yield from edges


def expected_tables(history: History) -> Mapping[str, Counter[Line]]:
    """What all brokers should hold, for comparison with other oracles."""
    expected = Expected(history)
    return {node: expected.at(node) for node in sorted(history.tree)}
