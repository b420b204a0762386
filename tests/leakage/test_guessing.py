import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leakline.leakage import (
    advantage,
    auc,
    balanced_accuracy,
    best_threshold,
    bootstrap_interval,
    clopper_pearson,
    majority_baseline,
    permutation_p_value,
    roc,
    tpr_at_fpr,
    tpr_at_fprs,
)

scores_and_secrets = hnp.arrays(np.int64, st.integers(4, 60), elements=st.integers(-5, 5)).flatmap(
    lambda scores: st.tuples(
        st.just(scores.astype(float)),
        st.lists(st.integers(0, 1), min_size=len(scores) - 2, max_size=len(scores) - 2).map(
            lambda rest: np.array([0, 1, *rest])
        ),
    )
)


@settings(deadline=None, derandomize=True)
@given(scores_and_secrets)
def test_curve_and_area_agree_with_scikit_learn_with_ties(both):
    from sklearn.metrics import roc_auc_score, roc_curve

    scores, secrets = both
    fpr, tpr, thresholds = roc_curve(secrets, scores, drop_intermediate=False)
    curve = roc(scores, secrets)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)
    np.testing.assert_allclose(curve.thresholds, thresholds)
    assert auc(scores, secrets).value == pytest.approx(roc_auc_score(secrets, scores))


def test_delong_equals_its_definition_by_pairs():
    rng = np.random.default_rng(0)
    one, zero = np.round(rng.normal(0.7, 1, 40), 1), np.round(rng.normal(0, 1, 55), 1)
    kernel = (one[:, None] > zero) + 0.5 * (one[:, None] == zero)
    std = math.sqrt(kernel.mean(1).var(ddof=1) / 40 + kernel.mean(0).var(ddof=1) / 55)
    found = auc(np.r_[one, zero], np.r_[np.ones(40), np.zeros(55)])
    assert found.value == pytest.approx(kernel.mean())
    assert found.high - found.value == pytest.approx(1.959964 * std, rel=1e-6)
    assert (found.method, found.n, found.confidence) == ("DeLong", 95, 0.95)


def test_delong_and_bootstrap_cover_alike():
    rng = np.random.default_rng(1)
    truth = 0.7602  # Phi(1 / sqrt 2)
    hits = 0
    for _ in range(400):
        found = auc(np.r_[rng.normal(1, 1, 60), rng.normal(0, 1, 60)], np.repeat([1, 0], 60))
        hits += truth in found
    # nominal 380 of 400; DeLong is a little short at this size; at 94 % 355 lies 4.4 deviations below: < 1e-5
    assert hits >= 355
    s, y = np.r_[rng.normal(1, 1, 200), rng.normal(0, 1, 200)], np.repeat([1, 0], 200)
    delong, boot = auc(s, y), auc(s, y, rng=rng)
    assert boot.method == "bootstrap"
    assert boot.low == pytest.approx(delong.low, abs=0.015)
    assert boot.high == pytest.approx(delong.high, abs=0.015)


def test_perfect_separation_is_not_certainty():
    found = auc([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1])
    assert found.value == found.high == 1
    assert found.low == pytest.approx(0.025 ** (1 / 3))
    assert auc([4, 5, 6, 1, 2, 3], [0, 0, 0, 1, 1, 1]).high == pytest.approx(1 - 0.025 ** (1 / 3))


def test_clopper_pearson_against_tables():
    found = clopper_pearson(10, 100)
    assert (found.low, found.high) == pytest.approx((0.0490, 0.1762), abs=5e-5)
    assert clopper_pearson(0, 20).high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert clopper_pearson(0, 20).low == 0
    assert clopper_pearson(20, 20).high == 1
    with pytest.raises(ValueError, match="21"):
        clopper_pearson(21, 20)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 3000), st.floats(0, 1), st.floats(0.001, 0.5))
def test_clopper_pearson_inverts_the_binomial_tails(n, share, alpha):
    from scipy.stats import binom

    k = round(share * n)
    found = clopper_pearson(k, n, alpha)
    assert found.low <= found.value <= found.high
    if k > 0:
        assert binom.sf(k - 1, n, found.low) == pytest.approx(alpha / 2, rel=1e-6)
    if k < n:
        assert binom.cdf(k, n, found.high) == pytest.approx(alpha / 2, rel=1e-6)


def test_balanced_accuracy_and_advantage_by_hand():
    secrets = np.array([0] * 90 + [1] * 10)
    guesses = np.array([0] * 81 + [1] * 9 + [1] * 7 + [0] * 3)
    assert balanced_accuracy(guesses, secrets).value == pytest.approx(0.8)
    found = advantage(guesses, secrets)
    assert found.value == pytest.approx(0.6)
    assert found.low < 0.6 < found.high
    assert majority_baseline(secrets).value == 0.9
    three = balanced_accuracy(["a", "b", "b", "c"], ["a", "b", "c", "c"])
    assert three.value == pytest.approx((1 + 1 + 0.5) / 3)
    assert balanced_accuracy(secrets, secrets).high == 1


