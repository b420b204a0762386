"""Lower bounds from scores, with the threshold chosen after looking and nothing lost by splitting the trials.

A threshold at the k-th largest of the n scores of one world is random, but its rate of false alarms in that world has
a known law: U ~ Beta(k, n - k + 1) (a little less under ties). The m trials of the other world are independent of it.
If the mechanism is f-DP, each of them lies above the threshold with probability at most 1 - f(U), so the chance of x
or more of them is at most

    p = P(V <= 1 - f(U)),      V ~ Beta(x, m - x + 1), independent of U,

an exact p-value without a nuisance rate: no share of alpha is spent on limits of two rates. Both worlds take the
first part, and the ranks 1, 2, 4, ... up to half of the trials are all tried, with weights that were fixed before:
a quarter of alpha/2 for k = 1, the rest evenly. By the union bound the largest epsilon (or mu) that any of them
rejects is a lower bound at the stated confidence. Why the ranks double: at neighbouring ones nothing else is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, ndtr, ndtri

from .epsilon import EpsilonBound, MuBound, epsilon_of_rates, mu_of_rates
from .interval import FloatArray, check_confidence

FIRST = 0.25
"""The share of alpha for the most extreme threshold: what a mechanism without noise is convicted by."""
MOST_EPSILON, MOST_MU = 50.0, 40.0
"""Beyond these no number of trials that fits into memory certifies anything."""
CELLS, TOLERANCE = 200, 1e-5

TradeOff = Callable[[float, FloatArray], FloatArray]
"""1 - f(u) under a hypothesis (its epsilon or mu), at rates u of false alarms."""


@dataclass(frozen=True)
class _Side:
    """Thresholds at ranks k of a world with n trials; x of the m trials of the other world lie beyond each."""

    k: FloatArray
    n: int
    x: FloatArray
    m: int

    def best(self, alpha: float, curve: TradeOff, most: float) -> tuple[float, int]:
        """The largest parameter in [0, most] that any threshold rejects at its share of alpha (0: none), and which."""
        share = np.full(len(self.k), (1 - FIRST) / max(len(self.k) - 1, 1))
        share[0] = FIRST if len(self.k) > 1 else 1.0
        u, chance = _laws(self.n)

        def rejecting(rows: npt.NDArray[np.intp], parameter: float) -> npt.NDArray[np.intp]:
            a, b = self.x[rows, None], self.m - self.x[rows, None] + 1
            p = betainc(a, b, curve(parameter, u[rows])) @ chance
            return np.asarray(rows[p <= alpha * share[rows]])

        left = rejecting(np.flatnonzero(self.x), 0.0)
        if not len(left):
            return 0.0, int(np.argmax(self.x / self.m - self.k / self.n))
        low, high, bounded = 0.0, most, False
        while high - low > TOLERANCE:
            middle = (low + high) / 2 if bounded else min(2 * low + 0.25, (low + high) / 2)
            ahead = rejecting(left, middle)  # p rises with the parameter: who fails here cannot be the best
            low, high, left = (middle, high, ahead) if len(ahead) else (low, middle, left)
            bounded = bounded or not len(ahead)
        return low, int(left[0])


def lower_bound_from_scores(
    scores0: npt.ArrayLike,
    scores1: npt.ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.95,
    *,
    rng: np.random.Generator,
) -> EpsilonBound:
    """Lower bound on epsilon at delta from the scores of both worlds, higher meaning world 1; `rng` breaks ties."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), not {delta!r}")
    sides = _sides(scores0, scores1, rng)
    low, fpr, fnr = _best(sides, confidence, partial(_approximate, delta), MOST_EPSILON)
    most = _ceiling(sides[0].n, sides[1].n, confidence, delta)
    point = float(epsilon_of_rates(fpr, fnr, delta))
    return EpsilonBound(point, low, confidence, _method(sides), sides[0].n + sides[0].m, most, delta)


