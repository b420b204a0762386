"""From the change of the block's rows to images: rows that hold one image are read, and leave the other sets.

A row of an empty bin has not changed. Any other is sum_x g_x (x, |x|^2 / d, 1) over its images. Divided by its last
column it is a weighted mean, and the column before tells whether of one image: mean |x|^2 = |mean x|^2 for one, and for
no mixture, nor for one that rounding or noise has blurred. That is the certificate, together with the bin that the
image must lie in. What was read is taken out of the rows of the other sets, which may leave another image alone there;
and so on until no row is single any more (peeling, as in an invertible Bloom lookup table, Goodrich and Mitzenmacher
2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.attacks.imprint.block import Ruler, signs

SINGLE = 0.003
"""How far the mean of squares may lie from the square of the mean, relative to it: 18 times as much image as noise."""
SLACK = 0.25
"""How much of a bin units may move while they are trained."""
SAME = 0.03
"""Up to this relative distance two images are one, of which a rest was left somewhere."""


@dataclass(frozen=True)
class Recovered:
    """Images [N, d] in [0, 1], and how many of them, the first, are certain."""

    images: Tensor
    certain: int


def recover(change: Tensor, ruler: Ruler, most: int) -> Recovered:
    """At most ``most`` images from the change [units, d + 2] of the block's rows."""
    rows = change.double() * signs(len(change))[:, None]
    sets = torch.arange(len(rows)) // ruler.bins
    images: list[Tensor] = []
    while len(images) < most:
        single = _single(rows, ruler)
        if not len(single):
            break
        for i in single[: most - len(images)].tolist():
            if not len(_single(rows[i : i + 1], ruler, i)):
                continue  # one before it was taken out of this row
            row = rows[i].clone()
            image = row[:-2] / row[-1]
            rows[i] = 0.0
            for k in _holders(rows, image, row, ruler, int(sets[i])):
                rows[k] -= row
            if not any((image - other).norm() <= SAME * image.norm() for other in images):
                images.append(image)
    every = images + _rest(rows, ruler, most - len(images))
    shown = torch.stack(every) if every else rows.new_zeros(0, rows.shape[1] - 2)
    return Recovered(shown.clamp(0, 1).float(), len(images))


def _single(rows: Tensor, ruler: Ruler, first: int = 0) -> Tensor:
    """The rows, counted from unit ``first``, that hold one image and no more; the loudest first."""
    full = torch.nonzero(rows[:, -1])[:, 0]
    mean, square = rows[full, :-2] / rows[full, -1:], rows[full, -2] / rows[full, -1]
    unit = full + first
    sets, bins = unit // ruler.bins, unit % ruler.bins
    low, high = (ruler.places(mean, s)[torch.arange(len(unit)), sets] for s in (-SLACK, SLACK))
    good = (square > 0) & ((mean.square().mean(1) / square - 1).abs() <= SINGLE) & (low <= bins) & (bins <= high)
    good &= (mean.amin(1) > -0.1) & (mean.amax(1) < 1.1)
    kept = full[good]
    return kept[rows[kept, -1].abs().argsort(descending=True)]


def _holders(rows: Tensor, image: Tensor, row: Tensor, ruler: Ruler, but: int) -> list[int]:
    """The rows of the other sets that an image lies in: near an edge, the one that loses most by it."""
    low, high = (ruler.places(image[None], s)[0] for s in (-SLACK, SLACK))
    found = []
    for s in range(len(ruler.edges)):
        bins = [k for k in range(int(low[s]), int(high[s]) + 1) if 0 <= k < ruler.bins]
        units = [s * ruler.bins + k for k in bins if rows[s * ruler.bins + k, -1] != 0]
        if s != but and units:
            found.append(max(units, key=lambda k: float(rows[k].norm() - (rows[k] - row).norm())))
    return found


def _rest(rows: Tensor, ruler: Ruler, most: int) -> list[Tensor]:
    """What the fullest set still holds, the loudest first: mixtures, and images that nothing confirms."""
    full = (rows[:, -1] != 0).view(-1, ruler.bins)
    fullest = int(full.sum(1).argmax())
    units = torch.nonzero(full[fullest])[:, 0] + fullest * ruler.bins
    order = units[rows[units, :-2].norm(dim=1).argsort(descending=True)][: max(most, 0)]
    return [rows[i, :-2] / rows[i, -1] for i in order.tolist()]
