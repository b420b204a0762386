"""A clip bound that follows a quantile of the update norms, privately (Andrew et al. 2021, arXiv:1905.03871)."""

from __future__ import annotations

import math


def follow_quantile(bound: float, unclipped: float, quantile: float, rate: float) -> float:
    """One geometric step of the clip bound.

    C <- C * exp(-eta * (b - gamma))      b = unclipped, gamma = quantile, eta = rate        (Andrew et al., eq. 3)

    ``unclipped`` is the (noised) fraction of updates that were *not* clipped: everybody fits -> shrink, nobody
    fits -> grow. (Flower 1.41 sends "was clipped" with the same sign and runs away from the quantile.)
    """
    return bound * math.exp(-rate * (unclipped - quantile))


def split_budget(noise_multiplier: float, bits_std: float) -> float:
    """Noise multiplier left for the updates when the bits are noised with std ``bits_std``.

    z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2)      Andrew et al., Theorem 1

    Clipped update (sensitivity C, noise z_delta C) and centred bit (sensitivity 1/2, noise sigma_b) released
    together are then exactly as private as one Gaussian release with multiplier z.
    """
    if noise_multiplier == 0:
        return 0.0
    left = noise_multiplier**-2 - (2 * bits_std) ** -2
    if left <= 0:
        raise ValueError(
            f"the bits' noise {bits_std} alone spends more than the budget of noise multiplier {noise_multiplier}: "
            f"it must exceed {noise_multiplier / 2}"
        )
    return float(left**-0.5)
