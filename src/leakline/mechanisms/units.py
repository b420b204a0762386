"""Units: which records a few patients have, and which patient each example of a batch belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

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
        """Every record of the chosen units, and for each the place of its unit among them."""
        counts, starts = self.counts[chosen], self.counts.cumsum(0) - self.counts
        units = torch.repeat_interleave(torch.arange(len(chosen)), counts)
        within = torch.arange(len(units)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        return self.order[starts[chosen][units] + within], units

    def one_of(self, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One record of each chosen unit, drawn at random."""
        starts = self.counts.cumsum(0) - self.counts
        drawn = (torch.rand(len(chosen), generator=generator) * self.counts[chosen]).long()
        return self.order[starts[chosen] + drawn], torch.arange(len(chosen))


@dataclass(frozen=True)
class Members:
    """Whose the examples of one batch are: ``of[i]`` is the unit of example i, of 0, 1, 2, ... without a gap."""

    of: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """How many examples each unit has."""
        return torch.bincount(self.of)

    @cached_property
    def alone(self) -> bool:
        """Whether every example is a unit of its own, in the examples' order."""
        return torch.equal(self.of, torch.arange(len(self.of), device=self.of.device))

    @cached_property
    def _order(self) -> Tensor | None:
        """Examples unit by unit; None where they are given so."""
        return None if bool((self.of.diff() >= 0).all()) else torch.argsort(self.of, stable=True)

    @cached_property
    def _ends(self) -> list[int]:
        return [0, *self.counts.cumsum(0).tolist()]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def rows(self, first: int, last: int | None = None) -> slice | Tensor:
        """The examples of one unit, or of those from the first up to the last: a view's where they lie together."""
        place = slice(self._ends[first], self._ends[first + 1 if last is None else last])
        return place if self._order is None else self._order[place]

    def blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """Units in their order, by turns as many as have no more examples together than this, and at least one."""
        first = 0
        for last in range(1, len(self) + 1):
            if last == len(self) or self._ends[last + 1] - self._ends[first] > most:
                yield first, last
                first = last

    def add(self, values: Tensor) -> Tensor:
        """From one value for each example to their sum for each unit."""
        if self.alone:
            return values
        return values.new_zeros(len(self), *values.shape[1:]).index_add_(0, self.of.to(values.device), values)

    def mean(self, values: Tensor) -> Tensor:
        """From one value for each example to their mean for each unit."""
        if self.alone:
            return values
        counts = self.counts.to(values.device, values.dtype)
        return self.add(values) / counts.view(-1, *[1] * (values.dim() - 1))

    def spread(self, values: Tensor) -> Tensor:
        """From one value for each unit to the same for each of its examples."""
        return values if self.alone else values[self.of]
