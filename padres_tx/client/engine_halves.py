"""The client halves of transaction engines: what a client sends to its edge broker for them.

Each client has one half of each engine that it uses. The dynamic one sends each operation as it
comes, and lets the receivers of a tcm act. The static one collects everything and sends one plan.
The module of an engine names its half, "dynamic" or "static", or has a class of its own, derived
from `ClientHalf` (`padres_tx.engines`).

A half is pure. `padres_tx.client.transactions` checks the calls and has what all engines share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from overlay.errors import OverlayError, ProtocolError
from overlay.messages import ClientName, EngineMessage
from padres_tx import client_messages
from padres_tx.client.holdings import HoldingChange
from padres_tx.client.operations import Op
from padres_tx.client.session import Event, Notification, SendMessage
from padres_tx.client.static_plan import StaticPlan
from padres_tx.client.transactions import (
    ClientTransaction,
    CommitApplied,
    Doubt,
    OperationDone,
    SendForOperation,
    Terms,
    Transactions,
)
from padres_tx.client_messages import TxID, tx_text


class ClientHalf(ABC):
    """The client half of an engine. Calls are checked before; each returns events."""

    #: What the engine keeps of one transaction.
    transaction_class: ClassVar[type[ClientTransaction]] = ClientTransaction
    #: What `begin` takes beside a deadline.
    options: ClassVar[tuple[str, ...]] = ()
    #: Whether the coordinator sends everything at once, others' operations included.
    is_static: ClassVar[bool] = False
    #: Whether `CommitDrained` follows a commit.
    drains: ClassVar[bool] = False
    #: Whether brokers remember outcomes, and answer `client_messages.AskOutcome`.
    remembers: ClassVar[bool] = False
    #: Whether reads of the client's own state are sent to its broker (`padres_tx.looks`).
    reads: ClassVar[bool] = False

    def __init__(self, engine: str, transactions: Transactions) -> None:
        self.engine = engine
        self.transactions = transactions
        self.session = transactions.session

    @abstractmethod
    def begin(self, tx: ClientTransaction, terms: Terms) -> list[Event]: ...

    @abstractmethod
    def operate(
        self, tx: ClientTransaction, frame: int, number: int, op: Op, callback: Any
    ) -> list[Event]: ...

    @abstractmethod
    def commit(self, tx: ClientTransaction) -> list[Event]: ...

    @abstractmethod
    def abort(self, tx: ClientTransaction, reason: str) -> list[Event]: ...

    @abstractmethod
    def finish(self, tx: ClientTransaction, frame: int, error: str) -> list[Event]: ...

    @abstractmethod
    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]: ...

    def receive(self, body: msgspec.Raw) -> list[Event]:
        """Take a message of the engine's broker half. Raises ProtocolError."""
        raise ProtocolError(f"unexpected message of {self.engine}, which sends clients none")

    def wake(self, tx: ClientTransaction) -> list[Event]:
        raise AssertionError(f"{self.engine} has set no timer")

    def answered(self, req: int, error: OverlayError | None) -> list[Event]:
        return []

    def notified(self, name: str, notification: Notification) -> list[Event] | None:
        return None


class BrokerDecidedHalf(ClientHalf):
    """Base of the halves whose transactions a broker decides."""

    remembers = True

    def abort(self, tx: ClientTransaction, reason: str) -> list[Event]:
        return [self.send(client_messages.Abort(tx.id, reason))]

    def receive(self, body: msgspec.Raw) -> list[Event]:
        message = client_messages.to_client.decode(body)
        match message:
            case client_messages.Ended():
                return self._ended(message)
            case client_messages.Applied():
                return [CommitApplied(tx_text(message.tx))]
            case client_messages.Drained():
                return self.transactions.drained(message.tx)
            case client_messages.InDoubt():
                return [Doubt(tx_text(message.tx), message.awaited, message.reason)]
            case client_messages.OutcomeReply():
                return self.transactions.questions.answered(self.engine, message)
        return self.receive_other(message)

    def receive_other(self, message: client_messages.ToClient) -> list[Event]:
        """Take a message that is not about the end. Raises ProtocolError."""
        raise ProtocolError(f"unexpected {type(message).__name__} of {self.engine}")

    def _ended(self, ended: client_messages.Ended) -> list[Event]:
        if ended.code in ("unknown", "foreign", "finished"):
            return []  # The answer to a late message; the decision has come before, or will come.
        tx = self.transactions.get(ended.tx)
        if tx is None:
            # Another client's: only its publications came, or it acted on this client's behalf.
            tx = self.transactions.join(self, ended.tx)
        changes = [HoldingChange(*effective) for effective in ended.effective]
        return self.transactions.end(tx, ended.committed, ended.code, ended.reason, changes)

    def send(self, message: client_messages.FromClient) -> SendMessage:
        """The event that sends a message to the edge broker."""
        body = client_messages.from_client.encode(message)
        return SendMessage(EngineMessage(self.engine, msgspec.Raw(body)))

    def send_for(
        self, tx: ClientTransaction, number: int, message: client_messages.FromClient
    ) -> SendForOperation:
        """The event that sends the message of an operation; 0 for one of the whole transaction."""
        return SendForOperation(tx, number, self.send(message).message)


