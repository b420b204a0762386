import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from leakline.measures import MEASURES
from leakline.utility import classification as ours

torch.set_num_threads(1)


def example(seed, n, k, missing=False):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k - 1 if missing and k > 2 else k, n)
    # Rounded logits make ties, which a sloppy AUC gets wrong.
    return np.round(rng.normal(size=(n, k)) + 0.7 * np.eye(k)[labels], 1), labels


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(4, 60), st.integers(2, 6), st.booleans())
def test_equals_scikit_learn(seed, n, k, missing):
    logits, labels = example(seed, n, k, missing)
    guess = logits.argmax(1)
    probability = torch.tensor(logits).softmax(1).numpy()
    options = {"average": "macro", "zero_division": 0}
    assert ours.accuracy(logits, labels) == pytest.approx(metrics.accuracy_score(labels, guess))
    assert ours.macro_f1(logits, labels) == pytest.approx(metrics.f1_score(labels, guess, **options))
    assert ours.macro_precision(logits, labels) == pytest.approx(metrics.precision_score(labels, guess, **options))
    assert ours.cross_entropy(logits, labels) == pytest.approx(
        metrics.log_loss(labels, probability, labels=range(k)), rel=1e-9
    )
    assert ours.micro_auc(logits, labels) == pytest.approx(
        metrics.roc_auc_score(np.eye(k)[labels].ravel(), probability.ravel()), abs=1e-12
    )
    recalls = [(guess[labels == c] == c).mean() for c in np.unique(labels)]
    assert ours.balanced_accuracy(logits, labels) == pytest.approx(np.mean(recalls))


def test_balanced_accuracy_is_scikit_learns():
    logits, labels = example(3, 200, 4)
    assert ours.balanced_accuracy(logits, labels) == pytest.approx(
        metrics.balanced_accuracy_score(labels, logits.argmax(1))
    )


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_chance_that_a_positive_wins(pairs):
    scores, truth = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    got = ours.binary_auc(scores, truth)
    if truth.all() or not truth.any():
        assert math.isnan(got)
    else:
        wins = np.subtract.outer(scores[truth], scores[~truth])
        assert got == pytest.approx(((wins > 0) + 0.5 * (wins == 0)).mean())


@pytest.mark.parametrize("k", [2, 4])
def test_summary_keys_ranges_and_kinds_of_array(k):
    logits, labels = example(0, 50, k)
    found = ours.summary(logits, labels)
    assert set(found) == set(ours.MEASURED) - (set() if k == 2 else {"auc_binary"})
    assert all(MEASURES[key].low <= value <= MEASURES[key].high for key, value in found.items())
    assert found == ours.summary(torch.tensor(logits, requires_grad=True), torch.tensor(labels))
    if k == 2:
        score = logits[:, 1] - logits[:, 0]
        assert found["auc_binary"] == pytest.approx(metrics.roc_auc_score(labels, score))


def test_perfect_answers_reach_the_good_end_of_every_range():
    labels = np.array([0, 1, 1, 0])
    found = ours.summary(1e3 * np.eye(2)[labels], labels)
    assert {key: value for key, value in found.items() if key != "loss"} == dict.fromkeys(set(found) - {"loss"}, 1.0)
    assert found["loss"] == 0


def test_rows_of_a_wrecked_model_are_wrong_answers():
    logits = torch.tensor([[2.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 0, 1])
    assert ours.accuracy(logits, labels) == 0.5
    assert ours.macro_precision(logits, labels) == 1.0
    assert ours.macro_f1(logits, labels) == pytest.approx((0.5 + 1) / 2)
    assert math.isnan(ours.summary(logits, labels)["auc_micro"])
    assert math.isnan(ours.summary(logits, labels)["loss"])


@pytest.mark.parametrize(
    ("logits", "labels"),
    [(np.zeros((2, 3)), [0, 3]), (np.zeros((2, 3)), [0]), (np.zeros((0, 3)), []), ([1.0], [0])],
)
def test_bad_input(logits, labels):
    with pytest.raises(ValueError, match="labels"):
        ours.summary(np.asarray(logits), np.asarray(labels))
