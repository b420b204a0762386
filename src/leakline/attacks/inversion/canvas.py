"""Images as the search sees them: a start, and a change that is added to it from coarse to fine.

At a coarse level the unknowns pass a filter that keeps low frequencies only and scales them by 1 / frequency, the decay
that natural and medical images have. A network's deep features vary wildly with fine detail, and a search that starts
with all pixels free settles in noise; the coarse problem has few unknowns, and the fine one continues it. At the last
level the unknowns are the pixels themselves: there the scaling would only slow the fine detail down.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from leakline.attacks.inversion.belief import Belief


@dataclass(frozen=True)
class Canvas:
    """``count`` images around ``start`` [1 or count, C, H, W]; ``channels`` of the network.

    A grey canvas has one channel, repeated for a network that takes three. With a ``belief`` the unknowns are standard
    normal ones of its own, and there are no levels.
    """

    start: Tensor
    count: int
    channels: int
    belief: Belief | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the images that the unknowns stand for."""
        return (self.count, *self.start.shape[1:])

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return prod(self.shape) if self.belief is None else self.count * self.belief.size

    @cached_property
    def frequency(self) -> Tensor:
        """Cycles per pixel of every coefficient of a real Fourier transform."""
        height, width = self.shape[-2:]
        return torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None])

    def change(self, unknowns: Tensor, level: float = 1.0) -> Tensor:
        """What is added to the start; ``level`` is the share of frequencies that count, 1 for free pixels."""
        given = unknowns.view(self.shape)
        if level >= 1:
            return given
        falling = self.frequency.new_ones(()) / self.frequency.clamp_min(1 / max(self.shape[-2:]))
        scale = falling / falling.square().mean().sqrt() * (self.frequency <= level / 2)
        coarse: Tensor = torch.fft.irfft2(torch.fft.rfft2(given, norm="ortho") * scale, s=self.shape[-2:], norm="ortho")
        return coarse

    def draw(self, unknowns: Tensor, level: float = 1.0) -> Tensor:
        """The images [count, channels, H, W]."""
        if self.belief is None:
            images = self.start + self.change(unknowns, level)
        else:
            images = self.belief.draw(unknowns.view(self.count, -1))
        return images.expand(-1, self.channels, -1, -1) if self.shape[1] != self.channels else images
