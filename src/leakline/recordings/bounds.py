"""Does a clip bound follow the quantile that it is said to follow?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakline.messages import Round
from leakline.recordings.claims import Claimed
from leakline.recordings.findings import ALPHA, Finding, rounds_in_words
from leakline.recordings.released import SLACK

ROUNDED = 1e-6
"""A share of clients is off by less where no noise was added to its count."""


@dataclass(frozen=True)
class Step:
    """One round's bound, the next one's, and which share of so many clients was not clipped."""

    round: int
    bound: float
    after: float
    unclipped: float
    clients: int

    def shown(self, rate: float, quantile: float) -> float:
        """The share of unclipped clients that the step shows: log(C' / C) = -rate (b - quantile), solved for b."""
        return quantile - math.log(self.after / self.bound) / rate


def unclipped_share(round_: Round, claim: Claimed) -> float:
    """The share of a round's updates that its bound left as they were; at a client the clipped lie on the bound."""
    bound = claim.bound(round_.facts) or math.inf
    edge = bound * (1 - SLACK) if claim.clip_at == "client" else bound
    return sum(u.delta.norm() <= edge for u in round_.updates) / len(round_.updates)


def steps_of(shares: Mapping[int, tuple[float, int]], bounds: Mapping[int, float]) -> list[Step]:
    """The steps between rounds that follow each other; ``shares`` by round: unclipped, and of how many clients."""
    return [
        Step(index, bounds[index], bounds[index + 1], share, clients)
        for index, (share, clients) in sorted(shares.items())
        if index in bounds and index + 1 in bounds
    ]


def bound_finding(steps: Sequence[Step], claim: Claimed) -> Finding:
    """Every step against Andrew et al. (2021), eq. 3, with noise of std sigma_b on a count of n clients.

    (b shown - b recorded) n / sigma_b is standard normal in every round; their squares together are held against
    chi-square at `ALPHA`. Where the count's noise could hide that clipped and unclipped were swapped, nothing is said.
    """
    from scipy.stats import chi2

    assert claim.quantile is not None
    assert claim.rate is not None
    if not steps:
        return Finding("clip bound", "cannot say", "no round is recorded with all its updates and the next one's bound")
    told = [step.shown(claim.rate, claim.quantile) for step in steps]
    stds = [max((claim.bits_noise or 0.0) / step.clients, ROUNDED) for step in steps]
    most = float(chi2.isf(ALPHA, len(steps))) if claim.bits_noise else float(len(steps))

    def misfit(shares: Sequence[float]) -> float:
        return sum(((t - share) / std) ** 2 for t, share, std in zip(told, shares, stds, strict=True))

    right, swapped = [s.unclipped for s in steps], [1 - s.unclipped for s in steps]
    apart = sum(((a - b) / std) ** 2 for a, b, std in zip(right, swapped, stds, strict=True))
    numbers = {"steps": float(len(steps)), "first": steps[0].bound, "last": steps[-1].after, "misfit": misfit(right)}
    moved = f"the bound went from {steps[0].bound:.4g} to {steps[-1].after:.4g} in {len(steps)} steps"
    rule = f"the {claim.quantile:g} quantile at rate {claim.rate:g}"
    if misfit(right) > most:
        off = [s.round for s, t, std in zip(steps, told, stds, strict=True) if abs(t - s.unclipped) > 3 * std]
        reason = f"it does not follow {rule}, as {rounds_in_words(off)} show{'s' if len(off) == 1 else ''}"
        if misfit(swapped) <= most:
            reason = f"as if clipped and unclipped updates were swapped: it runs away from {rule}"
        return Finding("clip bound", "broken", f"{moved}; {reason}", numbers, tuple(off))
    if apart <= most:
        return Finding("clip bound", "cannot say", f"{moved}; the noise on its counts could hide anything", numbers)
    return Finding("clip bound", "holds", f"{moved}, following {rule}", numbers)
