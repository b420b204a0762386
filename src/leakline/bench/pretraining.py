"""Training on the server's public part before a federation begins; each network once in a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from leakline.bench.once import once
from leakline.bench.training import Bench, Job, Loss, Plan, train
from leakline.data.base import Data
from leakline.randomness import Stream
from leakline.weights import Weights

_pretrained: OrderedDict[Hashable, Weights] = OrderedDict()
_warmed: OrderedDict[Hashable, Weights] = OrderedDict()


@dataclass(frozen=True)
class Lesson:
    """What a network is to learn: a task's shape, classes and kind, by a plan, on data, by a loss and its name."""

    model: Any
    shape: tuple[int, ...]
    classes: int
    kind: str
    plan: Plan
    data: Data
    loss: Loss
    loss_name: str

    @property
    def key(self) -> tuple[object, ...]:
        """All that decides what is learnt from a given start."""
        return self.model, self.shape, self.classes, self.kind, self.plan, self.data.fingerprint(), self.loss_name


def pretrained(lesson: Lesson) -> Weights:
    """All values of a network (see `models.adapted`) after training; no seed of a study has a part in it."""

    def train_it() -> Weights:
        network = lesson.model.whole(lesson.shape, lesson.classes, lesson.kind)
        bench = Bench(network, lesson.loss, shape=lesson.shape)
        return _after(bench, lesson, Stream(0, -1, "server", "pretraining"))

    return once(_pretrained, lesson.key, train_it)


def warmed(lesson: Lesson, seed: int, device: str, bench: Callable[[], Bench]) -> Weights:
    """A seed's initial model, which ``bench`` makes, after training: the same for all strategies and defences."""

    def train_it() -> Weights:
        return _after(bench(), lesson, Stream(seed, -1, "server", "warm-start"))

    return once(_warmed, (*lesson.key, seed, device), train_it)


def _after(bench: Bench, lesson: Lesson, stream: Stream) -> Weights:
    return bench.initial + train(bench, Job(bench.initial, lesson.data, stream, 0), lesson.plan).change
