"""Small clients of unequal size, trained together: short batches are padded, and what is padding has no weight.

The same steps as `bench.training.train` client by client, to rounding. It pays where a client is too small to keep
a core busy; `share_of_padding` says how much of the work would be wasted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakline.bench.together import each_gradient, fits_together
from leakline.bench.training import Bench, Job, Plan, Trained
from leakline.data.base import Data

MOST_PADDING = 0.25
"""Above this share of padding, clients are grouped no further. Part of the arithmetic, so not a setting."""
MOST_WORK = 200_000
"""Above so many values of the model times examples of a batch, a step keeps a core busy by itself and grouping costs
more than it saves: measured in benchmarks/fedper.py."""
GROUP = 12
"""How many clients of unequal size train in one pass: small enough for two cores to share two dozen clients."""


def fits_ragged(bench: Bench, plan: Plan, sizes: Sequence[int]) -> bool:
    """Whether clients of these sizes are better trained together than one by one, and to the same result."""
    width = min(plan.batch or max(sizes), max(sizes))
    small = bench.initial.layout.size * width <= MOST_WORK and len(sizes) <= GROUP and min(sizes) > 0
    return small and fits_together(bench, plan, max(sizes)) and share_of_padding(sizes, plan) <= MOST_PADDING


def share_of_padding(sizes: Sequence[int], plan: Plan) -> float:
    """How much of the work of a group is done for nothing: 0 for clients of one size, towards 1 for very unequal."""
    steps, widths, real = [], [], 0
    for n in sizes:
        width = min(plan.batch or n, n)
        per_epoch = n // width if plan.drop_last else -(-n // width)
        count = min(plan.epochs * per_epoch, plan.max_steps or plan.epochs * per_epoch)
        steps.append(count)
        widths.append(width)
        real += min(count * width, plan.epochs * n)
    done = max(steps) * max(widths) * len(sizes)
    return 1 - real / done if done else 0.0


def train_ragged(bench: Bench, jobs: Sequence[Job], plan: Plan) -> list[Trained]:
    """`train` for clients of any sizes, all at once.

    The loss of a batch is the mean over its examples (an `Objective` says so), so it may be taken example by example
    and weighted: 1 / size for an example, 0 for padding. A client whose steps are over is read off at that moment;
    the steps that the stack goes on to take in its place are thrown away.
    """
    model, n = bench.model.train(), len(jobs)
    names = [entry.name for entry in bench.initial.layout.entries]
    batches = [list(plan.batches(len(job.data), job.stream)) for job in jobs]
    lengths = [len(own) for own in batches]
    stack = {name: torch.stack([job.start[name] for job in jobs]) for name in names}
    anchor = {name: values.clone() for name, values in stack.items()} if plan.proximal else {}
    optimiser = plan.optimiser_for(list(stack.values()), jobs[0].index)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = functional_call(model, weights, (x,))
        each: Tensor = vmap(lambda out, target: bench.loss(out[None], target[None]))(outputs, y)
        return (each * share).sum()

    inputs, targets = _padded([job.data.x for job in jobs]), _padded([job.data.y for job in jobs])
    losses = vmap(loss)
    total, finals = torch.zeros(n), [job.start.vector for job in jobs]
    for step in range(max(lengths)):
        rows = [own[step] if step < len(own) else None for own in batches]
        index, share = _index(rows)
        place = torch.arange(n)[:, None]
        x = Data(inputs[place, index].flatten(0, 1), targets[place, index].flatten(0, 1))
        whole = bench.inputs(x, slice(None))
        leaves = {name: weights.detach().requires_grad_() for name, weights in stack.items()}
        values = losses(leaves, whole.reshape(n, -1, *whole.shape[1:]), x.y.reshape(n, -1, *x.y.shape[1:]), share)
        gradients = each_gradient(values, leaves)
        for name in names:
            stack[name].grad = gradients[name]
            if plan.proximal:
                stack[name].grad.add_(stack[name] - anchor[name], alpha=plan.proximal)  # type: ignore[union-attr]
        optimiser.step()
        total += values.detach() * torch.tensor([float(r is not None) for r in rows])
        for i, length in enumerate(lengths):
            if length == step + 1:
                finals[i] = torch.cat([stack[name][i].flatten() for name in names])
    return [
        Trained(job.start.like(final - job.start.vector), length, float(total[i]) / max(length, 1))
        for i, (job, final, length) in enumerate(zip(jobs, finals, lengths, strict=True))
    ]


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Stacked along a new first axis, short ones filled up with zeros."""
    stacked = parts[0].new_zeros((len(parts), max(len(p) for p in parts), *parts[0].shape[1:]))
    for i, part in enumerate(parts):
        stacked[i, : len(part)] = part
    return stacked


def _index(rows: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Row numbers client x batch, and each one's share in its client's mean; padding points to row 0 with share 0."""
    width = max(len(r) for r in rows if r is not None)
    index, share = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width)
    for i, own in enumerate(rows):
        if own is not None and len(own):
            index[i, : len(own)] = own
            share[i, : len(own)] = 1 / len(own)
    return index, share
