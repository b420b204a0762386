"""Studies: the grid of federations and attacks, the lab that runs it, the store that keeps it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakline.study.cells import Cell, Study, grid
    from leakline.study.spec import load, parse

__all__ = ["Cell", "Study", "grid", "load", "parse"]

_HOMES = {"Cell": "cells", "Study": "cells", "grid": "cells", "load": "spec", "parse": "spec"}


def __getattr__(name: str) -> Any:
    """A name when it is asked for: whoever writes files alone (`leakline.study.files`) needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
