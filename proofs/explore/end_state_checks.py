"""The verdict on a state in which nothing moves any more: is everything as it was promised?

Everything is judged by what can be seen in the end: what each client was told and got, what each
broker's tables hold, and in which order each broker handled a transaction's operations. What it
should have come to is worked out with the naive oracle: the tables from what was committed; the
deliveries by looking for a serial order of all that took effect (transactions, plain operations and
plain publications, each as one step) that leads to just these deliveries and tables.

The checkers of `checkers` work on the records of any run, near linearly; this one tries all
orders, and knows the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, TypeAlias

from overlay.identity import name_text
from overlay.messages import Hop, client_hop
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from overlay.trace import Record
from padres_tx.client_messages import Step, tx_text
from proofs.checkers.anomalies import ISOLATED
from proofs.explore.network import Network, State
from proofs.explore.nodes import AppliedOperation, BrokerNode, ClientNode
from proofs.explore.scenario import Scenario
from proofs.explore.scripted_clients import (
    Action,
    DynamicTransaction,
    PlainOperation,
    PlainPublication,
    StaticTransaction,
)
from proofs.explore.snapshot import thaw
from proofs.history import versions
from proofs.oracle import ExpectedRow, Oracle, holds

#: How often each client got each publication; a publication as its client and its text.
Deliveries: TypeAlias = "Counter[tuple[str, str]]"

#: Tables by broker.
Final: TypeAlias = "Mapping[Hop, tuple[list[Row], list[Row]]]"

#: A line of a table, without the client's number: those of aborted operations leave gaps.
Row: TypeAlias = tuple[str, str, str, str]


class Finding(NamedTuple):
    """What is wrong: its kind (as in `checkers`, or "fault"), with whom, and how."""

    kind: str
    who: str
    text: str


class ScriptedUnit(NamedTuple):
    """Something that a client has begun, and that takes effect as one."""

    client: str
    #: Which life of its client it belongs to, and a number that names it in that.
    life: int
    number: int
    act: Action
    #: Where it stands in its client's script.
    at: int

    @property
    def name(self) -> str:
        return name_text(self.client, self.life, self.number)

    @property
    def is_transaction(self) -> bool:
        return isinstance(self.act, DynamicTransaction | StaticTransaction)

    def __str__(self) -> str:
        match self.act:
            case PlainPublication(point):
                return f"{self.client}'s pub({format_publication(point)})"
            case PlainOperation(kind, filter):
                return f"{self.client}'s {kind}({format_filter(filter)})"
        return self.name


class FinalTables(NamedTuple):
    """What a broker's tables hold, and what has not come to rest there."""

    srt: list[Row]
    prt: list[Row]
    unrest: str


