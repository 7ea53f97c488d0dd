"""Static transactions: which operation comes after which, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import FilterError
from overlay.filters import Filter
from overlay.messages import Hop
from overlay.wire.codec import FRAME_LIMIT
from padres_tx import static
from padres_tx.client.operations import DEPTH_LIMIT, Op
from padres_tx.client.static_plan import STEP_LIMIT, StaticPlan
from padres_tx.client_messages import RECEIVERS_LIMIT, Step
from padres_tx.errors import BadName, BadTransaction
from padres_tx.protocol.admission import in_order
from padres_tx.protocol.static_state import StaticState

P1 = {"class": "p1"}
X1 = {"class": "p1", "x": "x1"}
F1 = "[class,eq,'p1'],[x,eq,'x1']"


def numbers(start: int = 100) -> Callable[[], int]:
    counter = count(start)
    return lambda: next(counter)


def plan(*ops: Op, coordinator: str = "E") -> tuple[Step, ...]:
    made = StaticPlan(coordinator)
    for op in ops:
        made.add(op)
    return made.steps(numbers())


def lines(steps: tuple[Step, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(step.client, step.kind, step.after) for step in steps]


# --- the paper's examples ---


def test_figure_1b_is_a_chain() -> None:
    """Dispatching: 1 E tcm, 2 D tcm, 3 A1 sub, 4 D usub, 5 E pub."""
    steps = plan(
        static.tcm(
            {**X1, "n": 0},
            ops={
                "D": [
                    static.tcm({"class": "assign"}, b"x1", ops={"A1": [static.sub(F1)]}),
                    static.usub(F1),
                ]
            },
        ),
        static.pub({**X1, "n": 1}, b"hello"),
    )
    assert lines(steps) == [
        ("E", "tcm", ()),
        ("D", "tcm", (0,)),  # Trigger
        ("A1", "sub", (1,)),  # Trigger
        ("D", "usub", (2,)),  # Trigger*
        ("E", "pub", (3,)),  # Trigger*
    ]
    assert [step.receivers for step in steps] == [("D",), ("A1",), (), (), ()]
    assert [step.payload for step in steps] == [b"", b"x1", b"", b"", b"hello"]
    # The coordinator's own publications carry its numbers, in its order.
    assert [step.seq for step in steps] == [100, 0, 0, 0, 101]


def test_figure_2_is_a_chain() -> None:
    """a1, t1, s2, p1; the triggered s1 belongs to a1 and is the brokers' business."""
    steps = plan(
        static.adv(P1),
        static.tcm(P1, ops={"C2": [static.sub(P1)]}),
        static.pub(P1),
        coordinator="C1",
    )
    assert lines(steps) == [
        ("C1", "adv", ()),
        ("C1", "tcm", (0,)),
        ("C2", "sub", (1,)),
        ("C1", "pub", (2,)),
    ]


def test_figure_1c_waits_for_both_agents_before_subscribing() -> None:
    """Consolidation, with one tcm for each agent."""
    steps = plan(
        static.tcm({"class": "cons", "x": 1}, ops={"A1": [static.usub(F1)]}),
        static.tcm({"class": "cons", "x": 2}, ops={"A2": [static.usub(F1)]}),
        static.sub(F1),
        coordinator="C",
    )
    assert [step.after for step in steps] == [(), (0,), (1,), (2,), (3,)]


def test_receivers_of_one_tcm_are_not_ordered_among_each_other() -> None:
    steps = plan(
        static.tcm(P1, ops={"A1": [static.usub(F1)], "A2": [static.usub(F1), static.usub(P1)]}),
        static.sub(P1),
    )
    assert lines(steps) == [
        ("E", "tcm", ()),
        ("A1", "usub", (0,)),
        ("A2", "usub", (0,)),
        ("A2", "usub", (2,)),
        ("E", "sub", (1, 3)),
    ]


def test_a_receiver_may_do_nothing() -> None:
    steps = plan(static.tcm(P1, ops={"A1": []}), static.pub(P1))
    assert [(step.after, step.receivers) for step in steps] == [((), ("A1",)), ((0,), ())]


# --- partial orders ---


def test_after_replaces_the_order_of_the_list() -> None:
    first, second, third = static.sub("[a,=,1]"), static.sub("[a,=,2]", after=[]), static.pub(P1)
    assert [step.after for step in plan(first, second, third)] == [(), (), (0, 1)]


