"""Who is exposed: exact levels for one patient and for all at once."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from leakline.leakage.exposure import exposure, fewest_worlds, holm, tail


def test_tails_are_those_of_fair_coins():
    for worlds in (4, 16):
        for hits in range(worlds + 1):
            assert tail(hits, worlds) == pytest.approx(
                sum(comb(worlds, k) for k in range(hits, worlds + 1)) / 2**worlds
            )


def test_holm_by_hand():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.5, 0.9])), [1.0, 1.0])


def test_a_patient_who_is_always_told_right_is_exposed_as_soon_as_worlds_suffice():
    for patients in (1, 20, 400):
        fewest = fewest_worlds(patients)
        for worlds, found in ((fewest, True), (fewest - 1, False)):
            right = np.zeros((worlds, patients), dtype=bool)
            right[:, 0] = True
            right[: worlds // 2, 1:] = True
            exposed = exposure(right)
            assert exposed.exposed[0] == found
            assert exposed.exposed.sum() == found
            assert (exposed.sure[0] > 0.5) == found
            assert exposed.ceiling == pytest.approx(exposed.sure[0])


def test_bounds_hold_for_all_patients_at_once_where_their_answers_hang_together():
    """400 games of 60 patients in 12 worlds who move together in threes: an error in at most 5 %, so over 34 of 400 has
    probability below 0.002. Half of the patients really are told right 80 of 100 times."""
    rng = np.random.default_rng(0)
    truth = np.where(np.arange(60) < 30, 0.5, 0.8)
    false, missed, found = 0, 0, 0
    for _ in range(400):
        shared = np.repeat(rng.random((12, 20)), 3, axis=1)
        result = exposure(shared < truth)
        false += bool(result.exposed[:30].any())
        missed += bool((result.sure > truth).any())
        found += int(result.exposed[30:].sum())
    assert false <= 34
    assert missed <= 34
    assert found > 200


@pytest.mark.parametrize(("games", "most"), [(12, 3), pytest.param(200, 19, marks=pytest.mark.slow)])
def test_a_rule_that_must_not_see_the_coins_keeps_its_level(games, most):
    """Random membership: scores depend on nobody's coins, but are alike over records and worlds.

    Anybody is exposed in at most 5 % of games: more than 3 of 12 has probability 0.002, more than 19 of 200 below 0.01.
    """
    from leakline.attacks.learnt import told_apart

    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(games):
        coins = rng.random((10, 16)) < 0.5
        patient = np.repeat(np.arange(16), 2)
        scores = rng.normal(size=(10, 2, 32)) + rng.normal(size=(1, 2, 32)) + rng.normal(size=(10, 1, 1))
        wrong += bool(exposure(told_apart(scores, coins, patient) == coins).exposed.any())
    assert wrong <= most
