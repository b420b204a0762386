"""Images that attacks left in a store: originals, what a prior alone gives, and reconstructions, by noise level.

An attack that makes images writes ``runs/<hash>/media/<attack>/round-0003/<client>/*.png`` and ``media.json`` beside
them, a list of ``{file, client, round, kind: original|prior|reconstruction, image, ssim, rdlv, noise}``; or, without a
list, ``strip.png``, in which the three stand side by side. A list in ``media`` itself is read as well. They are images
of people's data, or near them: a report that goes to others leaves them out. Files are taken only if they are small PNG
files of this folder, and only their picture is: texts inside a PNG file (names, places, programs) do not come along.

Runs that differ in their defence alone and attack the same original share a strip: the original stands there once, and
a slider chooses the noise.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakline.errors import DataError, StoreError
from leakline.names import is_safe
from leakline.report.gallery.png import clean_png
from leakline.results import Cell, Results
from leakline.results.stored import valid
from leakline.study.media import read_media
from leakline.study.store import folder_of
from leakline.text import tidy

KINDS = ("original", "prior", "reconstruction")
STRIP = "original, prior, reconstruction"
"""The kind of a picture that holds all three, one row for each image."""
MOST_BYTES, MOST_OF_ALL = 400_000, 4_000_000
"""Of one file, and of all files together (before base64)."""
MOST_IMAGES, MOST_OF_RUN = 2, 300
"""Images shown of a client that holds several, and pictures of one run."""


@dataclass(frozen=True)
class Picture:
    """One image, ready for a page."""

    uri: str
    kind: str
    noise: float | None
    caption: str
    alt: str
    where: tuple[Mapping[str, str], ...] = ()
    """The labels of its run, by which a page can filter."""


@dataclass(frozen=True)
class Strip:
    """One image of a client in one round and what one attack made of it: the original, then reconstructions."""

    defence: str
    """Empty if its pictures are of several; their captions then say which."""
    place: str
    client: str
    round: str
    pictures: tuple[Picture, ...]
    attack: str = ""
    image: str = ""
    where: tuple[Mapping[str, str], ...] = ()

    @property
    def levels(self) -> frozenset[float]:
        """The noise levels to slide through; none if there is no choice."""
        found = frozenset(p.noise for p in self.pictures if p.noise is not None and p.kind == "reconstruction")
        return found if len(found) > 1 else frozenset()


@dataclass(frozen=True)
class Gallery:
    """All strips; ``levels`` are the noise levels to slide through; ``left_out`` says what could not be shown."""

    strips: tuple[Strip, ...] = ()
    levels: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Found:
    """A picture in a run: its entry in the list, where its file is, and which attack made it."""

    entry: Mapping[str, Any]
    path: Path
    attack: str = ""


_Shown = tuple[Cell, Mapping[str, Any], bytes]


def gallery_of(results: Results) -> Gallery:
    """Every image that finished runs of a store hold; nothing here raises for a damaged one."""
    strips: dict[tuple[str, ...], list[_Shown]] = {}
    problems: Counter[str] = Counter()
    total = 0
    for cell in results.finished.cells:
        shown: list[tuple[_Found, bytes]] = []
        for found in _found(cell, problems):
            if len(shown) == MOST_OF_RUN:
                problems[f"pictures of runs that have more than {MOST_OF_RUN}"] += 1
                continue
            try:
                data = clean_png(read_media(found.path, _folder(cell), MOST_BYTES))
            except (StoreError, DataError):
                problems["is no PNG file, too large, or not what the attack wrote"] += 1
            else:
                shown.append((found, data))
        originals = {_turn(f): hashlib.sha256(d).hexdigest() for f, d in shown if f.entry["kind"] == "original"}
        for found, data in shown:
            # Without its original a picture has nothing in common with other runs that could be seen.
            common = originals.get(_turn(found), str(cell.key))
            strip = strips.setdefault((_place(results, cell), common, *_turn(found)), [])
            if found.entry["kind"] in KINDS[:2] and any(
                d == data and e["kind"] == found.entry["kind"] for _, e, d in strip
            ):
                strip.append((cell, found.entry, b""))
                continue
            total += len(data)
            if total > MOST_OF_ALL:
                problems["would make the page too large"] += 1
            else:
                strip.append((cell, found.entry, data))
    made = tuple(_strip(results, key, some) for key, some in strips.items() if any(data for _, _, data in some))
    levels = {level for strip in made for level in strip.levels}
    return Gallery(made, tuple(sorted(levels)), tuple(f"{count} {why}" for why, count in problems.items()))


def _found(cell: Cell, problems: Counter[str]) -> Iterator[_Found]:
    """The pictures of a run: of the list in the folder itself, then by attack (in the study's order), round, client."""
    if cell.folder is None:
        return
    media = cell.folder / "media"
    yield from (_Found(entry, media / str(entry["file"])) for entry in _listed(media, cell.folder, problems))
    names = list(dict.fromkeys(r.by for r in cell.attacks))
    turns = []
    for folder in sorted(media.glob("*/round-*/*")):
        made, turn, client = folder.relative_to(media).parts
        digits = turn.removeprefix("round-")
        if any(part.is_symlink() for part in (folder, *folder.parents[:2])) or not folder.is_dir():
            continue
        if not (digits.isdecimal() and len(digits) < 10 and is_safe(made) and is_safe(client)):
            continue
        by = next((name for name in names if folder_of(cell.hashes.get(name, "")) == made), None)
        if by is None:
            problems["folders of pictures by attacks that the study no longer has, or not with these settings"] += 1
            continue
        turns.append((names.index(by), int(digits), folder))
    for place, index, folder in sorted(turns):
        here: dict[str, Any] = {"client": folder.name, "round": index}
        if (folder / "media.json").is_file():
            for entry in _listed(folder, cell.folder, problems):
                if isinstance(entry.get("image"), int) and entry["image"] >= MOST_IMAGES:
                    problems[f"pictures of clients that hold more than {MOST_IMAGES} images (the store has them)"] += 1
                else:
                    yield _Found({**entry, **here}, folder / str(entry["file"]), names[place])
        elif (folder / "strip.png").is_file() and not (folder / "strip.png").is_symlink():
            mine = [r for r in cell.attacks if (r.by, r.client, r.round) == (names[place], folder.name, index)]
            figures = {r.measure: r.value for r in mine}
            yield _Found({**figures, **here, "kind": STRIP}, folder / "strip.png", names[place])


def _folder(cell: Cell) -> Path:
    assert cell.folder is not None  # a picture was found in it
    return cell.folder


def _listed(folder: Path, run: Path, problems: Counter[str]) -> Iterator[dict[str, Any]]:
    listed = folder / "media.json"
    if not listed.is_file():
        return
    try:
        found = valid(json.loads(read_media(listed, run, MOST_BYTES).decode("utf-8")))
    except (StoreError, ValueError, RecursionError):
        problems["list of images that cannot be read, or is not what the attack wrote"] += 1
        return
    for entry in found if isinstance(found, list) else []:
        name = str(entry.get("file", "")) if isinstance(entry, dict) else ""
        path = folder / name
        if not is_safe(name) or path.is_symlink() or not path.is_file() or entry.get("kind") not in KINDS:
            problems["is listed and not there"] += 1
        else:
            yield entry


def _turn(found: _Found) -> tuple[str, str, str, str]:
    entry = found.entry
    return found.attack, str(entry.get("client", "")), str(entry.get("round", "")), str(entry.get("image", ""))


def _place(results: Results, cell: Cell) -> str:
    seed = f"seed {cell.labels['seed']}" if cell.labels.get("seed") is not None else ""
    return ", ".join(part for part in (results.place(cell.labels), seed) if part)


def _strip(results: Results, key: tuple[str, ...], shown: Sequence[_Shown]) -> Strip:
    place, _, attack, client, index, image = key
    defences = list(dict.fromkeys(cell.label("defence") for cell, _, _ in shown))

    def where(cell: Cell) -> Mapping[str, str]:
        labels = {tidy(name): tidy(cell.labels.get(name, "")) for name in (*results.axes, "defence")}
        return {**labels, "attack": tidy(attack)} if attack else labels

    pictures = []
    for cell, entry, data in shown:
        if data:
            mine = entry["kind"] == "reconstruction" and len(defences) > 1
            label = cell.label("defence") if mine else ""
            pictures.append(_picture(entry, data, label, (where(cell),) if mine else ()))
    every = {json.dumps(found, sort_keys=True): found for found in (where(cell) for cell, _, _ in shown)}
    number = str(int(image) + 1) if image.isdecimal() and len(image) < 10 else ""
    return Strip(
        defences[0] if len(defences) == 1 else "", place, client, index, tuple(sorted(pictures, key=_order)),
        attack, number, tuple(every.values()),
    )  # fmt: skip


def _picture(entry: Mapping[str, Any], data: bytes, label: str, where: tuple[Mapping[str, str], ...]) -> Picture:
    noise = _number(entry.get("noise"))
    figures = [f"{name} {value:.2f}" for name in ("ssim", "rdlv") if (value := _number(entry.get(name))) is not None]
    if noise is not None and entry["kind"] == "reconstruction":
        figures.insert(0, f"noise {noise:g}")
    caption = ", ".join(f.replace("ssim", "SSIM").replace("rdlv", "RDLV") for f in figures)
    caption = ", ".join(part for part in (tidy(label), caption) if part)
    alt = f"{entry['kind']} for {entry.get('client', 'a client')}" + (f", {caption}" if caption else "")
    uri = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Picture(uri, str(entry["kind"]), noise, caption, alt, where)


def _order(picture: Picture) -> tuple[int, float]:
    kind = KINDS.index(picture.kind) if picture.kind in KINDS else -1
    return kind, picture.noise if picture.noise is not None and picture.kind == "reconstruction" else -1.0


def _number(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None
