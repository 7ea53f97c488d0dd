"""Clients that follow a script: what they send at the beginning, and how they react.

A script is data. A client's first messages are on its link at once, in order; since a message may
stay on its link for any time, this covers every moment at which the client could have sent it. A
client reacts to a tcm as the script says for that point, and may go on with more actions when a
transaction has ended.

The state of a scripted client is a number and a log, both immutable, so copying it costs the
explorer nothing. It knows nothing of brokers, nor of what it should have received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from overlay.filters import Filter, Value
from overlay.messages import AnyMessage, Done, EngineMessage, Kind, Operation, Pub, PubRefused
from overlay.notation import format_publication
from padres_tx.client_messages import (
    Abort,
    Begin,
    Commit,
    Drained,
    Ended,
    Finish,
    Look,
    Operate,
    Step,
    Submit,
    Tcm,
    engine_message,
    from_client,
    to_client,
    tx_text,
)
from proofs.history import LATE
from proofs.oracle import holds_part, table_of

#: The value does not matter: deadlines pass at any moment where a scenario says so, else never.
DEADLINE_S = 60.0


# --- actions ---


class DynamicTransaction(NamedTuple):
    """A whole transaction: the coordinator's steps, and then its commit or abort."""

    engine: str
    steps: tuple[Step, ...]
    end: Literal["commit", "abort"] = "commit"


class StaticTransaction(NamedTuple):
    """A transaction whose coordinator knows all steps, others' included."""

    engine: str
    steps: tuple[Step, ...]
    #: "abort": the coordinator aborts it right after submitting it.
    end: Literal["commit", "abort"] = "commit"


class PlainOperation(NamedTuple):
    """A plain routing operation."""

    kind: Kind
    filter: Filter


class PlainPublication(NamedTuple):
    """A plain publication."""

    point: dict[str, Value]


Action: TypeAlias = DynamicTransaction | StaticTransaction | PlainOperation | PlainPublication


class Reaction(NamedTuple):
    """A client's reaction to a tcm whose point the filter matches: its steps, or an error."""

    on: Filter
    steps: tuple[Step, ...] = ()
    error: str = ""
    #: Whether its handler catches NotHeld and skips the steps that take back what it does not hold.
    catches: bool = False


