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
    noise: tuple[float, float] = (0.0, 0.0)
    """The standard deviation of the noise on parameters and on buffers, as it crossed: see `noise_of`."""
    statistics: bool = True
    """Whether running averages count in `surprise`."""

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
        for value in self._statistics(made).values():
            buffers = buffers + value.double().square().sum()
        first, second = self.treatment.factors(parameters, buffers, self.sizes, self.delta.vector)
        return replace(
            made, change={n: first.float() * v for n, v in made.change.items()}, statistics_factor=second.float()
        )

    def surprise(self, made: Simulated, heat: float = 1.0) -> Tensor:
        """-log p(update | images) of a turn that has crossed, less its constant: sum |simulated - seen|^2 / (2 std^2).

        ``heat`` multiplies std. Where an entry has no noise, a thousandth of its own size stands for it.
        """
        assert self.delta is not None
        simulated = dict(made.change)
        factor = 1.0 if made.statistics_factor is None else made.statistics_factor
        if self.statistics:
            simulated |= {name: factor * value for name, value in self._statistics(made).items()}
        parts = []
        for entry, seen in self.delta.layers():
            if entry.name in simulated:
                least = 1e-6 * float(seen.square().mean()) + 1e-30
                variance = heat**2 * max(self.noise[entry.buffer] ** 2, least)
                parts.append((simulated[entry.name] - seen).square().sum() / (2 * variance))
        return torch.stack(parts).sum()

    @property
    def loudness(self) -> float:
        """The expected share of noise in the parameters' squared length."""
        if self.delta is None:
            return 0.0
        square = sum(float(v.double().square().sum()) for e, v in self.delta.layers() if not e.buffer)
        return self.noise[0] ** 2 * self.sizes[0] / max(square, 1e-30)

    def _statistics(self, made: Simulated) -> dict[str, Tensor]:
        """The change of the running averages that travel."""
        found = {}
        for name, pair in self.before.items():
            after = made.running(name, pair, self.momenta[name])
            for what, old, new in zip(("running_mean", "running_var"), pair, after, strict=True):
                found[f"{name}.{what}"] = new - old
        return found


def noise_of(treatment: Treatment, delta: Weights, recipe: Recipe) -> tuple[float, float]:
    """The standard deviation of the noise on an update's parameters and buffers, as it crossed the wire.

    Noise on a step's mean gradient goes on in later steps under momentum m: by (1 - m^j) / (1 - m), j steps on. What
    it changes of later steps' gradients is left out; so is all of it where Adam makes the steps, which adds nothing.
    """
    trained = sum(e.size for e in delta.layout.entries if not e.buffer)
    first, second = treatment.stds(delta.vector, (trained, delta.layout.size - trained))
    if recipe.optimiser == "sgd" and treatment.examples is not None and (std := treatment.examples.std(delta.vector)):
        last = len(recipe.steps)
        reach = [sum(recipe.momentum**i for i in range(last - k)) for k in range(last)]
        inner = sum((recipe.rate * far * std / len(rows)) ** 2 for far, rows in zip(reach, recipe.steps, strict=True))
        first = math.sqrt(first**2 + inner)
    return first, second
