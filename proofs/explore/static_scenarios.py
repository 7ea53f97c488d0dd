"""Scenarios of static transactions, with our rules and with guessed dependencies."""

from __future__ import annotations

from padres_tx import static
from proofs.explore.scenario import Scenario
from proofs.explore.scenario_parts import (
    CHAIN_2,
    CHAIN_3,
    DISPATCH,
    DISPATCHING_HELD,
    MOVE,
    X1,
    P,
    X,
    Y,
    ours,
    plan,
    sliced,
    weaker,
)
from proofs.explore.scripted_clients import (
    PlainOperation,
    Script,
)
from proofs.faults import (
    slicing_bugs,
    static_paper_rules,
)

FIGURE_2 = plan(
    "C1",
    static.adv(P),
    static.tcm({"class": "p", "n": 0}, ops={"C2": [static.sub(X1)]}),
    static.pub({"class": "p", "x": 1, "n": 1}),
)

STATIC = [
    Scenario(
        "s-tx-handover",
        "(3) instance dispatching in an S-TX",
        CHAIN_3,
        {"E": "B1", "D": "B2", "A": "B3"},
        {"E": Script((DISPATCH,))},
        DISPATCHING_HELD,
        ours(
            sliced=sliced(),
            paper=weaker(
                "Algorithm 4 as printed",
                "order",
                "undecided",
                s_tx=static_paper_rules.PrintedDependencies,
            ),
        ),
    ),
    Scenario(
        "s-tx-triggered",
        "(3) Figure 2: an advertisement attracts a subscription, which a tcm then needs",
        CHAIN_3,
        {"C1": "B1", "C2": "B3"},
        {"C1": Script((FIGURE_2,))},
        (("C2", "sub", P),),
        ours(
            sliced=sliced(),
            guess=weaker(
                "Algorithm 4, corrected",
                "order",
                "undecided",
                s_tx=static_paper_rules.GuessedDependencies,
            ),
        ),
    ),
    Scenario(
        "s-tx-concurrent-adv",
        "(3) another client advertises meanwhile",
        CHAIN_3,
        {"E": "B1", "Q": "B2", "A": "B3"},
        {
            "E": Script(
                (
                    plan(
                        "E",
                        static.tcm({"class": "move"}, ops={"A": [static.sub(X)]}),
                        static.pub({"class": "y"}),
                    ),
                )
            ),
            "Q": Script((PlainOperation("adv", X),)),
        },
        (("E", "adv", MOVE), ("E", "adv", Y), ("A", "sub", MOVE), ("A", "sub", Y)),
        ours(
            sliced=sliced(),
            sliced_overtaken=sliced(
                "operations overtake a long plan that they come after",
                "order",
                s_tx=slicing_bugs.LetsOperationsPass,
            ),
            guess=weaker(
                "Algorithm 4, corrected",
                "order",
                "undecided",
                s_tx=static_paper_rules.GuessedDependencies,
            ),
        ),
    ),
    Scenario(
        "s-tx-late-participant",
        "(3) a participant subscribes late, to what no client advertises",
        CHAIN_2,
        {"E": "B1", "A": "B2"},
        {
            "E": Script(
                (
                    plan(
                        "E",
                        static.tcm({"class": "move"}, ops={"A": [static.sub(X)]}),
                        static.pub({"class": "y"}),
                    ),
                )
            ),
        },
        (("E", "adv", MOVE), ("E", "adv", Y), ("A", "sub", MOVE), ("A", "sub", Y)),
        ours(
            guess=weaker(
                "Algorithm 4, corrected",
                "order",
                s_tx=static_paper_rules.GuessedWithClients,
            ),
        ),
        deadlines=True,
    ),
]
