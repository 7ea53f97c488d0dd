"""Lemmas on why the tables converge, about pairs of operations, checked by Z3 for any size.

A table is as in `overlay.tables.space`: entries, each with a client, the client's number for it,
yes or no, and a filter, here any set of points. Which clients want a point is as in
`Space.matching`: a client with a yes that contains the point and no higher-numbered no that does.
What an operation drops is as in `overlay.tables.last_word.settle`. Clients, numbers and points are
not bounded: a lemma without a counterexample holds for tables of any size. The induction from pairs
to histories is in proofs/README.md.

Some lemmas are expected to fail: they show why numbers and FIFO links are needed, and their
counterexample is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import z3

#: Each lemma takes milliseconds.
TIMEOUT_MS: Final = 60_000

Client = z3.DeclareSort("Client")
Point = z3.DeclareSort("Point")
Number = z3.IntSort()

#: The n-th operation of a client: whether it is positive (sub, adv), and whether its filter
#: contains a point.
yes = z3.Function("yes", Client, Number, z3.BoolSort())
box = z3.Function("box", Client, Number, Point, z3.BoolSort())

#: A table: which operations have an entry.
Table = Callable[[Any, Any], Any]


class NumberedChange(NamedTuple):
    """An operation as it leaves its edge broker (overlay.messages.Operation)."""

    client: Any
    number: Any
    store: Any
    drop: Callable[[Any], Any]


class Lemma(NamedTuple):
    """A claim: whether it is expected to hold, and how to print a counterexample."""

    name: str
    claim_text: str
    holds: bool
    claim: Callable[[], Any]
    shows: Callable[[z3.ModelRef], str] = lambda model: ""


def table(name: str) -> Table:
    present = z3.Function(name, Client, Number, z3.BoolSort())
    return lambda client, number: present(client, number)


def operation(name: str, client: Any, number: Any) -> NumberedChange:
    drop = z3.Function(f"{name}_drop", Number, z3.BoolSort())
    return NumberedChange(client, number, z3.Bool(f"{name}_store"), lambda n: drop(n))


def applied(before: Table, op: NumberedChange) -> Table:
    """The effect of Routing.apply on the table."""

    def after(client: Any, number: Any) -> Any:
        mine = client == op.client
        kept = z3.And(before(client, number), z3.Not(z3.And(mine, op.drop(number))))
        return z3.Or(kept, z3.And(mine, number == op.number, op.store))

    return after


def wants(table: Table, client: Any, point: Any) -> Any:
    """Space.matching: a yes that contains the point, and no later no that contains it."""
    n, m = z3.Ints("n m")
    later = z3.And(m > n, table(client, m), z3.Not(yes(client, m)), box(client, m, point))
    present = z3.And(table(client, n), yes(client, n), box(client, n, point))
    return z3.Exists([n], z3.And(present, z3.Not(z3.Exists([m], later))))


def different_clients() -> Any:
    """Operations of two clients, in both orders: the same entries."""
    c, d, any_client = z3.Consts("c d any", Client)
    n, m, number = z3.Ints("n_a n_b number")
    a, b, before = operation("a", c, n), operation("b", d, m), table("before")
    one = applied(applied(before, a), b)(any_client, number)
    other = applied(applied(before, b), a)(any_client, number)
    return z3.Implies(c != d, one == other)


def operations_of_one_client() -> Any:
    """Two operations of one client, nothing dropped, in both orders: the client wants the same."""
    c = z3.Const("c", Client)
    point = z3.Const("point", Point)
    before = table("before")
    a = NumberedChange(c, z3.Int("n_a"), z3.BoolVal(True), lambda n: z3.BoolVal(False))
    b = NumberedChange(c, z3.Int("n_b"), z3.BoolVal(True), lambda n: z3.BoolVal(False))
    one, other = applied(applied(before, a), b), applied(applied(before, b), a)
    return wants(one, c, point) == wants(other, c, point)


def settling(*, holes: bool) -> Any:
    """What `settle` drops, and a no that it does not store, makes no difference later.

    Without `holes` a no is never stored, as if un-subscribing only dropped whole subscriptions.
    """
    c = z3.Const("c", Client)
    point, x = z3.Consts("point x", Point)
    new, d, e = z3.Ints("new d e")
    before, gone = table("before"), z3.Function("gone", Number, z3.BoolSort())
    overlaps = z3.Function("overlaps", Number, Number, z3.BoolSort())
    covered = z3.ForAll([x], z3.Implies(box(c, d, x), box(c, new, x)))
    carves = z3.Exists([e], z3.And(before(c, e), yes(c, e), e < d, z3.Not(gone(e)), overlaps(d, e)))
    rules = z3.And(
        # Conservative, like Filter.overlaps: it may be true where there is no common point.
        z3.ForAll([d, e, x], z3.Implies(z3.And(box(c, d, x), box(c, e, x)), overlaps(d, e))),
        z3.ForAll([d], z3.Implies(before(c, d), d < new)),
        z3.ForAll(
            [d],
            z3.Implies(
                gone(d),
                z3.And(before(c, d), z3.Or(covered, z3.And(z3.Not(yes(c, d)), z3.Not(carves)))),
            ),
        ),
    )
    near = z3.Exists([e], z3.And(before(c, e), yes(c, e), z3.Not(gone(e)), overlaps(new, e)))
    store = z3.Or(yes(c, new), near) if holes else yes(c, new)
    settled = applied(before, NumberedChange(c, new, store, lambda n: gone(n)))
    full = applied(before, NumberedChange(c, new, z3.BoolVal(True), lambda n: z3.BoolVal(False)))
    return z3.Implies(rules, wants(settled, c, point) == wants(full, c, point))


def settled_of_one_client() -> Any:
    """A client's yes and the no that takes it back, in both orders: the results differ."""
    c = z3.Const("c", Client)
    point = z3.Const("point", Point)
    a = NumberedChange(c, z3.IntVal(1), z3.BoolVal(True), lambda n: z3.BoolVal(False))
    b = NumberedChange(c, z3.IntVal(2), z3.BoolVal(False), lambda n: n == 1)

    def empty(client: Any, number: Any) -> Any:
        return z3.BoolVal(False)

    one, other = applied(applied(empty, a), b), applied(applied(empty, b), a)
    sub_then_usub = z3.And(yes(c, 1), z3.Not(yes(c, 2)))
    return z3.Implies(sub_then_usub, wants(one, c, point) == wants(other, c, point))


