"""What the names in a study file may stand for: nothing of another kind is ever called."""

from __future__ import annotations

import inspect
from typing import Any

from leakline.attacks import Attack
from leakline.defences import Defence
from leakline.foreign import Kind, made_of
from leakline.strategies import Strategy

DEFENCE = made_of(Defence, "a defence", "derive a frozen dataclass from leakline.Defence")
ATTACK = made_of(Attack, "an attack", "derive a frozen dataclass from leakline.attacks.Attack")
STRATEGY = made_of(Strategy, "a strategy", "write a function: def mine(...) -> leakline.Strategy")


def _having(noun: str, *methods: str) -> Kind:
    """A kind: a class of that package with these methods."""

    def fits(thing: Any, package: str) -> bool:
        inside = inspect.isclass(thing) and thing.__module__.partition(".")[0] == package
        return inside and all(inspect.isfunction(getattr(thing, name, None)) for name in methods)

    return Kind(noun, fits, f"write a frozen dataclass with {' and '.join(f'{name}()' for name in methods)}")


SOURCE = _having("a data set", "available", "load")
PARTITIONER = _having("a way to share out data", "assign")
