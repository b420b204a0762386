"""Tests that may be stopped at any time: bets against a promise, with money that a kept promise cannot multiply.

In each trial a fair coin b chooses the world and a score is seen. A promise bounds the chances p_b of any event,

    p1 <= e^eps p0 + delta        for every point (eps, delta) of its curve,

so X = [b = 1, event] - e^eps [b = 0, event] has a mean of at most delta / 2, and the wealth

    W_n = product of (1 + stake (X_i - delta / 2)),        0 <= stake < 1 / (e^eps + delta / 2),

does not grow on average while the promise is kept. P(W_n >= 1 / alpha for any n) <= alpha (Ville 1939): whoever
watches the wealth may stop whenever it suits (Shafer 2021; Waudby-Smith and Ramdas 2024). Several bettors, each made
for one size of violation and one side, share the money; their mean is such a wealth too. What bettors know of the
scores (where the two worlds lie, how wide) comes from trials before those they bet on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from .interval import FloatArray

CALIBRATION = 60
"""First trials, on which nobody bets: they say where scores lie."""
VIOLATIONS = (1.1, 1.25, 1.5, 2.0, 4.0)
"""Each bettor expects a mu (or epsilon) so many times the promised one."""
GRID, FIRST = 1.05, 1 / 8
"""Steps of the lower bound, and where it begins, as a share of the promise."""


@dataclass(frozen=True)
class Bettor:
    """Bets on scores beyond ``place`` standard deviations from one world's middle, towards the other."""

    place: float
    epsilon: float
    delta: float
    stake: float

    def log_factors(self, beyond: FloatArray, towards: npt.NDArray[np.bool_]) -> FloatArray:
        """What each trial does to the logarithm of its wealth; ``towards``: the coin was that of the world beyond."""
        won = (beyond > self.place) * np.where(towards, 1.0, -math.exp(self.epsilon))
        return np.asarray(np.log1p(self.stake * (won - self.delta / 2)))


@lru_cache(maxsize=4096)
def bettors(kind: str, promised: float) -> tuple[Bettor, ...]:
    """Who bets against a promise of mu ("mu") or of pure epsilon ("pure"), one for each size of violation."""
    made = [_made(kind, promised, times)[0] for times in VIOLATIONS]
    return tuple(dict.fromkeys(made))


def log_wealth(
    scores: npt.ArrayLike, ones: npt.ArrayLike, kind: str, promised: float, skip: int = CALIBRATION
) -> FloatArray:
    """The logarithm of the bettors' wealth after every trial beyond the first ``skip``.

    ``ones`` are the coins. Under "pure" a score's sign is the guess; under "mu" scores are read in standard deviations.
    """
    s, y = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(ones).astype(bool).ravel()
    if len(s) <= skip or not 0 < promised < math.inf:
        return np.zeros(0)
    up, down = _beyond(s, y, kind, skip)
    paths = [
        np.cumsum(bettor.log_factors(beyond, towards))
        for bettor in bettors(kind, promised)
        for beyond, towards in ((up, y[skip:]), (down, ~y[skip:]))
    ]
    return np.asarray(np.logaddexp.reduce(paths, axis=0) - math.log(len(paths)))


def refuted_after(path: FloatArray, alpha: float) -> int | None:
    """After how many trials on which was bet the promise is refuted; None if it is not."""
    above = np.nonzero(path >= -math.log(alpha))[0]
    return int(above[0]) + 1 if len(above) else None


def lower_bound_so_far(scores: npt.ArrayLike, ones: npt.ArrayLike, kind: str, promised: float, alpha: float) -> float:
    """A lower bound on mu (or pure epsilon) that holds whenever one stops: all smaller ones on a grid are refuted."""
    low, value = 0.0, FIRST * promised
    while value <= 16 * promised and refuted_after(log_wealth(scores, ones, kind, value), alpha) is not None:
        low, value = value, value * GRID
    return low


def trials_to_find(kind: str, promised: float, times: float, alpha: float) -> float:
    """So many trials refute a promise that is broken ``times`` over, 9 of 10 times, if scores are normal."""
    bettor, grown, spread = _made(kind, promised, times)
    if grown <= 0:
        return math.inf
    need = math.log(len(VIOLATIONS) / alpha)  # the best bettor of each side has a share of the money
    root = (1.2816 * spread + math.sqrt((1.2816 * spread) ** 2 + 4 * grown * need)) / (2 * grown)
    return CALIBRATION + root**2


def smallest_found(kind: str, promised: float, trials: int, alpha: float) -> float:
    """The smallest violation that so many trials find 9 of 10 times: as a multiple of the promise, or infinite."""
    times = 1.0
    while times < 8.0:
        times *= 1.01
        if trials_to_find(kind, promised, times, alpha) <= trials:
            return times
    return math.inf


def _beyond(s: FloatArray, y: npt.NDArray[np.bool_], kind: str, skip: int) -> tuple[FloatArray, FloatArray]:
    """Scores as seen from world 0 towards world 1, and the other way round, in standard deviations."""
    if kind == "pure":
        return s[skip:], -s[skip:]
    first, coins = s[:skip], y[:skip]
    zero, one = first[~coins], first[coins]
    if min(len(zero), len(one)) < 2:
        return np.full(len(s) - skip, -np.inf), np.full(len(s) - skip, -np.inf)  # nobody bets
    spread = math.sqrt((zero.var(ddof=1) + one.var(ddof=1)) / 2) or 1.0
    return (s[skip:] - zero.mean()) / spread, (one.mean() - s[skip:]) / spread


@lru_cache(maxsize=65536)
def _made(kind: str, promised: float, times: float) -> tuple[Bettor, float, float]:
    """The bettor whose wealth grows fastest if the truth is ``times`` the promise; mean and spread of its growth."""
    if kind == "pure":
        places, p0 = np.zeros(1), np.array([1 / (1 + math.exp(min(times * promised, 700.0)))])
        p1, slope, delta = 1 - p0, np.array([math.exp(min(promised, 700.0))]), np.zeros(1)
    else:
        places = np.linspace(-1.0, 6.0, 71) + promised * (times - 1) / 2
        p0, p1 = ndtr(-places), ndtr(times * promised - places)
        log_slope = np.minimum(promised * places - promised**2 / 2, 700.0)
        slope = np.exp(log_slope)
        delta = np.maximum(ndtr(promised - places) - slope * ndtr(-places), 0.0)
    stakes = np.linspace(0.002, 0.98, 120)[:, None] / (slope + delta / 2)
    chances = (p1 / 2, p0 / 2, 1 - (p0 + p1) / 2)
    logs = [np.log1p(stakes * (won - delta / 2)) for won in (1.0, -slope, 0.0)]
    growth = sum(c * x for c, x in zip(chances, logs, strict=True))
    row, column = np.unravel_index(int(np.argmax(growth)), growth.shape)
    mean = float(growth[row, column])
    square = float(sum(c[column] * x[row, column] ** 2 for c, x in zip(chances, logs, strict=True)))
    chosen = Bettor(
        float(places[column]), math.log(float(slope[column])), float(delta[column]), float(stakes[row, column])
    )
    return chosen, mean, math.sqrt(max(square - mean**2, 0.0))
