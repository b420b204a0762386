"""Networks by name, or by import path.

`MENU` maps a name to a frozen configuration; ``MENU["small-cnn"]().build((1, 8, 8), 10)`` is a network that
gives logits. `resolve` also takes ``"package.module:factory"``. `initial` starts a network from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from leakline.errors import StudyError
from leakline.models.adapted import Adapted, Lora
from leakline.models.base import Kind, Model, Shape
from leakline.models.medical import DenseNet121, ResNet18, UNet
from leakline.models.own import FACTORY, Imported, factory_of, made
from leakline.models.papers import Paper000CNN, Paper002CNN
from leakline.models.preflight import Finding, has_batchnorm, has_dropout, preflight
from leakline.models.residual import ResNet
from leakline.models.small import MLP, Linear, MotionCNN, SmallCNN
from leakline.models.unet import SmallUNet
from leakline.models.weights_file import WeightsFile

__all__ = [
    "FACTORY",
    "MENU",
    "Adapted",
    "Finding",
    "Imported",
    "Lora",
    "Model",
    "WeightsFile",
    "has_batchnorm",
    "has_dropout",
    "initial",
    "made",
    "preflight",
    "resolve",
    "size_of",
]

MENU: dict[str, type[Model]] = {
    "paper-000-cnn": Paper000CNN,
    "paper-002-cnn": Paper002CNN,
    "small-cnn": SmallCNN,
    "motion-cnn": MotionCNN,
    "mlp": MLP,
    "linear": Linear,
    "resnet": ResNet,
    "small-unet": SmallUNet,
    "resnet-18": ResNet18,
    "densenet-121": DenseNet121,
    "unet": UNet,
}


def resolve(use: str, settings: Mapping[str, Any] | None = None) -> Model:
    """The model that a study means: a menu name or ``"package.module:factory"``, with its settings."""
    chosen = dict(settings or {})
    if ":" in use:
        factory_of(use)
        return Imported(use, chosen)
    if use not in MENU:
        near = get_close_matches(use.lower(), MENU, n=1, cutoff=0.0)[0]
        raise StudyError(
            f"there is no model {use!r}",
            "model",
            f'did you mean "{near}"? On the menu: {", ".join(MENU)}; or give "package.module:factory"',
        )
    known = [item.name for item in fields(MENU[use])]  # type: ignore[arg-type]  # every entry is a dataclass
    for key in chosen:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.0)
            hint = f'did you mean "{close[0]}"? It has: {", ".join(known)}' if close else "it has no settings"
            raise StudyError(f"the model {use!r} has no setting {key!r}", "model", hint)
    return MENU[use](**chosen)


MOST_VALUES = 2**31
"""A network with more values is refused before memory is asked for."""


def size_of(model: Model, shape: Shape, classes: int, kind: Kind = "classification") -> int:
    """How many values a network of the menu would have, without making them."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        network = model.build(shape, classes, kind)
    return sum(parameter.numel() for parameter in network.parameters())


def initial(model: Model, shape: Shape, classes: int, kind: Kind = "classification", *, seed: int) -> nn.Module:
    """A network whose first weights depend on the seed alone; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return model.build(shape, classes, kind)
