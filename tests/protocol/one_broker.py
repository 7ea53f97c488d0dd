"""One real broker, and the test as everybody around it: set state, send one message, see effects.

The broker is B2, between the neighbours that a test names; clients are here or behind a neighbour.
What the broker says comes back decoded, as (to whom, message), in its order. Nothing answers by
itself but where a test says so (`acknowledged`), so each rule can be looked at alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from overlay.broker.core import Broker
from overlay.effects import CancelTimer, Close, Effect, Send, SetTimer
from overlay.filters import Filter, Value
from overlay.identity import Lives
from overlay.messages import (
    AnyMessage,
    BrokerName,
    ClientName,
    Done,
    EngineMessage,
    Hop,
    Join,
    Leave,
    Operation,
    Pub,
    client_hop,
    is_client,
)
from overlay.tables.routing import Home
from overlay.trace import Record
from padres_tx.client_messages import (
    Begin,
    Commit,
    Operate,
    Step,
    Submit,
    TxID,
    engine_message,
    from_client,
    to_client,
)
from padres_tx.protocol import dynamic_messages, static_state
from proofs.sim.simulated_overlay import all_engines

NAME = "B2"

#: Long enough: time stands still here, unless a test lets a timer ring.
DEADLINE_S = 30.0


class Said(NamedTuple):
    """One message of the broker, and to whom."""

    to: str
    message: Any


class OneLife(Lives):
    """Lets all clients live their first life, which is 0: what is tried does not depend on it."""

    def issue(self, now: float) -> int:
        return 0


class OneBroker:
    """The broker B2; `engine` is the one that is spoken to."""

    def __init__(self, engine: str, neighbours: Iterable[str] = ("B1", "B3")) -> None:
        self.engine = engine
        self.codec = static_state.codec if engine == "s-tx" else dynamic_messages.codec
        self.broker = Broker(
            NAME,  # type: ignore[arg-type]
            neighbours,  # type: ignore[arg-type]
            engines=all_engines(),
            trace=True,
        )
        self.broker.lives = OneLife()
        self.timers: dict[str, float] = {}
        self.records: list[Record] = []
        self.closed: list[str] = []
        self._numbers: dict[str, int] = {}

    # --- who is where, and what is held before ---

    def here(self, *clients: str) -> None:
        """Clients of this broker; everybody else agrees that they join."""
        for client in clients:
            self._agreed(client_hop(client), Join(self._number(client), client, ""))

    def behind(self, neighbour: str, *clients: str) -> None:
        """Clients of that neighbour."""
        for client in clients:
            self._agreed(Hop(neighbour), Join(1, client, neighbour))

    def holds(self, client: str, kind: Any, filter: Filter) -> None:
        """A plain operation of a client that is here, done everywhere."""
        number = self._number(client)
        self._agreed(client_hop(client), Operation(number, kind, client, number, filter))

    def knows(self, neighbour: str, client: str, kind: Any, filter: Filter) -> None:
        """A plain operation of a client behind a neighbour, done everywhere."""
        operation = Operation(1, kind, client, self._number(client), filter)
        self._has_joined(neighbour, client)
        self._agreed(Hop(neighbour), operation)

    def _has_joined(self, neighbour: str, client: str) -> None:
        home = Home(BrokerName(neighbour), Hop(neighbour))
        self.broker.routing.crt.setdefault(ClientName(client), home)

    def _number(self, client: str) -> int:
        self._numbers[client] = self._numbers.get(client, 0) + 1
        return self._numbers[client]

    def _agreed(self, source: Hop, message: AnyMessage) -> None:
        """Give the broker a message, and let its neighbours do all that it asks of them."""
        asked = self.send(source, message)
        while asked:
            to, said = asked.pop(0)
            if not is_client(Hop(to)) and isinstance(said, Join | Leave | Operation) and said.req:
                asked += self.send(Hop(to), Done(said.req))

    # --- one message ---

    def send(self, source: str, message: AnyMessage) -> list[Said]:
        """Any message from anybody."""
        return self.see(self.broker.receive(Hop(source), message, 0.0))

    def say(self, client: str, message: Any) -> list[Said]:
        """A client of this broker says something to the engine."""
        body = from_client.encode(message)
        return self.send(client_hop(client), engine_message(self.engine, body))

    def hear(self, neighbour: str, message: Any) -> list[Said]:
        """A neighbour says something about a transaction; who acts there has joined there."""
        operation = message.operation if isinstance(message, dynamic_messages.TxOperation) else None
        if operation is not None:
            self._has_joined(neighbour, operation.client)
        return self.send(neighbour, engine_message(self.engine, self.codec.encode(message)))

    def raw(self, source: str, body: bytes) -> list[Said]:
        """Any bytes as the body of a message to the engine."""
        return self.send(source, engine_message(self.engine, body))

    def ring(self, key: str) -> list[Said]:
        """A timer has run out."""
        del self.timers[key]
        return self.see(self.broker.wake(key, 0.0))

    def leaves(self, client: str) -> list[Said]:
        """A client's link is gone."""
        return self.see(self.broker.client_left(client, 0.0))

    def reset(self, neighbour: str) -> list[Said]:
        """A neighbour has lost its memory, and has taken what it was told anew."""
        effects = self.broker.link_reset(BrokerName(neighbour), 0.0)
        for effect in effects:
            if not isinstance(effect, Send) or effect.hops != (neighbour,):
                continue
            if isinstance(effect.message, Join | Operation) and effect.message.req:
                self.broker.receive(Hop(neighbour), Done(effect.message.req), 0.0)
        return self.see(effects)

    def see(self, effects: Iterable[Effect]) -> list[Said]:
        """What the broker has said, decoded; timers and records are kept apart."""
        said: list[Said] = []
        for effect in effects:
            match effect:
                case Send(hops, message):
                    said += [Said(hop, self._decoded(hop, message)) for hop in hops]
                case SetTimer(key, delay_s):
                    self.timers[key] = delay_s
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Close(hop):
                    self.closed.append(hop)
                case Record():
                    self.records.append(effect)
        return said

    def _decoded(self, hop: Hop, message: AnyMessage) -> Any:
        if not isinstance(message, EngineMessage):
            return message
        codec: Any = to_client if is_client(hop) else self.codec
        return codec.decode(message.body)

    # --- transactions ---

    def begin(self, client: str, *steps: Step, commit: bool = False, **terms: Any) -> TxID:
        """A dynamic transaction of a client that is here, up to where others have to answer."""
        return self.begun(client, *steps, commit=commit, **terms)[0]

    def begun(
        self, client: str, *steps: Step, commit: bool = False, **terms: Any
    ) -> tuple[TxID, list[Said]]:
        """The same, with what was said."""
        tx = (client, 0, self._number(client))
        said = self.say(client, Begin(tx, terms.pop("deadline_s", DEADLINE_S), **terms))
        said += self.operate(tx, *steps)
        if commit:
            said += self.say(client, Commit(tx))
        return tx, said

    def operate(self, tx: TxID, *steps: Step, frame: int = 0, client: str = "") -> list[Said]:
        """Operations of a frame, one after the other."""
        said: list[Said] = []
        for step in steps:
            number = self._number("operations")
            if step.kind in ("pub", "tcm"):
                step = Step(step.client, step.kind, None, step.point, step.payload, number)
            said += self.say(client or tx[0], Operate(tx, frame, number, step))
        return said

    def submit(self, client: str, *steps: Step, **terms: Any) -> tuple[TxID, list[Said]]:
        """A static transaction of a client that is here."""
        tx = (client, 0, self._number(client))
        return tx, self.say(client, Submit(tx, terms.pop("deadline_s", DEADLINE_S), steps))

    def acknowledged(self, said: Iterable[Said]) -> list[Said]:
        """Let the neighbours acknowledge the operations that await it, and so on; all that was
        said, those operations included."""
        queue, seen = list(said), []
        while queue:
            one = queue.pop(0)
            seen.append(one)
            message = one.message
            if (
                isinstance(message, dynamic_messages.TxOperation)
                and message.req
                and not is_client(Hop(one.to))
            ):
                queue += self.hear(one.to, dynamic_messages.Acked(message.tx, message.req, 1))
            elif (
                isinstance(message, Operation | Join | Leave)
                and message.req
                and not is_client(Hop(one.to))
            ):
                queue += self.send(one.to, Done(message.req))
        return seen

    # --- the tables ---

    def wanted_by(self, **point: Value) -> list[str]:
        """Where a plain publication that enters here goes, as the tables stand for everybody."""
        at = {name.removesuffix("_"): value for name, value in point.items()}
        return sorted(self.broker.routing.prt.hops(at, self.broker.versions.view()))

    def tables(self) -> dict[str, list[str]]:
        """What everybody sees of SRT and PRT, without the numbers."""
        data = self.broker.routing.as_data(self.broker.versions.view())
        return {
            table: sorted(
                f"{row['hop']}: {row['client']} {row['kind']} {row['filter']}"
                for row in data[table]
            )
            for table in ("srt", "prt")
        }

    @property
    def at_rest(self) -> bool:
        """Whether no transaction is known and nothing waits."""
        return (
            self.broker.at_rest
            and self.broker.routing.is_plain
            and not self.broker.versions.open
            and not self.broker.versions.committed
            and not any(engine.transactions() for engine in self.broker.engines.values())
        )


def of_kind(said: Iterable[Said], kind: type, to: str = "") -> list[Any]:
    """The messages of one type, to one hop or to all."""
    return [one.message for one in said if isinstance(one.message, kind) and to in ("", one.to)]


def to_whom(said: Iterable[Said], kind: type) -> list[str]:
    """The hops that a message of this type goes to."""
    return [one.to for one in said if isinstance(one.message, kind)]


def pubs(said: Iterable[Said], client: str) -> list[dict[str, Value]]:
    """The publications that a client is given."""
    return [pub.point for pub in of_kind(said, Pub, client_hop(client))]
