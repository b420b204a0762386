"""A rule learnt from shadow federations: each in turn is the target, and what was learnt is put to the real one.

Worlds have scores x[f, i], features f (looks at models and updates) of records i. Of each look and record the shadows
tell where the score lies with and without the record, and a learner that sees all records together, with all looks
beside each other, finds how to weigh them (a rule for each record alone would have 16 worlds to learn from).

Two kinds of rows. Those put to the real federation use all that the attacker knows of its shadows. Those for the game
of `leakline.leakage.exposure` must not use the record's own coins: there a score is centred by its mean over all other
shadows, which lies half-way between the means with and without the record, but for luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from leakline.leakage.likelihood import expit, rmia, sides

On = Literal["model", "models", "updates"]
FOLDS = 4
"""Patients are dealt out to so many, and those of each are judged by a rule learnt from the others."""


def looks_of(table: Mapping[str, np.ndarray], on: On) -> np.ndarray:
    """What a seat sees of a table (features, records): the last model, every model, or also what came of each round.

    Of a client's own update: the score under its model, and how much that is above the model that was sent.
    """
    models = table["models"]
    if on == "model":
        return models[-1:]
    if on == "models":
        return models
    own = table["own"]
    return np.concatenate([models, own, own - models[:-1]])


def informed(x: np.ndarray, shadows: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Rows of one world (records, features), all that is known of the shadows used.

    Of each look: how far it lies above the middle of in and out, that times how far these lie apart, how far they do,
    RMIA's ratio, and the look itself.
    """
    inside, outside = np.stack([sides(shadows[:, f], taken) for f in range(len(x))], axis=1)
    above, apart = x - (inside + outside) / 2, inside - outside
    ratio = np.stack([rmia(expit(x[f]), expit(shadows[:, f]), taken) for f in range(len(x))])
    means = [rows.mean(0, keepdims=True) for rows in (above, above * apart)]
    return np.concatenate([above, above * apart, apart, ratio, x, *means]).T


def blind(x: np.ndarray, shadows: np.ndarray) -> np.ndarray:
    """Rows of one world that do not use who took part in the shadows: each look, and less its mean over them."""
    mean, sd = np.nanmean(shadows, axis=0), np.nanstd(shadows, axis=0)
    return np.concatenate([x - mean, sd, x, (x - mean).mean(0, keepdims=True)]).T


def odds(rows: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Log-odds of membership for the rows asked for, by boosted trees learnt from the others."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=120, max_leaf_nodes=8, min_samples_leaf=min(200, 1 + len(rows) // 20),
        l2_regularization=1.0, early_stopping=False, random_state=0,
    )  # fmt: skip
    return np.asarray(model.fit(rows, labels).decision_function(asked))


def learnt(x: np.ndarray, shadows: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The real federation's records, scored by a rule learnt with each shadow in turn as the target."""
    rest = np.arange(len(shadows))
    rows = [informed(shadows[s], shadows[rest != s], taken[rest != s]) for s in rest]
    return odds(np.concatenate(rows), taken.ravel(), informed(x, shadows, taken))


def told_apart(shadows: np.ndarray, coins: np.ndarray, patient: np.ndarray) -> np.ndarray:
    """Whether each patient seems to take part in each shadow (worlds x patients), said without its own coins.

    The rule for a patient is learnt from patients of other folds; its records' log-odds are added up, and where the
    sum lies above its mean over all worlds the answer is yes.
    """
    rest = np.arange(len(shadows))
    rows = np.stack([blind(shadows[s], shadows[rest != s]) for s in rest])
    width, fold = rows.shape[2], patient % FOLDS
    said = np.zeros(coins.shape)
    for number in range(FOLDS):
        mine = fold == number
        if mine.any() and not mine.all():
            known = coins[:, patient[~mine]].ravel()
            scores = odds(rows[:, ~mine].reshape(-1, width), known, rows[:, mine].reshape(-1, width))
            for world, own in enumerate(scores.reshape(len(rest), -1)):
                said[world] += np.bincount(patient[mine], own, coins.shape[1])
    return np.asarray(said > said.mean(0))
