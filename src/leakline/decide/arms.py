"""What can be trained under a promise: the arms of the study `frontier`, how large they are, how a study says them.

Features, sizes and settings are the study's own, so that its figures speak of what is recommended. What has to be
chosen anew for other data (a learning rate, rounds) is said as a start, no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from leakline.data.scattering import orders, smallest
from leakline.errors import LeaklineError
from leakline.models import MENU
from leakline.models.adapted import Adapted, Lora

UnitName = Literal["record", "patient", "client"]
Shape = tuple[int, ...]

FEW = "rounds = 2\nepochs = 10\nbatch = 0\n"
"""Under a promise for a client: few rounds, since each has noise, of many steps, which have none."""


@dataclass(frozen=True)
class Arm:
    """What is trained, by the name that it has in `frontier`; lines of a study's [model], [training], [data]."""

    name: str
    values: int
    model: str
    training: str
    data: str = ""
    rate: float = 1.0
    """How many of a client's records DP-SGD takes for a step."""
    clip: float = 1.0
    linear: bool = False
    """Whether only a linear head on fixed features is trained: an input then meets the noise along itself alone."""


def arms(shape: Shape, classes: int, unit: UnitName) -> list[Arm]:
    """Those that fit inputs of a shape."""
    client = unit == "client"
    found = (_head(shape, classes, client), *_parts(shape, classes, client), _network(shape, classes, client))
    return [arm for arm in found if arm is not None]


def _head(shape: Shape, classes: int, client: bool) -> Arm | None:
    scales, directions = (4, 8) if len(shape) == 2 else (3, 4) if client else (2, 8)
    values = scattered(shape, classes, scales, directions)
    if values is None:
        return None
    features = f'use = "scattering", scales = {scales}, directions = {directions}, normalise = "public"'
    training = f"{FEW}learning_rate = 30.0" if client else _steps(100, 16.0 if len(shape) == 2 else 4.0)
    return Arm(
        "linear head on scattering", values, 'use = "linear"', training, f"features = {{ {features} }}\n",
        clip=3.0 if client else 1.0, linear=True,
    )  # fmt: skip


def _parts(shape: Shape, classes: int, client: bool) -> list[Arm]:
    """The last layer of a network from public data, and adapters in all of it."""
    name, last = _small(shape)
    pretrained = f'use = "{name}"\npretrain = true\n'
    head, adapters = network(shape, classes, train=(last,)), network(shape, classes, lora=Lora(2))
    if head is None or adapters is None:
        return []
    first, second = (f"{FEW}learning_rate = 0.3" if client else _steps(rounds, 0.3) for rounds in (100, 30))
    return [
        Arm("last layer, rest from public images", head, f'{pretrained}train = ["{last}"]', first, linear=True),
        Arm("adapters, rest from public images", adapters, f"{pretrained}lora = {{ rank = 2 }}", second),
    ]


def _network(shape: Shape, classes: int, client: bool) -> Arm | None:
    values = network(shape, classes)
    if values is None:
        return None
    steps = "rounds = 60\nbatch = 32\naverage = 0.5\nlearning_rate = 0.1"
    training = f"{FEW}learning_rate = 0.3" if client else steps
    return Arm("whole small network", values, f'use = "{_small(shape)[0]}"', training, rate=0.1)


def _steps(rounds: int, rate: float) -> str:
    """One step a round, on all records of a client; judged on an average of the published models."""
    return f"rounds = {rounds}\nbatch = 0\naverage = 0.9\nlearning_rate = {rate}"


def _small(shape: Shape) -> tuple[str, str]:
    """The small network for images or signals, and its last layer."""
    return ("small-cnn", "dense2.*") if len(shape) == 3 else ("motion-cnn", "dense3.*")


def network(shape: Shape, classes: int, train: tuple[str, ...] = (), lora: Lora | None = None) -> int | None:
    """How many values of the small network are trained: all, those that match, or adapters; None: it does not fit."""
    try:
        with torch.random.fork_rng(devices=[]):
            built = Adapted(MENU[_small(shape)[0]](), train, lora).build(shape, classes)
    except (LeaklineError, ValueError):
        return None
    return sum(int(p.numel()) for p in built.parameters() if p.requires_grad)


def scattered(shape: Shape, classes: int, scales: int, directions: int) -> int | None:
    """A linear head on scattering coefficients: 1 + J L + L^2 J (J - 1) / 2 channels at every 2^J-th position."""
    size = shape[1:]
    if len(size) not in (1, 2) or min(size) < smallest(scales):
        return None
    channels = sum(orders(scales, directions, len(size)))
    places = math.prod(-(-n // 2**scales) for n in size)
    return int((shape[0] * channels * places + 1) * classes)
