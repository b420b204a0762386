"""PNG files of unknown origin, reduced to their picture."""

from __future__ import annotations

import zlib

from leakline.errors import DataError

MOST_SIDE = 2048
"""Of one side in pixels."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")


def clean_png(data: bytes) -> bytes:
    """A PNG file with nothing in it but its picture."""
    if not data.startswith(_SIGNATURE):
        raise DataError("this is not a PNG file")
    kept, place = [_SIGNATURE], len(_SIGNATURE)
    names: list[bytes] = []
    while place + 12 <= len(data) and (not names or names[-1] != b"IEND"):
        size, name = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        body, end = data[place + 8 : place + 8 + size], place + 12 + size
        if end > len(data) or zlib.crc32(name + body) != int.from_bytes(data[end - 4 : end]):
            raise DataError("this PNG file is damaged")
        if name in _KEPT:
            kept.append(data[place:end])
        names.append(name)
        place = end
    if names[:1] != [b"IHDR"] or names[-1:] != [b"IEND"] or b"IDAT" not in names:
        raise DataError("this PNG file is damaged")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if not (0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE):
        raise DataError(f"this image is too large: {width} x {height}")
    return b"".join(kept)
