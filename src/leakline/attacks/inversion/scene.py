"""The examiner's side of an inversion: which public image to start from, and what the truth was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from leakline.attacks.inversion.judge import Truth
from leakline.data.base import Data
from leakline.data.phantoms import Phantoms
from leakline.errors import StudyError
from leakline.federation import Federation, initial_weights
from leakline.randomness import Stream
from leakline.weights import Weights

DECOYS = 200
"""How many sets of public images the null is made of."""


def public(federation: Federation) -> Data | None:
    """Images that no client trains on and that the server has: its validation part, or else its test part."""
    for data in (federation.task.validation, federation.task.test):
        if data is not None and len(data):
            return data
    return None


def prior_of(federation: Federation, kind: Literal["public", "wrong", "none"], grey: bool, seed: int) -> Tensor:
    """The image that a search starts from, [1, C, H, W] in [0, 1]; one channel where ``grey``."""
    channels, height, width = federation.task.shape
    wanted = 1 if grey else channels
    if kind == "none":
        noise = torch.randn(1, wanted, height, width, generator=torch.Generator().manual_seed(seed))
        return (0.5 + 0.1 * noise).clamp(0, 1)
    if kind == "wrong":
        brains = Phantoms(examples=60, size=64, seed=seed).load().train
        mean = functional.interpolate(
            brains.inputs(slice(None)).mean(0, keepdim=True), (height, width), mode="bilinear"
        )
        return mean.expand(1, wanted, height, width).contiguous()
    data = public(federation)
    if data is None:
        raise StudyError(
            "the server has no public images to make a prior of",
            "gradient-inversion, prior = public",
            'set server_validation = 0.1 in [data], or prior = "none"',
        )
    mean = torch.zeros(1, channels, height, width, dtype=torch.float64)
    for at in range(0, len(data), 256):
        mean += data.inputs(slice(at, at + 256)).double().sum(0, keepdim=True) / len(data)
    image = mean.float()
    return image.mean(1, keepdim=True) if grey else image


def other_weights(federation: Federation) -> Weights:
    """A model that was never sent: the initial one of another seed."""
    return initial_weights(replace(federation, seed=federation.seed + 7919))


def truth(federation: Federation, client: str, index: int, prior: Tensor, media: Path, seed: int) -> Truth:
    """What the examiner knows of one attacked turn, with sets of public images to measure luck by."""
    data = federation.clients[client].train
    images = data.inputs(slice(None))
    channels = images.shape[1]
    pool = public(federation)
    decoys: Tensor | None = None
    if pool is not None and len(pool) >= len(data):
        rng = Stream(seed, index, client, "gradient-inversion/decoys").numpy()
        sets = min(DECOYS, len(pool)) if len(data) == 1 else DECOYS // 4
        rows = [rng.choice(len(pool), len(data), replace=False) for _ in range(sets)]
        decoys = torch.stack([pool.take(r).inputs(slice(None)) for r in rows])
    return Truth(images, prior.expand(1, channels, *prior.shape[2:]), decoys, client, index, media)
