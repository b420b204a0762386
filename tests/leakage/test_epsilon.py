import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from leakline.leakage import (
    ErrorCounts,
    ceiling,
    count_errors,
    epsilon_of_rates,
    flip_epsilon,
    lower_bound,
    lower_bound_from_scores,
    mu_bound,
    mu_bound_from_scores,
    mu_ceiling,
    point_epsilon,
    pool,
    total_variation_ldp,
    trials_needed,
)
from leakline.leakage.interval import upper_rate
from leakline.privacy import gdp_delta, gdp_epsilon


def test_the_papers_worked_example():
    assert point_epsilon(ErrorCounts(10, 100, 20, 100)) == pytest.approx(2.0794, abs=5e-5)


def test_point_estimate_edges():
    assert point_epsilon(ErrorCounts(0, 100, 20, 100)) == math.inf
    assert point_epsilon(ErrorCounts(0, 100, 0, 100)) == math.inf
    assert point_epsilon(ErrorCounts(60, 100, 60, 100)) == 0
    assert point_epsilon(ErrorCounts(0, 100, 100, 100)) == 0  # never says 1: nothing learnt
    assert point_epsilon(ErrorCounts(10, 100, 20, 100), delta=0.1) == pytest.approx(math.log(0.7 / 0.1))


def test_point_estimate_is_biased_upwards():
    rng = np.random.default_rng(0)
    p = 1 / (1 + math.e**4)
    errors = rng.binomial(5000, p, (2, 2000, 10)) / 5000
    means = epsilon_of_rates(errors[0], errors[1]).mean(axis=1)
    # standard error of the mean of 2,000 is 0.0006: false alarm < 1e-10
    assert means.mean() == pytest.approx(4.064, abs=0.005)
    assert np.mean(means > 4) > 0.97


@pytest.mark.parametrize(("n", "expected"), [(1000, 5.6), (5000, 7.2), (100_000, 10.2)])
def test_ceiling_of_n_trials_per_side(n, expected):
    assert ceiling(n) == pytest.approx(expected, abs=0.05)
    assert lower_bound(ErrorCounts(0, n, 0, n)).low == ceiling(n)
    assert lower_bound(ErrorCounts(0, n, 0, n)).sample_limited
    assert mu_bound(ErrorCounts(0, n, 0, n)).low == mu_ceiling(n)


@settings(deadline=None, derandomize=True)
@given(st.floats(0.01, 12), st.sampled_from([0.0, 1e-5, 0.1]), st.sampled_from([0.9, 0.95, 0.99]))
def test_trials_needed_is_the_fewest(epsilon, delta, confidence):
    n = trials_needed(epsilon, delta, confidence)
    assert ceiling(n, delta, confidence) >= epsilon - 1e-7
    if n > 1:
        assert ceiling(n - 1, delta, confidence) < epsilon


def test_valid_bounds_at_the_papers_counts():
    assert lower_bound(ErrorCounts(90, 5000, 90, 5000)).low == pytest.approx(3.79, abs=0.005)
    assert lower_bound(ErrorCounts(900, 50_000, 899, 50_000)).low == pytest.approx(3.93, abs=0.005)
    found = lower_bound(ErrorCounts(90, 5000, 90, 5000))
    assert (found.trials, found.delta, found.confidence, found.sample_limited) == (10_000, 0.0, 0.95, False)


@pytest.mark.parametrize(("epsilon", "n"), [(0.5, 100), (2.0, 300), (4.0, 1000)])
def test_coverage_on_randomised_response_is_exact(epsilon, n):
    """Sum the probability of every pair of counts whose bound lies above the truth: no chance involved."""
    p = 1 / (1 + math.exp(epsilon))
    k = np.arange(n + 1)
    chance = binom.pmf(k, n, p)
    limits = upper_rate(k, n, 0.025)
    above = epsilon_of_rates(limits[:, None], limits[None, :]) > epsilon
    missed = float(chance @ above @ chance)
    assert 0 < missed <= 0.05


def test_coverage_of_a_thousand_audits_of_randomised_response():
    rng = np.random.default_rng(1)
    epsilon, n = 2.0, 1000
    p = 1 / (1 + math.exp(epsilon))
    lows = [lower_bound_from_scores(rng.random(n) < p, rng.random(n) >= p, rng=rng).low for _ in range(1000)]
    # the true rate is 2.1 % (summed exactly, as in the test above): more than 50 of 1,000 has chance 2e-8
    assert np.sum(np.array(lows) > epsilon) <= 50
    assert np.mean(lows) > 1.6


def test_coverage_of_four_hundred_audits_of_a_gaussian():
    rng = np.random.default_rng(2)
    truth = gdp_epsilon(1.0, 1e-2)
    worlds = rng.normal(size=(400, 2, 1000)) + np.array([0.0, 1.0])[:, None]
    lows = np.array([lower_bound_from_scores(a, b, 1e-2, rng=rng).low for a, b in worlds])
    mus = np.array([mu_bound_from_scores(a, b, rng=rng).low for a, b in worlds])
    # rates found in 10,000 other audits: 0.03 % and 0.22 % (the best region is never known exactly, and mu needs
    # luck in both rates): more than 20 of 400 has chance < 1e-15
    assert np.sum(lows > truth) <= 20
    assert np.sum(mus > 1.0) <= 20
    assert mus.mean() > 0.65


