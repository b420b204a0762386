"""Other versions of an example, each made of that example alone: to train on, or to average before a clip.

Averaged before a clip (De et al. 2022):

    images   N, C, H, W   moved by up to an eighth of height and width (edges mirrored), every other one mirrored
    signals  N, C, L      moved by up to an eighth of the length (edges mirrored), with noise of a twentieth of the
                          channel's own standard deviation

De et al. (arXiv:2204.13650) average over K random crops and flips of CIFAR images; sizes here are ours, and small.

To train on (paper 004's, for head CT): images turned by up to ten degrees and moved by up to a fiftieth of each side,
every other one mirrored; a mask goes with its image. Between pixels images are interpolated linearly (the paper's
released code takes the nearest one), masks are not; what comes in from outside is 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

MOVED = 8
"""A version is moved by at most one part in so many."""
JITTER = 0.05
KINDS = {3: "signals", 4: "images"}
TURNED, SHIFTED = math.radians(10.0), 0.02
"""The farthest that an image to train on is turned, and moved as a share of each side."""


def augmented(x: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """So many versions of every example, one example's after another; the first of them is the example itself."""
    if x.dim() not in KINDS:
        raise ValueError(
            f"there are augmentations for {' and '.join(KINDS.values())}, not for inputs of {x.dim() - 1} axes"
        )
    versions = [x, *((_image if x.dim() == 4 else _signal)(x, generator) for _ in range(copies - 1))]
    return torch.stack(versions, 1).flatten(0, 1)


def moved_images(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One version of every image of a batch, and its target: a mask moves with its image, a class stays."""
    drawn = 2 * torch.rand(len(x), 4, generator=generator).to(x.device) - 1
    how = (TURNED * drawn[:, 0], SHIFTED * drawn[:, 1:3], drawn[:, 3] < 0)
    masks = y.dim() == x.dim()
    return affine(x, *how), affine(y.to(x), *how, mode="nearest").to(y.dtype) if masks else y


def affine(x: Tensor, angle: Tensor, shift: Tensor, mirrored: Tensor, mode: str = "bilinear") -> Tensor:
    """Images N, C, H, W, each turned by its angle about the middle, shifted by shares of (W, H), and mirrored.

    A pixel p of the new image, seen from the middle, is the old one's at R p + t (then mirrored: at R (-p_x, p_y) + t).
    """
    high, wide = x.shape[2:]
    side = torch.where(mirrored, -1.0, 1.0).to(x)
    cos, sin = angle.to(x).cos(), angle.to(x).sin()
    # The grid's coordinates go from -1 to 1 along either side, whatever their lengths.
    rows = [
        torch.stack([cos * side, -sin * high / wide, 2 * shift[:, 0].to(x)], 1),
        torch.stack([sin * wide / high * side, cos, 2 * shift[:, 1].to(x)], 1),
    ]
    grid = functional.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, mode=mode, padding_mode="zeros", align_corners=False)


def _image(x: Tensor, generator: torch.Generator) -> Tensor:
    moved = _moved(_moved(x, 2, generator), 3, generator)
    mirrored = _uniform(len(x), generator, x) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)


def _signal(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator).to(x)
    return _moved(x, 2, generator) + JITTER * x.std(2, keepdim=True, correction=0) * noise


def _moved(x: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Every example moved along an axis by a number of places of its own; what comes in is mirrored at the edge."""
    length = x.shape[axis]
    most = max(length // MOVED, 0)
    if most == 0:
        return x
    by = (_uniform(len(x), generator, x) * (2 * most + 1)).long() - most
    places = torch.arange(length, device=x.device) + by[:, None]
    places = places.abs()
    places = torch.where(places > length - 1, 2 * (length - 1) - places, places)
    shape = [len(x), *[1] * (x.dim() - 1)]
    shape[axis] = length
    return x.gather(axis, places.view(shape).expand_as(x))


def _uniform(count: int, generator: torch.Generator, like: Tensor) -> Tensor:
    return torch.rand(count, generator=generator).to(like.device)
