"""Writing what attacks leave to look at: ``media/<attack>/round-0003/<client>/``, arrays, pictures and lists."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.base import Artefact
from leakline.errors import StoreError
from leakline.names import is_safe
from leakline.study.files import make_folder, write_atomically


def write(folder: Path, artefacts: Iterable[Artefact]) -> None:
    """Write an attack's artefacts below its folder; lists come last, so that they name only what is there."""
    for artefact in artefacts:
        names = (artefact.client, *artefact.arrays, *artefact.pictures, *artefact.lists)
        if unsafe := [name for name in names if not is_safe(name)]:
            raise StoreError(f"this cannot be a file's name: {unsafe[0][:40]!r}", folder.name, "rename it")
        here = folder / f"round-{artefact.round:04d}" / artefact.client
        make_folder(here)
        for name, values in artefact.arrays.items():
            file = io.BytesIO()
            np.save(file, values, allow_pickle=False)
            write_atomically(here / f"{name}.npy", file.getvalue())
        for name, image in artefact.pictures.items():
            _png(here / f"{name}.png", image)
        for name, entries in artefact.lists.items():
            write_atomically(here / f"{name}.json", json.dumps(entries, indent=1).encode())


def _png(path: Path, image: Tensor) -> None:
    """An image [C, H, W] in [0, 1], grey or in colour."""
    from PIL import Image

    file = io.BytesIO()
    pixels = (image.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    write_atomically(path, file.getvalue())
