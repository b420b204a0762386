"""Named image data sets for classification: brain, chest, eye, head, and the usual benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from leakline.data.base import Data, Dataset
from leakline.data.guard import labels_within, lengths_agree, npz_names, read_npz
from leakline.data.prepared import Encoded, PreparedImages, names_of, pixels, train_and_test
from leakline.data.split import stream, subset
from leakline.data.tables import TEST, TRAIN
from leakline.errors import DataError
from leakline.names import printable

DIGIT_NAMES = tuple(str(d) for d in range(10))


@dataclass(frozen=True)
class AlzheimerMri(PreparedImages):
    """Brain MRI slices, 128x128 grey, 6400 in 4 grades of dementia (paper 000).

    ``split = "paper"`` draws the paper's parts from the pool of all images: 724/49/2566/1781 for training and
    172/15/634/459 for testing (always the same draw; the file's own parts, if they have those counts).
    ``split = "file"`` keeps the file's parts. The set has no patient ids: slices of one person are probably
    in both parts.
    """

    split: Literal["paper", "file"] = "paper"
    name: ClassVar[str] = "alzheimer-mri"
    file: ClassVar[str] = "alzheimer_mri.npz"

    def load(self) -> Dataset:
        """Decode what is needed."""
        encoded = Encoded.read(self.path())
        is_train = encoded.is_train if self.split == "file" else self._paper_split(encoded)
        train, test = _encoded_parts(self, encoded, is_train, grey=True)
        return Dataset(self.name, train, test, encoded.classes)

    def _paper_split(self, encoded: Encoded) -> np.ndarray:
        counts = np.bincount(encoded.y, minlength=len(TRAIN))
        if tuple(np.bincount(encoded.y[encoded.is_train], minlength=len(TRAIN))) == TRAIN:
            return encoded.is_train
        pool = tuple(a + b for a, b in zip(TRAIN, TEST, strict=True))
        if tuple(counts) != pool:
            raise DataError(
                f"the paper's split needs {pool} images by class, the file has {tuple(counts.tolist())}",
                printable(encoded.path),
                "use split = 'file'",
            )
        rng, is_train = stream(0, "alzheimer-mri", "paper split"), np.zeros(len(encoded.y), dtype=bool)
        for c, take in enumerate(TRAIN):
            is_train[rng.permutation(np.flatnonzero(encoded.y == c))[:take]] = True
        return is_train


@dataclass(frozen=True)
class Cifar10(PreparedImages):
    """CIFAR-10: 32x32 RGB, 50000 + 10000 small photographs in 10 classes (paper 002)."""

    name: ClassVar[str] = "cifar10"
    file: ClassVar[str] = "cifar10.npz"

    def load(self) -> Dataset:
        """Read raw arrays, or decode JPEGs (a lossy copy), whichever the file holds."""
        path = self.path()
        if "jpeg" in npz_names(path):
            encoded = Encoded.read(path)
            train, test = _encoded_parts(self, encoded, encoded.is_train, grey=False)
            return Dataset(self.name, train, test, encoded.classes)
        classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
        return _train_test(self, classes)


@dataclass(frozen=True)
class Mnist(PreparedImages):
    """MNIST: 28x28 grey, 60000 + 10000 handwritten digits (paper 002)."""

    name: ClassVar[str] = "mnist"
    file: ClassVar[str] = "mnist.npz"

    def load(self) -> Dataset:
        """Read the arrays."""
        return _train_test(self, DIGIT_NAMES)


@dataclass(frozen=True)
class FashionMnist(PreparedImages):
    """Fashion-MNIST: 28x28 grey pictures of clothes in 10 classes (paper 002)."""

    name: ClassVar[str] = "fashion-mnist"
    file: ClassVar[str] = "fashion_mnist.npz"

    def load(self) -> Dataset:
        """Read the arrays."""
        names = "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
        return _train_test(self, tuple(names.split(", ")))


@dataclass(frozen=True)
class Svhn(PreparedImages):
    """SVHN: 32x32 RGB house-number digits in 10 classes (paper 002); for non-commercial use."""

    name: ClassVar[str] = "svhn"
    file: ClassVar[str] = "svhn.npz"

    def load(self) -> Dataset:
        """Read the arrays."""
        return _train_test(self, DIGIT_NAMES)


@dataclass(frozen=True)
class ChestXray(PreparedImages):
    """Chest X-rays, 128x128 grey, 2206: normal, covid19, pneumonia (paper 001).

    ``classes`` keeps some of them, in that order (["normal", "covid"]: the start of a name is enough). The
    column "source" says where an image came from. Class and source go together in this collection, so a
    network may learn the hospital instead of the disease; some sources are children.
    """

    classes: tuple[str, ...] = ()
    name: ClassVar[str] = "chest-xray"
    file: ClassVar[str] = "chest_xray.npz"

    def load(self) -> Dataset:
        """Read the arrays."""
        path = self.path()
        arrays = read_npz(path, ("x", "y", "class_names"), ("source", "source_names"))
        lengths_agree(path, arrays, "x", "y", "source")
        x, names = pixels(path, arrays, "x"), names_of(path, arrays, "class_names")
        y = labels_within(path, arrays["y"], len(names))
        keep = pick_classes(self.classes, names, self.name)
        rows = np.flatnonzero(np.isin(y, keep))
        label = np.argsort(keep)[np.searchsorted(np.sort(keep), y[rows])]
        data, taken = self.part(x[rows], label, self.limit)
        columns = {}
        if "source" in arrays and "source_names" in arrays:
            sources = names_of(path, arrays, "source_names")
            which = labels_within(path, arrays["source"], len(sources), "source")[rows[taken]]
            columns["source"] = tuple(sources[i] for i in which)
        return Dataset(self.name, data, None, tuple(names[i] for i in keep), columns=columns)


@dataclass(frozen=True)
class Fundus(PreparedImages):
    """Colour photographs of the retina, 128x128 RGB, 400 in 4 classes (paper 001)."""

    name: ClassVar[str] = "fundus"
    file: ClassVar[str] = "fundus.npz"

    def load(self) -> Dataset:
        """Read the arrays."""
        path = self.path()
        arrays = read_npz(path, ("x", "y", "class_names"))
        lengths_agree(path, arrays, "x", "y")
        names = names_of(path, arrays, "class_names")
        data, _ = self.part(pixels(path, arrays, "x"), labels_within(path, arrays["y"], len(names)), self.limit)
        return Dataset(self.name, data, None, names)


@dataclass(frozen=True)
class HeadCt(PreparedImages):
    """Head CT slices, 128x128 grey, 100 normal and 100 with haemorrhage (paper 004, small)."""

    name: ClassVar[str] = "head-ct"
    file: ClassVar[str] = "head_ct.npz"

    def load(self) -> Dataset:
        """Read the arrays; patients are groups where the file names them."""
        return _haemorrhage(self)


@dataclass(frozen=True)
class RsnaIch(PreparedImages):
    """RSNA head CT slices, grey, haemorrhage or not (paper 004); made by ``data prepare``."""

    name: ClassVar[str] = "rsna-ich"
    file: ClassVar[str] = "rsna_ich.npz"

    def load(self) -> Dataset:
        """Read the arrays; patients are groups where the file names them."""
        return _haemorrhage(self)


def _haemorrhage(source: PreparedImages) -> Dataset:
    path = source.path()
    arrays = read_npz(path, ("x", "y"), ("patient",))
    lengths_agree(path, arrays, "x", "y", "patient")
    groups = None
    if "patient" in arrays:
        groups = labels_within(path, arrays["patient"], len(arrays["x"]), "patient")
    y = labels_within(path, arrays["y"], 2)
    data, _ = source.part(pixels(path, arrays, "x"), y, source.limit, groups)
    return Dataset(source.name, data, None, ("normal", "haemorrhage"), group="patient")


def _train_test(source: PreparedImages, classes: tuple[str, ...]) -> Dataset:
    x, y, x_test, y_test = train_and_test(source.path(), len(classes))
    train, _ = source.part(x, y, source.limit)
    test, _ = source.part(x_test, y_test, source.test_limit(len(y), len(y_test)))
    return Dataset(source.name, train, test, classes)


def _encoded_parts(
    source: PreparedImages, encoded: Encoded, is_train: np.ndarray, grey: bool
) -> tuple[Data, Data | None]:
    """Training and test part: the limit first, so that only what is used is decoded."""
    train, test = np.flatnonzero(is_train), np.flatnonzero(~is_train)
    if not len(train):
        raise DataError("the file has no training images", printable(encoded.path))
    fewer = source.test_limit(len(train), len(test))
    train, test = (
        train[subset(encoded.y[train], None, source.limit)],
        test[subset(encoded.y[test], None, fewer)],
    )
    held = encoded.decode(test, grey, source.size) if len(test) else None
    return encoded.decode(train, grey, source.size), held


def pick_classes(wanted: Sequence[str], names: Sequence[str], where: str) -> np.ndarray:
    """Positions of the wanted classes in the wanted order; an unambiguous start of a name is enough."""
    chosen = []
    for want in wanted or names:
        exact = [i for i, n in enumerate(names) if n == want]
        match = exact or [i for i, n in enumerate(names) if want and n.lower().startswith(want.lower())]
        if len(match) != 1 or match[0] in chosen:
            raise DataError(
                f"classes: {printable(want)!r} is not one class of the set, or is named twice",
                where,
                f"its classes: {printable(', '.join(names))}",
            )
        chosen.append(match[0])
    return np.array(chosen)