def test_balanced_accuracy_covers():
    rng = np.random.default_rng(2)
    secrets = np.repeat([0, 1], [30, 12])
    hits = 0
    for _ in range(500):
        right = np.where(secrets == 1, rng.random(42) < 0.8, rng.random(42) < 0.6)
        hits += 0.7 in balanced_accuracy(np.where(right, secrets, 1 - secrets), secrets)
    # at least 475 of 500 nominally; 450 lies 5.1 standard deviations below: false alarm < 1e-6
    assert hits >= 450


def test_tpr_at_low_fpr():
    secrets = np.r_[np.zeros(100), np.ones(50)]
    scores = np.r_[np.arange(100), np.full(20, 98.5), np.full(30, 50)]
    found = tpr_at_fpr(scores, secrets, 0.01)
    assert found.value == pytest.approx(20 / 50)
    assert (found.low, found.high) == pytest.approx((clopper_pearson(20, 50).low, clopper_pearson(20, 50).high))
    assert tpr_at_fpr(scores, secrets, 0.001).value == 0
    assert tpr_at_fpr(scores, secrets, 1).value == 1
    with pytest.raises(ValueError, match="2"):
        tpr_at_fpr(scores, secrets, 2)


def test_best_threshold_separates():
    assert best_threshold([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]) == 0.8


def test_permutation_null_is_uniform_and_a_planted_leak_is_found():
    from scipy.stats import kstest

    rng = np.random.default_rng(3)
    secrets = np.repeat([0, 1], 20)
    values = [permutation_p_value(rng.normal(size=40), secrets, rng, 199) for _ in range(400)]
    # p lies on a grid of 200 values; the Kolmogorov-Smirnov test rejects a true null with probability 1e-5
    assert kstest(np.array(values) - rng.random(400) / 200, "uniform").pvalue > 1e-5
    assert permutation_p_value(secrets + rng.normal(0, 0.1, 40), secrets, rng) == pytest.approx(1 / 1000)


def test_permutation_with_a_statistic_of_ones_own():
    rng = np.random.default_rng(4)
    scores, secrets = rng.normal(size=30), np.tile([0, 1], 15)

    def difference(s, y):
        return s[y].mean() - s[~y].mean()

    assert permutation_p_value(scores, secrets, rng, 99, lambda s, y: 1.0) == 1  # ties count against the attack
    assert 0 < permutation_p_value(scores, secrets, rng, 99, difference) <= 1


def test_bootstrap_moves_users_not_rows():
    rng = np.random.default_rng(5)
    users = np.repeat(np.arange(25), 40)
    values = np.repeat(rng.normal(size=25), 40)  # forty copies of the same evidence
    found = bootstrap_interval(lambda rows: float(values[rows].mean()), users, rng)
    expected = 2 * 1.96 * values.std() / math.sqrt(25)
    assert found.high - found.low == pytest.approx(expected, rel=0.1)
    assert (found.n, found.value) == (25, pytest.approx(values.mean()))
    with pytest.raises(ValueError, match="1"):
        bootstrap_interval(lambda rows: 0.0, np.zeros(10), rng)


def test_bootstrap_leaves_out_draws_that_cannot_be_judged():
    rng = np.random.default_rng(6)
    secrets = np.array([0, 1, 0, 1])

    def accuracy_if_both(rows):
        return float(secrets[rows].mean()) if len(set(secrets[rows])) == 2 else math.nan

    found = bootstrap_interval(accuracy_if_both, ["a", "b", "c", "d"], rng, 200)
    assert 0 < found.low <= found.high < 1


@pytest.mark.parametrize(
    ("scores", "secrets", "named"),
    [
        ([1.0, 2.0], [0, 1, 1], "2 and 3"),
        ([1.0, math.nan], [0, 1], "nan"),
        ([1.0, 2.0], [1, 1], r"\[1\]"),
        ([1.0, 2.0], [0, 2], r"\[0, 2\]"),
    ],
)
def test_wrong_input_is_named(scores, secrets, named):
    with pytest.raises(ValueError, match=named):
        auc(scores, secrets)


def test_a_kept_curve_lies_on_the_curve_and_stops_where_the_zeros_do():
    rng = np.random.default_rng(3)
    secrets = np.r_[np.zeros(60, dtype=int), np.ones(80, dtype=int)]
    scores = rng.normal(secrets, 1.0)
    found = tpr_at_fprs(scores, secrets)
    assert list(found) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]  # 60 zeros: no 1 in 1000; 1 % is quoted
    curve = roc(scores, secrets)
    for fpr, share in found.items():
        below = curve.fpr <= fpr + 1e-12
        assert share.value == pytest.approx(curve.tpr[below].max())
        assert share.n == 80
        assert (share.low, share.high) == pytest.approx(_ends(share.value, 80))
    assert 0.001 in tpr_at_fprs(np.arange(1010), np.r_[np.zeros(1000), np.ones(10)])
    assert 0.001 not in tpr_at_fprs(np.arange(1009), np.r_[np.zeros(999), np.ones(10)])


def _ends(share, n):
    from scipy.stats import binomtest

    found = binomtest(round(share * n), n).proportion_ci(0.95, "exact")
    return found.low, found.high