def unnumbered() -> Any:
    """Without numbers the operation that arrives last decides: two orders, two results."""
    point = z3.Const("point", Point)
    before = z3.Function("wanted", Point, z3.BoolSort())
    one = z3.If(B_IN, B_YES, z3.If(A_IN, A_YES, before(point)))
    other = z3.If(A_IN, A_YES, z3.If(B_IN, B_YES, before(point)))
    return one == other


A_YES, B_YES, A_IN, B_IN = z3.Bools("a_yes b_yes a_in b_in")


def _unnumbered_shows(model: z3.ModelRef) -> str:
    def text(name: str, positive: Any, contains: Any) -> str:
        is_yes = z3.is_true(model.eval(positive, model_completion=True))
        is_in = z3.is_true(model.eval(contains, model_completion=True))
        kind = "sub" if is_yes else "usub"
        return f"{kind}({name}), the point {'in' if is_in else 'outside'} {name}"

    return f"{text('F', A_YES, A_IN)}; {text('G', B_YES, B_IN)}: the result depends on the order"


def _told(*, adding: bool, subscribing: bool) -> Any:
    """A sub or usub and an adv or uadv at one broker, in both orders: the same neighbours have it.

    `told` follows the rules of overlay.tables.routing: a subscription is forwarded where it reaches
    an advertisement, is attracted by one that it reaches only now, and is taken back when it
    reaches none any more.
    """
    ads = z3.DeclareSort("Ad")
    a = z3.Const("a", ads)
    new = z3.Const("new", ads)
    here = z3.Function("here", ads, z3.BoolSort())
    overlaps = z3.Function("overlaps_sub", ads, z3.BoolSort())
    was = z3.Exists([a], z3.And(here(a), overlaps(a)))
    then = z3.And(here(a), a != new) if not adding else z3.Or(here(a), a == new)
    now = z3.Exists([a], z3.And(then, overlaps(a)))

    def subscribe(reaches: Any, told: Any) -> Any:
        return reaches if subscribing else z3.BoolVal(False)

    def advertise(present: Any, told: Any) -> Any:
        attracted = z3.And(present, now, z3.Not(was))
        taken_back = z3.And(present, was, z3.Not(now))
        return z3.And(z3.Or(told, attracted), z3.Not(taken_back))

    there = z3.BoolVal(not subscribing)
    told = z3.And(there, was)
    sub_first = advertise(z3.BoolVal(subscribing), subscribe(was, told))
    adv_first = subscribe(now, advertise(there, told))
    return sub_first == adv_first


