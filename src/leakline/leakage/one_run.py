"""An audit from a single training run, for mechanisms too costly to repeat.

Each of m canaries is put in or left out by a fair coin; the auditor sees the output once, guesses r coins
and abstains on the rest; v guesses are right. For any mechanism: Steinke, Nasr, Jagielski, "Privacy auditing with one
(1) training run", NeurIPS 2023, Theorem 5.2 (`one_run_bound`). Where the promise is mu-GDP its whole trade-off curve
can be held against the guesses, which certifies far more: Mahloujifar, Melis, Chaudhuri, "Auditing f-differential
privacy in one run", 2024, Algorithm 3 (`one_run_mu_bound`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, ndtr, ndtri
from scipy.stats import binom

from .epsilon import EpsilonBound, MuBound
from .interval import check_confidence


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """Chance of at least so many right guesses if the run were (epsilon, delta)-DP under add-remove.

    p <= P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i,      W ~ Binomial(r, e^eps / (1 + e^eps))

    with i from 1 to m. Symbols: m canaries, r guesses, v correct.
    """
    m, r, v = canaries, guesses, correct
    _check_counts(m, r, v)
    if not 0 <= delta < 1 or not epsilon >= 0:
        raise ValueError(f"need epsilon >= 0 and delta in [0, 1), not {epsilon!r} and {delta!r}")
    if v == 0:
        return 1.0
    q = 1 / (1 + math.exp(-epsilon))
    p = float(bdtrc(v - 1, r, q))
    if delta > 0:
        i = np.arange(1, v + 1)  # beyond v the numerator stands still while the denominator grows
        below = np.where(i < v, bdtr(np.maximum(v - 1 - i, 0), r, q), 0.0)
        p += 2 * m * delta * float(np.max((bdtr(v - 1, r, q) - below) / i))
    return min(p, 1.0)


def one_run_bound(
    canaries: int, guesses: int, correct: int, delta: float = 0.0, confidence: float = 0.95
) -> EpsilonBound:
    """Lower bound on epsilon (add-remove of one canary) from one run: all smaller epsilons are rejected.

    How many guesses to make must not depend on how many of them are right. The point estimate is the
    log-odds of a right guess.
    """
    check_confidence(confidence)
    low = _largest_rejected(canaries, guesses, correct, delta, 1 - confidence)
    most = _largest_rejected(canaries, guesses, guesses, delta, 1 - confidence)
    wrong = guesses - correct
    point = math.inf if wrong == 0 < correct else math.log(correct / wrong) if correct > wrong else 0.0
    return EpsilonBound(point, low, confidence, "one run, binomial tail", guesses, most, delta)


def one_run_mu_bound(canaries: int, guesses: int, correct: int, confidence: float = 0.95) -> MuBound:
    """Lower bound on mu (add-remove of one canary) of a mu-GDP mechanism from one run.

    How many guesses to make must not depend on how many of them are right. `MuBound.epsilon` gives it at a delta.
    """
    check_confidence(confidence)
    _check_counts(canaries, guesses, correct)
    low = _largest_mu(canaries, guesses, correct, 1 - confidence)
    most = _largest_mu(canaries, guesses, guesses, 1 - confidence)
    share = correct / guesses if guesses else 0.5
    point = max(0.0, 2 * float(ndtri(share)))
    return MuBound(point, low, confidence, "one run, f-DP of a Gaussian", guesses, most)


Guessed = tuple[tuple[int, float], ...]
GUESSED: Guessed = ((2, 0.5), (4, 0.3), (8, 0.2))
"""Of how many canaries one is guessed, and the share of alpha for that: fixed before anything is seen."""


def one_run_mu_bound_from_scores(
    scores: npt.ArrayLike, present: npt.ArrayLike, confidence: float = 0.95, guessed: Guessed = GUESSED
) -> MuBound:
    """`one_run_mu_bound` of the most telling canaries, the highest scores guessed as present and the lowest as absent.

    By default half, a quarter and an eighth of the canaries are guessed, each at its share of alpha (`GUESSED`), so
    that the best of the three may be kept. To contradict a known promise, `best_guessed` is better.
    """
    bounds = [one_run_mu_bound(*counts, level) for counts, level in _guessed(scores, present, confidence, guessed)]
    most = max(bound.ceiling for bound in bounds)
    return replace(max(bounds, key=lambda bound: bound.low), confidence=confidence, ceiling=most)


def one_run_bound_from_scores(
    scores: npt.ArrayLike, present: npt.ArrayLike, delta: float = 0.0, confidence: float = 0.95
) -> EpsilonBound:
    """`one_run_bound` of the most telling canaries, guessed as in `one_run_mu_bound_from_scores`: for any mechanism."""
    bounds = [
        one_run_bound(*counts, delta=delta, confidence=level)
        for counts, level in _guessed(scores, present, confidence, GUESSED)
    ]
    most = max(bound.ceiling for bound in bounds)
    return replace(max(bounds, key=lambda bound: bound.low), confidence=confidence, ceiling=most)


def best_guessed(canaries: int, promised: float, confidence: float = 0.95) -> tuple[Guessed, float]:
    """How many canaries to guess if one mu is to be contradicted, and the smallest mu that this does 9 of 10 times.

    Known before anything is seen: it depends on the number of canaries, the promise and the confidence alone. The
    smallest mu may be infinite. Scores are taken as normal, mu apart.
    """
    least = {part: _smallest(canaries, part, promised, 1 - confidence) for part in (2, 4, 8, 16)}
    part = min(least, key=lambda each: least[each])
    return ((part, 1.0),), least[part]


def _smallest(m: int, part: int, promised: float, alpha: float) -> float:
    """The smallest mu that so many guesses contradict a promised one by, 9 of 10 times.

    Beyond the threshold that leaves half of the guesses on each side the share q of canaries is guessed right; the
    count of right guesses that is exceeded 9 of 10 times must refute the promise.
    """
    guesses, tail = 2 * (m // (2 * part)), 1 / (2 * part)

    def found(mu: float) -> bool:
        low, high = -40.0, 40.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if (ndtr(-middle) + ndtr(mu - middle)) / 2 > tail else (low, middle)
        q = min(float(ndtr(mu - low)) / (2 * tail), 1.0)
        return _rejects_mu(m, guesses, int(binom.ppf(0.1, guesses, q)), promised, alpha)

    if not guesses or not _rejects_mu(m, guesses, guesses, promised, alpha):
        return math.inf
    low = high = max(promised, 0.01)
    while not found(high):
        low, high = high, 1.25 * high
    while high - low > 0.002 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def _guessed(
    scores: npt.ArrayLike, present: npt.ArrayLike, confidence: float, guessed: Guessed
) -> Iterator[tuple[tuple[int, int, int], float]]:
    """Canaries, guesses and right guesses for each size of `GUESSED`, with the confidence that is its own."""
    s, y = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(present).astype(bool).ravel()
    order = np.argsort(s, kind="stable")
    for part, share in guessed:
        half = len(s) // (2 * part)
        correct = int(y[order[len(s) - half :]].sum() + (~y[order[:half]]).sum())
        yield (len(s), 2 * half, correct), 1 - share * (1 - confidence)


def _rejects_mu(m: int, r: int, v: int, mu: float, alpha: float) -> bool:
    """Whether v of r right guesses about m canaries have chance alpha or less under mu-GDP.

    If that chance were alpha, then starting from right_v = alpha v / m and wrong_v = alpha (r - v) / m,

        wrong_i = max(wrong_(i+1), Phi(Phi^-1(right_(i+1)) - mu))
        right_i = right_(i+1) + i / (r - i) (wrong_i - wrong_(i+1))             for i = v - 1, ..., 0

    bound from below the expected share of canaries guessed right and wrong; together they cannot exceed r / m.
    """
    right, wrong = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        least = float(ndtr(ndtri(right) - mu))
        if least <= wrong:
            break  # nothing moves from here on
        right, wrong = min(right + i / (r - i) * (least - wrong), 1.0), least
    return right + wrong > r / m


def _largest_mu(m: int, r: int, v: int, alpha: float) -> float:
    if v == 0 or not _rejects_mu(m, r, v, 0.0, alpha):
        return 0.0
    low, high = 0.0, 1.0
    while _rejects_mu(m, r, v, high, alpha):
        low, high = high, 2 * high
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _rejects_mu(m, r, v, middle, alpha) else (low, middle)
    return low


def _check_counts(m: int, r: int, v: int) -> None:
    if not 0 <= v <= r <= m or m < 1:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, not {v!r}, {r!r}, {m!r}")


def _largest_rejected(m: int, r: int, v: int, delta: float, alpha: float) -> float:
    """First epsilon at which p rises above alpha.

    p rises with epsilon but for its delta term, so the first crossing is looked for, not just any.
    """
    grid = np.linspace(0.0, math.log(r + 1) + 2 - math.log(alpha), 257)
    first = next((i for i, e in enumerate(grid) if one_run_p_value(m, r, v, float(e), delta) > alpha), None)
    if first == 0:
        return 0.0
    if first is None:
        return float(grid[-1])
    low, high = float(grid[first - 1]), float(grid[first])
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if one_run_p_value(m, r, v, middle, delta) <= alpha else (low, middle)
    return low