def test_after_means_also_what_the_other_makes_others_do() -> None:
    assign = static.tcm(P1, ops={"D": [static.usub(F1)]})
    steps = plan(assign, static.sub("[a,=,1]", after=[]), static.pub(P1, after=[assign]))
    assert [step.after for step in steps] == [(), (0,), (), (1,)]


def test_after_may_name_another_clients_operation_even_one_further_on() -> None:
    gone = static.usub(F1)
    steps = plan(
        static.tcm(P1, ops={"A1": [static.sub(F1, after=[gone])], "D": [gone]}), static.pub(P1)
    )
    # Each stands behind its predecessors, so the two have changed places.
    assert lines(steps) == [
        ("E", "tcm", ()),
        ("D", "usub", (0,)),
        ("A1", "sub", (1,)),
        ("E", "pub", (2,)),
    ]


def test_what_follows_from_another_dependency_is_left_out() -> None:
    first = static.sub("[a,=,1]")
    second = static.sub("[a,=,2]")
    steps = plan(first, second, static.pub(P1, after=[first, second]))
    assert [step.after for step in steps] == [(), (0,), (1,)]


# --- refused ---


def test_a_circle_is_refused_and_named_and_nothing_is_added() -> None:
    late = static.usub(F1)
    early = static.sub(F1, after=[late])
    made = StaticPlan("E")
    made.add(static.adv(P1))
    with pytest.raises(BadTransaction, match=r"wait for each other: D's sub\(.*after D's usub\("):
        made.add(static.tcm(P1, ops={"D": [early, late]}))
    assert len(made) == 1
    made.add(static.tcm(P1, ops={"D": [late]}))  # It was not added, so it can be.
    assert len(made.steps(numbers())) == 3


def test_an_operation_cannot_wait_for_what_its_own_tcm_leads_to() -> None:
    waits = static.sub(F1, after=[])
    tcm = static.tcm(P1, ops={"D": [waits]})
    waits.after = (tcm,)
    with pytest.raises(BadTransaction, match="wait for each other"):
        plan(tcm)


def test_after_names_only_what_is_there() -> None:
    stranger = static.sub(P1)
    with pytest.raises(BadTransaction, match="not in the transaction; add that first"):
        plan(static.pub(P1, after=[stranger]), stranger)


def test_one_operation_stands_in_one_place() -> None:
    twice = static.sub(F1)
    with pytest.raises(BadTransaction, match="already; make another one"):
        plan(static.tcm(P1, ops={"A1": [twice], "A2": [twice]}))


def test_bad_input_is_refused_where_it_is_made() -> None:
    with pytest.raises(FilterError):
        static.sub("[x,neq,3]")
    with pytest.raises(FilterError):
        static.pub({})
    with pytest.raises(BadName):
        static.tcm(P1, ops={"no name": []})
    with pytest.raises(BadTransaction, match="A1: expected a list of operations"):
        static.tcm(P1, ops={"A1": static.sub(F1)})  # type: ignore[dict-item]
    with pytest.raises(BadTransaction, match="A1: expected a list of operations"):
        static.tcm(P1, ops={"A1": ["sub"]})  # type: ignore[list-item]
    with pytest.raises(BadTransaction, match="ops: expected a mapping"):
        static.tcm(P1, ops=[static.sub(F1)])  # type: ignore[arg-type]
    with pytest.raises(BadTransaction, match="after: expected a list of operations"):
        static.sub(F1, after=["first"])  # type: ignore[list-item]


