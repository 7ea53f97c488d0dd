"""Runs of the real S-TX in the simulator, given to TLC as behaviours of the specification.

A trace contains every message that a broker receives from another while a static transaction and
some plain operations are under way: messages of the engine, routing operations and their answers,
and publications. TLC decides whether `STx.tla` has a behaviour in which exactly these messages are
received in exactly this order, and at the end of which all brokers are at rest with the tables of
the real ones.

Only the answers of the edge brokers are left open; what the steps change is taken from them. All
filters are the same, as in the specification, and no D-TX reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import networkx as nx

from overlay.broker.core import Broker, Taken
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
from padres_tx.engines.s_tx.broker import STx
from padres_tx.protocol.static_state import (
    Admitted,
    Complete,
    DecidePlan,
    Plan,
    PlanCarriedOut,
    PlanSettled,
    codec,
)
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from proofs.solvers import trace_modules
from proofs.solvers.models import S_TX
from proofs.solvers.tlc import Checked
from proofs.solvers.trace_modules import (
    ReceivedMessage,
    first,
    received_in_run,
    replaced,
    string_set,
)

#: The only filter in these runs.
P: Final = Filter(cls="p")

#: A table: its entries, by client and number.
Table = list[tuple[str, int]]


class RecordedStaticRun:
    """One run: its tree, its clients, the received messages, and the tables before and after."""

    def __init__(self, tree: nx.Graph[str], homes: Mapping[str, str]) -> None:
        self.tree = tree
        self.homes = homes
        self.received: list[ReceivedMessage] = []
        self.first: dict[str, tuple[Table, Table]] = {}
        self.last: dict[str, tuple[Table, Table]] = {}
        self.submit: Submit | None = None


def watched(run: RecordedStaticRun) -> type[Broker]:
    """The broker, unchanged except that it logs what it receives."""

    class Watched(Broker):
        def take(
            self, source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
        ) -> Taken:
            taken = super().take(source, messages, now, start)
            if taken.is_run:  # The others have come to `receive`.
                run.received += received_in_run(source, self.name, messages, start, taken)
            return taken

        def receive(self, source: Hop, message: AnyMessage, now: float) -> list[Effect]:
            before = self._held_by(source)
            effects = super().receive(source, message, now)
            after = self._held_by(source)
            decoded: object = message
            if isinstance(message, EngineMessage):
                decoded = codec.decode(message.body)
            if isinstance(decoded, Submit):
                run.submit = decoded
            run.received.append(
                ReceivedMessage(
                    source,
                    self.name,
                    decoded,
                    tuple(sorted(after - before)),
                    tuple(sorted(before - after)),
                )
            )
            return effects

        def _held_by(self, source: Hop) -> set[int]:
            """The numbers of a client's advertisements; none for a neighbour."""
            space = self.routing.srt.get(source)
            if space is None or not is_client(source):
                return set()
            return {entry.seq for entry in space}

    return Watched


# --- the runs ---


def record(seed: int, engine: EngineFactory = STx) -> RecordedStaticRun:
    """A handover with an advertisement, beside a plain advertisement outside the span.

    B1-B2-B3-B4. C at B1 lets Q at B1 advertise, X at B2 take over from D at B2, and Q publish. P at
    B4 has advertised, and Z at B4 has subscribed. Y at B3 advertises, and takes it back. With seeds
    divisible by three, D holds nothing to un-subscribe, so B2 refuses. With seeds divisible by
    four, Q does nothing, so B1 and B2 wait only until others have learned of the operations.
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
    run.received.clear()
    steps = [Step("X", "sub", P), Step("D", "usub", P, after=(0,))]
    if seed % 4:
        published = Step("Q", "pub", point={"cls": "p"}, after=(1, 2))
        steps += [Step("Q", "adv", P), published]
    world.submit("C", steps)
    advertised = tape.choose(20) * 0.001
    taken_back = advertised + tape.choose(20) * 0.001
    world.sim.at(advertised, lambda: _operate(world, "Y", "adv"))
    world.sim.at(taken_back, lambda: _operate(world, "Y", "uadv"))
    world.sim.run()
    run.last = tables(world)
    return run


def _operate(world: SimulatedOverlay, client: str, kind: Kind) -> None:
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
    """The module `Trace`: the specification with the constants of the run, and its log."""
    submit = run.submit
    assert submit is not None
    operations: dict[int, Operation] = {}
    for received in run.received:
        if isinstance(received.message, Admitted):
            operations.update(received.message.operations)
    steps = [_step(at, step, operations.get(at)) for at, step in enumerate(submit.steps)]
    plain = [
        f'S("{t.message.kind}", "{t.message.client}", {sum(t.stored)}, {_numbers(t.dropped)}, {{}})'
        for t in run.received
        if isinstance(t.message, Operation) and is_client(Hop(t.source))
    ]
    subs = {entry for _, prt in run.first.values() for entry in prt}
    ads = {entry for srt, _ in run.first.values() for entry in srt}
    last = ", ".join(
        f"{name} |-> [srt |-> {_table(srt)}, prt |-> {_table(prt)}]"
        for name, (srt, prt) in sorted(run.last.items())
    )
    neighbours = ", ".join(f"{name} |-> {string_set(run.tree[name])}" for name in sorted(run.tree))
    homes = ", ".join(f'{client} |-> "{edge}"' for client, edge in sorted(run.homes.items()))
    return f"""---- MODULE Trace ----
