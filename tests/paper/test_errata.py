"""Where the paper is wrong or silent: its rules lead to anomalies, and ours do not.

The numbers are those of the list of errata. What is a counterexample is explored both ways: with
the literal rule, or one that is almost right, some run ends in an anomaly; with ours all runs are
seen and none does. `padres-tx explore NAME --rules RULES` tells the shortest story of each.
"""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import Any

import pytest

from overlay.broker.core import Broker
from overlay.hosts.simulator import Simulator, Tape
from overlay.messages import Join, Operation, Pub
from padres_tx.registry import broker_factories
from proofs.explore.explorer import Exploration, explore
from proofs.explore.nodes import BrokerNode
from proofs.explore.scenario import Scenario
from proofs.explore.scenarios import SCENARIOS
from proofs.explore.snapshot import thaw
from proofs.faults import paper_rules
from proofs.sim.simulated_overlay import SimulatedOverlay
from tests.protocol.steps import box, chain, pub, usub


def all_is_well(scenario: Scenario) -> Exploration:
    result = explore(scenario)
    assert result.exhausted and result.findings == []
    return result


def goes_wrong(scenario: Scenario, rules: str = "paper") -> set[str]:
    """The kinds of anomalies at the end of the shortest run that has any."""
    result = explore(scenario, rules)
    assert result.findings and result.as_expected, result.findings
    return {finding.kind for finding in result.findings}


# --- 1: overlap ---


def routed(change: Any) -> tuple[int, list[object]]:
    """How many messages brokers send for some filters, and what is delivered."""

    def broker(name: Any, others: Any) -> Broker:
        made = Broker(name, others, engines=broker_factories())
        change(made)
        return made

    sim = Simulator({"B1": ["B2"], "B2": ["B1", "B3"], "B3": ["B2"]}, lambda n: 0, broker=broker)
    got: list[object] = []

    def receive(client: str) -> Any:
        def take(message: Any, now: float) -> list[Any]:
            if isinstance(message, Pub):
                got.append((client, message.seq))
            return []

        return take

    for client, edge in (("Q", "B3"), ("S", "B1"), ("T", "B2")):
        sim.connect(client, edge, receive(client))
        sim.send(client, Join(1, client, ""))
    sim.run()
    sim.send("Q", Operation(2, "adv", "Q", 0, box(cls="p", x=(0, 9))))
    sim.run()
    for client, x in (("S", (5, 6)), ("S", (20, 29)), ("T", (8, 30)), ("T", (40, 50))):
        sim.send(client, Operation(3, "sub", client, 0, box(cls="p", x=x)))
        sim.run()
    for x in range(10):
        sim.send("Q", Pub("Q", 10 + x, {"cls": "p", "x": x}))
    sim.run()
    return sim.steps, got


def test_1_overlap_in_one_attribute_only_adds_messages() -> None:
    few, ours = routed(lambda broker: None)
    many, theirs = routed(paper_rules.loosely_attracted)
    assert ours == theirs != []
    assert few < many


# --- 2: nested acknowledgements ---


def test_2_line_19_as_printed_hangs() -> None:
    assert goes_wrong(SCENARIOS["nested-acks"]) == {"undecided"}
    all_is_well(SCENARIOS["nested-acks"])


def test_2_what_is_passed_on_is_not_done_yet() -> None:
    """Line 27: who advertises has to wait for what that triggers."""
    assert goes_wrong(SCENARIOS["triggered"], "early") == {"order"}
    all_is_well(SCENARIOS["triggered"])


# --- 3: dependencies of static transactions ---


@pytest.mark.parametrize("homes", list(permutations(("B1", "B2", "B3"))), ids="".join)
def test_3_algorithm_4_as_printed_fails_in_every_placement(homes: tuple[str, ...]) -> None:
    placed = dict(zip(("E", "D", "A"), homes, strict=True))
    scenario = dataclasses.replace(SCENARIOS["s-tx-handover"], homes=placed)
    assert goes_wrong(scenario) <= {"order", "undecided"}
    all_is_well(scenario)


@pytest.mark.parametrize("name", ["s-tx-triggered", "s-tx-concurrent-adv"])
def test_3_guessing_from_the_tables_fails(name: str) -> None:
    """Figure 2's triggered s1, and somebody else's advertisement, are in nobody's list."""
    assert goes_wrong(SCENARIOS[name], "guess") <= {"order", "undecided"}
    all_is_well(SCENARIOS[name])


# --- 4: compensation ---


def test_4_compensation_in_the_original_order_leaves_a_ghost() -> None:
    assert "ghost" in goes_wrong(SCENARIOS["compensation"])
    for name in ("compensation", "compensation-dropped", "compensation-s-tx"):
        all_is_well(SCENARIOS[name])


# --- 5: snapshots ---


def test_5_the_latest_commit_names_no_snapshot() -> None:
    assert goes_wrong(SCENARIOS["crossing-commits"]) <= {"ghost", "divergence"}
    all_is_well(SCENARIOS["crossing-commits"])


