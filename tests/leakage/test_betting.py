"""Bets against a promise: no money is made of a kept one, whenever one looks; a broken one is soon found out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from leakline.leakage.betting import (
    VIOLATIONS,
    bettors,
    log_wealth,
    lower_bound_so_far,
    refuted_after,
    smallest_found,
    trials_to_find,
)
from leakline.privacy import gdp_delta


def drawn(rng, mu: float, trials: int) -> tuple[np.ndarray, np.ndarray]:
    ones = rng.random(trials) < 0.5
    return rng.standard_normal(trials) + mu * ones, ones


def answered(rng, epsilon: float, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response: the score's sign is the answer."""
    ones = rng.random(trials) < 0.5
    true = rng.random(trials) < 1 / (1 + math.exp(-epsilon))
    return np.where(ones == true, 1.0, -1.0), ones


@pytest.mark.parametrize("promised", [0.2, 1.0, 3.0])
def test_every_bettor_stakes_on_a_point_of_the_promises_own_curve(promised):
    for bettor in bettors("mu", promised):
        assert bettor.delta == pytest.approx(gdp_delta(promised, bettor.epsilon), abs=1e-12)
        assert 0 < bettor.stake < 1 / (math.exp(bettor.epsilon) + bettor.delta / 2)
    assert all(b.delta == 0 and b.epsilon == pytest.approx(promised) for b in bettors("pure", promised))


@pytest.mark.parametrize("kind", ["mu", "pure"])
@pytest.mark.parametrize("promised", [0.5, 1.0, 4.0])
def test_no_bet_has_a_gain_on_average_where_the_promise_is_just_kept(kind, promised):
    for bettor in bettors(kind, promised):
        if kind == "mu":
            p0, p1 = ndtr(-bettor.place), ndtr(promised - bettor.place)
        else:
            p0 = 1 / (1 + math.exp(promised))
            p1 = 1 - p0
        up, down = (
            (np.array([bettor.place + 1.0]), np.array([True])),
            (np.array([bettor.place + 1.0]), np.array([False])),
        )
        won, lost = (math.exp(float(bettor.log_factors(*case)[0])) for case in (up, down))
        idle = 1 - bettor.stake * bettor.delta / 2
        mean = p1 / 2 * won + p0 / 2 * lost + (1 - (p0 + p1) / 2) * idle
        assert mean <= 1 + 1e-12


def test_a_kept_promise_is_refuted_no_more_often_than_alpha_at_any_time():
    rng = np.random.default_rng(1)
    alarms = sum(refuted_after(log_wealth(*drawn(rng, 1.0, 3000), "mu", 1.0), 0.05) is not None for _ in range(200))
    assert alarms <= 20  # 10 at most on average; more than 20 happens with probability 1e-3
    alarms = sum(
        refuted_after(log_wealth(*answered(rng, 1.0, 3000), "pure", 1.0), 0.05) is not None for _ in range(200)
    )
    assert alarms <= 20


@pytest.mark.parametrize(("kind", "promised", "times"), [("mu", 1.0, 2.0), ("mu", 0.5, 1.5), ("pure", 2.0, 1.5)])
def test_a_broken_promise_is_refuted_in_the_trials_that_are_said_to_do(kind, promised, times):
    rng, alpha = np.random.default_rng(2), 0.003
    trials = math.ceil(trials_to_find(kind, promised, times, alpha))
    play = drawn if kind == "mu" else answered
    found = [refuted_after(log_wealth(*play(rng, times * promised, trials), kind, promised), alpha) for _ in range(60)]
    assert sum(f is not None for f in found) >= 45  # 54 on average; fewer than 45 happens with probability 1e-3
    assert smallest_found(kind, promised, trials, alpha) == pytest.approx(times, rel=0.02)


def test_the_bound_holds_whenever_one_stops_and_comes_near_the_truth():
    rng = np.random.default_rng(3)
    scores, ones = drawn(rng, 1.0, 8000)
    lows = [lower_bound_so_far(scores[:n], ones[:n], "mu", 0.8, 0.01) for n in (61, 300, 2000, 8000)]
    assert max(lows) <= 1.0
    assert lows[-1] > 0.75
    assert lower_bound_so_far(scores[:50], ones[:50], "mu", 0.8, 0.01) == 0.0


def test_nothing_is_bet_on_nothing():
    assert len(log_wealth(np.zeros(10), np.zeros(10), "mu", 1.0)) == 0
    one_world = log_wealth(np.zeros(200), np.ones(200), "mu", 1.0)
    assert (one_world <= 1e-12).all()  # the calibration saw one world only: nobody bets
    assert smallest_found("mu", 1.0, 61, 0.01) == math.inf
    assert len(VIOLATIONS) >= 3
