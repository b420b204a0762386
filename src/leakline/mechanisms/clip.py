"""Clipping."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 65_536


def norm_of(change: Tensor) -> float:
    """Euclidean norm, summed in float64 block by block so that the wider copy stays in the cache."""
    return math.sqrt(sum(float(torch.sum(part.double().square_())) for part in torch.split(change, BLOCK)))


def clip_norm(change: Tensor, bound: float, norm: float | None = None) -> Tensor:
    """Scale a vector down to a Euclidean norm of at most ``bound``; shorter vectors pass unchanged.

    change * min(1, C / ||change||)        C = bound

    A zero vector passes (no division by its norm). The result is never longer than the bound: float32 rounding
    of the product could leave it a few units too long, so the factor is rounded down. ``norm`` is `norm_of` the
    vector, where it is known already.
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be positive, not {bound}")
    norm = norm_of(change) if norm is None else norm
    if norm <= bound:
        return change
    factor = bound / norm * (1 - 2e-7)
    # float32 holds so small a factor with a few bits only: an absurdly long update would end beyond the bound.
    return change * factor if factor > 1e-30 else change.double().mul_(factor).to(change.dtype)
