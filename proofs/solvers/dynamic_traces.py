"""Runs of the real D-TX in the simulator, given to TLC as behaviours of the specification.

A trace contains, in the order of the run, every message that a broker receives from another, and of
the messages of clients every Begin, plain operation and plain publication. TLC decides whether
`DTx.tla` has a behaviour in which exactly these messages are received in exactly this order, with
these stamps and votes, and at the end of which all brokers are at rest. Steps that a trace does not
show may happen in between: what a broker does of its own accord, and the moment at which it handles
a client's next operation, Finish or Commit.

What the specification leaves open is taken from the run: where each operation went, what triggered
it (from the records), and which footprints conflict at which broker (from the engine itself). So
the votes are checked against the real conflicts. The plain operations of these runs are
subscriptions; operations that advertisements trigger, and clients that leave, are in the models
alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import networkx as nx

from overlay.broker.core import Broker, Taken
from overlay.effects import Effect
from overlay.filters import Filter
from overlay.hosts.simulator import Tape
from overlay.identity import name_text
from overlay.messages import AnyMessage, Done, Hop, Kind, Leave, Operation, Pub, is_client
from overlay.notation import format_filter
from overlay.tables.footprints import Footprint, of_applied
from overlay.tables.routing import Outcome
from overlay.trace import Record
from padres_tx.client_messages import Begin, Step, TxID, tx_text
from padres_tx.engines.d_tx.broker import DTx
from padres_tx.protocol.dynamic import DynamicState
from padres_tx.protocol.dynamic_messages import (
    AbortRequest,
    Acked,
    Decide,
    Decided,
    Forget,
    Init,
    Prepare,
    TxOperation,
    Vote,
    codec,
)
from proofs.sim.simulated_overlay import SimulatedOverlay, all_engines
from proofs.solvers import trace_modules
from proofs.solvers.models import D_TX
from proofs.solvers.tlc import Checked
from proofs.solvers.trace_modules import (
    ReceivedMessage,
    first,
    received_in_run,
    replaced,
    string_set,
)


class RecordedDynamicRun:
    """One run: its tree, the received messages, the records, and all footprints."""

    def __init__(self, tree: nx.Graph[str]) -> None:
        self.tree = tree
        self.received: list[ReceivedMessage] = []
        self.records: list[Record] = []
        self.footprints: dict[tuple[str, TxID], Footprint] = {}
        self.ages: dict[TxID, int] = {}
        #: By plain operation, what it has read and written at each broker.
        self.plain: dict[str, dict[str, Footprint]] = {}


def watched(run: RecordedDynamicRun) -> Callable[[Broker], DTx]:
    """The engine D-TX, unchanged except that it logs what it receives."""

    class Watched(DTx):
        def __init__(self, broker: Broker) -> None:
            super().__init__(broker)
            take, receive_one = broker.take, broker.receive

            def take_some(
                source: Hop, messages: Sequence[AnyMessage], now: float, start: int = 0
            ) -> Taken:
                taken = take(source, messages, now, start)
                if taken.is_run:  # The others have come to `receive`.
                    run.received += received_in_run(source, broker.name, messages, start, taken)
                return taken

            def receive(source: Hop, message: AnyMessage, now: float) -> list[Effect]:
                if isinstance(message, (Operation, Pub, Done)):
                    run.received.append(ReceivedMessage(source, broker.name, message))
                return receive_one(source, message, now)

            # Engines do not receive plain messages.
            vars(broker).update(take=take_some, receive=receive)

        def operation_applied(
            self, source: Hop, message: Operation | Leave, outcome: Outcome | None
        ) -> None:
            assert isinstance(message, Operation) and outcome is not None
            of_this = run.plain.setdefault(plain_name(message), {})
            of_this[self.broker.name] = of_applied(message, outcome)
            super().operation_applied(source, message, outcome)

        def receive(self, source: Hop, body: msgspec.Raw, now: float) -> list[Effect]:
            message = codec.decode(body)
            if not is_client(source) or isinstance(message, Begin):
                run.received.append(ReceivedMessage(source, self.broker.name, message))
            return super().receive(source, body, now)

        def begun(self, tx: DynamicState, undecided: tuple[TxID, ...]) -> None:
            run.footprints[self.broker.name, tx.id] = tx.footprint
            run.ages[tx.id] = tx.age
            super().begun(tx, undecided)

    return Watched


def plain_name(operation: Operation) -> str:
    """The name of a plain operation; no client of these runs issues the same one twice."""
    return f"{operation.client} {operation.kind} {format_filter(operation.filter)}"


def pub_name(pub: Pub) -> str:
    """The name of a publication in records."""
    return name_text(pub.client, pub.life, pub.seq)


# --- the runs ---

P: Final = Filter(cls="p")
X: Final = Filter(cls="p", x=1)

#: Plain messages are sent in the first part of a run, which takes some 80 ms of virtual time.
SPAN_MS: Final = 60


def record(seed: int) -> RecordedDynamicRun:
    """Dispatching, an advertisement that attracts subscriptions, and plain traffic, all at once.

    B1-B2-B3. E at B1 lets D at B2 hand its events to A at B3. F at B3 begins to advertise what D
    has subscribed to, and publishes it; with odd seeds that is what the first transaction hands
    over, so the two conflict. Meanwhile G at B3 subscribes outside transactions, with odd seeds to
    all of that and otherwise to something else that E advertises, and E publishes.
    """
    tree: nx.Graph[str] = nx.path_graph(["B1", "B2", "B3"])
    run = RecordedDynamicRun(tree)
    tape = Tape(seed=seed)
    world = SimulatedOverlay(tree, tape.choose, factories={**all_engines(), "d-tx": watched(run)})
    for client, edge in (("A", "B3"), ("D", "B2"), ("E", "B1"), ("F", "B3"), ("G", "B3")):
        world.join(client, edge)
    told, asked, q = Filter(cls="told"), Filter(cls="asked"), Filter(cls="q")
    held: list[tuple[str, Kind, Filter]] = [
        ("E", "adv", P),
        ("E", "adv", told),
        ("D", "adv", asked),
        ("D", "sub", P),
        ("D", "sub", told),
        ("D", "sub", q),
        ("A", "sub", asked),
    ]
    for client, kind, filter in held:
        world.plain(client, kind, filter)
        world.sim.run()
    run.received.clear()
    run.plain.clear()
    world.reactions["D"] = lambda point: [
        Step("D", "tcm", point={"cls": "asked"}),
        Step("D", "usub", X),
    ]
    world.reactions["A"] = lambda point: [Step("A", "sub", X)]
    world.begin(
        "d-tx",
        "E",
        [Step("E", "tcm", point={"cls": "told"}), Step("E", "pub", point={"cls": "p", "x": 1})],
    )
    name = "p" if seed % 2 else "q"
    advertise = Step("F", "adv", Filter(cls=name))
    world.begin("d-tx", "F", [advertise, Step("F", "pub", point={"cls": name})])

    def subscribe() -> None:
        world.plain("G", "sub", P if seed % 2 else told)

    def publish(x: int) -> None:
        world.publish("E", {"cls": "p", "x": x})

    for call in (subscribe, partial(publish, 1), partial(publish, 2)):
        world.sim.at(0.001 * tape.choose(SPAN_MS), call)
    world.sim.run()
    run.records = [record for record in world.sim.records if record.engine == DTx.name]
    return run


# --- as a module ---


class TracedOperations:
    """The operations of one transaction, from its records, in the order of the transaction."""

    def __init__(self, name: str, records: Iterable[Record]) -> None:
        self.numbers: dict[str, int] = {}
        self.kind: list[str] = []
        self.by: list[str] = []
        self.of: list[int] = []
        self.visits: list[list[str]] = []
        last_adv = 0
        for record in records:
            if record.tx != name or record.kind not in ("apply", "match", "publish"):
                continue
            number = self.numbers.get(record.op_id)
            if number is None:
                number = self.numbers[record.op_id] = len(self.kind) + 1
                from_client = is_client(Hop(record.source))
                kind = {"tcm": "tcm", "adv": "adv", "uadv": "adv"}.get(record.op_kind, "op")
                if kind == "adv":
                    last_adv = number
                self.kind.append(kind)
                self.by.append(record.node if from_client else record.source)
                frame = self.numbers[record.trigger] if record.trigger else 0
                self.of.append(frame if from_client else last_adv)
                self.visits.append([self.by[-1]])
            if record.node not in self.visits[number - 1]:
                self.visits[number - 1].append(record.node)

    def text(self, touched: Callable[[str], tuple[set[str], set[str]]]) -> str:
        """As TLA+; the keys touched at a broker are those of the first operation that visits it."""
        done: set[str] = set()
        lines: list[str] = []
        for kind, by, of, visits in zip(self.kind, self.by, self.of, self.visits, strict=True):
            keys: list[str] = []
            for broker in visits:
                read, wrote = touched(broker) if broker not in done else (set(), set())
                done.add(broker)
                keys.append(f"{broker} |-> {_touch(read, wrote)}")
            lines.append(f'Op("{kind}", "{by}", {of}, [{", ".join(keys)}])')
        return "<< " + ",\n     ".join(lines) + " >>"


class Names:
    """The TLA+ names of transactions, plain operations and plain publications."""

    def __init__(self, run: RecordedDynamicRun) -> None:
        self.txs = {tx: f"t{at}" for at, tx in enumerate(sorted(run.ages), start=1)}
        #: Each with the edge broker of its client.
        self.plains: dict[str, tuple[str, str]] = {}
        self.pubs: dict[str, tuple[int, str]] = {}
        #: The brokers that each publication reached.
        self.reached: dict[str, set[str]] = {}
        for source, dest, message, *_ in run.received:
            if isinstance(message, Operation):
                if is_client(Hop(source)):
                    self.plains[plain_name(message)] = f"p{len(self.plains) + 1}", dest
            elif isinstance(message, Pub):
                key = pub_name(message)
                self.pubs.setdefault(key, (len(self.pubs) + 1, dest))
                self.reached.setdefault(key, set()).add(dest)


def module(run: RecordedDynamicRun, lines: Sequence[str]) -> str:
    """The module `Trace`: the specification with the constants of the run, and its log."""
    known = Names(run)
    names = known.txs
    by_age = sorted(run.ages, key=lambda tx: (run.ages[tx], tx))
    edges = {t.message.tx: t.dest for t in run.received if isinstance(t.message, Begin)}
    doomed = {t.message.tx for t in run.received if isinstance(t.message, AbortRequest)}

    def at_broker(broker: str) -> dict[str, Footprint]:
        """All footprints at a broker, by the names of their transactions and operations."""
        txs = {name: run.footprints[broker, tx] for tx, name in names.items()}
        plains = {
            known.plains[plain][0]: where[broker]
            for plain, where in run.plain.items()
            if broker in where
        }
        return {**txs, **plains}

    def touched(name: str, broker: str) -> tuple[set[str], set[str]]:
        """A key for each pair in which one reads what the other writes."""
        all_there = at_broker(broker)
        mine = all_there.pop(name)
        read = {f"{name} reads {o}" for o, its in all_there.items() if mine.reads_what(its)}
        wrote = {f"{o} reads {name}" for o, its in all_there.items() if its.reads_what(mine)}
        return read, wrote

    def keys(name: str, brokers: Iterable[str]) -> str:
        each = (f"{broker} |-> {_touch(*touched(name, broker))}" for broker in brokers)
        return "[" + ", ".join(each) + "]"

    def each(value: Callable[[TxID], str]) -> str:
        return "[" + ",\n   ".join(f"{names[tx]} |-> {value(tx)}" for tx in sorted(names)) + "]"

    operations = {tx: TracedOperations(tx_text(tx), run.records) for tx in names}
    froms = dict(known.plains.values())
    reads = {
        known.plains[plain][0]: keys(known.plains[plain][0], sorted(where))
        for plain, where in run.plain.items()
    }
    homes = {str(number): edge for number, edge in known.pubs.values()}
    reached = {str(known.pubs[key][0]): string_set(where) for key, where in known.reached.items()}
    neighbours = ", ".join(
        f"{broker} |-> {string_set(run.tree[broker])}" for broker in sorted(run.tree)
    )
    return f"""---- MODULE Trace ----
