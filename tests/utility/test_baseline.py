"""Constant answers: closed forms, scikit-learn's dummy model, and that a real run carries them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.dummy import DummyClassifier

from leakline.cards import Card
from leakline.data import Data, Dataset, Elsewhere, Even, partition
from leakline.defences import FedPer
from leakline.errors import StackError
from leakline.federation import Federation
from leakline.models import MLP
from leakline.readings import Reading
from leakline.settings import Judging
from leakline.study.carded import card_of
from leakline.study.check import _look_at_classes
from leakline.study.judges import baseline_of
from leakline.study.store import Store
from leakline.study.train import train_run
from leakline.utility import MENU, objective
from leakline.utility.baseline import no_better, quoted, remark

torch.set_num_threads(1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(2, 5))
def test_classes_are_what_a_dummy_model_gets(seed, n, k):
    """scikit-learn's dummy answers the commonest class with the classes' frequencies as its probabilities."""
    labels = np.concatenate([np.arange(k), np.random.default_rng(seed).integers(0, k, n)])
    blind = objective("classification").baseline(torch.tensor(labels), [f"c{i}" for i in range(k)])
    model = DummyClassifier(strategy="prior").fit(labels[:, None], labels)
    answers, chances = model.predict(labels[:, None]), model.predict_proba(labels[:, None])
    assert blind.answer == f"always answering c{answers[0]}"
    wanted = {
        "accuracy": metrics.accuracy_score(labels, answers),
        "balanced_accuracy": 1 / k,
        "f1": metrics.f1_score(labels, answers, average="macro", zero_division=0),
        "precision": metrics.precision_score(labels, answers, average="macro", zero_division=0),
        "auc_micro": metrics.roc_auc_score(np.eye(k)[labels].ravel(), chances.ravel()),
        "loss": metrics.log_loss(labels, chances),
    }
    if k == 2:
        wanted["auc_binary"] = 0.5
    assert dict(blind.figures) == pytest.approx(wanted, rel=1e-6)


def test_a_class_that_the_test_set_lacks_changes_nothing():
    labels = torch.tensor([0, 0, 1])
    two, three = (objective("classification").baseline(labels, names) for names in ("ab", "abc"))
    assert three.figures["accuracy"] == two.figures["accuracy"] == pytest.approx(2 / 3)
    assert three.figures["loss"] == pytest.approx(two.figures["loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("masks", "answer", "dice"),
    [
        ([[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], "always marking nothing", 2 / 3),
        ([[1, 0, 0, 0], [1, 1, 0, 0]], "always marking everything", (2 / 5 + 4 / 6) / 2),
    ],
)
def test_masks_have_two_constant_answers(masks, answer, dice):
    blind = objective("segmentation").baseline(torch.tensor(masks).view(-1, 1, 2, 2), ("background", "marked"))
    assert (blind.answer, blind.figures["dice"]) == (answer, pytest.approx(dice))


@pytest.mark.parametrize("name", MENU)
def test_every_measure_has_a_baseline_and_no_constant_beats_it(name):
    goal, draw = MENU[name], torch.Generator().manual_seed(0)
    if goal.kind == "classification":
        targets = torch.randint(0, 3, (40,), generator=draw)
        constants = [torch.randn(3, generator=draw).expand(40, 3) for _ in range(20)]
    else:
        targets = (torch.rand((12, 1, 6, 6), generator=draw) < 0.2).to(torch.uint8)
        constants = [torch.randn((), generator=draw).expand(targets.shape) * 5 for _ in range(20)]
    blind = goal.baseline(targets, ("a", "b", "c"), torch.arange(len(targets)) // 2)
    assert set(blind.figures) == set(goal.summary(constants[0], targets, torch.arange(len(targets)) // 2))
    for outputs in constants:
        assert goal.summary(outputs, targets)[goal.headline] <= blind.figures[goal.headline] + 1e-12
        if name in ("cross-entropy", "bce"):  # whose best constant has a closed form; soft Dice's has none
            assert goal.summary(outputs, targets)["loss"] >= blind.figures["loss"] - 1e-9


def reading(measure, value, low=None, chance=0.5):
    return Reading(measure, value, low, None if low is None else 1.0, chance=chance, about={"blind": "always yes"})


def test_what_is_quoted_and_in_which_order():
    names = ["loss", "auc_micro", "auc_binary", "f1", "balanced_accuracy", "accuracy"]
    assert [r.measure for r in quoted([reading(n, 0.5) for n in names])] == [
        "accuracy", "balanced_accuracy", "auc_binary",
    ]  # fmt: skip
    assert [r.measure for r in quoted([reading("auc_micro", 0.5)])] == ["auc_micro"]


def test_a_card_says_that_a_model_is_worth_nothing():
    constant = (reading("accuracy", 0.734, 0.667, 0.734), reading("balanced_accuracy", 0.5, 0.46))
    rows = Card("t", (), utility=constant).rows()
    assert ("utility", "accuracy 0.734 [0.667, 1] (always yes: 0.734)") in rows
    assert ("utility", "balanced_accuracy 0.500 [0.46, 1] (that answer: 0.5)") in rows
    assert ("mind", "the model is no better than always yes") in rows
    ranks = (*constant, reading("auc_binary", 0.8, 0.7))  # its threshold is wrong, but its scores are not
    assert no_better(ranks) == "no better than always yes; another threshold on its scores may do better (AUC 0.8)"
    assert no_better((reading("auc_micro", 0.9), *constant)) != ""  # no interval: it proves nothing beside those
    assert no_better([reading("auc_binary", 0.8, 0.7)]) == ""  # where nothing else was measured
    assert no_better(()) == no_better([Reading("accuracy", math.nan)]) == ""


def test_a_model_that_answers_the_rarer_class_is_worth_nothing_however_it_ranks():
    """Right for 16 of 42 where the constant answer is right for 26: its AUC must not excuse what it answers."""
    rarer = [reading("accuracy", 0.381, 0.25, 26 / 42), reading("balanced_accuracy", 0.5, 0.5)]
    ranks = reading("auc_binary", 0.93, 0.85)
    assert no_better([*rarer, ranks]).startswith("no better than always yes")
    assert remark([*rarer, ranks]) == no_better([*rarer, ranks])
    assert no_better([reading("accuracy", 0.65, 0.5, 26 / 42), ranks]).startswith("not measurably better than always")


def test_where_accuracy_alone_is_no_better_that_is_said_of_accuracy():
    """A rare illness: who finds it gives up accuracy for balanced accuracy, and is not worth nothing."""
    rare = [reading("accuracy", 0.85, 0.8, 0.95), reading("balanced_accuracy", 0.85, 0.75)]
    assert no_better(rare) == ""
    assert remark(rare) == "no better than always yes by accuracy, but by balanced accuracy"
    assert ("mind", f"the model is {remark(rare)}") in Card("t", (), utility=tuple(rare)).rows()
    assert remark([reading("accuracy", 0.97, 0.96, 0.95), *rare[1:]]) == ""


def skewed(**settings):
    """Three quarters of every holder's examples are of one class."""
    rng = np.random.default_rng(0)
    y = torch.tensor([0, 1, 1, 1] * 20)
    dataset = Dataset("skewed", Data(torch.tensor(rng.random((80, 6)), dtype=torch.float32), y), None, ("well", "sick"))
    task = partition(dataset, Even(), 2, server_test=0.25)
    return Federation(task, MLP(hidden=(4,)), rounds=1, **settings)


