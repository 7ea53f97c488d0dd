"""Checks of a state in which nothing moves any more: is every promise kept?

The checks use what is visible at the end: what each client was told and received, what each
broker's tables contain, and the order in which each broker handled a transaction's operations. The
naive oracle computes what is expected: the tables from what was committed, and the deliveries by
searching for a serial order of all that took effect (transactions, plain operations and plain
publications, each as one step) that leads to exactly these deliveries and tables.

The checkers in `proofs.checkers` read the records of any run, in nearly linear time. These checks
try all orders, and know the scripts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from overlay.messages import Hop, client_hop
from overlay.notation import format_filter, format_publication, parse_filter, parse_publication
from overlay.trace import Record
from padres_tx.audit.promises import ISOLATED
from padres_tx.client_messages import Step, tx_text
from proofs.explore.end_state import Deliveries, EndState, Finding, ScriptedUnit
from proofs.explore.network import Network, State
from proofs.explore.nodes import AppliedOperation, BrokerNode
from proofs.explore.scenario import Scenario
from proofs.explore.scripted_clients import (
    DynamicTransaction,
    PlainOperation,
    PlainPublication,
    StaticTransaction,
)
from proofs.explore.snapshot import thaw
from proofs.oracle import ComparableRow, Oracle, broker_rows, holds, oracle_rows

#: The tables of each broker.
Final: TypeAlias = "Mapping[Hop, tuple[list[ComparableRow], list[ComparableRow]]]"


class FinalTables(NamedTuple):
    """The rows of a broker's tables, and what is not at rest there."""

    srt: list[ComparableRow]
    prt: list[ComparableRow]
    unrest: str


