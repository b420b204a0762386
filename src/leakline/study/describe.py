"""What a federation is, as plain JSON: the key under which its run is stored.

The hash covers everything that decides the numbers: data (every byte), model, plan, strategy, defences, seeds, the
versions of leakline and torch, the number of threads. It leaves out what cannot: the number of workers, where
results go, labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from leakline.data.base import Client, Data, Task
from leakline.federation import Federation
from leakline.models import Imported

FORMAT = 3
"""Version of the store's format; a change makes old runs unreadable on purpose. 2: ``about`` in readings, 3: seals."""
THREADS = 1


def describe(value: Any) -> Any:
    """Any part of a federation as JSON."""
    if isinstance(value, Data):
        return f"data:{value.fingerprint()}"
    if isinstance(value, Task):
        return {
            "name": value.name, "kind": value.kind, "classes": list(value.classes), "test": describe(value.test),
            "validation": describe(value.validation),
            "order": [c.name for c in value.clients],  # sums and samples follow it, and keys are hashed sorted
            "clients": {c.name: _client(c) for c in value.clients},
        }  # fmt: skip
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value) if _counts(f, value)}
        found = {"use": f"{type(value).__module__}:{type(value).__qualname__}", **fields}
        module = value.path.partition(":")[0] if isinstance(value, Imported) else type(value).__module__
        return found if module.partition(".")[0] == "leakline" else {**found, "source": _file(module)}
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if callable(value):
        return _source(value)
    raise TypeError(f"cannot describe a {type(value).__name__}: use a frozen dataclass, a function or plain values")


def _counts(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field is written down: not where a file lies, nor a quiet one at its default."""
    silent = field.metadata.get("quiet") and getattr(value, field.name) == field.default
    return bool(field.metadata.get("described", True)) and not silent


def _client(client: Client) -> dict[str, Any]:
    canary = {} if client.canary is None else {"canary": describe(client.canary)}
    return {"train": describe(client.train), "test": describe(client.test), **canary}


def description(federation: Federation) -> dict[str, Any]:
    """All that decides what a federation's run will hold."""
    import torch

    from leakline import __version__

    settings = {
        field.name: describe(value)
        for field, value in federation.granted.flat()
        if not (field.metadata.get("quiet") and value == field.default)
    }
    versions = {"leakline": __version__, "torch": torch.__version__, "format": FORMAT}
    if (follower := federation.stack.follower) is not None:
        assert federation.source is not None
        settings["follows"] = follower.run or key_of(description(federation.source))
    return {"federation": settings, "versions": versions, "threads": THREADS}


def key_of(description: Mapping[str, Any]) -> str:
    """A short hash of a description."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file(module: str) -> str:
    """A hash of a module's file: whoever changes their own code must not be shown what the old code did.

    What that file imports in its turn is not looked at; leakline's own code stands under its version.
    """
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return "?"
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _source(function: Callable[..., Any]) -> str:
    """A function by name and source: change its body and it is another one."""
    try:
        body = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        body = "?"
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', '?')}:{name}#{body}"
