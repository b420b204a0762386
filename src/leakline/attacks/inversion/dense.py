r"""Whole batches from the first layer, where it is dense and its inputs are the pixels: algebra, no search.

One step over N images leaves in the layer z = W x + b the gradients

    G = [g_W, g_b] = sum_i d_i (x_i, 1)^T        d_i  the loss's gradient at z for image i, [units]

one image: every row of G is a multiple of (x, 1) (Phong et al. 2018). Several: d_i is zero wherever a ReLU was off for
image i, and some unit was on for one image alone; its row, divided by its last column, is that image. Which rows those
are is not known, but an image can be tried (the certificate): W x + b tells the units that were off for it, and

    the rows of G where x was off have rank N - 1, if x is one of the N images, and N otherwise

since nothing else could take a dimension away. The direction p that is missing there gives d_i = G p / ((x, 1) p) as
well, so the image is taken out of G, which leaves others alone in their rows; and so on. What no row shows alone stays
hidden. Low rank and sparsity are what SPEAR (Dimitrov et al. 2024) reads batches by; it guesses p by sampling, for
which batches must be small, and does not take out what it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from leakline.attacks.inversion.adam import bounds
from leakline.attacks.inversion.judge import Reconstruction
from leakline.views import ServerView

DROP = 0.01
"""How far the last singular value of the rows that were off must fall below the one before it."""
BEYOND = 0.03
"""How far a pixel may lie outside of [0, 1] in a row that is tried."""


@dataclass(frozen=True)
class Read:
    """Images [n, d] that were read off, each with its certificate: the fall of the singular value (0 is exact)."""

    images: Tensor
    falls: tuple[float, ...]


def read(weight: Tensor, bias: Tensor, g_weight: Tensor, g_bias: Tensor, count: int) -> Read:
    """What the gradients of a first dense layer give away of ``count`` images with pixels in [0, 1]."""
    layer, rest = (weight.double(), bias.double()), torch.cat([g_weight, g_bias[:, None]], 1).double()
    images: list[Tensor] = []
    falls: list[float] = []
    while len(images) < count and float(rest.norm()) > 0:
        taken = _next(layer, rest, count - len(images))
        if taken is None:
            break
        image, push, fall = taken
        rest = rest - push[:, None] * torch.cat([image, image.new_ones(1)])
        images.append(image)
        falls.append(fall)
    made = torch.stack(images) if images else weight.new_zeros(0, weight.shape[1])
    return Read(made.clamp(0, 1).float(), tuple(falls))


def reconstruction(view: ServerView, prior: Tensor, index: int) -> Reconstruction | None:
    """What a first dense layer shows of an update of one step; images that it does not show stay at the prior.

    None where there is no such layer, where there were several steps, or where nothing was certain (under noise, say).
    Of a step of Adam only units count whose gradients its bounds give to within a few hundredths: those that images
    hardly move. The objective is the worst certificate.
    """
    update, plan, began = view.updates[0][0], view.plan, perf_counter()
    shape = (_channels(view.bench.model, prior), *prior.shape[2:])
    name = first_dense(view.bench.model, shape) if plan.steps_of(update.examples) == 1 else None
    if name is None or not {f"{name}.weight", f"{name}.bias"} <= update.delta.layout.slices.keys():
        return None
    weight, bias = (view.sent[0][f"{name}.{kind}"] for kind in ("weight", "bias"))
    moved = [update.delta[f"{name}.{kind}"] for kind in ("weight", "bias")]
    if plan.optimiser == "adam":
        found, offset = (bounds(m, w, plan.rate(index)) for m, w in zip(moved, (weight, bias), strict=True))
        rows = (found.width.amax(1) + offset.width) <= BEYOND * offset.middle.abs()
        weight, bias, moved = weight[rows], bias[rows], [-found.middle[rows], -offset.middle[rows]]
    else:
        moved = [m / plan.rate(index) for m in moved]
    g_weight, g_bias = (-m - plan.weight_decay * w for m, w in zip(moved, (weight, bias), strict=True))
    shown = read(weight, bias, g_weight, g_bias, update.examples)
    if not shown.falls:
        return None
    rest = prior.expand(update.examples - len(shown.images), *shape)
    images = torch.cat([shown.images.view(-1, *shape), rest])
    return Reconstruction(images, max(shown.falls), 0, perf_counter() - began, (name,))


def _channels(model: nn.Module, prior: Tensor) -> int:
    """Channels of the images that a network takes: its first dense layer tells, where a prior is grey."""
    first = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    return int(prior.shape[1]) if first is None else max(1, first.in_features // math.prod(prior.shape[2:]))


def _next(layer: tuple[Tensor, Tensor], rest: Tensor, left: int) -> tuple[Tensor, Tensor, float] | None:
    """An image that some row shows alone, its d_i, and its certificate; None if there is no such row."""
    rows, values, right = torch.linalg.svd(rest, full_matrices=False)
    if left > len(values):
        return None
    inside, span = rows[:, :left] * values[:left], right[:left]
    size = inside.norm(dim=1)
    live = size > 1e-4 * size.max()
    clean = inside @ span  # without what rounding added beyond the rank
    last = clean[:, -1].abs()
    shown = torch.nonzero(live & (last > 1e-6 * last.max()))[:, 0]
    shown = shown[last[shown].argsort(descending=True)]  # the loudest are the least rounded
    tried = clean[shown, :-1] / clean[shown, -1:]
    possible = (tried.amin(1) > -BEYOND) & (tried.amax(1) < 1 + BEYOND)
    for image in tried[possible]:
        off = live & (layer[0] @ image + layer[1] < 0)
        if left > 1 and int(off.sum()) < left:
            continue
        missing, fall = _missing(inside[off] / size[off, None], left)
        along = float(torch.cat([image, image.new_ones(1)]) @ span.T @ missing)
        if fall <= DROP and abs(along) > 1e-9:
            return image, inside @ missing / along, fall
    return None


def _missing(rows: Tensor, left: int) -> tuple[Tensor, float]:
    """The direction that rows [R, left] lack most, and how much less they have of it than of any other."""
    if left == 1:
        return rows.new_ones(1), 0.0
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    return right[-1], float(values[-1] / values[-2].clamp_min(1e-300))


def first_dense(model: nn.Module, shape: Sequence[int]) -> str | None:
    """The name of the dense layer with a bias that takes the pixels as they are, or None."""
    image = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    sees: list[str] = []

    def look(name: str) -> object:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if args and args[0].shape == image.flatten(1).shape and torch.equal(args[0], image.flatten(1)):
                sees.append(name)

        return hook

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None]
    handles = [m.register_forward_pre_hook(look(n)) for n, m in layers]  # type: ignore[arg-type]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(image)
    except RuntimeError:  # it takes other images; whoever runs it will say so
        return None
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return sees[0] if sees else None
