"""Writing what attacks leave to look at: ``media/<attack>/round-0003/<client>/``, arrays, pictures and lists."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.base import Artefact
from leakline.errors import StoreError
from leakline.names import is_safe
from leakline.study.files import make_folder, write_atomically
from leakline.study.media import hash_of, write_seals


def write(folder: Path, artefacts: Iterable[Artefact]) -> None:
    """Write an attack's artefacts below its folder; lists come last, so that they name only what is there."""
    hashes: dict[str, str] = {}
    for artefact in artefacts:
        names = (artefact.client, *artefact.arrays, *artefact.pictures, *artefact.lists)
        if unsafe := [name for name in names if not is_safe(name)]:
            raise StoreError(f"this cannot be a file's name: {unsafe[0][:40]!r}", folder.name, "rename it")
        here = f"round-{artefact.round:04d}/{artefact.client}"
        make_folder(folder / here)
        for name, data in _files(artefact):
            write_atomically(folder / here / name, data)
            hashes[f"{here}/{name}"] = hash_of(data)
    if hashes:
        write_seals(folder, hashes)


def _files(artefact: Artefact) -> Iterator[tuple[str, bytes]]:
    for name, values in artefact.arrays.items():
        file = io.BytesIO()
        np.save(file, values, allow_pickle=False)
        yield f"{name}.npy", file.getvalue()
    for name, image in artefact.pictures.items():
        yield f"{name}.png", _png(image)
    for name, entries in artefact.lists.items():
        yield f"{name}.json", json.dumps(entries, indent=1).encode()


def _png(image: Tensor) -> bytes:
    """An image [C, H, W] in [0, 1], grey or in colour."""
    from PIL import Image

    file = io.BytesIO()
    pixels = (image.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()
