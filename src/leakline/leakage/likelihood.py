"""Scores for membership from shadow models: LiRA (Carlini et al. 2022), RMIA (Zarifzadeh et al. 2024), and plainer.

Symbols: p[s, i] is the probability that shadow model s gives to the true label of record i, in_[s, i] says whether it
trained on it, q[i] is the probability under the model attacked. A higher score means: a member.

Coins decide which records a shadow trains on, so one may be on one side in all of them. Its mean on the other side is
then taken to lie as far off as those of the other records do on average.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from leakline.leakage.interval import FloatArray

BoolArray = npt.NDArray[np.bool_]
LEAST = 1e-6
"""Probabilities are kept so far from 0 and 1 that their logits are finite."""


def confidence(losses: npt.ArrayLike) -> FloatArray:
    """The probability of the true label, from cross-entropy losses."""
    return np.exp(-np.asarray(losses, dtype=np.float64)).clip(LEAST, 1 - LEAST)


def logit(p: npt.ArrayLike) -> FloatArray:
    """Log-odds log(p / (1 - p)), which is nearly normal over models (Carlini et al. 2022, Sec. IV-C)."""
    values = np.asarray(p, dtype=np.float64).clip(LEAST, 1 - LEAST)
    return np.asarray(np.log(values) - np.log1p(-values), dtype=np.float64)


def expit(x: npt.ArrayLike) -> FloatArray:
    """The probability of these log-odds."""
    return np.asarray(1 / (1 + np.exp(-np.asarray(x, dtype=np.float64))))


def difference(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """How far the logit lies above the middle of in and out: logit q - (mu_in + mu_out) / 2.

    The order of the likelihood ratio where all records move as far and spread as much: with few shadows neither a
    record's own spread nor how far it moves is known well.
    """
    inside, outside = sides(logit(p), in_)
    return np.asarray(logit(q) - (inside + outside) / 2)


def lira_online(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """Likelihood ratio log N(logit q; mu_in, s^2) - log N(logit q; mu_out, s^2).

    Means are each record's own; the variance is pooled over records, which the authors advise below about 64 models.
    Departs from them in pooling it over both sides too: with two variances a logit far below both means, where the
    wider normal wins, counts as a member's.
    """
    x, shadows = logit(q), logit(p)
    inside, outside = sides(shadows, in_)
    sd = _spread(shadows, np.where(in_, inside, outside), 2)
    return _log_normal(x, inside, sd) - _log_normal(x, outside, sd)


def lira_offline(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """(logit q - mu_out) / s_out: how far above models that have not seen the record; needs no model that has."""
    shadows = logit(p)
    _, mean = sides(shadows, in_)
    return np.asarray((logit(q) - mean) / _spread(np.where(in_, np.nan, shadows), mean, 1))


def rmia(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """log(q(x) / Pr(x)), the ratio that RMIA compares with that of population records z.

    Pr(x) is the mean probability over models with and models without the record, each half the weight (the online
    form). Zarifzadeh et al. 2024, Eq. 2 to 4, score x by the share of z with ratio(x) >= gamma ratio(z). That share
    rises with ratio(x) and with nothing else, whatever z and gamma are: the ratio itself ranks records the same way,
    without the ties that a small population makes, and needs none.
    """
    inside, outside = sides(np.asarray(p, dtype=np.float64).clip(LEAST, 1), in_)
    reference = ((inside + outside) / 2).clip(LEAST, 1)
    return np.asarray(np.log(np.asarray(q, dtype=np.float64).clip(LEAST, 1)) - np.log(reference))


def sides(values: npt.ArrayLike, in_: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Each record's mean over the models that trained on it and over the others; what is no number is passed over."""
    found = np.asarray(values, dtype=np.float64)
    inside, outside = _mean(found, in_), _mean(found, ~in_)
    apart = inside - outside
    known = np.isfinite(apart)
    if not known.any():
        raise ValueError(f"no record is on both sides in the {len(found)} shadow models")
    usual = float(apart[known].mean())
    return np.where(np.isnan(inside), outside + usual, inside), np.where(np.isnan(outside), inside - usual, outside)


def _mean(values: FloatArray, chosen: BoolArray) -> FloatArray:
    there = chosen & np.isfinite(values)
    count = there.sum(0)
    total = np.where(there, values, 0.0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _spread(values: FloatArray, means: FloatArray, sides_: int) -> float:
    """One standard deviation for all records, around means of which each record has so many."""
    squares = (values - means) ** 2
    there = np.isfinite(squares)
    freedom = max(int(there.sum()) - sides_ * values.shape[1], 1)
    return float(np.sqrt(squares[there].sum() / freedom)) + 1e-6


def _log_normal(x: FloatArray, mean: FloatArray, sd: float) -> FloatArray:
    return np.asarray(-0.5 * ((x - mean) / sd) ** 2 - np.log(sd), dtype=np.float64)
