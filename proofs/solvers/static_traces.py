"""Runs of the real S-TX in the simulator, handed to TLC as behaviours of the specification.

What is recorded is every message that one broker takes from another while a static transaction and
some plain operations are under way: those of the engine, routing operations and their answers, and
publications. TLC is asked whether `STx.tla` has a behaviour in which just these messages are taken
in just this order, and at whose end all brokers are at rest, with the tables of the real ones.

Nothing is left open but what the edge brokers answer; what the steps change is taken from their
answers. All filters are one, as in the specification, and no D-TX reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import networkx as nx

from overlay.broker.core import Broker
from overlay.broker.engine import EngineFactory
from overlay.effects import Effect
from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from overlay.messages import (
    AnyMessage,
    Done,
    EngineMessage,
    Hop,
    Kind,
    Operation,
    Pub,
    is_client,
)
from overlay.notation import format_publication
from padres_tx.client_messages import Step, Submit
from padres_tx.engines.s_tx import STx
from padres_tx.protocol.static_state import (
    Admitted,
    Complete,
    Decide,
    Decided,
    Plan,
    Settled,
    codec,
)
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from proofs.solvers.models import S_TX
from proofs.solvers.tlc import Checked, check, configuration

#: All that is said in these runs is about this.
P: Final = Filter(cls="p")

#: A table: its entries, by client and number.
Table = list[tuple[str, int]]


class ReceivedMessage(NamedTuple):
    """A broker has taken a message from a hop; a client's, with what it has changed there."""

    source: str
    dest: str
    message: object
    stored: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class RecordedStaticRun:
    """One run: its tree, its clients, what was taken, and the tables before and after."""

    def __init__(self, tree: nx.Graph[str], homes: Mapping[str, str]) -> None:
        self.tree = tree
        self.homes = homes
        self.taken: list[ReceivedMessage] = []
        self.first: dict[str, tuple[Table, Table]] = {}
        self.last: dict[str, tuple[Table, Table]] = {}
        self.submit: Submit | None = None


def watched(run: RecordedStaticRun) -> type[Broker]:
    """The broker, unchanged, that notes down what it takes in."""

    class Watched(Broker):
        def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
            before = self._held_by(source)
            effects = super().receive(source, message, now)
            after = self._held_by(source)
            said: object = message
            if isinstance(message, EngineMessage):
                said = codec.decode(message.body)
            if isinstance(said, Submit):
                run.submit = said
            run.taken.append(
                ReceivedMessage(
                    source,
                    self.name,
                    said,
                    tuple(sorted(after - before)),
                    tuple(sorted(before - after)),
                )
            )
            return effects

        def _held_by(self, source: Hop) -> set[int]:
            """The numbers of what a client has advertised; nothing for a neighbour."""
            space = self.routing.srt.get(source)
            if space is None or not is_client(source):
                return set()
            return {entry.seq for entry in space}

    return Watched


# --- the runs ---