def test_halved_noise_is_caught_by_mu():
    rng = np.random.default_rng(3)
    caught = [mu_bound_from_scores(rng.normal(size=1000), rng.normal(2, 1, 1000), rng=rng).low > 1 for _ in range(40)]
    assert all(caught)  # mean bound 1.69, spread 0.12: a miss in 40 has chance < 1e-6
    found = mu_bound_from_scores(rng.normal(size=10_000), rng.normal(2, 1, 10_000), rng=rng)
    assert found.epsilon(1e-5) == gdp_epsilon(found.low, 1e-5)
    assert found.low < found.point < found.ceiling


def test_region_audit_reaches_epsilon_at_every_angle():
    """At the expected counts: region {<x1,u> > 0 > <x2,u>} has probability (angle/2 pi)(1 +- tanh(eps/2))."""
    t, n = math.tanh(2), 20_000
    for degrees, measured in ((90, 3.98), (30, 3.75), (10, 3.52)):
        alarms, hits = round(n * degrees / 360 * (1 - t)), round(n * degrees / 360 * (1 + t))
        found = lower_bound(ErrorCounts(alarms, n, n - hits, n))
        assert found.point == pytest.approx(4, abs=0.02)
        assert found.low < 4
        assert found.low == pytest.approx(measured, abs=2 / math.sqrt(alarms))  # that was one draw


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.0, 1e-5, 0.05]))
def test_bounds_are_ordered(n0, n1, a, b, delta):
    counts = ErrorCounts(round(a * n0), n0, round(b * n1), n1)
    valid = lower_bound(counts, delta)
    assert 0 <= valid.low <= valid.ceiling
    assert valid.low <= valid.point
    assert lower_bound(counts, delta, 0.99).low <= valid.low
    assert mu_bound(counts).low <= mu_bound(counts).ceiling


def test_mu_bound_is_the_gaussian_trade_off():
    from scipy.stats import norm

    counts = ErrorCounts(1587, 10_000, 1587, 10_000)
    fpr, fnr = counts.upper(0.05)
    assert mu_bound(counts).low == pytest.approx(norm.ppf(1 - fpr) - norm.ppf(fnr))
    assert mu_bound(counts).point == pytest.approx(2.0, abs=0.001)


def test_deterministic_mechanism_reaches_the_ceiling():
    rng = np.random.default_rng(6)
    found = lower_bound_from_scores(np.full(2000, -math.inf), np.full(2000, math.inf), rng=rng)
    assert found.point == math.inf
    # nobody is wrong in either world: (1 - e^-eps)^(n + m) = alpha/8, the share of the most extreme threshold
    assert found.low == found.ceiling == pytest.approx(-math.log(1 - (0.05 / 8) ** (1 / 4000)), abs=0.03)
    blind = lower_bound_from_scores(np.zeros(100), np.zeros(100), rng=rng)
    assert blind.low == 0


def test_counting_and_pooling():
    counts = count_errors([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])
    assert counts == ErrorCounts(1, 2, 1, 3)
    assert (counts.fpr, counts.fnr, counts.trials) == (0.5, 1 / 3, 5)
    assert pool([counts, counts, ErrorCounts(0, 1, 0, 1)]) == ErrorCounts(2, 5, 2, 7)
    with pytest.raises(ValueError, match="pool"):
        pool([])


def test_closed_forms_of_ldp_sgd():
    for r, expected in ((1.0, 4.0), (0.9, 2.65), (0.75, 1.83), (0.5, 1.05), (0.25, 0.49), (0.0, 0.0)):
        assert flip_epsilon(4.0, r) == pytest.approx(expected, abs=0.005)
        assert flip_epsilon(4.0, r) == pytest.approx(2 * math.atanh(r * math.tanh(2.0)), rel=1e-9)
    assert flip_epsilon(2000.0, 0.5) == pytest.approx(math.log(3))
    assert total_variation_ldp(4.0, math.pi) == pytest.approx(math.tanh(2.0))
    assert total_variation_ldp(4.0, math.pi / 2) == pytest.approx(math.tanh(2.0) / 2)


def test_delta_of_a_gaussian_test_is_never_above_the_exact_curve():
    rates = np.linspace(0.001, 0.999, 500)
    from scipy.stats import norm

    fnr = norm.cdf(norm.ppf(1 - rates) - 1.0)
    assert epsilon_of_rates(rates, fnr, gdp_delta(1.0, 1.5)).max() == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ErrorCounts(3, 2, 0, 1), "3"),
        (lambda: ErrorCounts(0, 0, 0, 1), "0"),
        (lambda: lower_bound(ErrorCounts(0, 9, 0, 9), delta=1.0), "1.0"),
        (lambda: lower_bound(ErrorCounts(0, 9, 0, 9), confidence=1.0), "1.0"),
        (lambda: lower_bound_from_scores([1.0], [1.0], rng=np.random.default_rng(0)), "2 scores"),
        (lambda: lower_bound_from_scores([1, 2], [1, 2], delta=1.0, rng=np.random.default_rng(0)), "1.0"),
        (lambda: mu_bound_from_scores([1, 2], [1, 2], 1.5, rng=np.random.default_rng(0)), "1.5"),
        (lambda: trials_needed(-1.0), "-1.0"),
        (lambda: flip_epsilon(1.0, 1.5), "1.5"),
        (lambda: total_variation_ldp(1.0, 4.0), "4.0"),
        (lambda: count_errors([1], [1, 0]), "1 and 2"),
    ],
)
def test_wrong_input_is_named_in_audits(call, named):
    with pytest.raises(ValueError, match=named):
        call()
