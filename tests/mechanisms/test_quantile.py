"""A clip bound that follows a quantile."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakline.mechanisms import follow_quantile, split_budget


@pytest.mark.parametrize("start", [1e-3, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.9])
def test_the_bound_converges_to_the_quantile_from_both_sides(start, gamma):
    norms = np.random.default_rng(0).lognormal(size=2000)
    bound = start
    for _ in range(400):
        bound = follow_quantile(bound, float((norms <= bound).mean()), gamma, 0.2)
    assert (norms <= bound).mean() == pytest.approx(gamma, abs=0.02)


def test_everybody_fits_shrinks_and_nobody_fits_grows():
    assert follow_quantile(1.0, 1.0, 0.5, 0.2) == pytest.approx(math.exp(-0.1))
    assert follow_quantile(1.0, 0.0, 0.5, 0.2) == pytest.approx(math.exp(0.1))
    assert follow_quantile(1.0, 0.5, 0.5, 0.2) == 1.0


@given(st.floats(0.01, 20), st.floats(1.001, 50))
def test_both_releases_together_are_as_private_as_one(z, times):
    bits = z / 2 * times
    left = split_budget(z, bits)
    # mu of the updates is 1 / z_delta; of the centred bits (sensitivity 1/2) 1 / (2 sigma_b); they compose as a norm.
    assert math.hypot(1 / left, 1 / (2 * bits)) == pytest.approx(1 / z, rel=1e-9)
    assert left > z


def test_a_budget_that_the_bits_alone_overspend_is_refused():
    with pytest.raises(ValueError, match="must exceed 0.5"):
        split_budget(1.0, 0.5)
    assert split_budget(0.0, 1.0) == 0.0
