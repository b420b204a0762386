"""From a wanted guarantee to the noise that gives it: the accountant, inverted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from .accountant import SMALLEST_PLD_DELTA, account, ask_pld, rdp_epsilon, total_mu
from .claims import Adjacency, Claim, Gaussian, Seat, Unit
from .gdp import gdp_mu
from .pld_worker import MOST_CELLS

STEP = 1 + 1e-9  # rounds the answer up, so that accounting it never lands above the wanted epsilon
ENOUGH = 0.995
"""An epsilon from this share of the wanted one up to all of it has met it: noise is not worth more search."""
MOST_NOISE, LEAST_NOISE, MOST_STEPS = 1e9, 1e-9, 80
DIGITS = 6
"""Noise is written down with so many, rounded up: the same on machines whose sums differ in the last bits."""


class Unreachable(ValueError):
    """No noise gives the wanted epsilon."""


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
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds!r}")
    if not 0 < rate <= 1:
        raise ValueError(f"rate must lie in (0, 1], not {rate!r}")
    check_wish(epsilon, delta)
    reach = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    return shrink(Claim(Unit.CLIENT, adjacency, Seat.CLIENT, (Gaussian(reach, rounds, rate),)), epsilon, delta, cells)


def noise_for(claim_at: Callable[[float], Claim], epsilon: float, delta: float) -> float:
    """The least noise z, to some digits, at which what a defence claims comes to at most epsilon.

    ``claim_at(z)`` is the defence's own claim with that noise, whatever it is made of: the accountant alone judges it.
    Where every mu falls as 1 / z, one look at z = 1 is enough; elsewhere (a part of the budget that has noise of its
    own, a rule that follows z) the answer is found by halving, and `Unreachable` says that there is none.
    """
    check_wish(epsilon, delta)
    first = claim_at(1.0)
    if all(isinstance(event, Gaussian) for event in first.events):
        guess = _up(shrink(first, epsilon, delta))
        for _ in range(3):
            found = account(claim_at(guess), delta).epsilon
            if ENOUGH * epsilon <= found <= epsilon:
                return guess
            if not epsilon < found <= 1.01 * epsilon:
                break
            guess = _up(guess * (1 + 2 * (found / epsilon - 1)))  # by a hair: two grids of the same distribution
    return _halved(claim_at, epsilon, delta)


def _halved(claim_at: Callable[[float], Claim], epsilon: float, delta: float) -> float:
    """By halving in the logarithm, between noise that is too little and noise that is enough."""

    def found(z: float) -> float:
        return account(claim_at(z), delta).epsilon

    high = 1.0
    while found(high) > epsilon:
        high *= 4
        if high > MOST_NOISE:
            raise Unreachable(f"no noise multiplier up to {MOST_NOISE:g} gives epsilon = {epsilon:g}")
    low = high / 4
    while found(low) <= epsilon:
        low, high = low / 4, low
        if high < LEAST_NOISE:
            return high  # what is asked for holds with next to no noise
    for _ in range(MOST_STEPS):
        middle = math.sqrt(low * high)
        value = found(middle)
        low, high = (low, middle) if value <= epsilon else (middle, high)
        if ENOUGH * epsilon <= value <= epsilon or high / low < 1 + 1e-7:
            break
    return _up(high)


@lru_cache(maxsize=1024)
def shrink(claim: Claim, epsilon: float, delta: float, cells: int = MOST_CELLS) -> float:
    """The factor by which every mu of a claim's Gaussian releases must be divided to come to epsilon at delta.

    Without sampling exact, in closed form; with it the root of the PLD, or a larger factor from RDP.
    """
    events = tuple(event for event in claim.events if isinstance(event, Gaussian) and event.mu > 0)
    if len(events) < len(claim.events):
        raise ValueError("only Gaussian releases can be scaled")
    unsampled = STEP * total_mu(events) / gdp_mu(epsilon, delta)
    if all(event.rate == 1 for event in events):
        return unsampled
    replaced = claim.adjacency is Adjacency.REPLACE_ONE
    high = _rdp_factor(epsilon, delta, events, replaced, unsampled)
    grouped = any(event.copies > 1 for event in events)
    if delta < SMALLEST_PLD_DELTA or (replaced and grouped):
        return high
    near = tuple(replace(event, mu=event.mu / high) for event in events)
    answer = ask_pld(near, replaced, delta, 2 * epsilon, cells, epsilon=epsilon, start=1.0)
    return high * min(1.0, answer.get("shrink", 1.0))


def _rdp_factor(
    epsilon: float, delta: float, events: tuple[Gaussian, ...], replaced: bool, high: float
) -> float:  # fmt: skip
    """The factor at which RDP prints epsilon, or `high` if that is less: more than needed, since RDP is loose."""
    from scipy.optimize import brentq

    def excess(log_factor: float) -> float:
        scaled = tuple(replace(event, mu=event.mu * math.exp(-log_factor)) for event in events)
        return min(rdp_epsilon(scaled, delta, replaced), 1e9) - epsilon

    if excess(math.log(high)) > 0:
        return high
    low = high / 2
    while excess(math.log(low)) < 0:
        low, high = low / 2, low
    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=5e-4) + 1e-3)


def check_wish(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or a delta that no noise gives."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), not {delta!r}: Gaussian noise never gives delta = 0")


def _up(noise: float) -> float:
    """The next larger number of so many digits."""
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - DIGITS)
    return float(f"{math.ceil(noise / unit) * unit:.{DIGITS}g}")
