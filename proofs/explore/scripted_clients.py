"""Clients that follow a script: what they say at the beginning, and how they answer.

A script is data. What a client says at the beginning is on its link at once, in its order; since a
message may stay on its link as long as it likes, this covers every moment at which a client could
have said it. On a tcm a client does what the script has for that point; on the end of a
transaction it may go on with more.

An actor's state is a number and a log, both immutable, so exploring costs it nothing. It knows
nothing of brokers, nor of what it should have been told.
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
from proofs.oracle import holds_part, table_of

#: An end with one of these codes answers what was said too late; it is not the decision.
LATE = ("unknown", "foreign", "finished")

#: Deadlines play no part unless a scenario lets timers ring; then they ring at any moment.
DEADLINE_S = 60.0


# --- what clients do ---


class DynamicTransaction(NamedTuple):
    """A whole transaction: the coordinator's steps, and then its commit or abort."""

    engine: str
    steps: tuple[Step, ...]
    end: Literal["commit", "abort"] = "commit"


class StaticTransaction(NamedTuple):
    """A transaction whose coordinator knows all steps, others' included."""

    engine: str
    steps: tuple[Step, ...]
    #: "abort": the coordinator thinks better of it as soon as it has sent it off.
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
    """What a client does on a tcm whose point the filter matches: its steps, or an error."""

    on: Filter
    steps: tuple[Step, ...] = ()
    error: str = ""
    #: Whether its handler catches NotHeld, and goes on without what it does not hold.
    catches: bool = False


class Script(NamedTuple):
    """One client's part."""

    opening: tuple[Action, ...] = ()
    reactions: tuple[Reaction, ...] = ()
    #: What it goes on with when the first transaction that it coordinates has ended.
    after: tuple[Action, ...] = ()
    #: Whether it may be gone for good, at any moment.
    may_leave: bool = False

    @property
    def acts(self) -> tuple[Action, ...]:
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


# --- the actor ---


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
    #: The acts of its role that it has begun: the number that names each, and which it is.
    begun: tuple[tuple[int, int], ...] = ()
    #: What it knows that it has said, if it ever asks what it holds.
    words: tuple[tuple[str, Filter], ...] = ()
    #: Which life it lives, as its broker has told it.
    life: int = 0

    def open(self, role: Script) -> tuple[ScriptedClient, list[AnyMessage]]:
        """Say what is said at the beginning."""
        return self._act(role, range(len(role.opening)))

    def _act(self, role: Script, which: Iterable[int]) -> tuple[ScriptedClient, list[AnyMessage]]:
        said: list[AnyMessage] = []
        begun = list(self.begun)
        numbers = self.numbers
        for at in which:
            numbers += 1
            begun.append((numbers, at))
            match role.acts[at]:
                case PlainOperation(kind, filter):
                    said.append(Operation(numbers, kind, self.name, numbers, filter))
                case PlainPublication(point):
                    said.append(Pub(self.name, numbers, point, life=self.life))
                case StaticTransaction(engine, steps, end):
                    tx = (self.name, self.life, numbers)
                    numbered, numbers = _numbered(steps, numbers, self.name)
                    said.append(_say(engine, Submit(tx, DEADLINE_S, numbered)))
                    if end == "abort":
                        said.append(_say(engine, Abort(tx)))
                case DynamicTransaction(engine, steps, end):
                    tx = (self.name, self.life, numbers)
                    numbered, numbers = _numbered(steps, numbers, self.name)
                    said.append(_say(engine, Begin(tx, DEADLINE_S)))
                    for at, step in enumerate(numbered):
                        said.append(_say(engine, Operate(tx, 0, at, step)))
                    said.append(_say(engine, Commit(tx) if end == "commit" else Abort(tx)))
        return self._replace(numbers=numbers, begun=tuple(begun)), said

    def receive(self, message: AnyMessage, role: Script) -> tuple[ScriptedClient, list[AnyMessage]]:
        """Take a message, and answer as the role says."""
        match message:
            case Pub(client, _, point):
                stamp = ",".join(map(tx_text, message.hidden))
                return self._heard(
                    LogEntry("got", f"{client} {format_publication(point)}", stamp)
                ), []
            case Done(req, code):
                return self._heard(LogEntry("done", str(req), code)), []
            case PubRefused(seq, code):
                return self._heard(LogEntry("refused", str(seq), code)), []
            case EngineMessage(engine, body):
                return self._told(engine, to_client.decode(body), role)
        raise AssertionError(f"{self.name} takes no {message!r}")

    def _told(
        self, engine: str, told: Any, role: Script
    ) -> tuple[ScriptedClient, list[AnyMessage]]:
        match told:
            case Tcm():
                reaction = role.reaction(told.point)
                steps, numbers = _numbered(reaction.steps, self.numbers, self.name)
                said: list[Any] = [
                    Operate(told.tx, told.frame, at, step)
                    if not reaction.catches or self._may(step)
                    else Look(told.tx, told.frame, table_of(step.kind), False, step.filter)
                    for at, step in enumerate(steps)
                ]
                finish = Finish(told.tx, told.frame, reaction.error)
                answers = [_say(engine, each) for each in (*said, finish)]
                return self._replace(numbers=numbers), answers
            case Ended() if told.code not in LATE:
                outcome = "committed" if told.committed else "aborted"
                heard = self._heard(LogEntry("ended", tx_text(told.tx), outcome))
                if any(reaction.catches for reaction in role.reactions):
                    effective = tuple((kind, filter) for kind, filter, *_ in told.words)
                    heard = heard._replace(words=heard.words + effective)
                opening = len(role.opening)
                if told.tx[0] != self.name or any(at >= opening for _, at in self.begun):
                    return heard, []
                return heard._act(role, range(opening, len(role.acts)))
            case Drained():
                return self._heard(LogEntry("drained", tx_text(told.tx))), []
        return self, []

    def _may(self, step: Step) -> bool:
        """Whether the client, as far as it knows, holds what a step takes back."""
        if step.kind not in ("usub", "uadv") or step.filter is None:
            return True
        return holds_part(self.words, table_of(step.kind), step.filter)

    def _heard(self, heard: LogEntry) -> ScriptedClient:
        return self._replace(log=(*self.log, heard))


def _say(engine: str, message: Any) -> AnyMessage:
    return engine_message(engine, from_client.encode(message))


def _numbered(steps: Sequence[Step], numbers: int, name: str) -> tuple[tuple[Step, ...], int]:
    """The steps with numbers on the client's own publications."""
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
