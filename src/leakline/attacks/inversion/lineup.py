"""Whose image is it? The pool of images that a reconstruction's source is looked for among, as `iip` needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from leakline.attacks.inversion.embedding import embed
from leakline.data.base import Data
from leakline.leakage.images import cosine
from leakline.randomness import Stream

MOST = 4096
"""How many images a pool holds at most: embedding them takes seconds."""


@dataclass(frozen=True, eq=False)
class Lineup:
    """A pool as one client's reconstructions meet it: embeddings [P, D], whose each is, where the client's are [N]."""

    features: Tensor
    owners: tuple[str, ...]
    places: Tensor


@dataclass(frozen=True, eq=False)
class Pool:
    """Distinct images that a reconstruction's source is looked for among: embeddings [P, D] and who holds each.

    ``near`` is the mean cosine of a public image to the nearest *other* image of the pool: what an image that has
    nothing to do with any client reaches. None without public images.
    """

    network: nn.Module
    features: Tensor
    holders: tuple[frozenset[str], ...]
    near: float | None

    def lineup(self, client: str, images: Tensor) -> Lineup:
        """All images that are not the client's, then its own (each once): last, so that ties are not for it."""
        others = [i for i, names in enumerate(self.holders) if client not in names]
        first: dict[bytes, int] = {}
        own = [first.setdefault(_digest(image), len(first)) for image in images]
        rows = [own.index(i) for i in range(len(first))]
        features = torch.cat([self.features[others], embed(self.network, images[rows])])
        owners = [min(self.holders[i], default="") for i in others] + [client] * len(rows)
        return Lineup(features, tuple(owners), torch.tensor(own) + len(others))


def pool_of(network: nn.Module, held: Mapping[str, Data], public: Data | None, *, seed: int, most: int = MOST) -> Pool:
    """The clients' training images and the server's public ones (held by nobody), equal images once.

    Above ``most`` images, those who hold most are thinned at random until all fit.
    """
    sources = [*held.items(), *([("", public)] if public is not None else [])]
    quota = _quota([len(data) for _, data in sources], most)
    rng = Stream(seed, -2, "examiner", "embedding/pool").numpy()
    places: dict[bytes, int] = {}
    holders: list[set[str]] = []
    features: list[Tensor] = []
    for name, data in sources:
        rows = np.sort(rng.permutation(len(data))[:quota])
        for some in np.array_split(rows, -(-len(rows) // 128)) if len(rows) else []:
            images = data.inputs(torch.as_tensor(some))
            fresh = []
            for i, image in enumerate(images):
                place = places.setdefault(_digest(image), len(holders))
                if place == len(holders):
                    holders.append(set())
                    fresh.append(i)
                holders[place] |= {name} - {""}
            if fresh:
                features.append(embed(network, images[fresh]))
    points = torch.cat(features)
    strangers = [i for i, names in enumerate(holders) if not names]
    return Pool(network, points, tuple(frozenset(names) for names in holders), _near(points, strangers))


def _near(points: Tensor, rows: list[int]) -> float | None:
    if not rows or len(points) < 2:
        return None
    best = []
    for some in torch.split(torch.tensor(rows), 256):
        found = cosine(points[some], points)
        found[torch.arange(len(some)), some] = -1.0
        best.append(found.amax(1))
    return float(torch.cat(best).mean())


def _quota(sizes: list[int], most: int) -> int:
    """The largest q for which sum_k min(n_k, q) <= most, and at least 1."""
    low, high = 1, max(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(n, middle) for n in sizes) <= most else (low, middle - 1)
    return low


def _digest(image: Tensor) -> bytes:
    return hashlib.blake2b(image.contiguous().numpy().tobytes(), digest_size=16).digest()
