"""From a claim and a delta to a guarantee.

    full participation, Gaussian     closed form, exact: mu = sqrt(sum times mu_i^2)
    pure                             sum of epsilons, delta = 0
    pure and Gaussian                exact for the worst pure mechanisms (randomised response)
    Poisson-sampled Gaussian         dp-accounting PLD within a budget of cells, else RDP, labelled loose

Amplification is claimed for Poisson sampling only; fixed-size sampling is accounted as full participation.
Central-limit "GDP" accounting of sampled releases is never used: it can print an epsilon below the truth.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from . import pld_worker
from .claims import Adjacency, Claim, Event, Gaussian, Guarantee, Pure, Unit
from .gdp import check_delta, gdp_epsilon, gdp_log_delta
from .pld_worker import CELLS, FINEST, MOST_CELLS

SMALLEST_PLD_DELTA = 1e-12  # below it, rounding in the PLD's Fourier transforms is no longer negligible
MOST_ATOMS = 200_000  # support points of composed randomised responses worth enumerating
FEWEST_CELLS = 200  # a PLD whose cells are wider than this share of epsilon is not worth asking for
RENYI_ORDERS = tuple(
    [1 + x / 10 for x in range(1, 10)] + [2 + x / 4 for x in range(36)] + [*range(11, 65), 128, 256, 512]
)

EXACT = "Gaussian (exact)"
PURE = "pure composition"
MIXED = "Gaussian and pure (exact)"
BASIC = "basic composition (loose)"
PLD = "PLD"
COARSE = "PLD, coarse (loose)"
RDP = "RDP (loose)"
UNAMPLIFIED = "Gaussian without amplification (loose)"


@lru_cache(maxsize=4096)
def account(claim: Claim, delta: float, cells: int = MOST_CELLS) -> Guarantee:
    """Compose a claim's events into one (epsilon, delta) guarantee, by the tightest method that applies.

    `cells` limits the PLD of sampled releases: work that is counted beforehand, not time, so that a card says the same
    on a busy machine. Where it would take more, or delta is too small for it, RDP answers, or the closed form without
    amplification where that is smaller.
    """
    check_delta(delta)
    pure = [event for event in claim.events if isinstance(event, Pure)]
    full = [event for event in claim.events if isinstance(event, Gaussian) and event.rate == 1]
    sampled = tuple(event for event in claim.events if isinstance(event, Gaussian) and event.rate < 1)
    mu = total_mu(full)
    paid = sum(event.times * event.epsilon for event in pure)
    if not sampled:
        if not pure:
            return Guarantee(gdp_epsilon(mu, delta), delta, mu, EXACT)
        if mu == 0:
            return Guarantee(paid, 0.0, None, PURE)
        atoms = math.prod(event.times + 1 for event in pure)
        if math.isfinite(mu + paid) and delta > 0 and atoms <= MOST_ATOMS:
            return _mixed(mu, pure, delta)
        return Guarantee(paid + gdp_epsilon(mu, delta), delta, None, BASIC, loose=True)
    part = _sampled((*sampled, *full), claim.adjacency is Adjacency.REPLACE_ONE, delta, cells)
    if not pure:
        return part
    return Guarantee(part.epsilon + paid, delta, None, f"{part.method} + {BASIC}", loose=True)


def total_mu(events: Sequence[Gaussian]) -> float:
    """Total mu of composed Gaussian releases without amplification: sqrt(sum times (copies mu)^2)."""
    return math.hypot(*(math.sqrt(event.times) * event.copies * event.mu for event in events))


def group(claim: Claim, k: int, unit: Unit | None = None) -> Claim:
    """The same releases, for a unit that owns k of the protected ones (a client made of k sub-clients).

    Gaussian: mu -> k mu, exact when the k contributions align. Pure: epsilon -> k epsilon. Poisson-sampled
    units are drawn one by one, so the number present is binomial: a mixture of Gaussians (`Gaussian.copies`).
    """
    if k < 1:
        raise ValueError(f"a group has at least 1 member, not {k!r}")
    return replace(claim, unit=unit or claim.unit, events=tuple(_grown(event, k) for event in claim.events))


def _grown(event: Event, k: int) -> Event:
    if isinstance(event, Pure):
        return replace(event, epsilon=k * event.epsilon)
    return replace(event, mu=k * event.mu) if event.rate == 1 else replace(event, copies=k * event.copies)


def replace_one(claim: Claim) -> Claim:
    """The same releases under replace-one: a unit is exchanged for another instead of added or removed.

    mu grows by the claim's `replace_factor`; pure epsilon doubles (one removal and one addition). Sampled
    releases keep mu's reading as twice one contribution, so they double whatever the factor.
    """
    if claim.adjacency is Adjacency.REPLACE_ONE:
        return claim
    events = tuple(
        replace(event, epsilon=2 * event.epsilon)
        if isinstance(event, Pure)
        else replace(event, mu=event.mu * (claim.replace_factor if event.rate == 1 else 2))
        for event in claim.events
    )
    return replace(claim, adjacency=Adjacency.REPLACE_ONE, events=events)


def allowed(guarantee: Guarantee, delta: float) -> float:
    """The largest epsilon at `delta` that the guarantee allows, infinite where it says nothing.

    (epsilon, delta)-DP implies the same epsilon at every larger delta; at a smaller one only mu-GDP speaks.
    """
    if guarantee.mu is not None:
        return gdp_epsilon(guarantee.mu, delta)
    return guarantee.epsilon if delta >= guarantee.delta else math.inf


def violated(guarantee: Guarantee, low: float, delta: float) -> bool:
    """Whether a measured lower bound `low` on epsilon at `delta` contradicts the guarantee."""
    return low > allowed(guarantee, delta) + 1e-9


def _mixed(mu: float, pure: Sequence[Pure], delta: float) -> Guarantee:
    """Gaussian releases beside pure ones.

    Each epsilon_i-DP mechanism is post-processing of randomised response (Kairouz, Oh, Viswanath 2015),
    whose privacy loss is +-epsilon_i, + with probability e^eps_i/(1 + e^eps_i). Given their sum s, the rest
    is Gaussian: delta(eps) = sum_s P(s) delta_mu(eps - s).
    """
    from scipy.special import gammaln

    loss, log_chance = np.zeros(1), np.zeros(1)
    for event in pure:
        t, j = event.times, np.arange(event.times + 1)
        log_binomial = gammaln(t + 1) - gammaln(j + 1) - gammaln(t - j + 1) + j * event.epsilon
        log_binomial = log_binomial - t * np.logaddexp(0.0, event.epsilon)
        loss = (loss[:, None] + event.epsilon * (2 * j - t)[None, :]).ravel()
        log_chance = (log_chance[:, None] + log_binomial[None, :]).ravel()

    def excess(epsilon: float) -> float:
        return float(np.logaddexp.reduce(log_chance + gdp_log_delta(mu, epsilon - loss))) - math.log(delta)

    def found(epsilon: float) -> Guarantee:
        advantage = min(1.0, math.exp(excess(0.0)) * delta)
        return Guarantee(epsilon, delta, None, MIXED, total_variation=advantage)

    if excess(0.0) <= 0:
        return found(0.0)
    from scipy.optimize import brentq

    high = sum(event.times * event.epsilon for event in pure) + gdp_epsilon(mu, delta) + 1e-9
    return found(float(brentq(excess, 0.0, high, xtol=1e-10)))


def _sampled(events: tuple[Gaussian, ...], replaced: bool, delta: float, cells: int) -> Guarantee:
    """Poisson-sampled releases, composed with full ones if there are any."""
    mu = total_mu(events)
    known = Guarantee(gdp_epsilon(mu, delta), delta, mu, UNAMPLIFIED, loose=True)
    moving = tuple(event for event in events if event.mu > 0)
    if not moving or math.isinf(mu) or delta == 0:
        return known
    renyi = Guarantee(rdp_epsilon(moving, delta, replaced), delta, None, RDP, loose=True)
    known = min(known, renyi, key=lambda guarantee: guarantee.epsilon)
    grouped = any(event.copies > 1 for event in moving)
    if delta >= SMALLEST_PLD_DELTA and not (replaced and grouped):
        answer = ask_pld(moving, replaced, delta, known.epsilon, cells)
        if answer and answer["epsilon"] <= known.epsilon:
            method, loose = (PLD, False) if answer["final"] else (COARSE, True)
            advantage = min(1.0, answer["total_variation"])
            return Guarantee(answer["epsilon"], delta, None, method, loose, advantage)
    return known


def rdp_epsilon(events: Sequence[Gaussian], delta: float, replaced: bool = False) -> float:
    """Renyi accounting of Gaussian releases: valid, fast, loose; infinite where it finds nothing.

    A group of k sampled units is bounded by all of them appearing when any does (rate 1 - (1 - q)^k,
    sensitivity k mu): the number present is stochastically smaller. Replacing is removing and adding, so
    (a, d) under add-remove with mu/2 gives (2a, (1 + e^a) d) under replace-one.
    """
    import logging

    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=RENYI_ORDERS)
    absl = logging.getLogger("absl")
    was, absl.disabled = absl.disabled, True  # it warns of orders left out, which only loosens the bound
    try:
        for event in events:
            rate = -math.expm1(event.copies * math.log1p(-event.rate)) if event.rate < 1 else 1.0
            noise = GaussianDpEvent((2 if replaced else 1) / (event.copies * event.mu))
            accountant.compose(PoissonSampledDpEvent(rate, noise) if rate < 1 else noise, event.times)
        if not replaced:
            return float(accountant.get_epsilon(delta))
        low, high = 0.0, 500.0  # beyond it delta / (1 + e^a) leaves the floating-point range
        if accountant.get_epsilon(delta / (1 + math.exp(high))) > high:
            return math.inf
        while high - low > 1e-6 * high:
            a = (low + high) / 2
            low, high = (low, a) if accountant.get_epsilon(delta / (1 + math.exp(a))) <= a else (a, high)
        return 2 * high
    finally:
        absl.disabled = was


def ask_pld(
    events: Sequence[Gaussian], replaced: bool, delta: float, scale: float, cells: int, **more: float
) -> dict[str, float]:
    """Put a question to `pld_worker`; empty where the answer would take more than so many cells.

    `scale` is roughly the epsilon to expect: it sets the first width of the distribution's cells.
    """
    rows: list[list[float]] = [[event.mu, event.times, event.rate, event.copies] for event in events]
    interval = max(FINEST, scale / CELLS)
    if pld_worker.cells(rows, interval) > cells:  # wider ones, unless they would say nothing
        interval = pld_worker.cells(rows, 1.0) / cells if cells else math.inf
    if not interval <= max(FINEST, scale / FEWEST_CELLS):
        return {}
    request = {
        "events": rows,
        "replace": replaced,
        "delta": delta,
        "interval": interval,
        "cells": cells,
        **more,
    }
    command = [sys.executable, "-P", pld_worker.__file__, json.dumps(request)]
    said = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).stdout
    lines = said.split(b"\n")[:-1]  # a line without its end was cut off
    answer: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return answer
