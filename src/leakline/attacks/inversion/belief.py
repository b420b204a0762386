"""What an attacker believes of images before any update: a Gaussian learned from public ones.

    x = mean + sum_k s_k z_k v_k + d * H(a z')        z, z' ~ N(0, I)

v_k are the first principal components of the public images and s_k the spread of images that were held out along them;
what components of the others leave of an image has the spread d at each pixel and, divided by that, the power spectrum
a^2. H is Hartley's transform, Fourier's with real and imaginary part in one: orthogonal and its own inverse, so z' are
amplitudes of frequencies. Held out by turns: components fit the images that they were made from too well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

COMPONENTS = 20
"""Principal components at most. Of 0, 20 and 60, 20 did best on X-rays that no reported figure uses."""
FOLDS = 5
FEWEST = 20
"""With fewer public images there is no belief to speak of beyond their mean."""


@dataclass(frozen=True, eq=False)
class Belief:
    """``mean``, ``deviation`` [1, C, H, W]; ``components`` [K, C H W], spread included; ``spectrum`` a [C, H, W]."""

    mean: Tensor
    components: Tensor
    deviation: Tensor
    spectrum: Tensor

    @property
    def size(self) -> int:
        """Unknowns of one image."""
        return len(self.components) + self.mean.numel()

    def draw(self, unknowns: Tensor) -> Tensor:
        """Images [N, C, H, W] of standard normal unknowns [N, size]."""
        along, rest = unknowns[:, : len(self.components)], unknowns[:, len(self.components) :]
        shape = (-1, *self.mean.shape[1:])
        fine = hartley(self.spectrum * rest.view(shape))
        drawn: Tensor = self.mean + (along @ self.components).view(shape) + self.deviation * fine
        return drawn


def hartley(images: Tensor) -> Tensor:
    """The orthonormal discrete Hartley transform of the last two axes, its own inverse."""
    waves = torch.fft.fft2(images, norm="ortho")
    found: Tensor = waves.real - waves.imag
    return found


def believe(images: Tensor) -> Belief:
    """The belief that public images [N, C, H, W] teach."""
    count, shape = len(images), images.shape[1:]
    mean = images.mean(0, keepdim=True)
    flat = (images - mean).flatten(1)
    keep = min(COMPONENTS, count // 4)
    fold = torch.arange(count) % FOLDS
    left, along = torch.zeros_like(flat), torch.zeros(keep)
    for number in range(FOLDS):
        others = flat[fold != number]
        centre = others.mean(0)
        basis = torch.linalg.svd(others - centre, full_matrices=False).Vh[:keep]
        held = flat[fold == number] - centre
        shares = held @ basis.T
        left[fold == number] = held - shares @ basis
        along += shares.square().sum(0) / count
    spread = functional.pad(left.square().mean(0).view(1, *shape), (2, 2, 2, 2), mode="replicate")
    deviation = functional.avg_pool2d(spread, 5, 1).sqrt().clamp_min(1e-4)
    power = torch.fft.fft2(left.view(-1, *shape) / deviation, norm="ortho").abs().square().mean(0)
    basis = torch.linalg.svd(flat, full_matrices=False).Vh[:keep]
    return Belief(mean, along.sqrt()[:, None] * basis, deviation, power.sqrt())
