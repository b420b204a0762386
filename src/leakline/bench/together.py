"""The same steps as `training.train`, for many small clients at once, by vectorising over them.

Several times faster where a client is too small to keep a core busy; agrees with the plain loop to rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from leakline.bench.optimisers import Steps
from leakline.bench.training import Bench, Job, Plan, Trained

MOST_POSITIONS = 2048
"""Up to so many positions (examples of a batch times pixels) a step of a convolutional network is faster with all
clients in one pass. Vectorised over clients a convolution becomes a grouped one, and beyond this that costs up to 2.4
times as much as client by client: measured in benchmarks/together.py. Part of the arithmetic, so not a setting."""

SHORT = 4
"""Up to so many steps a turn is short. Part of the arithmetic, so not a setting."""
LARGE = 30_000
"""From so many values of a model on, a pass over few clients gains too little to pay for itself."""


def fits_together(bench: Bench, plan: Plan, examples: int) -> bool:
    """Whether `train_together` computes the same as `train` for clients of so many examples, and is worth it.

    Dropout and versions of images draw from one stream per client, and BatchNorm keeps running statistics: none
    survives being vectorised over clients unchanged. Large models fill a core by themselves, and so do convolutions
    over many positions (`MOST_POSITIONS`).
    """
    same = not bench.random and not bench.mixes and bench.device.type == "cpu" and plan.augment == "none"
    step = min(plan.batch or examples, examples) * bench.positions
    return same and bench.initial.layout.size <= 200_000 and step <= MOST_POSITIONS


def fewest(bench: Bench) -> int:
    """How many clients a vectorised pass must have to be worth it: measured in benchmarks/together.py.

    It has a price of its own in each step, that of several clients' steps; less for convolutions, of which a step alone
    has more parts. Part of the arithmetic, so not a setting.
    """
    if bench.initial.layout.size > LARGE:
        return 8
    return 4 if bench.positions else 6


def alike(sizes: Sequence[int], plan: Plan) -> bool:
    """Whether clients have equally many examples, or as nearly so as an even share allows, and take as many steps."""
    least, most = min(sizes), max(sizes)
    return least == most or most - least == 1 <= least and plan.steps_of(most) == plan.steps_of(least)


def train_together(bench: Bench, jobs: Sequence[Job], plan: Plan) -> list[Trained]:
    """`train` for clients that are `alike`, all at once.

    Weights get a leading axis for the client; one vmap computes every client's loss, and since no weight of one enters
    the loss of another, the gradient of their sum is each client's own. The first step starts from one common model,
    where a vmap over the data alone is cheaper still: worth it in turns that are `short`. Optimisers act entry by
    entry, so torch's own serve for the stack as they do for one model.
    """
    model, layout, n = bench.model.train(), bench.initial.layout, len(jobs)
    if not alike([len(job.data) for job in jobs], plan):
        raise ValueError("clients trained together need equally many examples, give or take one, and steps")
    names = [entry.name for entry in layout.entries]

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return bench.loss(functional_call(model, weights, (x,)), y)

    common = all(job.start.vector is jobs[0].start.vector for job in jobs)
    shared = dict(zip(names, (values for _, values in jobs[0].start.layers()), strict=True))
    stack: dict[str, Tensor] = {}
    optimiser: Steps | None = None
    total, steps = torch.zeros(n), 0
    for rows in zip(*(plan.batches(len(job.data), job.stream) for job in jobs), strict=True):
        batches = _by_width(bench, jobs, rows)
        first = steps == 0
        if first and common and short(plan, len(jobs[0].data)) and len(batches) == 1:
            gradients, values = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(shared, *batches[0][1:])
        else:
            stack = stack or _stacked(jobs, names)
            gradients, values = _gradients(loss, stack, batches)
        if first and common and _one_plain_step(plan, len(jobs[0].data)):
            flat = torch.cat([gradients[name].reshape(n, -1) for name in names], dim=1)
            flat.mul_(-plan.rate(jobs[0].index))
            return [Trained(job.start.like(flat[i]), 1, float(values[i])) for i, job in enumerate(jobs)]
        stack = stack or _stacked(jobs, names)
        for name in names:
            stack[name].grad = gradients[name]
            if plan.proximal and not first:
                anchor = torch.stack([job.start[name] for job in jobs])
                stack[name].grad.add_(stack[name] - anchor, alpha=plan.proximal)  # type: ignore[union-attr]
        optimiser = optimiser or plan.optimiser_for(list(stack.values()), jobs[0].index)
        optimiser.step()
        total += values
        steps += 1
    stack = stack or _stacked(jobs, names)
    flat = torch.cat([stack[name].reshape(n, -1) for name in names], dim=1)
    return [
        Trained(job.start.like(flat[i] - job.start.vector), steps, float(total[i]) / max(steps, 1))
        for i, job in enumerate(jobs)
    ]


_Batch = tuple[Tensor, Tensor, Tensor]
"""Which clients, and their inputs and targets of a step, stacked."""


def _by_width(bench: Bench, jobs: Sequence[Job], rows: Sequence[Tensor]) -> list[_Batch]:
    """A step's batches, those of one width stacked: all of them, or two where the last of an epoch differ by one."""
    batches = []
    for width in sorted({len(r) for r in rows}):
        chosen = [i for i, r in enumerate(rows) if len(r) == width]
        x = torch.stack([bench.inputs(jobs[i].data, rows[i]) for i in chosen])
        y = torch.stack([bench.targets(jobs[i].data, rows[i]) for i in chosen])
        batches.append((torch.tensor(chosen), x, y))
    return batches


def _gradients(
    loss: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor], stack: dict[str, Tensor], batches: Sequence[_Batch]
) -> tuple[dict[str, Tensor], Tensor]:
    """Every client's gradient, stacked like its weights, and its loss."""
    leaves = {name: values.detach().requires_grad_() for name, values in stack.items()}
    if len(batches) == 1:
        values = vmap(loss)(leaves, *batches[0][1:])
    else:
        parts = [vmap(loss)({k: v[chosen] for k, v in leaves.items()}, x, y) for chosen, x, y in batches]
        values = torch.cat(parts)[torch.cat([chosen for chosen, _, _ in batches]).argsort()]
    return each_gradient(values, leaves), values.detach()


def each_gradient(values: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of each client's own loss, stacked like the weights, where no weight enters two clients' losses."""
    gradients = torch.autograd.grad(values.sum(), list(leaves.values()))
    # Laid out like the weights: a fused optimiser walks through both in the order of memory.
    return {name: gradient.contiguous() for name, gradient in zip(leaves, gradients, strict=True)}


def short(plan: Plan, examples: int) -> bool:
    """Whether a turn has so few steps that the first is worth a way of its own, for which torch loads its compiler."""
    return plan.steps_of(examples) <= SHORT


def load_vmap(plan: Plan, examples: int) -> None:
    """Let torch load now what it loads at the first vmap, which takes a second or more."""
    vmap(nn.functional.cross_entropy)(torch.zeros(1, 1, 2), torch.zeros(1, 1, dtype=torch.long))
    if short(plan, examples):
        importlib.import_module("torch._dynamo")


def _stacked(jobs: Sequence[Job], names: Sequence[str]) -> dict[str, Tensor]:
    # Plain tensors: a graph hanging on ``.grad`` would never be freed.
    return {name: torch.stack([job.start[name] for job in jobs]) for name in names}


def _one_plain_step(plan: Plan, examples: int) -> bool:
    """Whether the whole turn is a single step of plain SGD, so that the update is -rate * gradient."""
    return plan.optimiser == "sgd" and not plan.weight_decay and plan.steps_of(examples) == 1