def mu_bound_from_scores(
    scores0: npt.ArrayLike, scores1: npt.ArrayLike, confidence: float = 0.95, *, rng: np.random.Generator
) -> MuBound:
    """Lower bound on mu of a mu-GDP mechanism from scores; `rng` breaks ties."""
    sides = _sides(scores0, scores1, rng)
    low, fpr, fnr = _best(sides, confidence, _gaussian, MOST_MU)
    most = _ceiling(sides[0].n, sides[1].n, confidence, None)
    point = max(0.0, float(mu_of_rates(fpr, fnr)))
    return MuBound(point, low, confidence, f"mu-GDP, {_method(sides)}", sides[0].n + sides[0].m, most)


def _approximate(delta: float, epsilon: float, u: FloatArray) -> FloatArray:
    """1 - f(u) = min(e^eps u + delta, 1 - e^-eps (1 - delta - u), 1)."""
    grown = np.minimum(math.exp(epsilon) * u + delta, 1.0)
    return np.asarray(np.minimum(grown, 1 - math.exp(-epsilon) * np.maximum(1 - delta - u, 0.0)))


def _gaussian(mu: float, u: FloatArray) -> FloatArray:
    """1 - f(u) = Phi(Phi^-1(u) + mu)."""
    return np.asarray(ndtr(ndtri(u) + mu))


@lru_cache(maxsize=256)
def _ceiling(n0: int, n1: int, confidence: float, delta: float | None) -> float:
    """What so many trials certify if no guess is wrong: of epsilon at delta, or (None) of mu."""
    sides = _sides(np.zeros(n0), np.ones(n1), np.random.default_rng(0))
    if delta is None:
        return _best(sides, confidence, _gaussian, MOST_MU)[0]
    return _best(sides, confidence, partial(_approximate, delta), MOST_EPSILON)[0]


def _method(sides: tuple[_Side, _Side]) -> str:
    return f"exact at {sum(len(side.k) for side in sides)} ranks"


def _best(sides: tuple[_Side, _Side], confidence: float, curve: TradeOff, most: float) -> tuple[float, float, float]:
    """The largest bound, and the raw error rates (false alarms, misses) of the threshold that gave it."""
    check_confidence(confidence)
    bounds = []
    for flipped, side in enumerate(sides):
        low, i = side.best((1 - confidence) / 2, curve, most)
        rates = (float(side.k[i] / side.n), float(1 - side.x[i] / side.m))
        bounds.append((low, *(rates[::-1] if flipped else rates)))
    return max(bounds)


def _sides(scores0: npt.ArrayLike, scores1: npt.ArrayLike, rng: np.random.Generator) -> tuple[_Side, _Side]:
    zero, one = (np.asarray(scores, dtype=np.float64).ravel() for scores in (scores0, scores1))
    for scores in (zero, one):
        if len(scores) < 2 or np.isnan(scores).any():
            raise ValueError(f"need at least 2 scores per world and none of them nan, not {scores[:5]!r}...")
    both = np.r_[zero, one]
    place = np.empty(len(both))
    place[np.lexsort((rng.random(len(both)), both))] = np.arange(len(both))
    a, b = np.sort(place[: len(zero)]), np.sort(place[len(zero) :])
    k0, k1 = _ranks(len(a)), _ranks(len(b))
    above = len(b) - np.searchsorted(b, a[len(a) - k0])
    below = np.searchsorted(a, b[k1 - 1])
    return (
        _Side(k0.astype(np.float64), len(a), above.astype(np.float64), len(b)),
        _Side(k1.astype(np.float64), len(b), below.astype(np.float64), len(a)),
    )


def _ranks(n: int) -> npt.NDArray[np.intp]:
    return 2 ** np.arange(max(1, int(np.log2(n))))


@lru_cache(maxsize=16)
def _laws(n: int) -> tuple[FloatArray, FloatArray]:
    """Beta(k, n - k + 1) for all ranks k in cells: a row of upper ends for each k, and the cells' chances.

    Taking every U as its cell's upper end makes p a little larger than it is, never smaller.
    """
    k = _ranks(n)[:, None].astype(np.float64)
    edges = ndtr(np.linspace(-6.4, 6.4, CELLS))
    upper = np.append(betaincinv(k, n - k + 1, edges), np.ones_like(k), axis=1)
    return upper, np.diff(edges, prepend=0.0, append=1.0)
