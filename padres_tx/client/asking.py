"""A client's questions for the outcome of transactions, its own or others'.

The name of a transaction has its coordinator but not its engine. So the client asks all engines at
the edge broker that remember outcomes, unless it knows the engine. The first decision is the
answer; the transaction is unknown when all engines say so.

Pure, a part of `padres_tx.client.transactions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import OverlayError, ProtocolError
from padres_tx import client_messages, registry
from padres_tx.client.session import EngineEvent, Event, SendMessage
from padres_tx.client_messages import QUESTIONS_PER_CLIENT, parse_tx, tx_text
from padres_tx.errors import BadTransaction, TooManyRequests, UnknownTransaction, no_name

if TYPE_CHECKING:
    from padres_tx.client.transactions import Result, Transactions


class OutcomeLearned(EngineEvent, frozen=True):
    """The answer to a question: the outcome of a transaction, or why it is not known."""

    tx: str
    result: Result | None = None
    error: OverlayError | None = None


class OutcomeAwaited(EngineEvent, frozen=True):
    """Why the client waits: the brokers that its edge broker cannot reach; "" if there are none."""

    tx: str
    reason: str


class OutcomeQuestions:
    """The questions of one client that are not answered yet."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        #: By transaction: the engines that have not answered; and which of them still matter.
        self._asked: dict[str, set[str]] = {}
        self._open: set[str] = set()
        #: The engine that was asked why there is no answer yet, for each transaction.
        self._explaining: dict[str, str] = {}

    def ask(self, name: str, engine: str | None = None) -> tuple[str, list[Event]]:
        """Ask for the outcome; `OutcomeLearned` follows, at once if the client knows it.

        Returns the name that `OutcomeLearned` will have.

        Raises UnknownTransaction for an invalid name; UnknownEngine, BadTransaction,
        TooManyRequests.
        """
        tx_id = parse_tx(name) if isinstance(name, str) else None
        if tx_id is None:
            raise no_name(name)
        known = self._transactions.get(tx_id)
        if known is not None and known.result is not None:
            return known.name, [OutcomeLearned(known.name, known.result)]
        engine = engine or (known.engine if known is not None else None)
        if engine is not None and not self._transactions.half(engine).remembers:
            raise BadTransaction(f"brokers remember no outcomes of {engine} transactions")
        name = tx_text(tx_id)
        if name not in self._asked and len(self._asked) >= QUESTIONS_PER_CLIENT:
            raise TooManyRequests(
                f"{self._transactions.session.name} waits for {QUESTIONS_PER_CLIENT} outcomes; "
                "await some first"
            )
        asked = self._asked.setdefault(name, set())
        self._open.add(name)
        events: list[Event] = []
        for each in self._remembering() if engine is None else [engine]:
            if each not in asked:
                asked.add(each)
                body = client_messages.from_client.encode(client_messages.AskOutcome(tx_id))
                events.append(SendMessage(client_messages.engine_message(each, body)))
        return name, events

    def explain(self, name: str) -> list[Event]:
        """Ask why an outcome does not come, or why not all brokers have applied it;
        `OutcomeAwaited` follows."""
        tx_id = parse_tx(name)
        if tx_id is None or len(self._explaining) >= QUESTIONS_PER_CLIENT:
            return []
        known = self._transactions.get(tx_id)
        engine = known.engine if known is not None else min(self._asked.get(name, ()), default="")
        if not engine or not self._transactions.half(engine).remembers:
            return []
        self._explaining[name] = engine
        ask = client_messages.AskOutcome(tx_id, at_once=True)
        body = client_messages.from_client.encode(ask)
        return [SendMessage(client_messages.engine_message(engine, body))]

    def _remembering(self) -> list[str]:
        """The package's own engines: a broker has these, and may not have others."""
        halves = (self._transactions.half(name) for name in registry.own_names())
        return [half.engine for half in halves if half.remembers]

    def answered(self, engine: str, outcome: client_messages.OutcomeReply) -> list[Event]:
        """An engine at the edge broker has answered. Raises ProtocolError if it was not asked."""
        name = tx_text(outcome.tx)
        if outcome.status == "waiting" and self._explaining.get(name) == engine:
            del self._explaining[name]
            return [OutcomeAwaited(name, outcome.reason)]
        asked = self._asked.get(name, set())
        if engine not in asked or outcome.status == "waiting":
            raise ProtocolError(f"{engine} was not asked for {name}")
        asked.discard(engine)
        if not asked:
            del self._asked[name]
        if name not in self._open:
            return []
        if outcome.status == "unknown" and asked:
            return []
        self._open.discard(name)
        match outcome.status:
            case "unknown":
                return [OutcomeLearned(name, error=UnknownTransaction(f"{name}: {outcome.reason}"))]
            case "busy":
                return [OutcomeLearned(name, error=TooManyRequests(f"{name}: {outcome.reason}"))]
        # Here, because that module imports this one.
        from padres_tx.client.transactions import Result

        result = Result(name, engine, outcome.status, outcome.code, outcome.reason)
        return [OutcomeLearned(name, result)]
