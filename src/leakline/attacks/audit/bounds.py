"""From the scores of a game to lower bounds, of one release and composed over the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import betainc, ndtr

from leakline.attacks.audit.questions import Question
from leakline.leakage.epsilon import (
    EpsilonBound,
    ErrorCounts,
    MuBound,
    ceiling,
    count_errors,
    lower_bound,
    lower_bound_from_scores,
    mu_bound,
    point_epsilon,
)
from leakline.readings import Fact, Reading


@dataclass(frozen=True)
class Finding:
    """What one game found: ``low`` and ``promised`` are of one release, ``composed`` of all of them."""

    question: Question
    quantity: Literal["mu", "epsilon"]
    point: float
    low: float
    composed: float
    trials: int
    ceiling: float
    confidence: float
    method: str
    delta: float = 0.0

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds what is promised for one release."""
        return self.low > self.question.promised * (1 + 1e-9)

    @property
    def note(self) -> str:
        """How to read it, in one line."""
        asked = self.question
        if asked.trouble:
            return asked.trouble
        releases = f"{asked.releases} releases" if asked.releases > 1 else "one release"
        parts = [f"{asked.situation}, {releases}"]
        if asked.releases > 1:
            parts.append(f"of one {self.low:.3g}")
        if math.isfinite(asked.promised):
            parts.append(f"promised for one {asked.promised:.3g}")
        limited = ": sample-limited" if self.low >= 0.9 * self.ceiling else ""
        parts.append(f"{self.trials} trials could certify {self.ceiling:.3g} of one{limited}")
        parts.append(
            f"{self.method} at {100 * self.confidence:.4g} %" + (f", delta {self.delta:g}" if self.delta else "")
        )
        return "; ".join(parts)

    @property
    def smallest(self) -> float:
        """The smallest mu (or pure epsilon) of one release that these trials contradict the promise by, 9 of 10 times.

        Both error rates are taken 1.28 / sqrt(2) standard deviations worse than they are on average.
        """
        asked, n = self.question, self.trials // 2
        if asked.kind not in ("mu", "pure") or not math.isfinite(asked.promised) or n < 2:
            return math.inf
        for step in range(1, 400):
            true = asked.promised * (1 + step / 100)
            rate = float(ndtr(-true / 2)) if asked.kind == "mu" else 1 / (1 + math.exp(min(true, 700.0)))
            errors = min(n, math.ceil(n * rate + 1.2816 * math.sqrt(n * rate * (1 - rate) / 2)))
            counts = ErrorCounts(errors, n, errors, n)
            bound: MuBound | EpsilonBound = mu_bound(counts, self.confidence)
            if asked.kind == "pure":
                bound = lower_bound(counts, 0.0, self.confidence)
            if bound.low > asked.promised:
                return true
        return math.inf

    def reading(self, by: str = "audit") -> Reading:
        """As a line of a card. The unit is that of the promise only where the seat is."""
        asked = self.question
        about: dict[str, Fact] = {"unit": asked.unit} if asked.unit else {}
        about |= {"defence": asked.defence, "situation": asked.situation, "releases": asked.releases}
        about |= {"confidence": self.confidence} | ({"delta": self.delta} if self.delta else {})
        known = {"promised": asked.promised, "ceiling": self.ceiling}
        about |= {name: value for name, value in known.items() if math.isfinite(value)}
        point = self.point * (self.composed / self.low if 0 < self.low < math.inf else 1.0)
        return Reading(
            self.quantity, point, self.composed, n=self.trials, by=by, about=about,
            note=f"{self.note}; {asked.setting}",
        )  # fmt: skip


def judge(scores: np.ndarray, bits: np.ndarray, asked: Question, confidence: float, delta: float) -> list[Finding]:
    """The bounds of one game."""
    if asked.trouble:
        return [_certain(asked, "mu" if asked.kind == "mu" else "epsilon")]
    rng = np.random.default_rng(len(scores))
    counts = count_errors(scores >= 0, bits)
    if asked.kind == "mu":
        found = mu_bound(counts, confidence)
        t = math.sqrt(asked.releases)
        first = Finding(asked, "mu", found.point, found.low, found.low * t, found.trials, found.ceiling,
                        confidence, found.method)  # fmt: skip
        return [first, _direct(counts, replace(asked, promised=math.inf), confidence, delta)]
    if asked.kind == "none":
        # The judge of a learned rule must not have chosen its threshold: half of the trials choose, half judge.
        low = lower_bound_from_scores(scores[~bits], scores[bits], delta, confidence, 0.3, rng=rng)
        return [Finding(asked, "epsilon", low.point, low.low, low.low, low.trials, low.ceiling, confidence,
                        low.method, delta)]  # fmt: skip
    if asked.kind == "sampled":
        scores, bits, threshold = _choose(scores, bits, asked.releases, confidence, delta)
        return [_direct(count_errors(scores >= threshold, bits), asked, confidence, delta)]
    return [_direct(counts, asked, confidence, 0.0)]


def _choose(
    scores: np.ndarray, bits: np.ndarray, releases: int, confidence: float, delta: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The threshold that the first third of the trials likes best, and the trials that are left to judge it."""
    cut = len(scores) // 3
    options = np.quantile(scores[:cut][bits[:cut]], np.linspace(0.02, 0.98, 33))
    worth = [
        composed_epsilon(count_errors(scores[:cut] >= option, bits[:cut]), releases, delta, confidence)
        for option in options
    ]
    return scores[cut:], bits[cut:], float(options[int(np.argmax(worth))])


def _direct(counts: ErrorCounts, asked: Question, confidence: float, delta: float) -> Finding:
    one = composed_epsilon(counts, 1, delta, confidence)
    if asked.kind == "pure":
        composed = one * asked.releases
    else:
        composed = max(one, composed_epsilon(counts, asked.releases, delta, confidence))
    most = ceiling(counts.negatives, delta, confidence, counts.positives)
    point = point_epsilon(counts, delta)
    return Finding(asked, "epsilon", point, one, composed, counts.trials, most, confidence, "Clopper-Pearson", delta)


def composed_epsilon(counts: ErrorCounts, releases: int, delta: float, confidence: float) -> float:
    """Lower bound on epsilon of ``releases`` independent releases, each guessed with the rule that made ``counts``.

    With TPR >= a and FPR <= b at this confidence, "at least k of T guesses say 1" has probability at least
    P(Bin(T, a) >= k) in world 1 and at most P(Bin(T, b) >= k) in world 0; likewise with worlds exchanged. The best
    k may be chosen afterwards: the limits hold for all k at once. T = 1 is `lower_bound`.
    """
    fpr, fnr = counts.upper(1 - confidence)
    k = np.arange(1, releases + 1)
    best = 0.0
    for hit, alarm in ((1 - fnr, fpr), (1 - fpr, fnr)):
        right, wrong = betainc(k, releases - k + 1, hit), betainc(k, releases - k + 1, alarm)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.log(np.maximum(right - delta, 0.0)) - np.log(np.maximum(wrong, 1e-300))
        best = max(best, float(np.nanmax(worth)))
    return best


def _certain(asked: Question, quantity: Literal["mu", "epsilon"]) -> Finding:
    return Finding(asked, quantity, math.inf, math.inf, math.inf, 2, math.inf, 1.0, "no randomness to average over")


def strongest(findings: Sequence[Finding]) -> list[Finding]:
    """The largest bound for each quantity and unit."""
    best: dict[tuple[str, str, str], Finding] = {}
    for found in findings:
        key = (found.quantity, found.question.unit, found.question.defence)
        if key not in best or found.composed > best[key].composed:
            best[key] = found
    return list(best.values())