EXTENDS DTxTrace
MCNbr == [{neighbours}]
MCTxs == {string_set(names.values())}
MCEdge == {each(lambda tx: f'"{edges[tx]}"')}
MCAge == {each(lambda tx: str(by_age.index(tx)))}
MCOps == {each(lambda tx: operations[tx].text(partial(touched, names[tx])))}
MCDoomAt == {each(lambda tx: "DOMAIN MCNbr" if tx in doomed else "{}")}
MCPubs == {{{", ".join(homes)}}}
MCHome == {_function({pub: f'"{edge}"' for pub, edge in homes.items()})}
MCReach == {_function(reached)}
MCPlains == {string_set(froms)}
MCFrom == {_function({f'"{plain}"': f'"{edge}"' for plain, edge in froms.items()})}
MCTouch == {_function({f'"{plain}"': text for plain, text in reads.items()})}
MCCause == [p \\in MCPlains |-> p]
MCTakes == {{}}
MCLeaves == {{}}
MCLog == << {", ".join(lines)} >>
====
"""


def log(run: RecordedDynamicRun) -> list[str]:
    """The received messages, in order, as TLA+."""
    known = Names(run)
    names = known.txs
    operations = {tx: TracedOperations(tx_text(tx), run.records) for tx in names}
    #: The plain operation that a broker has sent to a neighbour, by the number of the request.
    asked_plainly: dict[tuple[str, str, int], str] = {}
    #: The operation that a broker has sent to a neighbour, by the number of the request.
    asked: dict[tuple[str, str, TxID, int], int] = {}
    lines: list[str] = []
    for source, dest, message, *_ in run.received:
        match message:
            case Begin(tx):
                lines.append(f'<<"begin", "{names[tx]}">>')
                continue
            case Operation(req):
                name = known.plains[plain_name(message)][0]
                if is_client(Hop(source)):
                    lines.append(f'<<"say", "{name}">>')
                    continue
                asked_plainly[source, dest, req] = name
                text = f'"plain", "{name}"'
            case Done(req):
                text = f'"done", "{asked_plainly[dest, source, req]}"'
            case Pub():
                number = known.pubs[pub_name(message)][0]
                if is_client(Hop(source)):
                    lines.append(f'<<"emit", {number}>>')
                    continue
                stamp = string_set(names[tx] for tx in message.hidden)
                text = f'"pub", {number}, {stamp}'
            case Init(tx, _, undecided):
                text = f'"init", "{names[tx]}", {string_set(names[other] for other in undecided)}'
            case TxOperation(tx, req, operation, pub):
                if operation is not None:
                    name = f"{operation.client}#{operation.seq}"
                else:
                    assert pub is not None
                    name = pub_name(pub)
                number = operations[tx].numbers[name]
                asked[source, dest, tx, req] = number
                text = f'"op", "{names[tx]}", {number}'
            case Acked(tx, req):
                text = f'"acked", "{names[tx]}", {asked[dest, source, tx, req]}'
            case Prepare(tx):
                text = f'"prepare", "{names[tx]}"'
            case Vote(tx, code):
                text = f'"vote", "{names[tx]}", "{"no" if code else "yes"}"'
            case Decide(tx, committed):
                text = f'"decide", "{names[tx]}", {"TRUE" if committed else "FALSE"}'
            case Decided(tx):
                text = f'"decided", "{names[tx]}"'
            case Forget(tx):
                text = f'"forget", "{names[tx]}"'
            case AbortRequest(tx):
                text = f'"doom", "{names[tx]}"'
            case _:
                raise AssertionError(f"{message} is not in the specification")
        lines.append(f'<<"{source}", "{dest}", <<{text}>>>>')
    return lines


def _touch(read: Iterable[str], wrote: Iterable[str]) -> str:
    return f"[r |-> {string_set(read)}, w |-> {string_set(wrote)}]"


def _function(values: Mapping[str, str]) -> str:
    return " @@ ".join(f"{at} :> {value}" for at, value in sorted(values.items())) or "Empty"


def validate(run: RecordedDynamicRun, lines: Sequence[str]) -> tuple[bool, Checked]:
    """Whether the specification has a behaviour with this log. Raises what `tlc.check` raises."""
    return trace_modules.validate(D_TX, module(run, lines), constants=["Log"])


# --- logs that must be rejected ---


def corruptions(lines: Sequence[str]) -> dict[str, list[str]]:
    """Copies of the log with one error each, by the description of the error."""
    vote = max(at for at, line in enumerate(lines) if '"vote"' in line)
    yes = '"yes"' in lines[vote]
    flipped = lines[vote].replace(*(('"yes"', '"no"') if yes else ('"no"', '"yes"')))
    prepare = first(lines, '"prepare"')
    link = lines[prepare].partition(", <<")[0]
    before = max(at for at in range(prepare) if lines[at].startswith(link))
    swapped = replaced(replaced(lines, before, lines[prepare]), prepare, lines[before])
    pub = next(at for at, line in enumerate(lines) if '"pub"' in line and "{}" not in line)
    done = max(at for at, line in enumerate(lines) if '"done"' in line)
    early = list(lines)
    early.insert(first(lines, '"say"') + 1, early.pop(done))
    return {
        "a vote turned round": replaced(lines, vote, flipped),
        "an acknowledgement left out": replaced(lines, first(lines, '"acked"')),
        "a Prepare that overtakes": swapped,
        "a publication without its stamp": replaced(
            lines, pub, re.sub(r"\{.*\}", "{}", lines[pub])
        ),
        "a plain operation acknowledged too early": early,
    }
