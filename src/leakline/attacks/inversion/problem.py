"""One inversion as a function of one vector: unknown pixels (and labels) in, objective and gradient out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakline.attacks.inversion.canvas import Canvas
from leakline.attacks.inversion.crossing import Crossing
from leakline.attacks.inversion.objective import Evidence, Terms, mismatch
from leakline.attacks.inversion.simulate import Recipe, Simulated, look, simulate
from leakline.attacks.inversion.twin import Twin
from leakline.bench.training import Loss
from leakline.errors import StackError

MATCHING = ("update", "statistics", "exposed", "label", "likelihood")
"""The terms that must pull on the image; the others only shape it."""


@dataclass(frozen=True)
class Problem:
    """Everything that a search needs. ``labels`` are classes [N], or None: then they are searched for too.

    ``others`` are further labels that explain as much at first sight: see `search.settled`.

    ``classes`` is the number of the network's outputs. Unknown labels are softmax probabilities whose logits follow the
    canvas' unknowns in the vector.
    """

    twin: Twin
    loss: Loss
    start: Mapping[str, Tensor]
    recipe: Recipe
    evidence: Evidence
    terms: Terms
    canvas: Canvas
    classes: int
    labels: Tensor | None
    crossing: Crossing = field(default_factory=Crossing)
    others: tuple[Tensor, ...] = ()

    @property
    def size(self) -> int:
        """Number of unknowns."""
        return self.canvas.size + (0 if self.labels is not None else self.canvas.count * self.classes)

    @property
    def truth(self) -> float | None:
        """What the surprise is at the client's own images on average, where noise is weighed; else None.

        Twice the surprise is chi-square with a degree for each value that carries noise. Averaged over a posterior
        that is right it is the same: more of it, and the search fell short; less, and it fits the noise.
        """
        if not self.terms.likelihood:
            return None
        counted = zip(self.crossing.sizes, self.crossing.noise, (True, self.crossing.statistics), strict=True)
        return sum(n for n, std, counts in counted if counts and std > 0) / 2

    def images(self, unknowns: Tensor, level: float = 1.0) -> Tensor:
        """The images that the unknowns stand for."""
        return self.canvas.draw(unknowns[: self.canvas.size], level)

    def finest(self, unknowns: Tensor, level: float) -> Tensor:
        """The unknowns of the last level that stand for the same images as these do at ``level``."""
        pixels, labels = unknowns[: self.canvas.size], unknowns[self.canvas.size :]
        if self.canvas.belief is not None:
            return unknowns
        with torch.no_grad():
            return torch.cat([self.canvas.change(pixels, level).flatten(), labels])

    def targets(self, unknowns: Tensor) -> Tensor:
        """Classes [N], or probabilities [N, classes] where labels are searched for."""
        if self.labels is not None:
            return self.labels
        return torch.softmax(unknowns[self.canvas.size :].view(self.canvas.count, self.classes), dim=1)

    def terms_at(
        self, unknowns: Tensor, level: float = 1.0, beta: float = math.inf, matched: bool = True
    ) -> dict[str, Tensor]:
        """Every term of the objective, weighted, with its graph; the update's only where it is to be ``matched``."""
        terms = self.terms if matched else replace(self.terms, update=0.0)
        x, y = self.images(unknowns, level), self.targets(unknowns)
        self.twin.soften(beta)
        made: Simulated
        if terms.update or terms.likelihood or (terms.statistics and self.crossing.needs_update):
            made = self.crossing(simulate(self.twin, self.loss, self.start, x, y, self.recipe))
        else:
            made = look(self.twin, self.loss, self.start, x, y, self.recipe)
        drawn = x[:, :1] if self.canvas.shape[1] == 1 else x
        found = mismatch(terms, self.evidence, made, drawn)
        if terms.likelihood:
            found["likelihood"] = self.crossing.surprise(made, 1 / level)
        if terms.belief:
            found["belief"] = unknowns[: self.canvas.size].square().sum() / 2
        return {n: getattr(terms, n) * v for n, v in found.items()}

    def evaluate(
        self, unknowns: Tensor, level: float = 1.0, beta: float = math.inf, matched: bool = True
    ) -> tuple[float, Tensor]:
        """The objective and its gradient; infinity where it is not a number."""
        point = unknowns.detach().requires_grad_()
        value = torch.stack([*self.terms_at(point, level, beta, matched).values()]).sum()
        (slope,) = torch.autograd.grad(value, point)
        good = bool(torch.isfinite(value)) and bool(torch.isfinite(slope).all())
        return (float(value.detach()), slope) if good else (math.inf, torch.zeros_like(unknowns))

    def check_gradient(self, unknowns: Tensor) -> dict[str, float]:
        """The size of each matching term's gradient at the images; raises if one of them has none.

        A term without a gradient is a term that the attack does not use, whatever its weight: paper 001's released
        code has one.
        """
        point = unknowns.detach().requires_grad_()
        found = {}
        for name, value in self.terms_at(point).items():
            if name not in MATCHING:
                continue
            slope = (
                torch.autograd.grad(value, point, retain_graph=True, allow_unused=True)[0]
                if value.requires_grad
                else None
            )
            size = 0.0 if slope is None else float(slope[: self.canvas.size].norm())
            if not size > 0 or not math.isfinite(size):
                raise StackError(
                    f"the objective's term {name!r} carries no gradient to the image ({size:g})",
                    "gradient inversion, self-test",
                    f"give {name} the weight 0, or start from other images: the attack would not use it",
                )
            found[name] = size
        return found
