"""What an inversion leaves behind: arrays, single pictures with a list of them, and points in an embedding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_PICTURES = 8
"""Images of one turn that become pictures; the arrays hold all of them."""


@dataclass(frozen=True)
class Scene:
    """One attacked turn, as pictures need it: whose, when, under how much noise, and where they go."""

    folder: Path
    client: str
    round: int
    noise: float


@dataclass(frozen=True)
class Pair:
    """A true image, the reconstruction that stands for it, SSIM of both with the truth, and RDLV of this pair."""

    truth: int
    made: int
    ssim: float
    prior: float
    rdlv: float


def save(scene: Scene, truth: Tensor, prior: Tensor, made: Tensor, pairs: Sequence[Pair]) -> None:
    """Write the images as .npy and .png, and ``media.json``, which says what each picture shows.

    Its entries are what `leakline.report.gallery` reads: file, client, round, kind, ssim, rdlv, noise, and ``image``,
    the position of the true image among the client's. A strip (truth, prior, reconstruction; a row for each image) is
    for looking at without a report.
    """
    scene.folder.mkdir(parents=True, exist_ok=True)
    for name, images in (("truth", truth), ("prior", prior), ("reconstruction", made)):
        np.save(scene.folder / f"{name}.npy", images.numpy().astype(np.float32), allow_pickle=False)
    shown = sorted(pairs, key=lambda pair: pair.truth)[:MOST_PICTURES]
    _png(scene.folder / "prior.png", prior[0])
    entries: list[dict[str, Any]] = []
    for pair in shown:
        number = f"{pair.truth:02d}"
        here = {"client": scene.client, "round": scene.round, "image": pair.truth, "noise": scene.noise}
        figures = {"ssim": round(pair.ssim, 6), "rdlv": round(pair.rdlv, 6)}
        _png(scene.folder / f"original-{number}.png", truth[pair.truth])
        _png(scene.folder / f"reconstruction-{number}.png", made[pair.made])
        entries += [
            {"file": f"original-{number}.png", "kind": "original", **here},
            {"file": "prior.png", "kind": "prior", **here, "ssim": round(pair.prior, 6), "rdlv": 0.0},
            {"file": f"reconstruction-{number}.png", "kind": "reconstruction", **here, **figures},
        ]
    rows = [torch.cat([truth[pair.truth], prior[0], made[pair.made]], dim=-1) for pair in shown]
    _png(scene.folder / "strip.png", torch.cat(rows, dim=-2))
    (scene.folder / "media.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")


def save_points(scene: Scene, truth: Tensor, prior: Tensor, made: Tensor) -> None:
    """Write embeddings of images, prior and reconstructions, one below the other, and what each row is."""
    points = torch.cat([truth, prior, made]).numpy().astype(np.float32)
    np.save(scene.folder / "embedding.npy", points, allow_pickle=False)
    kinds = ["original"] * len(truth) + ["prior"] * len(prior) + ["reconstruction"] * len(made)
    about = {"kind": kinds, "client": scene.client, "round": scene.round, "noise": scene.noise}
    (scene.folder / "embedding.json").write_text(json.dumps(about), encoding="utf-8")


def _png(path: Path, image: Tensor) -> None:
    from PIL import Image

    pixels = (image.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(path)
