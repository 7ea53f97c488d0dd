"""A simulated overlay whose clients run scripted transactions, and all that they were told.

A transaction of a dynamic engine is a list of steps of its coordinator; what a client does on a tcm
is looked up by the client's name and the tcm's point. A static one is a list of steps of all its
clients. Clients are as simple as can be, far simpler than real sessions: what is tried here is the
brokers, and a client must not hide what they do.

This module judges only what anybody would call wrong in any run: clients that were told different
outcomes, and brokers that are not at rest, or do not hold what the oracle says. It does not choose
what happens; `random_run` does, and tests do.
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
from proofs.history import Clients
from proofs.oracle import ExpectedRow, Oracle, holds_part, table_of


class IfHeld(NamedTuple):
    """A step of a handler that catches NotHeld: it takes something back, if there is anything."""

    step: Step


#: What a client does in a transaction.
ClientStep: TypeAlias = Step | IfHeld

#: What a client does on a tcm: its steps, or an error's text.
TcmReaction: TypeAlias = Callable[[dict[str, Value]], Sequence[ClientStep] | str]

#: A line of a table as it is compared: numbers of aborted operations leave gaps, so without them.
Row: TypeAlias = tuple[str, str, str, str]

#: An end with one of these codes answers what was said too late; it is not the decision.
LATE = ("unknown", "foreign", "finished")

#: Longer than any run in virtual time: what is not about deadlines should not meet one.
DEADLINE_S = 60.0


@cache
def all_engines() -> Mapping[str, EngineFactory]:
    """All engines; looked up once, as the search through installed packages takes a while."""
    return broker_factories()


class SimulatedOverlay:
    """The overlay, its clients, and the oracle that knows what is committed."""

    def __init__(
        self,
        tree: nx.Graph[str],
        choose: Choose,
        *,
        factories: Mapping[str, EngineFactory] | None = None,
        trace: bool = True,
        broker: type[Broker] = Broker,
        slice: int = 0,
    ) -> None:
        engines = all_engines() if factories is None else factories

        def make(name: BrokerName, others: Iterable[BrokerName]) -> Broker:
            made = broker(name, others, engines=engines, trace=trace)
            if slice:
                made.slice = slice  # So that even short work is cut.
            return made

        self.sim = Simulator(
            {broker: list(tree[broker]) for broker in sorted(tree)}, choose, broker=make
        )
        self.oracle = Oracle(tree)
        #: What clients were told, for checkers.
        self.clients = Clients()
        self.numbers: defaultdict[str, int] = defaultdict(int)
        #: Which life each client lives, as its broker has told it, and the request that asks.
        self.lives: dict[str, int] = {}
        self._joins: dict[str, int] = {}
        self.reactions: dict[str, TcmReaction] = {}
        #: What each client knows that it has said, what is on its way included.
        self.words: defaultdict[str, list[tuple[str, Filter]]] = defaultdict(list)
        self.got: defaultdict[str, list[Pub]] = defaultdict(list)
        #: Publications and messages of engines, in the order in which each client got them.
        self.log: defaultdict[str, list[Any]] = defaultdict(list)
        #: What each coordinator was told, and what everybody was.
        self.ended: dict[TxID, Ended] = {}
        self.ended_at: defaultdict[TxID, dict[str, Ended]] = defaultdict(dict)
        #: The age that each transaction was given, for another attempt.
        self.ages: dict[TxID, int] = {}
        #: What to do when a coordinator is told the outcome.
        self.afterwards: dict[TxID, Callable[[Ended], None]] = {}
        #: How each plain request was answered: "" if it was done, or the code of a refusal; and
        #: what to do with the answer.
        self.done: dict[tuple[str, int], str] = {}
        self.answers: dict[tuple[str, int], Callable[[str], object]] = {}

    # --- clients ---

    def connect(
        self, client: str, edge: str, joined: Callable[[str], object] | None = None
    ) -> None:
        """Bring a client to a broker; `joined` is called when it has been let in, or not."""
        self.sim.connect(client, edge, lambda message, now: self._receive(client, message))
        self.words[client] = []
        req = self.number(client)
        self._joins[client] = req
        if joined is not None:
            self.answers[client, req] = joined
        self.sim.send(client, Join(req, client, ""))

    def join(self, client: str, edge: str) -> None:
        """Bring a client to a broker, and let the overlay settle."""
        self.connect(client, edge)
        self.oracle.join(client, edge)
        self.sim.run()

    def number(self, client: str) -> int:
        self.numbers[client] += 1
        return self.numbers[client]

    def plain(self, client: str, kind: Kind, filter: Filter) -> int:
        """Let a client operate; tell the oracle when it counts."""
        req = self.number(client)
        self.sim.send(client, Operation(req, kind, client, req, filter))
        self.words[client].append((kind, filter))
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
        self.clients.asks(engine, tx)
        self.say(engine, client, Begin(tx, deadline_s, age))
        for number, step in enumerate(steps):
            self.say(engine, client, self._does(client, tx, 0, number, step))
        if commit:
            self.say(engine, client, Commit(tx))
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
        self.clients.asks(engine, tx)
        numbered = tuple(self._numbered(step) for step in steps)
        self.say(engine, client, Submit(tx, deadline_s, numbered))
        return tx

    def _does(self, client: str, tx: TxID, frame: int, number: int, does: ClientStep) -> FromClient:
        """An operation; or a look, if the client knows that it holds nothing of what it is for."""
        if not isinstance(does, IfHeld):
            return Operate(tx, frame, number, self._numbered(does))
        step, table = does.step, table_of(does.step.kind)
        assert step.filter is not None
        if holds_part(self.words[client], table, step.filter):
            return Operate(tx, frame, number, step, held=True)
        return Look(tx, frame, table, False, step.filter)

    def _numbered(self, step: Step) -> Step:
        if step.kind not in ("pub", "tcm"):
            return step
        return msgspec.structs.replace(step, seq=self.number(step.client))

    def say(self, engine: str, client: str, message: FromClient) -> None:
        self.sim.send(client, engine_message(engine, from_client.encode(message)))

    def _receive(self, client: str, message: AnyMessage) -> list[AnyMessage]:
        match message:
            case Pub():
                self.clients.saw(client, message)
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
                        self.clients.saw(client, message)
                        self.words[client] += [(kind, filter) for kind, filter, *_ in told.words]
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
        said: list[FromClient] = []
        if isinstance(steps, str):
            said.append(Finish(told.tx, told.frame, steps))
        else:
            for number, step in enumerate(steps):
                said.append(self._does(client, told.tx, told.frame, number, step))
            said.append(Finish(told.tx, told.frame))
        return [engine_message(engine, from_client.encode(message)) for message in said]

    # --- judging ---

    def committed(self, tx: TxID) -> bool:
        """Whether a transaction was committed; the clients that were told must agree."""
        outcomes = {told.committed for told in self.ended_at[tx].values()}
        assert len(outcomes) == 1, f"split decision on {tx_text(tx)}: {self.ended_at[tx]}"
        return outcomes.pop()

    def check_at_rest(self) -> None:
        """Nothing is under way, no mark is left, and the tables are the oracle's."""
        for name, broker in self.sim.brokers.items():
            assert broker.at_rest, f"something waits at {name}"
            assert broker.routing.is_plain, f"marks left at {name}"
            assert not broker.versions.open and not broker.versions.committed, name
            for engine in broker.engines.values():
                known, _ = engine.inspect("", self.sim.now)
                assert not known, f"{name}: {known}"
            tables = broker.routing.as_data()
            assert rows(tables["srt"]) == numberless(self.oracle.srt(name)), f"SRT of {name}"
            assert rows(tables["prt"]) == numberless(self.oracle.prt(name)), f"PRT of {name}"

    def received(self, client: str) -> list[dict[str, Value]]:
        return [pub.point for pub in self.got[client]]


def rows(table: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A broker's table, to compare."""
    return sorted((line["client"], line["kind"], line["filter"], line["hop"]) for line in table)


def numberless(table: Iterable[ExpectedRow]) -> list[Row]:
    """An oracle's table, to compare."""
    return sorted((line.client, line.kind, line.filter, line.hop) for line in table)
