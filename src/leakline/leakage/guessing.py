"""How well guesses match secrets: ROC, AUC, accuracy, advantage, and how sure one can be.

A secret is what the examiner knows and the attacker guesses; a score is higher when the attacker believes in
secret 1. Every number comes with an interval; where rows of one user hang together, users are the units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtrc, expit, ndtri, stdtrit

from .interval import FloatArray, Interval, check_confidence, clopper_pearson, lower_rate, upper_rate

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]
Statistic = Callable[[FloatArray, BoolArray], float]
QUOTED_FPRS = (0.01, 0.1)
"""The rates of false positives that people quote: every attack by scores writes them."""
CURVE_FPRS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Where a ROC is kept, so that it can be drawn when the scores are gone."""

FEWEST_TO_TELL = math.ceil(math.log(0.025) / math.log(0.5))
"""Fewest ones, and zeros, whose AUC of 1 excludes 1/2 at 95 %: 0.025^(1/n) > 1/2."""


@dataclass(frozen=True, eq=False)
class Roc:
    """The curve of every threshold: guess 1 where score >= thresholds[i]; runs from (0, 0) to (1, 1)."""

    fpr: FloatArray
    tpr: FloatArray
    thresholds: FloatArray


def roc(scores: npt.ArrayLike, secrets: npt.ArrayLike) -> Roc:
    """Receiver operating characteristic; tied scores move the curve in one step."""
    s, y = _pair(scores, secrets)
    order = np.argsort(-s, kind="stable")
    s, y = s[order], y[order]
    last = np.r_[np.flatnonzero(np.diff(s)), len(s) - 1]
    hits, alarms = np.cumsum(y)[last], np.cumsum(~y)[last]
    return Roc(np.r_[0.0, alarms / alarms[-1]], np.r_[0.0, hits / hits[-1]], np.r_[np.inf, s[last]])


