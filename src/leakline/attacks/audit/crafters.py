"""Crafters: each makes two inputs that a mechanism should not let anybody tell apart.

`canary` is the worst case for a mechanism, without a model. The six of paper 002, Section 3.4 need one: a `Scene` is
a global model, two images of different labels, and how to differentiate the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from leakline.privacy import Adjacency
from leakline.weights import Layout, Weights

SIZE = 1000.0
"""Length of a canary: beyond any clip bound, so that a clip which is missing shows."""


@dataclass(frozen=True)
class Pair:
    """Two inputs of one mechanism: what the client sends in world 0 and in world 1."""

    name: str
    zero: Tensor
    one: Tensor

    @property
    def direction(self) -> Tensor:
        """Unit vector from the first input to the second, float64; zeros where they are equal."""
        apart = (self.one - self.zero).double()
        length = float(torch.linalg.vector_norm(apart))
        return apart / length if length else apart

    @property
    def cosine(self) -> float:
        """Of the angle between the inputs; 1 where one of them is zero."""
        a, b = self.zero.double(), self.one.double()
        lengths = float(torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))
        return max(-1.0, min(1.0, float(a @ b) / lengths)) if lengths else 1.0


Where = Literal["everywhere", "buffers", "one value"]


def canary(
    layout: Layout, adjacency: Adjacency = Adjacency.ADD_REMOVE, where: Where = "everywhere", size: float = SIZE
) -> Pair:
    """A vector that is there or not (add-remove, zero-out), or points one way or the other (replace-one).

    ``where``: spread over all entries, in the buffers only (statistics that a defence may have forgotten), or in
    a single value beside small ones (which a scale taken from the update's own percentile does not notice).
    """
    one = torch.zeros(layout.size)
    if where == "one value":
        one += 1.0
        one[0] = size
        return Pair(f"canary in {where}", torch.ones(layout.size), one)
    chosen = [e for e in layout.entries if e.buffer or where == "everywhere"]
    if not chosen:
        raise ValueError("this layout has no buffers")
    for entry in chosen:
        one[layout.slices[entry.name]] = 1.0
    one *= size / float(one.norm())
    zero = -one if adjacency is Adjacency.REPLACE_ONE else torch.zeros(layout.size)
    return Pair("canary" if where == "everywhere" else f"canary in {where}", zero, one)


@dataclass(frozen=True)
class Scene:
    """What an adversary of paper 002 has: the model's function and weights, and two images with their labels."""

    model: nn.Module = field(repr=False)
    loss: Callable[[Tensor, Tensor], Tensor] = field(repr=False)
    weights: Weights
    x1: Tensor
    y1: Tensor
    x2: Tensor
    y2: Tensor
    bound: float = 1.0
    """The clip bound L."""

    def value(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """f(x; theta)."""
        layout = self.weights.layout
        parts = {e.name: vector[layout.slices[e.name]].view(e.shape) for e in layout.entries}
        return self.loss(functional_call(self.model, parts, (x,)), y)

    def gradient(self, x: Tensor, y: Tensor, vector: Tensor | None = None) -> Tensor:
        """Gradient of f(x; theta) with respect to theta."""
        found: Tensor = grad(self.value)(self.weights.vector if vector is None else vector, x, y)
        return found.detach()


def benign(scene: Scene) -> Pair:
    """Two images, two gradients, no malice."""
    return Pair("benign", scene.gradient(scene.x1, scene.y1), scene.gradient(scene.x2, scene.y2))


def input_perturbation(scene: Scene, alpha: float = 1.0) -> Pair:
    """x2 = x1 + alpha sgn(grad_x f(x1)): FGSM (Goodfellow et al. 2015), not clamped to the range of images."""
    slope = grad(scene.value, argnums=1)(scene.weights.vector, scene.x1, scene.y1)
    moved = scene.x1 + alpha * slope.sign()
    return Pair("input perturbation", scene.gradient(scene.x1, scene.y1), scene.gradient(moved, scene.y1))


def parameter_retrogression(scene: Scene, alpha: float = 1.0) -> Pair:
    """The second gradient is taken at theta + alpha grad f(x1; theta), where x1 is fitted worse."""
    first = scene.gradient(scene.x1, scene.y1)
    worse = scene.weights.vector + alpha * first
    return Pair("parameter retrogression", first, scene.gradient(scene.x1, scene.y1, worse))


def gradient_flip(scene: Scene) -> Pair:
    """g2 = -g1."""
    first = scene.gradient(scene.x1, scene.y1)
    return Pair("gradient flip", first, -first)


def collusion(scene: Scene, malicious: Weights) -> Pair:
    """The server sends a model trained on one label; x1 has another label, so its gradient is long. Then flip."""
    return replace(gradient_flip(replace(scene, weights=malicious)), name="collusion")


def dummy_gradient(size: int, bound: float, ratio: float = 1.0) -> Pair:
    """All entries lambda = ratio L / sqrt(d), and its flip; ratio < 1 is Figure 3's sweep."""
    first = torch.full((size,), ratio * bound / math.sqrt(size))
    return Pair("dummy gradient", first, -first)


SIX = (
    "benign",
    "input perturbation",
    "parameter retrogression",
    "gradient flip",
    "collusion",
    "dummy gradient",
)
"""Table 1 of paper 002, weakest first."""


def craft(name: str, scene: Scene, malicious: Weights) -> Pair:
    """One of the six by name."""
    if name == "collusion":
        return collusion(scene, malicious)
    if name == "dummy gradient":
        return dummy_gradient(scene.weights.layout.size, scene.bound)
    makers: dict[str, Callable[[Scene], Pair]] = {
        "benign": benign,
        "input perturbation": input_perturbation,
        "parameter retrogression": parameter_retrogression,
        "gradient flip": gradient_flip,
    }
    return makers[name](scene)
