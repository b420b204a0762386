"""The estimate from two normal laws: right at a hundred canaries, silent where it would mislead."""

from __future__ import annotations

import numpy as np
import pytest

from leakline.leakage.one_run import best_guessed, one_run_mu_bound_from_scores
from leakline.leakage.two_laws import FEWEST, two_laws


def drawn(rng: np.random.Generator, canaries: int, mu: float, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    present = rng.random(canaries) < 0.5
    return rng.standard_normal(canaries) * np.where(present, spread, 1.0) + mu * present, present


@pytest.mark.parametrize(("canaries", "mu"), [(100, 0.5), (100, 1.2), (100, 3.0), (600, 1.0)])
def test_intervals_hold_the_truth_as_often_as_they_say(canaries, mu):
    rng = np.random.default_rng(canaries)
    found = [two_laws(*drawn(rng, canaries, mu)) for _ in range(400)]
    held = sum(f.low <= mu <= f.high for f in found if not isinstance(f, str))
    assert held >= 365  # 380 on average; fewer than 365 of 400 happens with probability 4e-4
    assert np.mean([f.mu for f in found if not isinstance(f, str)]) == pytest.approx(mu, abs=0.05)


def test_a_pair_of_laws_with_two_variances_has_no_estimate():
    rng = np.random.default_rng(1)
    assert isinstance(two_laws(*drawn(rng, 400, 1.0, spread=1.6)), str)
    assert isinstance(two_laws(*drawn(rng, FEWEST, 1.0)), str)
    assert isinstance(two_laws(np.zeros(200), rng.random(200) < 0.5), str)


@pytest.mark.parametrize(("canaries", "promised"), [(500, 0.9), (2000, 0.9)])
def test_what_is_said_to_be_found_nine_of_ten_times_is(canaries, promised):
    rng = np.random.default_rng(2)
    guessed, least = best_guessed(canaries, promised)
    found = sum(
        one_run_mu_bound_from_scores(*drawn(rng, canaries, least), guessed=guessed).low > promised for _ in range(80)
    )
    assert found >= 60  # 72 on average; fewer than 60 happens with probability 2e-5
    weaker = sum(
        one_run_mu_bound_from_scores(*drawn(rng, canaries, promised), guessed=guessed).low > promised for _ in range(80)
    )
    assert weaker == 0  # the theorem allows 4 on average, but is far from tight here


def test_where_no_number_of_right_guesses_would_do_nothing_is_promised():
    assert best_guessed(40, 8.0)[1] == np.inf
