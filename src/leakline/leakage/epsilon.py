"""How much epsilon an audit has proved: from the errors of a distinguisher to valid lower bounds.

A game is played many times in two worlds. A false positive is a trial of world 0 that was guessed 1, a false
negative a trial of world 1 guessed 0. If the mechanism is (epsilon, delta)-DP, every guessing rule has

    1 - FNR <= e^eps FPR + delta      and      1 - FPR <= e^eps FNR + delta.

Both inequalities need only upper limits of the two error rates, so alpha/2 for each rate covers both at once:
that is the Bonferroni correction used here. A rule must be fixed before the trials that judge it are seen; where a
threshold is still to be chosen, `leakline.leakage.ranks` bounds all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ..privacy.gdp import gdp_epsilon
from .interval import FloatArray, check_confidence, upper_rate


@dataclass(frozen=True)
class ErrorCounts:
    """The errors of one guessing rule: false positives among `negatives` trials of world 0, and so on."""

    false_positives: int
    negatives: int
    false_negatives: int
    positives: int

    def __post_init__(self) -> None:
        for k, n in ((self.false_positives, self.negatives), (self.false_negatives, self.positives)):
            if n < 1 or not 0 <= k <= n:
                raise ValueError(f"need 0 <= errors <= trials and a trial in each world, not {k!r} of {n!r}")

    @property
    def fpr(self) -> float:
        """Share of world 0 guessed 1."""
        return self.false_positives / self.negatives

    @property
    def fnr(self) -> float:
        """Share of world 1 guessed 0."""
        return self.false_negatives / self.positives

    @property
    def trials(self) -> int:
        """Trials in both worlds together."""
        return self.negatives + self.positives

    def upper(self, alpha: float) -> tuple[float, float]:
        """Upper limits of FPR and FNR that hold together with probability 1 - alpha."""
        fpr = upper_rate(self.false_positives, self.negatives, alpha / 2)
        fnr = upper_rate(self.false_negatives, self.positives, alpha / 2)
        return float(fpr), float(fnr)


@dataclass(frozen=True)
class EpsilonBound:
    """What an audit says of epsilon at `delta`: a point estimate and a lower bound at `confidence`.

    trials   trials that judged, of both worlds
    ceiling  largest bound these trials could have certified, had no guess been wrong
    """

    point: float
    low: float
    confidence: float
    method: str
    trials: int
    ceiling: float
    delta: float = 0.0

    @property
    def sample_limited(self) -> bool:
        """Whether the bound sits at its ceiling: more trials, not less leakage, would move it."""
        return self.low >= 0.9 * self.ceiling


@dataclass(frozen=True)
class MuBound:
    """What an audit says of mu, for mechanisms that claim mu-GDP; fields as in `EpsilonBound`."""

    point: float
    low: float
    confidence: float
    method: str
    trials: int
    ceiling: float

    def epsilon(self, delta: float) -> float:
        """Epsilon that a mu-GDP mechanism must have at `delta` if mu is at least `low`."""
        return gdp_epsilon(self.low, delta)


def count_errors(guesses: npt.ArrayLike, secrets: npt.ArrayLike) -> ErrorCounts:
    """Count the errors of 0/1 guesses of 0/1 secrets."""
    g, y = np.asarray(guesses).astype(bool).ravel(), np.asarray(secrets).astype(bool).ravel()
    if len(g) != len(y):
        raise ValueError(f"need as many guesses as secrets, not {len(g)} and {len(y)}")
    return ErrorCounts(int((g & ~y).sum()), int((~y).sum()), int((~g & y).sum()), int(y.sum()))


def pool(counts: Iterable[ErrorCounts]) -> ErrorCounts:
    """Add the counts of repeated audits of one rule; averaging their epsilons would not be a bound."""
    rows = [(c.false_positives, c.negatives, c.false_negatives, c.positives) for c in counts]
    if not rows:
        raise ValueError("nothing to pool")
    return ErrorCounts(*(sum(column) for column in zip(*rows, strict=True)))


def epsilon_of_rates(fpr: npt.ArrayLike, fnr: npt.ArrayLike, delta: float = 0.0) -> FloatArray:
    """Smallest epsilon >= 0 that allows these two error rates at delta.

    max(log((1 - FPR - delta)/FNR), log((1 - FNR - delta)/FPR), 0)      eq. (3) of paper 002 at delta = 0

    Departs from eq. (3) in never being negative. Infinite when a rate is 0.
    """
    p, n = np.asarray(fpr, dtype=np.float64), np.asarray(fnr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.log(np.maximum(1 - p - delta, 0.0)) - np.log(n)
        two = np.log(np.maximum(1 - n - delta, 0.0)) - np.log(p)
    return np.asarray(np.maximum(np.fmax(one, two), 0.0))


def point_epsilon(counts: ErrorCounts, delta: float = 0.0) -> float:
    """Eq. (3)'s estimate from raw rates. Biased upwards and not a bound: print it beside one, never alone."""
    return float(epsilon_of_rates(counts.fpr, counts.fnr, delta))


