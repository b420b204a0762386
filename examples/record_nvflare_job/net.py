"""What site.py trains, as a network of PyTorch's: for `leakline attack`, which NVFlare does not need."""

from __future__ import annotations

from torch import nn


def build() -> nn.Module:
    """Softmax regression over 64 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