def record(seed: int, engine: EngineFactory = STx) -> RecordedStaticRun:
    """A handover with an advertisement, amid a plain advertisement outside the span.

    B1-B2-B3-B4. C at B1 has Q there advertise, X at B2 take over from D at B2, and Q publish; P at
    B4 has advertised, and Z there has subscribed; Y at B3 advertises, and takes it back. With seeds
    that three divides, D holds nothing to un-subscribe: B2 refuses. With those that four divides, Q
    does nothing: what B1 and B2 wait for is only that others are told.
    """
    homes = {"C": "B1", "D": "B2", "P": "B4", "Q": "B1", "X": "B2", "Y": "B3", "Z": "B4"}
    tree: nx.Graph[str] = nx.path_graph(["B1", "B2", "B3", "B4"])
    run = RecordedStaticRun(tree, homes)
    tape = Tape(seed=seed)
    factories = {**all_engines(), "s-tx": engine}
    world = SimulatedOverlay(
        tree, tape.choose, factories=factories, trace=False, broker=watched(run)
    )
    for client, edge in homes.items():
        world.join(client, edge)
    held: list[tuple[str, Kind]] = [("P", "adv"), ("Z", "sub")]
    if seed % 3:
        held.append(("D", "sub"))
    for client, kind in held:
        world.plain(client, kind, P)
        world.sim.run()
    run.first = tables(world)
    run.taken.clear()
    steps = [Step("X", "sub", P), Step("D", "usub", P, after=(0,))]
    if seed % 4:
        published = Step("Q", "pub", point={"cls": "p"}, after=(1, 2))
        steps += [Step("Q", "adv", P), published]
    world.submit("C", steps)
    said = tape.choose(20) * 0.001
    back = said + tape.choose(20) * 0.001
    world.sim.at(said, lambda: _say(world, "Y", "adv"))
    world.sim.at(back, lambda: _say(world, "Y", "uadv"))
    world.sim.run()
    run.last = tables(world)
    return run


def _say(world: SimulatedOverlay, client: str, kind: Kind) -> None:
    world.plain(client, kind, P)


def tables(world: SimulatedOverlay) -> dict[str, tuple[Table, Table]]:
    """SRT and PRT of every broker."""
    found: dict[str, tuple[Table, Table]] = {}
    for name, broker in world.sim.brokers.items():
        data = broker.routing.as_data()
        found[name] = (_entries(data["srt"]), _entries(data["prt"]))
    return found


def _entries(table: Iterable[Mapping[str, Any]]) -> Table:
    return sorted((line["client"], line["seq"]) for line in table)


# --- as a module ---


def module(run: RecordedStaticRun, lines: Sequence[str]) -> str:
    """The module `Trace`: the specification with what the run leaves it, and the log."""
    submit = run.submit
    assert submit is not None
    operations: dict[int, Operation] = {}
    for taken in run.taken:
        if isinstance(taken.message, Admitted):
            operations.update(taken.message.operations)
    steps = [_step(at, step, operations.get(at)) for at, step in enumerate(submit.steps)]
    plain = [
        f'S("{t.message.kind}", "{t.message.client}", {sum(t.stored)}, {_numbers(t.dropped)}, {{}})'
        for t in run.taken
        if isinstance(t.message, Operation) and is_client(Hop(t.source))
    ]
    subs = {entry for _, prt in run.first.values() for entry in prt}
    ads = {entry for srt, _ in run.first.values() for entry in srt}
    last = ", ".join(
        f"{name} |-> [srt |-> {_table(srt)}, prt |-> {_table(prt)}]"
        for name, (srt, prt) in sorted(run.last.items())
    )
    neighbours = ", ".join(f"{name} |-> {_names(run.tree[name])}" for name in sorted(run.tree))
    homes = ", ".join(f'{client} |-> "{edge}"' for client, edge in sorted(run.homes.items()))
    return f"""---- MODULE Trace ----
EXTENDS STxTrace
MCNbr == [{neighbours}]
MCClients == {_names(run.homes)}
MCHome == [{homes}]
MCCoord == "{submit.tx[0]}"
MCSubs == {_table(subs)}
MCAds == {_table(ads)}
MCSteps == << {", ".join(steps)} >>
MCPlain == << {", ".join(plain)} >>
MCRefusing == DOMAIN MCNbr
MCReaders == {{}}
MCExpected == Empty
MCLog == << {", ".join(lines)} >>
MCFinal == [{last}]
====
"""


def _step(at: int, step: Step, operation: Operation | None) -> str:
    """A step as TLA+; what was not admitted changes nothing, and won't be carried out."""
    stored = operation.seq if operation is not None and operation.store else 0
    dropped = operation.drop if operation is not None else ()
    after = _numbers(before + 1 for before in step.after)
    return f'S("{step.kind}", "{step.client}", {stored}, {_numbers(dropped)}, {after})'


