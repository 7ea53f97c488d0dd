"""What every engine must keep, on random overlays, clients and concurrent transactions.

A transaction is a list of operations of several clients in a total order. Dynamic engines get each
foreign operation through a tcm to its client, the static one as a whole; an engine that is all in
the client, as BL-WAIT is, gets it through real client sessions. Every other run of the others has
such sessions, too, half of them with callbacks. After everything has come
to rest: one outcome for everybody, no publication of an aborted transaction, each publication of
a committed one once; no marks, no open tasks, and tables that the oracle computes from what was
committed. For D-TX also: some serial order of what was committed explains all deliveries and the
tables. An engine without a half at brokers promises of this only tables and no doubles.

The engines are found by name, so a new one is tried without a line here. Every run has a seed of
its own, 2000 of them in the first test alone; `pytest --seeds N` asks for other numbers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import networkx as nx
import pytest

from overlay.filters import Filter, Value
from overlay.hosts.simulator import Tape
from overlay.messages import Operation, client_hop
from overlay.notation import parse_filter
from padres_tx import registry
from padres_tx.client_messages import Step, TxID, tx_text
from proofs.oracle import Oracle, broker_rows, holds
from proofs.sim.simulated_overlay import SimulatedOverlay
from proofs.sim.simulated_sessions import SimulatedSessions, disagreements

ENGINES = registry.names()

#: Their halves at the client, and those that are decided at brokers.
HALVES = {name: registry.load(name).client for name in ENGINES}
DECIDED = [name for name in ENGINES if registry.load(name).broker is not None]

#: Seeds for each engine: 2000 in all with our four. See `pytest --seeds`.
SEEDS = int(os.environ.get("PADRES_TX_SEEDS", "500"))

CLIENTS = ("C0", "C1", "C2", "C3")

#: What clients are asked about in the end.
POINTS = [{"class": "p", "x": x} for x in range(4)]
FILTERS = [Filter({"class": "p", "x": (low, high)}) for low in range(4) for high in range(low, 4)]


class Op(NamedTuple):
    client: str
    kind: str
    what: Any

    def apply(self, oracle: Oracle) -> list[tuple[str, dict[str, Value]]] | None:
        """Who gets what by it, in this state; None if it cannot be done."""
        if self.kind == "pub":
            if not holds(oracle.advertised[self.client], self.what):
                return None
            return [(client, self.what) for client in oracle.receivers(self.what)]
        return [] if oracle.operate(self.client, self.kind, self.what) else None


class Unit(NamedTuple):
    """What happens as one: a transaction, or a plain operation."""

    ops: list[Op]
    pubs: list[tuple[str, int]]


class Run:
    """One random run: a tree, clients with something to hold, and things going on at once."""

    def __init__(self, seed: int, engine_names: list[str], *, plain: int = 3, crash: bool = False):
        self.tape = Tape(seed=seed)
        self.choose = self.tape.choose
        tree: nx.Graph[str] = nx.Graph()
        tree.add_node("B1")
        for n in range(2, 2 + self.choose(4)):
            tree.add_edge(f"B{n}", f"B{1 + self.choose(n - 1)}")
        self.tree = tree
        self.brokers = sorted(tree)
        self.engines = engine_names
        halves = {HALVES[engine] for engine in engine_names}
        self.plain_only = not halves & {"dynamic", "static"}
        # With an engine that is all in the client, and every other time: real client sessions.
        self.world = self.make_world(sessions=self.plain_only or seed % 2 == 1)
        self.txs: dict[TxID, tuple[str, list[Op]]] = {}
        self.plain_ops: list[tuple[str, int, Op]] = []
        self.counter = 0
        for client in CLIENTS:
            self.world.join(client, self.brokers[self.choose(len(self.brokers))])
        ctl = Filter({"class": "ctl"})
        for client in CLIENTS:
            self._settled(client, "adv", ctl)
            self._settled(client, "sub", Filter({"class": "ctl", "to": client}))
            self._settled(client, "adv", Filter({"class": "p", "x": (0, 3)}))
            if self.choose(2):
                self._settled(client, "sub", self.filter())
            self.world.reactions[client] = self.react
        self.before = {
            client: (
                list(self.world.oracle.advertised[client]),
                list(self.world.oracle.subscribed[client]),
            )
            for client in CLIENTS
        }
        for _ in range(1 + self.choose(4)):
            self.transaction()
            if self.choose(3) == 0:
                self.world.sim.run(until=self.world.sim.now + 0.001 * self.choose(12))
            for _ in range(self.choose(plain + 1)):
                self.plain()
        self.crashed = ""
        if crash:
            self.world.sim.run(until=self.world.sim.now + 0.001 * self.choose(60))
            self.crashed = CLIENTS[self.choose(len(CLIENTS))]
            self.world.sim.crash(self.crashed)
        self.world.sim.run()

    def make_world(self, *, sessions: bool) -> SimulatedOverlay:
        return (SimulatedSessions if sessions else SimulatedOverlay)(self.tree, self.choose)

    def _settled(self, client: str, kind: str, filter: Filter) -> None:
        self.world.plain(client, kind, filter)
        self.world.oracle.operate(client, kind, filter)
        self.world.sim.run()

    # --- what goes on ---

    def filter(self) -> Filter:
        low = self.choose(4)
        return Filter({"class": "p", "x": (low, low + self.choose(4 - low))})

    def op(self, client: str) -> Op:
        kind = ("sub", "usub", "pub", "sub", "usub", "pub", "adv", "uadv")[self.choose(8)]
        if kind == "pub":
            self.counter += 1
            return Op(client, "pub", {"class": "p", "x": self.choose(4), "n": self.counter})
        return Op(client, kind, self.filter())

    def transaction(self) -> None:
        engine = self.engines[self.choose(len(self.engines))]
        coordinator = CLIENTS[self.choose(len(CLIENTS))]
        ops = [self.op(CLIENTS[self.choose(len(CLIENTS))]) for _ in range(1 + self.choose(4))]
        if HALVES[engine] == "static":
            tx = self.world.submit(coordinator, self.static(ops))
        else:
            tx = self.world.begin(engine, coordinator, self.dynamic(coordinator, ops))
        self.txs[tx] = (engine, ops)

    def static(self, ops: list[Op]) -> list[Step]:
        return [self.step(op, after=(at - 1,) if at else ()) for at, op in enumerate(ops)]

    def dynamic(self, coordinator: str, ops: list[Op]) -> list[Step]:
        steps = []
        for op in ops:
            if op.client == coordinator:
                steps.append(self.step(op))
                continue
            self.counter += 1
            self.asked = {**getattr(self, "asked", {}), self.counter: op}
            point = {"class": "ctl", "to": op.client, "n": self.counter}
            steps.append(Step(coordinator, "tcm", point=point))
        return steps

    def react(self, point: dict[str, Value]) -> list[Step]:
        return [self.step(self.asked[point["n"]])]

    @staticmethod
    def step(op: Op, after: tuple[int, ...] = ()) -> Step:
        if op.kind == "pub":
            return Step(op.client, "pub", point=op.what, after=after)
        return Step(op.client, op.kind, op.what, after=after)  # type: ignore[arg-type]

    def plain(self) -> None:
        client = CLIENTS[self.choose(len(CLIENTS))]
        op = self.op(client)
        if op.kind == "pub":
            self.world.publish(client, op.what)
        else:
            req = self.world.plain(client, op.kind, op.what)
            self.plain_ops.append((client, req, op))

    # --- what must hold ---

    def check(self) -> None:
        world = self.world
        if self.plain_only:
            self._check_deliveries(dict.fromkeys(self.txs, True))  # What was sent stays.
            self._rebuild_oracle(set())
            world.check_at_rest()
            self._check_beliefs()
            return
        committed = {tx: world.committed(tx) for tx in self.txs if tx[0] != self.crashed}
        if self.crashed:
            self._outcomes_agree()
            committed = {tx: self._decided(tx) for tx in self.txs}
            world.oracle.leave(self.crashed)
        self._check_deliveries(committed)
        self._rebuild_oracle({tx_text(tx) for tx, yes in committed.items() if yes})
        world.check_at_rest()
        self._check_beliefs()

    def _check_beliefs(self) -> None:
        """What clients believe is what their edge brokers have; callbacks included."""
        if isinstance(self.world, SimulatedSessions):
            assert list(disagreements(self.world, POINTS, FILTERS)) == []

    def _decided(self, tx: TxID) -> bool:
        return any(
            record.outcome == "committed" and record.tx == tx_text(tx)
            for record in self.world.sim.records
        )

    def _outcomes_agree(self) -> None:
        for tx in self.txs:
            outcomes = {
                record.outcome
                for record in self.world.sim.records
                if record.kind == "decide" and record.tx == tx_text(tx)
            }
            assert len(outcomes) <= 1, f"split decision on {tx}"

    def _check_deliveries(self, committed: dict[TxID, bool]) -> None:
        owner = {
            op.what["n"]: tx for tx, (_, ops) in self.txs.items() for op in ops if op.kind == "pub"
        }
        for client in CLIENTS:
            seen = Counter((pub.client, pub.seq) for pub in self.world.got[client])
            assert not [pub for pub, times in seen.items() if times > 1], "doubled"
            for pub in self.world.got[client]:
                tx = owner.get(pub.point["n"])
                assert tx is None or committed[tx], f"{pub} of an aborted transaction"

    def _rebuild_oracle(self, committed: set[str]) -> None:
        """What each client holds: its committed words, in the order of their numbers."""
        oracle = self.world.oracle
        words: dict[str, list[tuple[int, str, Filter]]] = {client: [] for client in oracle.edges}
        for record in self.world.sim.records:
            at_home = record.source == "@" + record.client and record.kind == "apply"
            if at_home and record.client in words and (not record.tx or record.tx in committed):
                number = int(record.op_id.rpartition("#")[2])
                filter = parsed(record.filter)
                words[record.client].append((number, record.op_kind, filter))
        for client, said in words.items():
            oracle.advertised[client].clear()
            oracle.subscribed[client].clear()
            for _, kind, filter in sorted(said, key=lambda word: word[0]):
                assert oracle.operate(client, kind, filter)

    # --- serializability, by brute force ---

    def check_serializable(self) -> None:
        units = [Unit(ops, []) for tx, (_, ops) in self.txs.items() if self.world.committed(tx)]
        units += [
            Unit([op], [])
            for client, req, op in self.plain_ops
            if self.world.done.get((client, req)) == ""
        ]
        of_units = {op.what["n"] for unit in units for op in unit.ops if op.kind == "pub"}
        actual = Counter(
            (client, pub.point["n"])
            for client in CLIENTS
            for pub in self.world.got[client]
            if pub.point["n"] in of_units
        )
        final = {
            name: (broker_rows(b.routing.as_data()["srt"]), broker_rows(b.routing.as_data()["prt"]))
            for name, b in self.world.sim.brokers.items()
        }
        oracle = Oracle(self.tree)
        for client in CLIENTS:
            oracle.join(client, self.world.oracle.edges[client])
            advertised, subscribed = self.before[client]
            for said in sorted(advertised + subscribed):
                oracle.operate(client, said.kind, said.filter)
        assert self._serial(oracle, units, actual, final), "no serial order explains the run"

    def _serial(
        self, oracle: Oracle, units: list[Unit], left: Counter[Any], final: dict[str, Any]
    ) -> bool:
        if not units:
            if +left:
                return False
            return all(
                (_without_numbers(oracle.srt(name)), _without_numbers(oracle.prt(name))) == tables
                for name, tables in final.items()
            )
        for at, unit in enumerate(units):
            trial = _copy(oracle)
            delivered: Counter[Any] = Counter()
            for op in unit.ops:
                got = op.apply(trial)
                if got is None:
                    break
                delivered.update((client, point["n"]) for client, point in got)
            else:
                pubs = {op.what["n"] for op in unit.ops if op.kind == "pub"}
                mine = Counter({key: n for key, n in left.items() if key[1] in pubs})
                if mine == delivered and self._serial(
                    trial, units[:at] + units[at + 1 :], left - delivered, final
                ):
                    return True
        return False


def _without_numbers(found: list[Any]) -> list[tuple[str, str, str, str]]:
    return sorted((line.client, line.kind, line.filter, line.hop) for line in found)


def _copy(oracle: Oracle) -> Oracle:
    return Oracle(
        oracle.tree,
        oracle.edges,
        {client: list(said) for client, said in oracle.advertised.items()},
        {client: list(said) for client, said in oracle.subscribed.items()},
        Counter(oracle.numbers),
    )


#: There are few different filters, and each is in many records.
parsed = cache(parse_filter)

#: So many seeds lie between the first ones of two tests, or of two engines in a test.
APART = 10_000_000


def try_out(
    test: int, names: list[str], count: int, check: Callable[[Run], None], **more: Any
) -> None:
    """Make random runs and check each; whatever is wrong in one is told with its seed."""
    first = APART * (100 * test + ENGINES.index(names[0]))
    for seed in range(first, first + count):
        try:
            check(Run(seed, names, **more))
        except Exception as error:
            raise AssertionError(f"Run({seed}, {names}, **{more}): {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_one_outcome_for_all_and_tables_of_what_was_committed(engine: str) -> None:
    outcomes: Counter[bool] = Counter()

    def check(run: Run) -> None:
        run.check()
        outcomes.update(run.world.committed(tx) for tx in run.txs)

    try_out(0, [engine], SEEDS, check)
    least = min(outcomes[True], outcomes[False]) if engine in DECIDED else outcomes[True]
    assert least > SEEDS / 10, "too little happened"


@pytest.mark.slow
def test_engines_side_by_side() -> None:
    try_out(1, DECIDED, SEEDS // 2, Run.check)


@pytest.mark.slow
def test_committed_d_tx_are_serializable_with_each_other_and_with_plain_operations() -> None:
    try_out(2, ["d-tx"], SEEDS, Run.check_serializable, plain=1)


@pytest.mark.parametrize("engine", DECIDED)
def test_a_client_that_dies_leads_to_one_outcome_and_leaves_nothing(engine: str) -> None:
    try_out(3, [engine], SEEDS // 3, Run.check, crash=True)


def test_what_is_wrong_is_found() -> None:
    """Planted faults: a publication twice, an entry of nobody, an outcome that differs."""

    def doubled(run: Run) -> None:
        for client in CLIENTS:
            run.world.got[client] *= 2

    def ghost(run: Run) -> None:
        broker = next(iter(run.world.sim.brokers.values()))
        broker.routing.apply(client_hop("C0"), Operation(0, "adv", "C0", 99, Filter({"z": 1})))

    def split(run: Run) -> None:
        for tx in run.txs:
            told = run.world.ended_at[tx]
            one = next(iter(told))
            told["nobody"] = msgspec.structs.replace(told[one], committed=not told[one].committed)

    for fault, words in ((doubled, "doubled"), (ghost, "SRT of"), (split, "split decision")):

        def check(run: Run, fault: Callable[[Run], None] = fault) -> None:
            fault(run)
            run.check()

        with pytest.raises(AssertionError, match=words):
            try_out(4, ["d-tx"], 50, check)
