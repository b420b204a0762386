"""A small U-Net for binary masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

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


def _double(before: int, after: int, act: Activation, normed: Norm) -> nn.Sequential:
    bias = normed == "none"
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=bias),
        *norm(normed, after),
        activation(act),
        nn.Conv2d(after, after, 3, padding=1, bias=bias),
        *norm(normed, after),
        activation(act),
    )


Up = Literal["nearest", "transposed"]


class _UNet(nn.Module):
    def __init__(self, channels: int, widths: tuple[int, ...], act: Activation, normed: Norm, up: Up) -> None:
        super().__init__()
        steps = list(zip(reversed(widths[1:]), reversed(widths[:-1]), strict=True))
        learned = up == "transposed"
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(below, beside, 2, stride=2) for below, beside in steps if learned
        )
        self.down = nn.ModuleList(
            _double(before, after, act, normed) for before, after in zip((channels, *widths[:-1]), widths, strict=True)
        )
        self.up = nn.ModuleList(
            _double((beside if learned else below) + beside, beside, act, normed) for below, beside in steps
        )
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, convolve in enumerate(self.down):
            x = convolve(functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for level, (convolve, beside) in enumerate(zip(self.up, reversed(kept[:-1]), strict=True)):
            if len(self.enlarge):
                x = self.enlarge[level](x)
            else:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = convolve(torch.cat([x, beside], dim=1))
        out: Tensor = self.head(x)
        return out


@dataclass(frozen=True)
class SmallUNet:
    """An own small U-Net (Ronneberger et al. 2015) with GroupNorm: one logit per pixel.

    ``widths`` has one entry per level; sides must be multiples of 2^(levels - 1). Departs from the original
    in padded convolutions (the mask has the image's size), nearest-neighbour enlarging and the norm. Masks
    are binary, so there is one output channel whatever ``classes`` is.

    ``up = "transposed"`` enlarges by learned 2x2 convolutions that halve the channels, as the original does. With
    widths 32, 64, 128, 256, 512 that is paper 004's network: 7,757,153 values for three channels beside the norm's
    (the released BatchNorm has none).
    """

    widths: tuple[int, ...] = (16, 32, 64)
    norm: Norm = "group"
    activation: Activation = "relu"
    up: Up = "nearest"

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        one_of("up", self.up, Up)
        positive("widths", *self.widths)
        one_of("norm", self.norm, Norm)
        one_of("activation", self.activation, Activation)

    def build(self, shape: Shape, classes: int, kind: Kind = "segmentation") -> nn.Module:
        """The network for images whose sides are multiples of 2^(levels - 1)."""
        needs("small-unet", "segmentation", kind)
        step = 2 ** (len(self.widths) - 1)
        channels, height, width = image("small-unet", shape, minimum=2 * step)
        if height % step or width % step:
            raise ValueError(
                f"small-unet with {len(self.widths)} levels needs sides that are multiples of {step}; "
                f"got {height}x{width}. Crop or pad the images, or give fewer widths"
            )
        return _UNet(channels, self.widths, self.activation, self.norm, self.up)
