"""Breadth-first search of all interleavings of a scenario for one that ends in an anomaly.

The brokers are the real ones (`nodes`), and a global state is a tuple of numbers (`network`). Known
states are not searched again, and moves that only change the order of commuting steps are left out
(`Network.moves`). A run is checked where nothing moves any more (`end_state_checks`). All runs end,
and every run that was left out leads to the same end with as many moves as one that was tried; so
the first anomaly that is found has the fewest moves.

The search is deterministic: the same scenario and rules give the same states in the same order in
every process; `Exploration.fingerprint` is a hash of all of them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from proofs.checkers import Anomaly, check
from proofs.explore.end_state import Finding
from proofs.explore.end_state_checks import EndStateChecks
from proofs.explore.network import NetworkMove, State
from proofs.explore.nodes import BrokerNode
from proofs.explore.scenario import PreparedScenario, Scenario, set_up
from proofs.explore.to_history import history

#: Default limit of states: some minutes of work, and a gigabyte of memory.
STATE_LIMIT = 2_000_000

#: The number of end states that `proofs.checkers` also check; `end_state_checks` check all.
CHECKED_ENDS = 300


@dataclass
class Exploration:
    """The result of an exploration."""

    scenario: Scenario
    rules: str
    states: int = 0
    transitions: int = 0
    #: States in which nothing moves.
    ends: int = 0
    #: Steps for which the brokers' code was run; all others were known.
    steps: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    fingerprint: str = ""
    findings: list[Finding] = field(default_factory=list)
    #: The moves that lead to the first anomaly, each with the state that it starts from.
    path: list[tuple[State, NetworkMove]] = field(default_factory=list)
    prepared: PreparedScenario | None = None
    #: The anomalies that `proofs.checkers` find in the run that leads to the anomaly.
    checked: list[Anomaly] = field(default_factory=list)

    @property
    def states_per_s(self) -> float:
        return self.states / self.seconds if self.seconds else 0.0

    @property
    def expected(self) -> tuple[str, ...]:
        """The kinds of anomalies of which one must be found; empty if there must be none."""
        return self.scenario.rules[self.rules].expected

    @property
    def as_expected(self) -> bool:
        if not self.expected:
            return self.exhausted and not self.findings
        return any(finding.kind in self.expected for finding in self.findings)


#: Called from time to time with the number of known states and the depth in moves.
Watch: TypeAlias = Callable[[int, int], None]


def explore(
    scenario: Scenario,
    rules: str = "ours",
    *,
    limit: int = STATE_LIMIT,
    watch: Watch = lambda states, moves: None,
) -> Exploration:
    """Explore a scenario until an anomaly is found, no state is left, or the limit is reached."""
    began = perf_counter()
    result = Exploration(scenario, rules)
    prepared = result.prepared = set_up(scenario, scenario.rules[rules])
    search = BreadthFirstSearch(prepared, EndStateChecks(scenario, prepared.network))
    search.run(result, limit, watch)
    result.seconds = perf_counter() - began
    return result


class BreadthFirstSearch:
    """A breadth-first search that keeps the path from the first state to each state."""

    def __init__(self, prepared: PreparedScenario, checks: EndStateChecks) -> None:
        self._prepared = prepared
        self._network = prepared.network
        self._checks = checks
        self._states: dict[State, int] = {prepared.start: 0}
        self._parents = array("q", [-1])
        self._moves: list[NetworkMove | None] = [None]
        self._hash = hashlib.sha256()

    def run(self, result: Exploration, limit: int, watch: Watch) -> None:
        network, states = self._network, self._states
        level = list(states)
        depth = 0
        while level and len(states) <= limit and not result.findings:
            watch(len(states), depth)
            depth += 1
            ahead: list[State] = []
            for state in level:
                moves = network.moves(state)
                if not moves:
                    result.ends += 1
                    self._check_end(state, result)
                    if result.findings:
                        break
                for move in moves:
                    result.transitions += 1
                    after = network.apply(state, move)
                    if after not in states:
                        self._add(after, states[state], move)
                        ahead.append(after)
                if len(states) > limit:
                    break
            else:
                level = ahead
                continue
            break
        result.exhausted = not level and not result.findings
        result.states = len(states)
        result.steps = sum(node.runs for node in network.nodes if isinstance(node, BrokerNode))
        for node in network.nodes:
            for number in range(len(node)):
                self._hash.update(node.key(number))
        result.fingerprint = self._hash.hexdigest()

    def _check_end(self, state: State, result: Exploration) -> None:
        result.findings = self._checks.findings(state)
        if not result.findings and (result.expected or result.ends > CHECKED_ENDS):
            return
        path = self._path_to(state)
        result.checked = check(history(self._prepared, path))
        if result.checked and not result.findings:
            result.findings = [Finding(c.kind, c.tx, c.story) for c in result.checked]
        if result.findings:
            result.path = path

    def _add(self, state: State, parent: int, move: NetworkMove) -> None:
        self._states[state] = len(self._parents)
        self._parents.append(parent)
        self._moves.append(move)
        self._hash.update(array("I", state).tobytes())

    def _path_to(self, state: State) -> list[tuple[State, NetworkMove]]:
        moves: list[NetworkMove] = []
        at = self._states[state]
        while at:
            move = self._moves[at]
            assert move is not None
            moves.append(move)
            at = self._parents[at]
        path: list[tuple[State, NetworkMove]] = []
        here = next(iter(self._states))
        for move in reversed(moves):
            path.append((here, move))
            here = self._network.apply(here, move)
        return path
