"""What is worth trying first, and what cannot work: from sizes alone, before anything is trained.

Over a whole training the noise that a promise asks for has a length that sizes decide. T releases of a sum of n units,
each clipped to C, that are together mu-GDP carry noise of std sqrt(T) C / mu each; the mean over the releases of what
is divided by n is then, in length,

    noise / signal >= sqrt(p) s / (n mu)        p  values that are trained (and so noised)
                                                mu what epsilon and delta allow (`gdp_mu`)
                                                s  1 where noise is added once to the sum of all clients, sqrt(clients)
                                                   where each client adds all of its own

because no mean of clipped vectors is longer than C. Neither C, nor T, nor (for many small releases) the sampling rate
is in it. It is the best case: real gradients disagree, and their mean is shorter.

A linear head on fixed features bears far more. An input meets the noise along itself alone, whatever the number of
features: in each output the ratio is s / (n mu), as for a single value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from leakline.data.base import Task
from leakline.data.scattering import orders, smallest
from leakline.errors import LeaklineError
from leakline.models import MENU
from leakline.models.adapted import Adapted, Lora
from leakline.privacy.gdp import gdp_mu

UnitName = Literal["record", "patient", "client"]
Shape = tuple[int, ...]

PEOPLE = ("patient", "person", "subject", "group")
"""What a group of records may be called to count as a patient."""
WORTH, HOPELESS = 0.1, 1.0
"""Noise to signal up to which something is worth trying first, and from which on the noise of a whole training is
longer than anything it could have learned. The second is arithmetic, the first a rule (docs/what-to-use.md)."""


@dataclass(frozen=True)
class Case:
    """The sizes that matter."""

    unit: UnitName
    units: int
    clients: int
    shape: Shape
    classes: int
    epsilon: float
    delta: float
    records: int
    public: int = 0

    @property
    def mu(self) -> float:
        """What the promise allows, as one number."""
        return gdp_mu(self.epsilon, self.delta)


@dataclass(frozen=True)
class Way:
    """Where the noise is added, and how much louder that makes it than one noise for all."""

    defence: str
    louder: float
    needs: str = ""


@dataclass(frozen=True)
class Arm:
    """What is trained: so many values of a task."""

    name: str
    values: Callable[[Shape, int], int | None]
    """None: it cannot be used for inputs of that shape."""
    lines: str
    """How a study file says it."""
    linear: bool = False
    """Whether only a linear head on fixed features is trained: an input then meets the noise along itself alone."""


@dataclass(frozen=True)
class Outlook:
    """One arm under one way of adding noise."""

    arm: Arm
    way: Way
    trained: int
    ratio: float

    @property
    def verdict(self) -> str:
        """In words."""
        if self.ratio <= WORTH:
            return "worth trying first"
        return "may work" if self.ratio < HOPELESS else "noise drowns it"


def case_of(task: Task, unit: UnitName, epsilon: float, delta: float) -> Case:
    """The sizes of a task; refused where its unit is not known."""
    records = sum(len(c.train) for c in task.clients)
    if unit == "record":
        units = records
    elif unit == "client":
        units = len(task.clients)
    else:
        held = [c.train.groups for c in task.clients if len(c.train)]
        if task.group not in PEOPLE or any(groups is None for groups in held):
            known = f"its groups are {task.group}s" if held and held[0] is not None else "nobody says whose a record is"
            raise LeaklineError(
                f"there are no patients to count: {known}",
                task.name,
                "give the data patients (docs/own-data.md), or ask for --unit record",
            )
        units = sum(len(set(groups.tolist())) for groups in held if groups is not None)
    public = 0 if task.validation is None else len(task.validation)
    return Case(unit, units, len(task.clients), task.shape, len(task.classes), epsilon, delta, records, public)


def ways(case: Case) -> list[Way]:
    """Where noise can be added for a unit, the least of it first."""
    each = math.sqrt(case.clients)
    if case.unit == "client":
        return [
            Way("global-dp", 1.0, "a server that is trusted with single updates"),
            Way("gaussian-release", each),
        ]
    unit = "" if case.unit == "record" else f', unit = "{case.unit}"'
    return [
        Way(f"distributed-dp{unit}", 1.0, "secure aggregation: a server that sees only the sum"),
        Way(f"dp-sgd{unit}", each),
    ]


def ratio(met: int, louder: float, case: Case) -> float:
    """Noise over the longest possible signal, where so many noised values are met: the equations at the top."""
    return math.sqrt(met) * louder / (case.units * case.mu)


def outlooks(case: Case, arms: Sequence[Arm]) -> list[Outlook]:
    """Every arm that fits the task under every way, the best first."""
    found = []
    for arm in arms:
        values = arm.values(case.shape, case.classes)
        if values is not None:
            met = 1 if arm.linear else values
            found += [Outlook(arm, way, values, ratio(met, way.louder, case)) for way in ways(case)]
    return sorted(found, key=lambda outlook: outlook.ratio)


def most_values(case: Case, way: Way) -> int:
    """How many values of a network may be trained before noise is as long as any signal can be."""
    return math.floor((HOPELESS * case.units * case.mu / way.louder) ** 2)


def units_needed(outlook: Outlook, case: Case) -> int:
    """How many units would make this worth trying first."""
    return math.ceil(case.units * outlook.ratio / WORTH)


def network(shape: Shape, classes: int, train: tuple[str, ...] = (), lora: Lora | None = None) -> int | None:
    """How many values a small network has that are trained: all, those that match, or adapters."""
    name = "small-cnn" if len(shape) == 3 else "motion-cnn"
    try:
        with torch.random.fork_rng(devices=[]):
            built = Adapted(MENU[name](), train, lora).build(shape, classes)
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


def _head(shape: Shape, classes: int) -> int | None:
    return network(shape, classes, train=("dense2.*",) if len(shape) == 3 else ("dense3.*",))


_PUBLIC = "[data]\nserver_validation = 0.1  # public images, at the server\n"
_NETWORK = f'{_PUBLIC}\n[model]\nuse = "small-cnn"\npretrain = true\n'


def _scattering(scales: int) -> Arm:
    features = f'features = {{ use = "scattering", scales = {scales}, directions = 4, normalise = "public" }}'
    values = partial(scattered, scales=scales, directions=4)
    lines = f'{_PUBLIC}{features}\n\n[model]\nuse = "linear"'
    return Arm(f"scattering ({scales} scales), linear head", values, lines, linear=True)


ARMS: tuple[Arm, ...] = (
    Arm("a small network", network, '[model]\nuse = "small-cnn"  # signals: "motion-cnn"'),
    Arm(
        "adapters of rank 2, network from public data",
        partial(network, lora=Lora(2)),
        f"{_NETWORK}lora = {{ rank = 2 }}",
    ),
    Arm("last layer, network from public data", _head, f'{_NETWORK}train = ["dense2.*"]', linear=True),
    _scattering(3),
    _scattering(4),
)
"""What the study `frontier` measures; `leakline check` counts what is trained of a network of one's own."""
