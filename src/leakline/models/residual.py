"""A residual network of 18 layers whose width, norm and stem can be chosen."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leakline.models.base import (
    Activation,
    Kind,
    Norm,
    Shape,
    activation,
    image,
    needs,
    norm,
    one_of,
    positive,
)

_BLOCKS = 8
Stem = Literal["3x3", "7x7"]


class Block(nn.Module):
    """Basic residual block: y = act(branch(x) + shortcut(x)), two 3x3 convolutions in the branch."""

    def __init__(self, before: int, after: int, stride: int, act: Activation, normed: Norm) -> None:
        super().__init__()
        bias = normed == "none"
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=bias)
        self.norm1 = nn.Sequential(*norm(normed, after))
        self.act1 = activation(act)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=bias)
        self.norm2 = nn.Sequential(*norm(normed, after))
        self.act2 = activation(act)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=bias), *norm(normed, after))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        branch = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        out: Tensor = self.act2(branch + self.shortcut(x))
        return out


@dataclass(frozen=True)
class ResNet:
    """An own small residual network: 18 layers (He et al. 2016), any width, swappable norm.

    A stem, four stages of two blocks with ``width`` times 1, 2, 4, 8 channels, the mean over pixels, one dense
    layer. ``stem="3x3"`` departs from ResNet-18 (no max pool, a stride of choice), so that small images keep
    their pixels; ``stem="7x7"`` is its own (stride 2, then a 3x3 max pool of stride 2), and with ``width=64``
    and ``norm="batch"`` the network is ResNet-18. ``norm="none"`` divides the last convolution of each branch by the
    square root of the number of blocks at the start, since nothing else keeps the activations from growing
    with depth.
    """

    width: int = 16
    norm: Norm = "group"
    stem_stride: int = 1
    activation: Activation = "relu"
    stem: Stem = "3x3"

    def __post_init__(self) -> None:
        positive("width", self.width)
        one_of("norm", self.norm, Norm)
        one_of("activation", self.activation, Activation)
        one_of("stem", self.stem, Stem)
        if self.stem_stride not in (1, 2, 4):
            raise ValueError(f"stem_stride must be 1, 2 or 4; got {self.stem_stride}")
        if self.stem == "7x7" and self.stem_stride != 1:
            raise ValueError(f"the 7x7 stem has its own stride of 2; stem_stride is the 3x3 one's: {self.stem_stride}")

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 8x8, or 32x32 with the 7x7 stem."""
        needs("resnet", "classification", kind)
        wide = self.stem == "7x7"
        channels, _, _ = image("resnet", shape, minimum=32 if wide else 8)
        side, stride = (7, 2) if wide else (3, self.stem_stride)
        stem = nn.Conv2d(channels, self.width, side, stride, side // 2, bias=self.norm == "none")
        shrunk = [nn.MaxPool2d(3, 2, 1)] if wide else []
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            stem=nn.Sequential(stem, *norm(self.norm, self.width), activation(self.activation), *shrunk)
        )
        before = self.width
        for stage in range(4):
            after = self.width * 2**stage
            for place in range(2):
                stride = 2 if stage and not place else 1
                layers[f"stage{stage + 1}_block{place + 1}"] = Block(before, after, stride, self.activation, self.norm)
                before = after
        layers.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(before, classes))
        network = nn.Sequential(layers)
        _start(network, self.norm)
        return network


@torch.no_grad()
def _start(network: nn.Module, normed: Norm) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if normed == "none":
        for module in network.modules():
            if isinstance(module, Block):
                module.conv2.weight.div_(_BLOCKS**0.5)
