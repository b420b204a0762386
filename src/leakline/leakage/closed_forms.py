"""What the best attacker must find against LDP-SGD, in closed form.

Its report has direction u with density proportional to 1 + r t sgn<x, u>, where t = tanh(eps/2), x is the
gradient and r = min(1, |x| / L) its norm after clipping at L. The rest follows by integrating that density.
"""

from __future__ import annotations

import math


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
