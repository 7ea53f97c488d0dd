"""The named scenarios: what has gone wrong, or might, made as small as it can be and still show it.

Each has the rules by which it is to be explored: "ours", with which no run may end in an anomaly,
and weaker ones, with which the search must find the anomaly that they lead to. "paper" is the
published rule where there is one. The numbers in brackets are those of `errata.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from overlay.broker.engine import EngineFactory
from overlay.filters import Filter
from overlay.messages import Kind
from padres_tx import static
from padres_tx.registry import broker_factories
from proofs.explore.scenario import Rules, Scenario
from proofs.explore.scripted_clients import (
    Dynamic,
    Plain,
    Publish,
    Reaction,
    Role,
    Static,
    adv,
    pub,
    sub,
    tcm,
    usub,
)
from proofs.faults import (
    absent_broker_bugs,
    client_bugs,
    early_fences,
    paper_rules,
    slicing_bugs,
    static_paper_rules,
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
    named = {name.replace("_", "-"): rules for name, rules in weaker.items()}
    return {"ours": Rules(engines()), **named}


def sliced(
    about: str = "ours, with all work cut into slices", *expected: str, **replaced: Any
) -> Rules:
    """Our rules, or others, with brokers that cut all that takes longer than one operation."""
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


def d_tx(*steps: Any, **more: Any) -> Dynamic:
    return Dynamic("d-tx", steps, **more)


# --- work changes hands ---


def handover(engine: str) -> Mapping[str, Role]:
    """W1 lets W2 take the stream of jobs, and lets go of it; E publishes one meanwhile."""
    give = Dynamic(engine, (tcm("W1", class_="move"), usub("W1", JOBS)))
    return {
        "E": Role((Publish({"class": "job", "n": 1}),)),
        "W1": Role((give,)),
        "W2": Role(reactions=(Reaction(MOVE, (sub("W2", JOBS),)),)),
    }


HANDOVER_HELD: tuple[tuple[str, Kind, Filter], ...] = (
    ("E", "adv", JOBS),
    ("W1", "adv", MOVE),
    ("W1", "sub", JOBS),
    ("W2", "sub", MOVE),
)

DISPATCHING: Mapping[str, Role] = {
    "E": Role((d_tx(tcm("E", class_="p", x=1, n=0), pub("E", class_="p", x=1, n=1)),)),
    "D": Role(reactions=(Reaction(P, (tcm("D", class_="assign"), usub("D", X1))),)),
    "A": Role(reactions=(Reaction(ASSIGN, (sub("A", X1),)),)),
}
DISPATCHING_HELD: tuple[tuple[str, Kind, Filter], ...] = (
    ("E", "adv", P),
    ("D", "adv", ASSIGN),
    ("D", "sub", P),
    ("A", "sub", ASSIGN),
)

HANDOVERS = [
    Scenario(
        "plain-publication",
        "(6) W2 takes a stream over from W1 in a D-TX, with a plain event on its way",
        CHAIN_3,
        {"E": "B1", "W1": "B3", "W2": "B2"},
        handover("d-tx"),
        HANDOVER_HELD,
        ours(
            unstamped=Rules(
                engines(),
                ("handover",),
                paper_rules.unstamped,
                "each broker routes a plain event on what is committed there",
            ),
            drop_at_commit=weaker(
                "what a commit supersedes is dropped with it",
                "handover",
                d_tx=paper_rules.DropAtCommit,
            ),
            stripped=Rules(
                engines(),
                ("handover",),
                client_bugs.stripped,
                "a client is not told what a plain event comes before",
            ),
        ),
    ),
    Scenario(
        "plain-publication-fork",
        "(6) the same with the publisher between the two workers",
        CHAIN_3,
        {"E": "B2", "W1": "B1", "W2": "B3"},
        handover("d-tx"),
        HANDOVER_HELD,
        ours(
            unstamped=Rules(
                engines(),
                ("handover",),
                paper_rules.unstamped,
                "each broker routes a plain event on what is committed there",
            ),
            drop_at_commit=weaker(
                "what a commit supersedes is dropped with it",
                "handover",
                d_tx=paper_rules.DropAtCommit,
            ),
        ),
    ),
    Scenario(
        "nested-acks",
        "(2) instance dispatching in a D-TX",
        CHAIN_3,
        {"E": "B1", "D": "B2", "A": "B3"},
        DISPATCHING,
        DISPATCHING_HELD,
        ours(
            paper=weaker(
                "Algorithm 2, line 19 as printed",
                "undecided",
                "order",
                d_tx=paper_rules.PrintedAcknowledgements,
            )
        ),
    ),
]

HANDOVERS.append(
    Scenario(
        "triggered",
        "(2) a D-TX advertises, which attracts a subscription, and publishes",
        CHAIN_3,
        {"C1": "B1", "C2": "B3"},
        {"C1": Role((d_tx(adv("C1", P), pub("C1", class_="p")),))},
        (("C2", "sub", P),),
        ours(
            early=weaker(
                "what is passed on counts as done", "order", d_tx=paper_rules.EarlyAcknowledgements
            ),
            paper=weaker(
                "Algorithm 2, line 19 as printed",
                "undecided",
                "order",
                d_tx=paper_rules.PrintedAcknowledgements,
            ),
        ),
    )
)

# --- transactions that meet ---

MUTUAL: Mapping[str, Role] = {
    "A": Role((d_tx(sub("A", X), pub("A", class_="y")),)),
    "B": Role((d_tx(sub("B", Y), pub("B", class_="x")),)),
}

CROSSING: Mapping[str, Role] = {
    "C": Role((d_tx(sub("C", X)),), after=(d_tx(usub("C", X)),)),
    "F": Role((d_tx(),)),
}


LETS_GO = box("take")
#: W3 hands the stream of jobs to W1. W2 takes it from whoever has it: each lets go if it holds it.
TAKES: Mapping[str, Role] = {
    "W1": Role(
        reactions=(
            Reaction(MOVE, (sub("W1", JOBS),)),
            Reaction(LETS_GO, (usub("W1", JOBS),), catches=True),
        )
    ),
    "W2": Role((d_tx(tcm("W2", class_="take"), sub("W2", JOBS)),)),
    "W3": Role(
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
        "W3 hands a stream to W1 while W2 takes it from whoever has it: handlers catch NotHeld",
        CHAIN_2,
        {"W1": "B1", "W2": "B1", "W3": "B2"},
        TAKES,
        TAKES_HELD,
        ours(
            unread=weaker(
                "what a client answers from its own state counts as nothing read",
                "cycle",
                d_tx=paper_rules.UnreadLooks,
            )
        ),
    ),
    Scenario(
        "sub-against-adv",
        "(7) one D-TX subscribes what another advertises",
        CHAIN_3,
        {"A": "B1", "B": "B3"},
        {
            "A": Role((d_tx(sub("A", X)),)),
            "B": Role((d_tx(adv("B", X)),)),
        },
        (),
        ours(
            paper=weaker(
                "Algorithm 3: publications are validated, nothing else",
                "divergence",
                d_tx=paper_rules.PrintedIsolation,
            ),
        ),
    ),
    Scenario(
        "one-sided-validation",
        "(7) two D-TX, each publishes what the other subscribes",
        CHAIN_3,
        {"A": "B1", "B": "B3"},
        MUTUAL,
        (("A", "adv", Y), ("B", "adv", X)),
        ours(
            paper=weaker(
                "Algorithm 3: publications are validated, against what is committed",
                "cycle",
                d_tx=paper_rules.PrintedIsolation,
            ),
            own_reads=weaker(
                "own reads are validated, against what is committed or prepared",
                "cycle",
                d_tx=paper_rules.OwnReads,
            ),
        ),
    ),
    Scenario(
        "crossing-commits",
        "(5) C subscribes in a D-TX, un-subscribes in its next; F's commit crosses the first one",
        CHAIN_2,
        {"C": "B2", "F": "B1", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(
            paper=weaker(
                "Algorithm 1: a snapshot is named by the latest commit",
                "ghost",
                "divergence",
                d_tx=paper_rules.PrintedIsolation,
            )
        ),
    ),
    Scenario(
        "crossing-commits-3",
        "(5) the same on three brokers",
        CHAIN_3,
        {"C": "B3", "F": "B2", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(
            paper=weaker(
                "Algorithm 1: a snapshot is named by the latest commit",
                "ghost",
                "divergence",
                d_tx=paper_rules.PrintedIsolation,
            )
        ),
        quick=False,
    ),
    Scenario(
        "crossing-commits-4",
        "(5) the same on four brokers",
        CHAIN_4,
        {"C": "B4", "F": "B2", "Q": "B1"},
        CROSSING,
        (("Q", "adv", X),),
        ours(
            paper=weaker(
                "Algorithm 1: a snapshot is named by the latest commit",
                "ghost",
                "divergence",
                d_tx=paper_rules.PrintedIsolation,
            )
        ),
        quick=False,
    ),
    Scenario(
        "votes-of-all",
        "(5) one D-TX subscribes what another advertises, and meets it at one broker only",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {"A": Role((d_tx(sub("A", X)),)), "B": Role((d_tx(adv("B", X)),))},
        (),
        ours(
            visited=weaker(
                "only brokers that an operation has come to are asked for their votes",
                "dirty",
                d_tx=paper_rules.VotesOfThoseConcerned,
            )
        ),
    ),
    Scenario(
        "independent",
        "(9) two D-TX that do not conflict: neither waits, neither is aborted",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {
            "A": Role((d_tx(sub("A", X), pub("A", class_="z")),)),
            "B": Role((d_tx(sub("B", Y), pub("B", class_="z")),)),
        },
        (("A", "adv", box("z")), ("B", "adv", box("z")), ("A", "adv", Y), ("B", "adv", X)),
        ours(),
    ),
    Scenario(
        "two-changes",
        "(6) one worker leaves and another comes, each in a D-TX, with a plain event on its way",
        CHAIN_3,
        {"E": "B1", "W1": "B2", "W2": "B3"},
        {
            "E": Role((Publish({"class": "job", "n": 1}),)),
            "W1": Role((d_tx(usub("W1", JOBS)),)),
            "W2": Role((d_tx(sub("W2", JOBS)),)),
        },
        (("E", "adv", JOBS), ("W1", "sub", JOBS)),
        ours(),
        quick=False,
    ),
    Scenario(
        "plain-operation",
        "(8) somebody subscribes, plainly, what a D-TX advertises",
        CHAIN_3,
        {"A": "B1", "S": "B3"},
        {
            "A": Role((d_tx(adv("A", X)),)),
            "S": Role((Plain("sub", X),)),
        },
        (),
        ours(
            unheld=weaker(
                "plain operations are carried out when they come",
                "divergence",
                d_tx=paper_rules.UnheldOperations,
            ),
        ),
    ),
    Scenario(
        "held-d-tx-ni",
        "(8) a D-TX-NI subscribes and has G publish; the subscription may have to wait for a D-TX",
        CHAIN_3,
        {"G": "B1", "Q": "B2", "C": "B3"},
        {
            "C": Role((Dynamic("d-tx-ni", (sub("C", X), tcm("C", class_="ask"))),)),
            "G": Role(reactions=(Reaction(box("ask"), (pub("G", class_="x"),)),)),
            "Q": Role((d_tx(pub("Q", class_="x")),)),
        },
        (("C", "adv", box("ask")), ("G", "sub", box("ask")), ("G", "adv", X), ("Q", "adv", X)),
        ours(
            overtaken=weaker(
                "what comes behind an operation that waits is handled before it",
                "order",
                d_tx_ni=paper_rules.Overtaken,
            ),
        ),
    ),
]

# --- static transactions ---


def plan(coordinator: str, *ops: static.Op) -> Static:
    """A static transaction, with who waits for whom worked out as for any user."""
    made = static.Plan(coordinator)
    for op in ops:
        made.add(op)
    return Static("s-tx", made.steps(count(1).__next__))


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
        {"E": Role((DISPATCH,))},
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
        {"C1": Role((FIGURE_2,))},
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
        "(3) somebody advertises meanwhile",
        CHAIN_3,
        {"E": "B1", "Q": "B2", "A": "B3"},
        {
            "E": Role(
                (
                    plan(
                        "E",
                        static.tcm({"class": "move"}, ops={"A": [static.sub(X)]}),
                        static.pub({"class": "y"}),
                    ),
                )
            ),
            "Q": Role((Plain("adv", X),)),
        },
        (("E", "adv", MOVE), ("E", "adv", Y), ("A", "sub", MOVE), ("A", "sub", Y)),
        ours(
            sliced=sliced(),
            sliced_overtaken=sliced(
                "operations pass a long plan that they come after",
                "order",
                s_tx=slicing_bugs.LetsAllPass,
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
        "(3) who is asked to subscribe takes its time, and nobody advertises what it subscribes to",
        CHAIN_2,
        {"E": "B1", "A": "B2"},
        {
            "E": Role(
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
        ring=True,
    ),
]

# --- what is undone ---

SUB_USUB = plan("C", static.tcm({"class": "move"}, ops={"D": [static.sub(X), static.usub(X)]}))

COMPENSATION = [
    Scenario(
        "compensation",
        "(4) a D-TX-NI that subscribes, un-subscribes, and is aborted",
        CHAIN_3,
        {"C": "B1", "Q": "B3"},
        {"C": Role((Dynamic("d-tx-ni", (sub("C", X), usub("C", X)), "abort"),))},
        (("Q", "adv", X),),
        ours(
            paper=weaker(
                "what was done is undone in the order in which it was done",
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
        {"C": Role((SUB_USUB._replace(end="abort"),))},
        (("Q", "adv", X), ("C", "adv", MOVE), ("D", "sub", MOVE)),
        ours(),
    ),
    Scenario(
        "compensation-dropped",
        "(4) the same of a client that held the subscription before",
        CHAIN_3,
        {"C": "B1", "Q": "B3"},
        {"C": Role((Dynamic("d-tx-ni", (sub("C", X), usub("C", X)), "abort"),))},
        (("Q", "adv", X), ("C", "sub", X)),
        ours(),
    ),
]

# --- what is lost, and who comes too late ---

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
                "a broker ends at the deadline what it has voted yes for",
                "split",
                d_tx=absent_broker_bugs.EndsAfterItsYes,
            )
        ),
        ring=True,
    ),
    Scenario(
        "deadline-d-tx-ni",
        "(11) a D-TX-NI handover whose deadline may pass at any moment, at each broker",
        CHAIN_3,
        {"E": "B1", "W1": "B3", "W2": "B2"},
        {**handover("d-tx-ni"), "E": Role()},
        HANDOVER_HELD,
        ours(
            alone=weaker(
                "a broker ends at the deadline what it has acknowledged",
                "split",
                d_tx_ni=absent_broker_bugs.EndsAfterItsAnswer,
            )
        ),
        ring=True,
    ),
    Scenario(
        "deadline-s-tx",
        "(11) an S-TX handover whose deadline may pass at any moment",
        CHAIN_3,
        {"E": "B1", "D": "B2", "A": "B3"},
        {"E": Role((DISPATCH,))},
        DISPATCHING_HELD,
        ours(),
        ring=True,
    ),
    *(
        Scenario(
            f"lost-{who}-{engine}",
            f"(10) the {who} of a handover may be gone at any moment",
            CHAIN_2,
            {"E": "B1", "W1": "B2", "W2": "B1"},
            {
                **handover(engine),
                client: handover(engine)[client]._replace(may_leave=True),
            },
            HANDOVER_HELD,
            ours(),
            ring=True,
        )
        for engine in ("d-tx", "d-tx-ni")
        for who, client in (("coordinator", "W1"), ("participant", "W2"))
    ),
    *(
        Scenario(
            f"lost-{who}-s-tx",
            f"(10) the {who} of a handover may be gone at any moment",
            CHAIN_3,
            {"E": "B1", "D": "B2", "A": "B3"},
            {
                "E": Role((DISPATCH,)),
                client: Role((DISPATCH,) if client == "E" else (), may_leave=True),
            },
            DISPATCHING_HELD,
            ours(),
            ring=True,
        )
        for who, client in (("coordinator", "E"), ("participant", "A"))
    ),
    Scenario(
        "fence",
        "(7) a D-TX that has lost often gets precedence over a conflicting one",
        CHAIN_2,
        {"A": "B1", "B": "B2"},
        {
            "A": Role((d_tx(sub("A", X), pub("A", class_="y")),)),
            "B": Role((d_tx(sub("B", Y), pub("B", class_="x")),)),
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
            "A": Role((d_tx(sub("A", X), pub("A", class_="y")),)),
            "B": Role((d_tx(sub("B", Y), pub("B", class_="x")),)),
        },
        (("A", "adv", Y), ("B", "adv", X)),
        {"ours": Rules(engines(d_tx=early_fences.FencesAll))},
    ),
]

SCENARIOS = {each.name: each for each in [*HANDOVERS, *CONFLICTS, *STATIC, *COMPENSATION, *FAULTS]}
