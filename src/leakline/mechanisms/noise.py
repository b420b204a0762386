"""Gaussian noise on a grid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakline.randomness import Noise


def lattice(std: float, size: int) -> float:
    """Width of the grid that a release is rounded to: a power of two, tiny beside the noise.

    g <= 1e-6 * std / sqrt(size): rounding the input moves it by at most g * sqrt(size) / 2, so the sensitivity in
    units of the noise grows by less than 1e-6, which no printed epsilon can show.
    """
    return float(2.0 ** math.floor(math.log2(1e-6 * std / math.sqrt(max(size, 1)))))


def add_gaussian(change: Tensor, std: float, noise: Noise) -> Tensor:
    """Change + N(0, std^2 I), hardened against attacks on the low bits of floating-point noise.

    In float32, or even float64, the low bits of a + b betray a (Mironov 2012). Therefore input and noise are both
    rounded to a common grid before they are added: round(a) + round(b) = round(round(a) + b) is then exactly a
    function of the ideal continuous release. This resists the known attacks; it is not a proof about the sampler.
    Seeded noise protects nobody and takes the fast road.
    """
    if std < 0 or not math.isfinite(std):
        raise ValueError(f"a standard deviation must be finite and not negative: {std}")
    if std == 0:
        return change
    # float32 holds no grid finer than 2^-149, and below that a model's weights do not move anyway.
    if not noise.private:
        return change + noise.normal(change.numel()).to(change.dtype).mul_(std).to(change.device)
    grid = lattice(std, change.numel())
    release = noise.normal(change.numel()).mul_(std / grid).round_()
    # Out of place first, since double() may be the input itself; the grid is a power of two, so its inverse is exact.
    release.add_(change.detach().cpu().double().mul(1 / grid).round_()).mul_(grid)
    return release.to(device=change.device, dtype=change.dtype)


def standard_normals(size: int, noise: Noise) -> Tensor:
    """Plain float32 standard normals from a noise source."""
    return noise.normal(size).to(torch.float32)
