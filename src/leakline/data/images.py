"""Images as arrays: decoding many files at once, resizing by area, channels first."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch.nn import functional

from leakline.data.guard import MAX_PIXELS
from leakline.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
"""What is decoded, whatever a file is called: others start programs (EPS), or are rarely what was meant."""
CHUNK = 1024
SMALL = 16_000

Item = TypeVar("Item")
Result = TypeVar("Result")


def decode(source: bytes | Path, grey: bool, size: int | None = None) -> np.ndarray:
    """One image as uint8 H, W (grey) or H, W, 3, brought to size x size pixels if a size is given.

    Raises whatever the decoder raises: callers wrap it (``guard.reading``) or list it (``decode_many``).
    """
    from PIL import Image

    if isinstance(source, Path) and not source.is_file():  # a pipe would be waited for
        raise DataError("it is no regular file")
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise DataError(f"the image has {image.width} x {image.height} pixels, more than {MAX_PIXELS:,} in all")
        if image.mode.startswith("I") or image.mode == "F":
            plain = Image.fromarray(to_byte(np.asarray(image)))
        else:
            plain = image.convert("RGBA") if image.mode in ("P", "PA") else image.copy()
        return fit(plain, size, grey)


def fit(picture: Image.Image | np.ndarray, size: int | None, grey: bool) -> np.ndarray:
    """A picture as uint8 H, W (grey) or H, W, 3, brought to size x size: by area if it shrinks, bilinear if not."""
    from PIL import Image

    plain = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    plain = plain.convert("L" if grey else "RGB")
    if size is not None and plain.size != (size, size):
        shrinks = min(plain.size) >= size
        plain = plain.resize((size, size), Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR)
    return np.asarray(plain, dtype=np.uint8)


def to_byte(values: np.ndarray) -> np.ndarray:
    """Sixteen-bit and floating-point pixels, stretched from their own darkest to their own brightest."""
    low, high = float(np.min(values)), float(np.max(values))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError("the image has pixels that are not numbers")
    span = high - low
    return np.zeros(values.shape, np.uint8) if span == 0 else ((values - low) * (255 / span)).round().astype(np.uint8)


def run_all(work: Callable[[Item], Result], items: Sequence[Item], threads: bool) -> list[Result]:
    """The work done on every item, in order; a picture that PIL suspects of being a bomb raises."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        if not threads:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(work, items))


def decode_many(
    sources: Sequence[bytes | Path], grey: bool, size: int | None
) -> tuple[list[np.ndarray], list[int], list[tuple[int, str]]]:
    """All images that can be decoded, their positions, and (position, reason) of those that cannot."""

    def attempt(source: bytes | Path) -> np.ndarray | str:
        try:
            if isinstance(source, Path) and source.is_symlink():
                return "it is a link"
            return decode(source, grey, size)
        except Exception as error:  # hostile bytes make decoders raise anything
            return str(error) or type(error).__name__

    # The decoder works without the interpreter's lock, but on small pictures it is too short to be worth a
    # switch.
    large = bool(sources) and (isinstance(sources[0], Path) or len(sources[0]) > SMALL)
    results = run_all(attempt, sources, threads=large)
    images = [r for r in results if not isinstance(r, str)]
    good = [i for i, r in enumerate(results) if not isinstance(r, str)]
    return images, good, [(i, r) for i, r in enumerate(results) if isinstance(r, str)]


def channels_first(x: np.ndarray) -> np.ndarray:
    """N, H, W or N, H, W, C as N, C, H, W."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise DataError(f"images must be N, H, W or N, H, W, 3, not {x.shape}")


def resize(x: np.ndarray, size: int | None) -> np.ndarray:
    """uint8 images N, C, H, W brought to size x size: by area when they shrink, bilinear when they grow."""
    if size is None or x.shape[2:] == (size, size):
        return x
    out = np.empty((*x.shape[:2], size, size), dtype=np.uint8)
    for start in range(0, len(x), CHUNK):  # as float32 the whole set would be four times its size
        piece = torch.from_numpy(np.ascontiguousarray(x[start : start + CHUNK])).float()
        if min(x.shape[2:]) >= size:
            piece = functional.interpolate(piece, size=(size, size), mode="area")
        else:
            piece = functional.interpolate(piece, size=(size, size), mode="bilinear", align_corners=False)
        out[start : start + CHUNK] = piece.round_().clamp_(0, 255).to(torch.uint8).numpy()
    return out


def resize_masks(masks: np.ndarray, size: int | None) -> np.ndarray:
    """0/1 masks N, 1, H, W brought to size x size: a pixel is marked where half of its area is."""
    return (resize((masks > 0).astype(np.uint8) * np.uint8(255), size) >= 128).astype(np.uint8)
