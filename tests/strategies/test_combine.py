"""Many updates in, one change out."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from leakline.strategies import Mean, Median, Nova, TrimmedMean


def matrix(updates):
    return np.stack([u.delta.vector.double().numpy() for u in updates])


@given(st.integers(1, 12), st.integers(0, 1000))
def test_means_are_numpy_s(n, seed):
    updates = tiny.random_updates(n, seed=seed)
    m, examples = matrix(updates), np.array([u.examples for u in updates])
    assert np.allclose(Mean()(updates).vector, np.average(m, axis=0, weights=examples), atol=1e-6)
    assert np.allclose(Mean("even")(updates).vector, m.mean(axis=0), atol=1e-6)


@given(st.integers(1, 14), st.integers(0, 1000))
def test_the_median_is_numpy_s_for_odd_and_even_numbers(n, seed):
    updates = tiny.random_updates(n, seed=seed)
    assert np.allclose(Median()(updates).vector, np.median(matrix(updates), axis=0), atol=1e-6)


@given(st.integers(1, 14), st.integers(0, 1000), st.floats(0, 0.499))
def test_the_trimmed_mean_leaves_out_both_tails(n, seed, beta):
    updates = tiny.random_updates(n, seed=seed)
    cut = int(beta * n)
    expected = np.sort(matrix(updates), axis=0)[cut : n - cut].mean(axis=0)
    assert np.allclose(TrimmedMean(beta)(updates).vector, expected, atol=1e-6)


@given(st.integers(1, 9), st.integers(0, 1000))
def test_nova_is_its_formula(n, seed):
    updates = tiny.random_updates(n, seed=seed, steps=None)
    p = np.array([u.examples for u in updates], dtype=float)
    p /= p.sum()
    tau = np.array([u.steps for u in updates], dtype=float)
    expected = (p @ tau) * (p / tau) @ matrix(updates)
    assert np.allclose(Nova()(updates).vector, expected, atol=1e-5)


@given(st.integers(1, 9), st.integers(0, 1000), st.integers(1, 50), st.sampled_from(["examples", "even"]))
def test_nova_with_equal_steps_is_the_mean(n, seed, steps, weighting):
    updates = tiny.random_updates(n, seed=seed, steps=steps)
    assert torch.allclose(Nova(weighting)(updates).vector, Mean(weighting)(updates).vector, atol=1e-6)


@pytest.mark.parametrize("combine", [Mean(), Mean("even"), Nova()])
def test_what_is_linear_holds_no_more_than_two_updates_at_once(combine):
    alive: set[int] = set()
    most = 0

    def arriving():
        nonlocal most
        for i in range(50):
            update = tiny.update(torch.full((1_000_000,), float(i)), f"c{i}", 1, 1)
            alive.add(i)
            weakref.finalize(update, alive.discard, i)
            most = max(most, len(alive))
            yield update
            del update

    result = combine(arriving())
    gc.collect()
    assert most <= 2  # one that arrives while the one before it is let go
    assert torch.allclose(result.vector, torch.full((1_000_000,), 24.5))


@pytest.mark.parametrize("combine", [Mean(), Median(), TrimmedMean(), Nova()])
def test_nothing_cannot_be_combined(combine):
    with pytest.raises(ValueError, match="no update"):
        combine([])


@pytest.mark.parametrize("combine", [Mean(), Mean("even"), Median(), TrimmedMean(), Nova()])
def test_updates_are_not_written_to(combine):
    updates = tiny.random_updates(5)
    kept = [u.delta.vector.clone() for u in updates]
    combine(updates)
    assert all(torch.equal(u.delta.vector, k) for u, k in zip(updates, kept, strict=True))


@pytest.mark.parametrize("beta", [-0.1, 0.5, float("nan")])
def test_beta_must_leave_something(beta):
    with pytest.raises(ValueError, match="beta"):
        TrimmedMean(beta)
