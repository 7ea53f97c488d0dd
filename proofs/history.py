"""What happened in one run, as the checkers read it: each node's events, and what they belong to.

A history consists of trace records, which are the same in the simulator and in the files of broker
processes. What records do not contain is added where it is known: what each client received
(`ClientObservations`), the tables at the end, and what still waited then. This module puts the
records into the order of their nodes and works out, once for all checkers,

- the transactions, clients, routing operations (`TracedOperation`) and publications;
- which operations reached a broker directly, and which because of another one (attracted or taken
  back by an (un-)advertisement): the sender's record says so, and links are FIFO.

A client that leaves and comes back numbers from 1 again. Names of publications and transactions
contain the client's life; the lives of routing operations are told apart by counting.

This module does not decide what is right or wrong.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

from overlay.filters import Value
from overlay.hosts.simulator import Simulator
from overlay.identity import name_text, parse_name
from overlay.messages import AnyMessage, EngineMessage, Pub, client_hop
from overlay.notation import format_filter
from overlay.trace import Record
from padres_tx.audit.promises import REPLICATED, VERSIONED
from padres_tx.audit.record_fields import (
    NO_CHANGE,
    change_of,
    filter_of,
    point_of,
    table_of,
)
from padres_tx.client_messages import Ended, TxID, to_client, tx_text

#: An Ended with one of these codes answers a message that came too late; it is not a decision.
LATE = frozenset({"unknown", "foreign", "finished"})

#: The key of a client's operation or publication: the client, its life, and the number. Lives of
#: publications are those that brokers have issued; lives of operations are counted at each node.
Key: TypeAlias = tuple[str, int, int]


class ClientObservations:
    """What clients received: call `observe` with every message that a client receives."""

    def __init__(self) -> None:
        #: The names of the publications that each client received, in order.
        self.received: dict[str, list[str]] = {}
        #: The outcome of each transaction according to each client that was told one.
        self.outcomes: dict[str, dict[str, bool]] = {}
        #: The transactions that coordinators have begun, with their engines.
        self.asked: dict[str, str] = {}

    def observe(self, client: str, message: AnyMessage) -> None:
        if isinstance(message, Pub):
            name = name_text(message.client, message.life, message.seq)
            self.received.setdefault(client, []).append(name)
        elif isinstance(message, EngineMessage):
            told = to_client.decode(message.body)
            if isinstance(told, Ended) and told.code not in LATE:
                self.outcomes.setdefault(tx_text(told.tx), {})[client] = told.committed

    def note_begin(self, engine: str, tx: TxID) -> None:
        """Note that a coordinator has begun or submitted a transaction."""
        self.asked[tx_text(tx)] = engine


class TableRow(NamedTuple):
    """One row of a broker's table at the end."""

    table: str
    client: str
    number: int
    kind: str
    filter: str
    hop: str
    #: Transactions whose marks it still carries.
    marks: tuple[str, ...] = ()


class TraceEvent:
    """A record with its place among those of its node."""

    __slots__ = ("at", "cause", "change", "key", "life", "moved_by", "publication", "record")

    def __init__(self, record: Record, at: int, life: int) -> None:
        self.record = record
        self.at = at
        #: The life of its client that it belongs to.
        self.life = life
        self.key: Key | None = None
        if "#" in record.op_id:
            self.key = (record.client, life, int(record.op_id.rpartition("#")[2]))
        elif record.op_id:
            self.key = parse_name(record.op_id)
            assert self.key is not None, record.op_id
        self.change = NO_CHANGE
        #: The (un-)advertisement that moved the entry here; None if it came directly.
        self.cause: Key | None = None
        #: The broker that moved it for that reason; it may have passed others since.
        self.moved_by = ""
        #: The publication of a match or a delivery.
        self.publication: Publication | None = None

    def __repr__(self) -> str:
        return f"<{self.record.node}:{self.at} {self.record.kind} {self.record.op_id}>"


