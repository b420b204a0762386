"""Bounds at all ranks: against their definition, against jax_privacy's figures, and never above the truth too often."""

import math

import numpy as np
import pytest
from scipy.stats import beta, binom

from leakline.leakage import lower_bound_from_scores, mu_bound_from_scores, one_run_mu_bound_from_scores
from leakline.leakage.ranks import _approximate, _Side
from leakline.privacy import gdp_epsilon

LAWS = {
    "gauss": lambda rng, n, d: (rng.normal(size=n), rng.normal(d, 1, n)),
    "laplace": lambda rng, n, d: (rng.laplace(size=n), rng.laplace(d, 1, n)),
    "wide": lambda rng, n, d: (rng.normal(size=n), rng.normal(0, 1 + d, n)),
    "apart": lambda rng, n, d: (rng.random(n), d + rng.random(n)),
}


@pytest.mark.parametrize(("n", "m", "x"), [(50, 50, 40), (200, 100, 30)])
def test_one_rank_is_the_exact_test(n, m, x):
    """p = E[P(Bin(m, 1 - f(U)) >= x)], U ~ Beta(k, n - k + 1), summed here over a fine grid of U."""
    side = _Side(np.array([1.0]), n, np.array([float(x)]), m)
    low, which = side.best(0.05, lambda e, u: _approximate(1e-3, e, u), 50.0)
    u = np.linspace(0, 1, 200_001)[1:]
    chance = np.diff(beta.cdf(np.linspace(0, 1, 200_001), 1, n))
    beyond = np.minimum(np.minimum(math.exp(low) * u + 1e-3, 1), 1 - math.exp(-low) * np.maximum(1 - 1e-3 - u, 0))
    assert which == 0
    assert 0.045 < chance @ binom.sf(x - 1, m, beyond) <= 0.0501  # cells err on the safe side, by a little


@pytest.mark.parametrize(
    ("law", "d", "n", "epsilon", "mu"),
    [
        ("gauss", 1.0, 50, 0.5903, 0.6684), ("gauss", 1.0, 200, 0.9832, 0.6892),
        ("gauss", 1.0, 1000, 1.8804, 0.8400), ("gauss", 1.0, 10000, 2.0619, 0.9549),
        ("gauss", 2.0, 50, 1.4093, 1.3171), ("gauss", 2.0, 200, 2.3695, 1.7802),
        ("gauss", 2.0, 1000, 3.5570, 1.8380), ("gauss", 2.0, 10000, 4.5102, 1.9455),
        ("gauss", 4.0, 50, 2.1930, 2.4048), ("gauss", 4.0, 200, 3.4935, 3.3387),
        ("gauss", 4.0, 1000, 4.9868, 3.7934), ("gauss", 4.0, 10000, 6.8408, 3.8706),
        ("laplace", 2.0, 50, 0.7252, 0.6983), ("laplace", 2.0, 200, 1.3701, 1.2672),
        ("laplace", 2.0, 1000, 1.7325, 1.6561), ("laplace", 2.0, 10000, 1.9099, 1.7054),
        ("wide", 2.0, 50, 0.2195, 0.1416), ("wide", 2.0, 200, 1.6547, 0.8459),
        ("wide", 2.0, 1000, 3.4145, 1.5843), ("wide", 2.0, 10000, 4.7276, 1.8450),
        ("apart", 2.0, 50, 2.2977, 2.6655), ("apart", 2.0, 200, 3.7203, 3.9671),
        ("apart", 2.0, 1000, 5.3393, 5.1833), ("apart", 2.0, 10000, 7.6441, 6.6056),
    ],
)  # fmt: skip
def test_at_least_as_tight_as_jax_privacys_bonferroni_on_the_same_scores(law, d, n, epsilon, mu):
    """Figures of jax_privacy 2.0.0 at significance 0.05, delta 1e-5: the larger of its one- and two-sided bounds.

    ``mu`` is its epsilon_from_gdp before the conversion, by the same formula with its sign kept: it takes |mu|, and
    so reports 8.2 for 50 scores of a Laplace pair whose mu it bounds by 0.70 (epsilon 2.9), which is no bound.
    """
    rng = np.random.default_rng(7)
    zero, one = LAWS[law](rng, n, d)
    assert lower_bound_from_scores(zero, one, 1e-5, rng=rng).low >= epsilon
    assert mu_bound_from_scores(zero, one, rng=rng).low >= mu


@pytest.mark.parametrize(
    ("m", "mu", "epsilon"),
    [
        (100, 1.0, 0.6007), (100, 2.0, 2.1604), (100, 4.0, 4.1229), (100, 8.0, 4.5527), (400, 1.0, 1.5514),
        (400, 2.0, 3.3355), (400, 4.0, 5.9198), (400, 8.0, 6.9695), (1000, 1.0, 1.6180), (1000, 2.0, 4.1057),
        (1000, 4.0, 7.0730), (1000, 8.0, 8.4437),
    ],
)  # fmt: skip
def test_one_run_at_least_as_tight_as_jax_privacys_on_the_same_scores(m, mu, epsilon):
    """Mean over five seeds of jax_privacy 2.0.0's epsilon_one_run_fdp (Bonferroni over thresholds), delta 1e-5."""
    lows = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        present = rng.random(m) < 0.5
        lows.append(one_run_mu_bound_from_scores(rng.normal(size=m) + mu * present, present).epsilon(1e-5))
    assert epsilon <= np.mean(lows)
    assert max(lows) <= gdp_epsilon(mu, 1e-5)


def test_ties_are_broken_and_worlds_may_be_exchanged():
    rng = np.random.default_rng(0)
    zero, one = (rng.random(4000) < 0.1).astype(float), (rng.random(4000) < 0.6).astype(float)
    found = lower_bound_from_scores(zero, one, rng=rng)
    assert 1.5 < found.low < math.log(6)
    turned = lower_bound_from_scores(-one, -zero, rng=rng)
    assert turned.low == pytest.approx(found.low, abs=0.15)  # other ties are broken
    assert lower_bound_from_scores(one, zero, rng=rng).low == 0  # the rule turned round says nothing


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_coverage_of_bounds_at_all_ranks(confidence):
    """3,000 audits each of exact Gaussian, Laplace and randomised response, 100 to 2,000 trials per world.

    Above the truth in at most alpha + 3.3 standard errors: false alarm below 0.1 % each if it were exactly alpha.
    """
    rng = np.random.default_rng(11)
    above = {name: 0 for name in ("gauss", "laplace", "response", "mu")}
    audits = 3000
    for i in range(audits):
        n = (100, 400, 2000)[i % 3]
        zero, one = rng.normal(size=n), rng.normal(1, 1, n)
        above["gauss"] += lower_bound_from_scores(zero, one, 1e-2, confidence, rng=rng).low > gdp_epsilon(1.0, 1e-2)
        above["mu"] += mu_bound_from_scores(zero, one, confidence, rng=rng).low > 1.0
        zero, one = rng.laplace(size=n), rng.laplace(1, 1, n)
        above["laplace"] += lower_bound_from_scores(zero, one, 0.0, confidence, rng=rng).low > 1.0
        p = 1 / (1 + math.e)
        zero, one = rng.random(n) < p, rng.random(n) >= p
        above["response"] += lower_bound_from_scores(zero, one, 0.0, confidence, rng=rng).low > 1.0
    alpha = 1 - confidence
    print({name: count / audits for name, count in above.items()})
    assert all(count <= audits * alpha + 3.3 * math.sqrt(audits * alpha * confidence) for count in above.values())
