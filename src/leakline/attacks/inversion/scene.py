"""The examiner's side of an inversion: which public image to start from, and what the truth was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from leakline.attacks.inversion.belief import FEWEST, Belief, believe
from leakline.attacks.inversion.embedding import load, trained
from leakline.attacks.inversion.judge import Secret, TrueImages, UnknownImages
from leakline.attacks.inversion.lineup import Pool, pool_of
from leakline.data.base import Data, Task
from leakline.data.phantoms import Phantoms
from leakline.errors import DataError, StudyError
from leakline.federation import Federation, initial_weights
from leakline.randomness import Stream
from leakline.weights import Weights

Prior = Literal["public", "wrong", "none", "flat"]
MOST_PUBLIC = 1000
"""So many public images teach a belief; their singular values take seconds."""
DECOYS = 200
"""How many sets of public images the null is made of."""


def public(federation: Federation) -> Data | None:
    """Images that no client trains on and that the server has: its validation part, or else its test part."""
    for data in (federation.task.validation, federation.task.test):
        if data is not None and len(data):
            return data
    return None


def prior_of(federation: Federation, kind: Prior, grey: bool, seed: int) -> Tensor:
    """The image that a search starts from, [1, C, H, W] in [0, 1]; one channel where ``grey``."""
    channels, height, width = federation.task.shape
    wanted = 1 if grey else channels
    if kind == "flat":
        return torch.full((1, wanted, height, width), 0.5)
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


def belief_of(federation: Federation, grey: bool) -> Belief | None:
    """What the server's public images teach of others; None where there are too few."""
    data = public(federation)
    return None if data is None or len(data) < FEWEST else _belief(_Held(federation.task), grey, MOST_PUBLIC)


def other_weights(federation: Federation) -> Weights:
    """A model that was never sent: the initial one of another seed."""
    return initial_weights(replace(federation, seed=federation.seed + 7919, initial_seed=None))


def truth(federation: Federation, client: str, index: int, prior: Tensor, seed: int, embedding: str = "") -> Secret:
    """What the examiner knows of one attacked turn, with sets of public images to measure luck by.

    ``embedding``: a safetensors file with weights of the network that looks for nearest images; without one, a network
    is trained on the public images (once for all turns, attacks and defences that share their data).
    """
    data = federation.clients[client].train
    if data.x.is_meta:  # the examiner has a recording and not the images
        return UnknownImages(client, index)
    images = data.inputs(slice(None))
    channels = images.shape[1]
    shown = public(federation)
    decoys: Tensor | None = None
    if shown is not None and len(shown) >= len(data):
        rng = Stream(seed, index, client, "gradient-inversion/decoys").numpy()
        sets = min(DECOYS, len(shown)) if len(data) == 1 else DECOYS // 4
        rows = [rng.choice(len(shown), len(data), replace=False) for _ in range(sets)]
        decoys = torch.stack([shown.take(r).inputs(slice(None)) for r in rows])
    pool, unread = lineup(federation, seed, embedding)
    return TrueImages(
        images, prior.expand(1, channels, *prior.shape[2:]), decoys, client, index, pool,
        federation.stack.loudness, unread,
    )  # fmt: skip


def lineup(federation: Federation, seed: int, embedding: str = "") -> tuple[Pool | None, str]:
    """The images that sources are looked for among, or why there are none.

    All clients' training images and the server's public ones. (Paper 001 adds the clients' validation images and counts
    them as the client's; nobody inverts those, and public ones keep the pool large where clients hold one image each.)
    """
    if not embedding and public(federation) is None:
        return None, "the server has no public images to train an embedding network on"
    try:
        return _pool(_Shared(_task_print(_Held(federation.task)), federation), seed, embedding), ""
    except DataError as error:
        if embedding:  # asked for by name: not a thing to do without in silence
            raise
        return None, error.what


@dataclass(frozen=True, eq=False)
class _Held:
    """A task by identity, so that its bytes are hashed once."""

    task: Task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.task is self.task

    def __hash__(self) -> int:
        return id(self.task)


@dataclass(frozen=True)
class _Shared:
    """A federation by its data alone: cells that differ in defence or model share what is made of them."""

    print: str
    federation: Federation = field(compare=False)


@lru_cache(maxsize=2)
def _belief(held: _Held, grey: bool, most: int) -> Belief:
    data = held.task.validation if held.task.validation is not None and len(held.task.validation) else held.task.test
    assert data is not None  # the caller looked
    images = data.inputs(slice(0, most))
    return believe(images.mean(1, keepdim=True) if grey else images)


@lru_cache(maxsize=4)
def _task_print(held: _Held) -> str:
    task = held.task
    parts = [*((c.name, c.train) for c in task.clients), ("", task.validation), ("", task.test)]
    return " ".join(f"{name}:{data.fingerprint()}" for name, data in parts if data is not None)


@lru_cache(maxsize=2)
def _pool(shared: _Shared, seed: int, embedding: str) -> Pool:
    federation = shared.federation
    shown = public(federation)
    held = {client.name: client.train for client in federation.task.clients}
    network: nn.Module
    if embedding:
        network = load(embedding, federation.task.shape)
    else:
        assert shown is not None  # the caller looked
        network = _network(_Shared(shown.fingerprint(), federation), seed)
    return pool_of(network, held, shown, seed=seed)


@lru_cache(maxsize=4)
def _network(shared: _Shared, seed: int) -> nn.Module:
    shown = public(shared.federation)
    assert shown is not None
    return trained(shown, seed=seed)
