"""From a wanted guarantee to the noise that gives it: the accountant, inverted."""

from __future__ import annotations

import math
from dataclasses import replace

from .accountant import SMALLEST_PLD_DELTA, ask_pld, rdp_epsilon
from .claims import Adjacency, Gaussian
from .gdp import gdp_mu
from .pld_worker import MOST_CELLS

STEP = 1 + 1e-9  # rounds the answer up, so that accounting it never lands above the wanted epsilon


def calibrate(
    epsilon: float,
    delta: float,
    rounds: int,
    rate: float = 1.0,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    cells: int = MOST_CELLS,
) -> float:
    """Smallest z = std / clip of a clipped sum that is (epsilon, delta)-DP after `rounds` releases.

    One unit moves the sum by C under add-remove and zero-out, by 2C under replace-one: mu = 1/z or 2/z.

        full participation    z = sqrt(rounds) (1 or 2) / gdp_mu(epsilon, delta), exact
        Poisson rate < 1      root of the PLD, if within `cells`; where that fails, root of RDP or no
                              amplification at all: more noise than needed, never less

    Fixed-size sampling gets no amplification: leave `rate` at 1 for it.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), not {delta!r}: Gaussian noise never gives delta = 0")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds!r}")
    if not 0 < rate <= 1:
        raise ValueError(f"rate must lie in (0, 1], not {rate!r}")
    reach = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    unsampled = STEP * math.sqrt(rounds) * reach / gdp_mu(epsilon, delta)
    if rate == 1:
        return unsampled
    replaced = adjacency is Adjacency.REPLACE_ONE
    high = _rdp_multiplier(epsilon, delta, Gaussian(reach, rounds, rate), replaced, unsampled)
    if delta < SMALLEST_PLD_DELTA:
        return high
    unit = (Gaussian(reach, rounds, rate),)
    answer = ask_pld(unit, replaced, delta, 2 * epsilon, cells, epsilon=epsilon, start=high)
    return min(high, answer.get("shrink", high))


def _rdp_multiplier(epsilon: float, delta: float, unit: Gaussian, replaced: bool, high: float) -> float:
    """Noise at which RDP prints epsilon, or `high` if that is less: more than needed, since RDP is loose."""
    from scipy.optimize import brentq

    def excess(log_z: float) -> float:
        found = rdp_epsilon((replace(unit, mu=unit.mu * math.exp(-log_z)),), delta, replaced)
        return min(found, 1e9) - epsilon

    if excess(math.log(high)) > 0:
        return high
    low = high / 2
    while excess(math.log(low)) < 0:
        low, high = low / 2, low
    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=5e-4) + 1e-3)
