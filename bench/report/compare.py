"""The differences between two experiments that are larger than noise.

Points that both have are compared, by latency and by throughput, over repetitions (Welch's test).
With many points some would differ by chance, so probabilities are corrected for their number
(Holm). With one repetition on a side, noise is unknown, and the verdict says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.report.intervals import ConfidenceInterval, holm, interval, welch

if TYPE_CHECKING:
    import pandas as pd

    from bench.report.results import Results

#: A difference that is less probable by chance than this counts as a change.
LEVEL: Final = 0.05

VALUES: Final = {
    "latency_ms_mean": "latency ms",
    "throughput_per_s": "transactions/s",
}

#: The key of a point; the engine is part of `series`.
POINT: Final = (
    "experiment",
    "series",
    "topology",
    "concurrency",
    "clients",
    "variant",
    "delay_ms",
    "client_delay_ms",
)

CHANGED, SAME, UNKNOWN = "changed", "within noise", "unknown: one repetition"


class Difference(NamedTuple):
    """One value of one point in both experiments."""

    point: dict[str, Any]
    value: str
    one: ConfidenceInterval
    other: ConfidenceInterval
    #: The mean of the second, divided by that of the first.
    ratio: float
    #: Corrected for the number of comparisons.
    probability: float | None
    verdict: str

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        fields = self._asdict()
        return fields | {"one": self.one._asdict(), "other": self.other._asdict()}


class Comparison(NamedTuple):
    differences: list[Difference]
    #: Points that only one of the two has.
    only_one: list[dict[str, Any]]
    only_other: list[dict[str, Any]]

    @property
    def changed(self) -> list[Difference]:
        return [each for each in self.differences if each.verdict == CHANGED]


def compare(one: Results, other: Results) -> Comparison:
    """Compare point by point, in the order of the first."""
    ours, theirs = _points(one.runs), _points(other.runs)
    found: list[tuple[dict[str, Any], str, list[float], list[float]]] = []
    for key in ours:
        if key in theirs:
            for value in VALUES:
                a, b = _numbers(ours[key], value), _numbers(theirs[key], value)
                if a and b and interval(a).mean:
                    found.append((dict(zip(POINT, key, strict=True)), value, a, b))
    raw = [welch(a, b) for _, _, a, b in found]
    corrections = iter(holm([p for p in raw if p is not None]))
    differences: list[Difference] = []
    for (point, value, a, b), probability in zip(found, raw, strict=True):
        corrected = None if probability is None else next(corrections)
        verdict = UNKNOWN
        if corrected is not None:
            verdict = CHANGED if corrected < LEVEL else SAME
        left, right = interval(a), interval(b)
        ratio = right.mean / left.mean
        differences.append(Difference(point, value, left, right, ratio, corrected, verdict))
    return Comparison(
        differences,
        [dict(zip(POINT, key, strict=True)) for key in ours if key not in theirs],
        [dict(zip(POINT, key, strict=True)) for key in theirs if key not in ours],
    )


def _points(runs: pd.DataFrame) -> dict[tuple[Any, ...], pd.DataFrame]:
    return {tuple(key): rows for key, rows in runs.groupby(list(POINT), sort=True)}


def _numbers(rows: pd.DataFrame, value: str) -> list[float]:
    return [float(number) for number in rows.sort_values("repetition")[value].dropna()]
