"""A measured number with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, stdtrit

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A point estimate, the interval around it, what it was computed on, and how.

    n is the number of independent pieces of evidence: trials, examples, or users when they were resampled.
    """

    value: float
    low: float
    high: float
    n: int
    method: str
    confidence: float = 0.95

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] (n = {self.n}, {self.method})"


def upper_rate(k: npt.ArrayLike, n: npt.ArrayLike, alpha: float) -> FloatArray:
    """Exact upper limit of a rate after k hits in n trials: the truth exceeds it with chance <= alpha."""
    hits, trials = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    inner = betaincinv(hits + 1, np.maximum(trials - hits, 1e-300), 1 - alpha)
    return np.asarray(np.where(hits >= trials, 1.0, inner))


def lower_rate(k: npt.ArrayLike, n: npt.ArrayLike, alpha: float) -> FloatArray:
    """Exact lower limit of a rate after k hits in n trials."""
    hits, trials = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    return 1 - upper_rate(trials - hits, trials, alpha)


def clopper_pearson(k: int, n: int, alpha: float = 0.05) -> Interval:
    """Exact two-sided interval of a rate after k hits in n trials, alpha/2 per side."""
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"need 0 <= k <= n and n >= 1, not k = {k!r}, n = {n!r}")
    check_confidence(1 - alpha)
    low, high = float(lower_rate(k, n, alpha / 2)), float(upper_rate(k, n, alpha / 2))
    return Interval(k / n, low, high, n, "Clopper-Pearson", 1 - alpha)


def mean_interval(
    values: npt.ArrayLike, weights: npt.ArrayLike | None = None, confidence: float = 0.95, of: str = "values"
) -> Interval:
    """(Weighted) mean of independent values with Student's interval; of one value, the value itself.

    With weights w the variance is n / (n - 1) sum w_i^2 (x_i - mean)^2 / (sum w_i)^2, which for equal ones is s^2 / n.
    """
    check_confidence(confidence)
    x = np.asarray(values, dtype=np.float64).ravel()
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    if not len(x) or len(w) != len(x):
        raise ValueError(f"at least one value, and as many weights, are needed; got {len(x)} and {len(w)}")
    n, mean = len(x), float(np.average(x, weights=w))
    half = 0.0
    if n > 1 and np.isfinite(mean):
        variance = n / (n - 1) * float((w**2 * (x - mean) ** 2).sum()) / float(w.sum()) ** 2
        half = float(stdtrit(n - 1, (1 + confidence) / 2)) * variance**0.5
    return Interval(mean, mean - half, mean + half, n, f"t over {of}", confidence)


def check_confidence(confidence: float) -> None:
    """Refuse a confidence level outside (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), not {confidence!r}")
