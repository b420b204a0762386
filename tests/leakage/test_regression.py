"""Memberships by regression: planted answers, the ridge's closed form, and the bound of a promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from leakline.leakage.guessing import auc
from leakline.leakage.regression import ALONE, RIDGES, Products, memberships


def products(rows: np.ndarray, sent: np.ndarray) -> Products:
    return Products(rows @ rows.T, rows @ sent)


def planted(
    n: int, width: int, noise: float, alike: float, seed: int, releases: int = 2
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Members by a coin, and releases: gradients of length one of ten kinds, and the noised sum of the members'."""
    rng = np.random.default_rng(seed)
    member, kind = rng.random(n) < 0.5, rng.integers(10, size=n)
    found = []
    for _ in range(releases):
        rows = rng.standard_normal((n, width)) / np.sqrt(width)
        rows[np.arange(n), kind] += alike
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        found.append((rows, member @ rows + noise * rng.standard_normal(width)))
    return member, found


@pytest.mark.parametrize("releases", [1, 2])
def test_without_noise_every_member_is_found(releases: int) -> None:
    member, found = planted(100, 1000, 0.0, 1.0, 0, releases)
    scores = memberships(*(products(*each) for each in found))
    assert auc(scores, member).value == 1.0


def test_one_release_is_the_ridge_over_all_values() -> None:
    _, [(rows, sent)] = planted(40, 300, 0.5, 1.0, 1, releases=1)
    mu = rows.sum(0) @ sent / (rows.sum(0) @ rows.sum(0))
    # the same minimum, found as least squares with the prior as further equations
    system = np.vstack([rows.T, np.sqrt(ALONE) * np.eye(40)])
    expected = np.linalg.lstsq(system, np.concatenate([sent - mu * rows.sum(0), np.zeros(40)]), rcond=None)[0]
    assert memberships(products(rows, sent)) == pytest.approx(expected, abs=1e-9)


def test_the_error_is_that_of_the_sum() -> None:
    _, [(rows, sent)] = planted(30, 200, 0.5, 1.0, 2, releases=1)
    m = np.linspace(-1, 1, 30)
    expected = np.square(sent - m @ rows).sum() - np.square(sent).sum()
    assert products(rows, sent).error(m) == pytest.approx(expected)


def test_halves_choose_a_ridge_that_fits_the_noise() -> None:
    """Much noise asks for a large ridge, none for a small one: by AUC the choice is near the best of all."""
    for noise in (0.0, 0.3, 3.0):
        chosen, best = [], []
        for seed in range(10):
            member, found = planted(200, 3000, noise, 2.0, seed)
            one, other = (products(*each) for each in found)
            chosen.append(auc(memberships(one, other), member).value)
            best.append([auc((one + other).fit(ridge)[1], member).value for ridge in RIDGES])
        assert np.mean(chosen) > np.mean(best, axis=0).max() - 0.02, noise


def test_records_that_look_alike_are_told_apart_where_single_products_fail() -> None:
    """Twenty planted sums; the mean gain lies ten standard errors above 0 (chance: below 1e-8)."""
    gains = []
    for seed in range(20):
        member, found = planted(200, 5000, 0.3, 3.0, seed)
        scores = memberships(*(products(*each) for each in found))
        gains.append(auc(scores, member).value - auc(sum(rows @ sent for rows, sent in found), member).value)
    assert np.mean(gains) > 10 * np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) > 0.05


def test_over_releases_it_comes_near_what_the_noise_allows() -> None:
    """Nearly orthogonal gradients, two releases: AUC is Phi(mu / sqrt(2)) for mu = sqrt(2) / noise, and no more.

    20 planted sums of 400 records: the standard error of the mean AUC is 0.006, so five of them are 0.03.
    """
    found = []
    for seed in range(20):
        member, releases = planted(400, 8_000, np.sqrt(2), 0.0, seed)
        found.append(auc(memberships(*(products(*each) for each in releases)), member).value)
    assert np.mean(found) == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.03)


def test_scale_does_not_matter_and_nothing_is_no_answer() -> None:
    _, found = planted(30, 200, 0.5, 1.0, 3)
    one = memberships(*(products(*each) for each in found))
    ten = memberships(*(products(rows, 10 * sent) for rows, sent in found))
    assert ten == pytest.approx(10 * one)
    assert not memberships(Products(np.zeros((5, 5)), np.zeros(5))).any()
