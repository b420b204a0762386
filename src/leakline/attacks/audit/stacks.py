"""The loss of many models on one input, all at once: what a black-box audit spends its time on.

The models of a block lie on both sides of one start: theta - k v and theta + k v, a row v for each report. A chain of
convolutions and dense layers is linear in its weights layer by layer, so neither is ever formed:

    layer(theta -+ k v; h) = layer(theta; h) -+ k layer(v; h)

The first term is an ordinary batched layer, the second a batched product that reads v once for both sides. Other
models, and steps that are not symmetric, go through `torch.func.vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from leakline.attacks.audit.crafters import Scene


class Losses(Protocol):
    """Losses of many models on one fixed input."""

    def __call__(self, stack: Tensor) -> Tensor:
        """Of models given as rows."""
        ...

    def sides(self, start: Tensor, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Of models start - k v and start + k v, for rows v and a factor k for each."""
        ...


def stacked_losses(scene: Scene, x: Tensor, y: Tensor) -> Losses:
    """The fastest form that the scene's model allows."""
    general = _General(vmap(lambda vector: scene.value(vector, x, y)))
    layers = list(scene.model) if isinstance(scene.model, nn.Sequential) else []
    if not layers or not all(_known(layer) for layer in layers):
        return general
    names = [name for name, _ in scene.model.named_children()]
    slices = scene.weights.layout.slices
    places = [(slices.get(f"{name}.weight"), slices.get(f"{name}.bias")) for name in names]
    return _Chain(general.losses, list(zip(layers, places, strict=True)), x, y)


@dataclass(frozen=True)
class _General:
    losses: Callable[[Tensor], Tensor]

    def __call__(self, stack: Tensor) -> Tensor:
        return self.losses(stack)

    def sides(self, start: Tensor, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        moved = v * k[:, None]
        return self.losses(start - moved), self.losses(start + moved)


_WEIGHTLESS = (nn.ReLU, nn.Flatten, nn.Identity, nn.AvgPool2d, nn.Tanh, nn.Sigmoid, nn.ELU, nn.Upsample)


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, (nn.Linear, nn.MaxPool2d, *_WEIGHTLESS))


Place = tuple[slice | None, slice | None]


@dataclass(frozen=True)
class _Chain(_General):
    """A sequential network. Rows come in pairs, minus and plus; before the first weights there is one row for all."""

    layers: list[tuple[nn.Module, Place]]
    x: Tensor
    y: Tensor

    def sides(self, start: Tensor, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        n, h = len(v), self.x
        signed = torch.stack([-k, k], dim=1)  # n x 2
        for layer, (weight, bias) in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                assert weight is not None
                step = _convolve if isinstance(layer, nn.Conv2d) else _dense
                h = step(layer, h, start[weight], v[:, weight], signed)  # type: ignore[arg-type]
                if bias is not None:
                    moved = torch.addcmul(start[bias], signed[:, :, None], v[:, None, bias]).view(2 * n, -1)
                    h += moved.view(*moved.shape, *[1] * (h.dim() - 2))
            elif isinstance(layer, nn.MaxPool2d):
                h = _pool(layer, h)
            else:
                h = torch.relu_(h) if isinstance(layer, nn.ReLU) and h is not self.x else layer(h)
        losses = F.cross_entropy(h, self.y.expand(2 * n), reduction="none").view(n, 2)
        return losses[:, 0], losses[:, 1]


def _dense(layer: nn.Linear, h: Tensor, weight: Tensor, v: Tensor, signed: Tensor) -> Tensor:
    n, inner, outer = len(v), layer.in_features, layer.out_features
    shared = h @ weight.view(outer, inner).T
    if len(h) == 1:
        own = (v.reshape(n * outer, inner) @ h[0]).view(n, 1, outer)
    else:
        own = torch.bmm(h.view(n, 2, inner), v.view(n, outer, inner).transpose(1, 2))
    return torch.addcmul(shared.view(-1, 2 if len(h) > 1 else 1, outer), signed[:, :, None], own).view(2 * n, outer)


def _convolve(layer: nn.Conv2d, h: Tensor, weight: Tensor, v: Tensor, signed: Tensor) -> Tensor:
    n, outer = len(v), layer.out_channels
    patches, rows, columns = _patches(layer, h)  # rows of h x positions x depth
    positions, depth = patches.shape[1:]
    if len(h) == 1:
        shared = weight.view(outer, depth) @ patches[0].T
        own = (v.reshape(n * outer, depth) @ patches[0].T.contiguous()).view(n, 1, outer, positions)
        both = torch.addcmul(shared, signed[:, :, None, None], own)
        return both.view(2 * n, outer, rows, columns)
    shared = patches @ weight.view(outer, depth).T
    own = torch.bmm(patches.view(n, 2 * positions, depth), v.view(n, outer, depth).transpose(1, 2))
    both = torch.addcmul(shared.view(n, 2, -1), signed[:, :, None], own.view(n, 2, -1))
    return both.view(2 * n, positions, outer).transpose(1, 2).contiguous().view(2 * n, outer, rows, columns)


def _patches(layer: nn.Conv2d, h: Tensor) -> tuple[Tensor, int, int]:
    """What each output position of a convolution reads, gathered by index: much cheaper here than `unfold`."""
    pad = [int(p) for p in layer.padding]
    if any(pad):
        h = F.pad(h, (pad[1], pad[1], pad[0], pad[0]))
    size = [
        (h.shape[2 + i] - layer.dilation[i] * (layer.kernel_size[i] - 1) - 1) // layer.stride[i] + 1 for i in (0, 1)
    ]
    index = _reads(tuple(h.shape[1:]), layer.kernel_size, layer.dilation, layer.stride)
    return h.flatten(1)[:, index], size[0], size[1]


@lru_cache(maxsize=32)
def _reads(
    shape: tuple[int, ...], kernel: tuple[int, int], dilation: tuple[int, int], stride: tuple[int, int]
) -> Tensor:
    """Positions x depth: which values of a flattened input each output reads (exact: below 2^24 of them)."""
    where = torch.arange(math.prod(shape), dtype=torch.float32).view(1, *shape)
    return F.unfold(where, kernel, dilation, 0, stride)[0].T.contiguous().long()


def _pool(layer: nn.MaxPool2d, h: Tensor) -> Tensor:
    if layer.kernel_size != 2 or layer.stride != 2 or layer.padding or layer.ceil_mode:
        return layer(h)  # type: ignore[no-any-return]
    # Pairwise maxima are several times faster here than the general kernel over a tall stack.
    rows, columns = h.shape[-2] // 2 * 2, h.shape[-1] // 2 * 2
    h = torch.maximum(h[..., 0:rows:2, :], h[..., 1:rows:2, :])
    return torch.maximum(h[..., 0:columns:2], h[..., 1:columns:2])
