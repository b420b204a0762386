"""The two convolutional networks that the seed papers describe."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import nn

from leakline.models.base import Kind, Shape, fraction, image, in_turn, needs, one_of

Init = Literal["glorot", "torch"]


def glorot(network: nn.Module) -> None:
    """Keras' default start: Glorot-uniform weights, biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@dataclass(frozen=True)
class Paper000CNN:
    """Paper 000's CNN: three convolutions and three dense layers (6.5 M parameters at 128x128).

    Conv32, MaxPool2, Conv64, MaxPool2, Conv128, Dense64, Dense32, Dense classes; ReLU; dropout after the
    first two dense layers. The paper leaves kernel and padding open: 3x3 without padding here, which gives
    6,517,476 parameters in 12 arrays for 1x128x128 and four classes. Keras starts from Glorot-uniform
    weights and zero biases, hence ``init="glorot"``. Departs from the paper in that logits come out
    (softmax is in the loss).
    """

    dropout: float = 0.1
    init: Init = "glorot"

    def __post_init__(self) -> None:
        fraction("dropout", self.dropout)
        one_of("init", self.init, Init)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 18x18."""
        needs("paper-000-cnn", "classification", kind)
        channels, height, width = image("paper-000-cnn", shape, minimum=18)
        rows, columns = (((size - 2) // 2 - 2) // 2 - 2 for size in (height, width))
        network = in_turn(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(channels, 32, 3),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(32, 64, 3),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                conv3=nn.Conv2d(64, 128, 3),
                relu3=nn.ReLU(),
                flatten=nn.Flatten(),
                dense1=nn.Linear(128 * rows * columns, 64),
                relu4=nn.ReLU(),
                dropout1=nn.Dropout(self.dropout),
                dense2=nn.Linear(64, 32),
                relu5=nn.ReLU(),
                dropout2=nn.Dropout(self.dropout),
                dense3=nn.Linear(32, classes),
            )
        )
        if self.init == "glorot":
            glorot(network)
        return network


@dataclass(frozen=True)
class Paper002CNN:
    """Paper 002's CNN: two strided convolutions and two dense layers, for 28x28 and 32x32 images.

    Conv16 8x8 stride 2, MaxPool 2 stride 2, Conv32 4x4 stride 2, MaxPool 2 stride 2, Dense32, Dense
    classes. The paper leaves padding and activation open. Without any padding 28x28 images shrink to
    nothing, so the first convolution is padded by 3 on each side (half the size comes out) and the second
    is not; ReLU after each layer. Sizes: 28 -> 14 -> 7 -> 2 -> 1 and 32 -> 16 -> 8 -> 3 -> 1; images below
    24x24 are refused.
    """

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 24x24."""
        needs("paper-002-cnn", "classification", kind)
        channels, height, width = image("paper-002-cnn", shape, minimum=24)
        rows, columns = (((size // 4) - 2) // 2 // 2 for size in (height, width))
        return nn.Sequential(
            OrderedDict[str, nn.Module](
                conv1=nn.Conv2d(channels, 16, 8, stride=2, padding=3),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, 4, stride=2),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(),
                dense1=nn.Linear(32 * rows * columns, 32),
                relu3=nn.ReLU(),
                dense2=nn.Linear(32, classes),
            )
        )