class Script(NamedTuple):
    """The script of one client."""

    opening: tuple[Action, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    #: Its further actions, when the first transaction that it coordinates has ended.
    after: tuple[Action, ...] = ()
    #: Whether it may leave for good at any moment.
    may_leave: bool = False

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.opening + self.after

    def reaction(self, point: Mapping[str, Value]) -> Reaction:
        for reaction in self.reactions:
            if reaction.on.matches(point):
                return reaction
        return Reaction(Filter(point))


def _step(client: str, kind: Any, filter: Filter | None, point: Mapping[str, Value]) -> Step:
    named = {name.removesuffix("_"): value for name, value in point.items()}
    return Step(client, kind, filter, named or None)


def sub(client: str, filter: Filter) -> Step:
    return _step(client, "sub", filter, {})


def usub(client: str, filter: Filter) -> Step:
    return _step(client, "usub", filter, {})


def adv(client: str, filter: Filter) -> Step:
    return _step(client, "adv", filter, {})


def uadv(client: str, filter: Filter) -> Step:
    return _step(client, "uadv", filter, {})


def pub(client: str, **point: Value) -> Step:
    return _step(client, "pub", None, point)


def tcm(client: str, **point: Value) -> Step:
    return _step(client, "tcm", None, point)


# --- the client ---


class LogEntry(NamedTuple):
    """One line of a client's log; `what` is a transaction, a publication or a request.

    The outcome of a publication is its stamp.
    """

    kind: Literal["got", "ended", "drained", "done", "refused"]
    what: str
    outcome: str = ""


class ScriptedClient(NamedTuple):
    """A client between two messages."""

    name: str
    numbers: int = 0
    log: tuple[LogEntry, ...] = ()
    #: The actions of its script that it has begun: each one's number, and its place in the script.
    begun: tuple[tuple[int, int], ...] = ()
    #: The operations that it knows it has issued, if its script depends on what it holds.
    issued: tuple[tuple[str, Filter], ...] = ()
    #: The life that its broker has issued to it.
    life: int = 0

    def open(self, script: Script) -> tuple[ScriptedClient, list[AnyMessage]]:
        """Perform the opening actions."""
        return self._perform(script, range(len(script.opening)))

    def _perform(
        self, script: Script, which: Iterable[int]
    ) -> tuple[ScriptedClient, list[AnyMessage]]:
        messages: list[AnyMessage] = []
        begun = list(self.begun)
        numbers = self.numbers
        for at in which:
            numbers += 1
            begun.append((numbers, at))
            match script.actions[at]:
                case PlainOperation(kind, filter):
                    messages.append(Operation(numbers, kind, self.name, numbers, filter))
                case PlainPublication(point):
                    messages.append(Pub(self.name, numbers, point, life=self.life))
                case StaticTransaction(engine, steps, end):
                    tx = (self.name, self.life, numbers)
                    numbered, numbers = _numbered(steps, numbers, self.name)
                    messages.append(_engine_message(engine, Submit(tx, DEADLINE_S, numbered)))
                    if end == "abort":
                        messages.append(_engine_message(engine, Abort(tx)))
                case DynamicTransaction(engine, steps, end):
                    tx = (self.name, self.life, numbers)
                    numbered, numbers = _numbered(steps, numbers, self.name)
                    messages.append(_engine_message(engine, Begin(tx, DEADLINE_S)))
                    for at, step in enumerate(numbered):
                        messages.append(_engine_message(engine, Operate(tx, 0, at, step)))
                    messages.append(
                        _engine_message(engine, Commit(tx) if end == "commit" else Abort(tx))
                    )
        return self._replace(numbers=numbers, begun=tuple(begun)), messages

    def receive(
        self, message: AnyMessage, script: Script
    ) -> tuple[ScriptedClient, list[AnyMessage]]:
        """Receive a message, and react as the script says."""
        match message:
            case Pub(client, _, point):
                stamp = ",".join(map(tx_text, message.hidden))
                return self._logged(
                    LogEntry("got", f"{client} {format_publication(point)}", stamp)
                ), []
            case Done(req, code):
                return self._logged(LogEntry("done", str(req), code)), []
            case PubRefused(seq, code):
                return self._logged(LogEntry("refused", str(seq), code)), []
            case EngineMessage(engine, body):
                return self._receive_engine(engine, to_client.decode(body), script)
        raise AssertionError(f"{self.name} received an unexpected {message!r}")

    def _receive_engine(
        self, engine: str, told: Any, script: Script
    ) -> tuple[ScriptedClient, list[AnyMessage]]:
        match told:
            case Tcm():
                reaction = script.reaction(told.point)
                steps, numbers = _numbered(reaction.steps, self.numbers, self.name)
                messages: list[Any] = [
                    Operate(told.tx, told.frame, at, step)
                    if not reaction.catches or self._holds_for(step)
                    else Look(told.tx, told.frame, table_of(step.kind), False, step.filter)
                    for at, step in enumerate(steps)
                ]
                finish = Finish(told.tx, told.frame, reaction.error)
                answers = [_engine_message(engine, each) for each in (*messages, finish)]
                return self._replace(numbers=numbers), answers
            case Ended() if told.code not in LATE:
                outcome = "committed" if told.committed else "aborted"
                logged = self._logged(LogEntry("ended", tx_text(told.tx), outcome))
                if any(reaction.catches for reaction in script.reactions):
                    effective = tuple((kind, filter) for kind, filter, *_ in told.effective)
                    logged = logged._replace(issued=logged.issued + effective)
                opening = len(script.opening)
                if told.tx[0] != self.name or any(at >= opening for _, at in self.begun):
                    return logged, []
                return logged._perform(script, range(opening, len(script.actions)))
            case Drained():
                return self._logged(LogEntry("drained", tx_text(told.tx))), []
        return self, []

    def _holds_for(self, step: Step) -> bool:
        """Whether the client, as far as it knows, holds a part of what a step takes back."""
        if step.kind not in ("usub", "uadv") or step.filter is None:
            return True
        return holds_part(self.issued, table_of(step.kind), step.filter)

    def _logged(self, logged: LogEntry) -> ScriptedClient:
        return self._replace(log=(*self.log, logged))


def _engine_message(engine: str, message: Any) -> AnyMessage:
    return engine_message(engine, from_client.encode(message))


def _numbered(steps: Sequence[Step], numbers: int, name: str) -> tuple[tuple[Step, ...], int]:
    """The steps, with numbers for the client's own publications."""
    out: list[Step] = []
    for step in steps:
        seq = 0
        if step.kind in ("pub", "tcm") and step.client == name:
            numbers += 1
            seq = numbers
        out.append(
            Step(
                step.client,
                step.kind,
                step.filter,
                step.point,
                step.payload,
                seq,
                step.after,
                step.receivers,
            )
        )
    return tuple(out), numbers
