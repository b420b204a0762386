"""Who judges a round's model: the server on its test data, clients on theirs with their personal layers, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypedDict

from torch import Tensor

from leakline.data.base import Data
from leakline.data.elsewhere import Elsewhere
from leakline.federation import Federation, Transport
from leakline.guard import judgements
from leakline.leakage import guessing
from leakline.leakage.interval import Interval, clopper_pearson, mean_interval
from leakline.messages import Memory, Order, Round
from leakline.readings import Fact, Reading
from leakline.utility import Objective
from leakline.utility.baseline import BLIND, Baseline
from leakline.utility.classification import predictions
from leakline.utility.segmentation import group_means
from leakline.weights import Weights

NOT_ALIKE = "always answering each client's commonest class"


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
    """The utility of a round's model, by whoever the federation asks, and by validation data where it asks for that."""
    found = by_clients(federation, transport, round_) if federation.judges else by_server(federation, transport, round_)
    if federation.judging.evaluate == "both":
        found = [*by_server(federation, transport, round_), *(r for r in found if r.client is not None)]
    return found + by_validation(federation, transport, round_)


def by_validation(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """The headline on the server's validation data, where a study wants to know the best round by them."""
    held = federation.task.validation
    if federation.judging.validation == "none" or held is None or federation.wire != federation.layout:
        return []
    figures = federation.objective.summary(transport.outputs(round_.result, held), held.y, held.groups)
    return [Reading("validation", figures[federation.objective.headline], n=len(held), round=round_.index)]


def by_server(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """Every figure on the server's test data; none where it has no data or not the whole model."""
    test = federation.task.test
    if test is None or federation.wire != federation.layout:
        return []
    outputs = transport.outputs(round_.result, test)
    figures = federation.objective.summary(outputs, test.y, test.groups)
    spans = intervals(federation.objective, outputs.detach().cpu(), test)
    blind = baseline_of(federation, test)
    found = []
    for name, value in figures.items():
        low, high = spans.get(name, (None, None))
        found.append(Reading(name, value, low, high, len(test), round=round_.index, **_beside(blind, name)))
    return found


def by_clients(federation: Federation, transport: Place, round_: Round) -> list[Reading]:
    """Every figure as the mean over clients, and the headline and the loss of each client.

    Beside the mean stands the mean over clients of what each one's own commonest answer gets.
    """
    orders = [Order(name, round_.index, round_.result, kind="evaluate") for name in federation.judges]
    answers = judgements(transport.exchange(orders), federation.judges)
    blind = {name: baseline_of(federation, federation.clients[name].test) for name in federation.judges}
    found = []
    for name in dict.fromkeys(name for one in answers for name in one.metrics):
        values = {one.client: one.metrics[name] for one in answers if name in one.metrics}
        mean = over_clients(list(values.values()))
        known = [b for c in values if (b := blind[c]) is not None]
        together = _together(known, name) if len(known) == len(values) else None
        found.append(
            Reading(
                name, mean.value, mean.low, mean.high, mean.n, round=round_.index, note="mean over clients",
                **_beside(together, name),
            )
        )  # fmt: skip
        if name in (federation.objective.headline, "loss"):
            found += [
                Reading(name, v, round=round_.index, client=c, **_beside(blind[c], name)) for c, v in values.items()
            ]
    return found


def intervals(objective: Objective, outputs: Tensor, test: Data) -> dict[str, tuple[float, float]]:
    """95 % intervals of the figures that people read first, over the examples (or patients) of a test set."""
    if objective.kind == "segmentation":
        dice = objective.score(outputs, test.y)["dice"]
        spans = {"dice": mean_interval(dice.tolist(), of="images")}
        if test.groups is not None:
            spans["dice_patient"] = mean_interval(list(group_means(dice, test.groups).values()), of="patients")
        return {name: (max(span.low, 0.0), min(span.high, 1.0)) for name, span in spans.items() if span.n > 1}
    answers, labels = predictions(outputs), test.y.cpu()
    spans = {
        "accuracy": clopper_pearson(int((answers == labels).sum()), len(labels)),
        "balanced_accuracy": guessing.balanced_accuracy(answers.numpy(), labels.numpy()),
    }
    if outputs.shape[1] == 2 and bool(outputs.isfinite().all()) and 0 < int(labels.sum()) < len(labels):
        spans["auc_binary"] = guessing.auc(outputs.double().diff(dim=1).flatten().numpy(), labels.numpy())
    return {name: (span.low, span.high) for name, span in spans.items()}


def baseline_of(federation: Federation, data: Data | None) -> Baseline | None:
    """What a constant answer gets on test data; None where nobody here may look at them."""
    if data is None or not len(data) or isinstance(data, Elsewhere):
        return None
    return _baseline(Held(data), federation.objective, federation.task.classes)


@dataclass(frozen=True, eq=False)
class Held:
    """Data by identity, so that what a constant answer gets is computed once for each."""

    data: Data

    def __hash__(self) -> int:
        return id(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.data is self.data


@lru_cache(maxsize=256)
def _baseline(held: Held, objective: Objective, classes: tuple[str, ...]) -> Baseline:
    return objective.baseline(held.data.y, classes, held.data.groups)


def _together(known: Sequence[Baseline], name: str) -> Baseline:
    """The mean over clients of what their own constant answers get."""
    answers = {b.answer for b in known}
    values = [b.figures[name] for b in known if name in b.figures]
    mean = sum(values) / len(values) if values and len(values) == len(known) else math.nan
    return Baseline(answers.pop() if len(answers) == 1 else NOT_ALIKE, {name: mean})


class _Beside(TypedDict, total=False):
    chance: float
    about: Mapping[str, Fact]


def _beside(blind: Baseline | None, name: str) -> _Beside:
    value = math.nan if blind is None else blind.figures.get(name, math.nan)
    if blind is None or math.isnan(value):
        return {}
    return {"chance": value, "about": {BLIND: blind.answer}}


def over_clients(values: Sequence[float]) -> Interval:
    """Mean over clients with a 95 % t-interval: what another set of such clients might have given."""
    return mean_interval(values, of="clients")


def out_of_patience(losses: Sequence[float], patience: int) -> bool:
    """Whether the loss has not fallen below its best for ``patience`` rounds (0: never)."""
    if not patience or not losses:
        return False
    known = [value if math.isfinite(value) else math.inf for value in losses]
    return len(known) - 1 - known.index(min(known)) >= patience
