"""Memories as bytes: nested dictionaries of tensors and plain numbers, in the safetensors format.

Used between processes and in checkpoints. Nothing here can execute what it loads.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from leakline.errors import StoreError
from leakline.messages import Memory


def flatten(memory: Memory, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values by path ("0/clip")."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in memory.items():
        if "/" in name:
            raise ValueError(f"a name in a memory must not hold a slash: {name!r}")
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            inner, numbers = flatten(value, path + "/")
            tensors |= inner
            plain |= numbers or ({} if inner else {path: {}})
        elif isinstance(value, Tensor):
            tensors[path] = value.detach().contiguous()
        elif isinstance(value, bool | int | float | str):
            plain[path] = value
        else:
            raise TypeError(f"a memory holds tensors and plain numbers, not {type(value).__name__} ({path})")
    return tensors, plain


def unflatten(tensors: dict[str, Tensor], plain: dict[str, Any]) -> Memory:
    """The nested dictionary again."""
    memory: Memory = {}
    for path, value in {**tensors, **plain}.items():
        *folders, name = path.split("/")
        place = memory
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise ValueError(f"{path!r} lies under a value")
        place[name] = value
    return memory


def pack(memory: Memory) -> bytes:
    """A memory as bytes; an empty one as none."""
    if not memory:
        return b""
    from safetensors.torch import save

    tensors, plain = flatten(memory)
    tensors = tensors or {"": torch.zeros(0)}
    return bytes(save(tensors, metadata={"plain": json.dumps(plain)}))


def unpack(data: bytes) -> Memory:
    """The inverse of `pack`."""
    if not data:
        return {}
    from safetensors.torch import load

    try:
        size = int.from_bytes(data[:8], "little")
        plain = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["plain"])
        tensors = load(data)
        tensors.pop("", None)
        return unflatten(tensors, plain)
    except Exception as error:
        raise StoreError(f"a saved memory cannot be read: {type(error).__name__}") from error
