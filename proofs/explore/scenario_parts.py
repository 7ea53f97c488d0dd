"""Parts that several scenarios share: trees, filters, rules, handovers and dispatching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from overlay.broker.engine import EngineFactory
from overlay.filters import Filter
from overlay.messages import Kind
from padres_tx import static
from padres_tx.client.static_plan import StaticPlan
from padres_tx.registry import broker_factories
from proofs.explore.scenario import Rules
from proofs.explore.scripted_clients import (
    DynamicTransaction,
    PlainPublication,
    Reaction,
    Script,
    StaticTransaction,
    pub,
    sub,
    tcm,
    usub,
)
from proofs.faults import (
    slicing_bugs,
)

CHAIN_2 = (("B1", "B2"),)
CHAIN_3 = (("B1", "B2"), ("B2", "B3"))
CHAIN_4 = (("B1", "B2"), ("B2", "B3"), ("B3", "B4"))


def box(cls: str, **more: Any) -> Filter:
    return Filter({"class": cls, **more})


def engines(**replaced: Callable[[Any], Any]) -> Mapping[str, EngineFactory]:
    """All engines, with some replaced: `engines(d_tx=Other)`."""
    return {
        **broker_factories(),
        **{name.replace("_", "-"): other for name, other in replaced.items()},
    }


def ours(**weaker: Rules) -> dict[str, Rules]:
    """Our rules, and the weaker ones by name."""
    named = {name.replace("_", "-"): rules for name, rules in weaker.items()}
    return {"ours": Rules(engines()), **named}


def sliced(
    about: str = "ours, with all work split into slices", *expected: str, **replaced: Any
) -> Rules:
    """Our rules, or others, with brokers that split all work longer than one operation."""
    return Rules(engines(**replaced), expected, slicing_bugs.in_slices, about)


def weaker(about: str, *expected: str, **replaced: Callable[[Any], Any]) -> Rules:
    """Rules that lead to one of these anomalies."""
    return Rules(engines(**replaced), expected, about=about)


P = box("p")
X = box("x")
Y = box("y")
X1 = box("p", x=1)
ASSIGN = box("assign")
JOBS = box("job")
MOVE = box("move")


def d_tx(*steps: Any, **more: Any) -> DynamicTransaction:
    return DynamicTransaction("d-tx", steps, **more)


def handover(engine: str) -> Mapping[str, Script]:
    """W1 asks W2 to take over the stream of jobs, and gives it up; E publishes a job meanwhile."""
    give = DynamicTransaction(engine, (tcm("W1", class_="move"), usub("W1", JOBS)))
    return {
        "E": Script((PlainPublication({"class": "job", "n": 1}),)),
        "W1": Script((give,)),
        "W2": Script(reactions=(Reaction(MOVE, (sub("W2", JOBS),)),)),
    }


HANDOVER_HELD: tuple[tuple[str, Kind, Filter], ...] = (
    ("E", "adv", JOBS),
    ("W1", "adv", MOVE),
    ("W1", "sub", JOBS),
    ("W2", "sub", MOVE),
)

DISPATCHING: Mapping[str, Script] = {
    "E": Script((d_tx(tcm("E", class_="p", x=1, n=0), pub("E", class_="p", x=1, n=1)),)),
    "D": Script(reactions=(Reaction(P, (tcm("D", class_="assign"), usub("D", X1))),)),
    "A": Script(reactions=(Reaction(ASSIGN, (sub("A", X1),)),)),
}
DISPATCHING_HELD: tuple[tuple[str, Kind, Filter], ...] = (
    ("E", "adv", P),
    ("D", "adv", ASSIGN),
    ("D", "sub", P),
    ("A", "sub", ASSIGN),
)


def plan(coordinator: str, *ops: static.Op) -> StaticTransaction:
    """A static transaction; its dependencies are worked out as for any user."""
    made = StaticPlan(coordinator)
    for op in ops:
        made.add(op)
    return StaticTransaction("s-tx", made.steps(count(1).__next__))


DISPATCH = plan(
    "E",
    static.tcm(
        {"class": "p", "x": 1, "n": 0},
        ops={
            "D": [
                static.tcm({"class": "assign"}, ops={"A": [static.sub(X1)]}),
                static.usub(X1),
            ]
        },
    ),
    static.pub({"class": "p", "x": 1, "n": 1}),
)