def auc(scores: npt.ArrayLike, secrets: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Area under the ROC: P(score of a random 1 > score of a random 0), ties counting half.

    The interval holds both of two: DeLong et al. (1988) with the variance's t-quantile on the logit scale, which
    follows the scores' own spread, and Newcombe's (2006, method 5), which inverts a test and so stays honest near 0 and
    1 where the first takes its variance from a handful of pairs. When all pairs agree it rests on m = min(n0, n1)
    disjoint pairs that all agree, whose chance is AUC^m.
    """
    check_confidence(confidence)
    s, y = _pair(scores, secrets)
    positive, negative = s[y], s[~y]
    n, fewest = len(s), min(int(y.sum()), int((~y).sum()))
    value, above, below = _placements(positive, negative)
    if value in (0.0, 1.0):
        edge = ((1 - confidence) / 2) ** (1 / fewest)
        low, high = (edge, 1.0) if value == 1 else (0.0, 1 - edge)
        return Interval(value, low, high, n, "disjoint pairs", confidence)
    if fewest < 2:
        return Interval(value, 0.0, 1.0, n, "too few to say", confidence)
    std = float(np.sqrt(above.var(ddof=1) / len(positive) + below.var(ddof=1) / len(negative)))
    low, high = logit_interval(value, std, fewest - 1, confidence)
    least, most = newcombe_auc(value, len(positive), len(negative), confidence)
    return Interval(value, min(low, least), max(high, most), n, "DeLong and Newcombe", confidence)


def logit_interval(value: float, std: float, freedom: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a share in (0, 1) with this standard error, symmetric in its log-odds, by Student's t."""
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * std / (value * (1 - value))
    low, high = expit(np.array([-reach, reach]) + math.log(value / (1 - value)))
    return float(low), float(high)


def newcombe_auc(value: float, ones: float, zeros: float, confidence: float = 0.95) -> tuple[float, float]:
    """Newcombe (2006), method 5: all A with |value - A| <= z sqrt(V(A)).

    V(A) = A (1 - A) [1 + (N - 1) ((1 - A)/(2 - A) + A/(1 + A))] / (n1 n0), Hanley and McNeil's (1982) with both
    sizes in the bracket replaced by their mean N, whatever the law of the scores.
    """
    z, mean = float(ndtri((1 + confidence) / 2)), (ones + zeros) / 2

    def inside(area: float) -> bool:
        spread = 1 + (mean - 1) * ((1 - area) / (2 - area) + area / (1 + area))
        return (value - area) ** 2 <= z**2 * area * (1 - area) * spread / (ones * zeros)

    return _end(inside, value, 0.0), _end(inside, value, 1.0)


def _end(inside: Callable[[float], bool], start: float, end: float) -> float:
    """The last point on the way from start to end that lies inside."""
    for _ in range(40):
        middle = (start + end) / 2
        start, end = (middle, end) if inside(middle) else (start, middle)
    return end


def balanced_accuracy(guesses: npt.ArrayLike, secrets: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean over the secret's values of the share guessed right; chance is 1 / number of values.

    Interval: exact limits of each share, combined by square-and-add (Newcombe 1998; Zou and Donner 2008).
    """
    check_confidence(confidence)
    g, y = np.asarray(guesses).ravel(), np.asarray(secrets).ravel()
    if len(g) != len(y) or len(y) == 0:
        raise ValueError(f"need as many guesses as secrets, and some, not {len(g)} and {len(y)}")
    shares = [
        clopper_pearson(int((g[y == value] == value).sum()), int((y == value).sum()), 1 - confidence)
        for value in np.unique(y)
    ]
    mean = float(np.mean([share.value for share in shares]))
    down = float(np.sqrt(sum((share.value - share.low) ** 2 for share in shares))) / len(shares)
    up = float(np.sqrt(sum((share.high - share.value) ** 2 for share in shares))) / len(shares)
    method = "square-and-add Clopper-Pearson"
    return Interval(mean, max(0.0, mean - down), min(1.0, mean + up), len(y), method, confidence)


def advantage(guesses: npt.ArrayLike, secrets: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """TPR - FPR of yes-or-no guesses = 2 balanced accuracy - 1; compare with `Guarantee.advantage`."""
    g, y = _pair(guesses, secrets)
    half = balanced_accuracy(g > 0, y, confidence)
    return Interval(2 * half.value - 1, 2 * half.low - 1, 2 * half.high - 1, half.n, half.method, confidence)


def best_threshold(scores: npt.ArrayLike, secrets: npt.ArrayLike) -> float:
    """Threshold with the largest TPR - FPR (Youden). Choose it on other data than it is judged on."""
    curve = roc(scores, secrets)
    return float(curve.thresholds[int(np.argmax(curve.tpr - curve.fpr))])


def tpr_at_fpr(
    scores: npt.ArrayLike, secrets: npt.ArrayLike, fpr: float, confidence: float = 0.95, copies: int = 1
) -> Interval:
    """Share of ones found at the lowest threshold that flags at most a share `fpr` of zeros.

    The threshold is itself a guess: that of the k-th largest of n zeros has rate Beta(k, n - k + 1). With alpha/4 for
    each statement, the k with P(Bin(n, fpr) < k) <= alpha/4 lies above the right threshold and the k with
    P(Bin(n, fpr) >= k) <= alpha/4 below it; the ones beyond each are independent of the zeros and have exact
    limits. With fewer than 1/fpr zeros the value is the share above all of them, and the lower limit is 0 until there
    are about 4.4/fpr (95 %): so few zeros do not say where the threshold is. ``copies``: how often each unit occurs
    (in as many worlds); the evidence is that of one.
    """
    if not 0 <= fpr <= 1:
        raise ValueError(f"fpr must lie in [0, 1], not {fpr!r}")
    check_confidence(confidence)
    s, y = _pair(scores, secrets)
    curve = roc(s, y)
    value = float(curve.tpr[curve.fpr <= fpr + 1e-12].max())
    ones, zeros = np.sort(s[y]), np.sort(s[~y])[::-1]
    n, m, alpha = len(zeros) // copies, len(ones) / copies, (1 - confidence) / 4
    k = np.arange(1, n + 1)
    sure_above = k[bdtr(k - 1, n, fpr) <= alpha]
    sure_below = k[bdtrc(k - 1, n, fpr) <= alpha]
    low, high = 0.0, 1.0
    if len(sure_above):
        beyond = len(ones) - np.searchsorted(ones, zeros[copies * sure_above[-1] - 1], side="right")
        low = float(lower_rate(beyond / copies, m, alpha))
    if len(sure_below) and fpr < 1:
        beyond = len(ones) - np.searchsorted(ones, zeros[copies * sure_below[0] - 1], side="left")
        high = float(upper_rate(beyond / copies, m, alpha))
    return Interval(value, min(low, value), max(high, value), round(m), "ranks and Clopper-Pearson", confidence)


def tpr_at_fprs(
    scores: npt.ArrayLike, secrets: npt.ArrayLike, confidence: float = 0.95, copies: int = 1
) -> dict[float, Interval]:
    """`tpr_at_fpr` at the quoted rates, and at those of `CURVE_FPRS` that so many zeros can resolve.

    n zeros resolve rates from 1/n up: below, every rate gives the share above all of them.
    """
    _, y = _pair(scores, secrets)
    zeros = int((~y).sum())
    kept = [fpr for fpr in CURVE_FPRS if fpr in QUOTED_FPRS or fpr * zeros >= 1 - 1e-12]
    return {fpr: tpr_at_fpr(scores, secrets, fpr, confidence, copies) for fpr in kept}


def majority_baseline(secrets: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """Accuracy of always guessing the commonest secret: what an attack must beat."""
    _, counts = np.unique(np.asarray(secrets).ravel(), return_counts=True)
    return clopper_pearson(int(counts.max()), int(counts.sum()), 1 - confidence)


def permutation_p_value(
    scores: npt.ArrayLike,
    secrets: npt.ArrayLike,
    rng: np.random.Generator,
    permutations: int = 999,
    statistic: Statistic | None = None,
) -> float:
    """Chance of a statistic at least this large if scores knew nothing of the secrets.

    p = (1 + #{permuted >= observed}) / (1 + permutations): never 0, valid at any number of permutations.
    `statistic(scores, secrets)` is the AUC unless given. Rows must be exchangeable: one row per user.
    """
    s, y = _pair(scores, secrets)
    if statistic is None:
        ranks = _midranks(s)  # the AUC is linear in the ranks of the ones
        observed = float(ranks[y].sum())
        permuted = np.array([ranks[rng.permutation(y)].sum() for _ in range(permutations)])
    else:
        observed = statistic(s, y)
        permuted = np.array([statistic(s, rng.permutation(y)) for _ in range(permutations)])
    tiny = 1e-9 * max(1.0, abs(observed))
    return float((1 + np.sum(permuted >= observed - tiny)) / (1 + permutations))


def over_units(statistic: Callable[[IntArray], float], units: npt.ArrayLike, confidence: float = 0.95) -> Interval:
    """A statistic in [0, 1] of rows that belong to units (users), with a jackknife over units and Student's t.

    `units[i]` names the owner of row i; `statistic` receives row numbers: all of them, then all but one unit's. It
    may answer nan for rows it cannot judge (one class only); that unit's share is left out. Symmetric in the
    log-odds; with few units a percentile bootstrap would cover 80 to 90 % where it says 95. At 0 and 1, where no
    spread is seen, the interval is that of as many units that all agree (`clopper_pearson`).
    """
    check_confidence(confidence)
    owners = np.asarray(units).ravel()
    names, owner = np.unique(owners, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"need at least 2 units to leave one out, not {len(names)}")
    value = float(statistic(np.arange(len(owners))))
    left = np.array([statistic(np.flatnonzero(owner != unit)) for unit in range(len(names))])
    left = left[~np.isnan(left)]
    if len(left) < 2 or not math.isfinite(value):
        raise ValueError(f"the statistic was nan with all units or without all but {len(left)} of them")
    return unit_interval(value, left, len(names), confidence)


def unit_interval(
    value: float, left: FloatArray, units: int, confidence: float = 0.95, inflation: float = 1.0
) -> Interval:
    """The interval of a statistic in [0, 1] from its values with one unit left out each; see `over_units`."""
    method = "jackknife over units"
    if not 0 < value < 1 or not left.std() > 0:
        exact = clopper_pearson(round(value * units), units, 1 - confidence)
        return Interval(value, min(exact.low, value), max(exact.high, value), units, method, confidence)
    std = inflation * math.sqrt((len(left) - 1) * float(left.var()))
    return Interval(value, *logit_interval(value, std, len(left) - 1, confidence), units, method, confidence)


def _pair(scores: npt.ArrayLike, secrets: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
    s, y = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(secrets).ravel()
    if len(s) != len(y):
        raise ValueError(f"need as many scores as secrets, not {len(s)} and {len(y)}")
    if np.isnan(s).any():
        raise ValueError(f"{int(np.isnan(s).sum())} of {len(s)} scores are nan")
    if set(np.unique(y).tolist()) != {0, 1}:
        raise ValueError(f"secrets must be 0 and 1, both present, not {np.unique(y).tolist()[:5]!r}")
    return s, y.astype(bool)


def _midranks(x: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    return np.asarray((upto - (counts - 1) / 2)[inverse], dtype=np.float64)


def _placements(positive: FloatArray, negative: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """The AUC, each positive's share of negatives below it, each negative's share of positives above it."""
    ranks = _midranks(np.r_[positive, negative])
    m, n = len(positive), len(negative)
    above = (ranks[:m] - _midranks(positive)) / n
    below = 1 - (ranks[m:] - _midranks(negative)) / m
    value = float(above.mean())
    return min(max(value, 0.0), 1.0), above, below
