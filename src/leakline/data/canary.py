"""A client that an examiner puts into a federation: it sends what the examiner chose, and trains on nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.randomness import Stream


@dataclass(frozen=True)
class Canary:
    """What such a client sends in place of a trained update: ``sign x length`` along one direction, round by round.

    The direction is random (of ``seed``), or the single value at ``axis``. A length of 0 is a client that takes part
    and sends nothing. Everything after training is as for any other client: its updates pass the whole stack.
    """

    seed: int
    length: float
    signs: tuple[int, ...]
    axis: int | None = None

    def direction(self, size: int) -> Tensor:
        """The unit vector, float32."""
        if self.axis is not None:
            vector = torch.zeros(size)
            vector[self.axis] = 1.0
            return vector
        vector = torch.randn(size, generator=Stream(self.seed, -1, "canary", "direction").torch())
        length = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return vector.div_(length)

    def change(self, index: int, size: int) -> Tensor:
        """What it sends in round ``index``."""
        if not self.length:
            return torch.zeros(size)
        return self.direction(size).mul_(self.length * self.signs[index % len(self.signs)])
