"""An audit from a single training run, for mechanisms too costly to repeat.

Each of m canaries is put in or left out by a fair coin; the auditor sees the output once, guesses r coins
and abstains on the rest; v guesses are right. Reference: Steinke, Nasr, Jagielski, "Privacy auditing with one
(1) training run", NeurIPS 2023, Theorem 5.2.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, bdtrc

from .epsilon import EpsilonBound
from .interval import check_confidence


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float = 0.0) -> float:
    """Chance of at least so many right guesses if the run were (epsilon, delta)-DP under add-remove.

    p <= P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i,      W ~ Binomial(r, e^eps / (1 + e^eps))

    with i from 1 to m. Symbols: m canaries, r guesses, v correct.
    """
    m, r, v = canaries, guesses, correct
    if not 0 <= v <= r <= m or m < 1:
        raise ValueError(f"need 0 <= correct <= guesses <= canaries, not {v!r}, {r!r}, {m!r}")
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