class EndStateChecks:
    """Checks the states of one scenario in which nothing moves."""

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
        """All anomalies. One that makes the other checks meaningless is returned alone."""
        end = EndState(self._network, state, self._scenario)
        serious = end.faults() or [*end.split(), *self._not_at_rest(end)]
        if serious:
            return serious
        found = [*end.duplicates(), *self._misrouted(end), *self._misordered(end)]
        found += [*self._partial(end), *self._late(end)]
        if not found and not end.gone:
            found += self._unexplained(end)
        found = found or [*self._unrecognised(end)]
        return found or [*end.fractured()]

    # --- rest, and the tables ---

    def _not_at_rest(self, end: EndState) -> Iterator[Finding]:
        for unit in end.units:
            if unit.client in end.gone:
                continue
            log = end.clients[unit.client].log
            if unit.is_transaction and unit.client not in end.outcomes.get(unit.name, {}):
                yield Finding("undecided", unit.name, f"{unit.client} never learns the outcome")
            if isinstance(unit.action, PlainOperation) and ("done", str(unit.number)) not in {
                (entry.kind, entry.what) for entry in log
            }:
                yield Finding("undecided", unit.name, f"{unit} is never answered")
        for node, local in end.brokers:
            unrest = self._tables_of(node, local).unrest
            if unrest:
                yield Finding("undecided", node.hop, f"{node.hop} is not at rest: {unrest}")

    def _misrouted(self, end: EndState) -> Iterator[Finding]:
        """The tables are those that the oracle computes from what was committed."""
        oracle = Oracle(self._scenario.tree)
        for client, home in self._scenario.homes.items():
            if client not in end.gone:
                oracle.join(client, home)
        operations = sorted(
            operation for node, local in end.brokers for operation in node.past(local).operations
        )
        for operation in operations:
            if operation.client not in end.gone and end.counts(operation):
                oracle.operate(operation.client, operation.kind, parse_filter(operation.filter))
        aborted = {
            (operation.client, operation.filter)
            for operation in operations
            if not end.counts(operation)
        }
        for node, local in end.brokers:
            tables = self._tables_of(node, local)
            for name, table, right in (
                ("SRT", tables.srt, oracle_rows(oracle.srt(node.hop))),
                ("PRT", tables.prt, oracle_rows(oracle.prt(node.hop))),
            ):
                extra = sorted((Counter(table) - Counter(right)).elements())
                missing = sorted((Counter(right) - Counter(table)).elements())
                if extra or missing:
                    ghost = any((client, filter) in aborted for client, _, filter, _ in extra)
                    lines = [f"{_row_text(row)} is missing" for row in missing]
                    lines += [f"{_row_text(row)} is unexpected" for row in extra]
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
            srt, prt = broker_rows(data["srt"]), broker_rows(data["prt"])
            found = self._tables[node.hop, local] = FinalTables(srt, prt, "; ".join(unrest))
        return found

    # --- the order inside a transaction ---

    def _misordered(self, end: EndState) -> Iterator[Finding]:
        """No broker has handled an operation before one that it comes after."""
        for unit in end.units:
            if not unit.is_transaction:
                continue
            program = self._program(unit)
            changes = [op for op in program if " adv(" in op or " uadv(" in op]
            for node, local in end.brokers:
                seen: list[str] = []
                for record in node.past(local).of(unit.name):
                    op = f"{record.client}'s {record.op_kind}({record.filter})"
                    if record.kind not in ("apply", "match"):
                        continue
                    # An entry that an (un-)advertisement moves counts as part of it.
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
        """Whether an (un-)advertisement moves the entry of a record that is in no script."""
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
        """The operations of a transaction, each with the operations that come before it."""
        if isinstance(unit.action, StaticTransaction):
            steps = list(unit.action.steps)
            before: list[set[int]] = []
            for step in steps:
                before.append(set(step.after).union(*(before[at] for at in step.after)))
        else:
            assert isinstance(unit.action, DynamicTransaction)
            steps = list(self._all_steps(_copy(self._before), unit.action.steps))
            before = [set(range(at)) for at in range(len(steps))]
        names = [_op_of(step) for step in steps]
        return {name: {names[b] for b in before[at]} for at, name in enumerate(names)}

    def _all_steps(self, oracle: Oracle, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps, each followed by the steps that its tcm triggers."""
        for step in steps:
            yield step
            if step.filter is not None:
                oracle.operate(step.client, step.kind, step.filter)
            elif step.kind == "tcm":
                assert step.point is not None
                for receiver in oracle.receivers(step.point):
                    reaction = self._scenario.script(receiver).reaction(step.point)
                    yield from self._all_steps(oracle, reaction.steps)

    # --- deliveries ---

    def _partial(self, end: EndState) -> Iterator[Finding]:
        """No client receives a publication of a transaction that was not committed."""
        for unit in end.units:
            if unit.is_transaction and not end.is_committed(unit.name):
                theirs = self._published(unit)
                for client, what in sorted(end.got):
                    if what in theirs:
                        text = f"{client} received {what}, but {unit.name} was not committed"
                        yield Finding("partial", unit.name, text)

    def _late(self, end: EndState) -> Iterator[Finding]:
        """A client that was told `drained` receives no further event from before the commit."""
        oracle = _copy(self._before)
        for operation in sorted(
            operation for node, local in end.brokers for operation in node.past(local).operations
        ):
            if end.counts(operation):
                oracle.operate(operation.client, operation.kind, parse_filter(operation.filter))
        for scripted in end.clients.values():
            drained = [at for at, entry in enumerate(scripted.log) if entry.kind == "drained"]
            for entry in scripted.log[drained[-1] :] if drained else ():
                point = (
                    parse_publication(entry.what.partition(" ")[2]) if entry.kind == "got" else None
                )
                if point is not None and not holds(oracle.subscribed[scripted.name], point):
                    text = f"{scripted.name} received {entry.what} after `drained`"
                    yield Finding("handover", scripted.name, text)

    def _unrecognised(self, end: EndState) -> Iterator[Finding]:
        """A client that has given up a stream recognises its last events by their stamps.

        That is how a client finds the callbacks of a publication (`padres_tx.client.holdings`).
        """
        operations = [
            operation for node, local in end.brokers for operation in node.past(local).operations
        ]
        oracle = _copy(self._before)
        for operation in sorted(operations):
            if end.counts(operation):
                oracle.operate(operation.client, operation.kind, parse_filter(operation.filter))
        for scripted in end.clients.values():
            given: list[AppliedOperation] = []
            for entry in scripted.log:
                if entry.kind == "ended" and entry.outcome == "committed":
                    given += [
                        operation
                        for operation in operations
                        if operation.client == scripted.name and operation.tx == entry.what
                        if operation.kind == "usub"
                    ]
                if entry.kind != "got":
                    continue
                point = parse_publication(entry.what.partition(" ")[2])
                if holds(oracle.subscribed[scripted.name], point):
                    continue  # The client still holds a subscription that it is for.
                for operation in given:
                    unstamped = operation.tx not in entry.outcome.split(",")
                    if unstamped and parse_filter(operation.filter).matches(point):
                        what = f"received {entry.what} after {operation.tx}, without its stamp"
                        text = f"{scripted.name} {what}"
                        yield Finding("handover", scripted.name, text)

    # --- some serial order ---

    def _unexplained(self, end: EndState) -> Iterator[Finding]:
        """A serial order of all that took effect explains what was delivered."""
        units = [unit for unit in end.units if end.took_effect(unit)]
        isolated = all(
            unit.action.engine in ISOLATED
            for unit in units
            if isinstance(unit.action, DynamicTransaction | StaticTransaction)
        )
        if not isolated:
            # Other engines promise nothing about plain publications, nor about two transactions on
            # the same filters.
            units = [unit for unit in units if not isinstance(unit.action, PlainPublication)]
            if len(units) > 1:
                return
        theirs = {text for unit in units for text in self._published(unit)}
        got = Counter({key: n for key, n in end.got.items() if isolated or key[1] in theirs})
        final = {node.hop: self._tables_of(node, local)[:2] for node, local in end.brokers}
        if self._explains(units, got, final):
            return
        listed = "; ".join(f"{client} received {what}" for client, what in sorted(got))
        text = f"explains the deliveries: {listed or 'none'}"
        names = ", ".join(map(str, units))
        plain = [unit for unit in units if isinstance(unit.action, PlainPublication)]
        stream = {text for unit in plain for text in self._published(unit)}
        others = [unit for unit in units if unit not in plain]
        rest = Counter({key: n for key, n in got.items() if key[1] not in stream})
        if len(units) == 1:
            yield Finding("order", names, f"no order of the operations of {names} {text}")
        elif plain and self._explains(others, rest, final):
            yield Finding("handover", names, f"no serial order of {names} {text}")
        else:
            yield Finding("cycle", names, f"no serial order of {names} {text}")

    def _published(self, unit: ScriptedUnit) -> list[str]:
        """The publications of a unit, as clients log them."""
        match unit.action:
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
        """Whether the units, one after the other, lead to exactly these deliveries and tables."""
        if not units:
            return not +left and all(
                (oracle_rows(oracle.srt(hop)), oracle_rows(oracle.prt(hop))) == tables
                for hop, tables in final.items()
            )
        for unit in units:
            if any(self._follows(unit, other) for other in units):
                continue
            trial = _copy(oracle)
            delivered = self._carry_out(trial, unit)
            if delivered is None or delivered - left:
                continue
            others = [other for other in units if other is not unit]
            if self._serial(trial, others, left - delivered, final):
                return True
        return False

    def _follows(self, unit: ScriptedUnit, other: ScriptedUnit) -> bool:
        """Whether a unit comes after another by the order of their client."""
        if unit.client != other.client or other.at >= unit.at:
            return False
        opening = len(self._scenario.script(unit.client).opening)
        both_plain = not (unit.is_transaction or other.is_transaction)
        return both_plain or unit.at >= opening > other.at

    def _carry_out(self, oracle: Oracle, unit: ScriptedUnit) -> Deliveries | None:
        """Carry out a unit at once; returns its deliveries, or None if it is impossible."""
        match unit.action:
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
                reaction = self._scenario.script(receiver).reaction(step.point)
                inner = None
                if not reaction.error:
                    inner = self._do(oracle, reaction.steps, catches=reaction.catches)
                if inner is None:
                    return None
                delivered += inner
        return delivered


def _op_of(step: Step) -> str:
    if step.filter is not None:
        return f"{step.client}'s {step.kind}({format_filter(step.filter)})"
    return f"{step.client}'s {step.kind}({format_publication(step.point or {})})"


def _row_text(row: ComparableRow) -> str:
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
