"""Tensors in files with a seal over every byte of them: a flipped bit in a weight is noticed, not trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakline.study.files import MOST_WEIGHTS, SEAL, door

TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
"""The names that safetensors has for types, in its own order: in a file the last of them come first."""
Pieces = list[bytes | memoryview]
"""A file's content one piece after another, so that large vectors are written from where they are."""


def seal_over(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> str:
    """A hash of all names, types, shapes, values and metadata."""
    digest = hashlib.blake2b(digest_size=12)
    for key in sorted(k for k in meta if k != SEAL):
        digest.update(f"{key}\0{meta[key]}\0".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{tensor.dtype}{tuple(tensor.shape)}\0".encode())
        digest.update(_raw(tensor))
    return digest.hexdigest()


def pack_sealed(tensors: dict[str, Tensor], meta: Mapping[str, str]) -> Pieces:
    """A safetensors file, byte for byte as its own library would write it but with sorted metadata.

    The library copies every value several times on the way, which for a large model is more than its training takes.
    """
    ranks = {kind: rank for rank, kind in enumerate(TYPES)}
    order = sorted(tensors, key=lambda name: (-ranks[tensors[name].dtype], name))
    head: dict[str, Any] = {"__metadata__": dict(sorted({**meta, SEAL: seal_over(tensors, meta)}.items()))}
    end, pieces = 0, []
    for name in order:
        tensor, raw = tensors[name], _raw(tensors[name])
        place = [end, end := end + len(raw)]
        head[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        pieces.append(raw)
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *pieces]


def _raw(tensor: Tensor) -> memoryview:
    """A tensor's values as bytes, without a copy where they lie in order on the CPU."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


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
