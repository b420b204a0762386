"""Decoding whole folders of images: into memory, or above a size once into a file that is found again.

Such a file is raw pixels, then a table of JSON (their shape, a hash of them, what they were decoded from), then the
table's length in 8 bytes. A changed, added or missing image changes what it was decoded from; it is then made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from leakline.data.images import channels_first, decode_many
from leakline.data.on_disk import ImageFile, OnDisk
from leakline.errors import DataError
from leakline.names import printable

IN_MEMORY = 512 * 2**20
"""Bytes of decoded images that are held in memory; more are kept in a file."""
PIECE = 32 * 2**20
"""Bytes of decoded images that are in memory at once while such a file is made."""
VERSION = 1
"""Raised where decoding or resizing changes."""

Decoded = tuple[Tensor, list[int], list[tuple[int, str]]]
"""Images N, C, H, W, the positions they had among all files, and (position, reason) of those that cannot be read."""

_folders: list[Path] = []


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep decoded images in this folder for as long as this lasts. It is as confidential as they are."""
    _folders.append(folder)
    try:
        yield
    finally:
        _folders.pop()


def decoded(paths: Sequence[Path], grey: bool, size: int, what: str, cache: str = "") -> Decoded:
    """All images that can be decoded, size x size.

    Above `IN_MEMORY` bytes they are in a file of the folder ``cache``, else of the one that `kept_in` names, else in
    one without a name in the system's folder for temporary files, which is gone with the process. ``what`` tells data
    sets apart: a changed one takes the place of what it was.
    """
    if len(paths) * size * size * (1 if grey else 3) <= IN_MEMORY:
        images, good, failed = decode_many(paths, grey, size)
        return torch.from_numpy(channels_first(np.stack(images))) if images else torch.zeros(0), good, failed
    folder = Path(cache).expanduser() if cache else _folders[-1] if _folders else None
    table: dict[str, Any] = {"of": _state(paths, f"{VERSION} {grey} {size}")}
    try:
        if folder is None:
            file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
            table |= _write(file, paths, grey, size)
        else:
            file, table = _found_or_made(
                folder, hashlib.sha256(what.encode()).hexdigest()[:24], table, paths, grey, size
            )
    except OSError as error:
        where = "the folder for temporary files" if folder is None else printable(folder)
        raise DataError(
            f"decoded images cannot be kept there: {printable(error.strerror or error)}", where,
            'make room, or name another folder in [data]: cache = "FOLDER"',
        ) from error  # fmt: skip
    with file:
        count, *shape = table["shape"]
        x = OnDisk(ImageFile(file, shape), torch.arange(count))
    failed = [(int(i), str(why)) for i, why in table["failed"]]
    bad = {i for i, _ in failed}
    return x, [i for i in range(len(paths)) if i not in bad], failed


def _state(paths: Sequence[Path], how: str) -> str:
    """A hash of every file's name, size and times, and of how images are made of them."""
    digest = hashlib.blake2b(how.encode(), digest_size=16)
    for path in paths:
        about = path.lstat() if os.path.lexists(path) else None
        facts = about and (about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_mode)
        digest.update(f"{path}\0{facts}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _found_or_made(
    folder: Path, name: str, table: dict[str, Any], paths: Sequence[Path], grey: bool, size: int
) -> tuple[IO[bytes], dict[str, Any]]:
    """The file of these images, made if it is not there, not whole, or of something else; one process makes it."""
    _make_private(folder)
    path, beside = folder / f"{name}.images", folder / f".new-{name}.images"
    with open(_opened(folder / f"{name}.lock"), "r+b") as lock:
        with contextlib.suppress(OSError):  # a network disk without locks: two processes make it twice
            fcntl.flock(lock, fcntl.LOCK_EX)
        if there := _read(path, table["of"]):
            return there
        file = open(_opened(beside), "r+b")  # noqa: SIM115
        try:
            file.truncate(0)  # what a kill left
            table = table | _write(file, paths, grey, size)
            end = json.dumps(table).encode()
            file.write(end + len(end).to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            file.close()
            beside.unlink(missing_ok=True)
            raise
        return file, table


def _write(file: IO[bytes], paths: Sequence[Path], grey: bool, size: int) -> dict[str, Any]:
    """Decode all images into a file; returns their shape, a hash of them, and those that cannot be read."""
    shape = (1 if grey else 3, size, size)
    step = max(1, PIECE // math.prod(shape))
    digest, count = hashlib.blake2b(digest_size=16), 0
    failed: list[tuple[int, str]] = []
    for start in range(0, len(paths), step):
        images, _, bad = decode_many(paths[start : start + step], grey, size)
        failed += [(start + place, why) for place, why in bad]
        if images:
            pixels = channels_first(np.stack(images))
            digest.update(pixels.data)
            file.write(pixels.data)
            count += len(images)
    file.flush()
    return {"shape": [count, *shape], "pixels": digest.hexdigest(), "failed": failed}


def _read(path: Path, of: str) -> tuple[IO[bytes], dict[str, Any]] | None:
    """The file at a place, if it was made of just this and every byte is as it was written."""
    try:
        file = open(_opened(path, os.O_RDONLY), "rb")  # noqa: SIM115
    except OSError:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError, AttributeError):  # damaged: made again
        end = file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(8), "little")
        file.seek(end - length)
        table = json.loads(file.read(length))
        size = math.prod(table["shape"])
        if table["of"] == of and size + length == end and table["pixels"] == _hash_of(file, size):
            return file, table
    file.close()
    return None


def _hash_of(file: IO[bytes], size: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    file.seek(0)
    while size > 0 and (piece := file.read(min(PIECE, size))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()


def _opened(path: Path, how: int = os.O_RDWR | os.O_CREAT) -> int:
    """A handle to a regular file for its owner only; a link or a pipe in its place is refused."""
    handle = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path.name} is no regular file")
    return handle


def _make_private(folder: Path) -> None:
    """A folder for its owner's eyes only, and those above it that are missing."""
    for missing in [*reversed([part for part in folder.parents if not part.exists()]), folder]:
        missing.mkdir(exist_ok=True, mode=0o700)
