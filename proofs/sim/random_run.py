"""One random run: a random program, carried out in a simulated overlay.

The run only makes things happen and notes what was sent; `random_checks` and `proofs.checkers`
check the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from overlay.broker.core import Broker
from overlay.broker.engine import EngineFactory
from overlay.filters import Filter, Value
from overlay.hosts.simulator import STEP_LIMIT, Simulator, Tape
from padres_tx import registry
from padres_tx.client_messages import Abort, Ended, Step, TxID
from proofs.history import History
from proofs.sim.broker_processes import Death
from proofs.sim.crowded_program import CrowdedProgram
from proofs.sim.durable_simulator import DurableSimulator
from proofs.sim.program import (
    ABSENT_AFTER_S,
    ALL,
    ATTEMPTS,
    CONTROL,
    DECIDED,
    DISK_FULL,
    DURABLE,
    FORSAKEN_S,
    RESTART,
    SPACE,
    STREAM,
    WAIT_MS,
    PlannedFault,
    PlannedHandovers,
    PlannedOperation,
    Program,
    RandomTransaction,
    Shape,
)
from proofs.sim.simulated_overlay import ClientStep, SimulatedOverlay
from proofs.sim.simulated_sessions import SimulatedSessions


class SentTransaction(NamedTuple):
    """One attempt of a transaction; its coordinator had crashed `crashes` times before."""

    tx: TxID
    transaction: RandomTransaction
    crashes: int


class RandomRun:
    """One random run: create it, let it `go`, then check it."""

    def __init__(
        self,
        shape: Shape,
        tape: Tape,
        *,
        factories: dict[str, EngineFactory] | None = None,
        simulator: Callable[..., Simulator] | None = None,
        broker: type[Broker] = Broker,
    ) -> None:
        self.shape = shape
        self.tape = tape
        self.program = (CrowdedProgram if shape.crowded else Program)(shape, tape)
        make = SimulatedSessions if shape.sessions else SimulatedOverlay
        self.world = make(
            self.program.tree,
            tape.choose,
            factories=factories,
            broker=broker,
            slice=shape.slice,
            simulator=simulator or (DurableSimulator if shape.durable else Simulator),
        )
        if "partition" in shape.faults:
            self.world.sim.absent_after_s = ABSENT_AFTER_S
        self.attempts: list[SentTransaction] = []
        #: For each BL-WAIT transaction, the requests that its clients have sent.
        self.waited: list[list[tuple[str, int]]] = []
        #: Clients that have crashed, once for each crash; and the clients that are connected.
        self.crashed: list[str] = []
        self.present = set(self.program.clients)
        #: The last edge broker of each client; and the brokers that have lost their state.
        self.edges = dict(self.program.edges)
        self.restarted: set[str] = set()
        #: The handovers that were attempted, and how many events each publisher has sent.
        self.handovers: list[TxID] = []
        self.events: dict[str, int] = {}
        self._reactions: list[list[ClientStep] | str] = []
        self._owner = 0

    def go(self, steps: int = STEP_LIMIT) -> None:
        """Carry out the program, until the overlay is at rest.

        Raises NeverSettles after too many steps, and whatever brokers raise.
        """
        sim = self.world.sim
        # Setting up is not part of the test: it takes no choices.
        sim.delay_steps, delay_steps = 1, sim.delay_steps
        self._set_up()
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
        """The run as the checkers read it."""
        return History.from_simulator(self.world.sim, self.world.clients, restarted=self.restarted)

    def _at(self, delay_ms: int, act: Callable[..., Any], *arguments: Any) -> None:
        self.world.sim.at(delay_ms / 1000, partial(act, *arguments))

    def _set_up(self) -> None:
        world, program = self.world, self.program
        for client, edge in program.edges.items():
            world.connect(client, edge)
            world.reactions[client] = self._react
        world.sim.run()
        for client in program.clients:
            self._introduce(client)
        for client, filter in program.held:
            world.plain(client, "sub", filter)
        if program.handovers is not None:
            for publisher in dict.fromkeys(program.handovers.publishers):
                world.plain(publisher, "adv", STREAM)
                self.events[publisher] = 0
            world.plain(program.handovers.workers[0], "sub", STREAM)
        world.sim.run()

    def _introduce(self, client: str) -> None:
        """A client's first operations: from then on it can receive and send tcms, and publish."""
        self.world.plain(client, "adv", CONTROL)
        self.world.plain(client, "sub", Filter({"class": "ctl", "to": client}))
        self.world.plain(client, "adv", SPACE)

    def _is_here(self, client: str) -> bool:
        """Whether a client can act: it has not crashed, and no broker has closed its link."""
        return client in self.present and self.world.sim.connected(client)

    # --- transactions ---

    def _begin(self, transaction: RandomTransaction, attempt: int = 1, age: int = 0) -> None:
        if transaction.engine not in DECIDED:
            self._wait(transaction)
            return
        if not self._is_here(transaction.coordinator):
            return
        tx = self._send(transaction, age)
        self._sent(tx, transaction)
        if transaction.ending == "abort":
            self._at(transaction.patience_ms, self._abort, transaction, tx)

        def again(ended: Ended) -> None:
            if ended.code == "conflict" and attempt < transaction.attempts:
                self._begin(transaction, attempt + 1, self.world.ages.get(tx, 0))

        self.world.afterwards[tx] = again

    def _sent(self, tx: TxID, transaction: RandomTransaction) -> None:
        self.attempts.append(SentTransaction(tx, transaction, self.crashed.count(tx[0])))

    def _send(self, transaction: RandomTransaction, age: int = 0) -> TxID:
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
    def _static(transaction: RandomTransaction) -> list[Step]:
        return [
            op.step(after) for op, after in zip(transaction.ops, transaction.after, strict=True)
        ]

    def _dynamic(self, transaction: RandomTransaction) -> list[ClientStep]:
        """The coordinator's own operations, and a tcm for each operation of another client."""
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
        """The client's own operations up to the first of another client, which does the rest."""
        for at, op in enumerate(ops):
            if op.client != client:
                mine = [op.does() for op in ops[:at]]
                return [*mine, self._tcm(client, op, self._nested(op.client, ops[at:]))]
        return [op.does() for op in ops]

    def _tcm(self, client: str, op: PlannedOperation, answer: list[ClientStep] | str) -> Step:
        self._reactions.append(answer)
        point: dict[str, Value] = {"class": "ctl", "to": op.client, "n": len(self._reactions) - 1}
        return Step(client, "tcm", point=point)

    def _react(self, point: dict[str, Value]) -> list[ClientStep] | str:
        return self._reactions[int(point["n"])]

    def _abort(self, transaction: RandomTransaction, tx: TxID) -> None:
        if self._is_here(transaction.spoiler):
            self.world.send(transaction.engine, transaction.spoiler, Abort(tx))

    def _wait(self, transaction: RandomTransaction) -> None:
        """BL-WAIT: one plain operation after the other, with waits between them."""
        asked: list[tuple[str, int]] = []
        self.waited.append(asked)

        def act(op: PlannedOperation) -> None:
            number = self._plain(op)
            if op.kind != "pub" and number:
                asked.append((op.client, number))

        for at, op in enumerate(transaction.ops):
            self._at(at * WAIT_MS, act, op)

    # --- plain operations ---

    def _plain(self, op: PlannedOperation) -> int:
        """Send a plain operation; returns the number of the request, 0 if the client is gone."""
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
        transaction = RandomTransaction(0, handovers.engine, handovers.coordinator, ops, [(), (0,)])
        if handovers.engine not in DECIDED:
            self._wait(transaction)
            return
        tx = self._send(transaction)
        self._sent(tx, transaction)
        self.handovers.append(tx)

        def again(ended: Ended) -> None:
            self._owner ^= ended.committed
            if len(self.handovers) < len(handovers.pauses_ms):
                self._at(handovers.pauses_ms[len(self.handovers)], self._hand_over, handovers)

        self.world.afterwards[tx] = again

    def _take(self, handovers: PlannedHandovers, coordinator: str, taker: str) -> None:
        """Let each possible owner give up the stream if it holds it, and one client take it."""
        if not self._is_here(coordinator) or not registry.load(handovers.engine).isolated:
            return
        ops = [PlannedOperation(each, "usub", STREAM, catches=True) for each in handovers.owners]
        ops.append(PlannedOperation(taker, "sub", STREAM))
        self._begin(
            RandomTransaction(
                0, handovers.engine, coordinator, ops, [], nested=True, attempts=ATTEMPTS
            )
        )

    # --- faults ---

    def _fault(self, fault: PlannedFault) -> None:
        sim = self.world.sim
        if fault.kind in ("link-cut", "partition"):
            sim.cut(*fault.where, fault.outage_ms / 1000)
            return
        if fault.kind in DURABLE:
            self._durable_fault(fault)
            return
        if fault.kind == RESTART:
            broker = fault.where[0]
            self.restarted.add(broker)
            sim.restart(broker)
            for client in sorted(self.present):
                if self.edges[client] == broker:
                    self._disconnect(client, broker, fault.outage_ms)
            return
        client, edge = fault.where
        if self._is_here(client):
            sim.crash(client)
            self._disconnect(client, edge, fault.outage_ms)

    def _durable_fault(self, fault: PlannedFault) -> None:
        """Brokers die, and will be back; or a disk is full."""
        sim, (broker, place) = self.world.sim, fault.where
        assert isinstance(sim, DurableSimulator)
        outage_s = fault.outage_ms / 1000
        if fault.kind == DISK_FULL:
            sim.fill_disk(broker, outage_s)
            return
        for name in sim.brokers if broker == ALL else (broker,):
            sim.kill(name, Death(place, fault.steps, fault.power), outage_s)

    def _disconnect(self, client: str, edge: str, outage_ms: int) -> None:
        """A client is gone; it comes back after the outage, unless that is 0."""
        self.crashed.append(client)
        self.present.remove(client)
        if outage_ms:
            self._at(outage_ms, self._come_back, client, edge)

    def _come_back(self, client: str, edge: str) -> None:
        """Let a client join again under its old name."""

        def joined(code: str) -> None:
            if not code:
                self.present.add(client)
                self.edges[client] = edge
                self._introduce(client)

        self.world.connect(client, edge, joined)
