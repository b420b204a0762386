"""How a recorded federation's pictures become what its network takes.

Attacks look for pictures in [0, 1]. Most apps normalise them before training, outside of the network: a search that
does not know it looks in the wrong box. So the network is put behind the same step,

    input = (x - mean) / std        x in [0, 1], a mean and a std for every channel or one for all
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakline.data.guard import npz_names, read_npz
from leakline.errors import DataError, LeaklineError

Source = Literal["assumed", "given", "public images"]


@dataclass(frozen=True)
class Inputs:
    """What pictures in [0, 1] go through before the network, and how that is known."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: Source = "assumed"

    def __post_init__(self) -> None:
        if not all(math.isfinite(v) for v in (*self.mean, *self.std)) or any(v == 0 for v in self.std):
            raise ValueError(f"mean and std must be finite, std not 0: {self.mean}, {self.std}")

    @classmethod
    def spanning(cls, low: Sequence[float], high: Sequence[float], source: Source = "given") -> Inputs:
        """Inputs that lie between ``low`` and ``high``: 0 becomes low, 1 becomes high."""
        if any(not lowest < highest for lowest, highest in zip(low, high, strict=True)):
            raise ValueError(f"a range goes from a lower to a higher number: {tuple(low)}, {tuple(high)}")
        # (x - mean) / std with std = 1 / (high - low) and mean = -low / (high - low)
        spans = [highest - lowest for lowest, highest in zip(low, high, strict=True)]
        mean = tuple(-lowest / span for lowest, span in zip(low, spans, strict=True))
        return cls(mean, tuple(1 / span for span in spans), source)

    @classmethod
    def of_public(cls, path: Path) -> Inputs:
        """The range, channel by channel, of public images *as the network takes them*: every array [N, C, H, W]."""
        tables = list(read_npz(path, [name for name in npz_names(path) if name != "y"]).values())  # y holds labels
        for values in tables:
            if values.ndim != 4 or values.dtype.kind not in "fu" or not len(values):
                raise DataError(f"{values.dtype} of shape {values.shape}", path.name, "inputs are N, C, H, W")
        if not tables or len({values.shape[1] for values in tables}) > 1:
            raise DataError("no images, or of different channels", path.name, "inputs are N, C, H, W")
        low = [min(float(v[:, c].min()) for v in tables) for c in range(tables[0].shape[1])]
        high = [max(float(v[:, c].max()) for v in tables) for c in range(tables[0].shape[1])]
        return cls.spanning(low, high, "public images")

    @property
    def plain(self) -> bool:
        """Whether the network takes pictures as they are."""
        return set(self.mean) == {0.0} and set(self.std) == {1.0}

    def __str__(self) -> str:
        low = [(0 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        high = [(1 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        span = ", ".join(dict.fromkeys(f"[{a:.4g}, {b:.4g}]" for a, b in zip(low, high, strict=True)))
        return f"inputs in {span} ({self.source})"

    def pictures(self, inputs: Tensor) -> Tensor:
        """Inputs of the network as pictures in [0, 1]."""
        return inputs * torch.tensor(self.std).view(1, -1, 1, 1) + torch.tensor(self.mean).view(1, -1, 1, 1)

    def check(self, channels: int) -> None:
        """Refuse as many means as there are no channels."""
        if len(self.mean) not in (1, channels):
            raise LeaklineError(
                f"{len(self.mean)} means for images of {channels} channels", "--mean", "one for each, or one for all"
            )

    def before(self, model: nn.Module) -> nn.Module:
        """The network behind this step; its entries keep their names."""
        if not self.plain:
            model.register_forward_pre_hook(_Normalise(torch.tensor(self.mean), torch.tensor(self.std)))
        return model


@dataclass(frozen=True)
class _Normalise:
    """A hook before a network."""

    mean: Tensor
    std: Tensor

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        return ((x - self.mean.to(x).view(1, -1, 1, 1)) / self.std.to(x).view(1, -1, 1, 1), *args[1:])


def inputs_of(
    mean: Sequence[float] | None, std: Sequence[float] | None, span: Sequence[float] | None, public: Path | None
) -> Inputs:
    """What the user says of the inputs, in one of three ways, or nothing."""
    ways = [
        name for name, given in (("--mean and --std", mean or std), ("--range", span), ("--public", public)) if given
    ]
    if len(ways) > 1:
        raise LeaklineError(f"{' and '.join(ways)} say the same thing", "leakline attack", "give one of them")
    if mean or std:
        if not mean or not std or len(mean) != len(std):
            raise LeaklineError("a mean and a std are needed, as many of each", "--mean, --std", "--mean 0.5 --std 0.5")
        return Inputs(tuple(mean), tuple(std), "given")
    if span:
        if len(span) != 2:
            raise LeaklineError("a range has two ends", "--range", "--range=-1,1")
        return Inputs.spanning(span[:1], span[1:])
    return Inputs() if public is None else Inputs.of_public(public)
