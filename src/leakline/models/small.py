"""Small networks: images of any size, motion signals, flat inputs."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import nn

from leakline.models.base import (
    Activation,
    Kind,
    Norm,
    Shape,
    activation,
    image,
    in_turn,
    needs,
    norm,
    one_of,
    positive,
)

Pool = Literal["max", "average"]


@dataclass(frozen=True)
class SmallCNN:
    """A small CNN for images from 4x4 on: 3x3 convolutions with pooling, then two dense layers.

    ``channels`` has one entry per block (convolution, norm, activation, halving pool). Each block halves the
    image, so k blocks need at least 2^k pixels a side. With ``activation="tanh"`` and ``pool="average"`` the
    network is smooth, which gradient inversion likes.
    """

    channels: tuple[int, ...] = (16, 32)
    hidden: int = 64
    activation: Activation = "relu"
    norm: Norm = "none"
    pool: Pool = "max"

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))  # a study file gives a list
        positive("channels", *self.channels)
        positive("hidden", self.hidden)
        one_of("activation", self.activation, Activation)
        one_of("norm", self.norm, Norm)
        one_of("pool", self.pool, Pool)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 2^(number of blocks) a side."""
        needs("small-cnn", "classification", kind)
        depth, height, width = image("small-cnn", shape, minimum=2 ** len(self.channels))
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for number, (before, after) in enumerate(zip((depth, *self.channels), self.channels, strict=False), start=1):
            layers[f"conv{number}"] = nn.Conv2d(before, after, 3, padding=1)
            layers.update({f"norm{number}": layer for layer in norm(self.norm, after)})
            layers[f"act{number}"] = activation(self.activation)
            layers[f"pool{number}"] = nn.MaxPool2d(2) if self.pool == "max" else nn.AvgPool2d(2)
        shrink = 2 ** len(self.channels)
        layers["flatten"] = nn.Flatten()
        layers["dense1"] = nn.Linear(self.channels[-1] * (height // shrink) * (width // shrink), self.hidden)
        layers["act_dense1"] = activation(self.activation)
        layers["dense2"] = nn.Linear(self.hidden, classes)
        return in_turn(layers)


@dataclass(frozen=True)
class MotionCNN:
    """A 1-D CNN for motion signals (paper 003): two convolutions and three dense layers.

    The paper gives only the count of layers; kernel 5, halving max pools and the widths are ours. Layers
    are named conv1, conv2, dense1, dense2, dense3, so "keep the last three private" and "dense*" say the
    same thing.
    """

    channels: tuple[int, int] = (32, 64)
    hidden: tuple[int, int] = (128, 64)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        for field in ("channels", "hidden"):
            value = tuple(getattr(self, field))
            object.__setattr__(self, field, value)
            if len(value) != 2:
                raise ValueError(f"{field} must be two positive integers; got {value}")
            positive(field, *value)
        one_of("activation", self.activation, Activation)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for signals (channels, length) of at least 16 samples."""
        needs("motion-cnn", "classification", kind)
        if len(shape) != 2 or shape[1] < 16:
            raise ValueError(
                f"motion-cnn takes signals (channels, length) of at least 16 samples; got {shape}. "
                "Use small-cnn for images, mlp for shorter inputs"
            )
        length = ((shape[1] - 4) // 2 - 4) // 2
        (first, second), (upper, lower) = self.channels, self.hidden
        return in_turn(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv1d(shape[0], first, 5),
                act1=activation(self.activation),
                pool1=nn.MaxPool1d(2),
                conv2=nn.Conv1d(first, second, 5),
                act2=activation(self.activation),
                pool2=nn.MaxPool1d(2),
                flatten=nn.Flatten(),
                dense1=nn.Linear(second * length, upper),
                act3=activation(self.activation),
                dense2=nn.Linear(upper, lower),
                act4=activation(self.activation),
                dense3=nn.Linear(lower, classes),
            )
        )


@dataclass(frozen=True)
class Linear:
    """One dense layer on the input as a vector: what fixed features ask for, and the fewest weights to noise.

    It starts from zero, where all classes are equally likely: nothing random has to be unlearnt.
    """

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The layer for inputs of any shape."""
        needs("linear", "classification", kind)
        head = nn.Linear(prod(shape), classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=head))


@dataclass(frozen=True)
class MLP:
    """Dense layers over the flattened input, whatever its shape."""

    hidden: tuple[int, ...] = (64,)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if self.hidden:
            positive("hidden", *self.hidden)
        one_of("activation", self.activation, Activation)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network; with ``hidden=()`` it is logistic regression."""
        needs("mlp", "classification", kind)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        sizes = (prod(shape), *self.hidden, classes)
        for number in range(1, len(sizes)):
            layers[f"dense{number}"] = nn.Linear(sizes[number - 1], sizes[number])
            if number < len(sizes) - 1:
                layers[f"act{number}"] = activation(self.activation)
        return nn.Sequential(layers)
