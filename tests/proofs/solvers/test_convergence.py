"""The lemmas on which convergence rests, and those that are expected to fail."""

import pytest

z3 = pytest.importorskip("z3", reason="z3-solver comes with the extra `proofs`")

from proofs.solvers.convergence import LEMMAS, Lemma, prove  # noqa: E402


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.name.replace(" ", "-"))
def test_a_lemma_holds_or_fails_as_expected(lemma: Lemma) -> None:
    holds, counterexample = prove(lemma)
    assert holds == lemma.holds
    assert bool(counterexample) != holds


def test_without_numbers_two_orders_of_a_yes_and_a_no_differ() -> None:
    lemma = next(lemma for lemma in LEMMAS if lemma.name.startswith("unnumbered"))
    _, counterexample = prove(lemma)
    assert "sub(" in counterexample and "usub(" in counterexample
    assert counterexample.count("the point in") == 2
