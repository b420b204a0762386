"""How good a yes-or-no attack is over many worlds: means with intervals, AUC, balanced accuracy, TPR at few FPR."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leakline.leakage.guessing import auc, balanced_accuracy, best_threshold, tpr_at_fprs
from leakline.leakage.interval import mean_interval
from leakline.readings import Reading


def over_worlds(name: str, values: Sequence[float]) -> Reading:
    """Mean over worlds with its 95 % t-interval; n = 0 where no value is finite."""
    kept = [v for v in values if math.isfinite(v)]
    if not kept:
        return Reading(name, math.nan, n=0)
    mean = mean_interval(kept)
    ends = (mean.low, mean.high) if len(kept) > 1 else (None, None)
    return Reading(name, mean.value, *ends, len(kept))


def yes_or_no(name: str, scores: np.ndarray, truth: np.ndarray, folds: np.ndarray, note: str) -> list[Reading]:
    """AUC, balanced accuracy and true positives at few false ones of one score; higher scores mean yes.

    A pair of worlds shares its seed, which makes their scores alike and the AUC's interval (DeLong, for independent
    worlds) too wide rather than too narrow. A model that noise has wrecked has no loss: its score counts as no.
    """
    kept = np.where(np.isfinite(scores), scores, -1e30)
    area, right = auc(kept, truth), balanced_accuracy(decide(kept, truth, folds), truth)
    found = [("auc", area, 0.5), ("balanced-accuracy", right, 0.5)]
    found += [(f"tpr@fpr={fpr}", share, fpr) for fpr, share in tpr_at_fprs(kept, truth).items()]
    return [
        Reading(f"{what}:{name}", i.value, i.low, i.high, i.n, chance=chance, better="lower", note=note)
        for what, i, chance in found
    ]


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
