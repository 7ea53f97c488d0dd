"""Questions for the outcome of a transaction, at one broker: who has asked, and who is asked.

A client asks its edge broker, any broker may be asked by its neighbours, and an engine asks for
itself when it is cut off from the coordinator in the middle of a transaction. The rules:

- A broker that knows the outcome answers at once.
- One at which the transaction is open answers when it is decided. But to the neighbour towards the
  coordinator it says "unknown": all that this side will ever know comes from there.
- Any other broker asks all its neighbours but the one that asks. The first decision that comes
  back is the answer; "unknown" is the answer when all of them return it. On a tree no broker
  waits for itself.

Each question that is put to a neighbour is answered once. A neighbour that has lost its memory is
asked again, and its own questions are dropped: it will ask again if it still wants to know. While a
link is down a question waits in the link's queue.

A broker that has too many questions open says "busy", which never counts as "unknown".
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

from overlay.broker.core import Broker
from overlay.broker.engine import Engine
from overlay.broker.limits import Usage
from overlay.effects import Effect, Send
from overlay.errors import ProtocolError
from overlay.messages import Hop, client_hop, is_client
from overlay.stored import stored
from padres_tx.client_messages import (
    QUESTIONS_PER_CLIENT,
    TX_LIMIT,
    AskOutcome,
    OutcomeReply,
    Standing,
    TxID,
    engine_message,
    to_client,
    tx_text,
)
from padres_tx.protocol import inspection
from padres_tx.protocol.broker_messages import Answer, Ask, asking, shortened
from padres_tx.protocol.outcomes import OUTCOME_AGE_S, EndedTx, Outcomes

#: Questions that clients and neighbours may have open at a broker.
QUESTIONS_LIMIT = 10_000

#: The one who asks, if it is the engine itself.
SELF = Hop("")

NOBODY_KNOWS = (
    "no broker knows it: it was never begun, or it ended more than "
    f"{OUTCOME_AGE_S / 60:g} minutes ago, or its broker was restarted since"
)


class KnownTransaction(Protocol):
    """A transaction as an engine at a broker knows it."""

    upstream: Hop
    ended: EndedTx | None

    @property
    def at_edge(self) -> bool: ...

    @property
    def open(self) -> bool: ...


T = TypeVar("T", bound=KnownTransaction)


@stored("outcome-engine", fields=("txs", "ended", "questions"))
class OutcomeEngine(Engine, Generic[T]):
    """An engine that remembers the outcomes of its transactions, and answers questions for them."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.txs: dict[TxID, T] = {}
        self.ended = Outcomes()
        self.questions = Questions(self)

    def usage(self) -> list[Usage]:
        return [Usage(f"{self.name} transactions", len(self.txs), TX_LIMIT)]

    def asked(self, source: Hop, ask: Ask | AskOutcome, now: float) -> list[Effect]:
        """A client or a neighbour asks for an outcome, or a client why there is none yet."""
        if isinstance(ask, AskOutcome) and ask.at_once:
            return self.questions.explain(source, ask.tx)
        return self.questions.ask(source, ask.tx, now)

    def question_answered(self, source: Hop, answer: Answer, now: float) -> list[Effect]:
        """A neighbour answers a question of this broker."""
        return self.questions.answered(source, answer, now)

    def outcome(self, tx: TxID, now: float) -> EndedTx | None:
        """How a transaction has ended, if this broker knows or remembers it."""
        known = self.txs.get(tx)
        return known.ended if known is not None else self.ended.get(tx, now)

    def stands(self, tx: TxID, asker: Hop) -> str:
        """ "open" if the decision will come here; "cut off" if only the asker could bring it; ""
        if the transaction is not open here."""
        known = self.txs.get(tx)
        if known is None or not known.open:
            return ""
        return "cut off" if known.upstream == asker and not known.at_edge else "open"

    def learned(self, answer: Answer, now: float) -> list[Effect]:
        """Take the answer to a question of the engine's own (`Questions.wonder`)."""
        raise AssertionError(f"{self.name} asks no questions of its own")


@stored("question")
class Question:
    """The outcome of one transaction, which a client or broker asks for."""

    __slots__ = ("askers", "busy", "unknown")

    def __init__(self) -> None:
        #: Who asks, and the neighbours that have to say "unknown" before that is the answer; None
        #: for those who wait for the decision here.
        self.askers: dict[Hop, tuple[Hop, ...] | None] = {}
        #: The neighbours that do not know it, or are too busy to find out.
        self.unknown: set[Hop] = set()
        self.busy: set[Hop] = set()


