"""From the scores of a game to lower bounds, of one release and composed over the rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import betainc, ndtr

from leakline.attacks.audit.questions import Question
from leakline.leakage.betting import log_wealth, lower_bound_so_far, refuted_after, smallest_found
from leakline.leakage.epsilon import (
    EpsilonBound,
    ErrorCounts,
    MuBound,
    count_errors,
    epsilon_of_rates,
    lower_bound,
    mu_bound,
    mu_of_rates,
)
from leakline.leakage.interval import lower_rate, upper_rate
from leakline.leakage.ranks import lower_bound_from_scores, mu_bound_from_scores
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
    found_from: float | None = None
    """See `smallest`, where the method knows it."""

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
        if math.isfinite(self.ceiling):
            parts.append(f"{self.trials} trials could certify {self.ceiling:.3g} of one{limited}")
        if not self.broken and self.smallest < 1e9:
            parts.append(f"{self.smallest:.3g} of one or more would have been found 9 of 10 times")
        parts.append(
            f"{self.method} at {100 * self.confidence:.4g} %" + (f", delta {self.delta:g}" if self.delta else "")
        )
        return "; ".join(parts)

    @property
    def smallest(self) -> float:
        """The smallest mu (or pure epsilon) of one release that these trials contradict the promise by, 9 of 10 times.

        Both error rates are taken 1.28 / sqrt(2) standard deviations worse than they are on average.
        """
        if self.found_from is not None:
            return self.found_from
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
    if asked.kind == "pure":
        # The rule is fixed by the law; T releases are one event with T times the epsilon.
        one: EpsilonBound | MuBound = lower_bound(count_errors(scores >= 0, bits), 0.0, confidence)
        return [_finding(asked, "epsilon", one, one.low * asked.releases, 0.0)]
    epsilon = lower_bound_from_scores(scores[~bits], scores[bits], delta, confidence, rng=rng)
    if asked.kind == "none":
        return [_finding(asked, "epsilon", epsilon, epsilon.low, delta)]
    alarm, miss = _composed(scores, bits, asked, confidence, delta)
    together = max(epsilon.low, float(epsilon_of_rates(alarm, miss, delta).max()))
    if asked.kind == "sampled":
        return [_finding(asked, "epsilon", epsilon, together, delta)]
    mu = mu_bound_from_scores(scores[~bits], scores[bits], confidence, rng=rng)
    all_of_them = max(mu.low, float(mu_of_rates(alarm, miss).max()))
    nothing = replace(asked, promised=math.inf)
    return [_finding(asked, "mu", mu, all_of_them), _finding(nothing, "epsilon", epsilon, together, delta)]


def judge_so_far(scores: np.ndarray, bits: np.ndarray, asked: Question, alpha: float) -> list[Finding]:
    """What bets against one promise have shown; whenever the trials ended, the bound holds (`leakage.betting`)."""
    if asked.trouble:
        return [_certain(asked, "mu" if asked.kind == "mu" else "epsilon")]
    low = lower_bound_so_far(scores, bits, asked.kind, asked.promised, alpha)
    if refuted_after(log_wealth(scores, bits, asked.kind, asked.promised), alpha) is not None:
        low = max(low, asked.promised * (1 + 1e-6))
    least = asked.promised * smallest_found(asked.kind, asked.promised, len(scores), alpha)
    quantity: Literal["mu", "epsilon"] = "mu" if asked.kind == "mu" else "epsilon"
    together = low * (asked.releases if asked.kind == "pure" else 1)
    method = "bets, stopped when decided"
    return [Finding(asked, quantity, low, low, together, len(scores), math.inf, 1 - alpha, method, found_from=least)]


def tests_of(asked: Question) -> int:
    """How many bounds `judge` takes from one game, each at the confidence it is given."""
    return {"pure": 1, "none": 1, "sampled": 2, "mu": 3}[asked.kind]


def _finding(
    asked: Question,
    quantity: Literal["mu", "epsilon"],
    one: EpsilonBound | MuBound,
    composed: float,
    delta: float = 0.0,
) -> Finding:
    return Finding(
        asked, quantity, one.point, one.low, composed, one.trials, one.ceiling, one.confidence, one.method, delta
    )


def _composed(
    scores: np.ndarray, bits: np.ndarray, asked: Question, confidence: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """`composed_rates` of a rule that a first part of the trials chooses and the rest judges.

    Under full participation a Gaussian's likelihood ratio is linear in the score, so the rule is the score itself in
    `STEPS` even steps. A sampled release tells something in its tail only: there it is the best of 33 thresholds.
    """
    cut = len(scores) // (3 if asked.kind == "sampled" else 10)
    first, ones, rest = scores[:cut], bits[:cut], scores[cut:]
    low, high = np.quantile(first[~ones], 0.01), np.quantile(first[ones], 0.99)
    rules = [np.linspace(low, high, max(1, min(STEPS, MOST_TERMS // asked.releases)) + 2)[1:-1]]
    if asked.kind == "sampled":
        rules = [np.array([t]) for t in np.quantile(first[ones], np.linspace(0.02, 0.98, 33))]

    def rates(edges: np.ndarray, values: np.ndarray, worlds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = np.searchsorted(edges, values, side="right")
        return composed_rates(steps[~worlds], steps[worlds], len(edges), asked.releases, confidence)

    worth = [epsilon_of_rates(*rates(edges, first, ones), delta).max() for edges in rules]
    return rates(rules[int(np.argmax(worth))], rest, bits[cut:])


def composed_rates(
    steps0: np.ndarray, steps1: np.ndarray, most: int, releases: int, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Upper limits of both error rates of T independent releases together, for every threshold on their summed score.

    Each release is scored 0, 1, ..., ``most`` by a rule fixed beforehand; ``steps0`` and ``steps1`` are such scores in
    both worlds. Exact limits of P(score >= i), alpha / (2 most) each, bound the law of one score from above in world 0
    and from below in world 1; sums of T keep that order, so T-fold convolutions bound the law of the sum. All
    thresholds hold at once. Nothing is assumed about the release: where it is Gaussian, little is lost against
    sqrt(T) mu; where it is not, sqrt(T) mu would claim more than T releases give away.
    """
    i, alpha = np.arange(1, most + 1), (1 - confidence) / (2 * most)
    beyond0, beyond1 = ((steps[:, None] >= i).sum(0) for steps in (steps0, steps1))
    above = np.minimum.accumulate(upper_rate(beyond0, len(steps0), alpha))
    below = np.maximum.accumulate(lower_rate(beyond1, len(steps1), alpha)[::-1])[::-1]
    # Misses as P(T most - sum >= j): small chances are summed, not taken from 1.
    alarm, miss = _summed(above, releases), _summed(1 - below[::-1], releases)[::-1]
    alarm, miss = np.minimum(alarm, 1.0), np.minimum(miss, 1.0)
    kept = np.maximum(alarm, miss) < 1 - 1e-6  # nearer to 1, what is left of it has lost its digits
    return (alarm[kept], miss[kept]) if kept.any() else (np.ones(1), np.ones(1))


def _summed(beyond: np.ndarray, releases: int) -> np.ndarray:
    """P(sum >= j), j = 1, 2, ..., of independent scores with P(score >= i) = beyond[i - 1]."""
    if len(beyond) == 1:  # a threshold: binomial
        j = np.arange(1, releases + 1)
        return np.asarray(betainc(j, releases - j + 1, beyond[0]))
    power = -np.diff(np.r_[1.0, beyond, 0.0])
    together = np.ones(1)
    while releases:  # sums of products of chances: small ones keep all their digits, which Fourier's way loses
        together = np.convolve(together, power) if releases % 2 else together
        releases //= 2
        power = np.convolve(power, power) if releases else power
    return np.asarray(np.cumsum(together[::-1])[::-1][1:])


STEPS, MOST_TERMS = 17, 20_000
"""Steps that a score is read in, and the most terms of the sum's law: with very many releases steps are fewer."""


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
