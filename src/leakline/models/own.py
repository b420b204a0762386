"""A network of the user's own: a function, a class or an import path, called with what it takes of the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from leakline.errors import StackError, StudyError
from leakline.foreign import Kind as Wanted
from leakline.foreign import Unfit, fetch, is_function_of, own_line, returns
from leakline.models.base import Kind, Model, Shape
from leakline.names import printable

TAKES = "shape (of one input), classes (how many), kind; or in_channels, num_classes, n_classes"
"""What a factory may ask for by name."""


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


def factory_of(path: str) -> Any:
    """The factory that an import path stands for."""
    try:
        return fetch(path, FACTORY)
    except Unfit as error:
        raise StudyError(error.what, "model", error.fix) from error


@dataclass(frozen=True)
class Imported:
    """A network made by the user's own factory, called as ``factory(shape=..., classes=..., **settings)``."""

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """What the factory returns, which must be an ``nn.Module``."""
        return built(factory_of(self.path), shape, classes, kind, self.settings, self.path)


def built(
    factory: Callable[..., Any], shape: Shape, classes: int, kind: Kind, settings: Mapping[str, Any], name: str
) -> nn.Module:
    """The network that a factory returns.

    Of shape, classes, kind (and in_channels, num_classes, n_classes, as networks often call them) it is given those
    that it takes, and all ``settings``. A function or class without parameters will do, if input and output fit.
    """
    task = {"shape": shape, "classes": classes, "kind": kind}
    usual = {"in_channels": shape[0], "num_classes": classes, "n_classes": classes}
    given = _taken(factory, task, usual, settings, name)
    try:
        network = factory(**given)
    except StudyError:
        raise
    except (Exception, SystemExit) as error:  # a factory of the user's own may raise anything
        called = ", ".join(f"{key}={printable(repr(value), 60)}" for key, value in given.items())
        raise StudyError(
            f"{name}({called}) raised {type(error).__name__}: {printable(error, 160)}{own_line(error)}",
            "model",
            "mend it: it is called with the shape of one input and the number of classes, as far as it asks for them",
        ) from error
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"the factory {name!r} returned a {type(network).__name__}, not a torch.nn.Module",
            "model",
            "let factory(shape=..., classes=...) return the network itself",
        )
    return network


def made(model: Model | Callable[..., nn.Module], shape: Shape, classes: int, kind: Kind) -> nn.Module:
    """A fresh network of an entry of the menu, or of a function or class of somebody's own."""
    build = getattr(model, "build", None)
    if build is not None and not isinstance(model, type):
        return build(shape, classes, kind)  # type: ignore[no-any-return]
    if build is not None or not callable(model):
        raise StackError(f"no model: {model!r}", fix="an entry of the menu, MLP(); or a function that builds")
    name = getattr(model, "__qualname__", type(model).__name__)
    return built(model, shape, classes, kind, {}, name)


def _taken(
    factory: Callable[..., Any],
    task: Mapping[str, Any],
    usual: Mapping[str, Any],
    settings: Mapping[str, Any],
    name: str,
) -> dict[str, Any]:
    """What a factory is called with: of ``task`` and ``usual`` what it takes, and all of its settings."""
    given = {**task, **settings}
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return given
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return {key: value for key, value in given.items() if key != "kind" or key in parameters}
    given = {**usual, **given}
    strange = [key for key in settings if key not in parameters]
    needed = [
        key for key, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and key not in given
    ]  # fmt: skip
    if strange or needed:
        what = f"takes no {strange[0]!r}" if strange else f"asks for {needed[0]!r}, which nobody gives"
        raise StudyError(
            f"{name}({', '.join(parameters)}) {what}",
            "model",
            f"a factory is given what it takes of {TAKES}; others are settings: model = {{ use = ..., NAME = ... }}",
        )
    return {key: value for key, value in given.items() if key in parameters}
