"""MNIST and Fashion-MNIST (idx files), CIFAR-10 (binary version), SVHN (MATLAB files)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from leakline.data.guard import folder_of, reading
from leakline.data.prepare.write import write_npz
from leakline.errors import DataError
from leakline.names import printable

MOST = 2**30  # no official file of these sets unpacks to a gigabyte


def mnist(source: Path, destination: Path) -> Path:
    """The four idx files train-images-idx3-ubyte(.gz), train-labels-idx1-ubyte(.gz), t10k-..."""
    return write_npz(destination, "mnist.npz", _idx_set(source))


def fashion_mnist(source: Path, destination: Path) -> Path:
    """The same four idx files, as Fashion-MNIST publishes them."""
    return write_npz(destination, "fashion_mnist.npz", _idx_set(source))


def _idx_set(source: Path) -> dict[str, np.ndarray]:
    folder_of(source)
    arrays: dict[str, np.ndarray] = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        x = read_idx(_one_of(source, f"{prefix}-images", 3), 3)
        y = read_idx(_one_of(source, f"{prefix}-labels", 1), 1)
        if len(x) != len(y) or (len(y) and int(y.max()) > 9):
            raise DataError(f"{len(x)} images but {len(y)} labels, or labels above 9", printable(source))
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return arrays


def _one_of(source: Path, stem: str, axes: int) -> Path:
    names = [f"{stem}{dot}idx{axes}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (source / name).is_file():
            return source / name
    raise DataError(f"no file {names[0]} or {names[1]}", printable(source), "give the folder of the four idx files")


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An idx file of bytes: 0, 0, 8, number of axes, then the axes' lengths as big-endian 32-bit numbers."""
    with reading(path), gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        head = stream.read(4 + 4 * axes)
        if len(head) != 4 + 4 * axes or head[:4] != bytes([0, 0, 8, axes]):
            raise DataError("not an idx file of bytes", printable(path), "get the original file")
        shape = [int(n) for n in np.frombuffer(head[4:], dtype=">u4")]
        size = 1
        for length in shape:
            size *= length
        if size > MOST:
            raise DataError(f"the file claims {size:,} bytes", printable(path), "get the original file")
        body = stream.read(size + 1)
        if len(body) != size:
            raise DataError(f"the file claims {size:,} bytes and has {len(body):,}", printable(path))
        return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def cifar10(source: Path, destination: Path) -> Path:
    """The binary version: data_batch_1.bin ... data_batch_5.bin and test_batch.bin.

    The Python version is made of pickles, which can run code when they are read, so it is not read.
    """
    folder_of(source)
    if not (source / "data_batch_1.bin").exists() and (source / "data_batch_1").exists():
        raise DataError(
            "this is CIFAR-10's Python version, made of pickles, which are never loaded",
            printable(source),
            "get the binary version (cifar-10-binary.tar.gz)",
        )
    train = [_records(source / f"data_batch_{i}.bin") for i in range(1, 6)]
    x, y = (np.concatenate([part[k] for part in train]) for k in (0, 1))
    x_test, y_test = _records(source / "test_batch.bin")
    return write_npz(destination, "cifar10.npz", {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test})


def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3 x 32 x 32 pixel bytes."""
    with reading(path, "give the folder of the six .bin files"):
        size = path.stat().st_size
        if size == 0 or size % 3073 or size > MOST:
            raise DataError(f"{size:,} bytes are not whole records of 3073", printable(path), "get the original file")
        raw = np.fromfile(path, dtype=np.uint8).reshape(-1, 3073)
    if int(raw[:, 0].max()) > 9:
        raise DataError("labels above 9", printable(path), "get the original file")
    return np.ascontiguousarray(raw[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), raw[:, 0].copy()


def svhn(source: Path, destination: Path) -> Path:
    """train_32x32.mat and test_32x32.mat (format 2); the files' label 10 is the digit 0."""
    from scipy.io import loadmat

    folder_of(source)
    arrays = {}
    for part in ("train", "test"):
        path = source / f"{part}_32x32.mat"
        with reading(path, "give the folder of train_32x32.mat and test_32x32.mat"):
            content = loadmat(path, variable_names=["X", "y"])
            if "X" not in content or "y" not in content:
                raise DataError("the file has no X and y", printable(path), "get the original file")
            x, y = content["X"], content["y"].ravel()
            if x.shape[:3] != (32, 32, 3) or x.ndim != 4 or x.dtype != np.uint8 or x.shape[3] != len(y):
                raise DataError(f"X must be 32, 32, 3, N bytes: {x.dtype} {x.shape}", printable(path))
            if len(y) == 0 or not np.isin(y, np.arange(11)).all():
                raise DataError("y must be from 1 to 10", printable(path))
        arrays[f"x_{part}"] = np.ascontiguousarray(x.transpose(3, 0, 1, 2))
        arrays[f"y_{part}"] = (y % 10).astype(np.uint8)
    return write_npz(destination, "svhn.npz", arrays)