def test_5_a_commit_needs_the_votes_of_brokers_it_has_not_visited() -> None:
    """Otherwise a snapshot has it at one broker and not at another."""
    assert goes_wrong(SCENARIOS["votes-of-all"], "visited") == {"dirty"}
    all_is_well(SCENARIOS["votes-of-all"])


# --- 6: plain publications ---


@pytest.mark.parametrize("rules", ["unstamped", "drop-at-commit"])
def test_6_a_plain_event_needs_one_version_on_its_whole_way(rules: str) -> None:
    assert goes_wrong(SCENARIOS["plain-publication"], rules) == {"handover"}
    assert goes_wrong(SCENARIOS["plain-publication-fork"], rules) == {"handover"}
    all_is_well(SCENARIOS["plain-publication"])
    all_is_well(SCENARIOS["plain-publication-fork"])


# --- 7: validation ---


def test_7_validating_publications_only_lets_sub_and_adv_miss_each_other() -> None:
    assert goes_wrong(SCENARIOS["sub-against-adv"]) == {"divergence"}
    all_is_well(SCENARIOS["sub-against-adv"])


@pytest.mark.parametrize("rules", ["paper", "own-reads"])
def test_7_validating_own_reads_only_lets_a_cycle_commit(rules: str) -> None:
    assert goes_wrong(SCENARIOS["one-sided-validation"], rules) == {"cycle"}


def test_7_validating_both_ways_is_serializable() -> None:
    all_is_well(SCENARIOS["one-sided-validation"])


def test_7_precedence_ends_losing() -> None:
    for name in ("fence", "fences"):
        all_is_well(SCENARIOS[name])


# --- 8: plain operations ---


def test_8_a_plain_operation_waits_for_what_it_conflicts_with() -> None:
    assert goes_wrong(SCENARIOS["plain-operation"], "unheld") == {"divergence"}
    all_is_well(SCENARIOS["plain-operation"])


# --- 9: only conflicts delay ---


def met(result: Exploration) -> set[str]:
    """How D-TX stood at brokers in the states that were met: waiting for another, or aborted."""
    assert result.prepared is not None
    found: set[str] = set()
    for node in result.prepared.network.nodes:
        for core in node.cores if isinstance(node, BrokerNode) else ():
            for tx in thaw(core.image).engines["d-tx"].txs.values():  # type: ignore[attr-defined]
                if tx.status == "preparing" and tx.verdict is None:
                    found.add("waits")
                elif tx.status == "aborted":
                    found.add("aborted")
    return found


def test_9_only_transactions_that_conflict_delay_or_abort_each_other() -> None:
    assert met(all_is_well(SCENARIOS["independent"])) == set()
    assert met(all_is_well(SCENARIOS["sub-against-adv"])) == {"waits", "aborted"}


# --- 10 and 11: who is lost ---


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_10_a_lost_participant_leads_to_one_outcome(engine: str) -> None:
    all_is_well(SCENARIOS[f"lost-participant-{engine}"])


@pytest.mark.parametrize("engine", ["d-tx", "d-tx-ni", "s-tx"])
def test_11_a_lost_coordinator_leaves_nothing_behind(engine: str) -> None:
    result = all_is_well(SCENARIOS[f"lost-coordinator-{engine}"])
    assert result.ends > 1  # It was lost before, while and after it was decided.


def test_11_a_deadline_leads_to_one_outcome() -> None:
    for name in ("deadline", "deadline-s-tx"):
        all_is_well(SCENARIOS[name])


# --- found with random runs ---


def p(*x: int) -> object:
    return box(class_="p", x=x if len(x) > 1 else x[0])


def test_what_has_waited_gets_its_number_when_it_is_done() -> None:
    """D-TX-NI: an operation behind one of the same client is the later word."""
    world = SimulatedOverlay(chain(2), Tape(seed=1).choose)
    world.join("C", "B1")
    world.join("Q", "B1")
    for client, kind, filter in (("Q", "adv", box(class_="p")), ("C", "sub", p(1))):
        world.plain(client, kind, filter)
        world.oracle.operate(client, kind, filter)
        world.sim.run()
    world.sim.cut("B1", "B2", 1.0)
    isolated = world.begin("d-tx", "Q", [pub("Q", class_="p", x=0)])
    world.sim.run(until=world.sim.now + 0.1)
    world.plain("C", "sub", p(0, 1))  # Held: the publication has read that part.
    world.sim.run(until=world.sim.now + 0.1)
    assert world.sim.brokers["B1"].held
    behind = world.begin("d-tx-ni", "C", [usub("C", p(1))])
    world.sim.run()
    assert world.committed(isolated) and world.committed(behind)
    world.publish("Q", {"class": "p", "x": 1})
    world.sim.run()
    assert world.received("C") == []
    world.oracle.operate("C", "sub", p(0, 1))
    world.oracle.operate("C", "usub", p(1))
    world.check_at_rest()
