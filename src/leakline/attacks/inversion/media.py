"""What an inversion leaves to look at: arrays, single pictures with a list of them, and points in an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakline.attacks.base import Artefact

MOST_PICTURES = 8
"""Images of one turn that become pictures; the arrays hold all of them."""


@dataclass(frozen=True)
class Scene:
    """One attacked turn, as pictures need it: whose, when, under how much noise."""

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


def images_of(scene: Scene, truth: Tensor, prior: Tensor, made: Tensor, pairs: Sequence[Pair]) -> Artefact:
    """The images as arrays and pictures, and ``media``, which says what each picture shows.

    Its entries are what `leakline.report.gallery` reads: file, client, round, kind, ssim, rdlv, noise, and ``image``,
    the position of the true image among the client's. A strip (truth, prior, reconstruction; a row for each image) is
    for looking at without a report.
    """
    arrays = {name: _array(images) for name, images in (("truth", truth), ("prior", prior), ("reconstruction", made))}
    shown = sorted(pairs, key=lambda pair: pair.truth)[:MOST_PICTURES]
    pictures = {"prior": prior[0]}
    entries: list[dict[str, Any]] = []
    for pair in shown:
        number = f"{pair.truth:02d}"
        here = {"client": scene.client, "round": scene.round, "image": pair.truth, "noise": scene.noise}
        figures = {"ssim": round(pair.ssim, 6), "rdlv": round(pair.rdlv, 6)}
        pictures |= {f"original-{number}": truth[pair.truth], f"reconstruction-{number}": made[pair.made]}
        entries += [
            {"file": f"original-{number}.png", "kind": "original", **here},
            {"file": "prior.png", "kind": "prior", **here, "ssim": round(pair.prior, 6), "rdlv": 0.0},
            {"file": f"reconstruction-{number}.png", "kind": "reconstruction", **here, **figures},
        ]
    rows = [torch.cat([truth[pair.truth], prior[0], made[pair.made]], dim=-1) for pair in shown]
    pictures["strip"] = torch.cat(rows, dim=-2)
    return Artefact(scene.client, scene.round, arrays, pictures, {"media": entries})


def points_of(scene: Scene, truth: Tensor, prior: Tensor, made: Tensor) -> Artefact:
    """Embeddings of images, prior and reconstructions, one below the other, and what each row is."""
    kinds = ["original"] * len(truth) + ["prior"] * len(prior) + ["reconstruction"] * len(made)
    about = {"kind": kinds, "client": scene.client, "round": scene.round, "noise": scene.noise}
    points = {"embedding": _array(torch.cat([truth, prior, made]))}
    return Artefact(scene.client, scene.round, points, lists={"embedding": about})


def _array(values: Tensor) -> np.ndarray:
    return values.numpy().astype(np.float32)
