"""All interleavings of a scenario, breadth first: is there one that ends as it must not?

The brokers are the real ones (`nodes`), a global state is a tuple of numbers (`network`), states
that were met before are not gone through again, and moves that only change the order of what
commutes are not tried (`Network.moves`). Runs are judged where nothing moves any more
(`end_state_checks`). All runs end, and every one that was left out leads to the same end with as
many moves as one that was tried; so the first anomaly that is met is one with the fewest moves.

The search is deterministic: the same scenario and rules give the same states in the same order, in
every process; `Exploration.fingerprint` names them all.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from proofs.checkers import Anomaly, check
from proofs.explore.end_state_checks import EndStateChecks, Finding
from proofs.explore.network import NetworkMove, State
from proofs.explore.nodes import BrokerNode
from proofs.explore.scenario import PreparedScenario, Scenario, set_up
from proofs.explore.to_history import history

#: States after which an exploration is given up unless more are asked for: some minutes, and a
#: gigabyte.
STATE_LIMIT = 2_000_000

#: Ends that the checkers of any run look at too; the judge looks at all.
CHECKED_ENDS = 300


@dataclass
class Exploration:
    """What an exploration has come to."""

    scenario: Scenario
    rules: str
    states: int = 0
    transitions: int = 0
    #: States in which nothing moves.
    ends: int = 0
    #: Steps that the brokers' code was run for; all others were known.
    steps: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    fingerprint: str = ""
    findings: list[Finding] = field(default_factory=list)
    #: The moves that lead to the first anomaly, and where.
    path: list[tuple[State, NetworkMove]] = field(default_factory=list)
    stage: PreparedScenario | None = None
    #: What the checkers of any run say to the one that leads to the anomaly.
    checked: list[Anomaly] = field(default_factory=list)

    @property
    def states_per_s(self) -> float:
        return self.states / self.seconds if self.seconds else 0.0

    @property
    def expected(self) -> tuple[str, ...]:
        """The kinds of anomalies, one of which must be found; none, if there must be none."""
        return self.scenario.rules[self.rules].expected

    @property
    def as_expected(self) -> bool:
        if not self.expected:
            return self.exhausted and not self.findings
        return any(finding.kind in self.expected for finding in self.findings)


#: Told now and then how many states were met, and after how many moves.
Watch: TypeAlias = Callable[[int, int], None]


def explore(
    scenario: Scenario,
    rules: str = "ours",
    *,
    limit: int = STATE_LIMIT,
    watch: Watch = lambda states, moves: None,
) -> Exploration:
    """Explore a scenario until an anomaly is found, all is seen, or there are too many states."""
    began = perf_counter()
    result = Exploration(scenario, rules)
    stage = result.stage = set_up(scenario, scenario.rules[rules])
    search = BreadthFirstSearch(stage, EndStateChecks(scenario, stage.network))
    search.run(result, limit, watch)
    result.seconds = perf_counter() - began
    return result


class BreadthFirstSearch:
    """Breadth first, with the way back from each state to the first."""

    def __init__(self, stage: PreparedScenario, judge: EndStateChecks) -> None:
        self._stage = stage
        self._network = stage.network
        self._judge = judge
        self._states: dict[State, int] = {stage.start: 0}
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
                    self._look_at_end(state, result)
                    if result.findings:
                        break
                for move in moves:
                    result.transitions += 1
                    after = network.apply(state, move)
                    if after not in states:
                        self._meet(after, states[state], move)
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

    def _look_at_end(self, state: State, result: Exploration) -> None:
        result.findings = self._judge.findings(state)
        if not result.findings and (result.expected or result.ends > CHECKED_ENDS):
            return
        path = self._way_to(state)
        result.checked = check(history(self._stage, path))
        if result.checked and not result.findings:
            result.findings = [Finding(c.kind, c.tx, c.story) for c in result.checked]
        if result.findings:
            result.path = path

    def _meet(self, state: State, parent: int, move: NetworkMove) -> None:
        self._states[state] = len(self._parents)
        self._parents.append(parent)
        self._moves.append(move)
        self._hash.update(array("I", state).tobytes())

    def _way_to(self, state: State) -> list[tuple[State, NetworkMove]]:
        moves: list[NetworkMove] = []
        at = self._states[state]
        while at:
            move = self._moves[at]
            assert move is not None
            moves.append(move)
            at = self._parents[at]
        way: list[tuple[State, NetworkMove]] = []
        here = next(iter(self._states))
        for move in reversed(moves):
            way.append((here, move))
            here = self._network.apply(here, move)
        return way
