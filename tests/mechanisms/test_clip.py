"""Clipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakline.mechanisms import clip_norm

BIG = float(np.float32(3e38))
vectors = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-BIG, BIG, width=32))


def norm(v: torch.Tensor) -> float:
    return float(v.double().norm())


@given(vectors, st.floats(1e-6, 1e6))
def test_the_result_is_never_longer_than_the_bound(values, bound):
    change = torch.from_numpy(values)
    clipped = clip_norm(change, bound)
    assert norm(clipped) <= bound
    assert clipped.dtype == torch.float32
    if norm(change) <= bound:
        assert torch.equal(clipped, change)


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-100, 100, width=32)), st.floats(1e-3, 10))
def test_what_is_clipped_keeps_its_direction_and_reaches_the_bound(values, bound):
    change = torch.from_numpy(values)
    clipped = clip_norm(change, bound)
    if norm(change) > bound:
        assert norm(clipped) == pytest.approx(bound, rel=1e-5)
        expected = change.double() * bound / norm(change)
        assert torch.allclose(clipped.double(), expected, rtol=1e-5, atol=1e-12)


def test_a_long_random_vector_in_float32_does_not_exceed_the_bound_by_rounding():
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert norm(clip_norm(torch.randn(10_000, generator=g), 1.0)) <= 1.0


def test_zero_passes():
    assert torch.equal(clip_norm(torch.zeros(5), 1.0), torch.zeros(5))


def test_the_input_is_not_written_to():
    change = torch.ones(5)
    clip_norm(change, 0.1)
    assert torch.equal(change, torch.ones(5))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_a_bound_must_be_positive(bound):
    with pytest.raises(ValueError, match="positive"):
        clip_norm(torch.ones(2), bound)
