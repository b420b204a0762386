"""Writing a prepared data set: whole or not at all, and nowhere but in the destination."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from leakline.data.files import text
from leakline.errors import DataError
from leakline.names import is_safe, printable


def write_npz(destination: Path, file: str, arrays: Mapping[str, np.ndarray]) -> Path:
    """Save arrays as destination/file; another process sees the old file or the new one, never a part."""
    if not is_safe(file) or not file.endswith(".npz"):
        raise DataError(
            f"not a plain file name: {printable(file)!r}", printable(destination), "use a name like mnist.npz"
        )
    bad = [name for name, array in arrays.items() if array.dtype.hasobject]
    if bad:
        raise DataError(f"arrays of objects cannot be stored: {', '.join(bad)}", file)
    temporary = ""
    try:
        destination.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=destination, prefix=f".{file}.", suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            # mypy takes the arrays for the allow_pickle flag of the same call.
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, destination / file)
    except OSError as error:
        raise DataError(
            f"cannot write {file}: {printable(error.strerror or error)}",
            printable(destination),
            "free space or rights",
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
    return destination / file


def strings(values: Sequence[str]) -> np.ndarray:
    """Texts as a fixed-length array."""
    return np.array([text(v) for v in values], dtype=np.str_)


def joined(pictures: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Encoded pictures one after the other, and where each begins."""
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in pictures])]).astype(np.int64)
    return np.frombuffer(b"".join(pictures), dtype=np.uint8), offsets


def all_or_error(failed: Sequence[tuple[int, str]], paths: Sequence[Path]) -> None:
    """Refuse a distribution with pictures that cannot be read: it is damaged."""
    if failed:
        reasons = [f"{printable(paths[i].name)} ({printable(reason, 80)})" for i, reason in failed[:5]]
        listed = "; ".join(reasons)
        raise DataError(
            f"{len(failed)} of {len(paths)} pictures cannot be read: {listed}",
            printable(paths[failed[0][0]].parent),
            "get a good copy of the data set",
        )