def test_there_are_limits() -> None:
    many = [static.sub(F1) for _ in range(STEP_LIMIT)]
    assert len(plan(static.tcm(P1, ops={"A1": many[1:]}))) == STEP_LIMIT
    with pytest.raises(BadTransaction, match="more than 1000 operations"):
        plan(static.tcm(P1, ops={"A1": many}))
    op = static.tcm(P1)
    for _ in range(DEPTH_LIMIT - 1):
        op = static.tcm(P1, ops={"A1": [op]})
    with pytest.raises(BadTransaction, match=f"more than {DEPTH_LIMIT} deep"):
        static.tcm(P1, ops={"A1": [op]})
    payload = bytes(FRAME_LIMIT // 2)
    assert len(plan(*[static.pub(P1, payload) for _ in range(2)])) == 2
    with pytest.raises(BadTransaction, match=f"or {FRAME_LIMIT} bytes of payloads"):
        plan(static.pub(P1, payload), static.pub(P1, payload), static.pub(P1, b"x"))
    names = [f"W{n}" for n in range(RECEIVERS_LIMIT)]
    assert static.tcm(P1, to=names).to == tuple(names)
    with pytest.raises(BadTransaction, match=f"{RECEIVERS_LIMIT} receivers"):
        static.tcm(P1, to=[*names, "W"])


# --- against Definition 3.4, word by word ---


def sequences(depth: int) -> st.SearchStrategy[list[Op]]:
    plain = st.builds(lambda: static.sub(F1))
    if depth == 0:
        return st.lists(plain, max_size=3)
    clients = st.sampled_from(["A1", "A2", "D"])
    ops = st.dictionaries(clients, sequences(depth - 1), min_size=1, max_size=2)
    return st.lists(
        st.one_of(plain, st.builds(lambda ops: static.tcm(P1, ops=ops), ops)), max_size=3
    )


def ordered_by_definition(threads: list[list[Op]], all_ops: list[Op]) -> set[tuple[int, int]]:
    """The relation over positions in `all_ops`: the three rules, closed under transitivity."""
    at = {op: index for index, op in enumerate(all_ops)}
    trigger = {(at[op], at[o]) for op in all_ops for ops in op.ops.values() for o in ops}
    thread = {(at[a], at[b]) for ops in threads for i, a in enumerate(ops) for b in ops[i + 1 :]}
    order = trigger | thread
    while True:
        # A triggers B, even through others, and A stands before C in its thread: B before C.
        # Whatever B has triggered is, by the same rule, over before B counts as over.
        star = {(b, c) for a, b in _closed(trigger) for a_, c in thread if a == a_}
        closed = _closed(order | star)
        if closed == order:
            return order
        order = closed


def _closed(relation: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closed = set(relation)
    while True:
        more = {(a, d) for a, b in closed for c, d in closed if b == c} - closed
        if not more:
            return closed
        closed |= more


@given(sequences(2))
def test_the_dependencies_are_those_of_definition_3_4(top: list[Op]) -> None:
    steps = plan(*top)
    threads, found = [top], [*top]
    for op in found:
        for ops in op.ops.values():
            threads.append(list(ops))
            found.extend(ops)
    # The steps of a total order come out in the order of a walk through the nested lists.
    walked: list[Op] = []

    def walk(ops: list[Op] | tuple[Op, ...]) -> None:
        for op in ops:
            walked.append(op)
            for each in op.ops.values():
                walk(each)

    walk(top)
    direct = {(before, at) for at, step in enumerate(steps) for before in step.after}
    assert all(before < at for before, at in direct)
    assert _closed(direct) == ordered_by_definition(threads, walked)
    for edge in sorted(direct):
        assert _closed(direct - {edge}) != _closed(direct), f"{edge} follows from the others"


def test_a_long_plan_is_quick_enough_to_be_made_at_once() -> None:
    steps = plan(*(static.sub(F1) for _ in range(STEP_LIMIT)))
    assert all(after.after == (at,) for at, (_, after) in enumerate(pairwise(steps)))


# --- the order that a broker finds ---


@given(st.lists(st.lists(st.integers(-1, 8), max_size=3), max_size=8))
def test_a_broker_takes_whoever_may_go_first(after: list[list[int]]) -> None:
    steps = [Step("E", "sub", after=tuple(before)) for before in after]
    order: list[int] = []
    while len(order) < len(steps):
        left = [at for at in range(len(steps)) if at not in order]
        may_go = [at for at in left if set(steps[at].after) <= set(order)]
        if not may_go:
            break
        order.append(may_go[0])
    assert in_order(steps) == (order if len(order) == len(steps) else None)


def test_a_plan_in_which_everything_waits_for_everything_is_no_work() -> None:
    """It took a broker half a minute, in which it did nothing else."""
    steps = [Step("E", "sub", after=tuple(range(at))) for at in range(STEP_LIMIT)]
    assert in_order(steps) == list(range(STEP_LIMIT))


def test_a_step_that_was_started_elsewhere_is_not_started_again() -> None:
    tx = StaticState(("E", 0, 1), (), {}, Hop("@E"), 0.0, long=False, deadline_s=0.0)
    tx.steps = [Step("E", "sub", Filter(x=at)) for at in range(3)]
    tx.arm()
    tx.started.add(0)  # Its own broker has carried it out, and has said so.
    assert tx.start() == 1
    assert tx.ready and tx.start() == 2
    assert not tx.ready
