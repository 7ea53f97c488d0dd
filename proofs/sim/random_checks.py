"""Judging a random run when it has come to rest: what clients got and were told, and the tables.

This looks at the run from outside, with no theory of how it came about: one outcome for everybody,
the publications of what was committed and of nothing else, once; brokers at rest, with the tables
that the oracle computes from what was committed; and of the stream every event on one side
of every handover. What takes a theory, such as serializability, is for `checkers`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from overlay.filters import Filter, Value
from overlay.notation import parse_filter
from padres_tx.client_messages import TxID, tx_text
from proofs.checkers import Anomaly, is_promised
from proofs.oracle import Oracle, holds
from proofs.sim.program import SPACE, STREAM
from proofs.sim.random_run import RandomRun
from proofs.sim.simulated_overlay import Row, numberless, rows
from proofs.sim.simulated_sessions import SimulatedSessions, disagreements

#: What clients are asked about in the end: points of the space of the workload, and filters.
POINTS: list[dict[str, Value]] = [{"class": "s"}]
POINTS += [{"class": "p", "x": x} for x in range(4)]
FILTERS = [SPACE, STREAM, *(Filter({"class": "p", "x": x}) for x in range(4))]


class RandomRunChecks:
    """The outcomes of one run, and what is wrong with them."""

    def __init__(self, run: RandomRun) -> None:
        self.run = run
        self.world = run.world
        self.outcomes: dict[str, list[str]] = {}
        for record in self.world.sim.records:
            if record.kind == "decide":
                self.outcomes.setdefault(record.tx, []).append(record.outcome)

    def committed(self, tx: TxID) -> bool:
        """What its coordinator's edge broker decided; it decides first."""
        return self.outcomes.get(tx_text(tx), [""])[0] == "committed"

    @property
    def commits(self) -> int:
        waited = sum(self._went_well(asked) for asked in self.run.waited)
        return waited + sum(self.committed(tx) for tx, _, _ in self.run.attempts)

    @property
    def aborts(self) -> int:
        return len(self.run.attempts) + len(self.run.waited) - self.commits

    def _went_well(self, asked: list[tuple[str, int]]) -> bool:
        return not any(self.world.done.get(request, "gone") for request in asked)

    def anomalies(self) -> Iterator[Anomaly]:
        """All that is wrong, the worst first; after a restart, what can be told without a theory of
        what was lost with the broker (`checkers.outcomes` has one for outcomes)."""
        if self.run.restarted:
            yield from self._unrest()
            return
        yield from self._decisions()
        yield from self._deliveries()
        yield from self._unrest()
        yield from self._tables()
        yield from self._beliefs()
        yield from self._stream()

    # --- outcomes ---

    def _decisions(self) -> Iterator[Anomaly]:
        for tx, transaction, crashes in self.run.attempts:
            name, engine = tx_text(tx), transaction.engine
            told = {client: end.committed for client, end in self.world.ended_at[tx].items()}
            if len({*told.values()} | {o == "committed" for o in self.outcomes.get(name, ())}) > 1:
                story = f"clients were told {told}, brokers decided {self.outcomes.get(name)}"
                yield Anomaly("split", engine, name, story)
            alive = crashes == self.run.crashed.count(tx[0])
            if tx not in self.world.ended and alive:
                yield Anomaly("undecided", engine, name, f"{tx[0]} was never told the outcome")
        for client in self.run.program.clients:
            if not self.world.sim.connected(client) and client not in self.run.crashed:
                yield Anomaly("error", "", client, f"{client} was thrown out")

    # --- deliveries ---

    def _deliveries(self) -> Iterator[Anomaly]:
        owners: dict[object, list[TxID]] = {}
        for tx, transaction, _ in self.run.attempts:
            for op in transaction.ops:
                if op.kind == "pub":
                    owners.setdefault(op.what["n"], []).append(tx)
        for client in self.run.program.clients:
            # Of the stream each publisher counts its own events.
            seen = Counter(
                (p.client, p.point["class"], p.point["n"]) for p in self.world.got[client]
            )
            for (publisher, _, n), times in seen.items():
                if times > 1:
                    what = f"publication {n} of {publisher}"
                    yield Anomaly("duplicate", "", publisher, f"{client} got {what} {times} times")
            for pub in self.world.got[client]:
                attempts = owners.get(pub.point["n"], []) if pub.point["class"] == "p" else []
                if attempts and not any(self.committed(tx) for tx in attempts):
                    name = tx_text(attempts[0])
                    story = f"{client} got publication {pub.point['n']} of aborted {name}"
                    yield Anomaly("partial", self._engine(attempts[0]), name, story)

    def _engine(self, tx: TxID) -> str:
        return next(transaction.engine for mine, transaction, _ in self.run.attempts if mine == tx)

    # --- rest ---

    def _unrest(self) -> Iterator[Anomaly]:
        for name, broker in self.world.sim.brokers.items():
            for kind, engine in broker.engines.items():
                for tx in engine.inspect("", self.world.sim.now)[0]:
                    yield Anomaly("undecided", kind, tx["tx"], f"{name} still knows of it")
            if not broker.at_rest:
                yield Anomaly("undecided", "", name, f"something still waits at {name}")
            for missing, _ in broker.reach.missing:
                yield Anomaly("undecided", "", name, f"{name} still misses {missing}")
            if not broker.routing.is_plain or broker.versions.open or broker.versions.committed:
                yield Anomaly("ghost", "", name, f"versions are left in the tables of {name}")

    def _tables(self) -> Iterator[Anomaly]:
        oracle = self.oracle()
        for name, broker in self.world.sim.brokers.items():
            tables = broker.routing.as_data(broker.versions.view())
            for table, wanted in (("srt", oracle.srt(name)), ("prt", oracle.prt(name))):
                found, expected = rows(tables[table]), numberless(wanted)
                if found != expected:
                    story = _difference(name, table.upper(), found, expected)
                    yield Anomaly("divergence", "", name, story)

    def _beliefs(self) -> Iterator[Anomaly]:
        """What clients hold, and whom they call, according to themselves."""
        if isinstance(self.world, SimulatedSessions):
            for client, how in disagreements(self.world, POINTS, FILTERS):
                yield Anomaly("divergence", "", client, f"{client}: {how}")

    def oracle(self) -> Oracle:
        """What each client holds: its words that count, in the order of their numbers."""
        oracle = Oracle(self.run.program.tree)
        committed = {tx_text(tx) for tx, _, _ in self.run.attempts if self.committed(tx)}
        words: dict[str, list[tuple[int, str, Filter]]] = {}
        for record in self.world.sim.records:
            client = record.client
            if record.source != "@" + client:
                continue
            if record.kind == "begin" and not record.tx:
                oracle.join(client, record.node)
                words[client] = []
            elif record.kind == "end" and not record.tx:
                oracle.leave(client)
                del words[client]
            elif record.kind == "apply" and (not record.tx or record.tx in committed):
                number = int(record.op_id.rpartition("#")[2])
                words[client].append((number, record.op_kind, parse_filter(record.filter)))
        for client, said in words.items():
            for _, kind, filter in sorted(said, key=lambda word: word[0]):
                oracle.say(client, kind, filter)
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
            what = f"in the end the stream is held by {' and '.join(held)}"
            yield Anomaly("handover", handovers.engine, "", what)
        told_nothing = any(worker in self.run.crashed for worker in handovers.owners)
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
                if times > 1 or (not times and not told_nothing):
                    what = f"event {n} of {publisher} went to {owners.get(n, 'nobody')}"
                    yield Anomaly("handover", handovers.engine, f"{publisher}:{n}", what)
            sequence = [owners[n][0] for n in sorted(owners)]
            changes = sum(one != other for one, other in itertools.pairwise(sequence))
            if changes > commits:
                what = f"{changes} changes in {commits} handovers: {sequence}"
                yield Anomaly("handover", handovers.engine, publisher, what)


def _difference(broker: str, table: str, found: list[Row], expected: list[Row]) -> str:
    too_many = Counter(found) - Counter(expected)
    missing = Counter(expected) - Counter(found)
    parts = [f"has {row} too many" for row in sorted(too_many.elements())]
    parts += [f"lacks {row}" for row in sorted(missing.elements())]
    return f"the {table} of {broker} " + ", ".join(parts)
