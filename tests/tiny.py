"""Federations small enough to run hundreds of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, federate
from leakline.messages import Round, Update
from leakline.runtimes.local import LocalTransport
from leakline.weights import Entry, Layout, Weights

FEATURES, CLASSES = 4, 3


def blobs(n: int, seed: int = 0, shape: tuple[int, ...] = (FEATURES,)) -> Data:
    """Examples of three classes around three points."""
    rng = np.random.default_rng([seed, n])
    y = rng.integers(0, CLASSES, n)
    centres = np.random.default_rng(7).normal(size=(CLASSES, *shape))
    x = centres[y] + 0.5 * rng.normal(size=(n, *shape))
    return Data(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64))


def task(sizes: Sequence[int] = (12, 12, 12), shape: tuple[int, ...] = (FEATURES,), **changes: Any) -> Task:
    """Clients a, b, c, ... with so many examples each."""
    clients = tuple(Client(chr(97 + i), blobs(n, i + 1, shape)) for i, n in enumerate(sizes))
    return Task(changes.pop("clients", clients), blobs(40, 90, shape), blobs(20, 91, shape), ("0", "1", "2"), **changes)


def linear() -> nn.Module:
    """The smallest classifier."""
    return nn.Linear(FEATURES, CLASSES)


def perceptron() -> nn.Module:
    """Two layers, so that there is something to keep private."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def image_net() -> nn.Module:
    """A convolution with BatchNorm and dropout: everything that vectorising over clients cannot do."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, CLASSES),
    )


IMAGE = (1, 4, 4)


def federation(**changes: Any) -> Federation:
    """Three clients, a linear model, two rounds, seeded noise."""
    base: dict[str, Any] = {
        "task": task(),
        "model": linear,
        "plan": Plan(epochs=1, batch=4, learning_rate=0.1),
        "rounds": 2,
        "noise": "seeded",
    }
    settings = base | changes
    return Federation(settings.pop("task"), settings.pop("model")).but(**settings)


def run(fed: Federation, workers: int = 1) -> list[Round]:
    """All rounds."""
    with LocalTransport(fed, workers) as transport:
        return list(federate(fed, transport))


LAYOUT = Layout((Entry("a", (2, 3)), Entry("b", (4,)), Entry("norm.running_mean", (3,), buffer=True)))


def update(
    vector: Tensor, client: str = "a", examples: int = 1, steps: int = 1, layout: Layout | None = None
) -> Update:
    """An update around a vector."""
    own = layout or Layout((Entry("w", (len(vector),)),))
    return Update(client, Weights(own, vector), examples, steps)


def random_updates(n: int, size: int = 50, seed: int = 0, steps: int | None = 3) -> list[Update]:
    """Updates of clients with different numbers of examples."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 100, (n,), generator=g).tolist()
    return [
        update(torch.randn(size, generator=g), f"client-{i}", counts[i], steps or 1 + counts[i] % 7) for i in range(n)
    ]


@dataclass
class Corrupting:
    """A transport that answers as the clients do, except for one, whose answers go through ``fault``."""

    inner: LocalTransport
    client: str
    fault: Any
    seen: list[str] = field(default_factory=list)

    def exchange(self, orders: Any) -> Iterable[Any]:
        for one in self.inner.exchange(orders):
            self.seen.append(one.client)
            yield self.fault(one) if one.client == self.client else one
