"""The client's local training as a differentiable function of its images.

What a client does, W_{k+1} = W_k - eta d(g(W_k; x_k, y_k)), is repeated here out of place, keeping the graph, so that
the mismatch between a simulated and an observed update has a gradient with respect to the pixels. (The attack that
paper 001 released differences state dicts after in-place steps: its matching term has no gradient at all.)

The direction d of plain SGD is g itself; of Adam, with its state from zero at the turn's begin,

    d_t = (m_t / (1 - b1^t)) / (sqrt(v_t / (1 - b2^t)) + eps)      m_t, v_t  running means of g and of g^2

and with AMSGrad the largest v so far stands for v_t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call

from leakline.attacks.inversion.statistics import running
from leakline.attacks.inversion.twin import Seen, Twin
from leakline.bench.training import Loss, Plan
from leakline.errors import StackError

BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Adam's, as clients have them (`bench.optimisers`)."""


@dataclass(frozen=True)
class Recipe:
    """What a server believes a client did: the plan's arithmetic, the rate, and which images made each step."""

    steps: tuple[tuple[int, ...], ...]
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    clip: float = math.inf
    """The longest gradient of a single example: longer ones are scaled down before the mean is taken (DP-SGD)."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    amsgrad: bool = False

    @classmethod
    def of(cls, plan: Plan, images: int, index: int = 0, rate: float | None = None, clip: float = math.inf) -> Recipe:
        """The recipe of a plan for so many images, in their own order in every epoch.

        A client shuffles, but its images have no order of their own: in one epoch any order is as good as another.
        From the second epoch on the true batches are not known, and this order is an approximation.
        """
        if plan.augment != "none":
            raise StackError("clients train on moved versions of their images, and no turn of these is simulated")
        size = min(plan.batch or images, images)
        one = [tuple(range(at, min(at + size, images))) for at in range(0, images, size)]
        if plan.drop_last:
            one = [rows for rows in one if len(rows) == size]
        steps = tuple(one * plan.epochs)[: plan.max_steps or None]
        eta = plan.rate(index) if rate is None else rate
        return cls(steps, eta, plan.momentum, plan.weight_decay, plan.proximal, clip, plan.optimiser, plan.amsgrad)

    def direction(self, gradient: Tensor, memory: dict[str, Tensor], step: int) -> Tensor:
        """Where a step goes, in units of the rate; ``memory`` holds what the optimiser remembers of one entry."""
        if self.optimiser == "sgd":
            if self.momentum and "velocity" in memory:
                gradient = self.momentum * memory["velocity"] + gradient
            memory["velocity"] = gradient
            return gradient
        for name, beta, value in (("mean", BETAS[0], gradient), ("square", BETAS[1], gradient.square())):
            memory[name] = (1 - beta) * value + (beta * memory[name] if name in memory else 0.0)
        second = "square"
        if self.amsgrad:
            second = "largest"
            memory[second] = torch.maximum(memory.get(second, memory["square"]), memory["square"])
        mean, square = (memory[n] / (1 - b ** (step + 1)) for n, b in zip(("mean", second), BETAS, strict=True))
        # A root has no derivative at zero, where nothing is to be had from a weight that no image moves.
        live = square > 0
        return mean / (torch.where(live, square, 1.0).sqrt() * live + EPSILON)


@dataclass(frozen=True)
class Simulated:
    """A simulated turn: the change of every parameter, and what each step's forward pass showed."""

    change: Mapping[str, Tensor]
    seen: tuple[Seen, ...]
    loss: Tensor
    """The mean over steps of the training loss."""
    statistics_factor: Tensor | None = None
    """What the running averages' change was multiplied by on the way out; None: nothing was."""
    first: Mapping[str, Tensor] = field(default_factory=dict)
    """What the optimiser was given in the first step: the gradient, with weight decay."""

    def running(self, name: str, start: tuple[Tensor, Tensor], momentum: float) -> tuple[Tensor, Tensor]:
        """A normalisation layer's running mean and variance after the turn, from those before it."""
        return running([seen.moments[name] for seen in self.seen], start, momentum)


