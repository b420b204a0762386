"""Means over seeds with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakline.measures import Measure


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its standard deviation and 95 % t-interval; with one seed, only the mean."""

    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 1

    def within(self, least: float, most: float) -> Estimate:
        """The same with its interval cut: a t-interval of few seeds may leave the range that the truth cannot."""
        if self.low is None or self.high is None:
            return self
        return replace(self, low=max(self.low, least), high=min(self.high, most))

    def wider(self, other: Estimate | None) -> Estimate:
        """The same with an interval that reaches as far as this one's or another's: two things vary."""
        if other is None or self.low is None or self.high is None or other.low is None or other.high is None:
            return self
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, standard deviation (n - 1) and 95 % t-interval of independent values; None without values."""
    kept = [float(v) for v in values if not math.isnan(v)]
    if not kept:
        return None
    n, mean = len(kept), sum(kept) / len(kept)
    if n == 1:
        return Estimate(mean)
    from scipy.special import stdtrit

    sd = math.sqrt(sum((v - mean) ** 2 for v in kept) / (n - 1)) if math.isfinite(mean) else math.nan
    half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
    return Estimate(mean, sd, mean - half, mean + half, n)


def over_seeds(measure: Measure, values: Sequence[float]) -> Estimate | None:
    """`estimate` of a measure's values, with its interval cut to the measure's range."""
    pooled = estimate(values)
    return None if pooled is None else pooled.within(measure.low, measure.high)
