"""Sealed tensors in files: what is written without a copy is what the library would have written."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load, save

from leakline.study.tensors import TYPES, pack_sealed, seal_over


def by_the_library(tensors: dict[str, torch.Tensor], meta: dict[str, str]) -> bytes:
    """The library's own file; it writes metadata in any order, so that is put right."""
    packed = save(tensors, metadata={**meta, "seal": seal_over(tensors, meta)})
    size = int.from_bytes(packed[:8], "little")
    head = json.loads(packed[8 : 8 + size])
    about = dict(sorted(head.pop("__metadata__").items()))
    text = json.dumps({"__metadata__": about, **head}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + packed[8 + size :]


def test_a_file_is_what_the_library_writes_for_all_types_and_shapes():
    tensors = {f"{i % 3}/é{i}": torch.arange(6).view(2, 3).to(kind) for i, kind in enumerate(TYPES)}
    tensors |= {"": torch.zeros(0), "one": torch.tensor(3.0), "none": torch.zeros(2, 0)}
    meta = {"b": "1", "a": "ü", "c": '{"x": "\n"}'}
    written = b"".join(pack_sealed(tensors, meta))
    assert written == by_the_library(tensors, meta)
    assert all(torch.equal(value, tensors[name]) for name, value in load(written).items())


def test_what_does_not_lie_in_order_is_written_in_order():
    turned = torch.arange(6.0).view(2, 3).t()
    assert torch.equal(load(b"".join(pack_sealed({"x": turned}, {})))["x"], turned)


def test_values_are_not_copied_on_the_way():
    values = torch.zeros(4)
    _, piece = pack_sealed({"x": values}, {})
    values[0] = 1.0
    assert torch.equal(torch.frombuffer(bytearray(piece), dtype=torch.float32), values)


def test_a_type_that_no_store_knows_is_an_error():
    with pytest.raises(KeyError):
        pack_sealed({"x": torch.zeros(2, dtype=torch.complex64)}, {})
