"""Data sets that live as one .npz file in the folder LEAKLINE_DATA, and what they have in common."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from leakline.data.base import Data
from leakline.data.guard import child, labels_within, lengths_agree, read_npz
from leakline.data.images import channels_first, decode_many, resize
from leakline.data.split import subset
from leakline.errors import DataError
from leakline.names import printable

VARIABLE = "LEAKLINE_DATA"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Prepared:
    """A named data set in the folder LEAKLINE_DATA; ``name`` is its name on the menu, ``file`` its file."""

    embedded: ClassVar[bool] = False
    name: ClassVar[str] = ""
    file: ClassVar[str] = ""
    needs: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.needs = f"{cls.file} in the folder {VARIABLE}"

    def available(self) -> bool:
        """Whether the file is there."""
        folder = os.environ.get(VARIABLE, "")
        return bool(folder) and (Path(folder) / self.file).is_file()

    def path(self) -> Path:
        """The file, or an error that says how to get it."""
        folder = os.environ.get(VARIABLE, "")
        if not self.available():
            raise DataError(
                f"the data set {self.name!r} needs the file {self.file}",
                f"{VARIABLE} = {printable(folder)}" if folder else f"the environment variable {VARIABLE} is not set",
                f"set {VARIABLE} to the folder that holds it, or make it there: "
                f"leakline data prepare {self.name} --source PATH",
            )
        return child(Path(folder), self.file)


@dataclass(frozen=True)
class PreparedImages(Prepared):
    """Images from LEAKLINE_DATA: ``size`` brings them to size x size, ``limit`` takes a stratified subset."""

    size: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not 4 <= self.size <= 1024:
            raise ValueError(f"size must be from 4 to 1024: {self.size}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1: {self.limit}")

    def part(
        self, x: np.ndarray, y: np.ndarray, limit: int | None, groups: np.ndarray | None = None
    ) -> tuple[Data, np.ndarray]:
        """A stratified subset of images N, H, W(, C) at the wanted size, and the rows taken."""
        rows = subset(y, groups, limit)
        images = resize(channels_first(x[rows]), self.size)
        ids = None if groups is None else torch.from_numpy(groups[rows].astype(np.int64))
        return Data(torch.from_numpy(images), torch.from_numpy(y[rows].astype(np.int64)), ids), rows

    def test_limit(self, train: int, test: int) -> int | None:
        """How many test examples go with the limit: the same proportion."""
        return None if self.limit is None or self.limit >= train else max(1, round(test * self.limit / train))


def pixels(path: Path, arrays: Arrays, name: str) -> np.ndarray:
    """An array of uint8 images N, H, W or N, H, W, 3."""
    x = arrays[name]
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3) or 0 in x.shape[1:]:
        raise DataError(f"{name} must be uint8 images N, H, W or N, H, W, 3: {x.dtype} {x.shape}", printable(path))
    return x


def names_of(path: Path, arrays: Arrays, name: str) -> tuple[str, ...]:
    """A list of texts."""
    values = arrays[name]
    if values.ndim != 1 or values.dtype.kind != "U":
        raise DataError(f"{name} must be a list of texts: {values.dtype} {values.shape}", printable(path))
    return tuple(str(v) for v in values.tolist())


def train_and_test(path: Path, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels of a file with x_train, y_train, x_test, y_test."""
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
    parts = []
    for part in ("train", "test"):
        lengths_agree(path, arrays, f"x_{part}", f"y_{part}")
        parts += [
            pixels(path, arrays, f"x_{part}"),
            labels_within(path, arrays[f"y_{part}"], classes, f"y_{part}"),
        ]
    return parts[0], parts[1], parts[2], parts[3]


@dataclass(frozen=True)
class Encoded:
    """Images still encoded: picture i is ``blob[offsets[i]:offsets[i+1]]``."""

    path: Path
    blob: np.ndarray
    offsets: np.ndarray
    y: np.ndarray
    is_train: np.ndarray
    classes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Encoded:
        """Read and check a file with jpeg, offsets, y, is_train, class_names."""
        arrays = read_npz(path, ("jpeg", "offsets", "y", "is_train", "class_names"))
        n = lengths_agree(path, arrays, "y", "is_train")
        blob, offsets, classes = arrays["jpeg"], arrays["offsets"], names_of(path, arrays, "class_names")
        sound = blob.ndim == 1 and blob.dtype == np.uint8 and offsets.shape == (n + 1,) and offsets.dtype.kind in "iu"
        if not sound or offsets[0] != 0 or offsets[-1] != len(blob) or (np.diff(offsets.astype(np.int64)) <= 0).any():
            raise DataError("offsets do not cut the images apart", printable(path), "get a good copy of the file")
        if arrays["is_train"].dtype != np.bool_:
            raise DataError("is_train must be true or false", printable(path), "get a good copy of the file")
        y = labels_within(path, arrays["y"], len(classes))
        return cls(path, blob, offsets.astype(np.int64), y, arrays["is_train"], classes)

    def decode(self, rows: np.ndarray, grey: bool, size: int | None) -> Data:
        """The pictures at these positions, decoded now; nothing is kept on disk."""
        sources = [self.blob[self.offsets[i] : self.offsets[i + 1]].tobytes() for i in rows]
        images, _, failed = decode_many(sources, grey, size)
        if failed:
            raise DataError(
                f"{len(failed)} pictures cannot be decoded, the first is {rows[failed[0][0]]}: "
                f"{printable(failed[0][1])}",
                printable(self.path),
                "get a good copy of the file",
            )
        if len({image.shape for image in images}) != 1:
            raise DataError("the pictures differ in size, or there are none", printable(self.path), "set size")
        return Data(torch.from_numpy(channels_first(np.stack(images))), torch.from_numpy(self.y[rows]))
