"""Images that attacks left in a store: originals, what a prior alone gives, and reconstructions, by noise level.

An attack that makes images writes ``runs/<hash>/media/*.png`` and ``media.json``, a list of
``{file, client, round, kind: original|prior|reconstruction, ssim, rdlv, noise}``; or, without a list,
``media/<attack>/round-0003/<client>/strip.png``, in which the three stand side by side. They are images of people's
data, or near them: a report that goes to others leaves them out. Files are taken only if they are small PNG files of
this folder, and only their picture is: texts inside a PNG file (names, places, programs) do not come along.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakline.data.names import is_safe
from leakline.errors import DataError
from leakline.report.settings import Pooled
from leakline.report.stored import Stored, valid
from leakline.report.text import tidy

KINDS = ("original", "prior", "reconstruction")
STRIP = "original, prior, reconstruction"
"""The kind of a picture that holds all three, one row for each image."""
MOST_BYTES, MOST_OF_ALL, MOST_SIDE = 400_000, 4_000_000, 2048
"""Of one file, of all files together (before base64), and of one side in pixels."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")


@dataclass(frozen=True)
class Picture:
    """One image, ready for a page."""

    uri: str
    kind: str
    noise: float | None
    caption: str
    alt: str


@dataclass(frozen=True)
class Strip:
    """The images of one client in one round of one run: the original, then what was made of it."""

    defence: str
    place: str
    client: str
    round: str
    pictures: tuple[Picture, ...]
    where: Mapping[str, str] = field(default_factory=dict)
    """The labels of its run, by which a page can filter."""


@dataclass(frozen=True)
class Gallery:
    """All strips; ``levels`` are the noise levels to slide through; ``left_out`` says what could not be shown."""

    strips: tuple[Strip, ...] = ()
    levels: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()


def gallery_of(root: Path, pooled: Pooled) -> Gallery:
    """Every image that finished runs of a store hold; nothing here raises for a damaged one."""
    strips: dict[tuple[str, str, str, str, str], list[Picture]] = {}
    problems: dict[str, int] = {}
    total = 0
    for cell in pooled.study.finished:
        media = root / "runs" / str(cell.key) / "media"
        for entry, path in (*_entries(media, problems), *_strips(media, cell)):
            try:
                data = clean_png(path.read_bytes() if path.stat().st_size <= MOST_BYTES else b"")
            except (OSError, DataError):
                problems["is no PNG file, or too large"] = problems.get("is no PNG file, or too large", 0) + 1
                continue
            total += len(data)
            if total > MOST_OF_ALL:
                problems["would make the page too large"] = problems.get("would make the page too large", 0) + 1
                continue
            strips.setdefault(_place(pooled, cell, entry), []).append(_picture(entry, data))
    labels = {str(cell.key): cell.labels for cell in pooled.study.finished}
    made = tuple(
        Strip(
            defence, place, client, round_, tuple(sorted(pictures, key=_order)),
            {tidy(name): tidy(labels[key].get(name, "")) for name in (*pooled.axes, "defence")},
        )
        for (defence, place, key, client, round_), pictures in strips.items()
    )  # fmt: skip
    levels = {p.noise for strip in made for p in strip.pictures if p.noise is not None and p.kind == "reconstruction"}
    return Gallery(made, tuple(sorted(levels)), tuple(f"{count} {why}" for why, count in problems.items()))


def _entries(folder: Path, problems: dict[str, int]) -> Iterator[tuple[dict[str, Any], Path]]:
    listed = folder / "media.json"
    if not listed.is_file():
        return
    try:
        found = valid(json.loads(listed.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        problems["list of images that cannot be read"] = problems.get("list of images that cannot be read", 0) + 1
        return
    for entry in found if isinstance(found, list) else []:
        name = str(entry.get("file", "")) if isinstance(entry, dict) else ""
        path = folder / name
        if not is_safe(name) or path.is_symlink() or not path.is_file() or entry.get("kind") not in KINDS:
            problems["is listed and not there"] = problems.get("is listed and not there", 0) + 1
        else:
            yield entry, path


def _strips(media: Path, cell: Stored) -> Iterator[tuple[dict[str, Any], Path]]:
    """Strips by attack, round and client, with what the attack measured there."""
    for path in sorted(media.glob("*/round-*/*/strip.png")):
        attack, turn, client = path.relative_to(media).parts[:3]
        index = turn.removeprefix("round-")
        if any(part.is_symlink() for part in (path, *path.parents[:3])) or not index.isdecimal():
            continue
        entry: dict[str, Any] = {"kind": STRIP, "client": client, "round": int(index)}
        for line in cell.attacks:
            if (line.get("by"), line.get("client"), line.get("round")) == (attack, client, int(index)):
                entry[str(line["measure"])] = line["value"]
        yield valid(entry), path


def _place(pooled: Pooled, cell: Stored, entry: dict[str, Any]) -> tuple[str, str, str, str, str]:
    place = pooled.place(cell.labels)
    seed = f"seed {cell.labels['seed']}" if cell.labels.get("seed") is not None else ""
    return (
        str(cell.labels.get("defence", "")), ", ".join(p for p in (place, seed) if p), str(cell.key),
        str(entry.get("client", "")), str(entry.get("round", "")),
    )  # fmt: skip


def _picture(entry: dict[str, Any], data: bytes) -> Picture:
    noise = _number(entry.get("noise"))
    figures = [f"{label} {value:.2f}" for label in ("ssim", "rdlv") if (value := _number(entry.get(label))) is not None]
    if noise is not None and entry["kind"] == "reconstruction":
        figures.insert(0, f"noise {noise:g}")
    caption = ", ".join(f.replace("ssim", "SSIM").replace("rdlv", "RDLV") for f in figures)
    alt = f"{entry['kind']} for {entry.get('client', 'a client')}" + (f", {caption}" if caption else "")
    return Picture(f"data:image/png;base64,{base64.b64encode(data).decode()}", entry["kind"], noise, caption, alt)


def _order(picture: Picture) -> tuple[int, float]:
    return KINDS.index(
        picture.kind
    ) if picture.kind in KINDS else -1, picture.noise if picture.noise is not None else -1.0


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


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
