"""Images in folders: class/*.png, train/class/*.png, or with a client's folder above the class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from leakline.data.base import Data, Dataset
from leakline.data.guard import folder_of, reading
from leakline.data.images import SUFFIXES, channels_first, decode_many
from leakline.data.split import subset
from leakline.errors import DataError
from leakline.names import natural, printable


@dataclass(frozen=True)
class Entry:
    """One image file, the class that its folder names, and the client above it ("" if there is none)."""

    path: Path
    label: str
    client: str


@dataclass(frozen=True)
class ImageFolder:
    """Your own images: a folder with one sub-folder for each class.

    ``path/class/*.png``, ``path/train/class/*.png`` with ``path/test/class/*.png``, and with ``sites =
    true`` one more level ``.../client/class/*.png`` whose names become the column "client". Images are
    brought to ``size`` x ``size``, grey or RGB. More than ``max_bad_files`` that cannot be read, and nothing
    is loaded.
    """

    path: str
    size: int = 64
    grey: bool = True
    sites: bool = False
    limit: int | None = None
    max_bad_files: int = 0
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a folder of images"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise ValueError(f"size must be from 1 to 4096: {self.size}")
        if self.max_bad_files < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"max_bad_files and limit must not be negative: {self.max_bad_files}, {self.limit}")

    def available(self) -> bool:
        """Whether the folder is there."""
        return Path(self.path).is_dir()

    def load(self) -> Dataset:
        """Read the images."""
        with reading(self.path):
            root = folder_of(Path(self.path))
            inner = root / "train"
            train = entries(inner if inner.is_dir() else root, self.sites)
            test = entries(root / "test", self.sites) if inner.is_dir() and (root / "test").is_dir() else []
        if not train:
            raise DataError(
                "the folder has no images in class folders",
                printable(root),
                "use path/class/*.png, or path/client/class/*.png with sites = true",
            )
        classes = tuple(sorted({e.label for e in train}, key=natural))
        strange = {e.label for e in test} - set(classes)
        if strange:
            raise DataError(
                f"only the test part has the class {printable(', '.join(sorted(strange)))}",
                printable(root),
                "name the class folders alike",
            )
        labels = np.array([classes.index(e.label) for e in train])
        train = [train[i] for i in subset(labels, None, self.limit)]
        bad: list[str] = []
        data, kept = self._read(train, classes, root, bad)
        held = self._read(test, classes, root, bad)[0] if test else None
        if len(bad) > self.max_bad_files or data is None:
            raise DataError(
                f"{len(bad)} of {len(train) + len(test)} image files cannot be read: {'; '.join(bad[:5])}"
                + ("; ..." if len(bad) > 5 else ""),
                printable(root),
                "replace or remove them, or raise max_bad_files",
            )
        columns = {"client": tuple(train[i].client for i in kept)} if self.sites else {}
        return Dataset("image-folder", data, held, tuple(text(c) for c in classes), columns=columns)

    def _read(
        self, files: list[Entry], classes: tuple[str, ...], root: Path, bad: list[str]
    ) -> tuple[Data | None, list[int]]:
        images, good, failed = decode_many([e.path for e in files], self.grey, self.size)
        bad += [f"{printable(files[i].path.relative_to(root))} ({printable(reason, 80)})" for i, reason in failed]
        if not images:
            return None, []
        y = np.array([classes.index(files[i].label) for i in good], dtype=np.int64)
        return Data(torch.from_numpy(channels_first(np.stack(images))), torch.from_numpy(y)), good


def entries(root: Path, clients: bool = False) -> list[Entry]:
    """The image files below a folder, in natural order; hidden files and other kinds are passed over."""
    listed = []
    for client in _folders(root) if clients else [root]:
        for label in _folders(client):
            listed += [Entry(p, label.name, text(client.name) if clients else "") for p in images_in(label)]
    return listed


def images_in(folder: Path) -> list[Path]:
    """The image files of one folder, in natural order."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]
    return sorted(paths, key=lambda p: natural(p.name))


def _folders(root: Path) -> list[Path]:
    # A link could lead anywhere on the machine.
    found = [p for p in root.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    return sorted(found, key=lambda p: natural(p.name))


def text(name: str) -> str:
    """A file name as text that can be stored: undecodable bytes become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
