"""Paper 002's network for images of any size: small ones are enlarged first, so that embedded digits can stand in."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakline.models.papers import Paper002CNN

SIDE = 28
"""What images below the network's 24x24 are enlarged to."""


def paper_002_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network; images below 24x24 are enlarged to 28x28 by repeating pixels, which adds no parameter."""
    if min(shape[1:]) >= 24:
        return Paper002CNN().build(shape, classes)
    inner = Paper002CNN().build((shape[0], SIDE, SIDE), classes)
    layers: OrderedDict[str, nn.Module] = OrderedDict(enlarge=nn.Upsample(size=(SIDE, SIDE)))
    layers.update(inner.named_children())
    return nn.Sequential(layers)
