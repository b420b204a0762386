"""Features and decoded images that a run directory keeps: made once, found again by what they were made from."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from leakline.data import decoded
from leakline.data.base import Data
from leakline.data.features import Features
from leakline.errors import LeaklineError
from leakline.study.files import is_there, make_folder, write_atomically
from leakline.study.tensors import pack_sealed, read_sealed

FOLDER, IMAGES = "features", "images"
"""In a run directory. What lies there is as confidential as the data."""
VERSION = 1
"""Raised where the arithmetic of a transform changes."""

_folders: list[Path] = []


@contextlib.contextmanager
def kept_in(root: Path) -> Iterator[None]:
    """Keep features, and images that are too many for memory, in a run directory for as long as this lasts."""
    _folders.append(root / FOLDER)
    try:
        with decoded.kept_in(root / IMAGES):
            yield
    finally:
        _folders.pop()


def kept(features: Features, data: Data) -> Tensor:
    """The features of some data: from the run directory if they are there and whole, else computed (and left there)."""
    if not _folders:
        return features.of(data)
    text = f"{VERSION} {features!r} {data.fingerprint()}"
    path = _folders[-1] / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"
    if is_there(path):
        with contextlib.suppress(LeaklineError, ValueError, OSError, KeyError):  # damaged: computed again
            return read_sealed(path, _folders[-1].parent)[0]["x"].clone()  # not a window into a file that may go
    values = features.of(data)
    with contextlib.suppress(OSError):  # a full disk costs time, not the run
        make_folder(path.parent)
        write_atomically(path, pack_sealed({"x": values.contiguous()}, {"of": text}))
    return values
