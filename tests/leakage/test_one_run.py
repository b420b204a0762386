import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from leakline.leakage import one_run_bound, one_run_mu_bound, one_run_p_value


def test_without_delta_it_is_a_binomial_tail():
    q = math.e / (1 + math.e)
    assert one_run_p_value(1000, 100, 80, 1.0) == pytest.approx(binom.sf(79, 100, q))
    assert one_run_p_value(1000, 100, 0, 1.0) == 1


@pytest.mark.parametrize(("m", "r", "v", "epsilon", "delta"), [(50, 20, 18, 1.0, 1e-3), (30, 30, 25, 0.5, 1e-4)])
def test_delta_term_against_the_theorem_summed_naively(m, r, v, epsilon, delta):
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    worst = max(sum(binom.pmf(w, r, q) for w in range(max(v - i, 0), v)) / i for i in range(1, m + 1))
    expected = binom.sf(v - 1, r, q) + 2 * m * delta * worst
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def test_all_right_has_a_closed_form():
    found = one_run_bound(1000, 100, 100)
    q = 0.05 ** (1 / 100)
    assert found.low == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert found.low == found.ceiling
    assert found.point == math.inf
    assert one_run_bound(1000, 100, 100, delta=1e-5).low < found.low


def test_covers_on_randomised_response():
    rng = np.random.default_rng(0)
    m, epsilon = 500, 1.5
    q = 1 / (1 + math.exp(-epsilon))
    lows = {v: one_run_bound(m, m, v).low for v in range(round(m * q) - 60, round(m * q) + 60)}
    # exact, no chance involved: 4.2 %
    assert 0 < sum(binom.pmf(v, m, q) for v, low in lows.items() if low > epsilon) <= 0.05
    right = rng.binomial(m, q, 1000)
    # simulated: at a rate of 4.2 % more than 80 of 1,000 has chance 3e-8
    assert 0 < sum(lows[int(v)] > epsilon for v in right) <= 80
    assert np.mean([lows[int(v)] for v in right]) > 1.2


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_the_bound_is_where_p_crosses_alpha(m, share, luck, delta):
    r = max(1, round(share * m))
    v = round(luck * r)
    found = one_run_bound(m, r, v, delta)
    assert 0 <= found.low <= found.ceiling + 1e-8
    if found.low > 0:
        assert one_run_p_value(m, r, v, found.low, delta) == pytest.approx(0.05, abs=1e-6)
    assert one_run_bound(m, r, v, delta, 0.99).low <= found.low


def test_impossible_counts_are_named():
    with pytest.raises(ValueError, match="9"):
        one_run_bound(10, 8, 9)
    with pytest.raises(ValueError, match="-0.1"):
        one_run_p_value(10, 8, 7, 1.0, -0.1)


@pytest.mark.parametrize(
    ("counts", "five", "three"),
    [
        ((1000, 250, 240), 4.40155, 3.15734), ((1000, 1000, 700), 1.37198, 0.90508), ((400, 100, 95), 3.77707, 2.68109),
        ((600, 150, 150), 7.02249, 5.19985), ((5000, 1000, 990), 6.36558, 4.6822), ((100, 20, 20), 3.23939, 2.27513),
    ],
)  # fmt: skip
def test_the_gaussian_trade_off_in_one_run_agrees_with_jax_privacy(counts, five, three):
    """jax_privacy 2.0.0, epsilon_one_run_fdp at significance 0.05 and delta 1e-5 and 1e-3, to its tolerance of 1e-6."""
    found = one_run_mu_bound(*counts)
    assert found.epsilon(1e-5) == pytest.approx(five, abs=1e-5)
    assert found.epsilon(1e-3) == pytest.approx(three, abs=1e-5)
    assert found.epsilon(1e-5) > 1.5 * one_run_bound(*counts, delta=1e-5).low  # Steinke et al.
    assert found.low <= found.ceiling


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "m", "r"), [(0.5, 400, 400), (1.0, 200, 50), (2.0, 1000, 250)])
def test_one_run_covers_on_independent_gaussian_canaries(mu, m, r):
    """1,000 runs; the theorem allows 5 %, and dependence that these canaries do not have: none was above in 400."""
    rng = np.random.default_rng(3)
    lows: dict[int, float] = {}
    over = 0
    for _ in range(1000):
        present = rng.random(m) < 0.5
        order = np.argsort(rng.normal(size=m) + mu * present)
        v = int(present[order[-r // 2 :]].sum() + (~present[order[: r // 2]]).sum())
        lows.setdefault(v, one_run_mu_bound(m, r, v).low)
        over += lows[v] > mu
    assert over <= 50
