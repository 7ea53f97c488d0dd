"""The explorer finds all end states, distinguishes all states, and is deterministic."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from overlay.broker.core import Broker
from overlay.filters import Filter
from overlay.messages import BrokerName, Hop, Join, Operation, client_hop
from padres_tx.registry import broker_factories
from proofs.explore.cli import explore as command
from proofs.explore.explorer import explore
from proofs.explore.network import Network, NetworkMove, State
from proofs.explore.scenario import Scenario, set_up
from proofs.explore.scenarios import SCENARIOS
from proofs.explore.snapshot import UNSEEN, canonical, freeze, thaw

QUICK = [each for each in SCENARIOS.values() if each.quick]

#: Scenarios small enough to try all interleavings: with deadlines, clients that leave, each engine.
SMALL = [
    "plain-publication-fork",
    "triggered",
    "plain-operation",
    "s-tx-concurrent-adv",
    "compensation-dropped",
    "lost-participant-s-tx",
]


# --- the reduction ---


def ends(scenario: Scenario, *, reduced: bool) -> tuple[int, set[tuple[bytes, ...]]]:
    """The number of states, and the end states by keys that do not depend on the search."""
    network, start, _ = set_up(scenario, scenario.rules["ours"])
    seen: set[State] = {start}
    todo: list[State] = [start]
    found: set[tuple[bytes, ...]] = set()
    while todo:
        state = todo.pop()
        moves = network.moves(state) if reduced else all_moves(network, state)
        if not moves:
            found.add(tuple(node.key(at) for node, at in zip(network.nodes, state, strict=False)))
        for move in moves:
            after = network.apply(state, move)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), found


def all_moves(network: Network, state: State) -> list[NetworkMove]:
    return [move for node in range(len(network.nodes)) for move in network.enabled(state, node)]


@pytest.mark.parametrize("name", SMALL)
def test_moves_that_are_left_out_lead_to_no_other_end(name: str) -> None:
    few, reduced = ends(SCENARIOS[name], reduced=True)
    many, full = ends(SCENARIOS[name], reduced=False)
    assert reduced == full
    assert few < many


# --- states ---


def broker() -> Broker:
    made = Broker(BrokerName("B1"), [BrokerName("B2")], engines=broker_factories(), trace=True)
    made.receive(Hop("B2"), Join(1, "C", "B2"), 0.0)
    made.receive(Hop("B2"), Operation(2, "adv", "C", 1, Filter(x=1)), 0.0)
    return made


def test_a_clone_is_in_the_same_state_and_shares_nothing() -> None:
    one = broker()
    clone = thaw(freeze(one))
    assert canonical(clone) == canonical(one)
    clone.receive(Hop("B2"), Operation(3, "adv", "C", 2, Filter(x=2)), 0.0)
    assert canonical(clone) != canonical(one)
    assert canonical(one) == canonical(broker())


def _attributes(thing: object) -> list[str]:
    return [name for name in vars(thing) if name not in UNSEEN]


def test_a_difference_in_any_attribute_makes_another_state() -> None:
    """Every attribute of the broker, its tables and its engines is changed once."""
    usual = canonical(broker())
    places = [
        lambda b: b,
        lambda b: b.versions,
        lambda b: b.engines["d-tx"],
        lambda b: b.engines["d-tx-ni"],
        lambda b: b.engines["s-tx"],
        lambda b: b.requests,
        lambda b: b.requests.tasks,
        lambda b: b.waiting,
        lambda b: b.busy,
        lambda b: b.membership,
    ]
    for place in places:
        for name in _attributes(place(broker())):
            changed = broker()
            setattr(place(changed), name, "something else")
            assert canonical(changed) != usual, name


def test_marks_on_entries_make_another_state() -> None:
    one, other = broker(), broker()
    space = other.routing.srt[Hop("B2")]
    space.mark_removed(next(iter(space)), ("E", 0, 1))
    assert canonical(one) != canonical(other)


def test_waiting_requests_make_another_state() -> None:
    one, other = broker(), broker()
    other.membership.joined[client_hop("D")] = 7
    assert canonical(one) != canonical(other)


# --- outcomes ---


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_with_our_rules_no_interleaving_ends_in_an_anomaly(scenario: Scenario) -> None:
    result = explore(scenario)
    assert result.findings == []
    assert result.exhausted


#: Prints what must not depend on the order of sets.
FINGERPRINTS = """
from proofs.explore.explorer import explore
from proofs.explore.scenarios import SCENARIOS
for name in ("plain-publication", "s-tx-concurrent-adv", "compensation"):
    for rules in SCENARIOS[name].rules:
        result = explore(SCENARIOS[name], rules)
        print(name, rules, result.states, result.transitions, result.fingerprint)
"""


@pytest.mark.slow
def test_the_states_do_not_depend_on_the_hash_seed() -> None:
    def run(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", FINGERPRINTS]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run("1") == run("2") != ""


# --- the command ---


def test_the_command_prints_the_shortest_run() -> None:
    outcome = CliRunner().invoke(command, ["compensation", "--rules", "paper"])
    assert outcome.exit_code == 1
    assert "   1. C to B1: begin C:1:2" in outcome.output
    assert "ghost: PRT of B1: C's sub([class,eq,'x']) from @C is unexpected" in outcome.output


def test_the_command_as_json() -> None:
    outcome = CliRunner().invoke(command, ["s-tx-handover", "--json"])
    assert outcome.exit_code == 0
    report = json.loads(outcome.stdout)
    assert report["scenario"] == "s-tx-handover" and report["rules"] == "ours"
    assert report["exhausted"] and report["anomaly"] is None and report["states"] > 10


def test_an_unknown_name_is_rejected_with_similar_ones() -> None:
    outcome = CliRunner().invoke(command, ["compensatoin"])
    assert outcome.exit_code == 2 and "did you mean compensation" in outcome.output
    outcome = CliRunner().invoke(command, ["compensation", "--rules", "mine"])
    assert outcome.exit_code == 2 and "ours, paper" in outcome.output


def test_a_search_that_is_given_up_fails() -> None:
    outcome = CliRunner().invoke(command, ["plain-publication", "--limit", "50"])
    assert outcome.exit_code == 1 and "given up" in outcome.output


def test_the_list_names_scenarios_and_expectations() -> None:
    outcome = CliRunner().invoke(command, ["--list", "--json"])
    listed = {each["scenario"]: each for each in json.loads(outcome.stdout)}
    assert listed["compensation"]["rules"]["paper"]["expected"] == ["ghost", "divergence"]
    assert all(each["about"] for each in listed.values())
