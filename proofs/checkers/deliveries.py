"""Publications: each delivered to each client once, and those of a transaction at its commit.

Whether a publication goes where the brokers' tables say is checked in `reads`; here it is followed
from broker to broker: a publication that a broker forwards must arrive, one that it has for a
client must be delivered, and a client that is still connected must have received it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from padres_tx.audit.promises import SPLIT_BY_RESTARTS
from proofs.checkers.anomalies import Anomaly
from proofs.history import History, Publication, TraceEvent


def check(history: History) -> Iterator[Anomaly]:
    for publication in history.publications.values():
        yield from _duplicates(publication)
        excused = history.restarted and _engine(publication) in SPLIT_BY_RESTARTS
        if publication.tx is not None and not excused:
            yield from _untimely(publication)
        if history.complete and not history.restarted:
            yield from _lost(history, publication)
    if history.clients is not None:
        yield from _received(history)


def _engine(publication: Publication) -> str:
    return publication.tx.engine if publication.tx is not None else ""


def _duplicates(publication: Publication) -> Iterator[Anomaly]:
    if len(publication.delivered) == 1 and len(publication.delivered[0].record.dests) == 1:
        return
    handed = Counter(hop for event in publication.delivered for hop in event.record.dests)
    for hop, times in handed.items():
        if times > 1:
            where = sorted(e.record.node for e in publication.delivered if hop in e.record.dests)
            story = (
                f"{publication.name} {publication.text} is delivered to {hop[1:]} {times} times,"
                f" at {', '.join(where)}"
            )
            yield Anomaly("duplicate", _engine(publication), publication.name, story)


def _untimely(publication: Publication) -> Iterator[Anomaly]:
    """Publications of a transaction are delivered after its commit only."""
    tx = publication.tx
    assert tx is not None
    for event in publication.delivered:
        node, to = event.record.node, ", ".join(hop[1:] for hop in event.record.dests)
        what = f"{to} receives {publication.name} {publication.text} at {node}"
        if tx.outcome == "aborted":
            yield Anomaly("partial", tx.engine, tx.name, f"{what}, though {tx.name} is aborted")
        elif not tx.outcome:
            yield Anomaly("partial", tx.engine, tx.name, f"{what}, and {tx.name} is not decided")
        elif node in tx.begun and not _is_committed(publication, event):
            story = f"{what}, before {tx.name} is committed there"
            yield Anomaly("partial", tx.engine, tx.name, story)


def _is_committed(publication: Publication, event: TraceEvent) -> bool:
    """Whether the publication's transaction was committed before the event at its node."""
    assert publication.tx is not None
    at, outcome = publication.tx.decided.get(event.record.node, (event.at, ""))
    return outcome == "committed" and at < event.at


def _lost(history: History, publication: Publication) -> Iterator[Anomaly]:
    """A publication arrives at every broker and client that it was sent to."""
    tx = publication.tx
    if tx is not None and not tx.committed:
        return
    is_tcm = publication.published.record.op_kind == "tcm"
    handed = {hop for event in publication.delivered for hop in event.record.dests}
    for node, event in publication.matched.items():
        for hop in event.record.dests:
            if hop.startswith("@"):
                if hop not in handed and not is_tcm:
                    yield _missing(
                        publication, f"{node} has it for {hop[1:]}, which never receives it"
                    )
            elif hop not in publication.matched:
                yield _missing(publication, f"{node} sends it to {hop}, where it never arrives")


def _missing(publication: Publication, what: str) -> Anomaly:
    tx = publication.tx
    story = f"{publication.name} {publication.text}: {what}"
    if tx is None:
        return Anomaly("lost", "", publication.name, story)
    return Anomaly("partial", tx.engine, tx.name, f"{story}; the rest of {tx.name} took effect")


def _received(history: History) -> Iterator[Anomaly]:
    """What clients received, compared with what brokers delivered."""
    assert history.clients is not None
    left = {client for client, _ in history.gone}
    for client, got in sorted(history.clients.received.items()):
        for name, times in Counter(got).items():
            if times > 1:
                story = f"{client} received {name} {times} times"
                yield Anomaly("duplicate", history.engine_of(name), name, story)
    if not history.complete or history.restarted:
        return
    received = {client: frozenset(got) for client, got in history.clients.received.items()}
    for publication in history.publications.values():
        for event in publication.delivered:
            for hop in event.record.dests:
                client = hop[1:]
                if client not in left and publication.name not in received.get(client, ()):
                    yield _missing(
                        publication, f"it was delivered to {client}, which did not receive it"
                    )
