"""A simulated overlay whose clients run scripted transactions, for the engines' tests.

A program is a list of steps of the coordinator; what a client does on a tcm is looked up by the
client's name and the tcm's point. Everything that a client was told stays in its log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import networkx as nx

import padres_tx.engines as engines
from overlay.broker import Broker
from overlay.filters import Filter, Value
from overlay.messages import AnyMessage, Done, EngineMessage, Join, Operation, Pub
from overlay.simulator import Simulator
from padres_tx.wire import (
    Begin,
    Commit,
    Ended,
    Finish,
    Operate,
    Step,
    Submit,
    Tcm,
    TxID,
    engine_message,
    from_client,
    to_client,
)
from proofs.oracle import Line, Oracle


def box(**attributes: Any) -> Filter:
    return Filter(**attributes)


def sub(client: str, filter: Filter) -> Step:
    return Step(client, "sub", filter)


def usub(client: str, filter: Filter) -> Step:
    return Step(client, "usub", filter)


def adv(client: str, filter: Filter) -> Step:
    return Step(client, "adv", filter)


def uadv(client: str, filter: Filter) -> Step:
    return Step(client, "uadv", filter)


def pub(client: str, **point: Value) -> Step:
    return Step(client, "pub", point=named(point))


def tcm(client: str, **point: Value) -> Step:
    return Step(client, "tcm", point=named(point))


def named(point: Mapping[str, Value]) -> dict[str, Value]:
    return {name.removesuffix("_"): value for name, value in point.items()}


#: All engines there are. Looking for them takes longer than many a run.
FACTORIES = engines.broker_factories()

#: What a client does on a tcm: its steps, or an error's text.
Reaction = Callable[[dict[str, Value]], Sequence[Step] | str]


class World:
    """The overlay, its clients, and the oracle that knows what is committed."""

    def __init__(
        self,
        tree: nx.Graph[str],
        choose: Callable[[int], int],
        *,
        factories: Mapping[str, Any] | None = None,
        trace: bool = True,
    ) -> None:
        made = FACTORIES if factories is None else factories
        self.sim = Simulator(
            {broker: list(tree[broker]) for broker in sorted(tree)},
            choose,
            broker=lambda name, others: Broker(name, others, engines=made, trace=trace),
        )
        self.oracle = Oracle(tree)
        self.numbers: defaultdict[str, int] = defaultdict(int)
        self.reactions: dict[str, Reaction] = {}
        self.got: defaultdict[str, list[Pub]] = defaultdict(list)
        self.told: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
        #: Publications and messages of engines, in the order in which each client got them.
        self.log: defaultdict[str, list[Any]] = defaultdict(list)
        self.ended: dict[TxID, Ended] = {}
        self.ended_at: defaultdict[TxID, dict[str, Ended]] = defaultdict(dict)
        self.done: dict[tuple[str, int], str] = {}

    # --- clients ---

    def join(self, client: str, edge: str) -> None:
        self.sim.connect(client, edge, lambda message, now: self._receive(client, message))
        self.oracle.join(client, edge)
        self.sim.send(client, Join(self.number(client), client, ""))
        self.sim.run()

    def number(self, client: str) -> int:
        self.numbers[client] += 1
        return self.numbers[client]

    def plain(self, client: str, kind: Any, filter: Filter) -> int:
        """A plain operation; the oracle hears of it when it is done."""
        req = self.number(client)
        self.sim.send(client, Operation(req, kind, client, req, filter))
        return req

    def publish(self, client: str, **point: Value) -> int:
        seq = self.number(client)
        self.sim.send(client, Pub(client, seq, named(point)))
        return seq

    def crash(self, client: str) -> None:
        self.sim.crash(client)
        self.oracle.leave(client)

    # --- transactions ---

    def begin(
        self, engine: str, client: str, steps: Sequence[Step], *, commit: bool = True, **more: Any
    ) -> TxID:
        """Send a whole dynamic transaction: begin, the coordinator's steps, and the commit."""
        tx = (client, self.number(client))
        self.say(engine, client, Begin(tx, more.pop("deadline_s", 60.0), **more))
        for number, step in enumerate(steps):
            self.say(engine, client, Operate(tx, 0, number, self._numbered(step)))
        if commit:
            self.say(engine, client, Commit(tx))
        return tx

    def submit(self, client: str, steps: Sequence[Step], *, deadline_s: float = 60.0) -> TxID:
        """Send a whole static transaction."""
        tx = (client, self.number(client))
        numbered = tuple(self._numbered(step) for step in steps)
        self.say("s-tx", client, Submit(tx, deadline_s, numbered))
        return tx

    def _numbered(self, step: Step) -> Step:
        if step.kind not in ("pub", "tcm"):
            return step
        return Step(
            step.client,
            step.kind,
            None,
            step.point,
            step.payload,
            self.number(step.client),
            step.after,
            step.receivers,
        )

    def say(self, engine: str, client: str, message: Any) -> None:
        self.sim.send(client, engine_message(engine, from_client.encode(message)))

    def _receive(self, client: str, message: AnyMessage) -> list[AnyMessage]:
        match message:
            case Pub():
                self.got[client].append(message)
                self.log[client].append(message)
            case Done():
                self.done[client, message.req] = message.code
            case EngineMessage(engine, body):
                told = to_client.decode(body)
                self.told[client].append((engine, told))
                self.log[client].append(told)
                if isinstance(told, Tcm):
                    return self._react(engine, client, told)
                if isinstance(told, Ended):
                    self.ended_at[told.tx][client] = told
                    if told.tx[0] == client:
                        self.ended[told.tx] = told
        return []

    def _react(self, engine: str, client: str, told: Tcm) -> list[AnyMessage]:
        reaction = self.reactions.get(client)
        steps = reaction(told.point) if reaction else []
        error = steps if isinstance(steps, str) else ""
        said: list[Any] = []
        if not error:
            for number, step in enumerate(steps):
                assert isinstance(step, Step)
                said.append(Operate(told.tx, told.frame, number, self._numbered(step)))
        said.append(Finish(told.tx, told.frame, error))
        return [engine_message(engine, from_client.encode(message)) for message in said]

    # --- judging ---

    def committed(self, tx: TxID) -> bool:
        """Whether a transaction was committed; the clients that were told must agree."""
        outcomes = {told.committed for told in self.ended_at[tx].values()}
        assert len(outcomes) == 1, f"split decision on {tx}: {self.ended_at[tx]}"
        return outcomes.pop()

    def check_at_rest(self) -> None:
        """Nothing is under way, no mark is left, and the tables are the oracle's."""
        for name, broker in self.sim.brokers.items():
            assert broker.at_rest, name
            assert broker.routing.is_plain, f"marks left at {name}"
            assert not broker.versions.open and not broker.versions.committed, name
            for engine in broker.engines.values():
                assert not engine.txs, f"{name}: {engine.txs}"  # type: ignore[attr-defined]
            tables = broker.routing.as_data()
            assert lines(tables["srt"]) == self.oracle_lines("srt", name), f"SRT of {name}"
            assert lines(tables["prt"]) == self.oracle_lines("prt", name), f"PRT of {name}"

    def oracle_lines(self, table: str, broker: str) -> list[tuple[str, str, str, str]]:
        found = self.oracle.srt(broker) if table == "srt" else self.oracle.prt(broker)
        return sorted((line.client, line.kind, line.filter, line.hop) for line in found)

    def received(self, client: str) -> list[dict[str, Value]]:
        return [pub.point for pub in self.got[client]]


def lines(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    # Without numbers: those of aborted operations leave gaps.
    return sorted((row["client"], row["kind"], row["filter"], row["hop"]) for row in rows)


def chain(n: int) -> nx.Graph[str]:
    tree: nx.Graph[str] = nx.Graph()
    tree.add_node("B1")
    tree.add_edges_from((f"B{i}", f"B{i + 1}") for i in range(1, n))
    return tree


__all__ = ["Line", "World"]
