"""What happened in one run, as the checkers see it: each node's events, and what they belong to.

A history is made of trace records; they are the same in the simulator and in the files of broker
processes. What they cannot carry is added if somebody knows it: what each client was told
(`Clients`), the tables at the end, and what still waited then. Here the records are put into
the order of their nodes, and it is worked out once for all checkers

- which transactions, clients, routing operations (`Word`) and publications there were,
- which operations reached a broker on their own way, and which in consequence of another one
  (attracted or sent back by an (un-)advertisement): the sender's record says so, and links are
  FIFO.

A client that leaves and comes back begins to count again. Publications and transactions have the
client's life in their names; of routing operations its lives are told apart by counting.

This module tells nothing right from wrong.
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

#: An end with one of these codes answers something that was said too late; it is no decision.
LATE = frozenset({"unknown", "foreign", "finished"})

#: A client's operation or publication: the client, which of its lives, and its number. Lives of
#: publications are those that brokers have issued; of operations they are counted at each node.
Key: TypeAlias = tuple[str, int, int]


class Clients:
    """What clients were told: hand `saw` every message that a client gets."""

    def __init__(self) -> None:
        #: The names of the publications that each client got, in their order.
        self.received: dict[str, list[str]] = {}
        #: The outcome of each transaction according to each client that was told one.
        self.outcomes: dict[str, dict[str, bool]] = {}
        #: The transactions that coordinators have asked for, with their engines.
        self.asked: dict[str, str] = {}

    def saw(self, client: str, message: AnyMessage) -> None:
        if isinstance(message, Pub):
            name = name_text(message.client, message.life, message.seq)
            self.received.setdefault(client, []).append(name)
        elif isinstance(message, EngineMessage):
            told = to_client.decode(message.body)
            if isinstance(told, Ended) and told.code not in LATE:
                self.outcomes.setdefault(tx_text(told.tx), {})[client] = told.committed

    def asks(self, engine: str, tx: TxID) -> None:
        """A coordinator has begun a transaction, or submitted one."""
        self.asked[tx_text(tx)] = engine


class Row(NamedTuple):
    """One line of a broker's table at the end."""

    table: str
    client: str
    number: int
    kind: str
    filter: str
    hop: str
    #: Transactions whose marks it still carries.
    marks: tuple[str, ...] = ()


class Event:
    """A record in its place among those of its node."""

    __slots__ = ("at", "cause", "change", "key", "life", "publication", "record")

    def __init__(self, record: Record, at: int, life: int) -> None:
        self.record = record
        self.at = at
        #: Which life of its client it belongs to.
        self.life = life
        self.key: Key | None = None
        if "#" in record.op_id:
            self.key = (record.client, life, int(record.op_id.rpartition("#")[2]))
        elif record.op_id:
            self.key = parse_name(record.op_id)
            assert self.key is not None, record.op_id
        self.change = NO_CHANGE
        #: The (un-)advertisement in consequence of which an entry came here; None: its own way.
        self.cause: Key | None = None
        #: What a match or a delivery is of.
        self.publication: Publication | None = None

    def __repr__(self) -> str:
        return f"<{self.record.node}:{self.at} {self.record.kind} {self.record.op_id}>"


class Tx:
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
        #: The neighbours of each node that it went to, the one that it came from included.
        self.neighbours: dict[str, frozenset[str]] = {}
        self.decided: dict[str, tuple[int, str]] = {}
        #: Nodes that have decided once more, and otherwise.
        self.changed_mind: list[tuple[str, str]] = []
        self.ended: dict[str, int] = {}
        #: "committed", "aborted", or nothing; the coordinator's edge broker has the say.
        self.outcome = ""

    @property
    def committed(self) -> bool:
        return self.outcome == "committed"


class Word:
    """A routing operation of a client: what it has said at its edge broker."""

    __slots__ = ("box", "edge", "event", "key", "kind", "text", "tx")

    def __init__(self, event: Event, tx: Tx | None) -> None:
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
        """Whether it has become effective: said on its own, or in a committed transaction."""
        return self.tx is None or self.tx.committed


