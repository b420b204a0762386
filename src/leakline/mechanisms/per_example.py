"""Clip each example's gradient and add them up, without forming per-example gradients of the whole model.

    sum_i g_i min(1, C / ||g_i||)        C = bound, g_i = gradient of the loss on example i, over all parameters

A unit (a patient with its records, a record with its augmented versions) counts as one vector: g_i is then the mean
over the gradients of its examples (`units.Members`).

One ordinary forward and backward pass keeps each layer's inputs and output gradients (the "books"); norms and the
clipped sum come from them, layer by layer (`layer_gradients`; Bu et al. 2023, arXiv:2210.00038, call it bookkeeping).
Exact, not an approximation. Models with other layers, tied parameters or layers that do not see the example first
go through `torch.func.vmap`, and what vmap cannot do is done example by example; `Clipped.path` says which it was.
A road is taken only where it leads to each example's gradient alone, and no model or loss whose examples depend on each
other is taken at all (`independence`): both are tried before the first sum.

Dropout is drawn once for the batch, each example under its own mask: the gradient is that of the example under its
mask, so the bound holds for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from leakline.mechanisms.bookkeeping import Shares, shares_of
from leakline.mechanisms.independence import SMALL, Verdict, gap, in_doubt, refuse_coupled, sample
from leakline.mechanisms.trials import Loss, Trial, gradients, quiet, trying
from leakline.mechanisms.units import Members

Path = Literal["bookkeeping", "vmap", "one by one"]

MARGIN = 1 - 2e-7
"""Clipped gradients are made shorter by this much, so that rounding cannot leave one beyond the bound."""
ROWS = 2**26
"""How many values of per-example gradients the vmap path forms at once (256 MB)."""


@dataclass(frozen=True)
class Clipped:
    """The sum of clipped gradients, one for each trained parameter in the model's order, and how it was had."""

    sums: tuple[Tensor, ...]
    norms: Tensor
    """Of each example's (or unit's) gradient before clipping, float64."""
    loss: Tensor
    """Mean over the batch; 0 for an empty one."""
    path: Path


