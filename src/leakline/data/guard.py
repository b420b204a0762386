"""Reading files that may be corrupt or hostile: every failure is one DataError, nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from leakline.errors import DataError, LeaklineError
from leakline.names import printable

MAX_BYTES = 20 * 2**30
MAX_RATIO = 200
HARMLESS = 64 * 2**20  # an archive that unpacks to less is no bomb, however well it is compressed
CSV_BYTES = 4 * 2**30
MAX_PIXELS = 64_000_000


@contextmanager
def reading(path: Path | str, fix: str = "") -> Iterator[None]:
    """Turn whatever a parser raises on this file into a DataError of one clear line."""
    try:
        yield
    except LeaklineError:
        raise
    except FileNotFoundError as error:
        raise DataError("no such file or folder", printable(path), fix or "check the path") from error
    except Exception as error:  # parsers of hostile bytes raise anything: zlib.error, struct.error, SyntaxError ...
        reason = printable(error) or type(error).__name__
        raise DataError(f"cannot read the file: {reason}", printable(path), fix or "get a good copy of it") from error


def folder_of(path: Path) -> Path:
    """The path, if it is a folder."""
    if not path.is_dir():
        raise DataError("this is not a folder", printable(path), "give the folder that holds the files")
    return path


def child(folder: Path, name: str) -> Path:
    """A file inside a folder: a name that climbs out of it, or a link that leads out of it, is refused."""
    path = folder / name
    inside = os.path.commonpath([os.path.realpath(folder), os.path.realpath(path)]) == os.path.realpath(folder)
    if not inside or "\0" in name:
        raise DataError("the file lies outside its folder", printable(path), "remove the link or the path-like name")
    return path


def read_npz(
    path: Path, required: Sequence[str] = (), optional: Sequence[str] = (), max_bytes: int | None = None
) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file.

    Refused: an archive that would unpack to more than 20 GiB or more than 200 times its size (``max_bytes``
    replaces both bounds), arrays of Python objects, headers that claim another size than the archive holds.
    """
    with reading(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        check_size(path, sum(info.file_size for info in archive.infolist()), max_bytes)
        missing = [name for name in required if name not in members]
        if missing:
            raise DataError(
                f"the file has no array {', '.join(map(repr, missing))}",
                printable(path),
                f"it holds: {printable(', '.join(members)) or 'nothing'}",
            )
        wanted = [name for name in (*required, *optional) if name in members]
        return {name: read_member(archive, members[name], path) for name in wanted}


def npz_names(path: Path) -> list[str]:
    """The names of the arrays in an .npz file."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def check_size(path: Path, unpacked: int, max_bytes: int | None) -> None:
    """Refuse an archive that unpacks to far more than it should."""
    ratio = unpacked / max(1, path.stat().st_size)
    bomb = (
        unpacked > max_bytes
        if max_bytes is not None
        else (unpacked > MAX_BYTES or (ratio > MAX_RATIO and unpacked > HARMLESS))
    )
    if bomb:
        raise DataError(
            f"the archive would unpack to {unpacked:,} bytes, {ratio:,.0f} times its size",
            printable(path),
            "if you trust the file, set max_bytes to that number",
        )


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """One array of the archive, after its header was found to be honest."""
    with archive.open(info) as stream:
        shape, dtype = header(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise DataError(
            f"array {printable(info.filename)} holds pickled objects, which are never loaded",
            printable(path),
            "save it again as numbers or fixed-length text",
        )
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size != info.file_size - start:
        raise DataError(
            f"array {printable(info.filename)} claims {size:,} bytes and has {info.file_size - start:,}",
            printable(path),
            "get a good copy of the file",
        )
    with archive.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type as an .npy header states them."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return tuple(shape), dtype


def lengths_agree(path: Path, arrays: Mapping[str, np.ndarray], *names: str) -> int:
    """The common length of these arrays; a file where they differ is refused."""
    sizes = {name: len(arrays[name]) if arrays[name].ndim else -1 for name in names if name in arrays}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < 0:
        each = ", ".join(f"{name} has {size if size >= 0 else 'no length'}" for name, size in sizes.items())
        raise DataError(f"arrays differ in length: {each}", printable(path), "save one entry for each record in all")
    return next(iter(sizes.values()))


def labels_within(path: Path, y: np.ndarray, classes: int, name: str = "y") -> np.ndarray:
    """Labels as int64, if they are whole numbers from 0 to classes - 1."""
    if y.ndim != 1 or y.dtype.kind not in "iub" or (len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes):
        raise DataError(
            f"{name} must be one whole number from 0 to {classes - 1} for every example",
            printable(path),
            "get a good copy of the file",
        )
    return y.astype(np.int64)
