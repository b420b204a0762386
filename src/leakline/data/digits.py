"""Scikit-learn's handwritten digits: the smallest real data there is, inside the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from leakline.data.base import Data, Dataset
from leakline.data.split import subset


@dataclass(frozen=True)
class Digits:
    """Handwritten digits, 8x8 grey, 1797 images in 10 classes (scikit-learn's copy of the UCI set).

    No test part of its own and no writers' names. ``limit``: a stratified subset of so many.
    """

    limit: int | None = None
    embedded: ClassVar[bool] = True
    needs: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1: {self.limit}")

    def available(self) -> bool:
        """Always: scikit-learn brings it."""
        return True

    def load(self) -> Dataset:
        """The images as uint8 (0..16 stretched to 0..255), N, 1, 8, 8."""
        from sklearn.datasets import load_digits

        pixels, y = load_digits(return_X_y=True)
        x = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        rows = subset(y, None, self.limit)
        data = Data(torch.from_numpy(x[rows]), torch.from_numpy(y[rows].astype(np.int64)))
        return Dataset("digits", data, None, tuple(str(d) for d in range(10)))
