"""How far apart the clients of a round are: the distance of paper 000 and its use at scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leakline.weights import Layout

BLOCK = 32_768


def distances(rows: Sequence[Tensor], layout: Layout, dtype: torch.dtype = torch.float64) -> Tensor:
    """Pairwise distance between clients: the mean over layers of the Frobenius norm of their difference.

    d(i, j) = (1 / L) * sum over layers l of ||w_i[l] - w_j[l]||_F      paper 000, Sec. 4; every array is a "layer"

    Written with Gram matrices, ||a - b||^2 = <a,a> + <b,b> - 2<a,b>, summed in float64 over blocks of columns:
    n^2 P work in matrix products and n * BLOCK memory, instead of n^2 passes over vectors of length P. Rows are
    centred on the first one, which takes away the cancellation between clients that are all nearly equal.
    ``dtype`` is that of the products inside a block.
    """
    n = len(rows)
    total = torch.zeros(n, n, dtype=torch.float64)
    for entry in layout.entries:
        place = layout.slices[entry.name]
        gram = torch.zeros(n, n, dtype=torch.float64)
        for start in range(place.start, place.stop, BLOCK):
            stop = min(start + BLOCK, place.stop)
            block = torch.stack([row[start:stop] for row in rows]).to(dtype)
            block -= block[0].clone()
            gram += (block @ block.T).double()
        square = gram.diagonal()
        total += (square[:, None] + square[None, :] - 2 * gram).clamp_min_(0).sqrt_()
    return total.fill_diagonal_(0) / len(layout.entries)


def spread(rows: Sequence[Tensor], layout: Layout) -> float:
    """The largest pairwise distance: d^(n) of paper 000.

    Products in float32 lose digits only between clients that are much closer to each other than to the first one,
    and such a pair is not the largest: the maximum keeps a relative error of about 1e-6 at half the cost.
    """
    return float(distances(rows, layout, torch.float32).max())


def metric_std(noise_multiplier: float, clip: float, clients: float, distance: float) -> float:
    """Standard deviation of metric privacy's noise on the mean of clipped updates.

    z C / (n d)        z = noise_multiplier, C = clip, n = clients, d = distance      paper 000, Sec. 6

    The paper prints this as the second argument of N(0, .); its code takes it as a standard deviation.
    """
    if not distance > 0:
        raise ValueError(f"a distance must be positive: {distance}")
    return noise_multiplier * clip / (clients * distance)
