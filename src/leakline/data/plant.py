"""A trait of known strength put into real people's data: what an attack that finds nothing is first asked for.

``PLANTS`` is the menu of ``plant = { use = "strength", ... }`` in a study's [data] table. Half of the clients, drawn
anew for each of the study's seeds, get the trait ``planted``; an attack asks for it like for any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from leakline.data.base import Client, Data, Task
from leakline.data.split import stream
from leakline.errors import DataError

TRAIT = "planted"
"""What the trait is called: true of half of the clients."""


class Plant(Protocol):
    """A change of some clients' data that goes with a trait."""

    def into(self, task: Task, seed: int) -> Task:
        """The task with the trait in it."""
        ...


@dataclass(frozen=True)
class Strength:
    """Half of the clients move more strongly while they do ``of`` (one class): a trait ``planted`` for attacks to find.

    A client's strength is the logarithm of the root mean square of what its signals of that class differ by from
    their mean, all channels together; s is its standard deviation over all clients as they are. Who has the trait is
    moved by effect * s: that difference from the mean is multiplied by exp(effect * s), in training and test data,
    after any standardisation. Means, times and the other classes stay.

    So ``effect`` is Cohen's d: whoever read the strengths themselves would tell the two halves apart with an AUC of
    Phi(effect / sqrt(2)) if they are normal: 0.5 at 0 (the control, in which nothing is changed), 0.76 at 1, 0.92 at 2,
    0.998 at 4.
    """

    effect: float
    of: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.effect) and self.effect >= 0):
            raise ValueError(f"effect must be at least 0: {self.effect}")

    def into(self, task: Task, seed: int) -> Task:
        """The task with the trait in it; at an effect of 0 every byte of the data stays."""
        held = signals_of(task, self.of)
        names = list(held)
        chosen = {names[i] for i in stream(seed, "plant").permutation(len(names))[: len(names) // 2]}
        factor = math.exp(self.effect * float(np.std([strength(x) for x in held.values()], ddof=1)))
        own = task.classes.index(self.of)
        clients = (
            c if factor == 1 or c.name not in chosen else _moved(c, own, held[c.name], factor) for c in task.clients
        )
        told = tuple(replace(c, traits={**c.traits, TRAIT: c.name in chosen}) for c in clients)
        remark = f"planted in {len(chosen)} of {len(names)} clients: {self.of} is {factor:.3g} times as strong"
        return replace(task, clients=told, remarks=(*task.remarks, remark))


PLANTS: dict[str, Callable[..., Plant]] = {"strength": Strength}


def signals_of(task: Task, of: str) -> dict[str, Tensor]:
    """Each client's signals of the class, or what is wrong with them."""
    if of not in task.classes:
        raise _wrong(f"there is no class {of!r}", f"one of: {', '.join(task.classes)}")
    if len(task.clients) < 4:
        raise _wrong(f"{len(task.clients)} clients have no two halves to tell apart", "use at least 4 clients")
    held = {}
    for client in task.clients:
        parts = [d for d in (client.train, client.test) if d is not None]
        if any(d.x.dtype != torch.float32 or d.x.ndim != 3 or d.y.ndim != 1 for d in parts):
            raise _wrong("a movement's strength is of signals, channels x time", "use motion data, or leave it out")
        x = torch.cat([d.x[d.y == task.classes.index(of)] for d in parts])
        if not len(x) or not float((x - _mean(x)).abs().max()) > 0:
            raise _wrong(f"{client.name} has no signals of {of} that move", "name a class that everybody has")
        held[client.name] = x
    return held


def stronger(task: Task, of: str, factor: float) -> Task:
    """The task with every client's signals of a class so many times as strong."""
    held, own = signals_of(task, of), task.classes.index(of)
    return replace(task, clients=tuple(_moved(c, own, held[c.name], factor) for c in task.clients))


def strength(x: Tensor) -> float:
    """The logarithm of the root mean square of signals N, C, L less each channel's mean."""
    return 0.5 * math.log(float((x - _mean(x)).double().square().mean()))


def _moved(client: Client, own: int, signals: Tensor, factor: float) -> Client:
    """The client with its signals of one class ``factor`` times as far from their mean."""
    centre = _mean(signals)

    def moved(data: Data) -> Data:
        x, mine = data.x.clone(), data.y == own
        x[mine] = centre + factor * (x[mine] - centre)
        return replace(data, x=x)

    return replace(client, train=moved(client.train), test=None if client.test is None else moved(client.test))


def _mean(x: Tensor) -> Tensor:
    return x.mean((0, 2), keepdim=True)


def _wrong(what: str, fix: str) -> DataError:
    return DataError(what, "data.plant", fix)
