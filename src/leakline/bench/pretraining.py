"""Training on the server's public part before a federation begins; each network once in a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from leakline.bench.training import Bench, Job, Loss, Plan, train
from leakline.data.base import Data
from leakline.randomness import Stream
from leakline.weights import Weights


@dataclass(frozen=True)
class Lesson:
    """What a network is to learn: a task's shape, classes and kind, by a plan, on data, from a start.

    ``place`` stands for data and loss: a hash of the data and the loss's name.
    """

    model: Any
    shape: tuple[int, ...]
    classes: int
    kind: str
    plan: Plan
    place: tuple[str, str]
    data: Data = field(compare=False, repr=False)
    loss: Loss = field(compare=False, repr=False)


@lru_cache(maxsize=8)
def pretrained(lesson: Lesson) -> Weights:
    """All values of a network (see `models.adapted`) after training; no seed of a study has a part in it."""
    network = lesson.model.whole(lesson.shape, lesson.classes, lesson.kind)
    bench = Bench(network, lesson.loss, shape=lesson.shape)
    job = Job(bench.initial, lesson.data, Stream(0, -1, "server", "pretraining"), 0)
    return bench.initial + train(bench, job, lesson.plan).change


@dataclass(frozen=True)
class Start:
    """A seed's initial model on a device, which ``bench`` makes, and what it learns before the first round."""

    lesson: Lesson
    seed: int
    device: str
    bench: Callable[[], Bench] = field(compare=False, repr=False)


def warmed(start: Start) -> Weights:
    """The initial model after training: the same for all strategies and defences, so it is trained once."""
    try:
        hash(start)
    except TypeError:  # a model of somebody's own that cannot be told from others
        return _trained(start)
    return _warmed(start)


@lru_cache(maxsize=16)
def _warmed(start: Start) -> Weights:
    return _trained(start)


def _trained(start: Start) -> Weights:
    bench, lesson = start.bench(), start.lesson
    job = Job(bench.initial, lesson.data, Stream(start.seed, -1, "server", "warm-start"), 0)
    return bench.initial + train(bench, job, lesson.plan).change
