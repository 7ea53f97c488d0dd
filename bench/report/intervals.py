"""Means with confidence intervals, and tests for differences, for the few values of repetitions.

The t distribution is used throughout, since repetitions are few; variances are never assumed to be
equal (Welch). This module knows numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from scipy.stats import t as student

CONFIDENCE: Final = 0.95


class ConfidenceInterval(NamedTuple):
    """A mean and its confidence interval, which a single value does not have."""

    mean: float
    low: float | None
    high: float | None
    size: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.3g} (one value, no interval)"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """The mean of independent values. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values to average")
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return ConfidenceInterval(mean, None, None, 1)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance / count)
    return ConfidenceInterval(mean, mean - half, mean + half, count)


class Sample(NamedTuple):
    """The number of some values, their mean and standard deviation."""

    size: int
    mean: float
    deviation: float

    @property
    def error2(self) -> float:
        return self.deviation**2 / self.size


def sample(values: Sequence[float]) -> Sample:
    count, mean = len(values), sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values)
    return Sample(count, mean, math.sqrt(spread / (count - 1)) if count > 1 else math.nan)


def share_lost(before: Sample, after: Sample) -> ConfidenceInterval:
    """The share by which the mean is lower after than before, with Welch's degrees of freedom.

    The interval is that of a quotient, to first order: means are far from 0 here.
    """
    quotient = after.mean / before.mean
    if min(before.size, after.size) < 2:
        return ConfidenceInterval(1 - quotient, None, None, after.size)
    one, other = after.error2 / before.mean**2, before.error2 * quotient**2 / before.mean**2
    total = one + other
    if not total:
        return ConfidenceInterval(1 - quotient, 1 - quotient, 1 - quotient, after.size)
    freedom = total**2 / (one**2 / (after.size - 1) + other**2 / (before.size - 1))
    half = float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(total)
    return ConfidenceInterval(1 - quotient, 1 - quotient - half, 1 - quotient + half, after.size)


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The probability of such a difference by chance; None if a side has one value."""
    if min(len(one), len(other)) < 2:
        return None
    a, b = sample(one), sample(other)
    total = a.error2 + b.error2
    if not total:
        return 1.0 if a.mean == b.mean else 0.0
    freedom = total**2 / (a.error2**2 / (a.size - 1) + b.error2**2 / (b.size - 1))
    return float(2 * student.sf(abs(a.mean - b.mean) / math.sqrt(total), freedom))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities, corrected for their number: of many comparisons some differ by chance."""
    order = sorted(range(len(probabilities)), key=lambda at: probabilities[at])
    corrected = [1.0] * len(probabilities)
    highest = 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * probabilities[at]))
        corrected[at] = highest
    return corrected
