"""Local training: the plan, and the plain loop over mini-batches that carries it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

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