@pytest.mark.parametrize("who", ["server", "clients"])
def test_a_run_carries_the_constant_answer_beside_every_figure(who, tmp_path):
    federation = skewed(judging=Judging(evaluate=who))
    run = train_run(Store(tmp_path), federation)
    readings = [Reading.of(line) for line in run.readings()]
    whole = {r.measure: r for r in readings if r.client is None}
    assert set(whole) >= {"accuracy", "balanced_accuracy", "auc_binary", "loss"}
    assert {r.about["blind"] for r in readings} == {"always answering sick"}
    parts = [federation.task.test] if who == "server" else [c.test for c in federation.task.clients]
    sick = [float(part.y.double().mean()) for part in parts]
    chances = {name: r.chance for name, r in whole.items()}
    assert chances["accuracy"] == pytest.approx(np.mean(sick))
    assert chances["balanced_accuracy"] == chances["auc_binary"] == 0.5
    assert chances["loss"] == pytest.approx(np.mean([-p * math.log(p) - (1 - p) * math.log(1 - p) for p in sick]))
    for name in ("accuracy", "balanced_accuracy", "auc_binary"):
        assert whole[name].low <= whole[name].value <= whole[name].high
    card = card_of(run)
    assert [r.measure for r in card.utility] == ["accuracy", "balanced_accuracy", "auc_binary"]
    assert any(label == "mind" and "better than always answering sick" in text for label, text in card.rows())


def test_both_judge_one_run_to_the_figures_that_each_alone_has(tmp_path):
    """The federation's figures are the server's, each client's stand beside them by name; nobody's are averaged in."""

    def told(who):
        lines = train_run(Store(tmp_path / who), skewed(judging=Judging(evaluate=who))).readings()
        found = [Reading.of(line) for line in lines]
        return [r for r in found if r.client is None], [r for r in found if r.client is not None]

    (server, nobody), (means, clients), (whole, each) = told("server"), told("clients"), told("both")
    assert whole == server
    assert nobody == []
    assert each == clients
    assert {(r.client, r.measure) for r in each} == {
        (c, m) for c in ("client-1", "client-2") for m in ("accuracy", "loss")
    }
    assert whole != means


def test_both_need_test_data_on_either_side_and_a_model_that_the_server_can_see():
    both = Judging(evaluate="both")
    task = skewed().task
    for wrong, what in (
        ({"task": replace(task, test=None)}, "the server holds no test data"),
        ({"task": replace(task, clients=tuple(replace(c, test=None) for c in task.clients))}, "no client holds test"),
        ({"defences": (FedPer(last=1),)}, "never sees"),
    ):
        with pytest.raises(StackError, match=what):
            _ = replace(skewed(judging=both), **wrong).judges


def test_data_that_are_elsewhere_have_no_baseline():
    assert baseline_of(skewed(), Elsewhere.of(20, (6,), "")) is None


def test_a_check_says_what_a_skewed_test_set_is_worth():
    warnings = _look_at_classes(skewed())
    assert warnings == ["always answering sick scores accuracy 0.75 on the test data: read balanced accuracy beside it"]