class TracedTransaction:
    """A transaction, and where in each node's events it began, was decided and ended."""

    __slots__ = (
        "begun",
        "changed_mind",
        "decided",
        "edge",
        "ended",
        "engine",
        "name",
        "neighbours",
        "outcome",
    )

    def __init__(self, name: str, engine: str) -> None:
        self.name = name
        self.engine = engine
        #: The coordinator's edge broker.
        self.edge = ""
        self.begun: dict[str, int] = {}
        #: The neighbours of each node that it reached, including the one that it came from.
        self.neighbours: dict[str, frozenset[str]] = {}
        self.decided: dict[str, tuple[int, str]] = {}
        #: Nodes that have decided a second time, with another outcome.
        self.changed_mind: list[tuple[str, str]] = []
        self.ended: dict[str, int] = {}
        #: "committed", "aborted" or "", as the coordinator's edge broker decided.
        self.outcome = ""

    @property
    def committed(self) -> bool:
        return self.outcome == "committed"


class TracedOperation:
    """A routing operation of a client, as it was recorded at its edge broker."""

    __slots__ = ("box", "edge", "event", "key", "kind", "text", "tx")

    def __init__(self, event: TraceEvent, tx: TracedTransaction | None) -> None:
        record = event.record
        assert event.key is not None
        self.key = event.key
        self.kind = record.op_kind
        self.text = record.filter
        self.box = filter_of(record.filter)
        self.edge = record.node
        self.event = event
        self.tx = tx

    @property
    def name(self) -> str:
        return self.event.record.op_id

    @property
    def positive(self) -> bool:
        return self.kind in ("sub", "adv")

    @property
    def table(self) -> str:
        return table_of(self.kind)

    @property
    def counts(self) -> bool:
        """Whether it has taken effect: it is plain, or its transaction was committed."""
        return self.tx is None or self.tx.committed


class Publication:
    """A publication or tcm: where it entered, and its records at each node."""

    __slots__ = ("delivered", "key", "matched", "published", "text", "tx")

    def __init__(self, published: TraceEvent, tx: TracedTransaction | None) -> None:
        assert published.key is not None
        self.key = published.key
        self.text = published.record.filter
        self.tx = tx
        self.published = published
        self.matched: dict[str, TraceEvent] = {}
        self.delivered: list[TraceEvent] = []

    @property
    def name(self) -> str:
        return self.published.record.op_id

    @property
    def point(self) -> Mapping[str, Value]:
        return point_of(self.text)


