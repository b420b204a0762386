"""What is worth trying first, and what cannot work: from sizes alone, before anything is trained.

Over a whole training the noise that a promise asks for has a length that sizes decide. T releases of a sum of n units,
each clipped to C, that are together mu-GDP carry noise of std sqrt(T) C / mu each; the mean over the releases of what
is divided by n is then, in length,

    noise / signal >= sqrt(p) s / (n mu)        p  values that are trained (and so noised)
                                                mu what epsilon and delta allow (`gdp_mu`)
                                                s  1 where noise is added once to the sum of all clients, sqrt(N) where
                                                   each of N adds all of its own, sqrt(N / (N - 1)) where they share it
                                                   out and one of them may tell its part

because no mean of clipped vectors is longer than C. Neither C, nor T, nor (for many small releases) the sampling rate
is in it. It is the best case: real gradients disagree, and their mean is shorter.

A linear head on fixed features bears more: an input meets the noise along itself alone, as if p were 1. So a head
whose noise is longer than its signal is not lost, as a network is, but nothing says either that it is worth much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakline.data.base import Task
from leakline.decide.arms import Arm, Shape, UnitName, arms
from leakline.errors import LeaklineError
from leakline.privacy.gdp import gdp_mu

WORTH, HOPELESS = 0.1, 1.0
"""Noise to signal up to which something is worth trying first, and from which on the noise of a whole training is
longer than anything it could have learned. The second is arithmetic, the first a rule (docs/what-to-use.md)."""
FEWEST_SUMMED = 3
"""Clients from which on a sum says nothing certain of one of them to another."""
FIRST, PERHAPS, DROWNED = "worth trying first", "may work", "noise drowns it"


@dataclass(frozen=True)
class Case:
    """The sizes that matter; ``called``: what the data call a unit (a patient may be a recording)."""

    unit: UnitName
    units: int
    clients: int
    shape: Shape
    classes: int
    epsilon: float
    delta: float
    records: int
    called: str = ""

    @property
    def mu(self) -> float:
        """What the promise allows, as one number."""
        return gdp_mu(self.epsilon, self.delta)

    @property
    def name(self) -> str:
        """What a unit is called."""
        return self.called or self.unit


@dataclass(frozen=True)
class Way:
    """Where the noise is added, and how much louder that makes it than one noise for all."""

    defence: str
    louder: float
    needs: str = ""


@dataclass(frozen=True)
class Outlook:
    """One arm under one way of adding noise: its noise over its signal, and as much of that as an input meets."""

    arm: Arm
    way: Way
    ratio: float
    met: float

    @property
    def verdict(self) -> str:
        """In words. First comes only what has less noise than signal, however little of it an input meets."""
        if self.met >= HOPELESS:
            return DROWNED
        return FIRST if self.met <= WORTH and self.ratio <= HOPELESS else PERHAPS


def case_of(task: Task, unit: UnitName, epsilon: float, delta: float) -> Case:
    """The sizes of a task; refused where its unit is not known."""
    records = sum(len(c.train) for c in task.clients)
    units = {"record": records, "patient": task.groups, "client": len(task.clients)}[unit]
    if units is None:
        raise LeaklineError(
            "there are no patients to count: nobody says whose a record is",
            task.name,
            "give the data patients (docs/own-data.md), or ask for --unit record",
        )
    called = task.group if unit == "patient" else ""
    return Case(unit, units, len(task.clients), task.shape, len(task.classes), epsilon, delta, records, called)


def ways(case: Case) -> list[Way]:
    """Where noise can be added for a unit, the least of it first."""
    each = math.sqrt(case.clients)
    if case.unit == "client":
        return [
            Way("global-dp", 1.0, "a server that is trusted with single updates"),
            Way("gaussian-release", each),
        ]
    alone = [Way("dp-sgd", each)]
    if case.clients < FEWEST_SUMMED:
        return alone
    shared = each / math.sqrt(case.clients - 1)
    return [Way("distributed-dp", shared, "secure aggregation: a server that sees only the sum"), *alone]


def ratio(met: int, louder: float, case: Case) -> float:
    """Noise over the longest possible signal, where so many noised values are met: the equations at the top."""
    return math.sqrt(met) * louder / (case.units * case.mu)


def outlooks(case: Case) -> list[Outlook]:
    """Every arm that fits the task under every way, the best first."""
    found = []
    for arm in arms(case.shape, case.classes, case.unit):
        for way in ways(case):
            met = ratio(1 if arm.linear else arm.values, way.louder, case)
            found.append(Outlook(arm, way, ratio(arm.values, way.louder, case), met))
    order = (FIRST, PERHAPS, DROWNED)
    return sorted(found, key=lambda outlook: (order.index(outlook.verdict), outlook.ratio))


def most_values(case: Case, way: Way) -> int:
    """How many values may be trained before noise is as long as any signal can be: `ratio`, turned round."""
    return math.floor((HOPELESS / ratio(1, way.louder, case)) ** 2)


def units_needed(outlook: Outlook, case: Case) -> int:
    """How many units would make this worth trying first."""
    return math.ceil(case.units * max(outlook.met / WORTH, outlook.ratio / HOPELESS))


def stack_of(outlook: Outlook, case: Case) -> str:
    """The defence as a study file says it."""
    arm, name = outlook.arm, outlook.way.defence
    told = f'use = "{name}", epsilon = {case.epsilon:g}, delta = {case.delta:g}, clip = {arm.clip}'
    if case.unit == "patient":
        told += ', unit = "patient"'
    if name == "distributed-dp":
        told += f", rate = 1.0, planned = {round(case.units / case.clients)}, clients = {case.clients}"
    elif name == "dp-sgd" and arm.rate < 1:
        told += f", rate = {arm.rate}"
    return f"wanted = [{{ {told} }}]"
