"""Paper 001's filter: Gaussian noise relative to the update's own size. A heuristic, and labelled as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import torch

from leakline.defences.base import Defence, Terms
from leakline.mechanisms import add_gaussian
from leakline.mechanisms.treatment import Act, Treatment
from leakline.messages import Turn, Update
from leakline.privacy import Claim, NoClaim


@dataclass(frozen=True)
class PercentileGaussian(Defence):
    """Relative Gaussian noise (heuristic): std = sigma0 x a percentile of the update's own absolute values.

    update + N(0, (sigma0 P_q(|update|))^2 I)        q = percentile

    ``over``: the percentile of all values, or of the non-zero ones as the released code takes it. ``buffers``:
    "in" counts and noises BatchNorm statistics with the rest, as released; "out" leaves them alone. Multiply an
    update by ten and its noise grows tenfold: nothing bounds what one record or client can do, so nothing is
    promised.
    """

    sigma0: float
    percentile: float = 95.0
    over: Literal["all", "non-zero"] = "all"
    buffers: Literal["in", "out"] = "in"

    def __post_init__(self) -> None:
        if not self.sigma0 >= 0:
            raise ValueError(f"sigma0 must not be negative: {self.sigma0}")
        if not 0 <= self.percentile <= 100:
            raise ValueError(f"percentile must lie in [0, 100]: {self.percentile}")

    @property
    def loudness(self) -> float:
        """Sigma0."""
        return self.sigma0

    @property
    def treatment(self) -> Treatment:
        """Noise of a size that shows in what was sent: see `std_seen`."""
        return Treatment(updates=(Act(noise=self.std_seen, buffers=self.buffers == "in"),))

    def std_seen(self, seen: torch.Tensor) -> float:
        """The noise's standard deviation as the values that were sent betray it.

        The smaller of two estimates that are both rather too large: sigma0 times the percentile of what was sent,
        which noise has raised, and the spread of its middle half, where few values of an update are not small.
        """
        middle = float(seen.detach().abs().median()) / NormalDist().inv_cdf(0.75)
        return min(self.sigma0 * percentile_of(seen, self.percentile, self.over), middle)

    def release(self, update: Update, turn: Turn) -> Update:
        """Add noise in proportion to the update."""
        parameters = sum(e.size for e in update.delta.layout.entries if not e.buffer or self.buffers == "in")
        covered, rest = update.delta.vector[:parameters], update.delta.vector[parameters:]
        std = self.sigma0 * percentile_of(covered, self.percentile, self.over)
        turn.facts["percentile_std"] = std
        return update.with_delta(torch.cat([add_gaussian(covered, std, turn.noise()), rest]))

    def claim(self, federation: Terms, facts: Sequence[Mapping[str, float]] = ()) -> Claim | NoClaim:
        """None: sensitivity and noise both follow the data."""
        return NoClaim(
            "nothing bounds an update, and the noise follows the update's own size",
            "gaussian-release clips first and promises something for the same kind of noise",
        )


def percentile_of(values: torch.Tensor, percentile: float, over: Literal["all", "non-zero"]) -> float:
    """The percentile of absolute values, linear between neighbours as in NumPy; 0 where there are none.

    (torch.quantile refuses more than 16 million values; a partial sort does not.)
    """
    size = values.detach().abs().double().flatten()
    if over == "non-zero":
        size = size[size > 0]
    if size.numel() == 0:
        return 0.0
    place = percentile / 100 * (size.numel() - 1)
    low = int(place)
    first = float(torch.kthvalue(size, low + 1).values)
    if place == low:
        return first
    return first + (place - low) * (float(torch.kthvalue(size, low + 2).values) - first)
