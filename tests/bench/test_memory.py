"""Memories as bytes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from leakline.bench.memory import pack, unpack
from leakline.errors import StoreError

names = st.text("abcxyz._- ", min_size=1, max_size=5)
plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8)
tensors = st.builds(
    lambda shape, kind: torch.arange(math.prod(shape)).reshape(shape).to(kind),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8]),
)
memories = st.recursive(
    st.dictionaries(names, plain | tensors, max_size=4),
    lambda inner: st.dictionaries(names, plain | tensors | inner, max_size=4),
    max_leaves=12,
)


def same(a, b) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


@given(memories)
def test_what_is_packed_comes_back(memory):
    assert same(memory, unpack(pack(memory)))


def test_an_empty_memory_is_no_bytes():
    assert pack({}) == b""
    assert unpack(b"") == {}


def test_views_and_transposed_tensors_come_back():
    big = torch.arange(12.0).reshape(3, 4)
    assert same(unpack(pack({"row": big[1], "turned": big.T})), {"row": big[1].clone(), "turned": big.T.contiguous()})


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_refused_in_one_line(data):
    with pytest.raises(StoreError) as caught:
        unpack(data)
    assert "\n" not in str(caught.value)


def hostile() -> dict[str, bytes]:
    good = pack({"a": torch.ones(3), "b": 1})
    header = json.dumps(
        {"__metadata__": {"plain": "{}"}, "x": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4]}}
    )
    return {
        "cut short": good[:-5],
        "longer than it says": good + b"xx",
        "no metadata": save({"a": torch.ones(1)}),
        "plain is not JSON": save({"a": torch.ones(1)}, metadata={"plain": "os.system('x')"}),
        "plain is a list": save({"a": torch.ones(1)}, metadata={"plain": "[1]"}),
        "a header of 2^60 bytes": (2**60).to_bytes(8, "little") + good[8:],
        "a tensor larger than the file": len(header).to_bytes(8, "little") + header.encode() + b"\0" * 4,
        "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
        "a value under another value": save({"a": torch.ones(1)}, metadata={"plain": '{"a/b": 1}'}),
    }


@pytest.mark.parametrize("case", hostile())
def test_hostile_bytes_are_refused(case):
    with pytest.raises(StoreError):
        unpack(hostile()[case])


def test_what_cannot_be_saved_is_refused_when_it_is_packed():
    with pytest.raises(TypeError, match="set"):
        pack({"a": {1, 2}})
    with pytest.raises(ValueError, match="slash"):
        pack({"a/b": 1})
