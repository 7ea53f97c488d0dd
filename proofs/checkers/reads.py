"""What publications were routed on: one state of the tables, that of their view, at all brokers.

dirty      a transaction's publication was routed on what was not committed, or saw a part of
           what another transaction has changed and not the rest
handover   a plain publication did: it fell on both sides of a commit, or on neither; or of one
           client's publications a later one fell on the side before
partial    a transaction's publication did not go to somebody for whom its tables have it
divergence a plain publication did not go where the tables say, with no transaction near
"""

from __future__ import annotations

from collections.abc import Iterator

from overlay.identity import parse_name
from proofs.checkers.anomalies import ISOLATED, Anomaly
from proofs.checkers.conflicts import Conflicts, Edge, Unit
from proofs.checkers.replay import Looked, Replay
from proofs.history import VERSIONED, History, Tx


def check(history: History, replay: Replay, conflicts: Conflicts) -> Iterator[Anomaly]:
    for looked in replay.looked:
        yield from _off_the_tables(history, looked)
        yield from _uncommitted(history, replay, looked)
    yield from _fractured(history, conflicts)
    yield from _back_again(history, conflicts)


def _what(looked: Looked) -> str:
    record = looked.event.record
    return f"at {looked.event.record.node}, {record.op_id} {record.filter}"


def _off_the_tables(history: History, looked: Looked) -> Iterator[Anomaly]:
    """Where it went is where the tables sent it."""
    record = looked.event.record
    went = frozenset(record.dests)
    if went == looked.hops:
        return
    publication = looked.event.publication
    tx = publication.tx if publication is not None else None
    missed, extra = sorted(looked.hops - went), sorted(went - looked.hops)
    parts = [f"does not go to {hop.lstrip('@')}" for hop in missed]
    parts += [f"goes to {hop.lstrip('@')}" for hop in extra]
    story = f"{_what(looked)} {' and '.join(parts)}, against the tables on its view"
    if tx is not None:
        yield Anomaly("partial" if missed else "dirty", tx.engine, tx.name, story)
        return
    near = _versions_at(history, looked)
    if near:
        yield Anomaly("handover", history.txs[near[0]].engine, near[0], f"{story} ({near[0]})")
    else:
        yield Anomaly("divergence", "", record.op_id, story)


def _versions_at(history: History, looked: Looked) -> list[str]:
    """The versions that matter for a view: those that it names, and those committed there."""
    named = {*looked.view.seen, *looked.view.hidden, *looked.view.committed}
    return sorted(name for name in named if name in history.txs)


def _uncommitted(history: History, replay: Replay, looked: Looked) -> Iterator[Anomaly]:
    """Nobody is led by what is not committed; who does not count is not asked."""
    publication = looked.event.publication
    reader = publication.tx if publication is not None else None
    if reader is not None and not reader.committed:
        return
    node, at = looked.event.record.node, looked.event.at
    for name in sorted(looked.view.seen):
        tx = history.txs.get(name)
        if tx is not None and tx is not reader and not history.committed_at(tx, node, at):
            yield _dirty(looked, reader, tx, "which is not committed there")
            return
    for entry in looked.entries:
        tx = replay.writer(entry)
        if tx is not None and tx is not reader and tx.outcome == "aborted":
            said = entry.event.record
            yield _dirty(looked, reader, tx, f"{said.op_kind} {said.filter}, which was aborted")
            return


def _dirty(looked: Looked, reader: Tx | None, tx: Tx, what: str) -> Anomaly:
    story = f"{_what(looked)} was routed on {tx.name}'s changes: {what}"
    if reader is None:
        return Anomaly("handover", tx.engine, tx.name, story)
    return Anomaly("dirty", reader.engine, reader.name, story)


def _fractured(history: History, conflicts: Conflicts) -> Iterator[Anomaly]:
    for (writer, reader), edges in conflicts.edges.items():
        back = conflicts.edges.get((reader, writer))
        if back is None or writer.kind != "tx":
            continue
        saw = _publication_of(reader, edges, seen=True)
        missed = _publication_of(reader, back, seen=False)
        if saw is None or missed is None:
            continue
        tx = history.txs[writer.name]
        story = f"{_saw(saw)}; {_saw(missed)}"
        if reader.kind == "pub":
            yield Anomaly("handover", tx.engine, tx.name, f"{story}: on both sides of {tx.name}")
        else:
            engine = history.txs[reader.name].engine
            yield Anomaly("dirty", engine, reader.name, f"{story}: a part of {tx.name}")


def _publication_of(reader: Unit, edges: list[Edge], *, seen: bool) -> Edge | None:
    for edge in edges:
        if edge.read.unit == reader and edge.seen == seen and edge.read.is_publication:
            return edge
    return None


def _saw(edge: Edge) -> str:
    read, write = edge.read.event.record, edge.write.event.record
    how = "saw" if edge.seen else "did not see"
    return f"at {edge.node}, {read.op_id} {read.filter} {how} {write.client}'s {_operation(edge)}"


def _operation(edge: Edge) -> str:
    write = edge.write.event.record
    return f"{write.op_kind} {write.filter} ({write.op_id})" if write.op_id else "leaving"


def _back_again(history: History, conflicts: Conflicts) -> Iterator[Anomaly]:
    """Of a client's plain publications those after a commit follow those before it."""
    sides: dict[tuple[str, str, int], list[tuple[int, bool, Edge]]] = {}
    for edges in conflicts.edges.values():
        for edge in edges:
            reader, writer = edge.read.unit, edge.write.unit
            if reader.kind != "pub" or writer.kind != "tx":
                continue
            tx = history.txs[writer.name]
            if tx.engine not in VERSIONED and tx.engine not in ISOLATED:
                continue  # Of what is not versioned, a later one may fall before at another broker.
            named = parse_name(reader.name)
            assert named is not None, reader.name
            client, life, number = named
            whose = (writer.name, client, life)
            sides.setdefault(whose, []).append((number, edge.seen, edge))
            break
    for (name, client, _), seen in sides.items():
        after: Edge | None = None
        for _, is_after, edge in sorted(seen, key=lambda side: side[0]):
            if is_after:
                after = after or edge
            elif after is not None:
                story = f"{_saw(after)}; later {_saw(edge)}: {client} is back before {name}"
                yield Anomaly("handover", history.txs[name].engine, name, story)
                break
