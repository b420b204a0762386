"""Pre-flight of a network: what in it will trouble training, defences or attacks, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakline.foreign import own_line

FindingKind = Literal[
    "batch-norm",
    "in-place",
    "dropout",
    "integer-buffer",
    "tied-parameters",
    "not-float32",
    "hidden-state",
    "single-example",
    "output",
    "probabilities",
]

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Finding:
    """One thing to know about one layer, and what to do about it."""

    layer_name: str
    kind: FindingKind
    message: str
    fix: str


def has_batchnorm(model: nn.Module) -> bool:
    """Whether any layer mixes the examples of a batch through BatchNorm."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def has_dropout(model: nn.Module) -> bool:
    """Whether any dropout layer is switched on. Dropout called as a function inside forward is not seen."""
    return any(isinstance(module, _DROPOUTS) and module.p > 0 for module in model.modules())


def preflight(
    model: nn.Module,
    example_shape: tuple[int, ...],
    classes: int | None = None,
    kind: Literal["classification", "segmentation"] = "classification",
) -> list[Finding]:
    """Everything worth knowing before training; an empty list is a clean bill.

    The network runs forward on a copy, so neither its state nor anybody's random state changes. With
    ``classes`` the width of the output is checked too. Only BatchNorm, wrong dtypes and the output forbid
    things; the caller decides what the rest means for its stack.
    """
    findings: list[Finding] = []
    for name, module in model.named_modules():
        findings += _module(name or "(the network)", module)
    findings += _parameters(model)
    findings += _forward(model, example_shape, classes, kind)
    return findings


def _module(name: str, module: nn.Module) -> Iterator[Finding]:
    label = type(module).__name__
    if isinstance(module, _BatchNorm):
        yield Finding(
            name,
            "batch-norm",
            f"{label} mixes the examples of a batch: no per-example sensitivity, so no record-level DP",
            'use GroupNorm (norm="group" for models of the menu), or keep the layer local (fedbn)',
        )
    if getattr(module, "inplace", False) is True:
        yield Finding(
            name,
            "in-place",
            f"{label} writes over its input, which breaks functional and per-example gradients",
            "set inplace=False",
        )
    if isinstance(module, _DROPOUTS) and module.p > 0:
        yield Finding(
            name,
            "dropout",
            f"{label}({module.p}) draws at random in training, so no update can be replayed exactly",
            "set its p to 0 where an attack or an audit must replay training",
        )
    for key, buffer in module.named_buffers(recurse=False):
        place = key if name == "(the network)" else f"{name}.{key}"
        if not buffer.is_floating_point():
            yield Finding(
                place,
                "integer-buffer",
                f"the buffer is {buffer.dtype}; it stays at home: averages and noise mean nothing for it",
                "nothing to do, unless the network needs it to be the same everywhere",
            )
        if key in module._non_persistent_buffers_set and key not in getattr(module, "fixed_buffers", ()):
            yield _hidden(place, label, "a buffer that state_dict leaves out")
    for key, value in vars(module).items():
        if isinstance(value, Tensor):
            yield _hidden(f"{name}.{key}", label, "a plain tensor attribute")


def _hidden(place: str, label: str, what: str) -> Finding:
    return Finding(
        place,
        "hidden-state",
        f"{label} keeps state in {what}: it is neither sent, nor averaged, nor saved",
        "register it with register_buffer, or recompute it in forward",
    )


def _parameters(model: nn.Module) -> Iterator[Finding]:
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first_name:
            yield Finding(
                name,
                "tied-parameters",
                f"the same parameter as {first_name[id(parameter)]}: it travels once, under that name, and "
                "per-example gradients of the two uses do not simply add up in norm",
                "give each layer its own parameter if record-level DP is wanted",
            )
            continue
        first_name[id(parameter)] = name
        if parameter.dtype != torch.float32:
            yield Finding(
                name,
                "not-float32",
                f"the parameter is {parameter.dtype}; updates travel as float32",
                "call .float() on the network, or make it a buffer if it is not to be trained",
            )


