"""How well guesses match secrets: ROC, AUC, accuracy, advantage, and how sure one can be.

A secret is what the examiner knows and the attacker guesses; a score is higher when the attacker believes in
secret 1. Every number comes with an interval; where rows of one user hang together, resample users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from .interval import FloatArray, Interval, check_confidence, clopper_pearson

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]
Statistic = Callable[[FloatArray, BoolArray], float]
QUOTED_FPRS = (0.01, 0.1)
"""The rates of false positives that people quote: every attack by scores writes them."""
CURVE_FPRS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Where a ROC is kept, so that it can be drawn when the scores are gone."""


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


def auc(
    scores: npt.ArrayLike,
    secrets: npt.ArrayLike,
    confidence: float = 0.95,
    rng: np.random.Generator | None = None,
    resamples: int = 2000,
) -> Interval:
    """Area under the ROC: P(score of a random 1 > score of a random 0), ties counting half.

    Interval: DeLong et al. (1988), by midranks (Sun and Xu 2014); a percentile bootstrap within the two
    classes if `rng` is given. When all pairs agree the variance estimate is 0; the interval then rests on
    m = min(n0, n1) disjoint pairs that all agree, whose chance is AUC^m.
    """
    check_confidence(confidence)
    s, y = _pair(scores, secrets)
    positive, negative = s[y], s[~y]
    alpha, n = 1 - confidence, len(s)
    value, above, below = _placements(positive, negative)
    if value in (0.0, 1.0):
        edge = (alpha / 2) ** (1 / min(len(positive), len(negative)))
        low, high = (edge, 1.0) if value == 1 else (0.0, 1 - edge)
        return Interval(value, low, high, n, "disjoint pairs", confidence)
    if rng is not None:
        draws = [
            _placements(rng.choice(positive, len(positive)), rng.choice(negative, len(negative)))[0]
            for _ in range(resamples)
        ]
        low, high = np.quantile(draws, [alpha / 2, 1 - alpha / 2])
        return Interval(value, float(low), float(high), n, "bootstrap", confidence)
    if min(len(positive), len(negative)) < 2:
        return Interval(value, 0.0, 1.0, n, "too few to say", confidence)
    std = float(np.sqrt(above.var(ddof=1) / len(positive) + below.var(ddof=1) / len(negative)))
    reach = float(ndtri(1 - alpha / 2)) * std
    return Interval(value, max(0.0, value - reach), min(1.0, value + reach), n, "DeLong", confidence)


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


def tpr_at_fpr(scores: npt.ArrayLike, secrets: npt.ArrayLike, fpr: float, confidence: float = 0.95) -> Interval:
    """Share of ones found at the lowest threshold that flags at most a share `fpr` of zeros.

    Exact interval of that share, given the threshold; that the zeros which set it are themselves a sample is
    not counted. With fewer than 1/fpr zeros this is the share above all of them.
    """
    if not 0 <= fpr <= 1:
        raise ValueError(f"fpr must lie in [0, 1], not {fpr!r}")
    _, y = _pair(scores, secrets)
    curve = roc(scores, secrets)
    found = float(curve.tpr[curve.fpr <= fpr + 1e-12].max())
    n = int(y.sum())
    return clopper_pearson(round(found * n), n, 1 - confidence)


def tpr_at_fprs(scores: npt.ArrayLike, secrets: npt.ArrayLike, confidence: float = 0.95) -> dict[float, Interval]:
    """`tpr_at_fpr` at the quoted rates, and at those of `CURVE_FPRS` that so many zeros can resolve.

    n zeros resolve rates from 1/n up: below, every rate gives the share above all of them.
    """
    _, y = _pair(scores, secrets)
    zeros = int((~y).sum())
    kept = [fpr for fpr in CURVE_FPRS if fpr in QUOTED_FPRS or fpr * zeros >= 1 - 1e-12]
    return {fpr: tpr_at_fpr(scores, secrets, fpr, confidence) for fpr in kept}


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


def bootstrap_interval(
    statistic: Callable[[IntArray], float],
    units: npt.ArrayLike,
    rng: np.random.Generator,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap over units (users), all rows of a drawn unit moving together.

    `units[i]` names the owner of row i; `statistic` receives row numbers, repeated as the draw repeats units,
    and may answer nan for a draw it cannot judge (one class only); such draws are left out.
    """
    check_confidence(confidence)
    owners = np.asarray(units).ravel()
    names, owner = np.unique(owners, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"need at least 2 units to resample, not {len(names)}")
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])
    value = statistic(np.arange(len(owners)))
    draws = np.array(
        [
            statistic(np.concatenate([rows[u] for u in rng.integers(len(names), size=len(names))]))
            for _ in range(resamples)
        ]
    )
    if np.isnan(draws).all():
        raise ValueError(f"the statistic was nan in all {resamples} resamples")
    low, high = np.nanquantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(value), float(low), float(high), len(names), "bootstrap over units", confidence)


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
