r"""What one step of Adam leaves of a gradient: its sign, and bounds on its size that are tight where it is small.

With its state from zero, Adam's first step moves a weight by

    -eta r        r = g / (|g| + eps),  eps = 1e-8

which looks like the sign of g alone. But r is not quite +-1: |g| = eps |r| / (1 - |r|), and the update tells r up to
the rounding of the weight that was moved, delta = (half a unit in the last place) / eta. So

    eps (|r| - delta) / (1 - |r| + delta)  <=  |g|  <=  eps (|r| + delta) / (1 - |r| - delta)

and there is no upper bound where |r| + delta >= 1. At a rate of 0.01 a gradient of 1e-4 on a weight of 0.1 is known to
within one per cent, one of 0.1 by its sign and as "more than 0.01". A search then asks that every gradient lies within
its bounds: that is so of the true images, and how far others miss has a derivative everywhere, which the mismatch of
sign-like steps has not. (Signs alone determine a direction, as in one-bit compressed sensing.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.attacks.inversion.simulate import EPSILON

ULP = 2.0**-23
"""Float32's unit in the last place, of one."""


@dataclass(frozen=True)
class Bounds:
    """Between what each value of an entry's gradient lies, infinite where nothing bounds it."""

    low: Tensor
    high: Tensor

    @property
    def middle(self) -> Tensor:
        """The likeliest gradient: the middle, or the finite end where there is one."""
        return torch.where(
            self.low.isinf(), self.high, torch.where(self.high.isinf(), self.low, (self.low + self.high) / 2)
        )

    @property
    def width(self) -> Tensor:
        """How far the ends are apart."""
        return self.high - self.low


def bounds(change: Tensor, start: Tensor, rate: float) -> Bounds:
    """Of an entry's gradient (weight decay included), from its change in one step of Adam and where it started."""
    moved = (-change.double() / rate).clamp(-1, 1)
    after = start.double() + change.double()
    # Half a unit of the moved weight and of the difference that was sent; and the step's own arithmetic.
    slack = ULP * ((after.abs() + change.double().abs()) / rate + 4 * moved.abs()) / 2 + 1e-30
    near, far = ((moved.abs() + sign * slack).clamp_min(0.0) for sign in (-1, 1))
    least = EPSILON * near / (1 - near)
    most = torch.where(far < 1, EPSILON * far / (1 - far).clamp_min(1e-300), torch.inf)
    unsure = near == 0  # the sign is lost in rounding
    low = torch.where(unsure, -most, torch.where(moved > 0, least, -most))
    high = torch.where(unsure, most, torch.where(moved > 0, most, -least))
    return Bounds(low.float(), high.float())


def outside(made: Mapping[str, Tensor], known: Mapping[str, Bounds]) -> Tensor:
    """How far gradients miss their bounds: the sum of squares, over that of the least sizes that they can have."""
    missed, size = [], 0.0
    for name, b in known.items():
        gradient = made[name]
        missed.append(((b.low - gradient).clamp_min(0) + (gradient - b.high).clamp_min(0)).square().sum())
        size += float(torch.minimum(b.low.abs(), b.high.abs()).square().sum())
    return torch.stack(missed).sum() / max(size, 1e-30)
