"""How far two samples of scores lie apart if both are normal: an estimate of mu and epsilon, never a bound.

Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar, "One-shot empirical privacy estimation for federated learning", 2023
(arXiv:2302.03098): random canary clients, the cosine of each with what is published, a normal law for canaries that
were in and one for those that were not, epsilon of that pair.

Departs from the paper in the variance. A pair of normal laws with *different* variances has its epsilon decided by the
ratio of the variances far out in the tails, where delta is, and a hundred canaries estimate that ratio badly: samples
of one and the same Gaussian mechanism then give epsilons far above the truth. Noise that is added to a clipped sum does
not know who is in it, so both laws have one variance; it is pooled, mu is the standardised difference of the means, and
its interval that of a noncentral t. Where the variances plainly differ there is no such mechanism, and no estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, ndtri
from scipy.stats import f as f_law

from .interval import check_confidence

FEWEST = 25
"""Canaries of each kind below which nothing is estimated."""
APART = 1e-4
"""Variances that differ at this level are not taken for one; so rarely does a sound mechanism go without estimate."""


@dataclass(frozen=True)
class Apart:
    """The standardised difference of two means with its interval, if both laws are normal with one variance."""

    mu: float
    low: float
    high: float
    n: int
    confidence: float


def two_laws(scores: npt.ArrayLike, present: npt.ArrayLike, confidence: float = 0.95) -> Apart | str:
    """Estimate of mu from the scores of canaries that were in and that were not; or why there is none."""
    check_confidence(confidence)
    s, y = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(present).astype(bool).ravel()
    zero, one = s[~y], s[y]
    n0, n1 = len(zero), len(one)
    if min(n0, n1) < FEWEST:
        return f"{min(n0, n1)} canaries on one side: an estimate needs {FEWEST} on each"
    v0, v1 = float(zero.var(ddof=1)), float(one.var(ddof=1))
    if min(v0, v1) <= 0:
        return "the scores do not vary: there is no noise"
    ratio = v1 / v0
    p = 2 * min(f_law.cdf(ratio, n1 - 1, n0 - 1), f_law.sf(ratio, n1 - 1, n0 - 1))
    if p < APART:
        return f"canaries that were in vary {math.sqrt(ratio):.3g} times as much: not one normal law and its shift"
    freedom = n0 + n1 - 2
    spread = math.sqrt(((n0 - 1) * v0 + (n1 - 1) * v1) / freedom)
    distance = (float(one.mean()) - float(zero.mean())) / spread
    unbiased = math.exp(gammaln(freedom / 2) - gammaln((freedom - 1) / 2)) / math.sqrt(freedom / 2)  # Hedges 1981
    scale = math.sqrt(n0 * n1 / (n0 + n1))
    alpha = (1 - confidence) / 2
    low, high = (_shift(distance * scale, freedom, level) / scale for level in (1 - alpha, alpha))
    return Apart(max(0.0, distance * unbiased), max(0.0, low), max(0.0, high), len(s), confidence)


def _shift(t: float, freedom: int, level: float) -> float:
    """The noncentrality under which a noncentral t has P(T <= t) = level (Abramowitz and Stegun 26.7.10)."""
    return t * (1 - 1 / (4 * freedom)) - float(ndtri(level)) * math.sqrt(1 + t**2 / (2 * freedom))
