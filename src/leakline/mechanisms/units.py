"""Batches of units: which records a few patients have, and which patient each of those records belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Units:
    """The units of a client: ``order`` lists its records unit by unit, ``counts`` says how many each has."""

    order: Tensor
    counts: Tensor

    @classmethod
    def of(cls, groups: Tensor) -> Units:
        """From the group of each record."""
        _, inverse = torch.unique(groups, return_inverse=True)
        return cls(torch.argsort(inverse, stable=True), torch.bincount(inverse))

    def __len__(self) -> int:
        return len(self.counts)

    def all_of(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Every record of the chosen units, and for each the place of its unit among them, smaller units first."""
        chosen = chosen[torch.argsort(self.counts[chosen], stable=True)]  # units of one size lie together: views do
        counts, starts = self.counts[chosen], self.counts.cumsum(0) - self.counts
        units = torch.repeat_interleave(torch.arange(len(chosen)), counts)
        within = torch.arange(len(units)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return self.order[starts[chosen][units] + within], units

    def one_of(self, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One record of each chosen unit, drawn at random."""
        starts = self.counts.cumsum(0) - self.counts
        drawn = (torch.rand(len(chosen), generator=generator) * self.counts[chosen]).long()
        return self.order[starts[chosen] + drawn], torch.arange(len(chosen))
