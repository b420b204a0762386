"""Other versions of an example, each made of that example alone: what is averaged before a clip (De et al. 2022).

    images   N, C, H, W   moved by up to an eighth of height and width (edges mirrored), every other one mirrored
    signals  N, C, L      moved by up to an eighth of the length (edges mirrored), with noise of a twentieth of the
                          channel's own standard deviation

De et al. (arXiv:2204.13650) average over K random crops and flips of CIFAR images; sizes here are ours, and small.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOVED = 8
"""A version is moved by at most one part in so many."""
JITTER = 0.05
KINDS = {3: "signals", 4: "images"}


def augmented(x: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """So many versions of every example, one example's after another; the first of them is the example itself."""
    if x.dim() not in KINDS:
        raise ValueError(
            f"there are augmentations for {' and '.join(KINDS.values())}, not for inputs of {x.dim() - 1} axes"
        )
    versions = [x, *((_image if x.dim() == 4 else _signal)(x, generator) for _ in range(copies - 1))]
    return torch.stack(versions, 1).flatten(0, 1)


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
