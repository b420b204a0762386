import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import beta, binom
from scipy.stats import t as student

from leakline.leakage import (
    advantage,
    auc,
    balanced_accuracy,
    best_threshold,
    clopper_pearson,
    majority_baseline,
    mean_interval,
    over_units,
    permutation_p_value,
    roc,
    tpr_at_fpr,
    tpr_at_fprs,
)
from leakline.leakage.guessing import FEWEST_TO_TELL, newcombe_auc

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
    odds = math.log(found.value / (1 - found.value)) - student.ppf(0.975, 39) * std / (found.value * (1 - found.value))
    delong, newcombe = 1 / (1 + math.exp(-odds)), newcombe_auc(found.value, 40, 55)
    assert found.low == pytest.approx(min(delong, newcombe[0]), rel=1e-6)
    assert (found.method, found.n, found.confidence) == ("DeLong and Newcombe", 95, 0.95)


def test_newcombes_ends_lie_where_his_test_turns():
    for value, ones, zeros in ((0.9, 12, 30), (0.5, 10, 10), (0.99, 40, 40)):
        for end in newcombe_auc(value, ones, zeros):
            mean = (ones + zeros) / 2
            spread = 1 + (mean - 1) * ((1 - end) / (2 - end) + end / (1 + end))
            assert (value - end) ** 2 == pytest.approx(
                1.959964**2 * end * (1 - end) * spread / (ones * zeros), rel=1e-5
            )
    # equal sizes: Hanley and McNeil's variance itself, with Q1 = A / (2 - A) and Q2 = 2 A^2 / (1 + A)
    a, n = 0.8, 25
    hanley = a * (1 - a) + (n - 1) * (a / (2 - a) - a**2) + (n - 1) * (2 * a**2 / (1 + a) - a**2)
    assert a * (1 - a) * (1 + (n - 1) * ((1 - a) / (2 - a) + a / (1 + a))) == pytest.approx(hanley)


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
    # 100 zeros: none of them is surely above the 1 % threshold; the fifth largest, 95, is surely below it
    assert binom.cdf(0, 100, 0.01) > 0.0125 >= binom.sf(4, 100, 0.01)
    assert binom.sf(3, 100, 0.01) > 0.0125
    assert (found.low, found.high) == pytest.approx((0.0, beta.ppf(1 - 0.0125, 21, 30)))
    wide = tpr_at_fpr(scores, secrets, 0.5)
    assert binom.cdf(38, 100, 0.5) <= 0.0125 < binom.cdf(39, 100, 0.5)  # the 39th largest, 61, is surely above
    assert wide.low == pytest.approx(beta.ppf(0.0125, 20, 31))
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


def test_users_are_left_out_not_rows():
    rng = np.random.default_rng(5)
    users = np.repeat(np.arange(25), 40)
    values = np.repeat(rng.uniform(0.3, 0.7, size=25), 40)  # forty copies of the same evidence
    found = over_units(lambda rows: float(values[rows].mean()), users)
    mean, std = values.mean(), values[::40].std(ddof=1) / 5
    reach = student.ppf(0.975, 24) * std / (mean * (1 - mean))  # of a mean the jackknife is s / sqrt(n) itself
    assert found.high == pytest.approx(1 / (1 + (1 - mean) / mean * math.exp(-reach)))
    assert (found.n, found.value) == (25, pytest.approx(mean))
    with pytest.raises(ValueError, match="1"):
        over_units(lambda rows: 0.0, np.zeros(10))
    assert over_units(lambda rows: 1.0, np.arange(10)).low == pytest.approx(clopper_pearson(10, 10).low)


def test_units_without_which_nothing_can_be_judged_are_left_out():
    secrets = np.array([0, 1, 0, 1, 0])

    def share_if_both(rows):
        return float(secrets[rows].mean()) if len(set(secrets[rows])) == 2 else math.nan

    found = over_units(share_if_both, ["a", "b", "c", "b", "d"])  # without b there is one class only
    assert 0 < found.low <= found.value <= found.high < 1


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
        assert share.low <= share.value <= share.high
    twice = tpr_at_fprs(np.r_[scores, scores], np.r_[secrets, secrets], copies=2)
    for fpr, share in found.items():  # two looks at the same units are no more evidence
        assert twice[fpr].value == share.value
        assert (twice[fpr].low, twice[fpr].high, twice[fpr].n) == pytest.approx((share.low, share.high, 80))
    assert 0.001 in tpr_at_fprs(np.arange(1010), np.r_[np.zeros(1000), np.ones(10)])
    assert 0.001 not in tpr_at_fprs(np.arange(1009), np.r_[np.zeros(999), np.ones(10)])


def test_students_interval_with_and_without_weights():
    x = np.array([0.2, 0.9, 0.4, 0.7])
    found = mean_interval(x)
    low, high = student.interval(0.95, 3, x.mean(), x.std(ddof=1) / 2)
    assert (found.value, found.low, found.high) == pytest.approx((x.mean(), low, high))
    assert mean_interval(x, [3, 3, 3, 3]).low == pytest.approx(low)
    weighted = mean_interval(x, [1, 2, 3, 4])
    assert weighted.value == pytest.approx(np.average(x, weights=[1, 2, 3, 4]))
    assert weighted.low < weighted.value < weighted.high
    assert mean_interval([2.0]).low == 2.0
    with pytest.raises(ValueError, match="0"):
        mean_interval([])


def test_how_many_ones_it_takes_to_tell_anything():
    separated = [auc(np.arange(2 * n), np.arange(2 * n) >= n).low > 0.5 for n in range(1, 12)]
    assert separated.index(True) + 1 == FEWEST_TO_TELL == 6
