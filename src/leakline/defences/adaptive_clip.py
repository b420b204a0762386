"""Client-level differential privacy with a clip bound that follows a private quantile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from leakline.defences.base import Promises, Reach, Terms
from leakline.defences.global_dp import GlobalDP, adjacency_of, client_level, unbounded
from leakline.mechanisms import add_gaussian, clip_norm, follow_quantile, median_bound, norm_of, split_budget
from leakline.messages import Receipt, Turn, Update
from leakline.privacy import Adjacency, NoClaim
from leakline.weights import Weights


@dataclass(frozen=True)
class AdaptiveClip(GlobalDP):
    """Global DP whose clip bound follows the ``quantile`` of the update norms (Andrew et al. 2021, Alg. 1).

    C <- C exp(-rate (b - quantile))      b = noised fraction of clients whose update was *not* clipped

    ``clip`` is the bound of the first round. The bits are noised with std ``bits_noise`` (on their sum); the
    updates get the multiplier z_delta that makes both releases together as private as one with
    ``noise_multiplier``. "auto" is n/20 as in the paper, but at least z: with a handful of hospitals n/20 would
    spend more than the whole budget. The updates of a round get noise for the bound they were clipped to; only
    then does the bound move. (Flower 1.41 moves it first, and away from the quantile.)

    ``reading = "paper"`` is what the released code of paper 004 calls adaptive clipping: the bound of a round is the
    exact median of that round's norms, at most ``cap``, and the noise follows it. No bit is noised, so nothing is
    promised; all updates of a round lie in memory at once. ``clip``, ``quantile``, ``rate`` and ``bits_noise`` then
    mean nothing.
    """

    clip: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    bits_noise: float | Literal["auto"] = "auto"
    reading: Literal["sound", "paper"] = "sound"
    cap: float = 25.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must lie between 0 and 1: {self.quantile}")
        if self.reading not in ("sound", "paper"):
            raise ValueError(f'reading must be "sound" or "paper": {self.reading!r}')
        if not self.cap > 0:
            raise ValueError(f"cap must be positive: {self.cap}")
        if self.epsilon is not None and self.bits_noise != "auto":
            raise ValueError('an epsilon decides the noise of updates and bits together: leave bits_noise = "auto"')
        if self.bits_noise != "auto":
            split_budget(self.noise_multiplier, self.bits_noise)

    @property
    def reach(self) -> Reach:
        """The bound follows a count of clients."""
        return "all"

    def stated(self, clients: float) -> Mapping[str, float]:
        """The first bound, the updates' share of the noise, and how the bound moves."""
        if self.reading == "paper":
            return {}
        bits = self._bits_std(clients)
        more = {"quantile": self.quantile, "rate": self.rate, "bits_noise": bits if self.noise_multiplier else 0.0}
        covered = super().stated(clients)
        return {**covered, "noise_multiplier": split_budget(self.noise_multiplier, bits), **more} if covered else {}

    def admit(self, updates: Iterator[Update], turn: Turn) -> Iterator[Update]:
        """Clip each update to the current bound and count who fitted."""
        if self.reading == "paper":
            held = list(updates)
            turn.memory["clip"] = median = median_bound([self.norm(u.delta) for u in held] or [self.cap], self.cap)
            for update in held:
                yield update.with_delta(self._covered(update.delta, lambda v: clip_norm(v, median)))
            return
        bound = float(turn.memory.setdefault("clip", self.clip))
        turn.memory["fitted"] = 0
        for update in updates:
            norms: list[float] = []

            def clip(v: torch.Tensor, norms: list[float] = norms) -> torch.Tensor:
                norms.append(norm_of(v))
                return clip_norm(v, bound)

            clipped = self._covered(update.delta, clip)
            turn.memory["fitted"] += norms[0] <= bound
            yield update.with_delta(clipped)

    def publish(self, change: Weights, cohort: Sequence[Receipt], turn: Turn) -> Weights:
        """Noise the mean for the bound in force, then move the bound."""
        if self.reading == "paper":
            return self._at_median(change, self.divided(cohort, turn), turn)
        # Nobody may have been sampled: then `admit` never ran.
        bound, n = float(turn.memory.get("clip", self.clip)), self.divided(cohort, turn)
        bits_std = self._bits_std(turn.expected)
        std = split_budget(self.noise_multiplier, bits_std) * bound / n
        noised = self._covered(change, lambda v: add_gaussian(v, std, turn.noise()))

        centred = turn.memory.pop("fitted", 0) - len(cohort) / 2
        bits_noise = turn.noise("bits").normal(1).item() * bits_std if self.noise_multiplier else 0.0
        fraction = (centred + bits_noise) / n + 0.5
        turn.memory["clip"] = follow_quantile(bound, fraction, self.quantile, self.rate)
        turn.facts.update(noise_std=std, clip=bound, unclipped_noised=fraction)
        return change.like(noised)

    def _at_median(self, change: Weights, clients: float, turn: Turn) -> Weights:
        """Noise for the round's median."""
        bound = float(turn.memory.pop("clip", self.cap))
        std = self.noise_multiplier * bound / clients
        turn.facts.update(noise_std=std, clip=bound)
        return change.like(self._covered(change, lambda v: add_gaussian(v, std, turn.noise())))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Promises:
        """As global DP with the same noise multiplier: the bits' share is paid inside it.

        A client that comes or goes moves the sum of centred bits by 1/2, as `split_budget` has it. One that sends
        zeros instead of its update still counts, and turns its bit over: under zero-out that costs 3 / (4 sigma_b^2)
        more, in mu^2.
        """
        if self.reading == "paper":
            return NoClaim(
                "the clip bound is the un-noised median of the clients' own norms, and the size of the noise tells it",
                'set reading = "sound": the bound then follows a noised quantile, within the same budget',
            )
        if self.noise_multiplier == 0:
            return NoClaim(
                "no noise is added (noise multiplier 0), and the clip bound follows the data",
                "set noise_multiplier above 0",
            )
        if problem := unbounded(self, federation):
            return problem
        mu = 1 / self.noise_multiplier
        if adjacency_of(self, federation) is Adjacency.ZERO_OUT:
            mu = math.hypot(mu, math.sqrt(0.75) / self._bits_std(federation.expected()))
        return client_level(mu, self, federation)

    def _bits_std(self, expected: float) -> float:
        return max(expected / 20, self.noise_multiplier) if self.bits_noise == "auto" else self.bits_noise
