"""Carries out a random program in a simulated overlay.

What has to hold afterwards is for `random_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from overlay.broker.engine import EngineFactory
from overlay.filters import Filter, Value
from overlay.hosts.simulator import STEP_LIMIT, Tape
from padres_tx import registry
from padres_tx.client_messages import Abort, Ended, Step, TxID
from proofs.history import History
from proofs.sim.crowded_program import CrowdedProgram
from proofs.sim.program import (
    ABSENT_AFTER_S,
    ATTEMPTS,
    CONTROL,
    DECIDED,
    FORSAKEN_S,
    RESTART,
    SPACE,
    STREAM,
    WAIT_MS,
    PlannedFault,
    PlannedHandovers,
    PlannedOperation,
    PlannedTransaction,
    Program,
    Shape,
)
from proofs.sim.simulated_overlay import ClientStep, SimulatedOverlay
from proofs.sim.simulated_sessions import SimulatedSessions


class SentTransaction(NamedTuple):
    """A transaction as it was sent once; `crashes` of its coordinator had been before that."""

    tx: TxID
    transaction: PlannedTransaction
    crashes: int


class RandomRun:
    """One random run. Make it, let it `go`, and have it judged."""

    def __init__(
        self,
        shape: Shape,
        tape: Tape,
        *,
        factories: dict[str, EngineFactory] | None = None,
    ) -> None:
        self.shape = shape
        self.tape = tape
        self.program = (CrowdedProgram if shape.crowded else Program)(shape, tape)
        make = SimulatedSessions if shape.sessions else SimulatedOverlay
        self.world = make(self.program.tree, tape.choose, factories=factories, slice=shape.slice)
        if "partition" in shape.faults:
            self.world.sim.absent_after_s = ABSENT_AFTER_S
        self.attempts: list[SentTransaction] = []
        #: What the clients of a transaction without a broker's half have asked for.
        self.waited: list[list[tuple[str, int]]] = []
        #: Clients that have crashed, once for each time; and those that are in.
        self.crashed: list[str] = []
        self.present = set(self.program.clients)
        #: Where each client is, or was last; and the brokers that have lost their memory.
        self.edges = dict(self.program.edges)
        self.restarted: set[str] = set()
        #: The handovers that were tried, and how many events each publisher has sent.
        self.handovers: list[TxID] = []
        self.events: dict[str, int] = {}
        self._asked: list[list[ClientStep] | str] = []
        self._owner = 0

    def go(self, steps: int = STEP_LIMIT) -> None:
        """Let everything happen, until the overlay is at rest.

        Raises NeverSettles after too many steps, and whatever brokers raise.
        """
        sim = self.world.sim
        # How they came together is not what is tried: no choices.
        sim.delay_steps, delay_steps = 1, sim.delay_steps
        self._gather()
        if "delay" in self.shape.faults:
            sim.delay_steps = delay_steps
        program = self.program
        for transaction in program.transactions:
            self._at(transaction.at_ms, self._begin, transaction)
        for at_ms, op in program.plain:
            self._at(at_ms, self._plain, op)
        if program.handovers is not None:
            self._at(program.handovers.pauses_ms[0], self._hand_over, program.handovers)
            for at_ms, publisher in program.handovers.events:
                self._at(at_ms, self._event, publisher)
            for at_ms, coordinator, taker in program.handovers.takes:
                self._at(at_ms, self._take, program.handovers, coordinator, taker)
        for fault in program.faults:
            self._at(fault.at_ms, self._fault, fault)
        sim.run(steps=steps)

    def history(self) -> History:
        """The run as checkers see it."""
        return History.from_simulator(self.world.sim, self.world.clients, restarted=self.restarted)

    def _at(self, delay_ms: int, act: Callable[..., Any], *arguments: Any) -> None:
        self.world.sim.at(delay_ms / 1000, partial(act, *arguments))

    def _gather(self) -> None:
        world, program = self.world, self.program
        for client, edge in program.edges.items():
            world.connect(client, edge)
            world.reactions[client] = self._react
        world.sim.run()
        for client in program.clients:
            self._settle(client)
        for client, filter in program.held:
            world.plain(client, "sub", filter)
        if program.handovers is not None:
            for publisher in dict.fromkeys(program.handovers.publishers):
                world.plain(publisher, "adv", STREAM)
                self.events[publisher] = 0
            world.plain(program.handovers.workers[0], "sub", STREAM)
        world.sim.run()

    def _settle(self, client: str) -> None:
        """What every client says first: it can be asked for something, and ask, and publish."""
        self.world.plain(client, "adv", CONTROL)
        self.world.plain(client, "sub", Filter({"class": "ctl", "to": client}))
        self.world.plain(client, "adv", SPACE)

    def _is_here(self, client: str) -> bool:
        """Whether a client can do something: brokers may have thrown it out, which is not right."""
        return client in self.present and self.world.sim.connected(client)

    # --- transactions ---

    def _begin(self, transaction: PlannedTransaction, attempt: int = 1, age: int = 0) -> None:
        if transaction.engine not in DECIDED:
            self._wait(transaction)
            return
        if not self._is_here(transaction.coordinator):
            return
        tx = self._send(transaction, age)
        self._note(tx, transaction)
        if transaction.ending == "abort":
            self._at(transaction.patience_ms, self._abort, transaction, tx)

        def again(ended: Ended) -> None:
            if ended.code == "conflict" and attempt < transaction.attempts:
                self._begin(transaction, attempt + 1, self.world.ages.get(tx, 0))

        self.world.afterwards[tx] = again

    def _note(self, tx: TxID, transaction: PlannedTransaction) -> None:
        self.attempts.append(SentTransaction(tx, transaction, self.crashed.count(tx[0])))

    def _send(self, transaction: PlannedTransaction, age: int = 0) -> TxID:
        world, coordinator = self.world, transaction.coordinator
        forsaken = transaction.ending == "forsaken"
        deadline_s = FORSAKEN_S if forsaken else transaction.deadline_s
        if registry.load(transaction.engine).is_static:
            return world.submit(
                coordinator,
                self._static(transaction),
                deadline_s=deadline_s,
                engine=transaction.engine,
            )
        return world.begin(
            transaction.engine,
            coordinator,
            self._dynamic(transaction),
            commit=transaction.ending != "forsaken",
            deadline_s=deadline_s,
            age=age,
        )

    @staticmethod
    def _static(transaction: PlannedTransaction) -> list[Step]:
        return [
            op.step(after) for op, after in zip(transaction.ops, transaction.after, strict=True)
        ]

    def _dynamic(self, transaction: PlannedTransaction) -> list[ClientStep]:
        """The coordinator's own operations, and a tcm for each of somebody else's."""
        if transaction.nested:
            return self._nested(transaction.coordinator, transaction.ops)
        steps: list[ClientStep] = []
        for op in transaction.ops:
            refused = transaction.ending == "refused"
            answer: list[ClientStep] | str = "not now" if refused else [op.does()]
            own = op.client == transaction.coordinator
            steps.append(op.does() if own else self._tcm(transaction.coordinator, op, answer))
        return steps

    def _nested(self, client: str, ops: Sequence[PlannedOperation]) -> list[ClientStep]:
        """What a client does itself, up to where somebody else has to; he does the rest."""
        for at, op in enumerate(ops):
            if op.client != client:
                mine = [op.does() for op in ops[:at]]
                return [*mine, self._tcm(client, op, self._nested(op.client, ops[at:]))]
        return [op.does() for op in ops]

    def _tcm(self, client: str, op: PlannedOperation, answer: list[ClientStep] | str) -> Step:
        self._asked.append(answer)
        point: dict[str, Value] = {"class": "ctl", "to": op.client, "n": len(self._asked) - 1}
        return Step(client, "tcm", point=point)

    def _react(self, point: dict[str, Value]) -> list[ClientStep] | str:
        return self._asked[int(point["n"])]

    def _abort(self, transaction: PlannedTransaction, tx: TxID) -> None:
        if self._is_here(transaction.spoiler):
            self.world.say(transaction.engine, transaction.spoiler, Abort(tx))

    def _wait(self, transaction: PlannedTransaction) -> None:
        """BL-WAIT: one plain operation after the other, with waits between them."""
        asked: list[tuple[str, int]] = []
        self.waited.append(asked)

        def act(op: PlannedOperation) -> None:
            number = self._plain(op)
            if op.kind != "pub" and number:
                asked.append((op.client, number))

        for at, op in enumerate(transaction.ops):
            self._at(at * WAIT_MS, act, op)

    # --- plain traffic ---

    def _plain(self, op: PlannedOperation) -> int:
        """Let a client do something on its own; the number of its request, 0 if it is gone."""
        if not self._is_here(op.client):
            return 0
        if op.kind == "pub":
            return self.world.publish(op.client, op.what)
        assert op.kind != "tcm"
        return self.world.plain(op.client, op.kind, op.what)

    def _event(self, publisher: str) -> None:
        if self._is_here(publisher):
            self.events[publisher] += 1
            self.world.publish(publisher, {"class": "s", "n": self.events[publisher]})

    # --- the stream ---

    def _hand_over(self, handovers: PlannedHandovers) -> None:
        if not self._is_here(handovers.coordinator):
            return
        old, new = handovers.workers[self._owner], handovers.workers[self._owner ^ 1]
        ops = [PlannedOperation(new, "sub", STREAM), PlannedOperation(old, "usub", STREAM)]
        transaction = PlannedTransaction(
            0, handovers.engine, handovers.coordinator, ops, [(), (0,)]
        )
        if handovers.engine not in DECIDED:
            self._wait(transaction)
            return
        tx = self._send(transaction)
        self._note(tx, transaction)
        self.handovers.append(tx)

        def again(ended: Ended) -> None:
            self._owner ^= ended.committed
            if len(self.handovers) < len(handovers.pauses_ms):
                self._at(handovers.pauses_ms[len(self.handovers)], self._hand_over, handovers)

        self.world.afterwards[tx] = again

    def _take(self, handovers: PlannedHandovers, coordinator: str, taker: str) -> None:
        """Let whoever has the stream let go of it, and somebody take it."""
        if not self._is_here(coordinator) or not registry.load(handovers.engine).isolated:
            return
        ops = [PlannedOperation(each, "usub", STREAM, catches=True) for each in handovers.owners]
        ops.append(PlannedOperation(taker, "sub", STREAM))
        self._begin(
            PlannedTransaction(
                0, handovers.engine, coordinator, ops, [], nested=True, attempts=ATTEMPTS
            )
        )

    # --- faults ---

    def _fault(self, fault: PlannedFault) -> None:
        sim = self.world.sim
        if fault.kind in ("link-cut", "partition"):
            sim.cut(*fault.where, fault.outage_ms / 1000)
            return
        if fault.kind == RESTART:
            broker = fault.where[0]
            self.restarted.add(broker)
            sim.restart(broker)
            for client in sorted(self.present):
                if self.edges[client] == broker:
                    self._goes(client, broker, fault.outage_ms)
            return
        client, edge = fault.where
        if self._is_here(client):
            sim.crash(client)
            self._goes(client, edge, fault.outage_ms)

    def _goes(self, client: str, edge: str, outage_ms: int) -> None:
        """A client is gone, and comes back after a while, if at all."""
        self.crashed.append(client)
        self.present.remove(client)
        if outage_ms:
            self._at(outage_ms, self._come_back, client, edge)

    def _come_back(self, client: str, edge: str) -> None:
        """Let a client join again, under its old name, as if nothing had been."""

        def joined(code: str) -> None:
            if not code:
                self.present.add(client)
                self.edges[client] = edge
                self._settle(client)

        self.world.connect(client, edge, joined)