EXTENDS STxTrace
MCNbr == [{neighbours}]
MCClients == {string_set(run.homes)}
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
    """A step as TLA+; a step that was not admitted changes nothing and is not carried out."""
    stored = operation.seq if operation is not None and operation.store else 0
    dropped = operation.drop if operation is not None else ()
    after = _numbers(before + 1 for before in step.after)
    return f'S("{step.kind}", "{step.client}", {stored}, {_numbers(dropped)}, {after})'


def log(run: RecordedStaticRun) -> list[str]:
    """The received messages, in order, as TLA+."""
    submit = run.submit
    assert submit is not None
    published = {
        (step.client, format_publication(step.point)): at + 1
        for at, step in enumerate(submit.steps)
        if step.point is not None
    }
    #: The entry of the log with a broker's request to a neighbour.
    asked: dict[tuple[str, str, int], int] = {}
    lines: list[str] = []
    for source, dest, message, *_ in run.received:
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
            case DecidePlan(_, committed):
                text = f'"decide", {"TRUE" if committed else "FALSE"}'
            case Complete(_, step):
                text = f'"complete", {step + 1}'
            case PlanCarriedOut():
                text = '"decided"'
            case PlanSettled():
                text = '"settled"'
            case _:
                raise AssertionError(f"{message} is not in the specification")
        lines.append(f'<<"{source}", "{dest}", <<{text}>>>>')
    return lines


def _numbers(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, sorted(numbers))) + "}"


def _table(entries: Iterable[tuple[str, int]]) -> str:
    return "{" + ", ".join(f'<<"{client}", {seq}>>' for client, seq in sorted(entries)) + "}"


def validate(run: RecordedStaticRun, lines: Sequence[str]) -> tuple[bool, Checked]:
    """Whether the specification has a behaviour with this log. Raises what `tlc.check` raises."""
    return trace_modules.validate(S_TX, module(run, lines), constants=["Log", "Final"])


# --- logs that must be rejected ---


def corruptions(lines: Sequence[str]) -> dict[str, list[str]]:
    """Copies of the log of a commit with one error each, by the description of the error.

    No line is removed or added, because answers name their request by its position.
    """
    admitted = first(lines, '"admitted"')
    decided, settled = first(lines, '"decided"'), first(lines, '"settled"')
    return {
        "an answer turned round": replaced(
            lines, admitted, lines[admitted].replace("TRUE", "FALSE")
        ),
        "a PlanSettled before PlanCarriedOut": replaced(
            replaced(lines, decided, lines[settled]), settled, lines[decided]
        ),
        "an acknowledgement left out": unanswered(lines, '"op", "adv", "Q"'),
        "an answer from outside left out": unanswered(lines, '<<"B2", "B3", <<"op", "sub", "X"'),
    }


def unanswered(lines: Sequence[str], text: str) -> list[str]:
    """The log with the answer to an operation replaced by one to a plain operation of Y."""
    answer = first(lines, f'"done", {first(lines, text) + 1}>')
    link = lines[answer].partition('"done"')[0]
    plain = first(lines, '"op", "adv", "Y"')
    return replaced(lines, answer, f'{link}"done", {plain + 1}>>>>')
