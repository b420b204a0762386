import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.privacy import gdp_delta, gdp_epsilon, gdp_mu


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon", "digits"),
    [
        (20, 0.01, 245.6, 0.05),
        (10, 0.01, 72.4, 0.05),
        (20 / 3, 0.01, 36.9, 0.05),
        (100 / 3, 0.1, 597.3, 0.05),
        (20, 0.1, 224.7, 0.05),
        (100 / 7, 0.1, 119.4, 0.05),
        (100, 1e-5, 5425.5, 0.05),
        (math.sqrt(200_000), 1e-5, 101_906, 0.5),
        (0.5, 1e-5, 1.99, 0.005),
        (1, 1e-5, 4.3772, 5e-5),
        (math.sqrt(20), 1e-5, 28.3735, 5e-5),
        (math.sqrt(20) / 0.3, 1e-5, 173.81, 0.005),
        (math.sqrt(10) / 0.05, 1e-5, 2268.77, 0.005),
    ],
)
def test_published_conversions(mu, delta, epsilon, digits):
    assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, abs=digits)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [(0.01, 0.05), (1, 0), (1, 4), (1, 40), (30, 400), (30, 700), (2000, 2e6), (2000, 2.1e6), (3, -2)],
)
def test_delta_equals_its_definition_in_high_precision(mu, epsilon):
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        phi = lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2  # noqa: E731
        exact = phi(-e / m + m / 2) - mpmath.exp(e) * phi(-e / m - m / 2)
        assert gdp_delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-8, abs=0)


def test_edges():
    assert gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_epsilon(0.0, 0.0) == 0
    assert gdp_epsilon(1.0, 0.0) == math.inf
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_epsilon(1e-7, 1e-5) == 0
    assert gdp_delta(math.inf, 5.0) == 1
    assert gdp_delta(0.0, 0.0) == 0
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="mu"):
            gdp_epsilon(bad, 1e-5)
    for bad in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            gdp_epsilon(1.0, bad)
    with pytest.raises(ValueError, match="0.0"):
        gdp_mu(1.0, 0.0)


mus = st.floats(1e-3, 5e3)
deltas = st.floats(-280, -0.1).map(lambda power: 10.0**power)


@settings(deadline=None, derandomize=True)
@given(mus, deltas)
def test_epsilon_inverts_delta(mu, delta):
    epsilon = gdp_epsilon(mu, delta)
    if epsilon > 0:
        assert math.log(gdp_delta(mu, epsilon)) == pytest.approx(math.log(delta), abs=1e-6)
    else:
        assert gdp_delta(mu, 0.0) <= delta


@settings(deadline=None, derandomize=True)
@given(mus, deltas, st.floats(1.01, 3))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, delta, factor):
    epsilon = gdp_epsilon(mu, delta)
    assert gdp_epsilon(mu * factor, delta) >= epsilon
    assert gdp_epsilon(mu, delta / factor) >= epsilon


@settings(deadline=None, derandomize=True)
@given(st.floats(0.01, 1e4), st.floats(-50, -1).map(lambda power: 10.0**power))
def test_mu_inverts_epsilon(epsilon, delta):
    assert gdp_epsilon(gdp_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-7)
