"""All claims that solvers check: models by TLC, traces of the real engines by TLC, lemmas by Z3.

Each claim has an expected result. This module knows nothing of how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from proofs.solvers.models import MODELS, TLCModel
from proofs.solvers.models import run as run_model
from proofs.solvers.tlc import Checked

#: Seeds of the runs whose traces are validated. In odd runs of D-TX transactions conflict, in run
#: 10 one loses to a held plain operation, and every third run of S-TX is refused.
TRACE_SEEDS: Final = (1, 2, 3, 4, 10)

#: The run of each engine whose trace is corrupted; that of D-TX must have a stamped publication.
CORRUPTED_SEEDS: Final = {"D-TX": 2, "S-TX": 1}


class ProofClaim(NamedTuple):
    """A claim: who checks it, what it is, and the expected result."""

    kind: str
    what: str
    expected: str
    #: Returns the result and the number of states, 0 if there are none.
    find: Callable[[], tuple[str, int]]


class ClaimResult(NamedTuple):
    kind: str
    what: str
    expected: str
    found: str
    states: int
    seconds: float

    @property
    def as_expected(self) -> bool:
        return self.found == self.expected


def claims() -> list[ProofClaim]:
    """All claims, the longest first, so that two workers end at about the same time."""
    # Z3 and TLC come with the extra `proofs`.
    from proofs.solvers.convergence import LEMMAS, Lemma, prove
    from proofs.solvers.tlc import find_java_once, jar

    jar()
    find_java_once()
    listed = [_model(model) for model in MODELS]
    listed += _traces()
    for lemma in LEMMAS:

        def find(lemma: Lemma = lemma) -> tuple[str, int]:
            return ("holds" if prove(lemma)[0] else "fails"), 0

        expected = "holds" if lemma.holds else "fails"
        listed.append(ProofClaim("Z3", f"{lemma.name}: {lemma.claim_text}", expected, find))
    return listed


def _model(model: TLCModel) -> ProofClaim:
    def find() -> tuple[str, int]:
        checked = run_model(model)
        found = f"violates {checked.violated}" if checked.violated else "holds"
        return found, checked.distinct

    what = f"{model.text}: ends" if model.ends else model.text
    return ProofClaim(
        "TLC", what, f"violates {model.violates}" if model.violates else "holds", find
    )


def _traces() -> list[ProofClaim]:
    from proofs.solvers import dynamic_traces, static_traces

    def finder(validated: Callable[[], tuple[bool, Checked]]) -> Callable[[], tuple[str, int]]:
        def find() -> tuple[str, int]:
            accepted, checked = validated()
            return ("accepted" if accepted else "rejected"), checked.distinct

        return find

    listed: list[ProofClaim] = []
    for engine, of in (("D-TX", dynamic_traces), ("S-TX", static_traces)):
        for seed in TRACE_SEEDS:
            run = of.record(seed)
            lines = of.log(run)
            what = f"{engine} run {seed}, {len(lines)} messages"
            find = finder(partial(of.validate, run, lines))
            listed.append(ProofClaim("trace", what, "accepted", find))
            for name, wrong in (
                of.corruptions(lines).items() if seed == CORRUPTED_SEEDS[engine] else ()
            ):
                what = f"{engine} run {seed} with {name}"
                find = finder(partial(of.validate, run, wrong))
                listed.append(ProofClaim("trace", what, "rejected", find))
    return listed


def prove_all(listed: list[ProofClaim], jobs: int) -> Iterator[ClaimResult]:
    """Check claims, several at a time; yields the results in the order of the claims."""

    def one(claim: ProofClaim) -> ClaimResult:
        started = time.monotonic()
        found, states = claim.find()
        spent = time.monotonic() - started
        return ClaimResult(claim.kind, claim.what, claim.expected, found, states, spent)

    # Z3's global context serves one thread at a time.
    alone = [claim for claim in listed if claim.kind == "Z3"]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, [claim for claim in listed if claim.kind != "Z3"])
    yield from map(one, alone)
