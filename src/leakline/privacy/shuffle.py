"""What is gained where reports arrive without names: amplification by shuffling.

A randomiser that is epsilon_0-DP for one report is run by n clients, and a shuffler that is trusted passes on their
reports in random order (or anything made of them without regard to order, such as their mean). Feldman, McMillan and
Talwar (FOCS 2021, arXiv:2012.12803, Theorem 3.1) reduce exchanging one client's input to one pair of laws:

    (A + D, C - A + 1 - D)    against    (A + 1 - D, C - A + D)
    C ~ Bin(n - 1, e^-eps0),   A ~ Bin(C, 1/2),   D ~ Bernoulli(e^eps0 / (1 + e^eps0))

C are the other clients whose report might have been the target's, either way. The divergence of the two is summed
exactly here, not bounded in closed form.
"""

from __future__ import annotations

import math

import numpy as np

from .gdp import check_delta

TAIL = 1e-3
"""The share of delta that is given away for numbers of clones that are not looked at."""


def shuffled_epsilon(epsilon: float, clients: int, delta: float) -> float:
    """Epsilon at delta of one round of n shuffled reports, each epsilon-DP by itself; never more than epsilon.

    All n clients report by the same randomiser; who colludes with the observer does not count among them. At
    delta = 0 nothing is gained: every other report may be one that could not have been the target's.
    """
    check_delta(delta)
    if not 0 < epsilon < math.inf or clients < 1:
        raise ValueError(f"need a positive finite epsilon and at least one client, not {epsilon!r}, {clients!r}")
    if delta == 0 or shuffled_delta(epsilon, clients, epsilon * (1 - 1e-9), delta) > delta:
        return epsilon
    low, high = 0.0, epsilon
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if shuffled_delta(epsilon, clients, middle, delta) <= delta else (middle, high)
    return high


def shuffled_delta(epsilon: float, clients: int, amplified: float, tail: float = 1e-9) -> float:
    """An upper limit of delta at epsilon ``amplified``, above the sum by at most a thousandth of ``tail``.

    For c clones let m = c + 1 and K the first count. Its two laws have the ratio

        (q k + (1 - q) (m - k)) / ((1 - q) k + q (m - k)),       q = e^eps0 / (1 + e^eps0)

    which grows with k, so the divergence is a difference of binomial tails from the k where it passes e^amplified.
    """
    from scipy.stats import binom

    q, grown, shared = 1 / (1 + math.exp(-epsilon)), math.exp(amplified), math.exp(-epsilon)
    cut = TAIL * tail
    first, last = binom.ppf([cut / 2, 1 - cut / 2], clients - 1, shared)
    c = np.arange(int(first), int(last) + 1)
    k = np.floor((c + 1) * (q * (1 + grown) - 1) / ((2 * q - 1) * (1 + grown))) + 1
    moved, stayed = binom.sf(k - 2, c, 0.5), binom.sf(k - 1, c, 0.5)  # P(A >= k - 1), P(A >= k)
    over = q * moved + (1 - q) * stayed - grown * ((1 - q) * moved + q * stayed)
    return float(binom.pmf(c, clients - 1, shared) @ np.maximum(over, 0.0)) + cut
