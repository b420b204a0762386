"""Where the adversaries of paper 002 act: a federation's model, two of its images, and a model trained on one label."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from leakline.attacks.audit.crafters import Scene
from leakline.bench.training import Bench, Job, Plan, train
from leakline.data.base import Data
from leakline.errors import StackError
from leakline.federation import Federation
from leakline.randomness import Stream
from leakline.weights import Weights


def draw_scene(federation: Federation, bench: Bench, rng: np.random.Generator, bound: float = 1.0) -> Scene:
    """The initial model and two random training images of different labels.

    The paper starts from weights of zero, where a CNN with ReLU is dead; here it is the federation's own start.
    """
    pool = [client.train for client in federation.task.clients if len(client.train)]
    labels = {int(y) for data in pool for y in data.labels()[:200]}
    if federation.task.kind != "classification" or len(labels) < 2:
        raise StackError("these adversaries need images of two classes", federation.task.name, "use another data set")
    first, second = _pick(pool, rng), _pick(pool, rng)
    while int(first.y[0]) == int(second.y[0]):
        second = _pick(pool, rng)
    everything = slice(None)
    model = _plain(bench.model)
    return Scene(
        model, bench.loss, bench.initial, first.inputs(everything), first.y, second.inputs(everything), second.y, bound
    )


def _plain(model: nn.Module) -> nn.Module:
    """Ready to be called with weights in natural memory order."""
    return model.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload,no-any-return]


def _pick(pool: list[Data], rng: np.random.Generator) -> Data:
    data = pool[int(rng.integers(len(pool)))]
    return data.take([int(rng.integers(len(data)))])


def malicious_model(
    federation: Federation, bench: Bench, avoid: int, seed: int = 0, images: int = 256, steps: int = 100
) -> Weights:
    """Paper 002's collusion: the model after training on images of one label only, which is not ``avoid``."""
    rows = [client.train for client in federation.task.clients if len(client.train)]
    label = next(int(y) for data in rows for y in data.y if int(y) != avoid)
    x = torch.cat([data.x[data.y == label] for data in rows])[:images]
    chosen = Data(x, torch.full((len(x),), label))
    plan = Plan(epochs=steps, batch=64, learning_rate=0.01, momentum=0.9, max_steps=steps)
    job = Job(bench.initial, chosen, Stream(seed, -3, "server", "malicious"), 0)
    trained = train(bench, job, plan)
    return bench.initial + trained.change
