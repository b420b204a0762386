"""Local training: the plan, and the loop that carries it out.

`train` is the plain loop over mini-batches. `train_together` runs the same steps for many small clients at once by
vectorising over them; it is several times faster where a client is too small to keep a core busy, and agrees with
the plain loop to rounding.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from leakline.bench.batch_last import BatchLast, known
from leakline.bench.optimisers import Adam, Sgd, Steps
from leakline.data.base import Data
from leakline.errors import StackError
from leakline.mechanisms.augment import moved_images
from leakline.randomness import Stream
from leakline.settings import setting
from leakline.weights import Weights, digest_of, read, write

Gradient = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Fills the parameters' ``grad`` from one batch and returns the loss."""
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """The local recipe of a client.

    ``proximal`` is FedProx's mu. ``decay_every`` rounds the learning rate is multiplied by ``decay`` (0: never).
    ``max_steps`` ends a client's turn early (0: never); with ``batch = 0`` a batch is all of a client's data.
    ``amsgrad``: Adam divides by the largest second moment so far (Reddi et al. 2018). ``augment``: "affine" trains on
    another version of every image in every step (`mechanisms.augment`), drawn for each (seed, round, client).
    """

    epochs: int = 1
    batch: int = 32
    learning_rate: float = 0.01
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_every: int = 0
    decay: float = 0.1
    proximal: float = 0.0
    drop_last: bool = False
    max_steps: int = 0
    amsgrad: bool = setting(False, quiet=True)
    augment: Literal["none", "affine"] = setting("none", quiet=True)

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive: {getattr(self, name)}")
        for name in ("batch", "momentum", "weight_decay", "decay_every", "proximal", "max_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)}")
        if self.amsgrad and self.optimiser != "adam":
            raise ValueError(f'amsgrad is a kind of Adam: set optimiser = "adam", not {self.optimiser!r}')

    def check_augment(self, shape: Sequence[int], where: str) -> None:
        """Refuse to move what is no image."""
        if self.augment != "none" and len(shape) != 3:
            raise StackError(
                f"inputs of shape {tuple(shape)} are no images", f"augment = {self.augment!r} of {where}",
                'set augment = "none"',
            )  # fmt: skip

    def rate(self, index: int) -> float:
        """The learning rate of round ``index``."""
        return self.learning_rate * (self.decay ** (index // self.decay_every) if self.decay_every else 1.0)

    def batches(self, examples: int, stream: Stream) -> Iterator[Tensor]:
        """The rows of each step: a fresh permutation every epoch."""
        size = min(self.batch or examples, examples)
        steps = 0
        generator = stream.torch()
        for _ in range(self.epochs):
            order = torch.randperm(examples, generator=generator)
            for rows in torch.split(order, size):
                if self.drop_last and len(rows) < size:
                    continue
                yield rows
                steps += 1
                if steps == self.max_steps:
                    return

    def steps_of(self, examples: int) -> int:
        """How many steps a turn has."""
        size = min(self.batch or examples, examples)
        each = examples // size if self.drop_last else -(-examples // size)
        return min(self.epochs * each, self.max_steps or self.epochs * each)

    def optimiser_for(self, parameters: Sequence[Tensor], index: int) -> Steps:
        """A fresh optimiser: its state does not outlive the round."""
        rate = self.rate(index)
        plain = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters)
        if self.optimiser == "adam":
            if plain:
                return Adam(parameters, rate, self.weight_decay, self.amsgrad)
            fused = all(p.dtype == torch.float32 for p in parameters)
            return torch.optim.Adam(
                parameters, lr=rate, weight_decay=self.weight_decay, amsgrad=self.amsgrad, fused=fused
            )
        if plain:
            return Sgd(parameters, rate, self.momentum, self.weight_decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Job:
    """One piece of local training: from these weights, on these data, with this stream of batches."""

    start: Weights
    data: Data
    stream: Stream
    index: int
    """The round, for the learning-rate schedule."""


@dataclass(frozen=True)
class Trained:
    """What local training came to."""

    change: Weights
    steps: int
    loss: float


def takes_channels_last(model: nn.Module, shape: Sequence[int] = ()) -> bool:
    """Whether a network's images are laid out channels-last: a tenth faster on CPUs, much faster on some GPUs.

    Not where a strided 1x1 convolution has fewer than 8 input channels: oneDNN's backward pass for AVX2 (torch 2.13)
    writes beyond its buffers there, and the process dies of it sooner or later. And not where the network means
    something else by it (``x.view(-1, n)`` behind a convolution, or memory that it reads in an order of its own): with
    the ``shape`` of an input both layouts are tried, and must give the same outputs and the same gradients.
    A network that cannot be tried is taken to do as most do.
    """
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if not convolutions or any(
        m.kernel_size == (1, 1) and m.stride != (1, 1) and m.in_channels < 8 for m in convolutions
    ):
        return False
    if len(shape) != 3 or (plain := _tried(model, shape)) is None:
        return True
    last = _tried(model, shape, torch.channels_last)
    return last is not None and all(
        a.shape == b.shape and bool((a - b).norm() <= SAME * a.norm() + 1e-12) for a, b in zip(plain, last, strict=True)
    )


SAME = 1e-2
"""Two layouts add up in another order, so numbers differ by roundings; a network that means another pixel differs by
as much as there is."""


def _tried(
    model: nn.Module, shape: Sequence[int], layout: torch.memory_format = torch.contiguous_format
) -> list[Tensor] | None:
    """Outputs and gradients of two images of this layout; None where they do not go through. The network stays as is.

    Gradients are one vector: some (a bias before a normalisation) are nothing but roundings by themselves.
    """
    training = [(layer, layer.training) for layer in model.modules()]
    wanted = [p for p in model.parameters() if p.requires_grad]
    pixels = torch.linspace(-1.0, 1.0, 2 * math.prod(shape), device=next(model.parameters()).device)
    x = pixels.sin_().view(2, *shape).contiguous(memory_format=layout)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            outputs = model.eval()(x)
            slopes = torch.autograd.grad(outputs.square().sum(), wanted, allow_unused=True) if wanted else ()
    except Exception:
        return None
    finally:
        for layer, mode in training:
            layer.training = mode
    return [outputs.detach(), torch.cat([torch.zeros(0), *(s.flatten() for s in slopes if s is not None)])]


MOST_POSITIONS = 2048
"""Up to so many positions (examples of a batch times pixels) a step of a convolutional network is faster with all
clients in one pass. Vectorised over clients a convolution becomes a grouped one, and beyond this that costs up to 2.4
times as much as client by client: measured in benchmarks/together.py. Part of the arithmetic, so not a setting."""

SHORT = 4
"""Up to so many steps a turn is short. Part of the arithmetic, so not a setting."""
LARGE = 30_000
"""From so many values of a model on, a pass over few clients gains too little to pay for itself."""


class Bench:
    """A model on a device, ready to be trained from any weights. One per process; it holds no client's data."""

    def __init__(self, model: nn.Module, loss: Loss, device: str = "cpu", shape: Sequence[int] = ()) -> None:
        self.device = torch.device(device)
        self.images = takes_channels_last(model, shape)
        self.model = model.to(self.device)
        if self.images:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss, self.shape = loss, tuple(shape)
        self.initial = read(self.model)
        self.constants = digest_of(self.model)
        self.random = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in model.modules())
        self.mixes = any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())
        convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules())
        self.positions = math.prod(shape[1:]) if convolves and shape else 0
        """Where a convolution looks at one input; 0 for networks without convolutions."""

    def check_constants(self) -> None:
        """Refuse to go on if something moved that is not trained."""
        if self.constants and digest_of(self.model) != self.constants:
            raise StackError("a part of the model that is frozen has changed", "local training", "mend its forward")

    def inputs(self, data: Data, rows: Tensor | slice) -> Tensor:
        """Inputs of a batch on the device."""
        x = data.inputs(rows).to(self.device)
        return x.contiguous(memory_format=torch.channels_last) if self.images and x.dim() == 4 else x

    def targets(self, data: Data, rows: Tensor | slice) -> Tensor:
        """Targets of a batch on the device."""
        return data.y[rows].to(self.device)

    @cached_property
    def batch_last(self) -> BatchLast | None:
        """The network with the examples of a batch last, where it is plain enough for that."""
        return BatchLast(self.model, self.loss, self.shape) if known(self.model, self.shape) else None

    def outputs(self, weights: Weights, data: Data, rows: slice = slice(None), batch: int = 128) -> Tensor:
        """The model's outputs in evaluation mode, on the CPU."""
        write(self.model, weights)
        self.model.eval()
        start, stop, _ = rows.indices(len(data))
        with torch.inference_mode():
            parts = [
                self.model(self.inputs(data, slice(at, min(at + batch, stop)))).cpu()
                for at in range(start, stop, batch)
            ]
        return torch.cat(parts) if parts else torch.zeros(0)


