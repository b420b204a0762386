"""What is computed once in a process, under a key that says all that it depends on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

Value = TypeVar("Value")


def once(
    kept: OrderedDict[Hashable, Value], key: tuple[object, ...], make: Callable[[], Value], most: int = 16
) -> Value:
    """What was made under this key before, or what is made now; the ``most`` newest are kept, with their keys alone.

    A key that cannot be hashed (a model of somebody's own) is of something that cannot be told from others: it is made
    every time. What raises is not kept.
    """
    try:
        there = key in kept
    except TypeError:
        return make()
    if there:
        kept.move_to_end(key)
        return kept[key]
    kept[key] = value = make()
    while len(kept) > most:
        kept.popitem(last=False)
    return value
