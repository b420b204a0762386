"""Networks by name, or by import path.

`MENU` maps a name to a frozen configuration; ``MENU["small-cnn"]().build((1, 8, 8), 10)`` is a network that
gives logits. `resolve` also takes ``"package.module:factory"``. `initial` starts a network from a seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from leakline.errors import StudyError
from leakline.foreign import Kind as Wanted
from leakline.foreign import Unfit, fetch, is_function_of, returns
from leakline.models.base import Kind, Model, Shape
from leakline.models.medical import DenseNet121, ResNet18, UNet
from leakline.models.papers import Paper000CNN, Paper002CNN
from leakline.models.preflight import Finding, has_batchnorm, has_dropout, preflight
from leakline.models.residual import ResNet
from leakline.models.small import MLP, MotionCNN, SmallCNN
from leakline.models.unet import SmallUNet
from leakline.names import printable

__all__ = [
    "FACTORY",
    "MENU",
    "Finding",
    "Imported",
    "Model",
    "has_batchnorm",
    "has_dropout",
    "initial",
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
    "resnet": ResNet,
    "small-unet": SmallUNet,
    "resnet-18": ResNet18,
    "densenet-121": DenseNet121,
    "unet": UNet,
}


def _builds(thing: Any, package: str) -> bool:
    """Whether a name may be called to get a network: a function of that package, or a network's own class."""
    if inspect.isclass(thing):
        return issubclass(thing, nn.Module)
    # Functions of leakline that build something else take no such consent as the user's own.
    return is_function_of(thing, package) and (package != "leakline" or returns(thing, nn.Module))


FACTORY = Wanted(
    "a function (or nn.Module class) of that module that builds a network",
    _builds,
    "write a function in it: def build(shape, classes): return Net(...)",
)
"""What the import path of a model must stand for."""


def _factory(path: str) -> Any:
    try:
        return fetch(path, FACTORY)
    except Unfit as error:
        raise StudyError(error.what, "model", error.fix) from error


def _taken(factory: Any, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Of what is at hand what a factory takes: shape, classes and kind if it asks for them, and all of its settings."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return dict(given)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return {name: value for name, value in given.items() if name != "kind" or name in parameters}
    offered = ("shape", "classes", "kind")
    strange = [name for name in given if name not in parameters and name not in offered]
    needed = [
        name for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in given
    ]  # fmt: skip
    if strange or needed:
        what = f"takes no {strange[0]!r}" if strange else f"asks for {needed[0]!r}, which nobody gives"
        raise StudyError(
            f"{path}({', '.join(parameters)}) {what}",
            "model",
            "let it take shape and classes; others are settings: model = { use = ..., NAME = ... }",
        )
    return {name: value for name, value in given.items() if name in parameters}


@dataclass(frozen=True)
class Imported:
    """A network made by the user's own factory, called as ``factory(shape=..., classes=..., **settings)``.

    Of shape, classes and kind it is given those that it takes: a class without parameters will do, if its input and
    output fit.
    """

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """What the factory returns, which must be an ``nn.Module``."""
        factory = _factory(self.path)
        given = {"shape": shape, "classes": classes, "kind": kind, **self.settings}
        try:
            network = factory(**_taken(factory, given, self.path))
        except StudyError:
            raise
        except (Exception, SystemExit) as error:  # a factory of the user's own may raise anything
            called = ", ".join(f"{name}={value!r}" for name, value in given.items() if name != "kind")
            raise StudyError(
                f"{self.path}({called}) raised {type(error).__name__}: {printable(error, 160)}",
                "model",
                "mend it: it is called with the shape of one input and the number of classes",
            ) from error
        if not isinstance(network, nn.Module):
            raise StudyError(
                f"the factory {self.path!r} returned a {type(network).__name__}, not a torch.nn.Module",
                "model",
                "let factory(shape=..., classes=...) return the network itself",
            )
        return network


def resolve(use: str, settings: Mapping[str, Any] | None = None) -> Model:
    """The model that a study means: a menu name or ``"package.module:factory"``, with its settings."""
    chosen = dict(settings or {})
    if ":" in use:
        _factory(use)
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
