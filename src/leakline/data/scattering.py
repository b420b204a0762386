r"""Wavelet scattering: features that nobody trained, so that they cost no privacy (Bruna, Mallat 2013; Oyallon 2017).

    S0 = x * phi_J        S1 = |x * psi_j| * phi_J        S2 = ||x * psi_j| * psi_k| * phi_J        j < k < J

each taken at every 2^J-th position. psi_j is a Morlet wavelet, a wave under a Gaussian bell less as much of the bell as
makes its mean zero; at scale j it is 2^j times as wide. phi_J is a Gaussian bell:

    bell width 0.8 * 2^j    frequency (3/4) pi / 2^j    slant 4 / L across the wave's direction    phi_J: 0.8 * 2^(J-1)

Images have L directions, theta = pi l / L; signals have one. |x * psi_j| is taken at every 2^j-th position, as is
usual: about 1 % off on white noise, where it is rough. Coordinates are mirrored beyond the edges. An image gives
1 + J L + L^2 J (J - 1) / 2 channels for each of its own, a signal 1 + J + J (J - 1) / 2. The constants are those of
kymatio (Andreux et al. 2020), with which images agree; its signals have other wavelets (Q to an octave).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

BELL, FREQUENCY = 0.8, 0.75 * math.pi
TAILS = 2
"""How many periods of the grid on each side a filter's tails are folded in from."""


@dataclass(frozen=True)
class Bank:
    """The filters for inputs of a size (H, W) or (T,), by their Fourier transforms, which are real."""

    size: tuple[int, ...]
    scales: int
    directions: int

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """The size with mirrored edges of at least 2^J each: a multiple of 2^J."""
        step = 2**self.scales
        return tuple((-(-n // step) + 2) * step for n in self.size)

    @cached_property
    def low(self) -> Tensor:
        """phi_J."""
        return _fourier(self.padded, BELL * 2 ** (self.scales - 1), 0.0, 0.0, 1.0).real.float()

    @cached_property
    def waves(self) -> tuple[Tensor, ...]:
        """psi_j for every direction, [L, ...] by scale."""
        return tuple(self._waves(j) for j in range(self.scales))

    def _waves(self, j: int) -> Tensor:
        count = self.directions if len(self.size) == 2 else 1
        slant = 4 / self.directions if len(self.size) == 2 else 1.0
        width, frequency, waves = BELL * 2**j, FREQUENCY / 2**j, []
        for number in range(count):
            angle = math.pi * number / count
            wave = _fourier(self.padded, width, frequency, angle, slant)
            bell = _fourier(self.padded, width, 0.0, angle, slant)
            origin = (0,) * len(self.size)
            waves.append((wave - wave[origin] / bell[origin] * bell).real.float())
        return torch.stack(waves)


def _fourier(size: Sequence[int], width: float, frequency: float, angle: float, slant: float) -> Tensor:
    """The transform of a bell times a wave, periodic over the grid."""
    axes = [torch.arange(-TAILS * n, (TAILS + 1) * n, dtype=torch.float64) for n in size]
    places = torch.meshgrid(*axes, indexing="ij")
    along = places[0] if len(size) == 1 else places[0] * math.cos(angle) + places[1] * math.sin(angle)
    across = torch.zeros_like(along) if len(size) == 1 else places[1] * math.cos(angle) - places[0] * math.sin(angle)
    bell = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
    bell = bell * slant ** (len(size) - 1) / (math.sqrt(2 * math.pi) * width) ** len(size)
    values = torch.polar(bell, frequency * along)
    for axis, n in enumerate(size):
        values = torch.stack(torch.split(values, n, axis)).sum(0)
    spectrum: Tensor = torch.fft.fftn(values)
    return spectrum


@lru_cache(maxsize=4)
def bank(size: tuple[int, ...], scales: int, directions: int) -> Bank:
    """The filters, made once for each size."""
    return Bank(size, scales, directions)


def smallest(scales: int) -> int:
    """The fewest pixels a side, or samples, of which edges can be mirrored."""
    return int(2 ** (scales + 1))


def orders(scales: int, directions: int, dimensions: int) -> list[int]:
    """How many channels each group of paths of the same scales has: S0, then S1 by j with S2 by k behind it."""
    count = directions if dimensions == 2 else 1
    groups = [1]
    for j in range(scales):
        groups += [count, *[count**2] * (scales - 1 - j)]
    return groups


def scatter(x: Tensor, scales: int, directions: int = 8) -> Tensor:
    """Scattering of inputs [N, C, ...]: [N, C, channels, ...], smaller by 2^scales a side."""
    filters = bank(tuple(x.shape[2:]), scales, directions)
    d, top = len(filters.size), 2**scales
    edges = [
        (top, whole - n - top) for n, whole in zip(reversed(filters.size), reversed(filters.padded), strict=True)
    ]  # fmt: skip
    padded = torch.nn.functional.pad(x.flatten(0, 1)[:, None], [e for pair in edges for e in pair], mode="reflect")
    axes = tuple(range(-d, 0))

    def smooth(u: Tensor, level: int) -> Tensor:
        spectrum = torch.fft.fftn(u, dim=axes) * _folded(filters.low, 2**level, d, mean=False)
        out: Tensor = torch.fft.ifftn(_folded(spectrum, 2 ** (scales - level), d), dim=axes).real
        return out[..., 1:-1] if d == 1 else out[..., 1:-1, 1:-1]

    def wave(spectrum: Tensor, at: int, to: int) -> Tensor:
        """|u * psi_to| of every direction, from the grid of level ``at`` to that of level ``to``."""
        product = spectrum[:, :, None] * _folded(filters.waves[to], 2**at, d, mean=False)
        sizes: Tensor = torch.fft.ifftn(_folded(product, 2 ** (to - at), d), dim=axes).abs()
        return sizes.flatten(1, 2)

    first = torch.fft.fftn(padded, dim=axes)
    parts = [smooth(padded, 0)]
    for j in range(scales):
        u = wave(first, 0, j)
        parts.append(smooth(u, j))
        second = torch.fft.fftn(u, dim=axes)
        parts += [smooth(wave(second, j, k), k) for k in range(j + 1, scales)]
    whole = torch.cat(parts, 1)
    return whole.view(*x.shape[:2], *whole.shape[1:])


def _folded(spectrum: Tensor, step: int, d: int, mean: bool = True) -> Tensor:
    """The spectrum of every ``step``-th position; of a filter (not ``mean``) the one that acts on that grid."""
    if step == 1:
        return spectrum
    for axis in range(-d, 0):
        parts = torch.stack(torch.chunk(spectrum, step, axis))
        spectrum = parts.mean(0) if mean else parts.sum(0)
    return spectrum


def standardised(s: Tensor, groups: Sequence[int]) -> Tensor:
    """Each record by itself: every group of channels to mean 0 and variance 1 within it, all to length 1 together.

    Whatever the other records are, a record has the same features, so this costs no privacy; and the gradient of a
    linear model for one record is at most sqrt(2) long, so that a clip of 1 means the same for any size of features.
    """
    parts = []
    for part in torch.split(s, list(groups), dim=2):
        flat = part.flatten(2)
        centred = flat - flat.mean(-1, keepdim=True)
        parts.append((centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-6)).view_as(part))
    whole = torch.cat(parts, 2)
    length = torch.linalg.vector_norm(whole.flatten(1), dim=1).clamp_min(1e-6)
    scaled: Tensor = whole / length.view(-1, *(1,) * (whole.ndim - 1))
    return scaled