class History:
    """One run. `check` in `proofs.checkers` judges it."""

    def __init__(
        self,
        records: Iterable[Record],
        *,
        clients: ClientObservations | None = None,
        tables: Mapping[str, Iterable[TableRow]] | None = None,
        unrest: Mapping[str, str] | None = None,
        complete: bool = True,
        restarted: Iterable[str] = (),
    ) -> None:
        """`complete`: the records reach to where everything was at rest. `restarted`: nodes that
        are known to have lost their state; others show it by their numbers."""
        self.clients = clients
        self.tables = None if tables is None else {n: list(rows) for n, rows in tables.items()}
        #: By broker, what still waited there at the end.
        self.unrest = dict(unrest or {})
        self.complete = complete
        self.events: dict[str, list[TraceEvent]] = {}
        self.txs: dict[str, TracedTransaction] = {}
        self.operations: dict[Key, TracedOperation] = {}
        self.publications: dict[Key, Publication] = {}
        #: The brokers that each client has joined at, and the lives of clients that have ended at
        #: some node.
        self.homes: dict[str, set[str]] = {}
        self.gone: set[tuple[str, int]] = set()
        #: How often each client has left, as far as any node knows: the number of its last life.
        self.lives: dict[str, int] = {}
        #: Nodes whose numbers begin again: the broker's state was lost.
        self.restarted = set(restarted)
        self._read(records)
        self._find_causes()

    @classmethod
    def from_simulator(
        cls,
        sim: Simulator,
        clients: ClientObservations | None = None,
        *,
        complete: bool = True,
        restarted: Iterable[str] = (),
    ) -> History:
        """The run of a simulator whose brokers trace; `complete` if it is at rest."""
        tables: dict[str, list[TableRow]] = {}
        unrest: dict[str, str] = {}
        for name, broker in sim.brokers.items():
            tables[name] = []
            spaces = [("prt", broker.routing.prt)]
            spaces += [("srt", space) for _, space in sorted(broker.routing.srt.items())]
            for table, space in spaces:
                yes, no = ("sub", "usub") if table == "prt" else ("adv", "uadv")
                for entry in space:
                    marks = [entry.added_by] if entry.added_by else []
                    tables[name].append(
                        TableRow(
                            table,
                            entry.client,
                            entry.seq,
                            yes if entry.positive else no,
                            format_filter(entry.filter),
                            entry.hop,
                            tuple(tx_text(mark) for mark in (*marks, *entry.removed_by)),
                        )
                    )
            waits = [] if broker.at_rest else ["operations wait"]
            for engine in broker.engines.values():
                waits += [f"{tx_text(tx)} is open" for tx in engine.transactions()]
            if waits:
                unrest[name] = ", ".join(waits)
        return cls(
            sim.records,
            clients=clients,
            tables=tables,
            unrest=unrest,
            complete=complete,
            restarted=restarted,
        )

    # --- reading ---

    def _read(self, records: Iterable[Record]) -> None:
        lives: dict[tuple[str, str], int] = {}
        last: dict[str, int] = {}
        for record in records:
            node, client = record.node, record.client
            # A new life of a broker numbers from 1; records that are merely repeated do not.
            if record.seq == 1 and last.get(node, 0) > 1:
                self.restarted.add(node)
            last[node] = record.seq
            events = self.events.setdefault(node, [])
            event = TraceEvent(record, len(events), lives.get((node, client), 0))
            events.append(event)
            if record.kind in ("apply", "undo") or (record.kind == "end" and not record.tx):
                event.change = change_of(record.outcome)
            if record.tx:
                self._of_transaction(event)
            elif record.kind == "begin" and record.source == client_hop(client):
                self.homes.setdefault(client, set()).add(node)
            elif record.kind == "end":
                self.gone.add((client, event.life))
                lives[node, client] = event.life + 1
                self.lives[client] = max(self.lives.get(client, 0), event.life + 1)
            if event.key is not None and record.source == client_hop(client):
                self._enters(event)
        self._follow_publications()

    def _of_transaction(self, event: TraceEvent) -> None:
        record = event.record
        tx = self.txs.get(record.tx)
        if tx is None:
            tx = self.txs[record.tx] = TracedTransaction(record.tx, record.engine)
        node = record.node
        if record.kind == "begin":
            tx.begun.setdefault(node, event.at)
            tx.neighbours[node] = frozenset({*record.dests, record.source})
            if record.source.startswith("@"):
                tx.edge = node
        elif record.kind == "decide":
            first = tx.decided.setdefault(node, (event.at, record.outcome))[1]
            if first != record.outcome:
                tx.changed_mind.append((node, record.outcome))
            if node == tx.edge or not tx.outcome:
                tx.outcome = tx.decided[tx.edge][1] if tx.edge in tx.decided else first
        elif record.kind == "end":
            tx.ended.setdefault(node, event.at)

    def _enters(self, event: TraceEvent) -> None:
        """An operation or publication of a client has reached its edge broker."""
        assert event.key is not None
        tx = self.txs.get(event.record.tx)
        if event.record.kind == "apply":
            self.operations.setdefault(event.key, TracedOperation(event, tx))

    def _follow_publications(self) -> None:
        """Collect the records of each publication from all nodes."""
        named: dict[str, Publication] = {}
        for events in self.events.values():
            for event in events:
                if event.record.kind == "publish" and event.key is not None:
                    tx = self.txs.get(event.record.tx)
                    publication = Publication(event, tx)
                    self.publications.setdefault(event.key, publication)
                    named.setdefault(event.record.op_id, publication)
        for node, events in self.events.items():
            for event in events:
                record = event.record
                if record.kind not in ("match", "deliver") or event.key is None:
                    continue
                found = named.get(record.op_id)
                if found is None:
                    # There is no record of where it entered.
                    found = Publication(event, self.txs.get(record.tx))
                    self.publications.setdefault(event.key, found)
                    named[record.op_id] = found
                event.publication = found
                if record.kind == "match":
                    found.matched.setdefault(node, event)
                else:
                    found.delivered.append(event)

    def _find_causes(self) -> None:
        """Distinguish operations that came directly from those that another one has moved."""
        sent: defaultdict[tuple[str, str, str, str, int], deque[TraceEvent | Key]] = defaultdict(
            deque
        )
        changes = [
            event
            for events in self.events.values()
            for event in events
            if event.record.kind in ("apply", "undo", "end")
        ]
        for event in changes:
            record, version = event.record, _version(event)
            if event.key is not None:
                for dest in record.dests:
                    sent[record.node, dest, version, record.client, event.key[2]].append(event)
            for client, number, dest in event.change.moved:
                cause = event.key or (record.client, event.life, 0)
                sent[record.node, dest, version, client, number].append(cause)
        # An entry that was moved goes on from there for the same reason.
        passed_on: dict[TraceEvent, TraceEvent] = {}
        for event in changes:
            record = event.record
            if event.key is None or _by_plan(event):
                continue
            came = sent.get((record.source, record.node, _version(event), *_short(event.key)))
            if came:
                by = came.popleft()
                if isinstance(by, TraceEvent):
                    passed_on[event] = by
                else:
                    event.cause, event.moved_by = by, record.source
        for event in list(passed_on):
            way = [event]
            while way[-1] in passed_on:
                way.append(passed_on.pop(way[-1]))
            for one in way[:-1]:
                one.cause, one.moved_by = way[-1].cause, way[-1].moved_by

    # --- asking ---

    def operation_of(self, event: TraceEvent) -> TracedOperation | None:
        return self.operations.get(event.key) if event.key is not None else None

    def engine_of(self, publication: str) -> str:
        """The engine of the transaction of a publication with that name, or ""."""
        return self._engines.get(publication, "")

    @cached_property
    def _engines(self) -> dict[str, str]:
        return {p.name: p.tx.engine for p in self.publications.values() if p.tx is not None}

    @cached_property
    def tree(self) -> dict[str, tuple[str, ...]]:
        """Each broker's neighbours, as far as anything went between them."""
        found: dict[str, set[str]] = {node: set() for node in self.events}
        for node, events in self.events.items():
            for event in events:
                for hop in (event.record.source, *event.record.dests):
                    if hop and not hop.startswith("@"):
                        found[node].add(hop)
                        found.setdefault(hop, set()).add(node)
        return {node: tuple(sorted(others)) for node, others in sorted(found.items())}

    @cached_property
    def outages(self) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """For each node and neighbour: from which of the node's events to which the neighbour was
        unreachable; the end of the events if it was so at the end."""
        found: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for node, events in self.events.items():
            for event in events:
                if event.record.kind not in ("down", "up"):
                    continue
                outages = found.setdefault((node, event.record.source), [])
                if event.record.kind == "down":
                    outages.append((event.at, len(events)))
                elif outages:
                    outages[-1] = (outages[-1][0], event.at)
        return found

    @cached_property
    def applied(self) -> dict[tuple[str, Key], list[TraceEvent]]:
        """The events of each operation at each node, in order."""
        found: dict[tuple[str, Key], list[TraceEvent]] = {}
        for node, events in self.events.items():
            for event in events:
                if event.key is not None and event.record.kind in ("apply", "undo"):
                    found.setdefault((node, event.key), []).append(event)
        return found

    def committed_at(self, tx: TracedTransaction, node: str, at: int) -> bool:
        """Whether a transaction was committed at a node before one of its events."""
        when, outcome = tx.decided.get(node, (at, ""))
        return outcome == "committed" and when < at


# --- helpers ---


def _version(event: TraceEvent) -> str:
    """The version in which an operation is forwarded; one that has none is forwarded as plain."""
    return event.record.tx if event.record.engine in VERSIONED else ""


def _by_plan(event: TraceEvent) -> bool:
    """Whether a broker has done it on its own, as the plan of a static transaction says."""
    record = event.record
    return record.engine in REPLICATED and record.op_kind in ("sub", "usub")


def _short(key: Key) -> tuple[str, int]:
    return key[0], key[2]
