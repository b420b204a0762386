r"""The block that a cheating server puts before the clients' network, and the network so altered (Fowl et al. 2022).

    u   = (x, |x|^2 / d, 1)                                  d  pixels
    z_i = w_i u + b_i = (h x - e_i) / (e_{i+1} - e_i)        h  a direction in pixels, e_0 < e_1 < ...  edges of bins
    a_i = min(max(z_i, 0), 1)
    out = x + p sum_i s_i a_i                                s_i = +1, -1, +1, ...    p  a faint fixed pattern

A unit passes a gradient only while h x lies in its own bin, so whatever the step and the batch,

    change of w_i = -rate sum over steps, over images x in bin i, of  s_i g_x u        g_x = p . (d loss / d out)

and a bin that holds one image holds that image times a number, which the last column tells: its weight starts at 0, so
that float32 rounds nothing away, as it would of the bias. The column before it tells whether there is one image only:
the mean of squares is the square of the mean for a single image and for no mixture. The image itself goes on to the
network, faintly marked (at most by p in each pixel and set, since signs alternate), so that the altered model still
learns.

Departures from the paper: its sparse variant hands on a dense layer of the activations alone; here the image passes,
the way back has no weights (so that every unit sees the same g_x at every step), the two columns are added, and there
are several sets of bins, over several directions, as in an invertible Bloom table: an image that shares its bin in one
set is alone in another, and is taken out of the shared one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakline.errors import StudyError
from leakline.models import made
from leakline.models.base import Kind, Model, Shape
from leakline.weights import Layout, Weights

NAME = "imprint"
WEIGHT = f"{NAME}.dense.weight"
MOST_VALUES = 2**27
"""How many weights the block may have: half a gigabyte."""


class Block(nn.Module):
    """Bins over directions of an image of this shape; ``strength`` is the pattern's size in each pixel."""

    def __init__(self, shape: tuple[int, ...], units: int, strength: float) -> None:
        super().__init__()
        self.dense = nn.Linear(math.prod(shape) + 2, units)
        self.gate = nn.Hardtanh(0.0, 1.0)
        coins = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0))
        # Not part of what travels: they come with the code.
        self.pattern: Tensor
        self.signs: Tensor
        self.register_buffer("pattern", strength * (2.0 * coins - 1.0), persistent=False)
        self.register_buffer("signs", signs(units), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The image with its faint mark."""
        flat = x.flatten(1)
        seen = torch.cat([flat, flat.square().mean(1, keepdim=True), torch.ones_like(flat[:, :1])], 1)
        lit = (self.gate(self.dense(seen)) * self.signs).sum(1)
        marked: Tensor = x + lit.view(-1, *[1] * (x.dim() - 1)) * self.pattern
        return marked


def signs(units: int) -> Tensor:
    """+1, -1, +1, ..."""
    return 1.0 - 2.0 * (torch.arange(units) % 2)


@dataclass(frozen=True)
class Altered:
    """The federation's architecture with the block before it; all other names stay as they are."""

    inner: Model | Callable[..., nn.Module]
    units: int
    strength: float

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """A fresh altered model."""
        return insert(made(self.inner, shape, classes, kind), Block(shape, self.units, self.strength))


def insert(network: nn.Module, block: Block) -> nn.Module:
    """The network with the block as its first child, through which its input goes."""
    kind = type(network)
    if NAME in dict(network.named_children()):
        raise StudyError(f"the model has a part called {NAME} of its own", "imprint", "give that part another name")

    def forward(self: Any, x: Tensor) -> Tensor:
        if isinstance(self, nn.Sequential):  # runs its children in order, and the block is the first
            return kind.forward(self, x)  # type: ignore[no-any-return]
        return kind.forward(self, self.imprint(x))  # type: ignore[no-any-return]

    network.__class__ = type(f"Imprinted{kind.__name__}", (kind,), {"forward": forward})
    network._modules = {NAME: block, **network._modules}
    return network


@dataclass(frozen=True)
class Ruler:
    """What the block measures: directions [sets, d] and, of each, the edges of its bins [sets, bins + 1]."""

    directions: Tensor
    edges: Tensor

    @property
    def bins(self) -> int:
        """Bins of one set."""
        return self.edges.shape[1] - 1

    def places(self, images: Tensor, slack: float = 0.0) -> Tensor:
        """The bin of each image [N, d] in each set, [N, sets]; -1 or ``bins`` beyond the edges, moved by ``slack``."""
        measured = images.double() @ self.directions.T + slack * self.edges.diff(dim=1).median(1).values
        return torch.stack([torch.searchsorted(e, m.contiguous()) - 1 for e, m in zip(self.edges, measured.T)], 1)  # noqa: B905

    def weights(self, layout: Layout, rest: Weights) -> Weights:
        """The altered model's weights: the block as this ruler has it, everything else from ``rest``."""
        widths = self.edges.diff(dim=1)
        rows = (self.directions[:, None, :] / widths[..., None]).flatten(0, 1)
        own = {
            WEIGHT: torch.cat([rows, rows.new_zeros(len(rows), 2)], 1),
            f"{NAME}.dense.bias": (-self.edges[:, :-1] / widths).flatten(),
        }
        parts = [own[e.name] if e.name in own else rest[e.name] for e in layout.entries]
        return Weights(layout, torch.cat([part.flatten().float() for part in parts]))


def ruler_of(images: Tensor, sets: int, bins: int) -> Ruler:
    """Directions in which public images [P, ...] differ most, and bins that hold about equally many of them.

    Directions are principal components; edges are quantiles of the public measurements, smeared by Silverman's rule.
    """
    x = images.flatten(1).double()
    _, _, rows = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    directions = rows[:sets]
    return Ruler(directions, torch.stack([_edges(values, bins) for values in (x @ directions.T).T]))


def _edges(values: Tensor, bins: int) -> Tensor:
    width = 1.06 * float(values.std()) * len(values) ** -0.2
    places = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    smeared = (values[:, None] + width * torch.special.ndtri(places)).flatten().sort().values
    at = torch.linspace(0, len(smeared) - 1, bins + 1, dtype=torch.float64)
    low = at.floor().long()
    high = (low + 1).clamp_max(len(smeared) - 1)
    edges: Tensor = smeared[low] + (at - low) * (smeared[high] - smeared[low])
    return edges
