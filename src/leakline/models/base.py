"""What every model on the menu shares: the build contract and checks of input shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from math import gcd
from typing import Literal, Protocol, get_args, runtime_checkable

from torch import nn

from leakline.errors import StackError

Kind = Literal["classification", "segmentation"]
Activation = Literal["relu", "leaky-relu", "elu", "gelu", "softplus", "tanh", "sigmoid"]
Norm = Literal["none", "group", "batch"]
Shape = tuple[int, ...]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


@runtime_checkable
class Model(Protocol):
    """A configuration that can build a network: logits out, one row per input."""

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """A freshly initialised network for inputs of this shape (without the batch dimension)."""
        ...


def one_of(field: str, value: str, choices: object) -> None:
    """Refuse a value that is not among a Literal's choices."""
    if value not in get_args(choices):
        raise ValueError(f"{field} must be one of {', '.join(get_args(choices))}; got {value!r}")


def positive(field: str, *values: int) -> None:
    """Refuse sizes below one."""
    if not values or any(value < 1 for value in values):
        raise ValueError(f"{field} must be one or more positive integers; got {values}")


def fraction(field: str, value: float) -> None:
    """Refuse what is not a probability below one."""
    if not 0 <= value < 1:
        raise ValueError(f"{field} must lie in [0, 1); got {value}")


def needs(model: str, made_for: Kind, kind: Kind) -> None:
    """Refuse a task that the model was not made for."""
    if kind != made_for:
        other = "small-unet or unet" if kind == "segmentation" else "small-cnn or resnet"
        raise StackError(f"the model {model!r} is for {made_for}, the task is {kind}", "model", f"use {other}")


def image(model: str, shape: Shape, minimum: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that is large enough."""
    if len(shape) != 3:
        raise ValueError(f"{model} takes images (channels, height, width); got inputs of shape {shape}")
    if min(shape[1:]) < minimum:
        raise ValueError(
            f"{model} needs images of at least {minimum}x{minimum}; got {shape[1]}x{shape[2]}. "
            "Use small-cnn or mlp, or enlarge the images"
        )
    return shape[0], shape[1], shape[2]


def activation(name: Activation) -> nn.Module:
    """The activation of this name, never in place (in-place ones break functional training)."""
    return _ACTIVATIONS[name]()


def in_turn(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    """Layers one after another, but ReLU behind the maximum pool that follows it.

    The largest of four, if it is positive, is the largest of those that are, and has the whole gradient either way: the
    same values and gradients, bit for bit, and ReLU has a quarter of the work.
    """
    found = list(layers.items())
    for i, ((_, one), (_, other)) in enumerate(pairwise(found.copy())):
        if isinstance(one, nn.ReLU) and isinstance(other, nn.MaxPool1d | nn.MaxPool2d):
            found[i], found[i + 1] = found[i + 1], found[i]
    return nn.Sequential(OrderedDict(found))


def norm(name: Norm, channels: int) -> list[nn.Module]:
    """A normalisation layer over the channels, or none. Groups: the common divisor of channels and 8."""
    if name == "group":
        return [nn.GroupNorm(gcd(channels, 8), channels)]
    return [nn.BatchNorm2d(channels)] if name == "batch" else []
