"""The reads of publications: one state of the tables, that of their view, at all brokers.

dirty      a transaction's publication was routed on an uncommitted change, or saw a part of the
           changes of another transaction and not the rest
handover   a plain publication did: it fell on both sides of a commit, or on neither; or of one
           client's publications a later one fell on the side before
partial    a transaction's publication did not go to a client that its tables have it for
divergence a plain publication did not go where the tables say, with no transaction near
"""

from __future__ import annotations

from collections.abc import Iterator

from overlay.identity import parse_name
from padres_tx.audit.dependency_graph import Unit
from padres_tx.audit.promises import ISOLATED, VERSIONED, AnomalyKind
from padres_tx.audit.replay import Dependency, Misrouting, UncommittedRead
from padres_tx.audit.replayed_tables import ReplayStep
from proofs.checkers.anomalies import Anomaly
from proofs.checkers.replay import Replay
from proofs.history import History

#: The kinds that a replay gives to a publication that was routed wrongly.
_KINDS: dict[str, AnomalyKind] = {
    "dirty": "dirty",
    "handover": "handover",
    "partial": "partial",
    "divergence": "divergence",
}


def check(history: History, replay: Replay) -> Iterator[Anomaly]:
    for found in replay.misrouted:
        story = _misrouted(found) if isinstance(found, Misrouting) else _uncommitted(found)
        yield Anomaly(_KINDS[found.kind], found.engine, found.tx, story)
    yield from _fractured(history, replay)
    yield from _back_again(history, replay)


def _publication(step: ReplayStep) -> str:
    return f"at {step.node}, {step.op_id} {step.filter}"


def _misrouted(found: Misrouting) -> str:
    parts = [f"does not go to {hop.lstrip('@')}" for hop in found.missed]
    parts += [f"goes to {hop.lstrip('@')}" for hop in found.extra]
    near = f" ({found.tx})" if found.kind == "handover" else ""
    routed = f"{_publication(found.step)} {' and '.join(parts)}"
    return f"{routed}, against the tables of its view{near}"


def _uncommitted(found: UncommittedRead) -> str:
    change = "which is not committed there"
    if found.entry is not None:
        added = found.entry.step
        change = f"{added.op_kind} {added.filter}, which was aborted"
    return f"{_publication(found.step)} was routed on {found.writer}'s changes: {change}"


def _fractured(history: History, replay: Replay) -> Iterator[Anomaly]:
    for (writer, reader), reasons in replay.dependencies.items():
        back = replay.dependencies.get((reader, writer))
        if back is None or writer.kind != "tx":
            continue
        saw = _publication_of(reader, reasons, seen=True)
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


def _publication_of(reader: Unit, reasons: list[Dependency], *, seen: bool) -> Dependency | None:
    for reason in reasons:
        if reason.read.unit == reader and reason.seen == seen and reason.read.is_publication:
            return reason
    return None


def _saw(reason: Dependency) -> str:
    write = reason.write.step
    operation = f"{write.op_kind} {write.filter} ({write.op_id})" if write.op_id else "leaving"
    how = "saw" if reason.seen else "did not see"
    return f"{_publication(reason.read.step)} {how} {write.client}'s {operation}"


def _back_again(history: History, replay: Replay) -> Iterator[Anomaly]:
    """Of a client's plain publications those after a commit follow those before it."""
    sides: dict[tuple[str, str, int], list[tuple[int, bool, Dependency]]] = {}
    for reasons in replay.dependencies.values():
        for reason in reasons:
            reader, writer = reason.read.unit, reason.write.unit
            if reader.kind != "pub" or writer.kind != "tx":
                continue
            tx = history.txs[writer.name]
            if tx.engine not in VERSIONED and tx.engine not in ISOLATED:
                continue  # Without versions, a later one may fall before at another broker.
            named = parse_name(reader.name)
            assert named is not None, reader.name
            client, life, number = named
            whose = (writer.name, client, life)
            sides.setdefault(whose, []).append((number, reason.seen, reason))
            break
    for (name, client, _), seen in sides.items():
        after: Dependency | None = None
        for _, is_after, reason in sorted(seen, key=lambda side: side[0]):
            if is_after:
                after = after or reason
            elif after is not None:
                story = f"{_saw(after)}; later {_saw(reason)}: {client} is back before {name}"
                yield Anomaly("handover", history.txs[name].engine, name, story)
                break
