"""Training on the server's public part before a federation begins; each network once in a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from leakline.bench.training import Bench, Job, Loss, Plan, train
from leakline.data.base import Data
from leakline.randomness import Stream
from leakline.weights import Weights


@dataclass(frozen=True)
class Lesson:
    """What a whole network is to learn: ``model`` (see `models.adapted`) for a task's shape, classes and kind.

    ``place`` stands for data and loss: the data's identity and the loss's name.
    """

    model: Any
    shape: tuple[int, ...]
    classes: int
    kind: str
    plan: Plan
    place: tuple[int, str]
    data: Data = field(compare=False, repr=False)
    loss: Loss = field(compare=False, repr=False)


@lru_cache(maxsize=8)
def pretrained(lesson: Lesson) -> Weights:
    """All values of the network after training; the same in every run, since no seed of a study has a part in it."""
    network = lesson.model.whole(lesson.shape, lesson.classes, lesson.kind)
    bench = Bench(network, lesson.loss, shape=lesson.shape)
    job = Job(bench.initial, lesson.data, Stream(0, -1, "server", "pretraining"), 0)
    return bench.initial + train(bench, job, lesson.plan).change