def _forward(model: nn.Module, shape: tuple[int, ...], classes: int | None, kind: str) -> Iterator[Finding]:
    trial = copy.deepcopy(model, _made_weights(model))
    device = next((parameter.device for parameter in trial.parameters()), torch.device("cpu"))
    entered = _watched(trial)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            output = trial.eval()(torch.zeros(2, *shape, device=device))
        except Exception as error:  # a user's own network may raise anything; the finding carries it
            text = str(error).splitlines()
            where = f" in layer {entered[-1]}" if entered else ""
            yield Finding(
                "(the network)",
                "output",
                f"it fails on inputs of shape {shape}{where}: {type(error).__name__}: {text[0] if text else ''}"
                + own_line(error),
                f"let it take inputs of shape (N, {', '.join(map(str, shape))}), or change the data",
            )
            return
        yield from _output(output, shape, classes, kind)
        if has_batchnorm(model):
            try:
                trial.train()(torch.zeros(1, *shape, device=device))
            except ValueError as error:
                yield Finding(
                    "(the network)",
                    "single-example",
                    f"it cannot train on a batch of one: {error}",
                    "use larger images, GroupNorm, or a batch size that never leaves one example over",
                )


def _watched(model: nn.Module) -> list[str]:
    """A list that holds, whenever the network runs, the layers that were entered and not yet left, with their input."""
    entered: list[str] = []

    def enter(name: str, module: nn.Module, given: tuple[Any, ...]) -> None:
        shapes = ", ".join(str(tuple(x.shape)) for x in given if isinstance(x, Tensor))
        entered.append(f"{name} ({type(module).__name__}, given {shapes or 'no tensor'})")

    def leave(module: nn.Module, given: Any, output: Any) -> None:
        entered.pop()

    for name, module in model.named_modules():
        if name:
            module.register_forward_pre_hook(partial(enter, name))
            module.register_forward_hook(leave)
    return entered


def _made_weights(model: nn.Module) -> dict[int, Any]:
    """For a copy: weights that a layer makes from parameters (pruning, old weight norm), which torch does not copy."""
    made = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    return {id(tensor): tensor.detach().clone() for tensor in made}


def _output(output: object, shape: tuple[int, ...], classes: int | None, kind: str) -> Iterator[Finding]:
    if not isinstance(output, Tensor):
        yield Finding("(the network)", "output", f"it returns a {type(output).__name__}", "return logits as a tensor")
        return
    got = tuple(output.shape)
    if kind == "segmentation":
        right, wanted = got == (2, 1, *shape[1:]), f"(2, 1, {', '.join(map(str, shape[1:]))})"
    else:
        right = len(got) == 2 and got[0] == 2 and (classes is None or got[1] == classes)
        wanted = f"(2, {classes if classes is not None else 'classes'})"
    if not right and kind == "classification" and classes is not None and len(got) == 2 and got[0] == 2:
        yield Finding(
            "(the network)",
            "output",
            f"two inputs of shape {shape} give an output of shape {got}: {got[1]} outputs for {classes} classes",
            "give each class one output: take the number of classes from the factory's argument classes",
        )
    elif not right:
        yield Finding(
            "(the network)",
            "output",
            f"two inputs of shape {shape} give an output of shape {got}; {kind} needs {wanted}",
            "change the last layer, or the task",
        )
    sums = output.detach().double().flatten(1).sum(1) if kind == "classification" and len(got) == 2 else None
    if sums is not None and got[1] > 1 and bool((output >= 0).all()) and bool(((sums - 1).abs() < 1e-4).all()):
        yield Finding(
            "(the network)",
            "probabilities",
            "its outputs are probabilities, and the loss takes logits: it learns slowly or not at all",
            "leave the softmax at its end out",
        )
    if not bool(torch.isfinite(output).all()):
        yield Finding("(the network)", "output", "zero inputs give non-finite outputs", "check its initial weights")