@stored("questions", fields=("_engine", "_open", "_asked", "_of_client"))
class Questions:
    """The open questions of one engine at one broker; see the module's docstring."""

    def __init__(self, engine: OutcomeEngine[Any]) -> None:
        self._engine = engine
        self._open: dict[TxID, Question] = {}
        #: What neighbours were asked and have not answered. Dicts, for their order.
        self._asked: dict[Hop, dict[TxID, None]] = {}
        #: How many questions each client has open.
        self._of_client: dict[Hop, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    # --- asking ---

    def ask(self, asker: Hop, tx: TxID, now: float) -> list[Effect]:
        """A client or a neighbour wants to know the outcome."""
        engine = self._engine
        known = engine.outcome(tx, now)
        if known is not None and not known.alone:
            return self._reply(asker, of_ended(known))
        stands = engine.stands(tx, asker)
        if stands == "cut off":
            return self._reply(asker, Answer(tx, "unknown", "unknown", NOBODY_KNOWS))
        question = self._open.get(tx)
        if question is not None and asker in question.askers:
            return []
        if (busy := self._full(asker, tx)) is not None:
            return self._reply(asker, busy)
        question = question or self._open.setdefault(tx, Question())
        if is_client(asker):
            self._of_client[asker] = self._of_client.get(asker, 0) + 1
        if stands == "open":
            question.askers[asker] = None
            return []
        neighbours = engine.broker.routing.neighbours
        return self._put(asker, tx, tuple(hop for hop in neighbours if hop != asker), now)

    def explain(self, asker: Hop, tx: TxID) -> list[Effect]:
        """A client asks why it has no answer yet: name the brokers that are unreachable."""
        broker = self._engine.broker
        missing = inspection.missing(broker.reach, broker.routing.neighbours)
        return self._reply(asker, Answer(tx, "waiting", reason=missing))

    def wonder(self, tx: TxID, upstream: Hop, now: float) -> list[Effect]:
        """The engine itself wants to know, from this neighbour; it gets the answer in `learned`."""
        question = self._open.setdefault(tx, Question())
        question.unknown.discard(upstream)
        question.busy.discard(upstream)
        return self._put(SELF, tx, (upstream,), now)

    def _put(self, asker: Hop, tx: TxID, to: tuple[Hop, ...], now: float) -> list[Effect]:
        question = self._open[tx]
        question.askers[asker] = to
        hops = tuple(hop for hop in to if hop not in question.unknown)
        return [*self._send(hops, tx), *self._settle(tx, now)]

    def _send(self, hops: tuple[Hop, ...], tx: TxID) -> list[Effect]:
        new = tuple(hop for hop in hops if tx not in self._asked.get(hop, ()))
        for hop in new:
            self._asked.setdefault(hop, {})[tx] = None
        return self._say(new, asking.encode(Ask(tx)))

    def _full(self, asker: Hop, tx: TxID) -> Answer | None:
        """Why no more is taken from the asker, if so."""
        name = self._engine.broker.name
        if is_client(asker) and self._of_client.get(asker, 0) >= QUESTIONS_PER_CLIENT:
            reason = f"{asker[1:]} has {QUESTIONS_PER_CLIENT} questions open at {name} already"
            return Answer(tx, "busy", "busy", reason)
        if tx not in self._open and len(self._open) >= QUESTIONS_LIMIT:
            return Answer(tx, "busy", "busy", f"{name} has {QUESTIONS_LIMIT} questions open")
        return None

    # --- answers ---

    def answered(self, source: Hop, answer: Answer, now: float) -> list[Effect]:
        """A neighbour answers. Raises ProtocolError if it was not asked."""
        asked = self._asked.get(source, {})
        if answer.tx not in asked or answer.status == "waiting":
            raise ProtocolError(f"{source} was not asked for {tx_text(answer.tx)}")
        del asked[answer.tx]
        question = self._open.get(answer.tx)
        if question is None:
            return []
        if answer.status in ("unknown", "busy"):
            question.unknown.add(source)
            if answer.status == "busy":
                question.busy.add(source)
            return self._settle(answer.tx, now)
        effects: list[Effect] = []
        if SELF in question.askers:
            del question.askers[SELF]
            effects += self._engine.learned(answer, now)
        elif not self._engine.stands(answer.tx, SELF) and not self._is_known(answer.tx, now):
            self._engine.ended.add(
                answer.tx,
                committed=answer.status == "committed",
                code=answer.code,
                reason=answer.reason,
                began_at=now,
                now=now,
            )
        return effects + self._close(answer.tx, answer)

    def decided(self, tx: TxID, now: float) -> list[Effect]:
        """The decision has come here: all who wait for it are told."""
        known = self._engine.outcome(tx, now)
        if known is None or known.alone:
            return []
        return self._close(tx, of_ended(known))

    def _settle(self, tx: TxID, now: float) -> list[Effect]:
        """Answer those who have heard from all that could know."""
        question = self._open.get(tx)
        effects: list[Effect] = []
        for asker, to in list(question.askers.items()) if question else ():
            assert question is not None
            if to is None or not question.unknown.issuperset(to):
                continue
            if asker != SELF and self._engine.stands(tx, asker) == "open":
                question.askers[asker] = None  # It has begun here meanwhile.
                continue
            self._drop(question, asker)
            answer = self._last_resort(tx, asker, now)
            if not question.busy.isdisjoint(to):
                reason = f"{', '.join(sorted(question.busy))} has too many questions open"
                answer = Answer(tx, "busy", "busy", reason)
            if asker == SELF:
                effects += self._engine.learned(answer, now)
            else:
                effects += self._reply(asker, answer)
        self._clean(tx)
        return effects

    def _close(self, tx: TxID, answer: Answer) -> list[Effect]:
        """Give this answer to all that have asked."""
        question = self._open.pop(tx, None)
        effects: list[Effect] = []
        for asker in list(question.askers) if question else ():
            assert question is not None
            self._drop(question, asker)
            if asker != SELF:
                effects += self._reply(asker, answer)
        return effects

    def _reply(self, asker: Hop, answer: Answer) -> list[Effect]:
        if is_client(asker):
            told = OutcomeReply(answer.tx, answer.status, answer.code, answer.reason)
            return self._say((asker,), to_client.encode(told))
        answer = msgspec.structs.replace(answer, reason=shortened(answer.reason))
        return self._say((asker,), asking.encode(answer))

    def _say(self, hops: tuple[Hop, ...], body: bytes) -> list[Effect]:
        return [Send(hops, engine_message(self._engine.name, body))] if hops else []

    def _last_resort(self, tx: TxID, asker: Hop, now: float) -> Answer:
        """The answer when no other broker knows: for a client, how this side has ended it alone."""
        known = self._engine.outcome(tx, now) if is_client(asker) else None
        return Answer(tx, "unknown", "unknown", NOBODY_KNOWS) if known is None else of_ended(known)

    def _is_known(self, tx: TxID, now: float) -> bool:
        return self._engine.outcome(tx, now) is not None

    # --- who comes and goes ---

    def client_left(self, client: str) -> None:
        hop = client_hop(client)
        for tx, question in list(self._open.items()) if hop in self._of_client else ():
            if hop in question.askers:
                self._drop(question, hop)
                self._clean(tx)

    def link_reset(self, neighbour: Hop, now: float) -> list[Effect]:
        """A neighbour has lost its memory: it has asked nothing, and is asked again."""
        self._asked.pop(neighbour, None)
        effects: list[Effect] = []
        for tx, question in list(self._open.items()):
            question.askers.pop(neighbour, None)
            question.unknown.discard(neighbour)
            question.busy.discard(neighbour)
            if any(neighbour in (to or ()) for to in question.askers.values()):
                effects += self._send((neighbour,), tx)
            self._clean(tx)
        return effects

    def _drop(self, question: Question, asker: Hop) -> None:
        del question.askers[asker]
        if is_client(asker):
            self._of_client[asker] -= 1
            if not self._of_client[asker]:
                del self._of_client[asker]

    def _clean(self, tx: TxID) -> None:
        if tx in self._open and not self._open[tx].askers:
            del self._open[tx]


def of_ended(ended: EndedTx) -> Answer:
    status: Standing = "committed" if ended.committed else "aborted"
    return Answer(ended.tx, status, ended.code, ended.reason)
