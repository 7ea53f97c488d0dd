"""A state in which nothing moves any more: what clients and brokers know in it.

`EndState` also finds what is wrong by itself, without the scenario: failures of the code, split
decisions, duplicates, and views that differ between brokers. `end_state_checks` finds the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias

from overlay.identity import name_text
from overlay.notation import format_filter, format_publication
from padres_tx.audit.promises import ISOLATED
from padres_tx.audit.record_fields import versions_of
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

#: How often each client received each publication, which is named by its client and its text.
Deliveries: TypeAlias = "Counter[tuple[str, str]]"


class Finding(NamedTuple):
    """An anomaly: its kind (as in `proofs.checkers`, or "fault"), its subject, and a text."""

    kind: str
    who: str
    text: str


class ScriptedUnit(NamedTuple):
    """An action that a client has begun and that takes effect as one unit."""

    client: str
    #: The client's life, and the number that names the action in it.
    life: int
    number: int
    action: Action
    #: The action's place in its client's script.
    at: int

    @property
    def name(self) -> str:
        return name_text(self.client, self.life, self.number)

    @property
    def is_transaction(self) -> bool:
        return isinstance(self.action, DynamicTransaction | StaticTransaction)

    def __str__(self) -> str:
        match self.action:
            case PlainPublication(point):
                return f"{self.client}'s pub({format_publication(point)})"
            case PlainOperation(kind, filter):
                return f"{self.client}'s {kind}({format_filter(filter)})"
        return self.name


class EndState:
    """A state in which nothing moves."""

    def __init__(self, network: Network, state: State, scenario: Scenario) -> None:
        self._nodes = list(zip(network.nodes, state, strict=False))
        self.brokers = [(n, local) for n, local in self._nodes if isinstance(n, BrokerNode)]
        clients = [(n, local) for n, local in self._nodes if isinstance(n, ClientNode)]
        self.clients = {n.hop[1:]: n.client(local) for n, local in clients}
        self.gone = [n.hop[1:] for n, local in clients if not n.is_here(local)]
        #: All actions that clients have begun.
        self.units = [
            ScriptedUnit(
                scripted.name, scripted.life, number, scenario.script(scripted.name).actions[at], at
            )
            for scripted in self.clients.values()
            for number, at in scripted.begun
        ]

    @cached_property
    def outcomes(self) -> dict[str, dict[str, str]]:
        """By transaction: the outcome that each client was told and each broker has decided."""
        found: dict[str, dict[str, str]] = {}
        for scripted in self.clients.values():
            for entry in scripted.log:
                if entry.kind == "ended":
                    found.setdefault(entry.what, {})[scripted.name] = entry.outcome
        for node, local in self.brokers:
            for tx, records in node.past(local).records:
                for record in records:
                    if record.kind == "decide":
                        found.setdefault(tx, {})[node.hop] = record.outcome
        return found

    @cached_property
    def got(self) -> Deliveries:
        return Counter(
            (scripted.name, entry.what)
            for scripted in self.clients.values()
            for entry in scripted.log
            if entry.kind == "got"
        )

    def is_committed(self, tx: str) -> bool:
        return "committed" in self.outcomes.get(tx, {}).values()

    def counts(self, operation: AppliedOperation) -> bool:
        return not operation.tx or self.is_committed(operation.tx)

    def took_effect(self, unit: ScriptedUnit) -> bool:
        log = self.clients[unit.client].log
        answers = [entry for entry in log if entry.what == str(unit.number)]
        match unit.action:
            case PlainOperation():
                return any(entry.kind == "done" and not entry.outcome for entry in answers)
            case PlainPublication():
                return not any(entry.kind == "refused" for entry in answers)
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
        """Isolated transactions and plain publications see the same versions at every broker."""
        seen: dict[str, dict[str, dict[bool, str]]] = {}
        for node, local in self.brokers:
            for _, records in node.past(local).records:
                for record in records:
                    passes_by = record.kind == "match" and not record.tx
                    isolated = passes_by or record.engine in ISOLATED
                    if isolated and record.kind in ("apply", "match"):
                        whose = seen.setdefault(record.tx or record.op_id, {})
                        for sees, names in zip(
                            (True, False), versions_of(record.version), strict=True
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
                yield Finding("duplicate", client, f"{client} received {what} {times} times")
