"""The way out of a client: a simulated turn as it would cross the wire, and how loud the noise is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakline.attacks.inversion.simulate import Recipe, Simulated
from leakline.mechanisms.treatment import Treatment
from leakline.weights import Weights


@dataclass(frozen=True)
class Crossing:
    """What a client does to its update, and what of it travels.

    ``before`` are the running means and variances that were sent, by normalisation layer whose own travel back, with
    ``momenta``; ``delta`` is the update that came.
    """

    treatment: Treatment = field(default_factory=Treatment)
    before: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    momenta: Mapping[str, float] = field(default_factory=dict)
    delta: Weights | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """How many values of parameters and of buffers travel."""
        assert self.delta is not None
        trained = sum(e.size for e in self.delta.layout.entries if not e.buffer)
        return trained, self.delta.layout.size - trained

    @property
    def needs_update(self) -> bool:
        """Whether nothing can be said of what crosses without the whole update: a clip looks at its length."""
        return self.treatment.clips

    def __call__(self, made: Simulated) -> Simulated:
        """The simulated turn after all acts on updates, less their noise."""
        if not self.treatment.updates or self.delta is None:
            return made
        trained = [made.change[e.name] for e in self.delta.layout.entries if not e.buffer]
        parameters = torch.stack([v.double().square().sum() for v in trained]).sum()
        buffers = parameters.new_zeros(())
        for name, (mean, variance) in self.before.items():
            after = made.running(name, (mean, variance), self.momenta[name])
            for old, new in zip((mean, variance), after, strict=True):
                buffers = buffers + (new - old).double().square().sum()
        first, second = self.treatment.factors(parameters, buffers, self.sizes, self.delta.vector)
        return replace(
            made, change={n: first.float() * v for n, v in made.change.items()}, statistics_factor=second.float()
        )


def noise_of(treatment: Treatment, delta: Weights, recipe: Recipe) -> tuple[float, float]:
    """The standard deviation of the noise on an update's parameters and buffers, as it crossed the wire.

    Noise on a step's mean gradient goes on in later steps under momentum m: by (1 - m^j) / (1 - m), j steps on. What
    it changes of later steps' gradients is left out.
    """
    trained = sum(e.size for e in delta.layout.entries if not e.buffer)
    first, second = treatment.stds(delta.vector, (trained, delta.layout.size - trained))
    if treatment.examples is not None and (std := treatment.examples.std(delta.vector)):
        last = len(recipe.steps)
        reach = [sum(recipe.momentum**i for i in range(last - k)) for k in range(last)]
        inner = sum((recipe.rate * far * std / len(rows)) ** 2 for far, rows in zip(reach, recipe.steps, strict=True))
        first = math.sqrt(first**2 + inner)
    return first, second
