"""One DICOM file: its frames as grey or colour images, and what its tags say of patient and site.

Grey values go the way of the standard (PS3.3 C.11): stored values, times slope plus intercept, through a window, and
inverted where MONOCHROME1 says that low is bright. Refused before anything is unpacked: files that claim more pixels
than an image may have, and deflated ones, whose size nobody knows beforehand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leakline.data.guard import MAX_PIXELS
from leakline.data.images import fit, to_byte
from leakline.data.people import Record
from leakline.errors import DataError

if TYPE_CHECKING:
    import pydicom

DEFLATED = "1.2.840.10008.1.2.1.99"
MAGIC, PREAMBLE = b"DICM", 128
PLANES = ("sagittal", "coronal", "axial")
YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
Window = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Scan:
    """What a file holds: frames (uint8, size x size, or size x size x 3), whose they are, and how they were made."""

    frames: list[np.ndarray]
    record: Record
    size: str
    plane: str
    photometric: str


def is_dicom(path: Path) -> bool:
    """Whether a file has DICOM's mark after its preamble."""
    with open(path, "rb") as file:
        return file.read(PREAMBLE + len(MAGIC))[PREAMBLE:] == MAGIC


def read_scan(path: Path, size: int, grey: bool, window: Window | None, frames: str, site: str) -> Scan:
    """One file. Raises whatever the parser raises: the caller lists it."""
    import pydicom
    from pydicom.filereader import read_file_meta_info

    if is_dicom(path) and str(read_file_meta_info(path).get("TransferSyntaxUID", "")) == DEFLATED:
        raise DataError("it is deflated, and may unpack to anything")
    tags = pydicom.dcmread(path, force=not is_dicom(path))
    if "PixelData" not in tags:
        raise DataError("it has no image")
    rows, columns, count = int(tags.Rows), int(tags.Columns), int(tags.get("NumberOfFrames") or 1)
    if min(rows, columns, count) < 1 or rows * columns * count > MAX_PIXELS:
        raise DataError(f"it claims {count} frames of {columns} x {rows} pixels, more than {MAX_PIXELS:,} in all")
    stored = tags.pixel_array
    stack = stored if count > 1 else stored[None]
    chosen = stack if frames == "all" else stack[count // 2][None]
    photometric = str(tags.get("PhotometricInterpretation", ""))
    shown = [fit(_picture(frame, tags, photometric, window), size, grey) for frame in chosen]
    return Scan(shown, record_of(tags, site), f"{columns} x {rows}", plane_of(tags), photometric)


def _picture(frame: np.ndarray, tags: pydicom.Dataset, photometric: str, window: Window | None) -> np.ndarray:
    """A frame as uint8: H, W if it is grey, H, W, 3 in colour."""
    from pydicom import pixels

    if photometric in ("MONOCHROME1", "MONOCHROME2"):
        values = pixels.apply_rescale(frame, tags).astype(np.float64)
        bright = windowed(values, tags, window)
        return 255 - bright if photometric == "MONOCHROME1" else bright
    if photometric == "PALETTE COLOR":
        frame = pixels.apply_color_lut(frame, tags)
        return (frame >> 8).astype(np.uint8) if frame.dtype.itemsize > 1 else frame
    if photometric.startswith("YBR_FULL"):
        return np.asarray(pixels.convert_color_space(frame, "YBR_FULL", "RGB"))
    if photometric == "RGB" and frame.ndim == 3:
        return frame if frame.dtype == np.uint8 else to_byte(frame)
    raise DataError(f"its pixels are {photometric or 'of no known kind'}")


def windowed(values: np.ndarray, tags: pydicom.Dataset, window: Window | None) -> np.ndarray:
    """Grey values as uint8 through a window (centre, width): the given one, else the file's first, else their range.

    LINEAR (C.11.2.1.2.1): ((x - (c - 0.5)) / (w - 1) + 0.5); LINEAR_EXACT: (x - c) / w + 0.5; SIGMOID:
    1 / (1 + exp(-4 (x - c) / w)); each cut to 0..1.
    """
    function = "LINEAR"
    if window is None:
        centres, widths = _numbers(tags.get("WindowCenter")), _numbers(tags.get("WindowWidth"))
        if not centres or not widths:
            return to_byte(values)
        window, function = (centres[0], widths[0]), str(tags.get("VOILUTFunction") or "LINEAR")
    centre, width = window
    if not (math.isfinite(centre) and width > 0):
        raise DataError(f"its window has centre {centre:g} and width {width:g}")
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
    elif function == "LINEAR_EXACT" or width <= 1:
        share = (values - centre) / width + 0.5
    else:
        share = (values - (centre - 0.5)) / (width - 1) + 0.5
    return np.asarray((np.clip(share, 0, 1) * 255).round(), dtype=np.uint8)


def record_of(tags: pydicom.Dataset, site: str) -> Record:
    """What the tags say: patient (its number, else its name), sex, age in years, and the tag that names the site."""
    patient = _text(tags.get("PatientID")) or _text(tags.get("PatientName"))
    return Record(
        site=_text(tags.get(site)) if site else "", patient=patient,
        sex=_text(tags.get("PatientSex")), age=age_of(_text(tags.get("PatientAge"))),
    )  # fmt: skip


def age_of(text: str) -> str:
    """A DICOM age ("063Y", "018M") in years; "" where it is none."""
    number, unit = text[:-1], text[-1:].upper()
    return f"{float(number) * YEARS[unit]:g}" if number.isascii() and number.isdigit() and unit in YEARS else ""


def plane_of(tags: pydicom.Dataset) -> str:
    """The plane of the image, from the direction in which its normal points most; "" where nobody says."""
    cosines = _numbers(tags.get("ImageOrientationPatient"))
    if len(cosines) != 6:
        return ""
    return PLANES[int(np.abs(np.cross(cosines[:3], cosines[3:])).argmax())]


def several(scans: Sequence[Scan], size: int) -> list[str]:
    """Says so where images of several sizes or planes are put into one data set, with counts."""
    lines = []
    for what, values in (("sizes", [s.size for s in scans]), ("planes", [s.plane for s in scans if s.plane])):
        counts = Counter(values).most_common()
        if len(counts) > 1:
            some = ", ".join(f"{name} ({n})" for name, n in counts[:4]) + (", ..." if len(counts) > 4 else "")
            lines.append(f"files of {len(counts)} {what}, all brought to {size} x {size}: {some}")
    return lines


def _numbers(value: Any) -> list[float]:
    """A tag's numbers, of which there may be none, one or several."""
    if value is None or value == "":
        return []
    several = value if isinstance(value, list | tuple) or hasattr(value, "__iter__") else [value]
    return [float(v) for v in several]


def _text(value: Any) -> str:
    return "" if value is None else str(value).replace("\0", "").strip()
