"""Checks of a random run at rest: what clients received, what they were told, and the tables.

These checks look at the run from outside, with no model of how it came about: all clients and
brokers have one outcome; the publications of committed transactions, and no others, arrive once;
brokers are at rest with the tables that the oracle computes from what was committed; and every
event of the stream is on one side of every handover. What needs a model, such as serializability,
is checked in `proofs.checkers`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from overlay.filters import Filter, Value
from overlay.notation import parse_filter
from padres_tx.client_messages import TxID, tx_text
from proofs.checkers import Anomaly, is_promised
from proofs.oracle import ComparableRow, Oracle, broker_rows, holds, oracle_rows
from proofs.sim.program import SPACE, STREAM
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_sessions import SimulatedSessions, disagreements

#: Points and filters of the programs' event space, on which clients and brokers must agree.
POINTS: list[dict[str, Value]] = [{"class": "s"}]
POINTS += [{"class": "p", "x": x} for x in range(4)]
FILTERS = [SPACE, STREAM, *(Filter({"class": "p", "x": x}) for x in range(4))]


class RandomRunChecks:
    """The outcomes of one run, and its anomalies."""

    def __init__(self, run: RandomRun) -> None:
        self.run = run
        self.world = run.world
        self.outcomes: dict[str, list[str]] = {}
        for record in self.world.sim.records:
            if record.kind == "decide":
                self.outcomes.setdefault(record.tx, []).append(record.outcome)

    def committed(self, tx: TxID) -> bool:
        """Whether the coordinator's edge broker decided commit; it decides first."""
        return self.outcomes.get(tx_text(tx), [""])[0] == "committed"

    @property
    def commits(self) -> int:
        waited = sum(self._succeeded(asked) for asked in self.run.waited)
        return waited + sum(self.committed(tx) for tx, _, _ in self.run.attempts)

    @property
    def aborts(self) -> int:
        return len(self.run.attempts) + len(self.run.waited) - self.commits

    def _succeeded(self, asked: list[tuple[str, int]]) -> bool:
        return not any(self.world.done.get(request, "gone") for request in asked)

    def anomalies(self) -> Iterator[Anomaly]:
        """All anomalies, the worst first.

        After a restart only rest is checked here: other checks need a model of what the broker lost
        (`checkers.outcomes` has one for outcomes).
        """
        if self.run.restarted:
            yield from self._not_at_rest()
            return
        yield from self._decisions()
        yield from self._deliveries()
        yield from self._not_at_rest()
        yield from self._tables()
        yield from self._beliefs()
        yield from self._stream()

    # --- outcomes ---

    def _decisions(self) -> Iterator[Anomaly]:
        for tx, transaction, crashes in self.run.attempts:
            name, engine = tx_text(tx), transaction.engine
            told = {client: end.committed for client, end in self.world.ended_at[tx].items()}
            if len({*told.values()} | {o == "committed" for o in self.outcomes.get(name, ())}) > 1:
                text = f"clients were told {told}, brokers decided {self.outcomes.get(name)}"
                yield Anomaly("split", engine, name, text)
            alive = crashes == self.run.crashed.count(tx[0])
            if tx not in self.world.ended and alive:
                yield Anomaly("undecided", engine, name, f"{tx[0]} was never told the outcome")
        for client in self.run.program.clients:
            if not self.world.sim.connected(client) and client not in self.run.crashed:
                yield Anomaly("error", "", client, f"a broker closed the link of {client}")

    # --- deliveries ---

    def _deliveries(self) -> Iterator[Anomaly]:
        owners: dict[object, list[TxID]] = {}
        for tx, transaction, _ in self.run.attempts:
            for op in transaction.ops:
                if op.kind == "pub":
                    owners.setdefault(op.what["n"], []).append(tx)
        for client in self.run.program.clients:
            # Each publisher numbers its own events of the stream.
            seen = Counter(
                (p.client, p.point["class"], p.point["n"]) for p in self.world.got[client]
            )
            for (publisher, _, n), times in seen.items():
                if times > 1:
                    what = f"publication {n} of {publisher}"
                    text = f"{client} received {what} {times} times"
                    yield Anomaly("duplicate", "", publisher, text)
            for pub in self.world.got[client]:
                attempts = owners.get(pub.point["n"], []) if pub.point["class"] == "p" else []
                if attempts and not any(self.committed(tx) for tx in attempts):
                    name = tx_text(attempts[0])
                    text = f"{client} received publication {pub.point['n']} of aborted {name}"
                    yield Anomaly("partial", self._engine(attempts[0]), name, text)

    def _engine(self, tx: TxID) -> str:
        return next(transaction.engine for mine, transaction, _ in self.run.attempts if mine == tx)

    # --- rest ---

    def _not_at_rest(self) -> Iterator[Anomaly]:
        for name, broker in self.world.sim.brokers.items():
            for kind, engine in broker.engines.items():
                for tx in engine.inspect("", self.world.sim.now)[0]:
                    yield Anomaly("undecided", kind, tx["tx"], f"{name} still has it")
            if not broker.at_rest:
                text = f"an operation or request still waits at {name}"
                yield Anomaly("undecided", "", name, text)
            for missing, _ in broker.reach.missing:
                yield Anomaly("undecided", "", name, f"{name} still misses {missing}")
            if not broker.routing.is_plain or broker.versions.open or broker.versions.committed:
                yield Anomaly("ghost", "", name, f"versions are left in the tables of {name}")

    def _tables(self) -> Iterator[Anomaly]:
        oracle = self.oracle()
        for name, broker in self.world.sim.brokers.items():
            tables = broker.routing.as_data(broker.versions.view())
            for table, wanted in (("srt", oracle.srt(name)), ("prt", oracle.prt(name))):
                found, expected = broker_rows(tables[table]), oracle_rows(wanted)
                if found != expected:
                    text = _difference(name, table.upper(), found, expected)
                    yield Anomaly("divergence", "", name, text)

    def _beliefs(self) -> Iterator[Anomaly]:
        """What clients believe they hold, and the callbacks that they call."""
        if isinstance(self.world, SimulatedSessions):
            for client, how in disagreements(self.world, POINTS, FILTERS):
                yield Anomaly("divergence", "", client, f"{client}: {how}")

    def oracle(self) -> Oracle:
        """What each client holds: its operations that count, in the order of their numbers."""
        oracle = Oracle(self.run.program.tree)
        committed = {tx_text(tx) for tx, _, _ in self.run.attempts if self.committed(tx)}
        operations: dict[str, list[tuple[int, str, Filter]]] = {}
        for record in self.world.sim.records:
            client = record.client
            if record.source != "@" + client:
                continue
            if record.kind == "begin" and not record.tx:
                oracle.join(client, record.node)
                operations[client] = []
            elif record.kind == "end" and not record.tx:
                oracle.leave(client)
                del operations[client]
            elif record.kind == "apply" and (not record.tx or record.tx in committed):
                number = int(record.op_id.rpartition("#")[2])
                operations[client].append((number, record.op_kind, parse_filter(record.filter)))
        for client, issued in operations.items():
            for _, kind, filter in sorted(issued, key=lambda one: one[0]):
                oracle.operate(client, kind, filter)
        return oracle

    # --- the stream ---

    def _stream(self) -> Iterator[Anomaly]:
        handovers = self.run.program.handovers
        if handovers is None or not is_promised("handover", handovers.engine):
            return
        commits = sum(
            self.committed(tx)
            for tx, transaction, _ in self.run.attempts
            if any(op.what == STREAM for op in transaction.ops)
        )
        oracle = self.oracle()
        present = [owner for owner in handovers.owners if owner in oracle.subscribed]
        held = [owner for owner in present if holds(oracle.subscribed[owner], {"class": "s"})]
        if len(held) > 1:
            what = f"at the end {' and '.join(held)} hold the stream"
            yield Anomaly("handover", handovers.engine, "", what)
        may_miss = any(worker in self.run.crashed for worker in handovers.owners)
        accepted = Counter(
            record.client
            for record in self.world.sim.records
            if record.kind == "publish" and record.filter.startswith("[class,'s']")
        )
        for publisher in self.run.events:
            owners: dict[int, list[str]] = {}
            for worker in handovers.owners:
                for pub in self.world.got[worker]:
                    if pub.client == publisher and pub.point["class"] == "s":
                        owners.setdefault(int(pub.point["n"]), []).append(worker)
            for n in range(1, accepted[publisher] + 1):
                times = len(owners.get(n, ()))
                if times > 1 or (not times and not may_miss):
                    what = f"event {n} of {publisher} went to {owners.get(n, 'no worker')}"
                    yield Anomaly("handover", handovers.engine, f"{publisher}:{n}", what)
            sequence = [owners[n][0] for n in sorted(owners)]
            changes = sum(one != other for one, other in itertools.pairwise(sequence))
            if changes > commits:
                what = f"{changes} changes of owner in {commits} handovers: {sequence}"
                yield Anomaly("handover", handovers.engine, publisher, what)


def _difference(
    broker: str, table: str, found: list[ComparableRow], expected: list[ComparableRow]
) -> str:
    too_many = Counter(found) - Counter(expected)
    missing = Counter(expected) - Counter(found)
    parts = [f"unexpected {row}" for row in sorted(too_many.elements())]
    parts += [f"missing {row}" for row in sorted(missing.elements())]
    return f"the {table} of {broker}: " + ", ".join(parts)
