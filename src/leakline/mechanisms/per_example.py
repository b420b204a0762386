"""Clip each example's gradient and add them up, without forming per-example gradients of the whole model.

    sum_i g_i min(1, C / ||g_i||)        C = bound, g_i = gradient of the loss on example i, over all parameters

One ordinary forward and backward pass keeps each layer's inputs and output gradients (the "books"); norms and the
clipped sum come from them, layer by layer (`layer_gradients`; Bu et al. 2023, arXiv:2210.00038, call it bookkeeping).
Exact, not an approximation. Models with other layers, tied parameters or layers that do not see the example first
go through `torch.func.vmap`, and what vmap cannot do is done example by example; `Clipped.path` says which it was.

Dropout is drawn once for the batch, each example under its own mask: the gradient is that of the example under its
mask, so the bound holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakline.errors import StackError
from leakline.mechanisms.bookkeeping import owners, shares_of
from leakline.mechanisms.layer_gradients import rule_for

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the mean over examples."""
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
    """Of each example's gradient before clipping, float64."""
    loss: Tensor
    """Mean over the batch; 0 for an empty one."""
    path: Path


def clipped_sum(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path | None = None) -> Clipped:
    """Per-example clipping of one batch. Leaves the parameters' ``grad`` alone; an empty batch sums to zero.

    An example whose gradient is not finite counts as zero; its norm is reported as it is.
    ``path`` forces a road (to compare them); by default it is the fastest that the model allows.
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be positive, not {bound}")
    found = _clipped(model, loss, x, y, bound, path)
    sound = torch.isfinite(found.norms)
    if bool(sound.all()):
        return found
    # Scaling cannot tame an infinite gradient, and a sum of NaN would betray the example: it counts as zero.
    rest = _clipped(model, loss, x[sound], y[sound], bound, found.path)
    return replace(rest, norms=found.norms)


def _clipped(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path | None) -> Clipped:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if len(x) == 0:
        zeros = tuple(torch.zeros_like(p, memory_format=torch.preserve_format) for p in trained.values())
        return Clipped(zeros, torch.zeros(0, dtype=torch.float64), torch.zeros((), device=x.device), path or "vmap")
    road = path or path_of(model, loss, x, y)
    if road == "bookkeeping":
        found = _bookkeeping(model, trained, loss, x, y, bound)
        if found is not None:
            return found
        road = _PATHS[model] = _general(model, loss, x, y)
    return _rows(model, trained, loss, x, y, bound, road)


def refuse_coupled(model: nn.Module) -> None:
    """Refuse, by name, a layer under which an example's gradient is not its own: nothing could bound its influence."""
    for name, layer in model.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, _BatchNorm):
            raise StackError(
                f"layer {name} ({kind}) mixes the examples of a batch: no example's gradient is its own to clip; "
                "use GroupNorm",
                f"dp-sgd, layer {name}",
                'replace it by nn.GroupNorm (norm = "group" for models of the menu)',
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise StackError(
                f"layer {name} ({kind}) keeps running statistics of the data, which no noise covers",
                f"dp-sgd, layer {name}",
                "set track_running_stats=False, or replace it by nn.GroupNorm",
            )
        if isinstance(layer, nn.Embedding) and (layer.scale_grad_by_freq or layer.max_norm is not None):
            raise StackError(
                f"layer {name} ({kind}) scales by how often the batch uses an entry, or rewrites its weights",
                f"dp-sgd, layer {name}",
                "set scale_grad_by_freq=False and max_norm=None",
            )


_PATHS: WeakKeyDictionary[nn.Module, Path] = WeakKeyDictionary()
"""Verdicts of `path_of`, for as long as a model lives: looking costs a few forward passes."""


def path_of(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Path:
    """The fastest road that is right for a model; refuses one whose examples influence each other."""
    found = _PATHS.get(model)
    if found is None:
        refuse_coupled(model)
        with torch.random.fork_rng(devices=[]), _evaluating(model):
            _refuse_influence(model, x)
            complete = _has_books(model, x) and _adds_up(model, loss, x[:2], y[:2])
            found = "bookkeeping" if complete else _general(model, loss, x, y)
        _PATHS[model] = found
    return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


@torch.no_grad()
def _refuse_influence(model: nn.Module, x: Tensor) -> None:
    """Whether the first example's output depends on who shares its batch (a batch norm called as a function does)."""
    alone, beside = (model(torch.cat([x[:1], other])) for other in (x[:1], x[-1:]))
    scale = float(alone[0].abs().max()) + 1e-6
    if float((alone[0] - beside[0]).abs().max()) > 1e-3 * scale:
        raise StackError(
            "an example's output depends on the other examples of its batch: its gradient is not its own to clip",
            "dp-sgd",
            "normalise over channels (nn.GroupNorm) and not over the batch",
        )


@torch.no_grad()
def _has_books(model: nn.Module, x: Tensor) -> bool:
    """Whether every trained parameter belongs to one layer with a rule, which is called and sees the example first."""
    layers = owners(model)
    names = [id(p) for layer in layers for p in layer.parameters(recurse=False)]
    if len(set(names)) != len(names) or any(rule_for(layer) is None for layer in layers):
        return False
    called: set[nn.Module] = set()
    straight = True
    for count in (2, 3):  # two sizes: a layer that sees positions first may happen to see as many as there are examples

        def look(layer: nn.Module, given: tuple[Any, ...], count: int = count) -> None:
            nonlocal straight
            called.add(layer)
            straight &= len(given) == 1 and len(given[0]) == count and given[0].dim() >= _least(layer)

        hooks = [layer.register_forward_pre_hook(look) for layer in layers]
        try:
            model(x[:1].expand(count, *x.shape[1:]))
        finally:
            for hook in hooks:
                hook.remove()
    return straight and called == set(layers)


def _adds_up(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> bool:
    """Whether the books, without clipping, come to the batch's gradient: a weight used past its layer is missed."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    plain = torch.autograd.grad(loss(model(x), y) * len(x), list(trained.values()), allow_unused=True)
    found = _bookkeeping(model, trained, loss, x, y, float("inf"))
    if found is None or any(g is None for g in plain):
        return False
    return all(
        float((own - g).abs().max()) <= 1e-3 * float(g.abs().max()) + 1e-6
        for own, g in zip(found.sums, plain, strict=True)
        if g is not None
    )


def _least(layer: nn.Module) -> int:
    """How many dimensions a batch must have for a layer not to take it for a single example."""
    spatial = len(getattr(layer, "kernel_size", ()))
    return 2 + spatial if spatial else 1 if isinstance(layer, nn.Embedding) else 2


def _general(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Path:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    try:
        _rows(model, trained, loss, x[:1], y[:1], 1.0, "vmap")
    except (RuntimeError, NotImplementedError):  # what torch raises where an operation has no vectorised form
        return "one by one"
    return "vmap"


def _bookkeeping(
    model: nn.Module, trained: dict[str, nn.Parameter], loss: Loss, x: Tensor, y: Tensor, bound: float
) -> Clipped | None:
    """The clipped sum from the books; None if they are not complete."""
    noted = shares_of(model, loss, x, y)
    if noted is None:
        return None
    shares, value = noted
    with torch.no_grad():
        squares = sum((share.squares for _, share in shares), torch.zeros(len(x), dtype=torch.float64, device=x.device))
        norms = squares.sqrt()
        factors = _factors(norms, bound)
        found = {id(getattr(layer, n)): g for layer, share in shares for n, g in share.sums(factors).items()}
    return Clipped(tuple(found[id(p)] for p in trained.values()), norms, value, "bookkeeping")


def _factors(norms: Tensor, bound: float) -> Tensor:
    return torch.where(norms <= bound, 1.0, bound / norms.clamp(min=1e-300) * MARGIN)


def _rows(
    model: nn.Module, trained: dict[str, nn.Parameter], loss: Loss, x: Tensor, y: Tensor, bound: float, path: Path
) -> Clipped:
    """The clipped sum from per-example gradients that are really formed, a few at a time."""
    weights = {name: p.detach() for name, p in trained.items()}

    def value(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (one[None],)), target[None])

    def together(x: Tensor, y: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        rows, losses = vmap(grad_and_value(value), in_dims=(None, 0, 0), randomness="different")(weights, x, y)
        return [rows[name] for name in weights], losses

    def alone(x: Tensor, y: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        one = loss(model(x), y)
        found = torch.autograd.grad(one, list(trained.values()), allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for g, p in zip(found, trained.values(), strict=True)]
        return [g[None] for g in filled], one.detach()[None]

    step = 1 if path == "one by one" else max(1, ROWS // max(1, sum(w.numel() for w in weights.values())))
    sums, norms, losses = [torch.zeros_like(w) for w in weights.values()], [], []
    for at in range(0, len(x), step):
        rows, own = (alone if path == "one by one" else together)(x[at : at + step], y[at : at + step])
        with torch.no_grad():
            squares = [torch.linalg.vector_norm(r.flatten(1), dim=1, dtype=torch.float64) ** 2 for r in rows]
            norms.append(torch.stack(squares).sum(0).sqrt())
            factors = _factors(norms[-1], bound)
            for total, row in zip(sums, rows, strict=True):
                total += torch.tensordot(factors.to(row.dtype), row, 1)
            losses.append(own.detach())
    return Clipped(tuple(sums), torch.cat(norms), torch.cat(losses).mean(), path)