def train(
    bench: Bench, job: Job, plan: Plan, gradient: Gradient | None = None, batches: Iterator[Tensor] | None = None
) -> Trained:
    """Train from ``job.start`` and return the change.

    ``gradient`` replaces the ordinary backward pass, ``batches`` the plan's (DP-SGD does both). FedProx's term is
    added as its gradient, mu (w - w_start), which is the derivative of (mu/2)||w - w_start||^2.
    """
    model = bench.model
    write(model, job.start)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in parameters] if plan.proximal else []
    optimiser = plan.optimiser_for(parameters, job.index)
    total, steps = torch.zeros((), device=bench.device), 0
    versions = replace(job.stream, purpose=job.stream.purpose + "/augment").torch() if plan.augment != "none" else None
    with torch.random.fork_rng(devices=[], enabled=bench.random):
        if bench.random:
            torch.manual_seed(replace(job.stream, purpose=job.stream.purpose + "/dropout").integer())
        for rows in plan.batches(len(job.data), job.stream) if batches is None else batches:
            optimiser.zero_grad(set_to_none=True)
            x, y = bench.inputs(job.data, rows), bench.targets(job.data, rows)
            if versions is not None:
                x, y = moved_images(x, y, versions)
                x = x.contiguous(memory_format=torch.channels_last) if bench.images else x
            if gradient is None:
                value = bench.loss(model(x), y)
                value.backward()  # type: ignore[no-untyped-call]
            else:
                value = gradient(model, x, y)
            for parameter, origin in zip(parameters, anchor, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - origin, alpha=plan.proximal)
            optimiser.step()
            total += value.detach()
            steps += 1
    optimiser.zero_grad(set_to_none=True)  # as large as the model, and of no use to anybody from here on
    trained = read(model).vector.sub_(job.start.vector)
    return Trained(job.start.like(trained), steps, float(total) / max(steps, 1))


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