def clipped_sum(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path | None = None,
    units: Tensor | None = None,
) -> Clipped:  # fmt: skip
    """Per-example clipping of one batch. Leaves the parameters' ``grad`` alone; an empty batch sums to zero.

    ``units[i]``: which unit example i belongs to, of 0, 1, 2, ... without a gap; the mean over a unit's gradients is
    what is clipped. None: every example is one. An example or unit whose gradient is not finite counts as zero; its
    norm is reported as it is.
    ``path`` forces a road (to compare them); by default it is the fastest that is right for the model.
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be positive, not {bound}")
    members = _alone(x) if units is None else Members(units)
    clipped = _clipped(model, loss, x, y, bound, path, members)
    sound = torch.isfinite(clipped.norms)
    if bool(sound.all()):
        return clipped
    # Scaling cannot tame an infinite gradient, and a sum of NaN would betray the example: it counts as zero.
    kept = members.spread(sound)
    left = torch.unique(members.of[kept.to(members.of.device)], return_inverse=True)[1]
    rest = _clipped(model, loss, x[kept], y[kept], bound, clipped.path, Members(left))
    return replace(rest, norms=clipped.norms)


def _alone(x: Tensor) -> Members:
    return Members(torch.arange(len(x)))


def _clipped(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path | None, members: Members
) -> Clipped:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if len(x) == 0:
        zeros = tuple(torch.zeros_like(p, memory_format=torch.preserve_format) for p in trained.values())
        return Clipped(zeros, torch.zeros(0, dtype=torch.float64), torch.zeros((), device=x.device), path or "vmap")
    road = path or path_of(model, loss, x, y)
    if road == "bookkeeping":
        noted = shares_of(model, loss, x, y, members)
        if noted is not None:
            shares, value = noted
            counts = 1 if members.alone else members.counts.to(value.device)  # from sums over units to their means
            norms = _norms(shares) / counts
            return Clipped(_from_books(shares, trained, _factors(norms, bound) / counts), norms, value, road)
        road = _chosen(model, loss, x, y, ("vmap",))  # a branch that was not taken before goes past the books
    return _rows(model, trained, loss, x, y, bound, road, members)


_ROADS: WeakKeyDictionary[nn.Module, tuple[Any, Path]] = WeakKeyDictionary()
"""Verdicts of `path_of` and what they were about, for as long as a model lives: trying costs some passes."""


def path_of(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Path:
    """The fastest road that is right for a model in its present modes; refuses one whose examples are coupled."""
    about, road = _ROADS.get(model, (None, None))
    if road is not None and about == _about(model, loss):
        return road
    refuse_coupled(model, loss, x, y)
    return _chosen(model, loss, x, y, ("bookkeeping", "vmap"))


def _about(model: nn.Module, loss: Loss) -> Any:
    return loss, [p.requires_grad for p in model.parameters()], [layer.training for layer in model.modules()]


def _chosen(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, roads: tuple[Path, ...]) -> Path:
    """The first of these roads that leads where it should; a gradient hook has to see each gradient by itself."""
    layers = list(model.modules())
    hooked = any(p._backward_hooks for p in model.parameters()) or any(
        layer._backward_hooks or layer._backward_pre_hooks for layer in layers
    )
    chosen: Path = "one by one"
    with trying(model, loss) as trial:
        for road in () if hooked else roads:
            if in_doubt(trial, *sample(x, y, SMALL), partial(_astray, road)) is None:
                chosen = road
                break
    _ROADS[model] = _about(model, loss), chosen
    return chosen


def _astray(road: Path, trial: Trial, x: Tensor, y: Tensor, tolerance: float) -> Verdict:
    """Whether a road leads elsewhere than the definition: each example's gradient alone, with nothing drawn."""
    no = (f"{road} does not fit", "")
    trained = {name: p for name, p in trial.model.named_parameters() if p.requires_grad}
    with quiet(trial, x) as still:
        if not still:
            return no  # each example by itself is right by construction
        alone = [trial.gradient(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        trial.rewind(0)
        if road == "vmap":
            try:
                rows = _rows(trial.model, trained, trial.loss, x, y, float("inf"), road, _alone(x))
            except (RuntimeError, NotImplementedError):  # what torch raises where an operation has no vectorised form
                return no
            return no if gap(alone, [rows.sums]) > tolerance else None
        noted = shares_of(trial.model, trial.loss, x, y, _alone(x))
        if noted is None:
            return no
        for single, gradient in zip(torch.eye(len(x), dtype=torch.float64, device=x.device), alone, strict=True):
            if gap([gradient], [_from_books(noted[0], trained, single)]) > tolerance:
                return no
    return None if _keeps_books(trial, trained, x, y, tolerance) else no


def _keeps_books(trial: Trial, trained: dict[str, nn.Parameter], x: Tensor, y: Tensor, tolerance: float) -> bool:
    """Whether the books are right under random draws too: they add up, and an example's norm stays with its place."""
    norms = []
    for rows in (torch.arange(len(x)), torch.arange(len(x)).where(torch.arange(len(x)) % 2 == 0, 0)):
        trial.rewind(0)
        noted = shares_of(trial.model, trial.loss, x[rows], y[rows], _alone(x))
        if noted is None:
            return False
        norms.append(_norms(noted[0])[::2])
        total = _from_books(noted[0], trained, torch.ones(len(x), dtype=torch.float64, device=x.device))
        if gap([trial.gradient(x[rows], y[rows])], [total]) > tolerance:
            return False
    before, after = norms
    return torch.allclose(before, after, rtol=tolerance, atol=0.0, equal_nan=True)


@torch.no_grad()
def _norms(shares: Shares) -> Tensor:
    return torch.stack([share.squares for _, share in shares]).sum(0).sqrt()


@torch.no_grad()
def _from_books(shares: Shares, trained: dict[str, nn.Parameter], factors: Tensor) -> tuple[Tensor, ...]:
    """The units' gradients, weighted and added up."""
    sums = {id(getattr(layer, name)): g for layer, share in shares for name, g in share.sums(factors).items()}
    return tuple(sums[id(p)] for p in trained.values())


def _factors(norms: Tensor, bound: float) -> Tensor:
    return torch.where(norms <= bound, 1.0, bound / norms.clamp(min=1e-300) * MARGIN)


def _rows(
    model: nn.Module, trained: dict[str, nn.Parameter], loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path,
    members: Members,
) -> Clipped:  # fmt: skip
    """The clipped sum from per-example gradients that are really formed, a few at a time."""
    weights = {name: p.detach() for name, p in trained.items()}
    start = [(buffer, buffer.clone()) for buffer in model.buffers()] if path == "one by one" else []

    def value(weights: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (example[None],)), target[None])

    def together(x: Tensor, y: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # `path` says which road it is
            rows, losses = vmap(grad_and_value(value), in_dims=(None, 0, 0), randomness="different")(weights, x, y)
        return [rows[name] for name in weights], losses

    def alone(x: Tensor, y: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        with torch.no_grad():
            for buffer, before in start:
                buffer.copy_(before)  # no example sees what another left behind
        mean = loss(model(x), y)
        parts = gradients(mean, list(trained.values()))
        return [g[None] for g in parts], mean.detach()[None]

    step = 1 if path == "one by one" else max(1, ROWS // max(1, sum(w.numel() for w in weights.values())))
    sums, losses = [torch.zeros_like(w) for w in weights.values()], []
    norms = []
    for first, last in members.blocks(step):
        here = members.rows(first, last)
        block = Members(members.of[here] - first)
        parts = zip(torch.split(x[here], step), torch.split(y[here], step), strict=True)
        found = [(alone if path == "one by one" else together)(*part) for part in parts]
        with torch.no_grad():
            formed = (torch.cat(rows) for rows in zip(*(rows for rows, _ in found), strict=True))
            rows = [block.mean(r) for r in formed]
            squares = [torch.linalg.vector_norm(r.flatten(1), dim=1, dtype=torch.float64) ** 2 for r in rows]
            norms.append(torch.stack(squares).sum(0).sqrt())
            factors = _factors(norms[-1], bound)
            for total, row in zip(sums, rows, strict=True):
                total += torch.tensordot(factors.to(row.dtype), row, 1)
            losses += [values.detach() for _, values in found]
    return Clipped(tuple(sums), torch.cat(norms), torch.cat(losses).mean(), path)
