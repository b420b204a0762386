"""Amplification by shuffling: the summed divergence against enumeration, its limits, a game below it."""

from __future__ import annotations

import math
from itertools import product

import pytest
from scipy.stats import binom

from leakline.leakage.closed_forms import shuffled_flip_epsilon
from leakline.privacy.shuffle import shuffled_delta, shuffled_epsilon


def enumerated(epsilon: float, clients: int, amplified: float) -> float:
    """The divergence of the two laws of Theorem 3.1, outcome by outcome."""
    q, shared = math.exp(epsilon) / (1 + math.exp(epsilon)), math.exp(-epsilon)
    laws: tuple[dict[tuple[int, int], float], ...] = ({}, {})
    for c in range(clients):
        for a, d in product(range(c + 1), (0, 1)):
            chance = binom.pmf(c, clients - 1, shared) * binom.pmf(a, c, 0.5) * (q if d else 1 - q)
            for law, own in zip(laws, (d, 1 - d), strict=True):
                key = (a + own, c - a + 1 - own)
                law[key] = law.get(key, 0.0) + float(chance)
    return sum(max(0.0, p - math.exp(amplified) * laws[1].get(key, 0.0)) for key, p in laws[0].items())


@pytest.mark.parametrize("clients", [1, 2, 5, 30])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_sum_is_that_of_all_outcomes(epsilon: float, clients: int) -> None:
    for share in (0.0, 0.2, 0.5, 0.9):
        summed = shuffled_delta(epsilon, clients, share * epsilon)
        assert summed == pytest.approx(enumerated(epsilon, clients, share * epsilon), rel=1e-9, abs=2e-12)


def test_epsilon_is_where_delta_is_met_and_never_above_the_reports_own() -> None:
    for epsilon, clients in ((1.0, 1_000), (2.0, 10_000)):
        found = shuffled_epsilon(epsilon, clients, 1e-5)
        assert 0 < found < epsilon
        assert shuffled_delta(epsilon, clients, found, 1e-5) <= 1e-5
        assert shuffled_delta(epsilon, clients, 0.99 * found) > 1e-5
    assert shuffled_epsilon(4.0, 1, 1e-5) == pytest.approx(4.0, abs=1e-4)  # alone: nothing but delta
    assert shuffled_epsilon(1.0, 1_000, 0.0) == 1.0  # pure promises are not amplified


def test_it_falls_with_the_crowd_like_its_root() -> None:
    found = [shuffled_epsilon(1.0, n, 1e-6) for n in (10_000, 40_000, 160_000)]
    assert [b / a for a, b in zip(found, found[1:], strict=False)] == pytest.approx([0.5, 0.5], abs=0.03)


def test_no_game_of_flipped_gradients_finds_more() -> None:
    for epsilon, clients in product((0.5, 1.0, 2.0, 4.0), (1, 10, 100, 1_000)):
        exact = shuffled_flip_epsilon(epsilon, clients, 1e-5)
        assert exact <= shuffled_epsilon(epsilon, clients, 1e-5) + 1e-5
    assert shuffled_flip_epsilon(4.0, 1, 1e-5) == pytest.approx(4.0, abs=1e-3)  # one report: the randomiser's own


def test_bad_settings() -> None:
    for epsilon, clients, delta in ((0.0, 10, 1e-5), (1.0, 0, 1e-5), (1.0, 10, 1.0)):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            shuffled_epsilon(epsilon, clients, delta)
    with pytest.raises(ValueError, match="a client"):
        shuffled_flip_epsilon(1.0, 0, 1e-5)
