"""A simulated overlay whose clients run scripted transactions, with a log of all they received.

A dynamic transaction is a list of the coordinator's steps; the reaction of a client to a tcm is
looked up by the client's name and the tcm's point. A static transaction is a list of the steps of
all its clients. The clients are far simpler than real sessions: this tests the brokers, and a
client must not hide what they do.

This module checks only what is wrong in every run: clients that were told different outcomes, and
brokers that are not at rest or whose tables differ from the oracle's. It does not choose what
happens; `random_run` and the tests do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import msgspec
import networkx as nx

from overlay.broker.core import Broker
from overlay.broker.engine import EngineFactory
from overlay.filters import Filter, Value
from overlay.hosts.simulator import Choose, Simulator
from overlay.messages import (
    AnyMessage,
    BrokerName,
    Done,
    EngineMessage,
    Join,
    Kind,
    Operation,
    Pub,
)
from padres_tx.client_messages import (
    Began,
    Begin,
    Commit,
    Ended,
    Finish,
    FromClient,
    Look,
    Operate,
    Step,
    Submit,
    Tcm,
    TxID,
    engine_message,
    from_client,
    to_client,
    tx_text,
)
from padres_tx.registry import broker_factories
from proofs.history import LATE, ClientObservations
from proofs.oracle import Oracle, broker_rows, holds_part, oracle_rows, table_of


class IfHeld(NamedTuple):
    """A step of a handler that catches NotHeld: it takes something back if the client holds it."""

    step: Step


#: A step of a client in a transaction.
ClientStep: TypeAlias = Step | IfHeld

#: The reaction of a client to a tcm: its steps, or the text of an error.
TcmReaction: TypeAlias = Callable[[dict[str, Value]], Sequence[ClientStep] | str]

#: Longer than any run in virtual time, so that only runs about deadlines meet one.
DEADLINE_S = 60.0


@cache
def all_engines() -> Mapping[str, EngineFactory]:
    """All engines; looked up once, because searching the installed packages is slow."""
    return broker_factories()


class SimulatedOverlay:
    """The overlay, its clients, and an oracle that the caller keeps up to date."""

    def __init__(
        self,
        tree: nx.Graph[str],
        choose: Choose,
        *,
        factories: Mapping[str, EngineFactory] | None = None,
        trace: bool = True,
        broker: type[Broker] = Broker,
        slice: int = 0,
        simulator: Callable[..., Simulator] = Simulator,
    ) -> None:
        engines = all_engines() if factories is None else factories

        def make(name: BrokerName, others: Iterable[BrokerName]) -> Broker:
            made = broker(name, others, engines=engines, trace=trace)
            if slice:
                made.slice = slice  # So that even short work is split.
            return made

        self.sim = simulator(
            {broker: list(tree[broker]) for broker in sorted(tree)}, choose, broker=make
        )
        self.oracle = Oracle(tree)
        #: What clients received, for the checkers.
        self.clients = ClientObservations()
        self.numbers: defaultdict[str, int] = defaultdict(int)
        #: The life that its broker has issued to each client, and the request that asked for it.
        self.lives: dict[str, int] = {}
        self._joins: dict[str, int] = {}
        self.reactions: dict[str, TcmReaction] = {}
        #: The operations that each client knows it has issued, including those on their way.
        self.issued: defaultdict[str, list[tuple[str, Filter]]] = defaultdict(list)
        self.got: defaultdict[str, list[Pub]] = defaultdict(list)
        #: Publications and engine messages, in the order in which each client received them.
        self.log: defaultdict[str, list[Any]] = defaultdict(list)
        #: The outcome that each coordinator was told, and the one that each client was told.
        self.ended: dict[TxID, Ended] = {}
        self.ended_at: defaultdict[TxID, dict[str, Ended]] = defaultdict(dict)
        #: The age of each transaction, which another attempt keeps.
        self.ages: dict[TxID, int] = {}
        #: Called when the coordinator is told the outcome.
        self.afterwards: dict[TxID, Callable[[Ended], None]] = {}
        #: The answer to each plain request: "" if it was done, or the code of the refusal; and what
        #: to call with the answer.
        self.done: dict[tuple[str, int], str] = {}
        self.answers: dict[tuple[str, int], Callable[[str], object]] = {}

    # --- clients ---

    def connect(
        self, client: str, edge: str, joined: Callable[[str], object] | None = None
    ) -> None:
        """Connect a client to a broker; `joined` is called with the code of the answer."""
        self.sim.connect(client, edge, lambda message, now: self._receive(client, message))
        self.issued[client] = []
        req = self.number(client)
        self._joins[client] = req
        if joined is not None:
            self.answers[client, req] = joined
        self.sim.send(client, Join(req, client, ""))

    def join(self, client: str, edge: str) -> None:
        """Connect a client to a broker, and run until the overlay is at rest."""
        self.connect(client, edge)
        self.oracle.join(client, edge)
        self.sim.run()

    def number(self, client: str) -> int:
        self.numbers[client] += 1
        return self.numbers[client]

    def plain(self, client: str, kind: Kind, filter: Filter) -> int:
        """Send a plain operation of a client. The caller tells the oracle."""
        req = self.number(client)
        self.sim.send(client, Operation(req, kind, client, req, filter))
        self.issued[client].append((kind, filter))
        return req

    def publish(self, client: str, point: Mapping[str, Value]) -> int:
        seq = self.number(client)
        self.sim.send(client, Pub(client, seq, dict(point), life=self.lives[client]))
        return seq

    def crash(self, client: str) -> None:
        self.sim.crash(client)
        self.oracle.leave(client)

    # --- transactions ---

    def begin(
        self,
        engine: str,
        client: str,
        steps: Iterable[ClientStep],
        *,
        commit: bool = True,
        deadline_s: float = DEADLINE_S,
        age: int = 0,
    ) -> TxID:
        """Send a whole dynamic transaction: begin, the coordinator's steps, and the commit."""
        tx = (client, self.lives[client], self.number(client))
        self.clients.note_begin(engine, tx)
        self.send(engine, client, Begin(tx, deadline_s, age))
        for number, step in enumerate(steps):
            self.send(engine, client, self._operation(client, tx, 0, number, step))
        if commit:
            self.send(engine, client, Commit(tx))
        return tx

    def submit(
        self,
        client: str,
        steps: Iterable[Step],
        *,
        deadline_s: float = DEADLINE_S,
        engine: str = "s-tx",
    ) -> TxID:
        """Send a whole static transaction."""
        tx = (client, self.lives[client], self.number(client))
        self.clients.note_begin(engine, tx)
        numbered = tuple(self._numbered(step) for step in steps)
        self.send(engine, client, Submit(tx, deadline_s, numbered))
        return tx

    def _operation(
        self, client: str, tx: TxID, frame: int, number: int, does: ClientStep
    ) -> FromClient:
        """An operation; or a look, if the client knows that it holds no part of the filter."""
        if not isinstance(does, IfHeld):
            return Operate(tx, frame, number, self._numbered(does))
        step, table = does.step, table_of(does.step.kind)
        assert step.filter is not None
        if holds_part(self.issued[client], table, step.filter):
            return Operate(tx, frame, number, step, held=True)
        return Look(tx, frame, table, False, step.filter)

    def _numbered(self, step: Step) -> Step:
        if step.kind not in ("pub", "tcm"):
            return step
        return msgspec.structs.replace(step, seq=self.number(step.client))

    def send(self, engine: str, client: str, message: FromClient) -> None:
        """Send a client's message to its half of an engine at the broker."""
        self.sim.send(client, engine_message(engine, from_client.encode(message)))

    def _receive(self, client: str, message: AnyMessage) -> list[AnyMessage]:
        match message:
            case Pub():
                self.clients.observe(client, message)
                self.got[client].append(message)
                self.log[client].append(message)
            case Done(req, code, _, number):
                self.done[client, req] = code
                if req == self._joins.get(client) and not code:
                    self.lives[client] = number
                if (client, req) in self.answers:
                    self.answers.pop((client, req))(code)
            case EngineMessage(engine, body):
                told = to_client.decode(body)
                self.log[client].append(told)
                match told:
                    case Tcm():
                        return self._react(engine, client, told)
                    case Began(tx, age):
                        self.ages[tx] = age
                    case Ended() if told.code not in LATE:
                        self.clients.observe(client, message)
                        self.issued[client] += [
                            (kind, filter) for kind, filter, *_ in told.effective
                        ]
                        self._ended(client, told)
        return []

    def _ended(self, client: str, ended: Ended) -> None:
        self.ended_at[ended.tx][client] = ended
        if ended.tx[0] == client:
            self.ended[ended.tx] = ended
            if ended.tx in self.afterwards:
                self.afterwards.pop(ended.tx)(ended)

    def _react(self, engine: str, client: str, told: Tcm) -> list[AnyMessage]:
        reaction = self.reactions.get(client)
        steps = reaction(told.point) if reaction else []
        answers: list[FromClient] = []
        if isinstance(steps, str):
            answers.append(Finish(told.tx, told.frame, steps))
        else:
            for number, step in enumerate(steps):
                answers.append(self._operation(client, told.tx, told.frame, number, step))
            answers.append(Finish(told.tx, told.frame))
        return [engine_message(engine, from_client.encode(message)) for message in answers]

    # --- checks ---

    def committed(self, tx: TxID) -> bool:
        """Whether a transaction was committed; the clients that learned the outcome must agree."""
        outcomes = {told.committed for told in self.ended_at[tx].values()}
        assert len(outcomes) == 1, f"split decision on {tx_text(tx)}: {self.ended_at[tx]}"
        return outcomes.pop()

    def check_at_rest(self) -> None:
        """Nothing is under way, no mark is left, and the tables equal the oracle's."""
        for name, broker in self.sim.brokers.items():
            assert broker.at_rest, f"an operation or request waits at {name}"
            assert broker.routing.is_plain, f"marks left at {name}"
            assert not broker.versions.open and not broker.versions.committed, name
            for engine in broker.engines.values():
                known, _ = engine.inspect("", self.sim.now)
                assert not known, f"{name}: {known}"
            tables = broker.routing.as_data()
            assert broker_rows(tables["srt"]) == oracle_rows(self.oracle.srt(name)), (
                f"SRT of {name}"
            )
            assert broker_rows(tables["prt"]) == oracle_rows(self.oracle.prt(name)), (
                f"PRT of {name}"
            )

    def received(self, client: str) -> list[dict[str, Value]]:
        return [pub.point for pub in self.got[client]]