def simulate(
    twin: Twin,
    loss: Loss,
    start: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    graph: bool = True,
) -> Simulated:
    """Train ``twin`` from the parameters ``start`` on images x and labels y (classes, or probabilities).

    SGD with momentum or Adam, weight decay and FedProx's term as `bench.training.train` has them. With one step and
    plain SGD the change is -eta g(start). ``graph=False`` where only the value is wanted.
    """
    before = {name: value.detach().requires_grad_() for name, value in start.items()}
    weights: dict[str, Tensor] = before
    memory: dict[str, dict[str, Tensor]] = {name: {} for name in start}
    first: dict[str, Tensor] = {}
    seen, losses = [], []
    for step, rows in enumerate(recipe.steps):
        twin.fix(graph and step == 0)
        picked = x if len(rows) == len(x) and rows == tuple(range(len(x))) else x[list(rows)]
        value, gradients = _gradients(twin, loss, weights, picked, _rows(y, rows), recipe.clip, graph)
        seen.append(twin.seen)
        losses.append(value)
        after = {}
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            if gradient is None:
                after[name] = weight
                continue
            change = gradient
            if recipe.proximal and weight is not before[name]:
                change = change + recipe.proximal * (weight - before[name])
            if recipe.weight_decay:
                change = change + recipe.weight_decay * weight
            if step == 0:
                first[name] = change
            after[name] = weight - recipe.rate * recipe.direction(change, memory[name], step)
        weights = after if graph else {n: w.detach().requires_grad_() for n, w in after.items()}
    return Simulated(
        {name: weights[name] - before[name].detach() for name in start}, tuple(seen), torch.stack(losses).mean(),
        first=first,
    )  # fmt: skip


def _gradients(
    twin: Twin, loss: Loss, weights: Mapping[str, Tensor], x: Tensor, y: Tensor, clip: float, graph: bool
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """The loss and its gradient; under a clip the mean of examples' gradients, each at most that long.

    Examples then go one by one: a network that may be clipped so does not mix them.
    """
    named = {f"network.{n}": w for n, w in weights.items()}

    def at(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        value = loss(functional_call(twin, named, (inputs,)), targets)
        return value, torch.autograd.grad(value, list(weights.values()), create_graph=graph, allow_unused=True)

    if math.isinf(clip):
        return at(x, y)
    values: list[Tensor] = []
    sums: list[Tensor | None] = [None] * len(weights)
    for i in range(len(x)):
        value, gradients = at(x[i : i + 1], y[i : i + 1])
        square = torch.stack([g.square().sum() for g in gradients if g is not None]).sum()
        factor = (clip / square.clamp_min(1e-30).sqrt()).clamp_max(1.0) / len(x)
        values.append(value)
        sums = [
            s if g is None else (factor * g if s is None else s + factor * g)
            for s, g in zip(sums, gradients, strict=True)
        ]
    return torch.stack(values).mean(), sums


def look(twin: Twin, loss: Loss, start: Mapping[str, Tensor], x: Tensor, y: Tensor, recipe: Recipe) -> Simulated:
    """Only the forward passes of a turn, all from ``start``: for objectives that match no update, cheaply.

    Exact for the first step; later steps' statistics are those of weights that stood still.
    """
    seen, losses = [], []
    for rows in recipe.steps:
        picked = x if len(rows) == len(x) and rows == tuple(range(len(x))) else x[list(rows)]
        losses.append(
            loss(functional_call(twin, {f"network.{n}": w for n, w in start.items()}, (picked,)), _rows(y, rows))
        )
        seen.append(twin.seen)
    return Simulated({}, tuple(seen), torch.stack(losses).mean())


def _rows(y: Tensor, rows: Sequence[int]) -> Tensor:
    return y if len(rows) == len(y) and tuple(rows) == tuple(range(len(y))) else y[list(rows)]
