"""Scenarios of dynamic transactions: handovers, and transactions that conflict."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.filters import Filter
from overlay.messages import Kind
from proofs.explore.scenario import Rules, Scenario
from proofs.explore.scenario_parts import (
    CHAIN_2,
    CHAIN_3,
    CHAIN_4,
    DISPATCHING,
    DISPATCHING_HELD,
    HANDOVER_HELD,
    JOBS,
    MOVE,
    P,
    X,
    Y,
    box,
    d_tx,
    engines,
    handover,
    ours,
    weaker,
)
from proofs.explore.scripted_clients import (
    DynamicTransaction,
    PlainOperation,
    PlainPublication,
    Reaction,
    Script,
    adv,
    pub,
    sub,
    tcm,
    usub,
)
from proofs.faults import (
    client_bugs,
    paper_rules,
)

UNSTAMPED = Rules(
    engines(),
    ("handover",),
    paper_rules.unstamped,
    "each broker routes a plain event on what is committed there",
)
DROP_AT_COMMIT = weaker(
    "a commit drops at once what it supersedes", "handover", d_tx=paper_rules.DropAtCommit
)
PRINTED_ACKNOWLEDGEMENTS = weaker(
    "Algorithm 2, line 19 as printed",
    "undecided",
    "order",
    d_tx=paper_rules.PrintedAcknowledgements,
)
PRINTED_SNAPSHOT = weaker(
    "Algorithm 1: a snapshot is named by the latest commit",
    "ghost",
    "divergence",
    d_tx=paper_rules.PrintedIsolation,
)

# --- handovers ---

HANDOVERS = [
    Scenario(
        "plain-publication",
        "(6) W2 takes over a stream from W1 in a D-TX while a plain event is on its way",
        CHAIN_3,
        {"E": "B1", "W1": "B3", "W2": "B2"},
        handover("d-tx"),
        HANDOVER_HELD,
        ours(
            unstamped=UNSTAMPED,
            drop_at_commit=DROP_AT_COMMIT,
            stripped=Rules(
                engines(),
                ("handover",),
                client_bugs.stripped,
                "plain events reach clients without their stamps",
            ),
        ),
    ),
    Scenario(
        "plain-publication-fork",
        "(6) the same, with the publisher between the two workers",
        CHAIN_3,
        {"E": "B2", "W1": "B1", "W2": "B3"},
        handover("d-tx"),
        HANDOVER_HELD,
        ours(
            unstamped=UNSTAMPED,
            drop_at_commit=DROP_AT_COMMIT,
        ),
    ),
    Scenario(
        "nested-acks",
        "(2) instance dispatching in a D-TX",
        CHAIN_3,
        {"E": "B1", "D": "B2", "A": "B3"},
        DISPATCHING,
        DISPATCHING_HELD,
        ours(paper=PRINTED_ACKNOWLEDGEMENTS),
    ),
]

HANDOVERS.append(
    Scenario(
        "triggered",
        "(2) a D-TX advertises, which attracts a subscription, then publishes",
        CHAIN_3,
        {"C1": "B1", "C2": "B3"},
        {"C1": Script((d_tx(adv("C1", P), pub("C1", class_="p")),))},
        (("C2", "sub", P),),
        ours(
            early=weaker(
                "an operation counts as done when it was forwarded",
                "order",
                d_tx=paper_rules.EarlyAcknowledgements,
            ),
            paper=PRINTED_ACKNOWLEDGEMENTS,
        ),
    )
)

# --- concurrent transactions ---

MUTUAL: Mapping[str, Script] = {
    "A": Script((d_tx(sub("A", X), pub("A", class_="y")),)),
    "B": Script((d_tx(sub("B", Y), pub("B", class_="x")),)),
}

CROSSING: Mapping[str, Script] = {
    "C": Script((d_tx(sub("C", X)),), after=(d_tx(usub("C", X)),)),
    "F": Script((d_tx(),)),
}


LETS_GO = box("take")
#: W3 hands the stream of jobs to W1. W2 takes it from its owner: each gives it up if it holds it.
TAKES: Mapping[str, Script] = {
    "W1": Script(
        reactions=(
            Reaction(MOVE, (sub("W1", JOBS),)),
            Reaction(LETS_GO, (usub("W1", JOBS),), catches=True),
        )
    ),
    "W2": Script((d_tx(tcm("W2", class_="take"), sub("W2", JOBS)),)),
    "W3": Script(
        (d_tx(tcm("W3", class_="move"), usub("W3", JOBS)),),
        (Reaction(LETS_GO, (usub("W3", JOBS),), catches=True),),
    ),
}
TAKES_HELD: tuple[tuple[str, Kind, Filter], ...] = (
    ("W3", "adv", MOVE),
    ("W2", "adv", LETS_GO),
    ("W1", "sub", MOVE),
    ("W1", "sub", LETS_GO),
    ("W3", "sub", LETS_GO),
    ("W3", "sub", JOBS),
)

CONFLICTS = [
    Scenario(
        "asks-who-holds",
        "(7) W3 hands a stream to W1 while W2 takes it from its owner; handlers catch NotHeld",
        CHAIN_2,
        {"W1": "B1", "W2": "B1", "W3": "B2"},
        TAKES,
        TAKES_HELD,
        ours(
            unread=weaker(
                "an answer from the client's own state is not validated",
                "cycle",
                d_tx=paper_rules.UnreadLooks,
            )
        ),
    ),
    Scenario(
        "sub-against-adv",
        "(7) one D-TX subscribes to what another advertises",
        CHAIN_3,
        {"A": "B1", "B": "B3"},
        {
            "A": Script((d_tx(sub("A", X)),)),
            "B": Script((d_tx(adv("B", X)),)),
        },
        (),
        ours(
            paper=weaker(
                "Algorithm 3: only publications are validated",
                "divergence",
                d_tx=paper_rules.PrintedIsolation,
            ),
        ),
    ),
    Scenario(
        "one-sided-validation",
        "(7) two D-TX; each publishes what the other subscribes to",
        CHAIN_3,
        {"A": "B1", "B": "B3"},
        MUTUAL,
        (("A", "adv", Y), ("B", "adv", X)),
        ours(
            paper=weaker(
                "Algorithm 3: only publications are validated, against committed writes",
                "cycle",
                d_tx=paper_rules.PrintedIsolation,
            ),
            own_reads=weaker(
                "own reads are validated against committed and prepared writes",
                "cycle",
                d_tx=paper_rules.OwnReads,
            ),
        ),
    ),
    Scenario(
        "crossing-commits",
        "(5) C subscribes in a D-TX and un-subscribes in its next; F's commit crosses the first",
        CHAIN_2,
        {"C": "B2", "F": "B1", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(paper=PRINTED_SNAPSHOT),
    ),
    Scenario(
        "crossing-commits-3",
        "(5) the same on three brokers",
        CHAIN_3,
        {"C": "B3", "F": "B2", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(paper=PRINTED_SNAPSHOT),
        quick=False,
    ),
    Scenario(
        "crossing-commits-4",
        "(5) the same on four brokers",
        CHAIN_4,
        {"C": "B4", "F": "B2", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(paper=PRINTED_SNAPSHOT),
        quick=False,
    ),
    Scenario(
        "votes-of-all",
        "(5) one D-TX subscribes to what another advertises; they meet at one broker only",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {"A": Script((d_tx(sub("A", X)),)), "B": Script((d_tx(adv("B", X)),))},
        (),
        ours(
            visited=weaker(
                "only brokers that an operation has reached vote",
                "dirty",
                d_tx=paper_rules.VotesOfThoseConcerned,
            )
        ),
    ),
    Scenario(
        "independent",
        "(9) two D-TX that do not conflict: neither waits or is aborted",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {
            "A": Script((d_tx(sub("A", X), pub("A", class_="z")),)),
            "B": Script((d_tx(sub("B", Y), pub("B", class_="z")),)),
        },
        (("A", "adv", box("z")), ("B", "adv", box("z")), ("A", "adv", Y), ("B", "adv", X)),
        ours(),
    ),
    Scenario(
        "two-changes",
        "(6) one worker stops and another starts, each in a D-TX; a plain event is on its way",
        CHAIN_3,
        {"E": "B1", "W1": "B2", "W2": "B3"},
        {
            "E": Script((PlainPublication({"class": "job", "n": 1}),)),
            "W1": Script((d_tx(usub("W1", JOBS)),)),
            "W2": Script((d_tx(sub("W2", JOBS)),)),
        },
        (("E", "adv", JOBS), ("W1", "sub", JOBS)),
        ours(),
        quick=False,
    ),
    Scenario(
        "plain-operation",
        "(8) a client subscribes, outside transactions, to what a D-TX advertises",
        CHAIN_3,
        {"A": "B1", "S": "B3"},
        {
            "A": Script((d_tx(adv("A", X)),)),
            "S": Script((PlainOperation("sub", X),)),
        },
        (),
        ours(
            unheld=weaker(
                "plain operations are applied as soon as they arrive",
                "divergence",
                d_tx=paper_rules.UnheldOperations,
            ),
        ),
    ),
    Scenario(
        "held-d-tx-ni",
        "(8) a D-TX-NI subscribes and lets G publish; the subscription may have to wait for a D-TX",
        CHAIN_3,
        {"G": "B1", "Q": "B2", "C": "B3"},
        {
            "C": Script((DynamicTransaction("d-tx-ni", (sub("C", X), tcm("C", class_="ask"))),)),
            "G": Script(reactions=(Reaction(box("ask"), (pub("G", class_="x"),)),)),
            "Q": Script((d_tx(pub("Q", class_="x")),)),
        },
        (("C", "adv", box("ask")), ("G", "sub", box("ask")), ("G", "adv", X), ("Q", "adv", X)),
        ours(
            overtaken=weaker(
                "messages behind a waiting operation are handled before it",
                "order",
                d_tx_ni=paper_rules.Overtaken,
            ),
        ),
    ),
]
