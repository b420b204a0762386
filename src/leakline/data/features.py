"""Fixed features in the place of inputs: each record's by itself, so that nothing is learned and nothing leaks.

``FEATURES`` is the menu of ``features = { use = "scattering" }`` in a study's [data] table. Features are vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from leakline.data.base import Data, Dataset, Task
from leakline.data.scattering import orders, scatter, smallest, standardised
from leakline.errors import DataError

BATCH = 64
"""How many records are transformed at once."""
Make = Callable[[Data], Tensor]


class Features(Protocol):
    """A fixed transform of records.

    ``normalise``: "record" leaves each record's features at mean 0 and variance 1 within groups and at length 1, by
    themselves; "public" takes means and deviations from the server's validation data; "none" leaves them. None of the
    three looks at a client's data, so none costs privacy.
    """

    @property
    def normalise(self) -> Literal["record", "public", "none"]:
        """How features are scaled."""
        ...

    def of(self, data: Data) -> Tensor:
        """A vector for each record, [N, D]."""
        ...


@dataclass(frozen=True)
class Scattering:
    """Wavelet scattering of images or signals over ``scales`` octaves, in ``directions`` directions (images)."""

    scales: int = 2
    directions: int = 8
    normalise: Literal["record", "public", "none"] = "record"

    def __post_init__(self) -> None:
        if not 1 <= self.scales <= 8 or not 1 <= self.directions <= 16:
            raise ValueError(f"scales must lie in 1 ... 8 and directions in 1 ... 16: {self.scales}, {self.directions}")

    def of(self, data: Data) -> Tensor:
        """The coefficients of each record, standardised if asked for."""
        size = tuple(data.x.shape[2:])
        if len(size) not in (1, 2) or min(size) < smallest(self.scales):
            raise DataError(
                f"scattering over {self.scales} scales takes images or signals of at least {smallest(self.scales)} a "
                f"side, and inputs have the shape {tuple(data.x.shape[1:])}",
                "data.features",
                "lower scales, or enlarge the images",
            )
        groups, parts = orders(self.scales, self.directions, len(size)), []
        with torch.no_grad():
            for start in range(0, len(data), BATCH):
                s = scatter(data.inputs(slice(start, start + BATCH)), self.scales, self.directions)
                parts.append((standardised(s, groups) if self.normalise == "record" else s).flatten(1))
        return torch.cat(parts)


FEATURES: dict[str, Callable[..., Features]] = {"scattering": Scattering}


def featured(dataset: Dataset, features: Features, make: Make | None = None) -> Dataset:
    """A data set with features in the place of its inputs; ``make`` may know them already."""
    if dataset.kind != "classification":
        raise DataError(f"features are vectors, and {dataset.kind} needs images", "data.features", "leave them out")
    make = make or features.of

    def changed(data: Data | None) -> Data | None:
        return None if data is None else replace(data, x=make(data) if len(data) else torch.zeros(0, 0))

    train = changed(dataset.train)
    assert train is not None
    return replace(dataset, train=train, test=changed(dataset.test))


def publicly_scaled(task: Task) -> Task:
    """A task of features with the server's validation data at mean 0 and variance 1 in every one of them."""
    public = task.validation
    if public is None or len(public) < 2:
        raise DataError(
            'normalise = "public" takes means from the server\'s validation data, and there are none',
            "data.features",
            'set server_validation = 0.1, or normalise = "record"',
        )
    mean, deviation = public.x.mean(0), public.x.std(0)
    scale = 1 / (deviation + 1e-3 * deviation.mean() + 1e-12) / public.x.shape[1] ** 0.5

    def scaled(data: Data | None) -> Data | None:
        return None if data is None or not len(data) else replace(data, x=(data.x - mean) * scale)

    clients = tuple(replace(c, train=scaled(c.train) or c.train, test=scaled(c.test)) for c in task.clients)
    return replace(task, clients=clients, test=scaled(task.test), validation=scaled(task.validation))
