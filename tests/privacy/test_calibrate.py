import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakline.privacy import Adjacency, Claim, Gaussian, Seat, Unit, account, calibrate


def epsilon(z, delta, rounds, rate=1.0, adjacency=Adjacency.ADD_REMOVE):
    mu = (2 if adjacency is Adjacency.REPLACE_ONE else 1) / z
    return account(Claim(Unit.CLIENT, adjacency, Seat.CLIENT, (Gaussian(mu, rounds, rate),)), delta).epsilon


def test_what_twenty_rounds_need():
    assert calibrate(8, 1e-5, 20) == pytest.approx(2.68, abs=0.005)
    assert calibrate(1, 1e-5, 20) == pytest.approx(16.7, abs=0.05)
    assert calibrate(8, 1e-5, 20, adjacency=Adjacency.REPLACE_ONE) == pytest.approx(2 * 2.6843, abs=0.001)


@settings(deadline=None, derandomize=True)
@given(st.floats(0.01, 1000), st.floats(1e-12, 0.1), st.integers(1, 10_000), st.sampled_from(list(Adjacency)))
def test_round_trip_never_exceeds_what_was_asked(wanted, delta, rounds, adjacency):
    found = epsilon(calibrate(wanted, delta, rounds, adjacency=adjacency), delta, rounds, 1.0, adjacency)
    assert found <= wanted * (1 + 1e-12)
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_round_trip_with_sampling(adjacency):
    z = calibrate(3.0, 1e-5, 20, rate=0.1, adjacency=adjacency)
    assert epsilon(z, 1e-5, 20, 0.1, adjacency) == pytest.approx(3.0, rel=2e-3)
    assert epsilon(z, 1e-5, 20, 0.1, adjacency) <= 3.0 * (1 + 1e-4)
    assert z < calibrate(3.0, 1e-5, 20, adjacency=adjacency)


def test_without_cells_the_noise_is_more_than_needed():
    hasty = calibrate(3.0, 1e-5, 100, rate=0.05, cells=0)
    assert epsilon(hasty, 1e-5, 100, 0.05) < 3.0
    assert hasty < calibrate(3.0, 1e-5, 100)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0.0, 1e-5, 10), "0.0"),
        ((-1.0, 1e-5, 10), "-1.0"),
        ((math.inf, 1e-5, 10), "inf"),
        ((1.0, 0.0, 10), "0.0"),
        ((1.0, 1.0, 10), "1.0"),
        ((1.0, 1e-5, 0), "0"),
        ((1.0, 1e-5, 10, 0.0), "0.0"),
        ((1.0, 1e-5, 10, 1.1), "1.1"),
    ],
)
def test_impossible_wishes_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        calibrate(*arguments)
