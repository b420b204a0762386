"""Scores for membership from shadow models: LiRA (Carlini et al. 2022) and RMIA (Zarifzadeh et al. 2024).

Symbols: p[s, i] is the probability that shadow model s gives to the true label of record i, in_[s, i] says whether it
trained on it, q[i] is the probability under the model attacked. A higher score means: a member.
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


def lira_online(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """Likelihood ratio log N(logit q; mu_in, s_in^2) - log N(logit q; mu_out, s_out^2).

    Means are each record's own; variances are pooled over records, which the authors advise below about 64 models.
    """
    x, shadows = logit(q), logit(p)
    inside, outside = _moments(shadows, in_), _moments(shadows, ~in_)
    return _log_normal(x, *inside) - _log_normal(x, *outside)


def lira_offline(q: npt.ArrayLike, p: npt.ArrayLike, in_: BoolArray) -> FloatArray:
    """(logit q - mu_out) / s_out: how far above models that have not seen the record; needs no model that has."""
    mean, sd = _moments(logit(p), ~in_)
    return (logit(q) - mean) / sd


def rmia(
    q: npt.ArrayLike,
    p: npt.ArrayLike,
    in_: BoolArray,
    q_population: npt.ArrayLike,
    p_population: npt.ArrayLike,
    gamma: float = 2.0,
) -> FloatArray:
    """Share of population records z that the record beats: [q(x) / Pr(x)] / [q(z) / Pr(z)] >= gamma.

    Pr(x) is the mean probability over models with and models without the record, each half the weight (the online
    form); Pr(z) the mean over all shadow models, none of which trained on z. Zarifzadeh et al. 2024, Eq. 2 to 4.
    """
    shadows = np.asarray(p, dtype=np.float64).clip(LEAST, 1)
    reference = (_mean(shadows, in_) + _mean(shadows, ~in_)) / 2
    own = np.asarray(q, dtype=np.float64).clip(LEAST, 1) / reference
    others = np.asarray(q_population, dtype=np.float64).clip(LEAST, 1) / np.asarray(
        p_population, dtype=np.float64
    ).clip(LEAST, 1).mean(0)
    return np.asarray((own[:, None] >= gamma * others).mean(1), dtype=np.float64)


def _mean(values: FloatArray, chosen: BoolArray) -> FloatArray:
    count = chosen.sum(0)
    if (count == 0).any():
        raise ValueError(f"{int((count == 0).sum())} records are on one side in all {len(values)} shadow models")
    return np.asarray((values * chosen).sum(0) / count, dtype=np.float64)


def _moments(values: FloatArray, chosen: BoolArray) -> tuple[FloatArray, float]:
    """Each record's mean over the chosen models, and one standard deviation for all records."""
    mean = _mean(values, chosen)
    spread = ((values - mean) ** 2 * chosen).sum()
    freedom = max(int(chosen.sum()) - values.shape[1], 1)
    return mean, float(np.sqrt(spread / freedom)) + 1e-6


def _log_normal(x: FloatArray, mean: FloatArray, sd: float) -> FloatArray:
    return np.asarray(-0.5 * ((x - mean) / sd) ** 2 - np.log(sd), dtype=np.float64)
