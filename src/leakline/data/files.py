"""Files below folders of the user's own: which ones, in natural order, and what a folder holds instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from leakline.data.images import SUFFIXES
from leakline.errors import DataError
from leakline.names import natural

READERS = {
    ".npz": "npz", ".parquet": "table", ".csv": "csv-signals", ".dcm": "dicom-folder", ".nii": "nifti-folder",
    ".nii.gz": "nifti-folder",
}  # fmt: skip
"""By a file's ending, the loader that reads it."""


@dataclass(frozen=True)
class Entry:
    """One image file, the class that its folder names, and the site above it ("" if there is none)."""

    path: Path
    label: str
    site: str = ""


def entries(root: Path, sites: bool = False) -> list[Entry]:
    """The image files in class folders, in natural order; hidden files and other kinds are passed over."""
    listed = []
    for site in _folders(root) if sites else [root]:
        for label in _folders(site):
            listed += [Entry(p, label.name, text(site.name) if sites else "") for p in images_in(label)]
    return listed


def images_in(folder: Path) -> list[Path]:
    """The image files of one folder, in natural order."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]
    return sorted(paths, key=lambda p: natural(p.name))


def below(root: Path, suffixes: Collection[str] = ()) -> Iterator[Path]:
    """The files of these kinds (or of any) at any depth, in natural order; hidden files and links are passed over."""
    files = [p for p in root.iterdir() if not p.name.startswith(".") and not p.is_symlink() and p.is_file()]
    yield from sorted((p for p in files if not suffixes or ending(p) in suffixes), key=lambda p: natural(p.name))
    for folder in _folders(root):
        yield from below(folder, suffixes)


def ending(path: Path) -> str:
    """How a file's name ends, in small letters, with ``.nii.gz`` in one."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def instead(root: Path) -> str:
    """What a folder holds instead of what was looked for: kinds with counts, and which loader reads them."""
    kinds: dict[str, int] = {}
    for path in below(root):
        kinds[ending(path)] = kinds.get(ending(path), 0) + 1
    listed = sorted(kinds.items(), key=lambda kind: -kind[1])[:4]
    counts = ", ".join(f"{n} {end or 'without an ending'}" for end, n in listed)
    readers = dict.fromkeys(READERS[end] for end, _ in listed if end in READERS)
    hint = f' (for use = "{next(iter(readers))}")' if readers else ""
    return f"; it holds {sum(kinds.values())} files: {counts}{hint}" if listed else "; it is empty"


def _folders(root: Path) -> list[Path]:
    # A link could lead anywhere on the machine.
    folders = [p for p in root.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    return sorted(folders, key=lambda p: natural(p.name))


def needs_package(package: str, loader: str) -> None:
    """Refuse where a loader's package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise DataError(f"{loader} needs {package}", package, 'pip install "leakline[medical]"')


def text(name: str) -> str:
    """A file name as text that can be stored: undecodable bytes become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
