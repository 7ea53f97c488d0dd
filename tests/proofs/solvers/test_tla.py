"""The specifications: names in README.md and errata.md exist, and TLC finds what it should.

TLC runs where the extra `proofs` and a Java are installed; `make proofs` requires both.
"""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from padres_tx.engines.s_tx.broker import STx
from padres_tx.java import NoJava
from proofs.explore.scenarios import SCENARIOS
from proofs.solvers import static_traces
from proofs.solvers.dynamic_traces import corruptions, log, module, record, validate
from proofs.solvers.models import MODELS, SPECIFICATIONS, TLCModel, run
from proofs.solvers.prove import CORRUPTED_SEEDS
from proofs.solvers.tlc import TLA, NoTLC, TLCFailed, find_java_once, jar, parse_output

PROOFS = Path(importlib.import_module("proofs").__file__ or "").parent
README = (PROOFS / "README.md").read_text()
ERRATA = (PROOFS / "errata.md").read_text()
MODULES = {path.stem: path.read_text() for path in TLA.glob("*.tla")}
SPECS = {spec.name: MODULES[spec.name] for spec in SPECIFICATIONS}
MAPPED = re.findall(r"^\| (\w+) \| (\w+) \| (`.*`) \|$", README, re.MULTILINE)


def tlc_or_skip() -> None:
    try:
        jar()
        find_java_once()
    except (NoTLC, NoJava) as error:
        pytest.skip(f"TLC cannot run: {error}")


# --- names ---


@pytest.mark.parametrize(("spec", "action", "code"), MAPPED)
def test_an_action_and_its_functions_exist(spec: str, action: str, code: str) -> None:
    assert re.search(rf"^{action}(\(.*\))? ==", MODULES[spec], re.MULTILINE)
    for name in re.findall(r"`([\w.]+)`", code):
        module, path = re.split(r"\.(?=[A-Z]|\w+$)", name, maxsplit=1)
        found = reduce(getattr, path.split("."), importlib.import_module(module))
        assert callable(found)


@pytest.mark.parametrize("spec", sorted(SPECS))
def test_every_message_and_every_client_leads_to_a_mapped_action(spec: str) -> None:
    mapped = {action for name, action, _ in MAPPED if name == spec}
    taken = re.search(r"^Take\(.*?(?=^\S|\Z)", SPECS[spec], re.MULTILINE | re.DOTALL)
    assert taken is not None
    called = set(re.findall(r"(?:->|THEN|ELSE) (\w+)\(", taken[0]))
    assert called - {"Ignore", "Operate", "Finished"} <= mapped


@pytest.mark.parametrize("spec", SPECIFICATIONS, ids=lambda spec: spec.name)
def test_every_rule_is_left_out_once_and_every_property_fails_once(spec) -> None:
    listed = re.search(r"AllRules == \{(.*?)\}", SPECS[spec.name], re.DOTALL)
    assert listed is not None
    rules = set(re.findall(r'"([\w ]+)"', listed[1]))
    mine = [model for model in MODELS if model.spec == spec]
    assert {model.without for model in mine if model.without} == rules
    assert {model.violates for model in mine if model.violates} == set(spec.invariants)


def test_named_scenarios_exist() -> None:
    commands = re.findall(r"explore ([\w-]+) --rules ([\w-]+)", ERRATA)
    assert len(commands) >= 6
    for scenario, rules in commands:
        assert SCENARIOS[scenario].rules[rules].expected
    for row in re.findall(r"^\| .* \| (?:D|all).*\| ([\w, -]+) \|$", README, re.MULTILINE):
        assert set(row.split(", ")) <= set(SCENARIOS)


# --- TLC ---


@pytest.mark.parametrize(
    "model",
    [model for model in MODELS if model.instance == "DTxDispatch" and not model.ends][:3],
    ids=lambda model: model.text,
)
def test_tlc_finds_what_it_should(model: TLCModel) -> None:
    tlc_or_skip()
    assert run(model).violated == model.violates


def test_a_run_of_the_real_engine_is_a_behaviour_of_the_specification() -> None:
    tlc_or_skip()
    real = record(CORRUPTED_SEEDS["D-TX"])
    lines = log(real)
    assert validate(real, lines)[0]
    for what in ("a vote turned round", "a publication without its stamp"):
        wrong = corruptions(lines)[what]
        assert wrong != lines
        assert not validate(real, wrong)[0], what


def test_a_run_of_the_real_s_tx_is_a_behaviour_of_the_specification() -> None:
    tlc_or_skip()
    real = static_traces.record(2)
    lines = static_traces.log(real)
    assert static_traces.validate(real, lines)[0]
    wrong = static_traces.corruptions(lines)["a PlanSettled before PlanCarriedOut"]
    assert wrong != lines
    assert not static_traces.validate(real, wrong)[0]
    real.last["B4"][1].pop()
    assert not static_traces.validate(real, lines)[0]


class AcknowledgesEarly(STx):
    """Acknowledges when all is done in the span, without waiting for brokers outside it."""

    def acknowledge(self, tx, now):
        tx.outside = 0
        return super().acknowledge(tx, now)


@pytest.mark.parametrize(("engine", "is_right"), [(STx, True), (AcknowledgesEarly, False)])
def test_a_trace_shows_whether_s_tx_waits_for_brokers_outside_its_span(engine, is_right) -> None:
    tlc_or_skip()
    run = static_traces.record(4, engine)
    assert static_traces.validate(run, static_traces.log(run))[0] == is_right


def test_a_trace_module_defines_functions_value_by_value() -> None:
    """TLC reads the module; where it is not installed, this finds a broken definition."""
    run = record(2)
    (home,) = re.findall(r"^MCHome == (.*)$", module(run, log(run)), re.MULTILINE)
    assert home == '1 :> "B1" @@ 2 :> "B1"'


def test_traces_contain_the_publications_that_brokers_route_in_runs() -> None:
    """Without them TLC rejects a trace; where it is not installed, this finds what is missing."""
    passed_on = [line for line in static_traces.log(static_traces.record(2)) if '"pub"' in line]
    assert passed_on == ['<<"B2", "B3", <<"pub", 4>>>>', '<<"B3", "B4", <<"pub", 4>>>>']
    passed_on = [line for line in log(record(2)) if '"pub"' in line]
    assert passed_on == [f'<<"B1", "B2", <<"pub", {pub}, {{"t2"}}>>>>' for pub in (1, 2)]


def test_a_trace_depends_only_on_its_seed() -> None:
    assert log(record(3)) == log(record(3))
    assert static_traces.log(static_traces.record(2)) == static_traces.log(static_traces.record(2))


def test_what_tlc_cannot_check_is_an_error() -> None:
    with pytest.raises(TLCFailed, match="could not check Broken"):
        parse_output("Broken", "Parsing file Broken.tla\n***Parse Error***\n", 0.1)