def undone(*, backwards: bool) -> Any:
    """sub(F) as 1 and usub(F) as 2, then their inverses: the table is what it was."""
    c = z3.Const("c", Client)
    number = z3.Int("number")
    none: Callable[[Any], Any] = lambda n: z3.BoolVal(False)  # noqa: E731

    def empty(client: Any, number: Any) -> Any:
        return z3.BoolVal(False)

    does = [
        NumberedChange(c, z3.IntVal(1), z3.BoolVal(True), none),
        NumberedChange(c, z3.IntVal(2), z3.BoolVal(False), lambda n: n == 1),
    ]
    undoes = [
        NumberedChange(c, z3.IntVal(1), z3.BoolVal(False), lambda n: n == 1),
        NumberedChange(c, z3.IntVal(1), z3.BoolVal(True), none),
    ]
    state: Table = empty
    for op in does + (undoes[::-1] if backwards else undoes):
        state = applied(state, op)
    return z3.Not(state(c, number))


LEMMAS: Final = (
    Lemma("different clients", "operations of two clients commute", True, different_clients),
    Lemma("operations of one client", "commute, being numbered", True, operations_of_one_client),
    Lemma("settling", "what settle drops is not needed", True, lambda: settling(holes=True)),
    Lemma("sub and adv", "commute", True, lambda: _told(adding=True, subscribing=True)),
    Lemma("sub and uadv", "commute", True, lambda: _told(adding=False, subscribing=True)),
    Lemma("usub and adv", "commute", True, lambda: _told(adding=True, subscribing=False)),
    Lemma("usub and uadv", "commute", True, lambda: _told(adding=False, subscribing=False)),
    Lemma("undoing backwards", "restores the table", True, lambda: undone(backwards=True)),
    Lemma(
        "settling without holes",
        "what settle drops is not needed: no, a part stays",
        False,
        lambda: settling(holes=False),
        lambda model: "sub(F), usub(G) with G a part of F: all of F stays",
    ),
    Lemma(
        "unnumbered operations of one client",
        "commute: no, the last to arrive decides",
        False,
        unnumbered,
        _unnumbered_shows,
    ),
    Lemma(
        "settled operations of one client",
        "commute: no, so a link must be FIFO",
        False,
        settled_of_one_client,
        lambda model: "usub(F) before sub(F): the broker is left subscribed",
    ),
    Lemma(
        "undoing forwards",
        "restores the table: no, a ghost is left",
        False,
        lambda: undone(backwards=False),
        lambda model: "sub(F), usub(F), and their inverses in that order: subscribed",
    ),
)


def prove(lemma: Lemma) -> tuple[bool, str]:
    """Whether a lemma holds, and its counterexample if it does not.

    Raises RuntimeError if Z3 cannot decide it.
    """
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(z3.Not(lemma.claim()))
    result = solver.check()
    if result == z3.unsat:
        return True, ""
    if result == z3.sat:
        return False, lemma.shows(solver.model())
    raise RuntimeError(f"Z3 cannot decide {lemma.name!r}: {solver.reason_unknown()}")
