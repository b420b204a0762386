"""Tensors in files with a seal over every byte of them: a flipped bit in a weight is noticed, not trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from leakline.study.files import MOST_WEIGHTS, SEAL, door


def seal_over(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> str:
    """A hash of all names, types, shapes, values and metadata."""
    digest = hashlib.blake2b(digest_size=12)
    for key in sorted(k for k in meta if k != SEAL):
        digest.update(f"{key}\0{meta[key]}\0".encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}{tuple(tensor.shape)}\0".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def pack_sealed(tensors: dict[str, Tensor], meta: Mapping[str, str]) -> bytes:
    """A safetensors file as bytes."""
    from safetensors.torch import save

    return _ordered(save(tensors, metadata={**meta, SEAL: seal_over(tensors, meta)}))


def _ordered(packed: bytes) -> bytes:
    """The same file with its metadata in order: safetensors writes them as a hash table has them, ever differently."""
    size = int.from_bytes(packed[:8], "little")
    head = json.loads(packed[8 : 8 + size])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(
        {"__metadata__": head.pop("__metadata__"), **head}, separators=(",", ":"), ensure_ascii=False
    ).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + packed[8 + size :]


def read_sealed(path: Path, below: Path | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a ValueError where the seal does not fit. What has none is taken as it is."""
    from safetensors import safe_open

    with safe_open(door(path, MOST_WEIGHTS, below), framework="pt") as file:
        meta = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if SEAL in meta and meta[SEAL] != seal_over(tensors, meta):
        raise ValueError("its seal does not fit")
    meta.pop(SEAL, None)
    return tensors, meta