def lower_bound(counts: ErrorCounts, delta: float = 0.0, confidence: float = 0.95) -> EpsilonBound:
    """Lower bound on epsilon from exact limits of both rates (Jagielski et al. 2020): valid."""
    _check(delta, confidence)
    low = float(epsilon_of_rates(*counts.upper(1 - confidence), delta))
    return _bound(counts, low, delta, confidence, "Clopper-Pearson")


def mu_bound(counts: ErrorCounts, confidence: float = 0.95) -> MuBound:
    """Lower bound on mu of a mu-GDP mechanism: mu >= Phi^-1(1 - FPR) - Phi^-1(FNR) (Nasr et al. 2023).

    With exact upper limits of both rates, alpha/2 each.
    """
    check_confidence(confidence)
    low = max(0.0, float(mu_of_rates(*counts.upper(1 - confidence))))
    most = mu_ceiling(counts.negatives, confidence, counts.positives)
    point = max(0.0, float(mu_of_rates(counts.fpr, counts.fnr)))
    return MuBound(point, low, confidence, "mu-GDP, Clopper-Pearson", counts.trials, most)


def mu_of_rates(fpr: npt.ArrayLike, fnr: npt.ArrayLike) -> FloatArray:
    """The mu whose Gaussian trade-off passes through these error rates: Phi^-1(1 - FPR) - Phi^-1(FNR)."""
    x, y = -ndtri(np.asarray(fpr, dtype=np.float64)), ndtri(np.asarray(fnr, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(x - y, nan=0.0, posinf=math.inf, neginf=-math.inf))


def ceiling(n: int, delta: float = 0.0, confidence: float = 0.95, n1: int | None = None) -> float:
    """Largest epsilon that n trials per world (n1 in world 1, if given) can certify: with no guess wrong."""
    _check(delta, confidence)
    fpr, fnr = ErrorCounts(0, n, 0, n if n1 is None else n1).upper(1 - confidence)
    return float(epsilon_of_rates(fpr, fnr, delta))


def mu_ceiling(n: int, confidence: float = 0.95, n1: int | None = None) -> float:
    """Largest mu that n trials per world can certify."""
    check_confidence(confidence)
    fpr, fnr = ErrorCounts(0, n, 0, n if n1 is None else n1).upper(1 - confidence)
    return max(0.0, float(mu_of_rates(fpr, fnr)))


def trials_needed(epsilon: float, delta: float = 0.0, confidence: float = 0.95) -> int:
    """Fewest trials per world whose ceiling reaches epsilon: with fewer, it cannot be certified."""
    _check(delta, confidence)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be zero or more and finite, not {epsilon!r}")
    rate = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return max(1, math.ceil(math.log((1 - confidence) / 2) / math.log1p(-rate) - 1e-9))


def _bound(counts: ErrorCounts, low: float, delta: float, confidence: float, method: str) -> EpsilonBound:
    most = ceiling(counts.negatives, delta, confidence, counts.positives)
    return EpsilonBound(point_epsilon(counts, delta), low, confidence, method, counts.trials, most, delta)


def _check(delta: float, confidence: float) -> None:
    check_confidence(confidence)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")
