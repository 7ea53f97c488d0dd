"""Scenarios of aborts: compensation, deadlines, clients that leave, and fences."""

from __future__ import annotations

from padres_tx import static
from proofs.explore.scenario import Rules, Scenario
from proofs.explore.scenario_parts import (
    CHAIN_2,
    CHAIN_3,
    DISPATCH,
    DISPATCHING_HELD,
    HANDOVER_HELD,
    MOVE,
    X,
    Y,
    d_tx,
    engines,
    handover,
    ours,
    plan,
    weaker,
)
from proofs.explore.scripted_clients import (
    DynamicTransaction,
    Script,
    pub,
    sub,
    usub,
)
from proofs.faults import (
    absent_broker_bugs,
    early_fences,
    paper_rules,
)

# --- compensation ---

SUB_USUB = plan("C", static.tcm({"class": "move"}, ops={"D": [static.sub(X), static.usub(X)]}))

COMPENSATION = [
    Scenario(
        "compensation",
        "(4) a D-TX-NI that subscribes, un-subscribes, and is aborted",
        CHAIN_3,
        {"C": "B1", "Q": "B3"},
        {"C": Script((DynamicTransaction("d-tx-ni", (sub("C", X), usub("C", X)), "abort"),))},
        (("Q", "adv", X),),
        ours(
            paper=weaker(
                "operations are undone in their original order",
                "ghost",
                "divergence",
                d_tx_ni=paper_rules.CompensationInOrder,
            )
        ),
    ),
    Scenario(
        "compensation-s-tx",
        "(4) an S-TX that subscribes and un-subscribes for another client, and is aborted",
        CHAIN_3,
        {"C": "B1", "D": "B2", "Q": "B3"},
        {"C": Script((SUB_USUB._replace(end="abort"),))},
        (("Q", "adv", X), ("C", "adv", MOVE), ("D", "sub", MOVE)),
        ours(),
    ),
    Scenario(
        "compensation-dropped",
        "(4) the same for a client that already held the subscription",
        CHAIN_3,
        {"C": "B1", "Q": "B3"},
        {"C": Script((DynamicTransaction("d-tx-ni", (sub("C", X), usub("C", X)), "abort"),))},
        (("Q", "adv", X), ("C", "sub", X)),
        ours(),
    ),
]

# --- deadlines, clients that leave, fences ---

FAULTS = [
    Scenario(
        "deadline",
        "(11) a D-TX handover whose deadline may pass at any moment, at each broker",
        CHAIN_3,
        {"E": "B1", "W1": "B3", "W2": "B2"},
        handover("d-tx"),
        HANDOVER_HELD,
        ours(
            alone=weaker(
                "at the deadline a broker ends a transaction that it has voted yes for",
                "split",
                d_tx=absent_broker_bugs.EndsAfterItsYes,
            )
        ),
        deadlines=True,
    ),
    Scenario(
        "deadline-d-tx-ni",
        "(11) a D-TX-NI handover whose deadline may pass at any moment, at each broker",
        CHAIN_3,
        {"E": "B1", "W1": "B3", "W2": "B2"},
        {**handover("d-tx-ni"), "E": Script()},
        HANDOVER_HELD,
        ours(
            alone=weaker(
                "at the deadline a broker ends a transaction that it has acknowledged",
                "split",
                d_tx_ni=absent_broker_bugs.EndsAfterItsAnswer,
            )
        ),
        deadlines=True,
    ),
    Scenario(
        "deadline-s-tx",
        "(11) an S-TX handover whose deadline may pass at any moment",
        CHAIN_3,
        {"E": "B1", "D": "B2", "A": "B3"},
        {"E": Script((DISPATCH,))},
        DISPATCHING_HELD,
        ours(),
        deadlines=True,
    ),
    *(
        Scenario(
            f"lost-{part}-{engine}",
            f"(10) the {part} of a handover may leave at any moment",
            CHAIN_2,
            {"E": "B1", "W1": "B2", "W2": "B1"},
            {
                **handover(engine),
                client: handover(engine)[client]._replace(may_leave=True),
            },
            HANDOVER_HELD,
            ours(),
            deadlines=True,
        )
        for engine in ("d-tx", "d-tx-ni")
        for part, client in (("coordinator", "W1"), ("participant", "W2"))
    ),
    *(
        Scenario(
            f"lost-{part}-s-tx",
            f"(10) the {part} of a handover may leave at any moment",
            CHAIN_3,
            {"E": "B1", "D": "B2", "A": "B3"},
            {
                "E": Script((DISPATCH,)),
                client: Script((DISPATCH,) if client == "E" else (), may_leave=True),
            },
            DISPATCHING_HELD,
            ours(),
            deadlines=True,
        )
        for part, client in (("coordinator", "E"), ("participant", "A"))
    ),
    Scenario(
        "fence",
        "(7) a D-TX that has lost often gets precedence over a conflicting one",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {
            "A": Script((d_tx(sub("A", X), pub("A", class_="y")),)),
            "B": Script((d_tx(sub("B", Y), pub("B", class_="x")),)),
        },
        (("A", "adv", Y), ("B", "adv", X)),
        {"ours": Rules(engines(d_tx=early_fences.FencesA))},
    ),
    Scenario(
        "fences",
        "(7) two conflicting D-TX that both get precedence",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {
            "A": Script((d_tx(sub("A", X), pub("A", class_="y")),)),
            "B": Script((d_tx(sub("B", Y), pub("B", class_="x")),)),
        },
        (("A", "adv", Y), ("B", "adv", X)),
        {"ours": Rules(engines(d_tx=early_fences.FencesAll))},
    ),
]
