"""Your own arrays: .npz files, and MedMNIST's, which are .npz too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from leakline.data.base import Data, Dataset, Kind
from leakline.data.guard import lengths_agree, npz_names, read_npz
from leakline.data.images import channels_first, resize
from leakline.data.people import PERSONAL, Record, gather, records_of
from leakline.data.split import limited, subset
from leakline.errors import DataError
from leakline.names import printable

Layout = Literal["auto", "nchw", "nhwc", "nhw", "ncl", "nlc", "nd"]
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Npz:
    """Your own arrays in an .npz file: x and y, or x_train, y_train, x_test, y_test.

    ``x``: images (uint8, read as value / 255; or floating point, read as they are), signals N, C, L, or rows
    of features. ``layout = "auto"`` takes four axes as images, three as grey images if uint8 and as signals
    N, C, L otherwise. ``y``: whole numbers, text, or masks (N, H, W: segmentation). Optional arrays:
    ``class_names``; ``patient`` (whose example it is), ``site``, ``sex``, ``age``, ``split`` (train or test), or
    whatever array these keys name (``groups`` will do for ``patient``); and any in ``columns``. Each is as long as x;
    beside x_train and x_test, patients are ``patient`` or ``patient_train``, and ``patient_test``.
    """

    path: str
    layout: Layout = "auto"
    columns: tuple[str, ...] = ()
    patient: str = ""
    site: str = ""
    sex: str = ""
    age: str = ""
    split: str = ""
    limit: int | None = None
    max_bytes: int | None = None
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: an .npz file"

    def available(self) -> bool:
        """Whether the file is there."""
        return Path(self.path).is_file()

    def load(self) -> Dataset:
        """Read and check the arrays."""
        path = Path(self.path)
        there = npz_names(path)
        end = "_train" if "x_train" in there else ""
        x, y = f"x{end}", f"y{end}"
        facts = {field: self._array(path, field, there) for field in PERSONAL}
        named = [name for name in facts.values() if name]
        later = {field: f"{field}_test" for field in PERSONAL if end and f"{field}_test" in there}
        optional = ("x_test", "y_test", "class_names", *later.values())
        arrays = read_npz(path, (x, y, *self.columns, *named), optional, self.max_bytes)
        lengths_agree(path, arrays, x, y, *named, *self.columns)
        names, train_y, test_y = _targets(path, arrays[y], arrays.get("y_test"), arrays.get("class_names"))
        kind: Kind = "segmentation" if train_y.ndim > 1 else "classification"
        data = Data(_inputs(path, arrays[x], self.layout), torch.from_numpy(train_y))
        if kind == "segmentation" and data.x.shape[2:] != data.y.shape[2:]:
            raise DataError(
                f"masks are {tuple(data.y.shape[2:])}, images {tuple(data.x.shape[2:])}",
                printable(path),
                "save masks of the images' size",
            )
        records = _records(path, arrays, facts, len(data))
        if "x_test" in arrays and test_y is not None:
            lengths_agree(path, arrays, "x_test", "y_test", *later.values())
            test = Data(_inputs(path, arrays["x_test"], self.layout), torch.from_numpy(test_y))
            if test.x.shape[1:] != data.x.shape[1:] or test.x.dtype != data.x.dtype:
                raise DataError("x_test has another shape or type than the training part", printable(path))
            held = [replace(r, split="test") for r in _records(path, arrays, later, len(test))]
            whole = (torch.cat([data.x, test.x]), torch.cat([data.y, test.y]), [*records, *held])
        else:
            whole = (data.x, data.y, records)
        dataset = gather("npz", *whole, names, printable(path), kind)
        trained = [i for i, r in enumerate(records) if not r.tested]
        texts = {c: [str(v) for v in arrays[c].tolist()] for c in self.columns}
        columns = dict(dataset.columns) | {c: tuple(values[i] for i in trained) for c, values in texts.items()}
        dataset = replace(dataset, columns=columns)
        return limited(dataset, self.limit)

    def _array(self, path: Path, field: str, there: Sequence[str]) -> str:
        """The name of the array that holds a fact about people; "" where there is none."""
        wanted = str(getattr(self, field))
        if wanted and wanted not in there:
            raise DataError(
                f"the file has no array {printable(wanted)!r}", f"{printable(path)}, {field}",
                f"it holds: {printable(', '.join(there))}",
            )  # fmt: skip
        usual = (field, f"{field}_train", *(("groups",) if field == "patient" else ()))
        return wanted or next((name for name in usual if name in there), "")


@dataclass(frozen=True)
class MedMNIST:
    """A MedMNIST file (pathmnist.npz, ...): train_images, train_labels, test_images, test_labels, val_*.

    Single-label 2-D sets of any size; the official validation part joins the training part unless ``use_val``
    is false. Class names are numbers, since the file has none.
    """

    path: str
    size: int | None = None
    limit: int | None = None
    use_val: bool = True
    max_bytes: int | None = None
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a MedMNIST .npz file"

    def available(self) -> bool:
        """Whether the file is there."""
        return Path(self.path).is_file()

    def load(self) -> Dataset:
        """Read the file."""
        path = Path(self.path)
        parts = ("train", "val", "test")
        names = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
        arrays = read_npz(path, names, (), self.max_bytes)
        pairs = {}
        for part in parts:
            lengths_agree(path, arrays, f"{part}_images", f"{part}_labels")
            x, y = arrays[f"{part}_images"], arrays[f"{part}_labels"]
            if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] != 3):
                raise DataError(f"{part}_images must be 2-D images, uint8: {x.dtype} {x.shape}", printable(path))
            if y.ndim == 2 and y.shape[1] != 1:
                raise DataError("this set has several labels for each image", printable(path), "use a single-label set")
            pairs[part] = (channels_first(x), y.reshape(len(y)))
        if self.use_val:
            pairs["train"] = (
                np.concatenate([pairs["train"][0], pairs["val"][0]]),
                np.concatenate([pairs["train"][1], pairs["val"][1]]),
            )
        classes, train_y, test_y = _targets(path, pairs["train"][1], pairs["test"][1], None)
        rows = subset(train_y, None, self.limit)
        train = Data(torch.from_numpy(resize(pairs["train"][0][rows], self.size)), torch.from_numpy(train_y[rows]))
        assert test_y is not None
        test = Data(torch.from_numpy(resize(pairs["test"][0], self.size)), torch.from_numpy(test_y))
        return Dataset("medmnist", train, test, classes)


def _inputs(path: Path, x: np.ndarray, layout: Layout) -> torch.Tensor:
    """The inputs as Data holds them, after a look at its type, its shape and its values."""
    if x.dtype.kind not in "fiu" or x.ndim < 2 or x.size == 0:
        raise DataError(f"x must be numbers with at least two axes: {x.dtype} {x.shape}", printable(path))
    if x.dtype != np.uint8:
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise DataError("x has values that are not finite numbers", printable(path), "remove those examples")
    if layout == "auto":
        last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
        layout = ("nhwc" if last else "nchw") if x.ndim == 4 else "nhw" if x.ndim == 3 and x.dtype == np.uint8 else "nd"
        layout = "ncl" if x.ndim == 3 and x.dtype != np.uint8 else layout
    axes = {"nchw": 4, "nhwc": 4, "nhw": 3, "ncl": 3, "nlc": 3, "nd": 2}[layout]
    if x.ndim != axes:
        raise DataError(f"x has {x.ndim} axes, layout {layout!r} has {axes}", printable(path), "set layout")
    moved: Mapping[str, np.ndarray] = {
        "nhwc": x.transpose(0, 3, 1, 2) if x.ndim == 4 else x,
        "nhw": x[:, None],
        "nlc": x.transpose(0, 2, 1) if x.ndim == 3 else x,
    }
    return torch.from_numpy(np.ascontiguousarray(moved.get(layout, x)))


def _targets(
    path: Path, y: np.ndarray, test: np.ndarray | None, names: np.ndarray | None
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray | None]:
    """Class names and int64 labels, or the names of what masks mark and uint8 masks N, 1, H, W."""
    if y.ndim == 2 and y.shape[1] != 1:
        raise DataError(
            "several labels for one record: that is not supported yet", printable(path), "choose one label for each"
        )
    if y.ndim in (3, 4):
        return ("background", "marked"), _masks(path, y), None if test is None else _masks(path, test)
    y = y.reshape(len(y))
    test = None if test is None else test.reshape(len(test))
    if y.dtype.kind in "US":
        values = np.unique(y)
        if test is not None and not np.isin(test, values).all():
            raise DataError("y_test has a class that the training part lacks", printable(path), "name alike")
        labels = np.searchsorted(values, y)
        return (
            tuple(str(v) for v in values.tolist()),
            labels,
            None if test is None else np.searchsorted(values, test),
        )
    both = y if test is None else np.concatenate([y, test])
    if both.dtype.kind not in "iub" or not len(both) or int(both.min()) < 0 or int(both.max()) >= MOST_CLASSES:
        what = "y has numbers with fractions: regression is not supported yet" if both.dtype.kind == "f" else ""
        raise DataError(
            what or "y must be whole numbers from 0, or text, or masks",
            printable(path),
            "make classes of it: 0, 1, ...",
        )
    count = int(both.max()) + 1
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U" or len(names) < count):
        raise DataError(f"class_names must be {count} texts", printable(path))
    classes = tuple(str(n) for n in (range(count) if names is None else names.tolist()))
    return classes, y.astype(np.int64), None if test is None else test.astype(np.int64)


def _masks(path: Path, y: np.ndarray) -> np.ndarray:
    if y.ndim == 4 and 1 in (y.shape[1], y.shape[3]):
        y = y.reshape(len(y), *(s for s in (y.shape[1:3] if y.shape[3] == 1 else y.shape[2:])))
    if y.ndim != 3 or y.dtype.kind not in "iub":
        raise DataError(f"masks must be N, H, W whole numbers: {y.dtype} {y.shape}", printable(path))
    return np.ascontiguousarray((y > 0).astype(np.uint8)[:, None])


def _records(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, str], n: int) -> list[Record]:
    """What arrays say of people, one record for each example."""
    told = {field: arrays[name] for field, name in facts.items() if name and name in arrays}
    for field, values in told.items():
        if values.ndim != 1:
            raise DataError(f"{facts[field]} must be one value for each example: {values.shape}", printable(path))
    return records_of({field: values.tolist() for field, values in told.items()}, n)