class EndStateChecks:
    """Judges the states of one scenario in which nothing moves."""

    def __init__(self, scenario: Scenario, network: Network) -> None:
        self._scenario = scenario
        self._network = network
        self._tables: dict[tuple[str, int], FinalTables] = {}
        self._before = Oracle(scenario.tree)
        for client, home in scenario.homes.items():
            self._before.join(client, home)
        for client, kind, filter in scenario.held:
            assert self._before.operate(client, kind, filter), f"{client} cannot {kind} {filter}"

    def findings(self, state: State) -> list[Finding]:
        """All that is wrong. What makes the rest meaningless comes alone."""
        end = EndState(self._network, state, self._scenario)
        serious = end.faults() or [*end.split(), *self._unrest(end)]
        if serious:
            return serious
        found = [*end.duplicates(), *self._misrouted(end), *self._misordered(end)]
        found += [*self._partial(end), *self._late(end)]
        if not found and not end.gone:
            found += self._unexplained(end)
        found = found or [*self._misread(end)]
        return found or [*end.fractured()]

    # --- rest, and the tables ---

    def _unrest(self, end: EndState) -> Iterator[Finding]:
        for unit in end.units:
            if unit.client in end.gone:
                continue
            log = end.actors[unit.client].log
            if unit.is_transaction and unit.client not in end.outcomes.get(unit.name, {}):
                yield Finding("undecided", unit.name, f"{unit.client} is never told how it ended")
            if isinstance(unit.act, PlainOperation) and ("done", str(unit.number)) not in {
                (heard.kind, heard.what) for heard in log
            }:
                yield Finding("undecided", unit.name, f"{unit} is never answered")
        for node, local in end.brokers:
            unrest = self._tables_of(node, local).unrest
            if unrest:
                yield Finding("undecided", node.hop, f"{node.hop} does not come to rest: {unrest}")

    def _misrouted(self, end: EndState) -> Iterator[Finding]:
        """The tables are what the oracle makes of all that was committed."""
        oracle = Oracle(self._scenario.tree)
        for client, home in self._scenario.homes.items():
            if client not in end.gone:
                oracle.join(client, home)
        words = sorted(word for node, local in end.brokers for word in node.facts(local).words)
        for word in words:
            if word.client not in end.gone and end.counts(word):
                oracle.operate(word.client, word.kind, parse_filter(word.filter))
        aborted = {(word.client, word.filter) for word in words if not end.counts(word)}
        for node, local in end.brokers:
            tables = self._tables_of(node, local)
            for name, table, right in (
                ("SRT", tables.srt, _rows(oracle.srt(node.hop))),
                ("PRT", tables.prt, _rows(oracle.prt(node.hop))),
            ):
                extra = sorted((Counter(table) - Counter(right)).elements())
                missing = sorted((Counter(right) - Counter(table)).elements())
                if extra or missing:
                    ghost = any((client, filter) in aborted for client, _, filter, _ in extra)
                    lines = [f"{_line(row)} is missing" for row in missing]
                    lines += [f"{_line(row)} should not be there" for row in extra]
                    text = f"{name} of {node.hop}: {'; '.join(lines)}"
                    yield Finding("ghost" if ghost else "divergence", node.hop, text)

    def _tables_of(self, node: BrokerNode, local: int) -> FinalTables:
        found = self._tables.get((node.hop, local))
        if found is None:
            broker = thaw(node.core(local).image)
            unrest: list[str] = []
            if not broker.at_rest:
                unrest.append("requests or operations wait")
            if not broker.routing.is_plain or broker.versions.open or broker.versions.committed:
                unrest.append("versions are left")
            for name, engine in broker.engines.items():
                if left := engine.transactions():
                    unrest.append(f"{name} has {', '.join(map(tx_text, sorted(left)))}")
            data = broker.routing.as_data(broker.versions.view())
            srt, prt = (
                sorted((row["client"], row["kind"], row["filter"], row["hop"]) for row in rows)
                for rows in (data["srt"], data["prt"])
            )
            found = self._tables[node.hop, local] = FinalTables(srt, prt, "; ".join(unrest))
        return found

    # --- the order inside a transaction ---

    def _misordered(self, end: EndState) -> Iterator[Finding]:
        """No broker has handled an operation before one that comes before it."""
        for unit in end.units:
            if not unit.is_transaction:
                continue
            program = self._program(unit)
            changes = [op for op in program if " adv(" in op or " uadv(" in op]
            for node, local in end.brokers:
                seen: list[str] = []
                for record in node.facts(local).of(unit.name):
                    op = f"{record.client}'s {record.op_kind}({record.filter})"
                    if record.kind not in ("apply", "match"):
                        continue
                    # What an (un-)advertisement moves belongs to it.
                    before = (
                        {op} if op in program else {c for c in changes if self._moves(c, record)}
                    )
                    for early in seen:
                        if before & program[early] and op not in seen:
                            text = f"{node.hop} handled {early} before {op}"
                            yield Finding("order", unit.name, text)
                    if op in program and op not in seen:
                        seen.append(op)

    def _moves(self, change: str, record: Record) -> bool:
        """Whether an (un-)advertisement moves the entry of a record that is in no program."""
        if record.op_kind not in ("sub", "usub") or record.source == client_hop(record.client):
            return False
        if not any(
            (who, format_filter(f)) == (record.client, record.filter)
            for who, _, f in self._scenario.held
        ):
            return False
        filter = change.partition("(")[2].removesuffix(")")
        return parse_filter(filter).overlaps(parse_filter(record.filter))

    def _program(self, unit: ScriptedUnit) -> dict[str, set[str]]:
        """The operations of a transaction, each with those that come before it."""
        if isinstance(unit.act, StaticTransaction):
            steps = list(unit.act.steps)
            before: list[set[int]] = []
            for step in steps:
                before.append(set(step.after).union(*(before[at] for at in step.after)))
        else:
            assert isinstance(unit.act, DynamicTransaction)
            steps = list(self._all_steps(_copy(self._before), unit.act.steps))
            before = [set(range(at)) for at in range(len(steps))]
        names = [_op_of(step) for step in steps]
        return {name: {names[b] for b in before[at]} for at, name in enumerate(names)}

    def _all_steps(self, oracle: Oracle, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps with those that their tcms trigger, one after the other."""
        for step in steps:
            yield step
            if step.filter is not None:
                oracle.operate(step.client, step.kind, step.filter)
            elif step.kind == "tcm":
                assert step.point is not None
                for receiver in oracle.receivers(step.point):
                    reaction = self._scenario.role(receiver).reaction(step.point)
                    yield from self._all_steps(oracle, reaction.steps)

    # --- deliveries ---

    def _partial(self, end: EndState) -> Iterator[Finding]:
        """Nobody gets what a transaction that was not committed has published."""
        for unit in end.units:
            if unit.is_transaction and not end.is_committed(unit.name):
                theirs = self._published(unit)
                for client, what in sorted(end.got):
                    if what in theirs:
                        text = f"{client} got {what}, though {unit.name} was not committed"
                        yield Finding("partial", unit.name, text)

    def _late(self, end: EndState) -> Iterator[Finding]:
        """Who was told that the last event from before has passed gets none any more."""
        oracle = _copy(self._before)
        for word in sorted(word for node, local in end.brokers for word in node.facts(local).words):
            if end.counts(word):
                oracle.operate(word.client, word.kind, parse_filter(word.filter))
        for actor in end.actors.values():
            drained = [at for at, heard in enumerate(actor.log) if heard.kind == "drained"]
            for heard in actor.log[drained[-1] :] if drained else ():
                point = (
                    parse_publication(heard.what.partition(" ")[2]) if heard.kind == "got" else None
                )
                if point is not None and not holds(oracle.subscribed[actor.name], point):
                    text = f"{actor.name} got {heard.what} after it was told that all had passed"
                    yield Finding("handover", actor.name, text)

    def _misread(self, end: EndState) -> Iterator[Finding]:
        """Who has given a stream away can tell what is still for it: the stamp says so.

        By this a client finds the callbacks of a publication (`padres_tx.client.holdings`).
        """
        words = [word for node, local in end.brokers for word in node.facts(local).words]
        oracle = _copy(self._before)
        for word in sorted(words):
            if end.counts(word):
                oracle.operate(word.client, word.kind, parse_filter(word.filter))
        for actor in end.actors.values():
            given: list[AppliedOperation] = []
            for heard in actor.log:
                if heard.kind == "ended" and heard.outcome == "committed":
                    given += [
                        word
                        for word in words
                        if word.client == actor.name and word.tx == heard.what
                        if word.kind == "usub"
                    ]
                if heard.kind != "got":
                    continue
                point = parse_publication(heard.what.partition(" ")[2])
                if holds(oracle.subscribed[actor.name], point):
                    continue  # It is for what the client holds, whatever else.
                for word in given:
                    unstamped = word.tx not in heard.outcome.split(",")
                    if unstamped and parse_filter(word.filter).matches(point):
                        text = f"{actor.name} got {heard.what} after {word.tx}, and cannot tell why"
                        yield Finding("handover", actor.name, text)

    # --- some serial order ---

    def _unexplained(self, end: EndState) -> Iterator[Finding]:
        """Some serial order of all that took effect leads to what was delivered."""
        units = [unit for unit in end.units if end.took_effect(unit)]
        isolated = all(
            unit.act.engine in ISOLATED
            for unit in units
            if isinstance(unit.act, DynamicTransaction | StaticTransaction)
        )
        if not isolated:
            # Others promise nothing to those who look on, nor to two on the same part.
            units = [unit for unit in units if not isinstance(unit.act, PlainPublication)]
            if len(units) > 1:
                return
        theirs = {text for unit in units for text in self._published(unit)}
        got = Counter({key: n for key, n in end.got.items() if isolated or key[1] in theirs})
        final = {node.hop: self._tables_of(node, local)[:2] for node, local in end.brokers}
        if self._explains(units, got, final):
            return
        listed = "; ".join(f"{client} got {what}" for client, what in sorted(got))
        text = f"leads to this: {listed or 'nobody got anything'}"
        names = ", ".join(map(str, units))
        plain = [unit for unit in units if isinstance(unit.act, PlainPublication)]
        stream = {text for unit in plain for text in self._published(unit)}
        others = [unit for unit in units if unit not in plain]
        rest = Counter({key: n for key, n in got.items() if key[1] not in stream})
        if len(units) == 1:
            yield Finding("order", names, f"{names} alone does not {text}")
        elif plain and self._explains(others, rest, final):
            yield Finding("handover", names, f"no serial order of {names} {text}")
        else:
            yield Finding("cycle", names, f"no serial order of {names} {text}")

    def _published(self, unit: ScriptedUnit) -> list[str]:
        """The publications of a unit, as clients log them."""
        match unit.act:
            case PlainPublication(point):
                return [f"{unit.client} {format_publication(point)}"]
            case DynamicTransaction(steps=steps):
                steps = tuple(self._all_steps(_copy(self._before), steps))
            case StaticTransaction(steps=steps):
                pass
            case _:
                return []
        return [
            f"{step.client} {format_publication(step.point or {})}"
            for step in steps
            if step.kind == "pub"
        ]

    def _explains(self, units: list[ScriptedUnit], got: Deliveries, final: Final) -> bool:
        return self._serial(self._before, units, got, final)

    def _serial(
        self, oracle: Oracle, units: list[ScriptedUnit], left: Deliveries, final: Final
    ) -> bool:
        """Whether the units can be done one after the other, with just these deliveries."""
        if not units:
            return not +left and all(
                (_rows(oracle.srt(hop)), _rows(oracle.prt(hop))) == tables
                for hop, tables in final.items()
            )
        for unit in units:
            if any(self._follows(unit, other) for other in units):
                continue
            trial = _copy(oracle)
            delivered = self._play(trial, unit)
            if delivered is None or delivered - left:
                continue
            others = [other for other in units if other is not unit]
            if self._serial(trial, others, left - delivered, final):
                return True
        return False

    def _follows(self, unit: ScriptedUnit, other: ScriptedUnit) -> bool:
        """Whether one comes after the other by their client's own order."""
        if unit.client != other.client or other.at >= unit.at:
            return False
        opening = len(self._scenario.role(unit.client).opening)
        both_plain = not (unit.is_transaction or other.is_transaction)
        return both_plain or unit.at >= opening > other.at

    def _play(self, oracle: Oracle, unit: ScriptedUnit) -> Deliveries | None:
        """Do all of a unit at once; who gets what by it, or None if it cannot be done."""
        match unit.act:
            case PlainPublication(point):
                return self._do(oracle, [Step(unit.client, "pub", point=point)])
            case PlainOperation(kind, filter):
                return self._do(oracle, [Step(unit.client, kind, filter)])
            case DynamicTransaction(steps=steps):
                return self._do(oracle, steps)
            case StaticTransaction(steps=steps):
                return self._do(oracle, [step for step in steps if step.kind != "tcm"])

    def _do(
        self, oracle: Oracle, steps: Iterable[Step], *, catches: bool = False
    ) -> Deliveries | None:
        delivered: Deliveries = Counter()
        for step in steps:
            if step.filter is not None:
                if not oracle.operate(step.client, step.kind, step.filter) and not catches:
                    return None
                continue
            assert step.point is not None
            if not holds(oracle.advertised[step.client], step.point):
                return None
            receivers = oracle.receivers(step.point)
            if step.kind == "pub":
                text = f"{step.client} {format_publication(step.point)}"
                delivered.update((receiver, text) for receiver in receivers)
                continue
            if not receivers:
                return None
            for receiver in receivers:
                reaction = self._scenario.role(receiver).reaction(step.point)
                inner = None
                if not reaction.error:
                    inner = self._do(oracle, reaction.steps, catches=reaction.catches)
                if inner is None:
                    return None
                delivered += inner
        return delivered


class EndState:
    """A state in which nothing moves, as clients and brokers have it."""

    def __init__(self, network: Network, state: State, scenario: Scenario) -> None:
        self._nodes = list(zip(network.nodes, state, strict=False))
        self.brokers = [(n, local) for n, local in self._nodes if isinstance(n, BrokerNode)]
        clients = [(n, local) for n, local in self._nodes if isinstance(n, ClientNode)]
        self.actors = {n.hop[1:]: n.actor(local) for n, local in clients}
        self.gone = [n.hop[1:] for n, local in clients if not n.is_here(local)]
        #: All that clients have begun.
        self.units = [
            ScriptedUnit(actor.name, actor.life, number, scenario.role(actor.name).acts[at], at)
            for actor in self.actors.values()
            for number, at in actor.begun
        ]

    @cached_property
    def outcomes(self) -> dict[str, dict[str, str]]:
        """By transaction: what each client was told, and what each broker has decided."""
        found: dict[str, dict[str, str]] = {}
        for actor in self.actors.values():
            for heard in actor.log:
                if heard.kind == "ended":
                    found.setdefault(heard.what, {})[actor.name] = heard.outcome
        for node, local in self.brokers:
            for tx, records in node.facts(local).records:
                for record in records:
                    if record.kind == "decide":
                        found.setdefault(tx, {})[node.hop] = record.outcome
        return found

    @cached_property
    def got(self) -> Deliveries:
        return Counter(
            (actor.name, heard.what)
            for actor in self.actors.values()
            for heard in actor.log
            if heard.kind == "got"
        )

    def is_committed(self, tx: str) -> bool:
        return "committed" in self.outcomes.get(tx, {}).values()

    def counts(self, word: AppliedOperation) -> bool:
        return not word.tx or self.is_committed(word.tx)

    def took_effect(self, unit: ScriptedUnit) -> bool:
        log = self.actors[unit.client].log
        answers = [heard for heard in log if heard.what == str(unit.number)]
        match unit.act:
            case PlainOperation():
                return any(heard.kind == "done" and not heard.outcome for heard in answers)
            case PlainPublication():
                return not any(heard.kind == "refused" for heard in answers)
        return self.is_committed(unit.name)

    def faults(self) -> list[Finding]:
        raised = ((node.hop, node.fault(local)) for node, local in self._nodes)
        return [Finding("fault", hop, f"{hop}: {fault}") for hop, fault in raised if fault]

    def split(self) -> Iterator[Finding]:
        for tx, each in sorted(self.outcomes.items()):
            if len(set(each.values())) > 1:
                told = ", ".join(f"{who}: {outcome}" for who, outcome in sorted(each.items()))
                yield Finding("split", tx, told)

    def fractured(self) -> Iterator[Finding]:
        """Whoever is isolated, or passes by, sees the same versions at every broker."""
        seen: dict[str, dict[str, dict[bool, str]]] = {}
        for node, local in self.brokers:
            for _, records in node.facts(local).records:
                for record in records:
                    passes_by = record.kind == "match" and not record.tx
                    isolated = passes_by or record.engine in ISOLATED
                    if isolated and record.kind in ("apply", "match"):
                        whose = seen.setdefault(record.tx or record.op_id, {})
                        for sees, names in zip(
                            (True, False), versions(record.version), strict=True
                        ):
                            for version in sorted(names):
                                whose.setdefault(version, {})[sees] = node.hop
        for name, each in seen.items():
            if name in self.outcomes and not self.is_committed(name):
                continue
            for version, where in each.items():
                if len(where) == 2:
                    text = f"{name} sees {version} at {where[True]} and not at {where[False]}"
                    yield Finding("dirty", name, text)

    def duplicates(self) -> Iterator[Finding]:
        for (client, what), times in self.got.items():
            if times > 1:
                yield Finding("duplicate", client, f"{client} got {what} {times} times")


def _op_of(step: Step) -> str:
    if step.filter is not None:
        return f"{step.client}'s {step.kind}({format_filter(step.filter)})"
    return f"{step.client}'s {step.kind}({format_publication(step.point or {})})"


def _rows(lines: Iterable[ExpectedRow]) -> list[Row]:
    return sorted((line.client, line.kind, line.filter, line.hop) for line in lines)


def _line(row: Row) -> str:
    client, kind, filter, hop = row
    return f"{client}'s {kind}({filter}) from {hop}"


def _copy(oracle: Oracle) -> Oracle:
    return Oracle(
        oracle.tree,
        oracle.edges,
        {client: list(said) for client, said in oracle.advertised.items()},
        {client: list(said) for client, said in oracle.subscribed.items()},
        Counter(oracle.numbers),
    )
