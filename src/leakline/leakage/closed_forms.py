"""What the best attacker must find against LDP-SGD, in closed form.

Its report has direction u with density proportional to 1 + r t sgn<x, u>, where t = tanh(eps/2), x is the
gradient and r = min(1, |x| / L) its norm after clipping at L. The rest follows by integrating that density.
"""

from __future__ import annotations

import math

import numpy as np


def flip_epsilon(epsilon: float, r: float) -> float:
    """Epsilon between a gradient and its opposite, both of norm r L: 2 artanh(r tanh(eps/2))."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be zero or more, not {epsilon!r}")
    if not 0 <= r <= 1:
        raise ValueError(f"r must lie in [0, 1], not {r!r}")
    # artanh(r t) from exponentials: exact at r = 1, where tanh has already rounded to 1 for large epsilon
    small = math.exp(-epsilon)
    return math.log(((1 + r) + (1 - r) * small) / ((1 - r) + (1 + r) * small)) if r < 1 else epsilon


def total_variation_ldp(epsilon: float, angle: float) -> float:
    """Best advantage between two gradients at `angle` radians, both >= L long: tanh(eps/2) angle / pi."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be zero or more, not {epsilon!r}")
    if not 0 <= angle <= math.pi:
        raise ValueError(f"angle must lie in [0, pi], not {angle!r}")
    return math.tanh(epsilon / 2) * angle / math.pi


def shuffled_flip_epsilon(epsilon: float, clients: int, delta: float) -> float:
    """Epsilon at delta between a gradient and its opposite among n reports without names, the others' all of the first.

    All there is to know is how many reports lie on the first gradient's side: Bin(n - 1, p) + Bernoulli(p) against
    Bin(n - 1, p) + Bernoulli(1 - p), p = e^eps / (1 + e^eps). No audit of this game can certify more.
    """
    from scipy.stats import binom

    if not epsilon >= 0 or clients < 1 or not 0 <= delta < 1:
        raise ValueError(f"need epsilon >= 0, a client and delta in [0, 1), not {epsilon!r}, {clients!r}, {delta!r}")
    p, k = 1 / (1 + math.exp(-epsilon)), np.arange(clients + 1)
    others = binom.pmf(k, clients - 1, p)
    more = np.concatenate([[0.0], others[:-1]])  # the target's report on that side too
    here, opposite = p * more + (1 - p) * others, (1 - p) * more + p * others

    def apart(e: float) -> float:
        return max(float(np.maximum(a - math.exp(e) * b, 0).sum()) for a, b in ((here, opposite), (opposite, here)))

    low, high = 0.0, epsilon
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if apart(middle) <= delta else (middle, high)
    return high
