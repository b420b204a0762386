"""Who is exposed: how often each patient is told apart, and how sure one can be of all of them at once.

The game: in each of S worlds a fair coin decides, for each patient alone, whether it takes part; a rule that has not
seen this patient's coins says whether it did. Were nothing to depend on whether the patient takes part, then every
answer would be right with probability one half, each independently of the others, whatever the rule: the number right
is binomial(S, 1/2) exactly. So is every p-value, and Holm's (1979) adjustment holds for all patients at once however
their answers hang together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from .interval import FloatArray, check_confidence, lower_rate, upper_rate


@dataclass(frozen=True, eq=False)
class Exposure:
    """Of each patient: share of worlds in which it was told right, its own interval, and what holds for all at once.

    ``low`` and ``high`` are Clopper and Pearson's for the patient alone. ``sure`` is a lower bound that holds for all
    patients together (one-sided, Bonferroni); ``p`` is adjusted by Holm; ``exposed`` are those that it leaves no
    doubt about: with probability ``confidence`` no patient is among them who was told apart by luck alone.
    """

    right: FloatArray
    low: FloatArray
    high: FloatArray
    sure: FloatArray
    p: FloatArray
    exposed: np.ndarray
    worlds: int
    confidence: float

    @property
    def ceiling(self) -> float:
        """The most that ``sure`` could be with so many worlds: that of a patient who is always told right."""
        return float(lower_rate(self.worlds, self.worlds, (1 - self.confidence) / max(len(self.right), 1)))


def exposure(right: np.ndarray, confidence: float = 0.95) -> Exposure:
    """The exposure of patients from answers, worlds x patients, True where right."""
    check_confidence(confidence)
    worlds, patients = right.shape
    hits, alpha = right.sum(0), 1 - confidence
    p = holm(np.array([tail(int(k), worlds) for k in hits]))
    low, high = lower_rate(hits, worlds, alpha / 2), upper_rate(hits, worlds, alpha / 2)
    sure = lower_rate(hits, worlds, alpha / max(patients, 1))
    return Exposure(hits / worlds, low, high, sure, p, p <= alpha, worlds, confidence)


def tail(hits: int, worlds: int) -> float:
    """P(at least so many of these answers are right by luck)."""
    return 1.0 if hits <= 0 else float(bdtrc(hits - 1, worlds, 0.5))


def holm(p: np.ndarray) -> FloatArray:
    """Holm's adjusted p-values: max over the smaller ones of (m - rank) p, at most 1."""
    m = len(p)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(np.asarray(p, dtype=np.float64)[order] * (m - np.arange(m)))
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def fewest_worlds(patients: int, confidence: float = 0.95) -> int:
    """How many worlds are needed before a patient who is always told right can be called exposed among so many."""
    return math.ceil(math.log2(max(patients, 1) / (1 - confidence)) - 1e-12)
