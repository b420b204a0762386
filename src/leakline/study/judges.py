"""Who judges a round's model: the server on its test data, or the clients on theirs, personal layers included."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from leakline.data.base import Data
from leakline.federation import Federation, Transport
from leakline.guard import judgements
from leakline.leakage.interval import Interval, clopper_pearson, mean_interval
from leakline.messages import Memory, Order, Round
from leakline.readings import Reading
from leakline.weights import Weights


class Place(Transport, Protocol):
    """Where a study's run takes place: a transport that can also judge a model on the server's own data."""

    @property
    def memories(self) -> Mapping[str, Memory]:
        """What clients keep between rounds, as far as this place may see it."""
        ...

    def outputs(self, weights: Weights, data: Data) -> Tensor:
        """The global model's outputs on data of the server's, in order."""
        ...


def judged(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """The utility of a round's model, by whoever the federation asks."""
    return by_clients(federation, transport, round_) if federation.judges else by_server(federation, transport, round_)


def by_server(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """Every figure on the server's test data; none where it has no data or not the whole model."""
    test = federation.task.test
    if test is None or federation.wire != federation.layout:
        return []
    figures = federation.objective.summary(transport.outputs(round_.result, test), test.y, test.groups)
    found = []
    for name, value in figures.items():
        low, high = _share(value, len(test)) if name == "accuracy" else (None, None)
        found.append(Reading(name, value, low, high, len(test), round=round_.index))
    return found


def by_clients(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """Every figure as the mean over clients, and the headline and the loss of each client."""
    orders = [Order(name, round_.index, round_.result, kind="evaluate") for name in federation.judges]
    answers = judgements(transport.exchange(orders), federation.judges)
    found = []
    for name in dict.fromkeys(name for one in answers for name in one.metrics):
        values = {one.client: one.metrics[name] for one in answers if name in one.metrics}
        mean = over_clients(list(values.values()))
        found.append(
            Reading(name, mean.value, mean.low, mean.high, mean.n, round=round_.index, note="mean over clients")
        )
        if name in (federation.objective.headline, "loss"):
            found += [Reading(name, v, round=round_.index, client=c) for c, v in values.items()]
    return found


def over_clients(values: Sequence[float]) -> Interval:
    """Mean over clients with a 95 % t-interval: what another set of such clients might have given."""
    return mean_interval(values, of="clients")


def out_of_patience(losses: Sequence[float], patience: int) -> bool:
    """Whether the loss has not fallen below its best for ``patience`` rounds (0: never)."""
    if not patience or not losses:
        return False
    known = [value if math.isfinite(value) else math.inf for value in losses]
    return len(known) - 1 - known.index(min(known)) >= patience


def _share(value: float, n: int) -> tuple[float, float]:
    found = clopper_pearson(round(value * n), n)
    return found.low, found.high