class DynamicHalf(BrokerDecidedHalf):
    """Each operation goes out as it comes; receivers of a tcm decide for themselves what to do."""

    drains = True
    reads = True

    def begin(self, tx: ClientTransaction, terms: Terms) -> list[Event]:
        return [self.send(client_messages.Begin(tx.id, terms.deadline_s, terms.age))]

    def operate(
        self, tx: ClientTransaction, frame: int, number: int, op: Op, callback: Any
    ) -> list[Event]:
        self.transactions.start(tx, number, op)
        self.transactions.listen(tx, number, op, callback)
        step = client_messages.Step(
            self.session.name,
            op.kind,
            op.filter,
            op.point,
            op.payload,
            number,
            receivers=op.to or (),
            events=op.events,
        )
        held = self.transactions.held_outside(op)
        operate = client_messages.Operate(tx.id, frame, number, step, held)
        return [*self._looks(tx, frame), self.send_for(tx, number, operate)]

    def commit(self, tx: ClientTransaction) -> list[Event]:
        return [*self._looks(tx, 0), self.send(client_messages.Commit(tx.id))]

    def finish(self, tx: ClientTransaction, frame: int, error: str) -> list[Event]:
        return [*self._looks(tx, frame), self.send(client_messages.Finish(tx.id, frame, error))]

    def _looks(self, tx: ClientTransaction, frame: int) -> list[Event]:
        return [self.send_for(tx, 0, look) for look in tx.looks.take(frame)]

    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]:
        if not number:  # A look that cannot be validated.
            return [self.send(client_messages.Abort(tx.id, str(error)))]
        self.transactions.over(tx, number)
        self.session.withdraw(tx.id, number)
        tx.sent = [sent for sent in tx.sent if sent.number != number]
        return [OperationDone(tx, number, error)]

    def receive_other(self, message: client_messages.ToClient) -> list[Event]:
        match message:
            case client_messages.Began():
                self._open(message.tx).age = message.age
                return []
            case client_messages.Operated():
                tx = self._open(message.tx)
                if message.number not in tx.pending:
                    raise ProtocolError(f"{tx.name} has no pending operation {message.number}")
                self.transactions.over(tx, message.number)
                return [OperationDone(tx, message.number)]
            case client_messages.Tcm():
                return self._tcm(message)
        return super().receive_other(message)

    def _tcm(self, tcm: client_messages.Tcm) -> list[Event]:
        tx = self.transactions.get(tcm.tx)
        if tx is None:
            tx = self.transactions.join(self, tcm.tx)
        elif tx.state == "ended" or tcm.frame in tx.frames:
            raise ProtocolError(f"{tx.name} cannot open frame {tcm.frame} now")
        publisher = ClientName(tcm.publisher)
        notification = Notification(publisher, tcm.seq, tcm.point, tcm.payload, life=tcm.life)
        return self.transactions.call(tx, tcm.frame, notification)

    def _open(self, id: TxID) -> ClientTransaction:
        tx = self.transactions.get(id)
        if tx is None or tx.state == "ended":
            raise ProtocolError(f"{tx_text(id)} is not open at {self.session.name}")
        return tx


class PlannedTransaction(ClientTransaction):
    """A transaction whose operations are collected before anything is sent."""

    def __init__(self, id: TxID, half: ClientHalf, *, coordinator: bool) -> None:
        super().__init__(id, half, coordinator=coordinator)
        self.plan = StaticPlan(id[0])


class StaticHalf(BrokerDecidedHalf):
    """All operations are collected, and sent as one plan when the program commits.

    Participants get only the outcome: their edge brokers act for them.
    """

    transaction_class = PlannedTransaction
    is_static = True

    def begin(self, tx: ClientTransaction, terms: Terms) -> list[Event]:
        return []

    def operate(
        self, tx: ClientTransaction, frame: int, number: int, op: Op, callback: Any
    ) -> list[Event]:
        assert isinstance(tx, PlannedTransaction)
        tx.plan.add(op, number)
        self.transactions.listen(tx, number, op, callback)
        return []

    def commit(self, tx: ClientTransaction) -> list[Event]:
        assert isinstance(tx, PlannedTransaction)
        if not len(tx.plan):
            return [*self.transactions.end(tx, True), CommitApplied(tx.name)]
        submit = client_messages.Submit(tx.id, tx.deadline_s, tx.plan.steps(self.session.number))
        return [self.send_for(tx, 0, submit)]

    def abort(self, tx: ClientTransaction, reason: str) -> list[Event]:
        if tx.state == "committing":
            return super().abort(tx, reason)
        # It was not sent yet.
        return self.transactions.end(tx, False, "aborted", reason or f"{tx.id[0]} aborted it")

    def finish(self, tx: ClientTransaction, frame: int, error: str) -> list[Event]:
        raise AssertionError("a static transaction calls no handlers")

    def unsent(self, tx: ClientTransaction, number: int, error: OverlayError) -> list[Event]:
        return self.transactions.end(tx, False, error.code, str(error))


#: The halves that an engine can name.
HALVES: dict[str, type[ClientHalf]] = {"dynamic": DynamicHalf, "static": StaticHalf}
