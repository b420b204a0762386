"""The attacker's copy of a client's network: the same function, with its inner statistics in view.

A twin has the parameters of the network under the same names. Its BatchNorm layers normalise by the batch, as in
training, and hand out the batch's mean and variance as differentiable values. Its ReLUs compute max(0, x) exactly
but may let derivatives pass through a smooth step (see `SoftStep`). Inputs of chosen layers can be read too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leakline.attacks.inversion.batchnorm import normalise
from leakline.attacks.inversion.convolution import convolve, fits


@dataclass
class Seen:
    """What one forward pass shows: batch moments by normalisation layer, inputs by watched layer."""

    moments: dict[str, tuple[Tensor, Tensor, int]] = field(default_factory=dict)
    """Mean, biased variance and number of values per channel."""
    inputs: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """A convolution or dense layer as one pass over one image showed it.

    ``source`` is a number that layers reading the same input share; ``norm`` the BatchNorm layer that takes its output.
    """

    name: str
    layer: nn.Module
    shape: tuple[int, ...]
    positions: int
    source: int
    norm: str | None


class SoftStep(torch.autograd.Function):
    """max(0, x) forwards; backwards the step [x > 0] is replaced by sigmoid(beta x).

    The gradient of a ReLU network jumps where a unit switches, and between jumps its derivative with respect to the
    image misses the jumps altogether: a search sees terraces. With the soft step the simulated update is a smooth
    function of the image, and beta -> infinity gives the client's own arithmetic back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: float) -> Tensor:
        """The exact ReLU."""
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Through the soft step, and differentiable itself."""
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(ctx.beta * x), None


class _Relu(nn.Module):
    """A ReLU whose softness is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = math.inf

    def forward(self, x: Tensor) -> Tensor:
        """max(0, x)."""
        if math.isinf(self.beta):
            return torch.relu(x)
        out: Tensor = SoftStep.apply(x, self.beta)  # type: ignore[no-untyped-call]
        return out


class _Norm(nn.Module):
    """BatchNorm in training mode that reports its batch's moments; running averages are the simulation's business."""

    fixed = False

    def __init__(self, name: str, like: nn.modules.batchnorm._BatchNorm, seen: Callable[[], Seen]) -> None:
        super().__init__()
        self.name, self.eps, self.seen = name, like.eps, seen
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch."""
        out, mean, variance = normalise(x, self.weight, self.bias, self.eps, self.fixed)
        self.seen().moments[self.name] = (mean, variance, x.numel() // x.shape[1])
        return out


class _Convolution(nn.Conv2d):
    """A convolution with a cheaper second derivative; ``fixed`` while its weight cannot depend on the image."""

    fixed = False

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        assert not isinstance(self.padding, str)  # `fits` saw to it
        shape = (self.stride, self.padding, self.dilation, self.groups)
        return convolve(x, self.weight, self.bias, shape, self.fixed)


class Twin(nn.Module):
    """A network prepared for inversion; the network it is made from is left as it was."""

    def __init__(self, network: nn.Module, watch: Iterable[str] = ()) -> None:
        super().__init__()
        self.seen = Seen()
        self.network = _replaced(copy.deepcopy(network).train(), "", lambda: self.seen)
        for part in self.network.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                part.eval()  # the client's masks are not known; their mean is
        for name in watch:
            layer = self.network.get_submodule(name)
            layer.register_forward_pre_hook(lambda _, args, name=name: self.seen.inputs.__setitem__(name, args[0]))

    def fix(self, fixed: bool) -> None:
        """Say whether the weights of the coming passes cannot depend on the image, which saves work."""
        for part in self.network.modules():
            if isinstance(part, _Convolution | _Norm):
                part.fixed = fixed

    @property
    def smooth(self) -> bool:
        """Whether no layer has kinks, so that the simulated update is a smooth function of the image."""
        kinked = (_Relu, nn.LeakyReLU, nn.ReLU6, nn.PReLU, nn.Hardtanh, nn.MaxPool2d, nn.AdaptiveMaxPool2d)
        return not any(isinstance(part, kinked) for part in self.network.modules())

    def soften(self, beta: float) -> None:
        """Set the slope of every ReLU's soft step; infinity is the exact one."""
        for part in self.network.modules():
            if isinstance(part, _Relu):
                part.beta = beta

    def sites(self, x: Tensor) -> list[Site]:
        """Where the convolutions and dense layers stand, found by sending ``x`` through."""
        kept: list[tuple[str, nn.Module, Tensor, Tensor]] = []  # holds the tensors, so that no address is used twice
        takes: dict[int, str] = {}

        def note(name: str, layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            if isinstance(layer, _Norm):
                takes[id(args[0])] = layer.name
            kept.append((name, layer, args[0], out))

        hooks = [
            part.register_forward_hook(lambda layer, args, out, name=name: note(name, layer, args, out))
            for name, part in self.network.named_modules()
            if isinstance(part, nn.Conv2d | nn.Linear | _Norm)
        ]
        try:
            with torch.no_grad():
                self(x)
        finally:
            for hook in hooks:
                hook.remove()
        return [
            Site(name, layer, tuple(given.shape), out[0, 0].numel(), id(given), takes.get(id(out)))
            for name, layer, given, out in kept
            if not isinstance(layer, _Norm)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs; what was seen on the way is in `seen`, new for every pass."""
        self.seen = Seen()
        out: Tensor = self.network(x)
        return out


def _replaced(part: nn.Module, name: str, seen: Callable[[], Seen]) -> nn.Module:
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return _Norm(name, part, seen)
    if isinstance(part, nn.ReLU):
        return _Relu()
    if type(part) is nn.Conv2d and fits(part):
        part.__class__ = _Convolution  # the same layer with the same parameters, another way to compute
        return part
    for child, inner in list(part.named_children()):
        setattr(part, child, _replaced(inner, f"{name}.{child}" if name else child, seen))
    return part
