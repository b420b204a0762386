"""Noise shared out among hospitals: each adds a part, and the sum that secure aggregation shows has all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from leakline.defences.base import Terms
from leakline.defences.dp_sgd import DpSgd
from leakline.defences.noised import DELTA, needed
from leakline.errors import StackError
from leakline.mechanisms.treatment import Treatment
from leakline.privacy import Claim, Gaussian, NoClaim, Seat, account
from leakline.settings import setting
from leakline.strategies.combine import EVEN


@dataclass(frozen=True)
class DistributedDp(DpSgd):
    """DP-SGD whose noise is that of the *sum* over hospitals (after Truex et al. 2019, arXiv:1812.03224).

    client k:  (sum_i clip_C(g_i) + N(0, (z C)^2 / h I)) / B       z = noise_multiplier, C = clip, B = planned
    h = clients - missing - colluding: so many honest clients answer in every round, whoever they are

    The sum over any h of them has noise of standard deviation z C or more, as if a trusted server had added it, and
    one record (or patient) moves it by C: mu = 1 / z a round. That holds against whoever sees sums only: participants,
    and a server under secure aggregation (``secure_aggregation = "assumed"``; no protocol is run). Whoever sees a
    single update meets noise z / sqrt(h) only. ``missing``: how many clients may fail to answer, a share of them below
    1, a number from 1 on. ``colluding``: how many may tell the observer their own noise; a participant always knows
    its own.

    The promise is that of one local step a round (``max_steps = 1``) of plain SGD, where an update is the noised sum
    times a constant. With more steps the second follows what only its own client's noise has hidden, so what holds is
    the local promise, step by step, against anybody: mu = sqrt(h) / z each. ``rate`` and ``planned`` are needed: every
    client divides by the same public number. Departs from the paper in that noise is continuous (a protocol over a
    finite field has to round) and in who is counted as lost.
    """

    clients: int = needed()
    missing: float = setting(0.0)
    colluding: int = setting(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clients is None:
            raise ValueError("clients is needed: among how many of a round the noise is shared out")
        if not self.rate or not self.planned:
            raise ValueError(
                "rate and planned are needed: every client divides by the same public number (rate = 1: all)"
            )
        if not self.missing >= 0 or (self.missing >= 1 and self.missing != int(self.missing)) or self.colluding < 0:
            raise ValueError(f"missing is a share or a number, colluding a number: {self.missing}, {self.colluding}")
        if self.honest < 1:
            raise ValueError(
                f"of {self.clients} clients {self.lost} may be missing and {self.colluding} collude: "
                "nobody honest is left"
            )

    @property
    def lost(self) -> int:
        """How many clients of a round may fail to answer."""
        return math.ceil(self.missing * self.clients - 1e-9) if self.missing < 1 else int(self.missing)

    @property
    def honest(self) -> int:
        """How many honest clients answer at least."""
        return self.clients - self.lost - self.colluding

    @property
    def std(self) -> float:
        """A client's share of the noise."""
        return self.noise_multiplier * self.clip / math.sqrt(self.honest)

    @property
    def treatment(self) -> Treatment:
        """Whom sampling takes is not known."""
        return Treatment(unknown=(type(self).__name__,))

    def unsampled(self) -> DistributedDp:
        """With every record in every step."""
        return replace(self, rate=1.0)

    def check(self, federation: Terms) -> None:
        """Refuse other numbers of clients than the noise is shared among, and rounds that fewer could end."""
        super().check(federation)
        if federation.cohort.sampling == "poisson" or federation.expected() != self.clients:
            raise StackError(
                f"the noise is shared among {self.clients} clients, and a round has {federation.expected():g}"
                + (", more or less" if federation.cohort.sampling == "poisson" else ""),
                "distributed-dp",
                'set clients to how many a round has, with sampling = "full" or "fixed"',
            )
        if federation.cohort.quorum < self.clients - self.lost:
            raise StackError(
                f"a round may end with {federation.cohort.quorum} clients, and the noise counts on "
                f"{self.clients - self.lost}",
                "distributed-dp",
                f"set min_clients = {self.clients - self.lost}, or missing = {self.clients - federation.cohort.quorum}",
            )

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        """For the sum, where that is all that is seen; otherwise what each step of a client hides by itself."""
        alone = super().claim(federation, facts)
        if isinstance(alone, NoClaim):
            return alone
        local = replace(alone, events=tuple(_scaled(e, math.sqrt(self.honest)) for e in alone.events))
        if problem := self._not_a_sum(federation):
            why = f"the local promise, that of each step of a client by itself: {problem}"
            return replace(local, assumptions=(why, *local.assumptions))
        left = account(local, DELTA).epsilon
        return replace(
            alone,
            observer=Seat.CLIENT,
            assumptions=(
                "secure aggregation: the server sees the sum of a round's updates and is then promised the same; no "
                "protocol was run or checked",
                f"at least {self.honest} of {self.clients} clients answer, add their share of the noise and keep it to "
                f"themselves: {self.lost} may be missing, {self.colluding} collude",
                *alone.assumptions,
            ),
            outside=(
                f"whoever sees single updates: what is left is epsilon = {left:,.3g} at delta = {DELTA:g} (a client's "
                f"share alone, z / sqrt({self.honest}))",
                *alone.outside,
            ),
        )

    def _not_a_sum(self, federation: Terms) -> str:
        """Why what the observer sees is not the noised sum of all clients, or ""."""
        steps, plan = self.poisson_steps(federation.plan), federation.plan
        n, combine = federation.expected(), federation.strategy.combine
        moved = combine.influence(self.clip, n)
        if federation.cohort.secure_aggregation != "assumed":
            return 'the server sees single updates (secure_aggregation = "assumed" would have it see sums)'
        if steps > 1:
            return f"{steps} local steps a round (max_steps = 1 makes a round one noised sum)"
        if plan.optimiser != "sgd":
            return f"{plan.optimiser} bends the noised sum (use sgd)"
        if isinstance(moved, NoClaim) or moved > self.clip / n * (1 + 1e-9):
            return f"clients count differently in {type(combine).__name__} ({EVEN})"
        return ""


def _scaled(event: object, factor: float) -> Gaussian:
    assert isinstance(event, Gaussian)
    return replace(event, mu=event.mu * factor)
