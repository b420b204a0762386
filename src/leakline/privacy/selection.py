"""What choosing the best of several private runs costs (Papernot, Steinke 2022, arXiv:2110.03620).

Training many settings and publishing the best one tells more than publishing one that was fixed before. If the number
of runs K is itself random and kept secret, the price is small: with Q one run (a setting drawn at random, trained with
fresh noise, scored), K geometric with mean m, and only the best run ever shown,

    eps'(a) = eps(a) + 2 (1 - 1/b) eps(b) + 2 log(m) / b + log(m) / (a - 1)        for every b >= 1

bounds the Renyi divergence of order a of the whole, where eps(a) is that of one run (their Theorem 2 with eta = 1).
Nothing may be shown of the other runs, nor how many there were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .claims import Claim, Event, Pure

FloatArray = npt.NDArray[np.float64]

ORDERS = np.arange(2, 513)
"""Renyi orders that are tried: whole ones, for which the sampled Gaussian has a closed form."""


def renyi(events: Sequence[Event]) -> FloatArray:
    """Renyi divergence of composed releases at `ORDERS`, add-remove or zero-out.

    full Gaussian     a mu^2 / 2
    sampled at q      log(sum_k C(a, k) (1 - q)^(a - k) q^k e^(k (k - 1) mu^2 / 2)) / (a - 1)   Mironov et al. 2019
    pure              min(epsilon, a epsilon^2 / 2)                                             Bun, Steinke 2016

    A group of c sampled units is bounded by all of them appearing when any does.
    """
    total = np.zeros(len(ORDERS))
    for event in events:
        if isinstance(event, Pure):
            total += event.times * np.minimum(event.epsilon, ORDERS * event.epsilon**2 / 2)
        elif event.rate == 1:
            total += event.times * ORDERS * event.mu**2 / 2
        else:
            rate = -math.expm1(event.copies * math.log1p(-event.rate))
            total += event.times * _sampled(event.copies * event.mu, rate)
    return total


def _sampled(mu: float, rate: float) -> FloatArray:
    from scipy.special import gammaln, logsumexp

    found = np.empty(len(ORDERS))
    for place, a in enumerate(ORDERS):
        k = np.arange(a + 1)
        binomial = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
        terms = binomial + (a - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) * mu**2 / 2
        found[place] = logsumexp(terms) / (a - 1)
    return found


def best_of(one: FloatArray, mean: float) -> FloatArray:
    """Renyi divergence of the best of a geometric number of runs with this mean, from that of one run."""
    if not mean >= 1:
        raise ValueError(f"at least one run is made on average, not {mean!r}")
    paid = 2 * (1 - 1 / ORDERS) * one + 2 * math.log(mean) / ORDERS
    least = min(float(paid.min()), 2 * math.log(mean))  # b = 1, at which eps(b) has no weight
    return np.asarray(one + least + math.log(mean) / (ORDERS - 1))


def epsilon_of(divergence: FloatArray, delta: float) -> float:
    """Smallest epsilon at delta that a Renyi curve gives (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    with np.errstate(invalid="ignore"):
        found = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return float(max(np.nanmin(found), 0.0))


def chosen_epsilon(claims: Sequence[Claim], score_mu: float, mean: float, delta: float) -> float:
    """Epsilon of a setting chosen among these by the best of a random number of runs.

    A unit is trained on or tested on, never both: a run costs it the dearest setting's training, or the score, in which
    a tested unit moves the released count by ``score_mu`` standard deviations of its noise.
    """
    one = np.maximum.reduce([renyi(claim.events) for claim in claims] + [ORDERS * score_mu**2 / 2])
    return epsilon_of(best_of(one, mean), delta)
