"""The jobs of a broker, one slice after the other."""

from __future__ import annotations

from overlay.broker.turns import WORK, Jobs
from overlay.effects import SetTimer


def test_a_job_is_there_once_and_the_first_one_asks_for_a_slice() -> None:
    jobs, one, other = Jobs(), [1], [1]
    assert jobs.again() == []
    assert jobs.add("d-tx", one) == [SetTimer(WORK, 0.0)]
    assert jobs.add("d-tx", one) == [] and len(jobs) == 1
    assert jobs.add("d-tx", other) == [] and len(jobs) == 2, "equal, and another one"
    assert jobs.add("s-tx", one) == [] and len(jobs) == 3, "of another engine"
    assert jobs.again() == [SetTimer(WORK, 0.0)]
    assert [jobs.next() for _ in range(3)] == [("d-tx", one), ("d-tx", other), ("s-tx", one)]
    assert not jobs and jobs.again() == []
