"""Is what a claim counts what the hooks do? Cohorts, batches and rounds, held against the claim's events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from leakline.attacks.audit.law import FAR, LEVEL, Departure
from leakline.federation import Federation
from leakline.privacy import Claim, Gaussian, Unit

BoolArray = npt.NDArray[np.bool_]

DRAWS = 1000
"""Cohorts (or batches) that are looked at."""


def miscounted(federation: Federation, claim: Claim) -> list[Departure]:
    """Where a claim's sampling or its number of releases is not what the federation does."""
    found = []
    # A report is one round's: its promise is not of all rounds together.
    if claim.unit in (Unit.CLIENT, Unit.SUB_CLIENT) and claim.releases < federation.rounds:
        found.append(
            Departure(f"{federation.rounds} rounds are played and {claim.releases} releases are counted", True)
        )
    rates = {event.rate for event in claim.events if isinstance(event, Gaussian)}
    rate = min(rates, default=1.0)
    if rate == 1:
        return found
    if claim.unit in (Unit.RECORD, Unit.PATIENT):
        return found + not_poisson(batches(federation), rate, "batches")
    return found + not_poisson(cohorts(federation), rate, "cohorts")


def cohorts(federation: Federation) -> BoolArray:
    """Who takes part in each of many rounds: (rounds, clients)."""
    names = [client.name for client in federation.task.clients]
    drawn = [set(federation.invited(index)) for index in range(DRAWS)]
    return np.array([[name in here for name in names] for here in drawn])


def batches(federation: Federation, examples: int = 12) -> BoolArray:
    """Which records are in each of many steps of the gradient's owner: (steps, records)."""
    rows: list[BoolArray] = []
    index = 0
    while len(rows) < DRAWS:
        turns = federation.turns_of(federation.task.clients[0].name, index, {}, groups=torch.arange(examples))
        steps = federation.stack.batches(examples, federation.plan, turns)
        if steps is None:
            return np.ones((DRAWS, examples), dtype=bool)
        for chosen in steps:
            row = torch.zeros(examples, dtype=torch.bool)
            row[chosen] = True
            rows.append(row.numpy())
        index += 1
    return np.array(rows[:DRAWS])


def not_poisson(present: BoolArray, rate: float, what: str) -> list[Departure]:
    """How draws depart from independent ones with probability ``rate``.

    Each unit's frequency and each unit's returning in the next draw are binomial (the second in two halves, so that
    its trials are independent); sizes have variance n q (1 - q).
    """
    draws, units = present.shape
    counts = present.sum(axis=0)
    worst = int(counts.max())
    found = []
    if stats.binom.sf(worst - 1, draws, rate) < LEVEL:
        found.append(
            Departure(f"a rate of {rate:g} is claimed, and {what} hold one unit in {worst} of {draws} draws", True)
        )
        return found
    if stats.binom.cdf(int(counts.min()), draws, rate) < LEVEL:
        found.append(
            Departure(f"{what} hold one unit in {counts.min()} of {draws} draws, fewer than {rate:g} of them", False)
        )
    pairs = present[:-1:2] & present[1::2]
    again = int(pairs.sum())
    if stats.binom.sf(again - 1, pairs.size, rate**2) < LEVEL:
        found.append(
            Departure(f"{what} of neighbouring draws hold the same units too often for independent ones", True)
        )
    variance = float(present.sum(axis=1).var())
    expected = units * rate * (1 - rate)
    far = (variance / expected - 1) / np.sqrt((2 + (1 - 6 * rate * (1 - rate)) / expected) / draws)
    if abs(far) > FAR:
        found.append(
            Departure(
                f"sizes of {what} have variance {variance:.3g}, not the {expected:.3g} of independent (Poisson) draws",
                True,
            )
        )
    return found
