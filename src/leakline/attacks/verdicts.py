"""How good a yes-or-no attack is over many worlds: means with intervals, AUC, balanced accuracy, TPR at few FPR."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leakline.leakage.guessing import auc, balanced_accuracy, best_threshold, tpr_at_fprs
from leakline.leakage.interval import Interval, mean_interval
from leakline.measures import MEASURES
from leakline.readings import Fact, Reading


def over_worlds(measure: str, values: Sequence[float], about: Mapping[str, Fact]) -> Reading:
    """Mean over worlds with its 95 % t-interval; n = 0 where no value is finite."""
    kept = [v for v in values if math.isfinite(v)]
    if not kept:
        return Reading(measure, math.nan, n=0, about=about)
    mean = mean_interval(kept)
    if len(kept) == 1:
        return Reading(measure, mean.value, n=1, about=about)
    sd = float(np.std(kept, ddof=1))
    return Reading(measure, mean.value, mean.low, mean.high, len(kept), about={**about, "sd": sd})


def leaks(
    figures: Mapping[str, Interval], curve: Mapping[float, Interval], about: Mapping[str, Fact], note: str = ""
) -> list[Reading]:
    """Figures of one rule by measure, and its true positives by rate of false ones, as readings."""
    named = [(measure, i, MEASURES[measure].chance, about) for measure, i in figures.items()]
    named += [("tpr", i, fpr, {**about, "fpr": fpr}) for fpr, i in curve.items()]
    return [Reading(m, i.value, i.low, i.high, i.n, chance=c, about=told, note=note) for m, i, c, told in named]


def yes_or_no(
    about: Mapping[str, Fact], scores: np.ndarray, truth: np.ndarray, folds: np.ndarray, note: str
) -> list[Reading]:
    """AUC, balanced accuracy and true positives at few false ones of one score; higher scores mean yes.

    A pair of worlds shares its seed, which makes their scores alike and the AUC's interval (DeLong, for independent
    worlds) too wide rather than too narrow. A model that noise has wrecked has no loss: its score counts as no.
    """
    kept = np.where(np.isfinite(scores), scores, -1e30)
    area, right = auc(kept, truth), balanced_accuracy(decide(kept, truth, folds), truth)
    return leaks({"auc": area, "balanced-right": right}, tpr_at_fprs(kept, truth), about, note)


def decide(scores: np.ndarray, truth: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Yes or no for every world, by a threshold learnt on the other half (folds are 0 and 1)."""
    guesses = np.zeros(len(scores), dtype=bool)
    for fold in (0, 1):
        learn, judge = folds != fold, folds == fold
        threshold = best_threshold(scores[learn], truth[learn])
        below = scores[learn][scores[learn] < threshold]
        if len(below) and math.isfinite(threshold):  # half-way to the next score: no side is favoured
            threshold = (threshold + float(below.max())) / 2
        guesses[judge] = scores[judge] >= threshold
    return guesses
