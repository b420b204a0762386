"""Units: which records a few patients have, and which patient each example of a batch belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
class Pack:
    """Units side by side, each filled up to the size of the largest of them.

    ``places``: a row for each unit, the examples that it has, then its last one again where ``filled``.
    """

    units: Tensor
    places: Tensor
    filled: Tensor | None

    def of(self, values: Tensor, quiet: bool = False) -> Tensor:
        """Unit x position x feature, from example x position x feature; ``quiet``: 0 where it is filled up."""
        found = values[self.places.to(values.device)]
        if quiet and self.filled is not None:
            found.masked_fill_(self.filled.to(values.device)[:, :, None, None], 0)  # not times 0: it may be infinite
        return found.flatten(1, 2)


FILL = 3
"""How many times as many examples units of all sizes may become where they are filled up to the largest."""


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
    def strangers(self) -> Tensor:
        """Of each two examples, whether they are of different units."""
        return self.of[:, None] != self.of

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

    def packs(self, most: int) -> list[Pack]:
        """As `_dealt`, once for all layers."""
        if most not in self._packs:
            self._packs[most] = list(self._dealt(most))
        return self._packs[most]

    @cached_property
    def _packs(self) -> dict[int, list[Pack]]:
        return {}

    def unpacked(self, parts: Sequence[Tensor], most: int) -> Tensor:
        """From one value for each unit of each pack to one for each unit, in their order."""
        if len(parts) == 1:
            return parts[0]
        found, places = torch.cat(list(parts)), torch.cat([pack.units for pack in self.packs(most)])
        return torch.empty_like(found).index_copy_(0, places.to(found.device), found)

    def _dealt(self, most: int) -> Iterator[Pack]:
        """All units, by turns at most as many as come to this many examples, and at least one.

        Units of very different sizes are packed by powers of 2, so that none becomes more than twice as large.
        """
        counts = self.counts.tolist()
        largest = max(counts, default=0)
        if len(self) * largest <= min(FILL * len(self.of), most):
            yield self._pack(torch.arange(len(self)), largest, min(counts) == largest)
            return
        classes: dict[int, list[int]] = {}
        for unit, count in enumerate(counts):
            classes.setdefault((count - 1).bit_length(), []).append(unit)
        for units in classes.values():
            size = max(counts[u] for u in units)
            for part in torch.split(torch.tensor(units), max(1, most // size)):
                yield self._pack(part, max(counts[u] for u in part.tolist()), False)

    def _pack(self, units: Tensor, size: int, full: bool) -> Pack:
        units = units.to(self.of.device)
        counts, starts = self.counts[units], (self.counts.cumsum(0) - self.counts)[units]
        steps = torch.arange(size, device=self.of.device)
        within = steps if full else torch.minimum(steps, counts[:, None] - 1)
        places = starts[:, None] + within
        filled = None if full else steps >= counts[:, None]
        return Pack(units, places if self._order is None else self._order[places], filled)

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
