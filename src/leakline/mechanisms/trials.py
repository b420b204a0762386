"""Run a model again and again from one state, and leave no trace: random draws, buffers and attributes are put back."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakline.errors import StackError

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the mean over examples."""
_TORCHS = frozenset(vars(nn.Module())) - {"_buffers"}
"""Attributes that torch keeps in a module; the modes and hooks among them are not a forward pass's to change."""


class Trial:
    """A model and a loss, tried on chosen batches; every pass begins in the same state, under the same draws."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss = model, loss
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self._attributes = [
            (vars(layer), {name: value for name, value in vars(layer).items() if name not in _TORCHS})
            for layer in model.modules()
        ]
        values = [value for _, kept in self._attributes for value in kept.values()]
        self._bags = [(bag, copy.copy(bag)) for bag in values if isinstance(bag, dict | list | set | deque)]
        tensors = [*model.buffers(), *(value for value in values if isinstance(value, Tensor))]
        self._tensors: list[list[Any]] = [[tensor, tensor._version, tensor.detach().clone()] for tensor in tensors]

    def rewind(self, seed: int) -> None:
        """The state as it was at first, and draws from a seed."""
        for now, kept in self._attributes:
            for name in now.keys() - kept.keys() - _TORCHS:
                del now[name]
            now.update(kept)
        for bag, content in self._bags:
            bag.clear()
            (bag.update if isinstance(bag, dict | set) else bag.extend)(content)
        with torch.no_grad():
            for entry in self._tensors:
                tensor, version, value = entry
                if tensor._version != version:
                    tensor.copy_(value)
                    entry[1] = tensor._version
        torch.default_generator.manual_seed(seed)  # torch.manual_seed costs as much as a small model's pass
        if self.trained and self.trained[0].is_cuda:
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (a user's own network may draw from it)

    def outputs(self, *batches: Tensor, seed: int = 0) -> Tensor:
        """Outputs for the last of several batches, seen one after another."""
        self.rewind(seed)
        with torch.no_grad():
            for x in batches:
                out = self._outputs(x)
        return out

    def gradient(self, x: Tensor, y: Tensor, seed: int = 0) -> list[Tensor]:
        """Of the loss's sum over a batch: what the gradients of its examples should add up to."""
        self.rewind(seed)
        value = self._asked(lambda: self.loss(self._outputs(x), y), len(x))
        if not isinstance(value, Tensor) or value.dim():
            raise StackError(
                "the loss does not give one number for a batch",
                f"dp-sgd, a batch of {len(x)}",
                "return the mean over examples",
            )
        parts: list[Tensor] = self._asked(lambda: gradients(value * len(x), self.trained), len(x))
        return parts

    def _outputs(self, x: Tensor) -> Tensor:
        out = self._asked(lambda: self.model(x), len(x))
        if not isinstance(out, Tensor):
            raise StackError(f"the model returns a {type(out).__name__}", "dp-sgd", "return outputs as one tensor")
        if out.dim() == 0 or len(out) != len(x):
            raise StackError(
                f"{len(x)} examples give outputs of shape {tuple(out.shape)}: there is none for each example",
                "dp-sgd",
                "keep the examples in the first dimension, also where there is only one (squeeze(1), not squeeze())",
            )
        return out

    @staticmethod
    def _asked(what: Callable[[], Any], examples: int) -> Any:
        """A user's own network or loss may raise anything; where it does so, no record can be clipped."""
        try:
            return what()
        except StackError:
            raise
        except Exception as error:
            text = str(error).splitlines()
            raise StackError(
                f"model or loss fails on a batch of {examples}: {type(error).__name__}: {text[0] if text else ''}",
                "dp-sgd",
                "every example has to be computable by itself: try model and loss on batches of one and two",
            ) from error


def gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Of a number, as plain tensors: zeros where it does not depend on a parameter, and no sparse ones."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    parts = torch.autograd.grad(value, list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(parts, parameters, strict=True)]


@contextmanager
def trying(model: nn.Module, loss: Loss) -> Iterator[Trial]:
    """A trial; in the end everything is as it was, everybody's random state too."""
    trial = Trial(model, loss)
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices=devices):
        try:
            yield trial
        finally:
            trial.rewind(0)
            np.random.set_state(numpys)  # noqa: NPY002
            random.setstate(pythons)


@contextmanager
def evaluating(layers: Sequence[nn.Module]) -> Iterator[None]:
    """These layers as in evaluation."""
    modes = [(layer, layer.training) for layer in layers]
    try:
        for layer in layers:
            layer.training = False
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


@contextmanager
def quiet(trial: Trial, x: Tensor) -> Iterator[bool]:
    """The model with its random draws switched off, and whether that could be done: dropout first, then all of it."""
    layers = list(trial.model.modules())
    for silent in ([], [layer for layer in layers if isinstance(layer, nn.modules.dropout._DropoutNd)], layers):
        with evaluating(silent):
            first, *others = (trial.outputs(x, seed=seed) for seed in range(4))
            if all(torch.equal(first.nan_to_num(), out.nan_to_num()) for out in others):
                yield True
                return
    yield False


@contextmanager
def doubled(model: nn.Module) -> Iterator[None]:
    """The model in float64, for what rounding leaves open; its own values come back to the bit."""
    kept = [(t, t.data) for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    try:
        for tensor, values in kept:
            tensor.data = values.double()
        yield
    finally:
        for tensor, values in kept:
            tensor.data = values