class Publication:
    """A publication or tcm: where it entered, and what became of it at each node."""

    __slots__ = ("delivered", "key", "matched", "published", "text", "tx")

    def __init__(self, published: Event, tx: Tx | None) -> None:
        assert published.key is not None
        self.key = published.key
        self.text = published.record.filter
        self.tx = tx
        self.published = published
        self.matched: dict[str, Event] = {}
        self.delivered: list[Event] = []

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
        clients: Clients | None = None,
        tables: Mapping[str, Iterable[Row]] | None = None,
        unrest: Mapping[str, str] | None = None,
        complete: bool = True,
        restarted: Iterable[str] = (),
    ) -> None:
        """`complete`: all records are there, up to where everything had come to rest. `restarted`:
        nodes that have lost their memory, if that is known; others show it by their numbers."""
        self.clients = clients
        self.tables = None if tables is None else {n: list(rows) for n, rows in tables.items()}
        #: By broker, what still waited there in the end.
        self.unrest = dict(unrest or {})
        self.complete = complete
        self.events: dict[str, list[Event]] = {}
        self.txs: dict[str, Tx] = {}
        self.words: dict[Key, Word] = {}
        self.publications: dict[Key, Publication] = {}
        #: The brokers that each client has come to, and the lives of clients that have ended
        #: somewhere.
        self.homes: dict[str, set[str]] = {}
        self.gone: set[tuple[str, int]] = set()
        #: How often each client has gone, so far as any node knows: which life the last one is.
        self.lives: dict[str, int] = {}
        #: Nodes whose numbers begin again: a broker's state was lost, and others' with it.
        self.restarted = set(restarted)
        self._read(records)
        self._find_causes()

    @classmethod
    def from_simulator(
        cls,
        sim: Simulator,
        clients: Clients | None = None,
        *,
        complete: bool = True,
        restarted: Iterable[str] = (),
    ) -> History:
        """The run of a simulator whose brokers trace; `complete` if it has come to rest."""
        tables: dict[str, list[Row]] = {}
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
                        Row(
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
            # A new life counts from 1; records that merely stand twice do not begin again.
            if record.seq == 1 and last.get(node, 0) > 1:
                self.restarted.add(node)
            last[node] = record.seq
            events = self.events.setdefault(node, [])
            event = Event(record, len(events), lives.get((node, client), 0))
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

    def _of_transaction(self, event: Event) -> None:
        record = event.record
        tx = self.txs.get(record.tx)
        if tx is None:
            tx = self.txs[record.tx] = Tx(record.tx, record.engine)
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

    def _enters(self, event: Event) -> None:
        """An operation or publication of a client has come to its edge broker."""
        assert event.key is not None
        tx = self.txs.get(event.record.tx)
        if event.record.kind == "apply":
            self.words.setdefault(event.key, Word(event, tx))

    def _follow_publications(self) -> None:
        """Put the records of each publication together; its own come with those of many nodes."""
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
                    # Where it entered nobody has written down.
                    found = Publication(event, self.txs.get(record.tx))
                    self.publications.setdefault(event.key, found)
                    named[record.op_id] = found
                event.publication = found
                if record.kind == "match":
                    found.matched.setdefault(node, event)
                else:
                    found.delivered.append(event)

    def _find_causes(self) -> None:
        """Tell the operations that came on their own way from those that others have moved."""
        sent: defaultdict[tuple[str, str, str, str, int], deque[Event | Key]] = defaultdict(deque)
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
        # What is moved somewhere goes on from there for the same reason.
        passed_on: dict[Event, Event] = {}
        for event in changes:
            record = event.record
            if event.key is None or _by_plan(event):
                continue
            came = sent.get((record.source, record.node, _version(event), *_short(event.key)))
            if came:
                by = came.popleft()
                if isinstance(by, Event):
                    passed_on[event] = by
                else:
                    event.cause = by
        for event in list(passed_on):
            way = [event]
            while way[-1] in passed_on:
                way.append(passed_on.pop(way[-1]))
            for one in way[:-1]:
                one.cause = way[-1].cause

    # --- asking ---

    def word(self, event: Event) -> Word | None:
        return self.words.get(event.key) if event.key is not None else None

    def engine_of(self, publication: str) -> str:
        """The engine in whose transaction a publication of that name was made; mostly none."""
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
    def applied(self) -> dict[tuple[str, Key], list[Event]]:
        """At each node the events of each word, in their order."""
        found: dict[tuple[str, Key], list[Event]] = {}
        for node, events in self.events.items():
            for event in events:
                if event.key is not None and event.record.kind in ("apply", "undo"):
                    found.setdefault((node, event.key), []).append(event)
        return found

    def committed_at(self, tx: Tx, node: str, at: int) -> bool:
        """Whether a transaction was committed at a node before one of its events."""
        when, outcome = tx.decided.get(node, (at, ""))
        return outcome == "committed" and when < at


# --- small things -------------------------------------------------------------------------------


def _version(event: Event) -> str:
    """In which version it goes on; what is not versioned may go on as if it were plain."""
    return event.record.tx if event.record.engine in VERSIONED else ""


def _by_plan(event: Event) -> bool:
    """Whether a broker has done it on its own, as the plan of a static transaction says."""
    record = event.record
    return record.engine in REPLICATED and record.op_kind in ("sub", "usub")


def _short(key: Key) -> tuple[str, int]:
    return key[0], key[2]