def log(run: RecordedStaticRun) -> list[str]:
    """What was taken, in its order, as TLA+."""
    submit = run.submit
    assert submit is not None
    published = {
        (step.client, format_publication(step.point)): at + 1
        for at, step in enumerate(submit.steps)
        if step.point is not None
    }
    #: Which entry of the log was a broker's request to a neighbour.
    asked: dict[tuple[str, str, int], int] = {}
    lines: list[str] = []
    for source, dest, message, *_ in run.taken:
        match message:
            case Submit():
                lines.append('<<"submit">>')
                continue
            case Operation() if is_client(Hop(source)):
                lines.append('<<"plain">>')
                continue
            case Operation(req, kind, client, seq, _, store, drop):
                asked[source, dest, req] = len(lines) + 1
                text = f'"op", "{kind}", "{client}", {seq if store else 0}, {_numbers(drop)}'
            case Done(req):
                text = f'"done", {asked[dest, source, req]}'
            case Pub(client, _, point):
                text = f'"pub", {published[client, format_publication(point)]}'
            case Plan():
                text = '"plan"'
            case Admitted(_, edge, _, _, code):
                text = f'"admitted", "{edge}", {"FALSE" if code else "TRUE"}'
            case Decide(_, committed):
                text = f'"decide", {"TRUE" if committed else "FALSE"}'
            case Complete(_, step):
                text = f'"complete", {step + 1}'
            case Decided():
                text = '"decided"'
            case Settled():
                text = '"settled"'
            case _:
                raise AssertionError(f"{message} is not in the specification")
        lines.append(f'<<"{source}", "{dest}", <<{text}>>>>')
    return lines


def _numbers(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, sorted(numbers))) + "}"


def _names(names: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in sorted(names)) + "}"


def _table(entries: Iterable[tuple[str, int]]) -> str:
    return "{" + ", ".join(f'<<"{client}", {seq}>>' for client, seq in sorted(entries)) + "}"


def validate(run: RecordedStaticRun, lines: Sequence[str]) -> tuple[bool, Checked]:
    """Whether the specification has a behaviour with this log. Raises what `check` raises."""
    config = configuration(
        [*S_TX.constants.split(), "Log", "Final"],
        "AllRules",
        ["NotAccepted"],
        specification="TraceSpec",
    )
    checked = check("Trace", config, {"Trace": module(run, lines)})
    return checked.violated == "NotAccepted", checked


# --- what must be rejected ---


def corruptions(lines: Sequence[str]) -> dict[str, list[str]]:
    """The log of a commit with one thing wrong in it, by what that is.

    Nothing is taken out or added: answers say by its position what they are the answer to.
    """
    said = first(lines, '"admitted"')
    decided, settled = first(lines, '"decided"'), first(lines, '"settled"')
    return {
        "an answer turned round": replaced(lines, said, lines[said].replace("TRUE", "FALSE")),
        "a Settled before Decided": replaced(
            replaced(lines, decided, lines[settled]), settled, lines[decided]
        ),
        "an acknowledgement left out": unanswered(lines, '"op", "adv", "Q"'),
        "an answer from outside left out": unanswered(lines, '<<"B2", "B3", <<"op", "sub", "X"'),
    }


def first(lines: Sequence[str], text: str) -> int:
    return next(at for at, line in enumerate(lines) if text in line)


def replaced(lines: Sequence[str], at: int, line: str) -> list[str]:
    return [*lines[:at], line, *lines[at + 1 :]]


def unanswered(lines: Sequence[str], text: str) -> list[str]:
    """The log in which the answer to an operation is one to a plain operation of Y."""
    answer = first(lines, f'"done", {first(lines, text) + 1}>')
    link = lines[answer].partition('"done"')[0]
    plain = first(lines, '"op", "adv", "Y"')
    return replaced(lines, answer, f'{link}"done", {plain + 1}>>>>')
